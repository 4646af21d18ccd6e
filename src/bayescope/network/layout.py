"""Where the rows of a batch are in a tensor inside a network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor


@final
@dataclass(frozen=True)
class Layout:
    """The N rows of a batch lie along one dimension, alone or folded together with other positions.

    Attributes:
        dim: the dimension.
        fold: "alone" where it has N entries, "outer" where it has N T and the row runs slowest, "inner" where it has
            T N and the row runs fastest.
    """

    dim: int
    fold: str = "alone"

    def fits(self, shape: Sequence[int], rows: int) -> bool:
        """Whether a tensor of this shape can hold so many rows in this way."""
        if self.dim >= len(shape):
            return False
        size = shape[self.dim]
        return size == rows if self.fold == "alone" else size % rows == 0

    def split(self, tensor: Tensor, rows: int, skip: int = 0) -> Tensor:
        """Brings the rows to dimension ``skip``; positions they were folded with come right after them.

        Args:
            tensor: shape (..., *shape), of which the first ``skip`` dimensions stay in front.
            rows: N.
            skip: the number of dimensions before those that the layout speaks of.

        Returns:
            Shape (..., N, rest).
        """
        dim = skip + self.dim
        if self.fold == "outer":
            tensor = tensor.unflatten(dim, (rows, -1))
        elif self.fold == "inner":
            tensor, dim = tensor.unflatten(dim, (-1, rows)), dim + 1
        return tensor if dim == skip else tensor.movedim(dim, skip)


def candidates(shape: Sequence[int], rows: int, lead: int) -> Iterator[Layout]:
    """The layouts that the first ``lead`` dimensions of a shape allow, the commonest first."""
    for fold in ("alone", "outer", "inner"):
        for dim in range(lead):
            if (shape[dim] == rows) if fold == "alone" else (shape[dim] % rows == 0 and shape[dim] > rows):
                yield Layout(dim, fold)


def layouts(cotangents: Tensor, lead: int, constant: Tensor | None = None) -> list[Layout]:
    """The layouts under which the k-th of N cotangents, seeded in row k alone, is zero in all other rows.

    Args:
        cotangents: shape (N, *shape), one for each row.
        lead: how many of the first dimensions of the shape may hold rows.
        constant: a tensor of that shape that may not vary along the dimension of the rows, as its strides tell.

    Returns:
        None where rows are mixed or none of the dimensions can hold them; one, as a rule. Cotangents that are zero
        throughout (a dead unit, an adapter that starts at zero) tell nothing: all that the shape allows are returned.
    """
    rows = cotangents.shape[0]
    found = list(candidates(cotangents.shape[1:], rows, lead))
    if constant is not None:
        found = [layout for layout in found if constant.stride(layout.dim) == 0]
    others = ~torch.eye(rows, dtype=torch.bool, device=cotangents.device)
    return [layout for layout in found if not layout.split(cotangents, rows, 1)[others].any()]
