"""The tape of a table of vectors that tokens are looked up in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from bayescope.tape.gram import sum_of_grams
from bayescope.tape.outer import OuterTape, rotate
from bayescope.tape.streamed import StreamedTape
from bayescope.tape.tape import Blockwise, pieces


@final
@dataclass(frozen=True)
class LookupTape(Blockwise):
    """U_nk = Σ_t g_nkt ⊗ e(token_nt), with e(v) the v-th unit vector of V: an embedding, whose table is (V, O).

    The canonical order is (1, O, V), the transpose of the table: g is the output and a = e the input, as everywhere.
    Nothing takes N T V: a row touches at most T columns, and those of a token that stands in it more than once are
    summed before they are squared.

    Attributes:
        tokens: shape (N, T), int64.
        cotangents: g, shape (K, N, T, O), or (K, 1, T, O) where all rows share them.
        entries: V.
        padding: the token whose vector is fixed, if there is one: a = 0 where it stands.
    """

    tokens: Tensor
    cotangents: Tensor
    entries: int
    padding: int | None = None

    @classmethod
    def join(cls, tapes: Sequence[LookupTape]) -> LookupTape:
        """The tape of one table used several times: the positions of all its uses side by side.

        Args:
            tapes: at least one, of the same rows, cotangents and table.
        """
        cotangents = torch.cat([tape._expanded for tape in tapes], 2)
        return replace(tapes[0], tokens=torch.cat([tape.tokens for tape in tapes], 1), cotangents=cotangents)

    @property
    def rows(self) -> int:
        """N, the number of inputs read."""
        return self.tokens.shape[0]

    @property
    def outputs(self) -> int:
        """K, the number of cotangents per input."""
        return self.cotangents.shape[0]

    @property
    def positions(self) -> int:
        """T, the number of tokens per input."""
        return self.tokens.shape[1]

    @property
    def shape(self) -> tuple[int, int, int]:
        return 1, self.cotangents.shape[-1], self.entries

    @property
    def dim(self) -> int:
        return self.cotangents.shape[-1] * self.entries

    def jacobian(self, rows: slice) -> Tensor:
        """U for the given rows, shape (n, K, P)."""
        tokens, g = self.tokens[rows], self._effective[:, rows]
        places = tokens + self.entries * torch.arange(tokens.shape[0], device=tokens.device)[:, None]
        u = _scattered(g, places, tokens.shape[0] * self.entries).unflatten(1, (tokens.shape[0], self.entries))
        return u.permute(1, 0, 3, 2).flatten(2)

    def squares(self) -> Tensor:
        tokens, g = self._distinct
        return _scattered(g.square().sum(0, keepdim=True), tokens, self.entries)[0].mT.flatten()

    def gram(self, scale: Tensor) -> Tensor:
        """Σ_p u_nkp scale_p u_nlp, shape (N, K, K)."""
        tokens, g = self._distinct
        return torch.einsum("knto,lnto->nkl", g * self._vectors(scale, tokens), g)

    def norms(self, scale: Tensor) -> Tensor:
        """Σ_p u_nkp² scale_p, shape (N, K)."""
        tokens, g = self._distinct
        return (g.square() * self._vectors(scale, tokens)).sum((2, 3)).mT

    def multiply(self, v: Tensor) -> Tensor:
        """U v, shape (N, K, R), for v of shape (P, R)."""
        g = self._effective
        blocks = self._blocks(v.shape[-1])
        products = (torch.einsum("knto,ntor->nkr", g[:, b], self._vectors(v, self.tokens[b])) for b in blocks)
        return torch.cat(list(products))

    def transpose_multiply(self, w: Tensor) -> Tensor:
        """Uᵀ w, shape (P, R), for w of shape (N, K, R)."""
        g, w = self._effective, w.to(self.cotangents)
        table = g.new_zeros(self.entries, self.shape[1], w.shape[-1])
        for rows in self._blocks(w.shape[-1]):
            mixed = torch.einsum("knto,nkr->ntor", g[:, rows], w[rows])
            table.index_add_(0, self.tokens[rows].flatten(), mixed.flatten(0, 1))
        return table.transpose(0, 1).flatten(0, 1)

    def input_gram(self, onto: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
        """How often each token stands in the batch, shape (1, V): the diagonal of Σ_nt e eᵀ, which has nothing else.

        With weights (N,) of the rows it is the sum of these.
        """
        each = None if weights is None else weights.repeat_interleave(self.positions)
        counts = torch.bincount(self.tokens.flatten(), each, minlength=self.entries).to(self.cotangents)
        if self.padding is not None:
            counts[self.padding] = 0
        return counts[None] if onto is None else onto.add_(counts)

    def output_gram(self, onto: Tensor | None = None) -> Tensor:
        """Σ_nkt g_nkt g_nktᵀ, shape (1, O, O), over all positions, added to ``onto`` if that is given."""
        return sum_of_grams([self._expanded.flatten(0, 2).mT[None]], onto)

    def output_squares(self) -> Tensor:
        """Σ_nkt g_nkto², shape (1, O), over all positions."""
        return self._expanded.square().sum((0, 1, 2))[None]

    def rotated(self, left: Tensor | None, right: Tensor | None) -> LookupTape | StreamedTape:
        """The tape of leftᵀ U_nk right: a diagonal right scales g; a full one fills a, which is then streamed."""
        g = rotate(self._effective[..., None, :], left)
        if right is None:
            return replace(self, cotangents=g.squeeze(-2))
        table = right[0].to(g)
        if right.ndim == 2:
            return replace(self, cotangents=g.squeeze(-2) * table[self.tokens][..., None])
        return StreamedTape(
            rows=self.rows,
            outputs=self.outputs,
            shape=(1, g.shape[-1], table.shape[1]),
            positions=self.positions,
            activations=lambda rows: table[self.tokens[rows]][:, :, None],
            cotangents=lambda rows: g[:, rows],
            row_bytes=self.positions * table.shape[1] * table.element_size(),
            device=table.device,
        )

    def reduced(self) -> OuterTape | LookupTape:
        """One position per input: ā_n counts the tokens of the row over T, and is dense, shape (N, 1, 1, V)."""
        if self.positions == 0:
            return self
        counts = self.cotangents.new_zeros(self.rows, self.entries)
        counts.scatter_add_(1, self.tokens, self._present.to(counts))
        g = self.cotangents.sum(2)[:, :, None, None]
        return OuterTape(counts[:, None, None] / self.positions, g)

    @property
    def _present(self) -> Tensor:
        return torch.ones_like(self.tokens) if self.padding is None else self.tokens != self.padding

    @cached_property
    def _effective(self) -> Tensor:
        """g where a is not 0, and 0 elsewhere."""
        return self._expanded if self.padding is None else self._expanded * self._present[..., None]

    @property
    def _expanded(self) -> Tensor:
        return self.cotangents.expand(-1, self.rows, -1, -1)

    @cached_property
    def _distinct(self) -> tuple[Tensor, Tensor]:
        """The tokens (N, S) that each row holds, once each, and their summed cotangents (K, N, S, O).

        Equal tokens are neighbours after a sort, so that a running count of the changes numbers the different ones.
        A row with fewer than S of them ends in tokens 0 whose cotangents are 0.
        """
        ordered, order = self.tokens.sort(1)
        number = torch.zeros_like(ordered)
        number[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).cumsum(1)
        most = int(number.max()) + 1 if number.numel() else 0
        tokens = self.tokens.new_zeros(self.rows, most).scatter_(1, number, ordered)
        places = torch.empty_like(number).scatter_(1, order, number)
        places += most * torch.arange(self.rows, device=places.device)[:, None]
        return tokens, _scattered(self._effective, places, self.rows * most).unflatten(1, (self.rows, most))

    def _vectors(self, values: Tensor, tokens: Tensor) -> Tensor:
        """What values (P, ...) hold for tokens (N, T), shape (N, T, O, ...)."""
        return values.to(self.cotangents).unflatten(0, (self.shape[1], self.entries)).transpose(0, 1)[tokens]

    def _blocks(self, columns: int) -> list[slice]:
        numbers = self.positions * self.shape[1] * (columns + self.outputs)
        return pieces(self.rows, numbers * self.cotangents.element_size(), self.cotangents.device)


def _scattered(g: Tensor, places: Tensor, size: int) -> Tensor:
    """Σ of g (K, N, T, O) over the (n, t) of one place, shape (K, size, O), for places of shape (N, T)."""
    return g.new_zeros(g.shape[0], size, g.shape[-1]).index_add_(1, places.flatten(), g.flatten(1, 2))
