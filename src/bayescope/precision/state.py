"""What a precision is made of: named tensors, each with the rule by which two of them are summed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from bayescope.errors import UnsupportedError


@final
@dataclass(frozen=True, eq=False)
class State:
    """The tensors of a precision. Sums of precisions, files and processes are written once, in these terms.

    Attributes:
        structure: the structure's name, the same that a caller of `fit_curvature` uses where there is one.
        name: what the matrix is, for messages.
        sums: tensors that add up: factors, counts, matrices.
        shared: tensors that have to be the same on both sides, and are kept: bases, positions.
        stacked: tensors that are put side by side along their last axis: the vectors of a low rank.
        diagonal: what has been added to the diagonal, broadcast against the other's; ``None`` where ``sums`` holds it.
        definite: whether the matrix has been required to be positive definite.
        parts: the blocks of a block-diagonal precision.
        adds: whether two of the structure have a sum in these terms; ``False`` for one that is held by its inverse.
    """

    structure: str
    name: str
    sums: Mapping[str, Tensor] = field(default_factory=dict)
    shared: Mapping[str, Tensor] = field(default_factory=dict)
    stacked: Mapping[str, Tensor] = field(default_factory=dict)
    diagonal: Tensor | None = None
    definite: bool = False
    parts: tuple[State, ...] = ()
    adds: bool = True

    def __add__(self, other: State) -> State:
        """The state of the sum of the two matrices.

        Raises:
            UnsupportedError: if structures differ or do not add, tensors have unlike shapes, or what is shared is not
                equal.
        """
        self.refuse_unlike(other)
        return State(
            self.structure,
            self.name,
            {key: tensor + other.sums[key] for key, tensor in self.sums.items()},
            self.shared,
            {key: torch.cat([tensor, other.stacked[key]], -1) for key, tensor in self.stacked.items()},
            None if self.diagonal is None or other.diagonal is None else self.diagonal + other.diagonal,
            self.definite or other.definite,
            tuple(mine + theirs for mine, theirs in zip(self.parts, other.parts, strict=True)),
        )

    def refuse_unlike(self, other: State) -> None:
        """Checks that the two can be summed.

        Raises:
            UnsupportedError: if structures differ or do not add, tensors have unlike shapes, or what is shared is not
                equal.
        """
        self.refuse_sums()
        if self.signature() != other.signature():
            raise UnsupportedError(
                f"{self.name}: expected to be summed with a precision of the same structure and shapes "
                f"({self.signature()}), got {other.signature()}. Fit both with the same model and structure."
            )
        for key, tensor in self.shared.items():
            if not torch.equal(tensor, other.shared[key]):
                raise unlike(self.name, key)

    def refuse_sums(self) -> None:
        """Checks that precisions of this structure add at all.

        Raises:
            UnsupportedError: if they do not, the blocks among them.
        """
        if not self.adds:
            raise UnsupportedError(
                f"{self.name}: expected a precision to add to, got one of the structure {self.structure!r}, which is "
                "held by its inverse. Sum what it was made of, or take a structure that adds."
            )
        for part in self.parts:
            part.refuse_sums()

    def signature(self) -> str:
        """The structure and the shapes that two precisions have to have in common to be summed."""
        own = {key: tuple(tensor.shape) for key, tensor in (*self.sums.items(), *self.shared.items())}
        own |= {key: tuple(tensor.shape[:-1]) for key, tensor in self.stacked.items()}  # the last may differ
        shapes = ", ".join(f"{key} {shape}" for key, shape in own.items())
        parts = "; ".join(part.signature() for part in self.parts)
        return f"{self.structure}: {shapes}" + (f" [{parts}]" if self.parts else "")


def unlike(name: str, key: str) -> UnsupportedError:
    """The error for a shared tensor that differs: sums in two eigenbases are no matrix in either."""
    return UnsupportedError(
        f"{name}: expected both precisions to have the same {key}, got two that differ. Fits of the structure 'ekfac' "
        "do not add: fit by processes of one group, which find the same basis together. Factors of 'kfac' do."
    )
