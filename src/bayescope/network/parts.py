"""Parts: disjoint sets of a network's random weights, sorted by where a trace has found them in use.

The tape of each part is put together from its sites.

Some weights are derived: a network computes them from its weights alone, before they meet the data. Examples are a
layer with normed, masked or mixed weights, a position's row of a table, and an adapter's product: W = h(θ), the same
for all rows. W is read as a weight is, and ∂f/∂θ = ∂f/∂W · ∂W/∂θ takes one pull back through h for each row and output.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import accumulate
from operator import add
from types import MappingProxyType
from typing import Any, cast, final

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from bayescope.errors import InputError
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


@final
@dataclass(frozen=True, eq=False)
class WeightPart:
    """A set of random weights that is read in one way.

    Attributes:
        kind: how they are read.
        sizes: the number of weights of each parameter, or derived weight, that they belong to.
        read: from what a batch left behind to the tape of the weights.
        order: returns where they are among the weights of these parameters, which are row-major and one after the
            other; ``None`` where they are all of them as they stand.
        shape: (G, O, D), the joined bias counted in D, where the tape is a factored one.
        form: of a matrix, the kind of call.
        keys: of a matrix, those of its sites.
    """

    kind: str
    sizes: Mapping[str, int]
    read: Callable[[BatchReading], Tape]
    order: Callable[[], Tensor] | None = None
    shape: tuple[int, int, int] | None = None
    form: Form | None = None
    keys: tuple[Hashable, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that they belong to."""
        return tuple(self.sizes)

    def positions(self, offsets: Mapping[str, int]) -> Tensor:
        """Where the weights are in a flat vector, given where each parameter begins in it."""
        flat = torch.cat([torch.arange(offsets[name], offsets[name] + size) for name, size in self.sizes.items()])
        return flat if self.order is None else flat[self.order().to(flat.device)]

    def selected(self, kept: Tensor) -> WeightPart:
        """The part of some of the weights, those in these places: a mask has fixed the others."""
        order = partial(_selected_order, self, kept)
        return WeightPart(self.kind, self.sizes, partial(_read_selected, self, kept), order)


def _selected_order(part: WeightPart, kept: Tensor) -> Tensor:
    return kept if part.order is None else part.order()[kept]


def _read_selected(part: WeightPart, kept: Tensor, reading: BatchReading) -> SelectedTape:
    return SelectedTape(part.read(reading), kept)


def matrix_part(form: Form, weight: WeightView, bias: WeightView | None, keys: tuple[Hashable, ...]) -> WeightPart:
    """A matrix of weights, or a chunk of one, with its bias as the last column where they always occur together."""
    groups, outputs, inputs = form.order(weight.value).shape
    shape = groups, outputs, inputs + (bias is not None)
    sizes = {view.name: view.weight.numel() for view in (weight, bias) if view is not None}
    read = partial(_read_matrix, form, keys, shape, bias is not None)
    return WeightPart(form.kind, sizes, read, partial(_matrix_order, form, weight, bias), shape, form, keys)


def _matrix_order(form: Form, weight: WeightView, bias: WeightView | None) -> Tensor:
    order = form.order(weight.positions)
    if bias is not None:
        column = (bias.positions + weight.weight.numel()).reshape(*order.shape[:2], 1)
        order = torch.cat([order, column], -1)
    return order.flatten()


def _read_matrix(
    form: Form, keys: tuple[Hashable, ...], shape: tuple[int, int, int], bias: bool, reading: BatchReading
) -> Tape:
    """All uses side by side along their positions."""
    uses = reading.of(keys)
    if not uses:
        return reading.zeros(shape, one_hot=form.kind == "embedding")
    sites = [cast(MatrixSite, use.site) for use in uses]
    pairs = zip(sites, uses, strict=True)
    tapes: list[Any] = [site.tape(use.cotangents, use.layout, reading.rows, bias=bias) for site, use in pairs]
    return tapes[0] if len(tapes) == 1 else type(tapes[0]).join(tapes)


def dense_part(uses: Mapping[str, tuple[int, tuple[Hashable, ...]]]) -> WeightPart:
    """Parameters that act entry by entry, whose U is held: scales, shifts, tokens, biases without their weight.

    Args:
        uses: for each parameter its size and the keys of its sites.
    """
    return WeightPart("elementwise", {name: size for name, (size, _) in uses.items()}, partial(_read_dense, uses))


