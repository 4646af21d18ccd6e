"""Parts of a network that a Kronecker structure cannot treat, and what they get instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from bayescope.curvature.footprint import FULL_BLOCK
from bayescope.network.network import Network


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
    if structure not in ("kfac", "ekfac"):
        return {}
    return {
        part.name: Fallback(
            "full" if part.dim <= FULL_BLOCK else "diagonal",
            part.reason or f"{part.kind} weights are no matrix that meets its inputs",
        )
        for part in network.parts
        if not part.factored
    }
