"""The tape of a weight matrix whose activations are too wide to be held for all rows at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import final

import torch
from torch import Tensor

from bayescope.tape.gram import columns, sum_of_grams, weighted
from bayescope.tape.outer import OuterTape, rotate
from bayescope.tape.tape import Blockwise, pieces, row_blocks


@final
@dataclass(frozen=True)
class StreamedTape(Blockwise):
    """An `OuterTape` that is read some rows at a time.

    Unfolded, a convolution's input is as often there as its kernel has entries: so it is for one block of rows only.

    Attributes:
        rows: N, the number of inputs read.
        outputs: K, the number of cotangents per input.
        shape: (G, O, D), the joined bias counted in D.
        positions: T, the number of positions per input that share the weights.
        activations: a of a range of rows, shape (n, T, G, D).
        cotangents: g of a range of rows, shape (K, n, T, G, O).
        row_bytes: what a and g of one row take.
        device: where they are.
    """

    rows: int
    outputs: int
    shape: tuple[int, int, int]
    positions: int
    activations: Callable[[slice], Tensor]
    cotangents: Callable[[slice], Tensor]
    row_bytes: int
    device: torch.device

    @classmethod
    def join(cls, tapes: Sequence[StreamedTape]) -> StreamedTape:
        """The tape of one weight used several times: the positions of all its uses side by side.

        Args:
            tapes: at least one, of the same rows, cotangents and weights.
        """
        return replace(
            tapes[0],
            positions=sum(tape.positions for tape in tapes),
            activations=lambda rows: torch.cat([tape.activations(rows) for tape in tapes], 1),
            cotangents=lambda rows: torch.cat([tape.cotangents(rows) for tape in tapes], 2),
            row_bytes=sum(tape.row_bytes for tape in tapes),
        )

    @property
    def dim(self) -> int:
        """P = G O D."""
        groups, outputs, inputs = self.shape
        return groups * outputs * inputs

    def blocks(self) -> Iterator[slice]:
        """Ranges of rows whose Jacobians take at most `block_bytes`."""
        return row_blocks(self.rows, max(8 * self.outputs * self.dim, self.row_bytes))

    def take(self, rows: slice) -> OuterTape:
        """The tape of some of the rows, read."""
        return OuterTape(self.activations(rows), self.cotangents(rows))

    def jacobian(self, rows: slice) -> Tensor:
        """U for the given rows, shape (n, K, P)."""
        return self.take(rows).jacobian(slice(None))

    def squares(self) -> Tensor:
        return reduce(add, (tape.squares() for tape in self._pieces()))

    def gram(self, scale: Tensor) -> Tensor:
        """Σ_p u_nkp scale_p u_nlp, shape (N, K, K)."""
        return torch.cat([tape.gram(scale) for tape in self._pieces()])

    def norms(self, scale: Tensor) -> Tensor:
        """Σ_p u_nkp² scale_p, shape (N, K)."""
        return torch.cat([tape.norms(scale) for tape in self._pieces()])

    def multiply(self, v: Tensor) -> Tensor:
        """U v, shape (N, K, R), for v of shape (P, R)."""
        return torch.cat([tape.multiply(v) for tape in self._pieces()])

    def transpose_multiply(self, w: Tensor) -> Tensor:
        """Uᵀ w, shape (P, R), for w of shape (N, K, R)."""
        return reduce(add, (self.take(rows).transpose_multiply(w[rows]) for rows in self._blocks()))

    def input_gram(self, onto: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
        """Σ_nt w_n a_nt a_ntᵀ, shape (G, D, D), added to ``onto`` if that is given; w = 1 without weights (N,)."""
        blocks = self._blocks()
        inputs = (weighted(self.activations(b), None if weights is None else weights[b]) for b in blocks)
        return sum_of_grams((columns(some) for some in inputs), onto)

    def output_gram(self, onto: Tensor | None = None) -> Tensor:
        """Σ_nkt g_nkt g_nktᵀ, shape (G, O, O), added to ``onto`` if that is given."""
        return sum_of_grams((columns(self.cotangents(rows)) for rows in self._blocks()), onto)

    def output_squares(self) -> Tensor:
        """Σ_nkt g_nkto², shape (G, O)."""
        return reduce(add, (self.cotangents(rows).square().sum((0, 1, 2)) for rows in self._blocks()))

    def rotated(self, left: Tensor | None, right: Tensor | None) -> StreamedTape:
        """The tape of leftᵀ U_nk right, rotated where it is read."""
        return replace(
            self,
            activations=lambda rows: rotate(self.activations(rows), right),
            cotangents=lambda rows: rotate(self.cotangents(rows), left),
        )

    def reduced(self) -> OuterTape:
        """One position per input, ḡ = Σ_t g_nkt and ā = T⁻¹ Σ_t a_nt, small enough to be held."""
        means = [self.activations(rows).mean(1, keepdim=True) for rows in self._blocks()]
        totals = [self.cotangents(rows).sum(2, keepdim=True) for rows in self._blocks()]
        return OuterTape(torch.cat(means), torch.cat(totals, 1))

    def _blocks(self) -> list[slice]:
        return pieces(self.rows, self.row_bytes, self.device)

    def _pieces(self) -> Iterator[OuterTape]:
        return (self.take(rows) for rows in self._blocks())