def _read_dense(uses: Mapping[str, tuple[int, tuple[Hashable, ...]]], reading: BatchReading) -> Tape:
    """The values of each parameter, summed over its uses."""
    if not any(reading.of(keys) for _, keys in uses.values()):
        return reading.zeros((1, sum(size for size, _ in uses.values()), 1))
    columns = []
    for size, keys in uses.values():
        values = [use.site.values(use.cotangents, use.layout, reading.rows) for use in reading.of(keys)]
        columns.append(reduce(add, values) if values else reading.zeros((1, size, 1)).jacobian(slice(None)))
    return DenseTape(torch.cat(columns, -1) if len(columns) > 1 else columns[0])


def sum_part(parts: Sequence[WeightPart]) -> WeightPart:
    """A parameter that is used in unlike ways: U is the sum over them, each of the whole parameter."""
    inverse = [None if part.order is None else part.order().argsort() for part in parts]
    return WeightPart("mixed", parts[0].sizes, partial(_read_sum, parts, inverse))


def _read_sum(parts: Sequence[WeightPart], inverse: Sequence[Tensor | None], reading: BatchReading) -> SumTape:
    tapes = ((part.read(reading), order) for part, order in zip(parts, inverse, strict=True))
    return SumTape(tuple(tape if order is None else SelectedTape(tape, order) for tape, order in tapes))


def unused_part(entries: Mapping[str, Tensor], sizes: Mapping[str, int]) -> WeightPart:
    """Weights that the network's output does not depend on.

    Args:
        entries: their row-major positions in each parameter.
        sizes: the number of weights of each parameter.
    """
    read = partial(_read_nothing, sum(map(len, entries.values())))
    return WeightPart("unused", {name: sizes[name] for name in entries}, read, partial(_entries, entries, sizes))


def _entries(entries: Mapping[str, Tensor], sizes: Mapping[str, int]) -> Tensor:
    before = starts({name: sizes[name] for name in entries})
    return torch.cat([places + before[name] for name, places in entries.items()])


def starts(sizes: Mapping[str, int]) -> dict[str, int]:
    """Where each parameter begins in a flat vector, given the number of its weights."""
    return dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))


def _read_nothing(count: int, reading: BatchReading) -> Tape:
    return reading.zeros((1, count, 1))


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
        behind = {node.node, *_behind([node.node])}
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


def computed_part(
    sizes: Mapping[str, int], shapes: Mapping[str, torch.Size] = MappingProxyType({}), parts: Sequence[WeightPart] = ()
) -> WeightPart:
    """Parameters that meet the data in derived weights, and perhaps as they are as well; or that are read row by row.

    Args:
        sizes: the number of weights of each parameter.
        shapes: of the derived weights, by name; none of parameters that are read row by row, one backward pass a row,
            which is exact whatever the network does with them.
        parts: how these, and the parameters as they are, are read.
    """
    return WeightPart("derived" if shapes else "per-row", sizes, partial(_read_computed, sizes, dict(shapes), parts))


def _read_computed(
    sizes: Mapping[str, int], shapes: Mapping[str, torch.Size], parts: Sequence[WeightPart], reading: BatchReading
) -> ComputedTape:
    """U for as many rows at a time as are asked for: that of the derived weights pulled back, or row by row."""
    found = {name: each for name, each in reading.derived.items() if name in shapes}

    def by_row(rows: slice) -> Tensor:
        return reading.rowwise(tuple(sizes), rows).to(reading.like)

    alike = {name: each.shape for name, each in found.items()} == shapes  # not in sequences of another length
    compute = _pulled_back(reading, sizes, parts, found) if shapes and alike else by_row
    return ComputedTape(reading.rows, reading.outputs, sum(sizes.values()), compute)


def _pulled_back(
    reading: BatchReading, sizes: Mapping[str, int], parts: Sequence[WeightPart], found: Mapping[str, Derived]
) -> Callable[[slice], Tensor]:
    orders = [None if part.order is None else part.order().to(reading.like.device) for part in parts]
    read = [(part, part.read(reading), order) for part, order in zip(parts, orders, strict=True)]

    def compute(rows: slice) -> Tensor:
        total: dict[str, Tensor] = {}
        with torch.autocast(reading.like.device.type, enabled=False):  # it is for the network's own products
            for part, tape, order in read:
                u = tape.jacobian(rows).flatten(0, 1)
                if order is not None:
                    u = u.new_zeros(len(u), sum(part.sizes.values())).index_copy_(1, order, u)
                _add(total, dict(zip(part.sizes, u.split(list(part.sizes.values()), 1), strict=True)))
        with reading.passes():
            for name, each in found.items():
                _add(total, each.pulled_back(total.pop(name)))
        count = len(range(*rows.indices(reading.rows))) * reading.outputs
        values = (total[n] if n in total else reading.like.new_zeros(count, size) for n, size in sizes.items())
        return torch.cat([value.to(reading.like) for value in values], 1).unflatten(0, (-1, reading.outputs))

    return compute


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
    read = tuple(part for part in parts if part.kind != "unused")
    return [computed_part({name: size for name, size in sizes.items() if name in names}, shapes, read)]


