"""The numbers that sliders set. The page draws each range, and the server refuses what lies outside of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from bayescope.errors import InputError

# Of a logarithmic slider, in powers of ten.
DECADES = 0.05


@final
@dataclass(frozen=True)
class Control:
    """The range of a number.

    Attributes:
        title: what the slider is called.
        value: the first value.
        low: the least value.
        high: the largest value.
        step: from one value to the next, in powers of ten if it is logarithmic. With a step of 1 the numbers are whole.
        logarithmic: whether the slider moves along the logarithm.
    """

    title: str
    value: float
    low: float
    high: float
    step: float = DECADES
    logarithmic: bool = False

    def read(self, name: str, value: Any) -> float:
        """Return the value, a whole number where the step is 1.

        Raises:
            InputError: if it is not a number in the range.
        """
        whole = self.step == 1
        number = isinstance(value, int | float) and not isinstance(value, bool) and self.low <= value <= self.high
        if not number or (whole and value != int(value)):
            expected = f"a {'whole ' if whole else ''}number from {self.low:g} to {self.high:g}"
            raise InputError(f"{name}: expected {expected}, got {value!r}. Move it there.")
        return int(value) if whole else float(value)


CONTROLS: Mapping[str, Control] = {
    "degree": Control("Degree", 3, 1, 6, 1),
    "side": Control("Bumps along each axis", 8, 2, 14, 1),
    "count": Control("Number of bumps", 30, 2, 100, 1),
    "width": Control("Width", 0.7, 0.05, 5, logarithmic=True),
    "hidden": Control("Hidden units", 10, 2, 30, 1),
    "prior_precision": Control("Prior precision", 1.0, 1e-3, 1e3, logarithmic=True),
    "noise_sd": Control("Noise sd", 0.3, 0.02, 3, logarithmic=True),
    "temperature": Control("Temperature", 1.0, 0.1, 10, logarithmic=True),
}
