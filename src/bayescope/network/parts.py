"""Parts: disjoint sets of a network's random weights, and how the tape of each is put together from its sites.

Some weights are derived: a network computes them from its weights alone, before they meet the data. Examples are a
layer with normed, masked or mixed weights, a position's row of a table, and an adapter's product: W = h(θ), the same
for all rows. W is read as a weight is, and ∂f/∂θ = ∂f/∂W · ∂W/∂θ takes one pull back through h for each row and output.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import add
from typing import Any, Protocol, cast, final

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from bayescope.network.sites import Form, Layout, MatrixSite, Site, WeightView
from bayescope.network.vectorising import pull_back
from bayescope.tape import ComputedTape, DenseTape, LookupTape, OuterTape, SelectedTape, SumTape, Tape


@final
@dataclass(frozen=True, eq=False)
class Use:
    """A site with its cotangents, shape (K, *site.shape), and the layout of its rows."""

    site: Site
    cotangents: Tensor
    layout: Layout


@final
@dataclass(frozen=True, eq=False)
class BatchReading:
    """What one batch and one set of cotangents left behind.

    Attributes:
        rows: N.
        outputs: K.
        uses: the sites that f depends on, by their keys.
        like: a tensor of the dtype and on the device of the tapes.
        rowwise: the exact reading of some parameters in a range of rows, one row by itself at a time, (n, K, p).
        derived: the derived weights, by name.
        passes: the state in which the network is differentiated, whenever that is asked for.
    """

    rows: int
    outputs: int
    uses: Mapping[Hashable, Sequence[Use]]
    like: Tensor
    rowwise: Callable[[Sequence[str], slice], Tensor]
    derived: Mapping[str, Derived]
    passes: Callable[[], AbstractContextManager[Any]]

    def of(self, keys: Sequence[Hashable]) -> list[Use]:
        """The uses that belong to some keys."""
        return [use for key in keys for use in self.uses.get(key, ())]

    def zeros(self, shape: tuple[int, int, int], *, one_hot: bool = False) -> OuterTape | LookupTape:
        """The tape of weights that f does not depend on, (G, O, D) of them: it has no positions."""
        groups, outputs, inputs = shape
        if one_hot:
            tokens = torch.zeros(self.rows, 0, dtype=torch.int64, device=self.like.device)
            return LookupTape(tokens, self.like.new_zeros(self.outputs, self.rows, 0, outputs), inputs)
        cotangents = self.like.new_zeros(self.outputs, self.rows, 0, groups, outputs)
        return OuterTape(self.like.new_zeros(self.rows, 0, groups, inputs), cotangents)


class WeightPart(Protocol):
    """A set of random weights whose tape is of one kind."""

    @property
    def kind(self) -> str:
        """How the weights are read."""

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that they belong to."""

    @property
    def shape(self) -> tuple[int, int, int] | None:
        """(G, O, D), the joined bias counted in D, where the tape is a factored one."""

    def positions(self, offsets: Mapping[str, int]) -> Tensor:
        """Where the weights are in a flat vector, in canonical order, given where each parameter begins in it."""

    def tape(self, reading: BatchReading) -> Tape:
        """The tape of the weights, in canonical order."""


@final
@dataclass(frozen=True, eq=False)
class MatrixPart:
    """A matrix of weights, or a chunk of one, with its bias where they always occur together.

    Attributes:
        form: the kind of call.
        weight: the matrix.
        bias: the bias that is joined, if one is.
        keys: those of its sites.
    """

    form: Form
    weight: WeightView
    bias: WeightView | None
    keys: tuple[Hashable, ...]

    @property
    def kind(self) -> str:
        return self.form.kind

    @property
    def names(self) -> tuple[str, ...]:
        """The weight and perhaps its bias."""
        return (self.weight.name,) if self.bias is None else (self.weight.name, self.bias.name)

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        groups, outputs, inputs = self.form.order(self.weight.value).shape
        return groups, outputs, inputs + (self.bias is not None)

    def positions(self, offsets: Mapping[str, int]) -> Tensor:
        """Those of (G, O, D), the bias the last column."""
        order = self.form.order(self.weight.positions) + offsets[self.weight.name]
        if self.bias is not None:
            column = (self.bias.positions + offsets[self.bias.name]).reshape(*order.shape[:2], 1)
            order = torch.cat([order, column], -1)
        return order.flatten()

    def tape(self, reading: BatchReading) -> Tape:
        """All uses side by side along their positions."""
        uses, bias = reading.of(self.keys), self.bias is not None
        if not uses:
            return reading.zeros(self.shape, one_hot=self.kind == "embedding")
        sites = [cast(MatrixSite, use.site) for use in uses]
        tapes = [
            site.tape(use.cotangents, use.layout, reading.rows, bias=bias)
            for site, use in zip(sites, uses, strict=True)
        ]
        return self.form.join(tapes)


