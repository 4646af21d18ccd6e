"""Parts of a network that a Kronecker structure cannot treat, and what they get instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from bayescope.network import Network, PartInfo
from bayescope.precision import STRUCTURES
from bayescope.precision.kronecker import unfactored


@final
@dataclass(frozen=True)
class Fallback:
    """A part of a network that the structure asked for cannot treat, and what it got instead.

    Attributes:
        structure: "full" or "diagonal".
        reason: why.
    """

    structure: str
    reason: str

    def __str__(self) -> str:
        return f"{self.structure}: {self.reason}"


def fallbacks_of(network: Network, structure: str) -> dict[str, Fallback]:
    """By the name of the part, those that are no sum of outer products; none where the structure needs no such form."""
    if not STRUCTURES[structure].rotates:
        return {}
    return {
        part.name: Fallback(
            unfactored(part),
            part.reason or _reason(network, part),
        )
        for part in network.parts
        if not part.factored
    }


def _reason(network: Network, part: PartInfo) -> str:
    """Why a part that no other reason is known for is no sum of outer products."""
    weights = network.weights
    for name, shape, count in zip(weights.names, weights.shapes, weights.counts, strict=True):
        if name in part.parameters and count < shape.numel():
            return f"some of {name!r} is fixed"
    owners = {name.rpartition(".")[0] for name in part.parameters}
    for name, parameter in network.module.named_parameters():
        if name not in weights.names and parameter.ndim > 1 and name.rpartition(".")[0] in owners:
            return f"{name!r}, the matrix beside it, is fixed"
    return f"{part.kind} weights are no matrix that meets its inputs"
