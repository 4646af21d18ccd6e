"""Parts: disjoint sets of a network's random weights, and how the tape of each is put together from its sites."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add
from typing import TYPE_CHECKING, Any, Protocol, cast, final

import torch
from torch import Tensor

from bayescope.network.forms import Form
from bayescope.network.layout import Layout
from bayescope.network.sites import MatrixSite, Site
from bayescope.network.views import WeightView
from bayescope.tape import DenseTape, SelectedTape, SumTape, Tape, ZeroTape

if TYPE_CHECKING:
    from bayescope.network.derived import Derived


@final
@dataclass(frozen=True, eq=False)
class Use:
    """A site with its cotangents, shape (K, *site.shape), and the layout of its rows."""

    site: Site
    cotangents: Tensor
    layout: Layout


@final
@dataclass(frozen=True, eq=False)
class Reading:
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

    def zeros(self, shape: tuple[int, int, int], *, one_hot: bool = False) -> ZeroTape:
        """The tape of weights that f does not depend on, (G, O, D) of them."""
        return ZeroTape(self.rows, self.outputs, shape, self.like, one_hot)


class Part(Protocol):
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

    def tape(self, reading: Reading) -> Tape:
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

    def tape(self, reading: Reading) -> Tape:
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

    def tape(self, reading: Reading) -> DenseTape | ZeroTape:
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

    parts: tuple[Part, ...]
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

    def tape(self, reading: Reading) -> SumTape:
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

    def tape(self, reading: Reading) -> ZeroTape:
        return reading.zeros((1, sum(len(positions) for positions in self.entries.values()), 1))


@final
@dataclass(frozen=True, eq=False)
class SelectedPart:
    """Some weights of a part: a mask has fixed the others.

    Attributes:
        part: the part.
        kept: which of its weights are random, in its canonical order.
    """

    part: Part
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

    def tape(self, reading: Reading) -> SelectedTape:
        """The kept columns of U."""
        return SelectedTape(self.part.tape(reading), self.kept)


def ranges(offsets: Mapping[str, int], sizes: Mapping[str, int]) -> Tensor:
    """The flat positions of some parameters, one after the other, given where each begins."""
    return torch.cat([torch.arange(offsets[name], offsets[name] + size) for name, size in sizes.items()])
