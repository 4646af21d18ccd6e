"""Numbers as readers want them: few digits, a real minus sign, ends of an interval alike."""

from __future__ import annotations

import math
import numbers

from bayescope.plots.style import shorten

MISSING = "missing"
# A narrow space that no line breaks at: between thousands.
THIN = "\u202f"


def plain(value: float, digits: int = 3) -> str:
    """A number with the given significant digits, without an exponent unless it is very large or small."""
    if not math.isfinite(value):
        return "–" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if not -4 <= size < 7:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return minus(f"{mantissa}e{int(exponent)}")
    return _grouped(value, max(0, digits - 1 - size))


def tidy(value: float, digits: int = 4) -> str:
    """A number without zeros at its end, whole ones whole: how a value of a table is written."""
    if math.isfinite(value) and value == round(value) and abs(value) < 1e7:
        return _grouped(value, 0)
    text = plain(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def fixed(value: float, digits: int) -> str:
    """A number with the given digits after the point."""
    return _grouped(value, digits) if math.isfinite(value) else plain(value)


def signed(value: float, digits: int = 3) -> str:
    """A number that always has a sign, 0 apart."""
    return f"+{plain(value, digits)}" if value > 0 else plain(value, digits)


def percent(share: float, digits: int = 1) -> str:
    """A share in percent, as text for the page."""
    return f"{fixed(100.0 * share, digits)}\u00a0%" if math.isfinite(share) else "–"


def alike(low: float, high: float, digits: int = 2) -> str:
    """An interval whose ends have as many digits after the point as its width has use for."""
    width, largest = high - low, max(abs(low), abs(high))
    if not math.isfinite(width) or width <= 0 or not 1e-4 <= largest < 1e7:
        return f"{plain(low, digits + 1)} to {plain(high, digits + 1)}"
    after = max(0, digits - 1 - math.floor(math.log10(width)))
    return f"{fixed(low, after)} to {fixed(high, after)}"


def around(value: float, low: float, high: float, largest: float, *, sign: bool = False) -> tuple[str, str]:
    """A number and its interval with as many digits after the point as the largest of its kind has use for."""
    if not 1e-4 <= largest < 1e7:
        return (signed if sign else plain)(value), alike(low, high)
    after = max(0, 2 - math.floor(math.log10(largest)))
    text = fixed(value, after)
    return (
        "+" + text if sign and float(f"{value:.{after}f}") > 0 else text
    ), f"{fixed(low, after)} to {fixed(high, after)}"


def cell(value: object, most: int = 28) -> str:
    """A value of the caller's table: a number with few digits, or a text of at most this many letters."""
    if isinstance(value, tuple):
        return ", ".join(cell(part, most) for part in value)
    if value is None or value != value:
        return MISSING
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return tidy(float(value))
    return shorten(str(value), most)


def count(many: int, what: str) -> str:
    """A count with its noun, in the plural unless it is 1; thousands apart."""
    return f"{_grouped(many, 0)} {what}{'' if many == 1 else 's'}"


def _grouped(value: float, digits: int) -> str:
    """With digits after the point, and thousands apart from five digits before it on: four may be a year."""
    text = f"{value:.{digits}f}" if abs(value) < 1e4 else f"{value:,.{digits}f}".replace(",", THIN)
    return minus(text)


def minus(text: str) -> str:
    """With a real minus sign, and none before a 0."""
    return (text if text.strip("-0.") else text.lstrip("-")).replace("-", "−")
