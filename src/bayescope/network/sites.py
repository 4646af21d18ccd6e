"""Sites: the places in a forward pass where a random weight meets the data, and how they are read.

A site is a call of one kind (its form), to which a weight came in one view, with the rows of the batch in one layout.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from bayescope.tape.lookup import LookupTape
from bayescope.tape.outer import OuterTape
from bayescope.tape.streamed import StreamedTape
from bayescope.tape.unfold import Convolution


@final
@dataclass(frozen=True, eq=False)
class WeightView:
    """A random weight, or a view of one: each entry is an entry of the weight.

    Attributes:
        name: the parameter's name in the module.
        weight: the parameter, detached.
        value: the entries as the network sees them, detached; a copy in another dtype counts.
        geometry: the view's shape, strides and offset in the weight's own memory.
        expanded: whether it has been expanded, be it to one entry: in a batch of one row that shows in no stride.
    """

    name: str
    weight: Tensor
    value: Tensor
    geometry: tuple[tuple[int, ...], tuple[int, ...], int]
    expanded: bool = False

    @classmethod
    def whole(cls, name: str, weight: Tensor) -> WeightView:
        """The weight as it is."""
        value = weight.detach()
        return cls(name, value, value, (tuple(value.shape), value.stride(), 0))

    def viewed(self, value: Tensor, *, expanded: bool = False) -> WeightView:
        """A view of this view's memory."""
        value = value.detach()
        step = int(value.storage_offset()) - int(self.value.storage_offset())
        geometry = tuple(value.shape), value.stride(), self.geometry[2] + step
        return WeightView(self.name, self.weight, value, geometry, self.expanded or expanded)

    def copied(self, value: Tensor) -> WeightView:
        """The same entries in other memory: a cast, a contiguous copy."""
        return WeightView(self.name, self.weight, value.detach(), self.geometry)

    @property
    def key(self) -> tuple[object, ...]:
        """What tells the views of a network's weights apart."""
        return self.name, self.geometry

    @property
    def is_whole(self) -> bool:
        """Whether this is the weight as it is, entry by entry."""
        return self.geometry == (tuple(self.weight.shape), self.weight.stride(), 0)

    @property
    def positions(self) -> Tensor:
        """For each entry its position in the weight's row-major order, int64, of the view's shape."""
        weight = self.weight
        count = torch.arange(weight.numel(), device=weight.device).view(weight.shape)
        # They are laid out in memory as the weight is (channels last, for one), so that the view finds its own.
        memory = torch.empty_strided(count.shape, weight.stride(), dtype=torch.int64, device=weight.device)
        return memory.copy_(count).as_strided(*self.geometry)


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
        """Whether a tensor of this shape can hold this many rows in this way."""
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


FOLDS = ("alone", "outer", "inner")


def row_folds(module: nn.Module) -> tuple[str, ...]:
    """The folds in which the rows of a network may lie: all, or those that it names, or a part of it, as `row_folds`.

    The layouts of a few rows do not hold for other ones where rows differ in size.
    """
    named: list[Sequence[str]] = [vars(part)["row_folds"] for part in module.modules() if "row_folds" in vars(part)]
    return tuple(fold for fold in FOLDS if all(fold in each for each in named))


def candidates(shape: Sequence[int], rows: int, lead: int, folds: Sequence[str] = FOLDS) -> Iterator[Layout]:
    """The layouts that the first ``lead`` dimensions of a shape allow, the commonest first."""
    for fold in folds:
        for dim in range(lead):
            if (shape[dim] == rows) if fold == "alone" else (shape[dim] % rows == 0 and shape[dim] > rows):
                yield Layout(dim, fold)


def layouts(
    cotangents: Tensor, lead: int, constant: Tensor | None = None, folds: Sequence[str] = FOLDS
) -> list[Layout]:
    """The layouts under which the k-th of N cotangents, seeded in row k alone, is zero in all other rows.

    Args:
        cotangents: shape (N, *shape), one for each row.
        lead: how many of the first dimensions of the shape may hold rows.
        constant: a tensor of that shape that may not vary along the dimension of the rows, as its strides tell.
        folds: those that rows may have.

    Returns:
        None where rows are mixed or none of the dimensions can hold them; one, as a rule. Cotangents that are zero
        throughout (a dead unit, an adapter that starts at zero) tell nothing: all that the shape allows are returned.
    """
    rows = cotangents.shape[0]
    found = list(candidates(cotangents.shape[1:], rows, lead, folds))
    if constant is not None:
        found = [layout for layout in found if constant.stride(layout.dim) == 0]
    others = ~torch.eye(rows, dtype=torch.bool, device=cotangents.device)
    return [layout for layout in found if not layout.split(cotangents, rows, 1)[others].any()]


