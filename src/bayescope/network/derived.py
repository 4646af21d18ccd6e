"""Derived weights: those that a network computes from its weights alone, before they meet the data.

A layer with normed, masked or mixed weights, a position's row of a table, an adapter's product: W = h(θ), the same for
all rows. W is read as a weight is, and ∂f/∂θ = ∂f/∂W · ∂W/∂θ takes one pull back through h a row and output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from bayescope.network.parts import Part, Reading, UnusedPart, ranges
from bayescope.network.vectorising import pull_back
from bayescope.tape import ComputedTape, Tape


@final
@dataclass(frozen=True, eq=False)
class Derived:
    """A derived weight in one forward pass.

    Attributes:
        shape: of W.
        dtype: of W.
        node: behind W.
        leaves: θ, by the names of the parameters.
    """

    shape: torch.Size
    dtype: torch.dtype
    node: GradientEdge
    leaves: Mapping[str, Tensor]

    @classmethod
    def of(cls, value: Tensor, leaves: Mapping[str, Tensor]) -> Derived:
        """The weight that a tensor is now; what changes it in place later on does not count.

        Args:
            value: W, with its graph.
            leaves: of all random parameters, those that W depends on among them.
        """
        node = get_gradient_edge(value)
        behind: set[Any] = set()
        waiting: list[Any] = [node.node]
        while waiting:
            one = waiting.pop()
            if one is not None and one not in behind:
                behind.add(one)
                waiting += [following for following, _ in one.next_functions]
        sources = {name: leaf for name, leaf in leaves.items() if get_gradient_edge(leaf).node in behind}
        return cls(value.shape, value.dtype, node, sources)

    def is_like(self, other: Derived | None) -> bool:
        """Whether another pass has derived the weight in this shape from these parameters."""
        return other is not None and other.shape == self.shape and other.leaves.keys() == self.leaves.keys()

    def pulled_back(self, cotangents: Tensor) -> dict[str, Tensor]:
        """Cotangents (M, |W|) of W as those of each θ, (M, |θ|), in its row-major order."""
        seeds = cotangents.to(self.dtype).reshape(len(cotangents), *self.shape)
        found = pull_back(self.node, list(self.leaves.values()), seeds)
        return {name: g.reshape(len(g), -1) for name, g in zip(self.leaves, found, strict=True) if g is not None}


@final
@dataclass(frozen=True, eq=False)
class ComputedPart:
    """Parameters that meet the data in derived weights, and perhaps as they are as well; or that are read row by row.

    Attributes:
        sizes: the number of weights of each parameter.
        shapes: of the derived weights, by name; none of parameters that are read row by row, one backward pass a row,
            which is exact whatever the network does with them.
        parts: how these, and the parameters as they are, are read.
    """

    sizes: Mapping[str, int]
    shapes: Mapping[str, torch.Size] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()
    shape: None = None

    @property
    def kind(self) -> str:
        """Whether the weights are derived."""
        return "derived" if self.shapes else "per-row"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.sizes)

    def positions(self, offsets: Mapping[str, int]) -> Tensor:
        """Each parameter row-major, one after the other."""
        return ranges(offsets, self.sizes)

    def tape(self, reading: Reading) -> ComputedTape:
        """U for as many rows at a time as are asked for: that of the derived weights pulled back, or row by row."""
        found = {name: each for name, each in reading.derived.items() if name in self.shapes}

        def by_row(rows: slice) -> list[Tensor]:
            return [reading.rowwise(self.names, rows).to(reading.like)]

        alike = {name: each.shape for name, each in found.items()} == self.shapes  # not in sequences of another length
        compute = self._pulled_back(reading, found) if self.shapes and alike else by_row
        return ComputedTape(reading.rows, reading.outputs, sum(self.sizes.values()), compute)

    def _pulled_back(self, reading: Reading, found: Mapping[str, Derived]) -> Callable[[slice], list[Tensor]]:
        sizes = {**self.sizes, **{name: shape.numel() for name, shape in self.shapes.items()}}
        read = [_Columns.of(part, sizes, reading) for part in self.parts]

        def compute(rows: slice) -> list[Tensor]:
            u: dict[str, Tensor] = {}
            with torch.autocast(reading.like.device.type, enabled=False):  # it is for the network's own products
                for columns in read:
                    _add(u, columns.of_rows(rows))
            with reading.passes():
                for name, each in found.items():
                    _add(u, each.pulled_back(u.pop(name)))
            count = len(range(*rows.indices(reading.rows))) * reading.outputs
            values = (u[n] if n in u else reading.like.new_zeros(count, size) for n, size in self.sizes.items())
            return [value.to(reading.like).reshape(-1, reading.outputs, value.shape[1]) for value in values]

        return compute


@final
@dataclass(frozen=True, eq=False)
class _Columns:
    """A part's rows of U, weight by weight.

    Attributes:
        tape: the part's.
        sizes: the number of weights of each of its parameters, or derived weights.
        order: where the tape's columns are in these, one after the other; ``None`` where they are as they stand.
    """

    tape: Tape
    sizes: Mapping[str, int]
    order: Tensor | None

    @classmethod
    def of(cls, part: Part, sizes: Mapping[str, int], reading: Reading) -> _Columns:
        own = {name: sizes[name] for name in part.names}
        ends = torch.tensor([0, *own.values()]).cumsum(0).tolist()
        order = part.positions(dict(zip(own, ends, strict=False)))
        plain = torch.equal(order.cpu(), torch.arange(ends[-1]))
        return cls(part.tape(reading), own, None if plain else order.to(reading.like.device))

    def of_rows(self, rows: slice) -> dict[str, Tensor]:
        """By name (n K, size), zero where the part does not read a weight."""
        u = self.tape.jacobian(rows).flatten(0, 1)
        if self.order is not None:
            u = u.new_zeros(len(u), sum(self.sizes.values())).index_copy_(1, self.order, u)
        return dict(zip(self.sizes, u.split(list(self.sizes.values()), 1), strict=True))


def _add(total: dict[str, Tensor], more: Mapping[str, Tensor]) -> None:
    for name, value in more.items():
        total[name] = total[name] + value if name in total else value


def composed(parts: Sequence[Part], derived: Mapping[str, Derived], sizes: Mapping[str, int]) -> tuple[Part, ...]:
    """The parts in which those of derived weights are joined with all that read the same parameters.

    Args:
        parts: of parameters and derived weights.
        derived: the latter, by name.
        sizes: the number of weights of each parameter.
    """
    groups: list[tuple[set[str], list[Part]]] = []
    for part in parts:
        names = {source for name in part.names for source in (derived[name].leaves if name in derived else (name,))}
        joined = [part]
        for group in [group for group in groups if group[0] & names]:
            groups.remove(group)
            names, joined = names | group[0], [*group[1], *joined]
        groups.append((names, joined))
    return tuple(part for names, some in groups for part in _joined(names, some, derived, sizes))


def _joined(names: set[str], parts: list[Part], derived: Mapping[str, Derived], sizes: Mapping[str, int]) -> list[Part]:
    shapes = {name: derived[name].shape for part in parts for name in part.names if name in derived}
    if not shapes:
        return parts
    read = tuple(part for part in parts if not isinstance(part, UnusedPart))
    return [ComputedPart({name: size for name, size in sizes.items() if name in names}, shapes, read)]
