"""The tape of some of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from torch import Tensor

from bayescope.tape.tape import Tape, row_blocks


@final
@dataclass(frozen=True)
class SelectedTape:
    """Some weights of another tape: the others are treated as known, so that their columns of U fall away.

    Attributes:
        tape: the tape of all the weights.
        indices: the positions of the selected ones in its flat order, each at most once, shape (P,).
    """

    tape: Tape
    indices: Tensor

    @property
    def rows(self) -> int:
        """N, the number of inputs read."""
        return self.tape.rows

    @property
    def outputs(self) -> int:
        """K, the number of cotangents per input."""
        return self.tape.outputs

    @property
    def dim(self) -> int:
        """P, the number of selected weights."""
        return self.indices.shape[0]

    def blocks(self) -> Iterator[slice]:
        """Ranges of rows bounded by what the tape of all the weights takes, of which the selection is cut."""
        return row_blocks(self.rows, 8 * self.outputs * self.tape.dim)

    def jacobian(self, rows: slice) -> Tensor:
        """The selected columns of U, shape (n, K, P)."""
        return self.tape.jacobian(rows).index_select(-1, self.indices)

    def squares(self) -> Tensor:
        return self.tape.squares().index_select(0, self.indices)

    def gram(self, scale: Tensor) -> Tensor:
        """Σ_p u_nkp scale_p u_nlp, shape (N, K, K): the others have scale 0."""
        return self.tape.gram(self._spread(scale))

    def norms(self, scale: Tensor) -> Tensor:
        """Σ_p u_nkp² scale_p, shape (N, K)."""
        return self.tape.norms(self._spread(scale))

    def multiply(self, v: Tensor) -> Tensor:
        """U v, shape (N, K, R), for v of shape (P, R)."""
        return self.tape.multiply(self._spread(v))

    def transpose_multiply(self, w: Tensor) -> Tensor:
        """Uᵀ w, shape (P, R), for w of shape (N, K, R)."""
        return self.tape.transpose_multiply(w).index_select(0, self.indices)

    def part(self, indices: Tensor) -> SelectedTape:
        """Some of the selected weights, straight from the tape of all."""
        return SelectedTape(self.tape, self.indices[indices])

    def _spread(self, values: Tensor) -> Tensor:
        spread = values.new_zeros(self.tape.dim, *values.shape[1:])
        return spread.index_copy(0, self.indices, values)


class Selectable:
    """What a tape answers by its size alone: blocks of rows, and some of its weights."""

    def blocks(self: Tape) -> Iterator[slice]:
        """Ranges of rows whose Jacobians take at most `BLOCK_BYTES`."""
        return row_blocks(self.rows, 8 * self.outputs * self.dim)

    def part(self: Tape, indices: Tensor) -> SelectedTape:
        """The tape of some of the weights."""
        return SelectedTape(self, indices)
