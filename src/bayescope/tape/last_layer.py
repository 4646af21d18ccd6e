"""Tapes of layers whose outputs are the model's: of a linear model, of some outputs of many, and of moments of Λ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, final

import torch
from torch import Tensor

from bayescope.tape.gram import sum_of_grams, weighted
from bayescope.tape.outer import OuterTape, rotate
from bayescope.tape.streamed import StreamedTape
from bayescope.tape.tape import Blockwise, pieces


@final
@dataclass(frozen=True)
class ClassTape(Blockwise):
    """u_nk = ∂f_{n c_nk}/∂θ = s_{c_nk} e(c_nk) ⊗ a_n for f = W a + b, with e(c) the c-th unit vector of C.

    Cotangents that pick out an output are zero elsewhere: all C of them would be C × C numbers, for 50,000 classes
    10 GB, and those of K classes a row N K C. Here they are the numbers of the classes alone.

    The canonical order of the weights is (1, C, D), a joined bias the last column.

    Attributes:
        activations: a, shape (N, D) without the bias.
        width: C.
        bias: whether a bias is joined.
        classes: c, int64 of shape (N, K); ``None`` for all of them in order, K = C.
        scale: s, shape (C,); ``None`` for ones.
    """

    activations: Tensor
    width: int
    bias: bool = False
    classes: Tensor | None = None
    scale: Tensor | None = None

    @property
    def rows(self) -> int:
        """N, the number of inputs read."""
        return self.activations.shape[0]

    @property
    def outputs(self) -> int:
        """K, the number of classes per input."""
        return self.width if self.classes is None else self.classes.shape[1]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(1, C, D), the joined bias counted in D."""
        return 1, self.width, self.activations.shape[1] + self.bias

    @property
    def dim(self) -> int:
        return self.width * self.shape[2]

    def take(self, rows: slice | Tensor) -> ClassTape:
        """The tape of some of the rows."""
        classes = None if self.classes is None else self.classes[rows]
        return replace(self, activations=self.activations[rows], classes=classes)

    def jacobian(self, rows: slice) -> Tensor:
        """U for the given rows, shape (n, K, P)."""
        some = self.take(rows)
        a, classes = some._inputs(), some._numbers()
        u = a.new_zeros(some.rows, some.outputs, self.width, a.shape[1])
        values = some._scaled(a[:, None].expand(-1, some.outputs, -1))
        index = classes[:, :, None, None].expand(-1, -1, 1, a.shape[1])
        return u.scatter_(2, index, values[:, :, None]).flatten(2)

    def gram(self, scale: Tensor) -> Tensor:
        """Σ_p u_nkp scale_p u_nlp, shape (N, K, K): outputs of two classes share no weight."""
        norms = self.norms(scale)
        if self.classes is None:
            return torch.diag_embed(norms)
        return norms[:, :, None] * (self.classes[:, :, None] == self.classes[:, None])

    def norms(self, scale: Tensor) -> Tensor:
        """Σ_p u_nkp² scale_p, shape (N, K)."""
        table = scale.to(self.activations).unflatten(0, self.shape[1:])
        if self.classes is None:
            return self._scaled((self._inputs().square() @ table.mT)[..., None], 2)[..., 0]
        parts = [
            torch.einsum("nd,nkd->nk", some._inputs().square(), some._scaled(table[some._numbers()], 2))
            for some in self._pieces()
        ]
        return torch.cat(parts)

    def multiply(self, v: Tensor) -> Tensor:
        """U v, shape (N, K, R), for v of shape (P, R)."""
        table = v.to(self.activations).unflatten(0, self.shape[1:])
        if self.classes is None:
            return self._scaled(torch.einsum("nd,cdr->ncr", self._inputs(), table))
        parts = [
            some._scaled(torch.einsum("nd,nkdr->nkr", some._inputs(), table[some._numbers()]))
            for some in self._pieces(v.shape[1])
        ]
        return torch.cat(parts)

    def rotated(self, left: Tensor | None, right: Tensor | None) -> ClassTape | OuterTape | StreamedTape:
        """The tape of leftᵀ U_nk right, the bias now one of the columns; a full left has a row for each class."""
        a = rotate(self._inputs()[:, None], right)[:, 0]
        if left is None or left.ndim == 2:
            scale = self.scale if left is None else left[0].to(a) * (1.0 if self.scale is None else self.scale)
            return ClassTape(a, self.width, False, self.classes, scale)
        table = left[0].to(a)
        table = table if self.scale is None else table * self.scale[:, None]
        if self.classes is None:
            return OuterTape(a[:, None, None], table[:, None, None, None])
        classes, numbers = self.classes, self.outputs * table.shape[1] + a.shape[1]
        return StreamedTape(
            rows=self.rows,
            outputs=self.outputs,
            shape=(1, table.shape[1], a.shape[1]),
            positions=1,
            activations=lambda rows: a[rows, None, None],
            cotangents=lambda rows: table[classes[rows].mT][:, :, None, None],
            row_bytes=numbers * a.element_size(),
            device=a.device,
        )

    def _inputs(self) -> Tensor:
        a = self.activations
        return torch.cat([a, a.new_ones(a.shape[0], 1)], -1) if self.bias else a

    def _numbers(self) -> Tensor:
        """The class of each cotangent, shape (N, K)."""
        if self.classes is not None:
            return self.classes
        return torch.arange(self.width, device=self.activations.device).expand(self.rows, -1)

    def _scaled(self, values: Tensor, power: int = 1) -> Tensor:
        """s_c^power times values (N, K, R)."""
        if self.scale is None:
            return values
        factor = self.scale.to(values) ** power
        return values * (factor[:, None] if self.classes is None else factor[self.classes][..., None])

    def _pieces(self, columns: int = 1) -> Iterator[ClassTape]:
        a, numbers = self.activations, self.outputs * self.shape[2] * columns
        return (self.take(rows) for rows in pieces(self.rows, numbers * a.element_size(), a.device))


