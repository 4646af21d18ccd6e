"""Forms: the kinds of call in which a matrix of weights meets the data, and the tape that each leaves behind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol, final

from torch import Tensor

from bayescope.network.layout import Layout
from bayescope.tape.lookup import LookupTape
from bayescope.tape.outer import OuterTape
from bayescope.tape.streamed import StreamedTape
from bayescope.tape.unfold import Convolution

MatrixTape = OuterTape | StreamedTape | LookupTape


class Form(Protocol):
    """A kind of call whose output is linear in a matrix of weights, at each of T positions."""

    @property
    def kind(self) -> str:
        """Its name, as summaries tell it."""

    @property
    def joins_bias(self) -> bool:
        """Whether a bias of the same call can be one more column of a."""

    def order(self, positions: Tensor) -> Tensor:
        """A tensor of the weight's shape in the canonical order of its tape, (G, O, D)."""

    def tape(self, inputs: Tensor, cotangents: Tensor, layout: Layout, rows: int, *, bias: bool) -> MatrixTape:
        """The tape of the weight, joined with its bias if asked.

        Args:
            inputs: the data that the weight met.
            cotangents: of the output, shape (K, *output).
            layout: where the rows are in both.
            rows: N.
            bias: whether the bias is joined.
        """

    def join(self, tapes: list[Any]) -> MatrixTape:
        """The tape of a weight that is used several times in this way."""

    def shift(self, cotangents: Tensor, layout: Layout, rows: int) -> Tensor:
        """Σ_t g_nkt, shape (N, K, O): the rows of U for the bias by itself."""

    def placed(self, seeds: Tensor) -> Tensor | None:
        """Cotangents (K, N, *positions, O) with their axes as the call's output has them.

        ``None`` where the output at a position is no linear map of one a: then the call can be no last layer.
        """


@final
@dataclass(frozen=True)
class Dense:
    """y = W a + b over the last dimension."""

    kind: str = "linear"
    joins_bias: bool = True

    def order(self, positions: Tensor) -> Tensor:
        """(O, D) → (1, O, D)."""
        return positions[None]

    def tape(self, inputs: Tensor, cotangents: Tensor, layout: Layout, rows: int, *, bias: bool) -> OuterTape:
        """U_nk = Σ_t g_nkt ⊗ a_nt."""
        a, g = layout.split(inputs, rows), _tokens(cotangents, layout, rows)
        return OuterTape(a.reshape(rows, g.shape[2], 1, a.shape[-1]), g.unsqueeze(3), bias)

    def join(self, tapes: list[OuterTape]) -> OuterTape:
        """Side by side along their positions."""
        return OuterTape.join(tapes)

    def shift(self, cotangents: Tensor, layout: Layout, rows: int) -> Tensor:
        return _tokens(cotangents, layout, rows).sum(2).transpose(0, 1)

    def placed(self, seeds: Tensor) -> Tensor:
        return seeds


@final
@dataclass(frozen=True)
class Convolved:
    """A convolution, or a transposed one.

    Attributes:
        geometry: kernel, strides, padding and the rest.
    """

    geometry: Convolution
    kind: str = "convolution"

    @property
    def joins_bias(self) -> bool:
        """The bias of a transposed convolution has other positions than its weight."""
        return not self.geometry.transposed

    def order(self, positions: Tensor) -> Tensor:
        """(O, C, kernel) → (G, O, D); (C, O, kernel) for a transposed one."""
        return self.geometry.canonical(positions)

    def tape(self, inputs: Tensor, cotangents: Tensor, layout: Layout, rows: int, *, bias: bool) -> MatrixTape:
        """U_nk = Σ_t g_nkt ⊗ a_nt over pixels, and over images where several belong to one row."""
        a, g = layout.split(inputs, rows), layout.split(cotangents, rows, 1)
        if layout.fold == "alone":
            return self.geometry.tape(a, g, bias=bias)
        return _regrouped(self.geometry.tape(a.flatten(0, 1), g.flatten(1, 2), bias=bias), a.shape[0], a.shape[1])

    def join(self, tapes: list[StreamedTape]) -> StreamedTape:
        """Side by side along their positions."""
        return StreamedTape.join(tapes)

    def shift(self, cotangents: Tensor, layout: Layout, rows: int) -> Tensor:
        """Σ_t g_nkt over pixels, and over images where several belong to one row."""
        g = layout.split(cotangents, rows, 1)
        g = g.sum(2) if layout.fold != "alone" else g
        return g.flatten(3).sum(3).transpose(0, 1)

    def placed(self, seeds: Tensor) -> Tensor | None:
        """(K, N, O, *positions): a pixel is one a, its window, unless channels are grouped or outputs overlap."""
        return None if self.geometry.groups > 1 or self.geometry.transposed else seeds.movedim(-1, 2)


@final
@dataclass(frozen=True)
class Lookup:
    """An embedding: y = W[token].

    Attributes:
        entries: V.
        padding: the token whose vector is fixed, if there is one.
    """

    entries: int
    padding: int | None
    kind: str = "embedding"
    joins_bias: bool = False

    def order(self, positions: Tensor) -> Tensor:
        """(V, O) → (1, O, V)."""
        return positions.mT[None]

    def tape(self, inputs: Tensor, cotangents: Tensor, layout: Layout, rows: int, *, bias: bool) -> LookupTape:
        """U_nk = Σ_t g_nkt ⊗ e(token_nt); there is no bias to join."""
        tokens = layout.split(inputs, rows).reshape(rows, -1)
        return LookupTape(tokens, _tokens(cotangents, layout, rows), self.entries, self.padding)

    def join(self, tapes: list[LookupTape]) -> LookupTape:
        """Side by side along their positions."""
        return LookupTape.join(tapes)

    def shift(self, cotangents: Tensor, layout: Layout, rows: int) -> Tensor:
        return _tokens(cotangents, layout, rows).sum(2).transpose(0, 1)

    def placed(self, seeds: Tensor) -> None:
        """Nowhere: a table is no linear map of the data."""


def _tokens(cotangents: Tensor, layout: Layout, rows: int) -> Tensor:
    """Cotangents as (K, N, T, O); those that all rows share, seeds at a last layer, stay (K, 1, T, O)."""
    g = layout.split(cotangents, rows, 1)
    return g.flatten(2, -2) if g.ndim > 3 else g[:, :, None]


def _regrouped(images: StreamedTape, rows: int, count: int) -> StreamedTape:
    """The tape of N rows of so many images each, from that of the images."""

    def block(part: slice) -> slice:
        start, stop, _ = part.indices(rows)
        return slice(start * count, stop * count)

    return replace(
        images,
        rows=rows,
        positions=images.positions * count,
        activations=lambda part: images.activations(block(part)).unflatten(0, (-1, count)).flatten(1, 2),
        cotangents=lambda part: images.cotangents(block(part)).unflatten(1, (-1, count)).flatten(2, 3),
        row_bytes=images.row_bytes * count,
    )