@final
@dataclass(frozen=True, eq=False)
class SitesByRole:
    """The sites of each parameter, by the role that it plays there.

    Attributes:
        matrix: where it is the matrix.
        bias: where it is the bias.
        spread: where it is neither.
    """

    matrix: dict[str, list[MatrixSite]] = field(default_factory=dict)
    bias: dict[str, list[MatrixSite]] = field(default_factory=dict)
    spread: dict[str, list[Site]] = field(default_factory=dict)

    @classmethod
    def of(cls, sites: Iterable[Site]) -> SitesByRole:
        """The sites of a network, sorted by what they do."""
        roles = cls()
        for site in sites:
            if not isinstance(site, MatrixSite):
                roles.spread.setdefault(site.view.name, []).append(site)
                continue
            if site.weight is not None:
                roles.matrix.setdefault(site.weight.name, []).append(site)
            if site.bias is not None:
                roles.bias.setdefault(site.bias.name, []).append(site)
        return roles

    def joined(self, apart: Collection[str]) -> frozenset[str]:
        """The biases that always come with the same matrix, entry by entry, and it with them; none of those apart."""
        return frozenset(name for name in self.bias if self._always_joined(name, apart))

    def _always_joined(self, name: str, apart: Collection[str]) -> bool:
        sites = self.bias[name]
        matrices = {site.weight.name if site.weight else None for site in sites}
        (matrix,) = matrices if len(matrices) == 1 else (None,)
        if (
            matrix is None
            or matrix in apart
            or name in apart
            or name in self.matrix
            or name in self.spread
            or matrix in self.spread
        ):
            return False
        if len(self.matrix[matrix]) != len(sites) or not all(site.form.joins_bias for site in sites):
            return False
        pairs = {(site.form.kind, *(view.key for view in site.views)): site.views for site in sites}
        return _disjoint([w for w, _ in pairs.values()]) and _disjoint([b for _, b in pairs.values()])


def make_parts(
    sizes: Mapping[str, int], sites: Sequence[Site], rowwise: Collection[str], derived: Collection[str] = ()
) -> tuple[tuple[WeightPart, ...], dict[str, str]]:
    """Sorts the random parameters into parts, in the order of their first parameters.

    Args:
        sizes: the number of weights of each random parameter.
        sites: those that the output depends on.
        rowwise: the parameters that are to be read row by row.
        derived: the weights among them that are computed from others, with which no bias is joined.

    Returns:
        The parts, and the reasons for which some parameters have to be read row by row and are in none of them.
    """
    roles = SitesByRole.of(sites)
    joined = roles.joined(derived)
    parts: list[WeightPart] = []
    refused: dict[str, str] = {}
    dense = [name for name in sizes if name not in roles.matrix and name not in joined | set(rowwise)]
    dense = [name for name in dense if name in roles.spread or name in roles.bias]
    groups = [
        *_by_owner([name for name in dense if name not in derived]),
        *([name] for name in dense if name in derived),
    ]
    for name in roles.matrix:
        found = _matrix_parts(name, sizes[name], roles, joined)
        if not found:
            refused[name] = "its chunks overlap where they are used"
        parts += found
    parts += [dense_part({name: (sizes[name], _keys(roles, name)) for name in group}) for group in groups]
    by_row = _by_owner([name for name in sizes if name in rowwise])
    parts += [computed_part({name: sizes[name] for name in group}) for group in by_row]
    unused = _uncovered({n: s for n, s in sizes.items() if n not in refused}, parts)
    parts += [unused_part({name: unused[name] for name in group}, sizes) for group in _by_owner(list(unused))]
    order = {name: place for place, name in enumerate(sizes)}
    return tuple(sorted(parts, key=lambda part: min(order[name] for name in part.names))), refused


