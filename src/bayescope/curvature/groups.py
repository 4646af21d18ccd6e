"""Groups: which weights share a block of a block-diagonal curvature."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError, InputTypeError, OptionError, UnsupportedError
from bayescope.network.network import Network

NAMED = ("layer", "tensor")


def group_indices(network: Network, groups: Any) -> tuple[Tensor, ...]:
    """The flat positions of each group's weights, every weight in one group.

    Args:
        network: whose weights they are.
        groups: "layer" (the network's parts: a weight with the bias that belongs to it), "tensor" (its parameters), or
            a list of lists of parameter names and globs, such as ``[["0.*"], ["2.weight", "2.bias"]]``.

    Raises:
        OptionError: if a word or a name is unknown.
        InputError: if a parameter is in two groups or in none.
        UnsupportedError: for groups of one weight, or one group of all: those are structures of their own.
    """
    if isinstance(groups, str):
        if groups in ("weight", "scalar"):
            structure = {"weight": "diagonal", "scalar": "full"}[groups]
            raise UnsupportedError(f"groups: {groups!r} blocks are the structure {structure!r}. Ask for that one.")
        if checks.choice("groups", groups, NAMED) == "layer":
            return tuple(network.indices)
    slices = dict(zip(network.weights.names, network.weights.slices, strict=True))
    named = [[name] for name in slices] if isinstance(groups, str) else _named(groups, list(slices))
    device = network.indices[0].device
    return tuple(
        torch.cat([torch.arange(slices[name].start, slices[name].stop, device=device) for name in group])
        for group in named
    )


def _named(groups: Any, names: list[str]) -> list[list[str]]:
    """The parameters of each group, in the order of the network's."""
    if not isinstance(groups, Sequence) or not all(isinstance(group, list | tuple) and group for group in groups):
        raise InputTypeError(
            f"groups: expected 'layer', 'tensor' or a list of lists of parameter names and globs, got {groups!r}."
        )
    found = [[name for name in names if _matches(name, group)] for group in groups]
    for pattern in (pattern for group in groups for pattern in group):
        if not any(fnmatchcase(name, pattern) for name in names):
            raise OptionError.unknown("groups", pattern, names)
    for name in names:
        count = sum(name in group for group in found)
        if count != 1:
            raise InputError(
                f"groups: expected each parameter in one group, got {name!r} in {count}. "
                f"{'Add a group for it' if count == 0 else 'Take it out of the others'}."
            )
    return found


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