@final
@dataclass(frozen=True, eq=False)
class DensePart:
    """Parameters that act entry by entry, whose U is held: scales, shifts, tokens, biases without their weight.

    Attributes:
        uses: for each parameter its size and the keys of its sites.
    """

    uses: Mapping[str, tuple[int, tuple[Hashable, ...]]]
    kind: str = "elementwise"
    shape: None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.uses)

    def positions(self, offsets: Mapping[str, int]) -> Tensor:
        """Each parameter row-major, one after the other."""
        return ranges(offsets, {name: size for name, (size, _) in self.uses.items()})

    def tape(self, reading: BatchReading) -> Tape:
        """The values of each parameter, summed over its uses."""
        if not any(reading.of(keys) for _, keys in self.uses.values()):
            return reading.zeros((1, sum(size for size, _ in self.uses.values()), 1))
        columns = []
        for size, keys in self.uses.values():
            values = [use.site.values(use.cotangents, use.layout, reading.rows) for use in reading.of(keys)]
            columns.append(reduce(add, values) if values else reading.zeros((1, size, 1)).jacobian(slice(None)))
        return DenseTape(torch.cat(columns, -1) if len(columns) > 1 else columns[0])


@final
@dataclass(frozen=True, eq=False)
class SumPart:
    """A parameter that is used in unlike ways: U is the sum over them, in the parameter's row-major order.

    Attributes:
        parts: one for each way, each of the whole parameter.
    """

    parts: tuple[WeightPart, ...]
    kind: str = "mixed"
    shape: None = None

    @property
    def names(self) -> tuple[str, ...]:
        return self.parts[0].names

    def positions(self, offsets: Mapping[str, int]) -> Tensor:
        return self.parts[0].positions(offsets).sort().values

    @cached_property
    def _orders(self) -> tuple[Tensor, ...]:
        """For each way the canonical place of each entry of the parameter."""
        positions = [part.positions({self.names[0]: 0}) for part in self.parts]
        return tuple(each.to(positions[0].device).argsort() for each in positions)

    def tape(self, reading: BatchReading) -> SumTape:
        """The tapes of all ways, brought into one order."""
        tapes = (part.tape(reading) for part in self.parts)
        return SumTape(tuple(SelectedTape(tape, order) for tape, order in zip(tapes, self._orders, strict=True)))


@final
@dataclass(frozen=True, eq=False)
class UnusedPart:
    """Weights that the network's output does not depend on.

    Attributes:
        entries: row-major positions in each parameter.
    """

    entries: Mapping[str, Tensor]
    kind: str = "unused"
    shape: None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.entries)

    def positions(self, offsets: Mapping[str, int]) -> Tensor:
        return torch.cat([positions + offsets[name] for name, positions in self.entries.items()])

    def tape(self, reading: BatchReading) -> Tape:
        return reading.zeros((1, sum(len(positions) for positions in self.entries.values()), 1))


@final
@dataclass(frozen=True, eq=False)
class SelectedPart:
    """Some weights of a part: a mask has fixed the others.

    Attributes:
        part: the part.
        kept: which of its weights are random, in its canonical order.
    """

    part: WeightPart
    kept: Tensor
    shape: None = None

    @property
    def kind(self) -> str:
        return self.part.kind

    @property
    def names(self) -> tuple[str, ...]:
        return self.part.names

    def positions(self, offsets: Mapping[str, int]) -> Tensor:
        """Those of the kept weights."""
        return self.part.positions(offsets)[self.kept]

    def tape(self, reading: BatchReading) -> SelectedTape:
        """The kept columns of U."""
        return SelectedTape(self.part.tape(reading), self.kept)