MatrixTape = OuterTape | StreamedTape | LookupTape


class Form(ABC):
    """A kind of call whose output is linear in a matrix of weights, at each of T positions."""

    kind: ClassVar[str]  # its name in summaries

    @property
    def joins_bias(self) -> bool:
        """Whether a bias of the same call can be one more column of a."""
        return True

    @abstractmethod
    def order(self, positions: Tensor) -> Tensor:
        """A tensor of the weight's shape in the canonical order of its tape, (G, O, D)."""

    @abstractmethod
    def tape(self, inputs: Tensor, cotangents: Tensor, layout: Layout, rows: int, *, bias: bool) -> MatrixTape:
        """The tape of the weight, joined with its bias if asked.

        Args:
            inputs: the data that the weight met.
            cotangents: of the output, shape (K, *output).
            layout: where the rows are in both.
            rows: N.
            bias: whether the bias is joined.
        """

    def shift(self, cotangents: Tensor, layout: Layout, rows: int) -> Tensor:
        """Σ_t g_nkt, shape (N, K, O): the rows of U for the bias by itself."""
        return _tokens(cotangents, layout, rows).sum(2).transpose(0, 1)

    def placed(self, seeds: Tensor) -> Tensor | None:
        """Cotangents (K, N, *positions, O) with their axes as the call's output has them.

        ``None`` where the output at a position is no linear map of one a: then the call can be no last layer.
        """
        return seeds


@final
@dataclass(frozen=True)
class Dense(Form):
    """y = W a + b over the last dimension."""

    kind = "linear"

    def order(self, positions: Tensor) -> Tensor:
        """(O, D) → (1, O, D)."""
        return positions[None]

    def tape(self, inputs: Tensor, cotangents: Tensor, layout: Layout, rows: int, *, bias: bool) -> OuterTape:
        """U_nk = Σ_t g_nkt ⊗ a_nt."""
        a, g = layout.split(inputs, rows), _tokens(cotangents, layout, rows)
        return OuterTape(a.reshape(rows, g.shape[2], 1, a.shape[-1]), g.unsqueeze(3), bias)


@final
@dataclass(frozen=True)
class Convolved(Form):
    """A convolution, or a transposed one.

    Attributes:
        geometry: kernel, strides, padding and the rest.
    """

    geometry: Convolution
    kind = "convolution"

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
class Lookup(Form):
    """An embedding: y = W[token].

    Attributes:
        entries: V.
        padding: the token whose vector is fixed, if there is one.
    """

    entries: int
    padding: int | None
    kind = "embedding"

    def order(self, positions: Tensor) -> Tensor:
        """(V, O) → (1, O, V)."""
        return positions.mT[None]

    def tape(self, inputs: Tensor, cotangents: Tensor, layout: Layout, rows: int, *, bias: bool) -> LookupTape:
        """U_nk = Σ_t g_nkt ⊗ e(token_nt); there is no bias to join."""
        tokens = layout.split(inputs, rows).reshape(rows, -1)
        return LookupTape(tokens, _tokens(cotangents, layout, rows), self.entries, self.padding)

    def placed(self, seeds: Tensor) -> None:
        """Nowhere: a table is no linear map of the data."""


def _tokens(cotangents: Tensor, layout: Layout, rows: int) -> Tensor:
    """Cotangents as (K, N, T, O); those that all rows share, seeds at a last layer, stay (K, 1, T, O)."""
    g = layout.split(cotangents, rows, 1)
    return g.flatten(2, -2) if g.ndim > 3 else g[:, :, None]


def _regrouped(images: StreamedTape, rows: int, count: int) -> StreamedTape:
    """The tape of N rows of this many images each, from that of the images."""

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


# What cotangents are asked of: the node behind a tensor (which may since have been changed in place), or a leaf.
Target = Any