class LastHessian(NamedTuple):
    """Λ_n = S_n S_nᵀ of the outputs of a last layer. Where these have positions, each is a row of its own.

    Attributes:
        diagonal: Λ_ncc, shape (N, C).
        sum: the function that returns Σ_n Λ_n, shape (C, C): of many classes it is never asked for.
        root: the function that returns S, its columns first, shape (K, N, C).
    """

    diagonal: Tensor
    sum: Callable[[], Tensor]
    root: Callable[[], Tensor]


@final
@dataclass(frozen=True)
class HeadTape(Blockwise):
    """The rows of f = W a + b under the roots S_n of Λ_n = S_n S_nᵀ: g_nk is the k-th column of S_n itself.

    Sums over the cotangents need no root, since Σ_k g_nk g_nkᵀ = Λ_n: its diagonal and its sum over the rows are C
    numbers a row and C² in all, where K = C − 1 cotangents multiplied out would take C³ products a row. What tells the
    cotangents apart (`gram`, `multiply`, ...) goes through the root, which is built when it is first asked for.

    Attributes:
        activations: a, shape (N, 1, 1, D) without the bias. Where the outputs have positions, each is a row of its own.
        hessian: Λ_n.
        bias: whether a bias is joined.
    """

    activations: Tensor
    hessian: LastHessian
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
        return 1, self._diagonal.shape[-1], self.activations.shape[-1] + self.bias

    @property
    def dim(self) -> int:
        _, outputs, inputs = self.shape
        return outputs * inputs

    def jacobian(self, rows: slice) -> Tensor:
        """U for the given rows, shape (n, K, P)."""
        return self._rooted.jacobian(rows)

    def squares(self) -> Tensor:
        """Σ_n Λ_ncc a_nd², shape (P,)."""
        return (self._diagonal.mT @ self._inputs().square()).flatten()

    def input_gram(self, onto: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
        """Σ_n w_n a_n a_nᵀ, shape (1, D, D), added to ``onto`` if that is given."""
        return sum_of_grams([weighted(self._inputs(), weights).mT[None]], onto)

    def output_gram(self, onto: Tensor | None = None) -> Tensor:
        """Σ_n Λ_n, shape (1, C, C), added to ``onto`` if that is given."""
        total = self.hessian.sum().to(self.activations)
        return total[None] if onto is None else onto.add_(total)

    def output_squares(self) -> Tensor:
        """Σ_n Λ_ncc, shape (1, C)."""
        return self._diagonal.sum(0, keepdim=True)

    def reduced(self) -> HeadTape:
        """Itself: there is one position."""
        return self

    def _inputs(self) -> Tensor:
        a = self.activations[:, 0, 0]
        return torch.cat([a, a.new_ones(a.shape[0], 1)], -1) if self.bias else a

    @cached_property
    def _diagonal(self) -> Tensor:
        return self.hessian.diagonal.to(self.activations)

    @cached_property
    def _rooted(self) -> OuterTape:
        return OuterTape(self.activations, self.hessian.root().to(self.activations)[:, :, None, None], self.bias)


@final
@dataclass(frozen=True)
class LinearTape(Blockwise):
    """The tape of f = W a (+ b): the Jacobian is I ⊗ aᵀ, for the flat weights (W row-major, then b).

    Attributes:
        activations: the inputs a of the layer, shape (N, D).
        outputs: C.
        bias: whether a bias b of shape (C,) follows W.
    """

    activations: Tensor
    outputs: int
    bias: bool

    @property
    def rows(self) -> int:
        """N, the number of inputs read."""
        return self.activations.shape[0]

    @property
    def dim(self) -> int:
        """P = C D (+ C)."""
        return self.outputs * (self.activations.shape[1] + self.bias)

    def jacobian(self, rows: slice) -> Tensor:
        """∂f_c/∂W_{c'd} = [c = c'] a_d and ∂f_c/∂b_{c'} = [c = c'], shape (n, C, P)."""
        a = self.activations[rows]
        identity = torch.eye(self.outputs, dtype=a.dtype, device=a.device)
        weights = torch.einsum("nd,ck->nckd", a, identity).flatten(2)
        if not self.bias:
            return weights
        return torch.cat([weights, identity.expand(a.shape[0], -1, -1)], dim=-1)

    def gram(self, scale: Tensor) -> Tensor:
        """Diagonal, since the outputs share no weights, shape (N, C, C)."""
        return torch.diag_embed(self.norms(scale))

    def norms(self, scale: Tensor) -> Tensor:
        """Σ_d a_nd² scale_cd (+ scale_c of the bias), shape (N, C)."""
        return self._affine(self.activations.square(), scale[:, None])[..., 0]

    def multiply(self, v: Tensor) -> Tensor:
        """U v, shape (N, C, R), for v of shape (P, R): the linear model itself, with v for weights."""
        return self._affine(self.activations, v)

    def _affine(self, a: Tensor, v: Tensor) -> Tensor:
        features = a.shape[1]
        weights, bias = v.to(a).split([self.outputs * features, self.outputs * self.bias])
        f = torch.einsum("nd,cdr->ncr", a, weights.unflatten(0, (self.outputs, features)))
        return f + bias if self.bias else f
