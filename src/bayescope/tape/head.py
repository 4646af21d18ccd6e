"""The tape of a last layer, whose outputs are the model's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from bayescope.tape.gram import sum_of_grams
from bayescope.tape.outer import OuterTape
from bayescope.tape.selected import Selectable


@final
@dataclass(frozen=True)
class HeadTape(Selectable):
    """The rows of f = W a + b under the roots S_n of Λ_n = S_n S_nᵀ: g_nk is the k-th column of S_n itself.

    Sums over the cotangents need no root, since Σ_k g_nk g_nkᵀ = Λ_n: its diagonal and its sum over the rows are C
    numbers a row and C² in all, where K = C − 1 cotangents multiplied out would take C³ products a row. What tells the
    cotangents apart (`gram`, `multiply`, ...) goes through the root, which is built when it is first asked for.

    Attributes:
        activations: a, shape (N, 1, 1, D) without the bias. Where the outputs have positions, each is a row of its own.
        hessian_diagonal: Λ_ncc, shape (N, C).
        hessian_sum: the function that returns Σ_n Λ_n, shape (C, C): of many classes it is never asked for.
        root: the function that returns S, shape (K, N, C).
        bias: whether a bias is joined.
    """

    activations: Tensor
    hessian_diagonal: Tensor
    hessian_sum: Callable[[], Tensor]
    root: Callable[[], Tensor]
    bias: bool

    @property
    def rows(self) -> int:
        """N, the number of inputs read."""
        return self.activations.shape[0]

    @property
    def outputs(self) -> int:
        """K, the number of columns of the root."""
        return self._rooted.outputs

    @property
    def positions(self) -> int:
        return 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """(1, C, D), the joined bias counted in D."""
        return 1, self.hessian_diagonal.shape[-1], self.activations.shape[-1] + self.bias

    @property
    def dim(self) -> int:
        _, outputs, inputs = self.shape
        return outputs * inputs

    def jacobian(self, rows: slice) -> Tensor:
        """U for the given rows, shape (n, K, P)."""
        return self._rooted.jacobian(rows)

    def squares(self) -> Tensor:
        """Σ_n Λ_ncc a_nd², shape (P,)."""
        return (self.hessian_diagonal.mT @ self._inputs().square()).flatten()

    def gram(self, scale: Tensor) -> Tensor:
        """Σ_p u_nkp scale_p u_nlp, shape (N, K, K)."""
        return self._rooted.gram(scale)

    def norms(self, scale: Tensor) -> Tensor:
        """Σ_p u_nkp² scale_p, shape (N, K)."""
        return self._rooted.norms(scale)

    def multiply(self, v: Tensor) -> Tensor:
        """U v, shape (N, K, R), for v of shape (P, R)."""
        return self._rooted.multiply(v)

    def transpose_multiply(self, w: Tensor) -> Tensor:
        """Uᵀ w, shape (P, R), for w of shape (N, K, R)."""
        return self._rooted.transpose_multiply(w)

    def input_gram(self, onto: Tensor | None = None) -> Tensor:
        """Σ_n a_n a_nᵀ, shape (1, D, D), added to ``onto`` if that is given."""
        return sum_of_grams([self._inputs().mT[None]], onto)

    def output_gram(self, onto: Tensor | None = None) -> Tensor:
        """Σ_n Λ_n, shape (1, C, C), added to ``onto`` if that is given."""
        total = self.hessian_sum().to(self.activations)
        return total[None] if onto is None else onto.add_(total)

    def output_squares(self) -> Tensor:
        """Σ_n Λ_ncc, shape (1, C)."""
        return self.hessian_diagonal.sum(0, keepdim=True)

    def rotated(self, left: Tensor | None, right: Tensor | None) -> OuterTape:
        """The tape of leftᵀ U_nk right, through the root."""
        return self._rooted.rotated(left, right)

    def reduced(self) -> HeadTape:
        """Itself: there is one position."""
        return self

    def _inputs(self) -> Tensor:
        a = self.activations[:, 0, 0]
        return torch.cat([a, a.new_ones(a.shape[0], 1)], -1) if self.bias else a

    @cached_property
    def _rooted(self) -> OuterTape:
        return OuterTape(self.activations, self.root().to(self.activations)[:, :, None, None], self.bias)
