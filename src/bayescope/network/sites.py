"""Sites: the places in a forward pass where a random weight meets the data."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor

from bayescope.network.forms import Form, MatrixTape
from bayescope.network.layout import Layout
from bayescope.network.views import WeightView

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
        """The site with inputs of its own, for a network that writes over them."""
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