@final
@dataclass(frozen=True, eq=False)
class MatrixSite:
    """A call in which a matrix of weights, its bias or both meet the data: U is a sum of outer products g ⊗ a.

    Attributes:
        form: the kind of call.
        weight: the random matrix, or ``None`` where only the bias is random.
        bias: the random bias, or ``None``.
        inputs: the data a, detached.
        target: the output y, whose cotangents are g.
        shape: that of y.
        lead: how many of the first dimensions of both a and y may hold rows.
        version: the state of the inputs when they were kept: a later one says that they have been written over.
        source: the node behind the inputs, where a gradient passes through them; else ``None``.
    """

    form: Form
    weight: WeightView | None
    bias: WeightView | None
    inputs: Tensor
    target: Target
    shape: torch.Size
    lead: int
    version: int
    source: Target | None = None

    @cached_property
    def key(self) -> Hashable:
        """What the sites of one use of the same weights have in common in all batches."""
        return self.form.kind, self.weight and self.weight.key, self.bias and self.bias.key

    @property
    def views(self) -> tuple[WeightView, ...]:
        """The random weights that meet the data here."""
        return tuple(view for view in (self.weight, self.bias) if view is not None)

    @property
    def constant(self) -> None:
        """Any dimension of an output may hold the rows."""

    def tape(self, cotangents: Tensor, layout: Layout, rows: int, *, bias: bool) -> MatrixTape:
        """The tape of the weight, joined with the bias if asked."""
        inputs = self.inputs.to(cotangents) if self.inputs.is_floating_point() else self.inputs
        return self.form.tape(inputs, cotangents, layout, rows, bias=bias)

    def values(self, cotangents: Tensor, layout: Layout, rows: int) -> Tensor:
        """U of the bias by itself, shape (N, K, P)."""
        view = self.views[-1]
        return _placed(self.form.shift(cotangents, layout, rows), view, view.positions)

    def cloned(self) -> MatrixSite:
        """The site with a copy of its inputs, for a network that writes over them."""
        inputs = self.inputs.clone()
        return replace(self, inputs=inputs, version=inputs._version)

    @property
    def overwritten(self) -> bool:
        """Whether the network has changed the inputs in place since they were kept."""
        return self.inputs._version != self.version


@final
@dataclass(frozen=True, eq=False)
class SpreadSite:
    """A weight that takes part as it is, spread over a tensor: a scale, a shift, a token, a table of positions.

    The leaf that stands for it has as many entries as it meets, so that its cotangents still tell the rows apart.

    Attributes:
        view: the random weight.
        target: the leaf.
    """

    view: WeightView
    target: Tensor

    @cached_property
    def key(self) -> Hashable:
        """What the sites of one use of the same weight have in common in all batches."""
        return "spread", self.view.name, self.target.ndim

    @property
    def views(self) -> tuple[WeightView, ...]:
        """The random weight that meets the data here."""
        return (self.view,)

    @property
    def shape(self) -> torch.Size:
        return self.target.shape

    @property
    def lead(self) -> int:
        """Any dimension of the leaf may hold the rows."""
        return self.target.ndim

    @property
    def constant(self) -> Tensor:
        """For each entry of the leaf its position in the weight: it may not depend on the row."""
        return self.view.positions.expand(self.shape)

    @property
    def overwritten(self) -> bool:
        """There are no inputs to keep."""
        return False

    def values(self, cotangents: Tensor, layout: Layout, rows: int) -> Tensor:
        """U, shape (N, K, P): the cotangents of all entries of the leaf that are one entry of the weight, summed."""
        g = layout.split(cotangents, rows, 1)
        index = layout.split(self.constant, rows)[0]
        shared = [dim for dim in range(index.ndim) if index.stride(dim) == 0 or index.shape[dim] == 1]
        if shared:
            g = g.sum([2 + dim for dim in shared])
        for dim in reversed(shared):
            index = index.select(dim, 0)
        g = g.flatten(2).transpose(0, 1) if index.ndim else g[..., None].transpose(0, 1)
        return _placed(g, self.view, index)


Site = MatrixSite | SpreadSite


def _placed(values: Tensor, view: WeightView, index: Tensor) -> Tensor:
    """Values (N, K, p) of entries of a view as those of the weight, (N, K, P)."""
    if view.is_whole:  # what is left after summing is then the weight itself, entry by entry
        return values
    placed = values.new_zeros(*values.shape[:2], view.weight.numel())
    return placed.index_add_(2, index.flatten(), values)
