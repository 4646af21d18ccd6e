"""The pairs of features that ``interactions=`` names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bayescope import checks
from bayescope.errors import InputError, OptionError


def feature_pairs(value: Any, names: Sequence[str]) -> int | str | list[tuple[int, int]]:
    """Checks ``interactions=``, and turns names of features into positions.

    Raises:
        InputError: if a pair is none, or is there twice.
        OptionError: if a feature is unknown.
    """
    if isinstance(value, str) or not isinstance(value, Sequence | np.ndarray):
        return int(value) if isinstance(value, np.integer) else value
    pairs = []
    for pair in value:
        if isinstance(pair, str) or not hasattr(pair, "__len__") or len(pair) != 2:
            raise InputError(f"interactions: expected pairs of names such as ('a', 'b'), got {pair!r}.")
        first, second = (_position(feature, names) for feature in pair)
        if first == second:
            raise InputError(f"interactions: expected two different features in a pair, got {names[first]!r} twice.")
        pairs.append((min(first, second), max(first, second)))
    twice = next((pair for place, pair in enumerate(pairs) if pair in pairs[:place]), None)
    if twice is not None:
        raise InputError(
            f"interactions: expected each pair once, got {names[twice[0]]!r} and {names[twice[1]]!r} twice."
        )
    return pairs


def _position(feature: Any, names: Sequence[str]) -> int:
    if isinstance(feature, str):
        if feature not in names:
            raise OptionError.unknown("interactions", feature, names)
        return list(names).index(feature)
    position = checks.count("interactions", feature, least=0)
    if position >= len(names):
        raise InputError(f"interactions: expected positions 0…{len(names) - 1} or names, got {position}.")
    return position
