"""One point of the benchmark of first answers: what is measured, and what is wanted of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class Point:
    """What a newcomer tries, and the numbers that come of it.

    Attributes:
        section: the heading that it stands under.
        name: what it is asked for by.
        about: a sentence: the data, the call.
        measure: runs it, in small where asked to be quick, and returns a number for each measure in `wanted`.
        wanted: for each measure a bound, such as "≥ 0.6" or "≤ 0.01".
        limit: seconds after which there is no answer.
    """

    section: str
    name: str
    about: str
    measure: Callable[[bool], dict[str, float]]
    wanted: Mapping[str, str]
    limit: float = 120.0


def holds(value: float, wanted: str) -> bool:
    """Whether a number keeps a bound such as "≥ 0.6"."""
    sign, bound = wanted.split()
    return value >= float(bound) if sign == "≥" else value <= float(bound)
