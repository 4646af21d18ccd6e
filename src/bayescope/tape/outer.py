"""The tape of a weight matrix: rows that are sums of outer products."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import final

import torch
from torch import Tensor

from bayescope.tape.gram import columns, sum_of_grams, weighted
from bayescope.tape.tape import Blockwise, pieces


@final
@dataclass(frozen=True)
class OuterTape(Blockwise):
    """U_nk = Σ_t g_nkt ⊗ a_nt: a linear map at each of T positions, for G groups of channels apart.

    The canonical order of the weights is (G, O, D) row-major; a joined bias is one more column of a, of ones, the last.

    A weight that the outputs do not depend on has no positions (T = 0): U = 0.

    Attributes:
        activations: a, shape (N, T, G, D) without the bias, with any strides.
        cotangents: g, shape (K, N, T, G, O), or (K, 1, T, G, O) where all rows share them, with any strides.
        bias: whether a bias is joined.
    """

    activations: Tensor
    cotangents: Tensor
    bias: bool = False

    @classmethod
    def join(cls, tapes: Sequence[OuterTape]) -> OuterTape:
        """The tape of one weight used several times: the positions of all its uses side by side.

        Args:
            tapes: at least one, of the same rows, cotangents and weights.
        """
        cotangents = [tape.cotangents.expand(-1, tape.rows, -1, -1, -1) for tape in tapes]
        return cls(torch.cat([tape.activations for tape in tapes], 1), torch.cat(cotangents, 2), tapes[0].bias)

    @property
    def rows(self) -> int:
        """N, the number of inputs read."""
        return self.activations.shape[0]

    @property
    def outputs(self) -> int:
        """K, the number of cotangents per input."""
        return self.cotangents.shape[0]

    @property
    def positions(self) -> int:
        """T, the number of positions per input that share the weights."""
        return self.activations.shape[1]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(G, O, D), the joined bias counted in D."""
        _, _, groups, inputs = self.activations.shape
        return groups, self.cotangents.shape[4], inputs + self.bias

    @property
    def dim(self) -> int:
        """P = G O D."""
        groups, outputs, inputs = self.shape
        return groups * outputs * inputs

    def take(self, rows: slice) -> OuterTape:
        """The tape of some of the rows, as a view."""
        shared = self.cotangents.shape[1] == 1
        return OuterTape(self.activations[rows], self.cotangents if shared else self.cotangents[:, rows], self.bias)

    def jacobian(self, rows: slice) -> Tensor:
        """U for the given rows, shape (n, K, P)."""
        return self.take(rows)._products().transpose(1, 2).flatten(2)

    def squares(self) -> Tensor:
        if self._by_pairs:
            parts = [tape._pair_squares() for tape in self._pieces(self._pair_width(self.outputs))]
        else:
            parts = [tape._products().square_().sum((0, 2)) for tape in self._pieces(self.outputs * self.dim)]
        return reduce(add, parts).flatten()

    def gram(self, scale: Tensor) -> Tensor:
        """Σ_p u_nkp scale_p u_nlp, shape (N, K, K)."""
        if self.outputs == 1:  # a batch of dot products is slow as a batch of 1×P by P×1 products
            return self.norms(scale)[..., None]
        scale = scale.to(self.activations).unflatten(0, self.shape)
        if self._by_pairs:
            return torch.cat([tape._pair_gram(scale) for tape in self._pieces(self._pair_width(self.outputs))])
        return torch.cat([tape._product_gram(scale) for tape in self._pieces(2 * self.outputs * self.dim)])

    def norms(self, scale: Tensor) -> Tensor:
        """Σ_p u_nkp² scale_p, shape (N, K)."""
        scale = scale.to(self.activations).unflatten(0, self.shape)
        if self._by_pairs:
            shared = self.cotangents.shape[1] < self.rows
            width = self._pair_width(1 if shared else self.outputs)
            return torch.cat([tape._pair_norms(scale) for tape in self._pieces(width)])
        tapes = self._pieces(self.outputs * self.dim)
        return torch.cat([torch.einsum("ngkod,god->nk", tape._products().square_(), scale) for tape in tapes])

    def multiply(self, v: Tensor) -> Tensor:
        """U v, shape (N, K, R), for v of shape (P, R): at each position first, then over positions."""
        v = v.to(self.activations).unflatten(0, self.shape)
        return torch.cat([tape._multiply(v) for tape in self._pieces(self._mixed_width(v.shape[-1]))])

    def transpose_multiply(self, w: Tensor) -> Tensor:
        """Uᵀ w, shape (P, R), for w of shape (N, K, R): the weight's gradient under the cotangents Σ_k g_nkt w_nk."""
        w = w.to(self.activations)
        blocks = self._blocks(self._mixed_width(w.shape[-1]))
        return reduce(add, (self.take(rows)._transpose_multiply(w[rows]) for rows in blocks)).flatten(0, 2)

    def input_gram(self, onto: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
        """Σ_nt w_n a_nt a_ntᵀ, shape (G, D, D), added to ``onto`` if that is given; w = 1 without weights (N,)."""
        blocks = self._blocks(self.activations[:1].numel())
        inputs = (weighted(self.take(b)._inputs(), None if weights is None else weights[b]) for b in blocks)
        return sum_of_grams((columns(some) for some in inputs), onto)

    def output_gram(self, onto: Tensor | None = None) -> Tensor:
        """Σ_nkt g_nkt g_nktᵀ, shape (G, O, O), added to ``onto`` if that is given."""
        if self.cotangents.shape[1] < self.rows:
            return sum_of_grams([columns(self.cotangents) * math.sqrt(self.rows)], onto)
        if self.cotangents.is_contiguous():  # a view of all cotangents, where one of some of the rows would be a copy
            return sum_of_grams([columns(self.cotangents)], onto)
        tapes = self._pieces(self.cotangents[:, :1].numel())
        return sum_of_grams((columns(tape.cotangents) for tape in tapes), onto)

    def output_squares(self) -> Tensor:
        """Σ_nkt g_nkto², shape (G, O)."""
        shared = self.rows // self.cotangents.shape[1]
        blocks = self._blocks(self.cotangents[:, :1].numel()) if shared == 1 else [slice(None)]
        return shared * reduce(add, (self.cotangents[:, rows].square().sum((0, 1, 2)) for rows in blocks))

    def rotated(self, left: Tensor | None, right: Tensor | None) -> OuterTape:
        """The tape of leftᵀ U_nk right, the bias now one of the columns."""
        if left is not None and left.ndim == 3 and self._identity:  # a product of C³ for 1,000 classes, in each batch
            return OuterTape(rotate(self._inputs(), right), left.to(self.cotangents)[0][:, None, None, None])
        return OuterTape(rotate(self._inputs(), right), rotate(self.cotangents, left))

    def reduced(self) -> OuterTape:
        """One position per input, ḡ = Σ_t g_nkt and ā = T⁻¹ Σ_t a_nt; none where there are none (T = 0)."""
        if self.positions == 0:
            return self
        return OuterTape(self.activations.mean(1, keepdim=True), self.cotangents.sum(2, keepdim=True), self.bias)

    # U_nk is either built for a block of rows, at K T O D products a row, or never: a square of it is a sum over pairs
    # of positions, (Σ_t g_t ⊗ a_t)² = Σ_{s ≤ t} (2 − [s = t]) g_s g_t ⊗ a_s a_t, at T (T + 1)/2 O D products a row for
    # all the K cotangents together. One position is one pair: a dense layer never comes near U.

    @property
    def _identity(self) -> bool:
        """Whether the cotangents are the identity, as where a last layer's outputs are predicted."""
        outputs, *between, width = self.cotangents.shape
        if between != [1, 1, 1] or outputs != width:
            return False
        eye = torch.eye(width, dtype=self.cotangents.dtype, device=self.cotangents.device)
        return torch.equal(self.cotangents[:, 0, 0, 0], eye)

    @property
    def _by_pairs(self) -> bool:
        return self.positions + 1 <= 2 * self.outputs

    def _pair_width(self, cotangents: int) -> int:
        groups, outputs, inputs = self.shape
        return self.positions * (self.positions + 1) // 2 * groups * (inputs + cotangents * outputs)

    def _mixed_width(self, columns: int) -> int:
        groups, outputs, inputs = self.shape
        return self.positions * groups * (inputs + outputs * columns)

    def _blocks(self, width: int) -> list[slice]:
        return pieces(self.rows, width * self.activations.element_size(), self.activations.device)

    def _pieces(self, width: int) -> Iterator[OuterTape]:
        return (self.take(rows) for rows in self._blocks(width))

    def _inputs(self) -> Tensor:
        a = self.activations
        return torch.cat([a, a.new_ones(*a.shape[:-1], 1)], -1) if self.bias else a

    def _products(self) -> Tensor:
        """U of all rows, shape (n, G, K, O, D)."""
        g = self.cotangents.expand(-1, self.rows, -1, -1, -1)
        return torch.einsum("kntgo,ntgd->ngkod", g, self._inputs())

    def _pair_squares(self) -> Tensor:
        g, h = _pairs(self.cotangents)
        products = g[0] * h[0]
        for each, other in zip(g[1:], h[1:], strict=True):  # the product of all would write K N O numbers to be summed
            products.addcmul_(each, other)
        return torch.einsum("npgo,npgd->god", products, self._paired_inputs())

    def _pair_norms(self, scale: Tensor) -> Tensor:
        g, h = _pairs(self.cotangents)
        products, weights = g * h, self._paired_scale(scale)
        if products.shape[1] == 1:  # shared cotangents: one matrix product in place of a tensor (K, n, O)
            return weights.flatten(1) @ products.flatten(1).mT
        return (products * weights).sum((2, 3, 4)).mT

    def _pair_gram(self, scale: Tensor) -> Tensor:
        g, h = _pairs(self.cotangents)
        half = torch.einsum("knpgo,lnpgo->nkl", g * self._paired_scale(scale), h)
        return 0.5 * (half + half.mT) if self.positions > 1 else half

    def _paired_inputs(self) -> Tensor:
        """(2 − [s = t]) a_s a_t for the pairs s ≤ t, shape (n, T (T + 1)/2, G, D)."""
        a, b = _pairs(self._inputs())
        if self.positions == 1:
            return a.square()
        first, second = torch.triu_indices(self.positions, self.positions, device=a.device)
        return a * b * (2 - (first == second).to(a))[:, None, None]

    def _paired_scale(self, scale: Tensor) -> Tensor:
        return torch.einsum("npgd,god->npgo", self._paired_inputs(), scale)

    def _product_gram(self, scale: Tensor) -> Tensor:
        products = self._products()
        return ((products * scale[:, None]).flatten(3) @ products.flatten(3).mT).sum(1)

    def _multiply(self, v: Tensor) -> Tensor:
        mapped = torch.einsum("ntgd,godr->ntgor", self._inputs(), v)
        return torch.einsum("kntgo,ntgor->nkr", self.cotangents, mapped)

    def _transpose_multiply(self, w: Tensor) -> Tensor:
        mixed = torch.einsum("kntgo,nkr->ntgor", self.cotangents, w)
        return torch.einsum("ntgor,ntgd->godr", mixed, self._inputs())


def _pairs(x: Tensor) -> tuple[Tensor, Tensor]:
    """x_s and x_t of the pairs of positions s ≤ t, for x of shape (..., T, G, C)."""
    positions = x.shape[-3]
    if positions == 1:
        return x, x
    first, second = torch.triu_indices(positions, positions, device=x.device)
    return x.index_select(-3, first), x.index_select(-3, second)


def rotate(x: Tensor, basis: Tensor | None) -> Tensor:
    """basisᵀ x per group, for x of shape (..., G, C) and a basis (G, C, C), the diagonal (G, C) of one, or none."""
    if basis is None:
        return x
    basis = basis.to(x)
    return x * basis if basis.ndim == 2 else torch.einsum("...gc,gce->...ge", x, basis)
