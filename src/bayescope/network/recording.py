"""A recording: one forward pass of a network, ready to be asked for the Jacobian under any cotangents."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple, cast, final

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from bayescope.errors import InputError, UnsupportedError
from bayescope.network.forward import cotangents, forward, owned, reading
from bayescope.network.inputs import Inputs, count_rows, explained, take_rows
from bayescope.network.notes import Computing
from bayescope.network.parts import BatchReading, Use, WeightPart
from bayescope.network.rowwise import rowwise
from bayescope.network.sites import Layout, MatrixSite, Site, Target
from bayescope.network.weights import Weights
from bayescope.precision.structure import PartInfo
from bayescope.storage import stored
from bayescope.tape import ClassTape, HeadTape, JoinedTape, LastHessian, OuterTape, StreamedTape, Tape


@stored("treatment", without=("recorded", "parts", "layouts", "overwritten", "computing"))
@final
@dataclass(frozen=True, eq=False)
class Treatment:
    """How the sites of a network are read. A file keeps which weights are read together, and not the ways of reading.

    Attributes:
        weights: which weights are random, and their flat order.
        recorded: the parameters that sites are noted for; other random ones are read row by row.
        head: whether all random weights are those of one linear layer or convolution whose output is f itself.
        parts: the sets of weights that are read together.
        layouts: for each key of a site the layouts of its occurrences, in the order of execution.
        overwritten: the sites whose inputs the network writes over.
        overwrites_inputs: whether it writes over what it is given.
        row_numbers: how many numbers one row's cotangents are at all sites together, and its U of the parameters that
            are read row by row, when each output has a cotangent.
        outputs: the shape (*positions, C) that one row's f had.
        computing: what is noted of calls that take weights alone.
        indices: for each part the flat positions of its weights, the very tensors that every tape carries.
        infos: what is known of each part.
    """

    weights: Weights
    recorded: frozenset[str] = frozenset()
    head: bool = False
    parts: tuple[WeightPart, ...] = ()
    layouts: Mapping[Hashable, tuple[Layout, ...]] = field(default_factory=dict)
    overwritten: frozenset[Hashable] = frozenset()
    overwrites_inputs: bool = False
    row_numbers: int = 0
    outputs: torch.Size = field(default_factory=torch.Size)
    computing: Computing = field(default_factory=Computing)
    indices: tuple[Tensor, ...] = ()
    infos: tuple[PartInfo, ...] = ()

    def uses(
        self, sites: Sequence[Site], gradients: Sequence[Tensor | None], rows: int, dtype: torch.dtype
    ) -> dict[Hashable, list[Use]]:
        """The sites that f depends on, with their cotangents and layouts, by key.

        Raises:
            InputError: if the batch takes another way through the network than the one it was traced on.
        """
        found: dict[Hashable, list[tuple[Site, Tensor | None]]] = {}
        for site, gradient in zip(sites, gradients, strict=True):
            found.setdefault(site.key, []).append((site, gradient))
        uses: dict[Hashable, list[Use]] = {}
        for key, occurrences in found.items():
            if all(gradient is None for _, gradient in occurrences):
                continue
            layouts = self._layouts(key, occurrences[0][0], len(occurrences))
            uses[key] = [
                _use(site, gradient, layout, rows, dtype)
                for (site, gradient), layout in zip(occurrences, layouts, strict=True)
                if gradient is not None
            ]
        return uses

    def _layouts(self, key: Hashable, site: Site, count: int) -> Sequence[Layout]:
        layouts = self.layouts.get(key, ())
        if layouts and len(set(layouts)) == 1:  # so that a recurrent network may be read at any length
            return layouts[:1] * count
        if len(layouts) != count:
            raise InputError(
                f"inputs: the network uses {site.views[0].name!r} in another way than on the batch that it was traced "
                "on. Trace it on a batch like this one."
            )
        return layouts


def _use(site: Site, gradient: Tensor, layout: Layout, rows: int, dtype: torch.dtype) -> Use:
    if not layout.fits(site.shape, rows):
        raise InputError(
            f"inputs: the tensor at {site.views[0].name!r} has shape {tuple(site.shape)}, in which {rows} rows were "
            f"expected along dimension {layout.dim}. Trace the network on a batch like this one."
        )
    return Use(site, gradient.to(dtype), layout)


class TopLayer(NamedTuple):
    """A linear layer of random weights whose output is f, and through whose inputs all other weights act.

    Attributes:
        part: its place among the parts.
        site: its call.
    """

    part: int
    site: MatrixSite

    @property
    def matrix(self) -> Tensor:
        """The weight of the last layer, W of shape (C, H)."""
        assert self.site.weight is not None
        return self.site.weight.value

    @property
    def source(self) -> Target:
        """The node of the graph that computed the features h."""
        return self.site.source


def top_layer(f: Tensor, sites: Sequence[Site], parts: Sequence[WeightPart]) -> TopLayer | None:
    """The last layer, where it is linear, its weights are used nowhere else and no part is read row by row."""
    found = [site for site in sites if isinstance(site, MatrixSite) and _same(site.target, f)]
    if len(found) != 1 or any(part.kind == "per-row" for part in parts):
        return None
    (site,) = found
    if site.form.kind != "linear" or site.weight is None or site.source is None or site.shape != f.shape:
        return None
    joined = [place for place, part in enumerate(parts) if part.keys == (site.key,)]
    alone = sum(other.key == site.key for other in sites) == 1
    if len(joined) != 1 or not alone or len(parts[joined[0]].names) != len(site.views):
        return None
    return TopLayer(joined[0], site)


def _same(target: Target, f: Tensor) -> bool:
    edge = get_gradient_edge(f)
    return getattr(target, "node", None) is edge.node and target.output_nr == edge.output_nr


# So many cotangents at once check the places of rows.
CHECKED_AT_ONCE = 4
# Up to this many random weights the products of a tape are in float64, whatever the network computes in.
FEW_WEIGHTS = 2**14


def separating(rows: int) -> Tensor:
    """The fewest parts of N rows such that of any two rows each is in a part without the other: bool, (K, N).

    Each row is in ⌊K/2⌋ of the K parts, and no two rows are in the same ones; fewer parts separate fewer rows (Sperner
    1928).
    """
    count = next(count for count in itertools.count(1) if math.comb(count, count // 2) >= rows)
    chosen = itertools.islice(itertools.combinations(range(count), count // 2), rows)
    found = torch.zeros(count, rows, dtype=torch.bool)
    for row, parts in enumerate(chosen):
        found[list(parts), row] = True
    return found


@final
class Recording:
    """One batch read by a network.

    Attributes:
        rows: N.
        outputs: f, shape (N, ..., C), detached, in float32 at least, and in float64 where few weights are random.
    """

    def __init__(self, module: nn.Module, treatment: Treatment, inputs: Inputs) -> None:
        self.rows = count_rows(inputs)
        self._module, self._treatment = module, treatment
        self._autocast = autocast_now(treatment.indices[0].device.type)
        with reading(module):
            self._inputs = owned(inputs, copy=treatment.overwrites_inputs)
            # Weights that are read row by row run the network again, on inputs as they were.
            run_on = owned(self._inputs, copy=True) if treatment.overwrites_inputs else self._inputs
            with explained(module, inputs):
                self._f, notes = forward(module, treatment.recorded, run_on, treatment.overwritten, treatment.computing)
        self._sites, self._derived = notes.sites, notes.derived
        self._in_doubt = notes.moves_rows and self.rows > 1  # until they have been seen to be in place
        self.outputs = checked_outputs(self._f, self.rows).detach().to(_dtype(self._f, treatment.weights.dim))
        if any(site.overwritten for site in self._sites):
            raise InputError("inputs: the network changes activations in place that it did not when it was traced.")

    def tape(self, seeds: Tensor) -> JoinedTape:
        """The rows u_nk = ∂(s_nkᵀ f_n)/∂θ; may be asked for again, with other cotangents.

        Args:
            seeds: the cotangents s_nk, shape (K, N, ..., C), or (K, 1, ..., C) where all rows share them.

        Raises:
            InputError: if they have another shape.
        """
        shape = tuple(self.outputs.shape)
        if seeds.ndim != 1 + len(shape) or seeds.shape[1] not in (1, self.rows) or seeds.shape[2:] != shape[1:]:
            raise InputError(f"seeds: expected shape (K, *{shape}), got {tuple(seeds.shape)}.")
        with torch.inference_mode(False):
            self._check_places()
            read = self._read(owned(seeds, copy=False))
            return self._joined(*(part.read(read) for part in self._treatment.parts))

    def head_tape(self, hessian: LastHessian) -> JoinedTape:
        """The tape of a last layer under roots of Λ_n, whose second moments come from Λ_n itself.

        Raises:
            UnsupportedError: if the random weights are not those of one linear layer whose output is f.
        """
        points = self._head_points("head_tape")
        return self._joined(HeadTape(points.activations, hessian, points.bias))

    @cached_property
    def top(self) -> TopLayer | None:
        """The last layer, where it is linear and other random weights act through it alone."""
        if self.is_head or not self._f.requires_grad or self._f.dtype not in (torch.float32, torch.float64):
            return None
        found = top_layer(self._f, self._sites, self._treatment.parts)
        return None if found is None or found.matrix.dtype != self._f.dtype else found

    def tape_below(self, seeds: Tensor, hessian: LastHessian | None) -> JoinedTape:
        """The tape whose cotangents begin at the inputs h of the last layer, f = W h + b, under roots of WᵀΛ_nW.

        Parts have different cotangents: only sums over one part alone hold for all parts together.

        Args:
            seeds: the cotangents of h, shape (K, N, *positions, H).
            hessian: Λ_n for the last layer; ``None`` where it has been read already.
        """
        assert self.top is not None
        self._check_places()
        targets = [site.target for site in self._sites if site is not self.top.site]
        with torch.inference_mode(False):
            below = iter(cotangents(self.top.source, targets, seeds.to(self._f)))
            gradients = [None if site is self.top.site else next(below) for site in self._sites]
            read = self._reading(len(seeds), gradients, seeds)
            tapes: list[Tape] = [part.read(read) for part in self._treatment.parts]
        if hessian is not None:
            points = self._points(self.top.part, self.top.site)
            tapes[self.top.part] = HeadTape(points.activations, hessian, points.bias)
        return self._joined(*tapes)

    def class_tape(self, classes: Tensor | None = None) -> JoinedTape:
        """The Jacobian of a last layer's outputs, or of some of them, without cotangents of C numbers each.

        Args:
            classes: which outputs, int64 of shape (N, *positions, K); ``None`` for all of them.

        Returns:
            The tape, in which each position is a row of its own.

        Raises:
            UnsupportedError: if the random weights are not those of one linear layer whose output is f.
        """
        points = self._head_points("class_tape")
        chosen = None if classes is None else classes.flatten(0, -2)
        return self._joined(ClassTape(points.activations[:, 0, 0], self.outputs.shape[-1], points.bias, chosen))

    def _joined(self, *tapes: Tape) -> JoinedTape:
        return JoinedTape(tapes, self._treatment.indices, self._treatment.weights.dim)

    def _points(self, part: int, site: Site) -> OuterTape:
        """What a last layer meets, each position a row of its own, under no cotangents."""
        none = self.outputs.new_zeros(0, 1, *self.outputs.shape[1:])
        placed = cast(MatrixSite, site).form.placed(none)
        read = self._reading(0, [placed if other is site else None for other in self._sites], none)
        tape = cast(OuterTape | StreamedTape, self._treatment.parts[part].read(read)).take(slice(None))
        return OuterTape(tape.activations.flatten(0, 1)[:, None], tape.cotangents[:, :1, :1], tape.bias)

    def _head_points(self, name: str) -> OuterTape:
        if not self.is_head:
            raise UnsupportedError(f"{name}: expected the weights of one linear layer whose output is f itself.")
        self._check_places()
        return self._points(0, self._sites[0])

    def _check_places(self) -> None:
        """Checks that the rows of this batch are where the trace has seen those of another one.

        Cotangents that are zero in half of the rows have to be zero in these at every site. Of any two rows each is
        in a half without the other, so that every row in another's place is found.
        """
        if not self._in_doubt:
            return
        generator = torch.Generator().manual_seed(0)
        moved: dict[str, None] = {}  # in order
        for zero in separating(self.rows).split(CHECKED_AT_ONCE):
            seeds = torch.randn(len(zero), *self._f.shape, generator=generator)
            seeds[zero] = 0.0
            with torch.inference_mode(False):
                gradients = cotangents(self._f, [site.target for site in self._sites], seeds.to(self._f, copy=True))
            uses = self._treatment.uses(self._sites, gradients, self.rows, self.outputs.dtype)
            for use in (use for of_one in uses.values() for use in of_one):
                if use.layout.split(use.cotangents, self.rows, 1)[zero.to(self._f.device)].any():
                    moved |= dict.fromkeys(view.name for view in use.site.views)
        if moved:
            raise InputError(
                f"inputs: the network moves the rows of this batch before they meet {', '.join(map(repr, moved))}, "
                "as it did not with the batch that it was traced on. Give a first batch in which rows are moved "
                "(shuffle the data), so that these weights are read row by row, or leave them out of `weights`."
            )
        self._in_doubt = False

    @property
    def cotangent_bytes(self) -> int:
        """What one cotangent of all rows takes at all layers together, while it travels and while it is read."""
        places = sum(site.shape.numel() for site in self._sites) + self._f.numel()
        by_row = sum(part.dim for part in self._treatment.infos if part.kind in ("per-row", "derived")) * self.rows
        return max(1, (places + by_row) * self.outputs.element_size())

    @property
    def is_head(self) -> bool:
        """Whether all random weights are those of one linear layer or convolution whose output is f itself."""
        if not self._treatment.head or len(self._sites) != 1:
            return False
        placed = cast(MatrixSite, self._sites[0]).form.placed(self._f.detach()[None])
        return placed is not None and self._sites[0].shape == placed.shape[1:]

    def _read(self, seeds: Tensor) -> BatchReading:
        # At a last layer the cotangents of the site are the seeds: there is nothing to pull back.
        if self.is_head:
            gradients: list[Tensor | None] = [cast(MatrixSite, self._sites[0]).form.placed(seeds)]
        else:
            seeds = seeds.expand(-1, self.rows, *self._f.shape[1:]).to(self._f)
            gradients = cotangents(self._f, [site.target for site in self._sites], seeds)
        return self._reading(len(seeds), gradients, seeds)

    def _reading(self, outputs: int, gradients: Sequence[Tensor | None], seeds: Tensor) -> BatchReading:
        return BatchReading(
            rows=self.rows,
            outputs=outputs,
            uses=self._treatment.uses(self._sites, gradients, self.rows, self.outputs.dtype),
            like=self.outputs,
            rowwise=lambda names, rows: self._by_row(names, rows, seeds),
            derived=self._derived,
            passes=self._passes,
        )

    @contextmanager
    def _passes(self) -> Iterator[None]:
        with torch.inference_mode(False), self._autocast():
            yield

    def _by_row(self, names: Sequence[str], rows: slice, seeds: Tensor) -> Tensor:
        """The exact reading, in the state of this recording, whenever and under whatever autocast it is asked for."""
        with reading(self._module), torch.no_grad(), self._autocast():
            return rowwise(self._module, names, take_rows(self._inputs, rows), seeds[:, rows])


def checked_outputs(f: Tensor, rows: int) -> Tensor:
    """f as it is.

    Raises:
        InputError: if its shape is not (N, ..., C).
    """
    if f.ndim < 2 or f.shape[0] != rows:
        raise InputError(
            f"model: expected outputs of shape ({rows}, ..., C) for {rows} rows, got {tuple(f.shape)}. Rows are on the "
            "first axis of the inputs too: one row is X[:1]."
        )
    return f


def autocast_now(device: str) -> Callable[[], torch.autocast]:
    """What brings the autocast of this moment back later on."""
    dtype, enabled = torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
    return partial(torch.autocast, device, dtype, enabled)


def tape_dtype(f: Tensor) -> torch.dtype:
    """That of f, float32 at least."""
    return torch.promote_types(f.dtype, torch.float32)


def _dtype(f: Tensor, dim: int) -> torch.dtype:
    """That of the sums of products over a tape.

    Small eigenvalues of a sum of a aᵀ are known to the rounding of the products, relative to the largest; rounding of
    the factors a themselves enters squared. So the factors of few weights, which cost little, are summed in float64.
    """
    return torch.float64 if dim <= FEW_WEIGHTS else tape_dtype(f)