def _matrix_parts(name: str, size: int, roles: SitesByRole, joined: Collection[str]) -> list[WeightPart]:
    """One part for each chunk of the matrix that is used by itself; one for all ways in which all of it is used."""
    groups: dict[Hashable, list[MatrixSite]] = {}
    for site in roles.matrix[name]:
        assert site.weight is not None
        shape = site.form.order(site.weight.value).shape
        groups.setdefault((site.form.kind, shape, site.weight.key), []).append(site)
    alone = name not in roles.spread and name not in roles.bias
    matrices = []
    for (first, *_), sites in ((each, each) for each in groups.values()):
        assert first.weight is not None
        bias = first.bias if first.bias is not None and first.bias.name in joined else None
        matrices.append(matrix_part(first.form, first.weight, bias, tuple(dict.fromkeys(s.key for s in sites))))
    views = [sites[0].weight for sites in groups.values() if sites[0].weight is not None]
    if alone and _disjoint(views):
        return matrices
    if any(view.value.numel() != size for view in views):
        return []
    others = [] if alone else [dense_part({name: (size, _keys(roles, name))})]
    return [sum_part((*matrices, *others))]


def _keys(roles: SitesByRole, name: str) -> tuple[Hashable, ...]:
    """The sites at which a parameter is not the matrix."""
    return tuple(dict.fromkeys(site.key for site in (*roles.spread.get(name, ()), *roles.bias.get(name, ()))))


def _disjoint(views: Sequence[WeightView]) -> bool:
    """Whether no two of the views share an entry of the weight, nor one of them has it twice."""
    if len(views) == 1 and views[0].value.numel() == views[0].weight.numel():
        return 0 not in views[0].value.stride()
    positions = torch.cat([view.positions.flatten() for view in views])
    return len(positions) == len(positions.unique())


def _uncovered(sizes: Mapping[str, int], parts: Iterable[WeightPart]) -> dict[str, Tensor]:
    """For each parameter the weights that are in no part."""
    offsets, free = starts(sizes), torch.ones(sum(sizes.values()), dtype=torch.bool)
    for part in parts:
        free[part.positions(offsets).cpu()] = False
    left = {name: free[offsets[name] : offsets[name] + size].nonzero().squeeze(-1) for name, size in sizes.items()}
    return {name: positions for name, positions in left.items() if len(positions)}


def _by_owner(names: Sequence[str]) -> list[list[str]]:
    """The names in groups that belong to one module."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.rpartition(".")[0], []).append(name)
    return list(groups.values())


def last_layer(sites: Sequence[Site], trainable: Sequence[str]) -> list[str]:
    """The parameters whose effect on f passes through no other matrix, and those of the same modules.

    Layers side by side, for a mean and a variance, are all of them last.

    Args:
        sites: those that f depends on, in the order of execution.
        trainable: the names to choose from.

    Raises:
        InputError: if there is none, or a matrix is last that is not used as one (as in cosine similarities).
    """
    if not sites:
        raise InputError("weights: expected weights that the network's output depends on, got none.")
    matrices = [site for site in sites if isinstance(site, MatrixSite)]
    passed = _behind(_edge(site).node for site in matrices)
    last = [site for site in sites if _edge(site).node not in passed] if matrices else [sites[-1]]
    names = {view.name for site in last for view in site.views}
    owners = tuple(name.rpartition(".")[0] + "." for name in names if "." in name)
    odd = [site.views[0] for site in last if matrices and not isinstance(site, MatrixSite)]
    unclear = sorted({view.name for view in odd if sum(size > 1 for size in view.weight.shape) > 1})
    if unclear:
        raise InputError(
            f"weights: expected a last layer that applies a matrix, got {', '.join(map(repr, unclear))}, used in "
            f"another way, after {', '.join(map(repr, sorted(names - set(unclear))))}. Name the last layer's weights."
        )
    return [name for name in trainable if name in names or name.startswith(owners)]


def _edge(site: Site) -> GradientEdge:
    return site.target if isinstance(site, MatrixSite) else get_gradient_edge(site.target)


def _behind(nodes: Iterable[Any]) -> set[Any]:
    """The nodes of the graph that a gradient reaches from some, without these unless from one another."""
    found: set[Any] = set()
    waiting = [following for node in nodes for following, _ in node.next_functions]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.add(node)
            waiting += [following for following, _ in node.next_functions]
    return found
