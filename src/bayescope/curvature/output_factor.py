"""The output factor of a Kronecker structure: all of it, or its diagonal where a layer has too many outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from bayescope import checks
from bayescope.errors import OptionError, UnsupportedError
from bayescope.network import PartInfo

DENSE, DIAGONAL = "dense", "diagonal"
FACTORS = (DENSE, DIAGONAL)
KRONECKER = ("kfac", "ekfac")


def check_output_factor(choice: Any, structure: str) -> None:
    """Refuses an output factor that is unknown, or that the structure does not have.

    Args:
        choice: "dense", "diagonal", or a dict of these by part, parameter or glob.
        structure: the structure's name.

    Raises:
        OptionError: if a name is unknown.
        UnsupportedError: if the structure is no Kronecker product.
    """
    for factor in choice.values() if isinstance(choice, Mapping) else (choice,):
        checks.choice("output_factor", factor, FACTORS)
    if choice != DENSE and structure not in KRONECKER:
        takes = " and ".join(map(repr, KRONECKER))
        raise UnsupportedError(f"output_factor: expected with the structure {takes}, got {structure!r}. Leave it out.")


def output_factors(choice: str | Mapping[str, str], parts: Sequence[PartInfo]) -> tuple[str, ...]:
    """The output factor of each part of a network.

    Args:
        choice: one for all; or a dict by part, parameter or glob, in which parts that no name stands for are "dense".
            Where several do, it is the last of them that counts.
        parts: the network's.

    Raises:
        OptionError: if a name stands for no part.
    """
    if not isinstance(choice, Mapping):
        return (choice,) * len(parts)
    found = [DENSE] * len(parts)
    for pattern, factor in choice.items():
        places = [place for place, part in enumerate(parts) if _meant(pattern, part)]
        if not places:
            raise OptionError.unknown("output_factor", pattern, [part.name for part in parts])
        for place in places:
            found[place] = factor
    return tuple(found)


def factored_otherwise(choice: str | Mapping[str, str], parts: Sequence[PartInfo]) -> dict[str, str]:
    """By the name of the part, the output factors that are not dense."""
    pairs = zip(parts, output_factors(choice, parts), strict=True)
    return {part.name: factor for part, factor in pairs if factor != DENSE and part.factored}


def _meant(pattern: str, part: PartInfo) -> bool:
    owners = (name.rpartition(".")[0] for name in part.parameters)
    return any(fnmatchcase(name, pattern) for name in (part.name, *part.parameters, *owners))
