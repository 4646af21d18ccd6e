"""The Jacobian of a last layer, for all of its outputs or for a few of many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from bayescope.tape.gram import sum_of_grams
from bayescope.tape.outer import OuterTape, rotate
from bayescope.tape.selected import Selectable
from bayescope.tape.streamed import StreamedTape
from bayescope.tape.tape import pieces


@final
@dataclass(frozen=True)
class ClassTape(Selectable):
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
    def positions(self) -> int:
        return 1

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

    def squares(self) -> Tensor:
        return self._by_class(self._inputs().square()).flatten()

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

    def transpose_multiply(self, w: Tensor) -> Tensor:
        """Uᵀ w, shape (P, R), for w of shape (N, K, R)."""
        weights = self._scaled(w.to(self.activations))
        if self.classes is None:
            return torch.einsum("ncr,nd->cdr", weights, self._inputs()).flatten(0, 1)
        total = weights.new_zeros(self.width, self.shape[2], w.shape[2])
        for rows in self._blocks(w.shape[2]):
            products = torch.einsum("nkr,nd->nkdr", weights[rows], self.take(rows)._inputs())
            total.index_add_(0, self.classes[rows].flatten(), products.flatten(0, 1))
        return total.flatten(0, 1)

    def input_gram(self, onto: Tensor | None = None) -> Tensor:
        """Σ_n a_n a_nᵀ, shape (1, D, D), added to ``onto`` if that is given."""
        return sum_of_grams([self._inputs().mT[None]], onto)

    def output_gram(self, onto: Tensor | None = None) -> Tensor:
        """Σ_nk s_c² e(c_nk) e(c_nk)ᵀ, shape (1, C, C), a diagonal, added to ``onto`` if that is given."""
        total = torch.diag_embed(self.output_squares())
        return total if onto is None else onto.add_(total)

    def output_squares(self) -> Tensor:
        """Σ_nk s_c² e(c_nk), shape (1, C)."""
        return self._by_class(self.activations.new_ones(self.rows, 1))[:, 0][None]

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

    def reduced(self) -> ClassTape:
        """Itself: there is one position."""
        return self

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

    def _by_class(self, values: Tensor) -> Tensor:
        """Σ_nk s_c² e(c_nk) ⊗ v_n, shape (C, R), for v of shape (N, R)."""
        if self.classes is None:
            total = values.sum(0).expand(self.width, -1)
        else:
            total = values.new_zeros(self.width, values.shape[1])
            for rows in self._blocks(1):
                each = values[rows, None].expand(-1, self.outputs, -1)
                total.index_add_(0, self.classes[rows].flatten(), each.flatten(0, 1))
        return total if self.scale is None else total * self.scale.to(total).square()[:, None]

    def _pieces(self, columns: int = 1) -> Iterator[ClassTape]:
        return (self.take(rows) for rows in self._blocks(columns))

    def _blocks(self, columns: int) -> list[slice]:
        numbers = self.outputs * self.shape[2] * columns
        return pieces(self.rows, numbers * self.activations.element_size(), self.activations.device)