def ranges(offsets: Mapping[str, int], sizes: Mapping[str, int]) -> Tensor:
    """The flat positions of some parameters, one after the other, given where each begins."""
    return torch.cat([torch.arange(offsets[name], offsets[name] + size) for name, size in sizes.items()])


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
    parts: tuple[WeightPart, ...] = ()
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

    def tape(self, reading: BatchReading) -> ComputedTape:
        """U for as many rows at a time as are asked for: that of the derived weights pulled back, or row by row."""
        found = {name: each for name, each in reading.derived.items() if name in self.shapes}

        def by_row(rows: slice) -> Tensor:
            return reading.rowwise(self.names, rows).to(reading.like)

        alike = {name: each.shape for name, each in found.items()} == self.shapes  # not in sequences of another length
        compute = self._pulled_back(reading, found) if self.shapes and alike else by_row
        return ComputedTape(reading.rows, reading.outputs, sum(self.sizes.values()), compute)

    def _pulled_back(self, reading: BatchReading, found: Mapping[str, Derived]) -> Callable[[slice], Tensor]:
        sizes = {**self.sizes, **{name: shape.numel() for name, shape in self.shapes.items()}}
        read = [_Columns.of(part, sizes, reading) for part in self.parts]

        def compute(rows: slice) -> Tensor:
            u: dict[str, Tensor] = {}
            with torch.autocast(reading.like.device.type, enabled=False):  # it is for the network's own products
                for columns in read:
                    _add(u, columns.of_rows(rows))
            with reading.passes():
                for name, each in found.items():
                    _add(u, each.pulled_back(u.pop(name)))
            count = len(range(*rows.indices(reading.rows))) * reading.outputs
            values = (u[n] if n in u else reading.like.new_zeros(count, size) for n, size in self.sizes.items())
            return torch.cat([value.to(reading.like) for value in values], 1).unflatten(0, (-1, reading.outputs))

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
    def of(cls, part: WeightPart, sizes: Mapping[str, int], reading: BatchReading) -> _Columns:
        present = {name: sizes[name] for name in part.names}
        ends = torch.tensor([0, *present.values()]).cumsum(0).tolist()
        order = part.positions(dict(zip(present, ends, strict=False)))
        plain = torch.equal(order.cpu(), torch.arange(ends[-1]))
        return cls(part.tape(reading), present, None if plain else order.to(reading.like.device))

    def of_rows(self, rows: slice) -> dict[str, Tensor]:
        """By name (n K, size), zero where the part does not read a weight."""
        u = self.tape.jacobian(rows).flatten(0, 1)
        if self.order is not None:
            u = u.new_zeros(len(u), sum(self.sizes.values())).index_copy_(1, self.order, u)
        return dict(zip(self.sizes, u.split(list(self.sizes.values()), 1), strict=True))


def _add(total: dict[str, Tensor], more: Mapping[str, Tensor]) -> None:
    for name, value in more.items():
        total[name] = total[name] + value if name in total else value


def composed(
    parts: Sequence[WeightPart], derived: Mapping[str, Derived], sizes: Mapping[str, int]
) -> tuple[WeightPart, ...]:
    """The parts in which those of derived weights are joined with all that read the same parameters.

    Args:
        parts: of parameters and derived weights.
        derived: the latter, by name.
        sizes: the number of weights of each parameter.
    """
    groups: list[tuple[set[str], list[WeightPart]]] = []
    for part in parts:
        names = {source for name in part.names for source in (derived[name].leaves if name in derived else (name,))}
        joined = [part]
        for group in [group for group in groups if group[0] & names]:
            groups.remove(group)
            names, joined = names | group[0], [*group[1], *joined]
        groups.append((names, joined))
    return tuple(part for names, some in groups for part in _joined(names, some, derived, sizes))


def _joined(
    names: set[str], parts: list[WeightPart], derived: Mapping[str, Derived], sizes: Mapping[str, int]
) -> list[WeightPart]:
    shapes = {name: derived[name].shape for part in parts for name in part.names if name in derived}
    if not shapes:
        return parts
    read = tuple(part for part in parts if not isinstance(part, UnusedPart))
    return [ComputedPart({name: size for name, size in sizes.items() if name in names}, shapes, read)]
