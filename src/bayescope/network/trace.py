"""The trace: a network run on a few rows, to find out how each of its random weights can be read, and to check that.

Nothing is taken on trust. The rows have to be independent; the cotangents of each site have to tell the rows apart; and
the tape put together from the sites has to give the gradients that plain automatic differentiation gives.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch
from torch import Tensor, nn

from bayescope.errors import InputError, UnsupportedError
from bayescope.network.forward import cotangents, forward, owned, reading
from bayescope.network.inputs import (
    Inputs,
    call,
    count_rows,
    explained,
    first_not_finite,
    map_tensors,
    take_rows,
    tensors,
)
from bayescope.network.interception import Args, Function, Kwargs, observed
from bayescope.network.notes import ChangedInPlaceError, Computing
from bayescope.network.parts import BatchReading, Derived, WeightPart, composed, last_layer, make_parts, starts
from bayescope.network.recording import Treatment, autocast_now, checked_outputs, tape_dtype
from bayescope.network.rowwise import rowwise
from bayescope.network.sites import Layout, Site, WeightView, layouts, row_folds
from bayescope.network.vectorising import dense
from bayescope.network.weights import Choice, Weights
from bayescope.precision.structure import PartInfo

# The rows, spread over the batch and out of order: a network that sorts them does not leave them where they are.
ORDER = (2, 0, 4, 1, 3)
PROBES = len(ORDER)
# Fewer rows, on which each layout has to hold as well: rows in chunks of five, or filled up to ten, have none.
FEWER = 3

UNSEEN = "it is not seen where it is used"
GROWS = "what is computed from it depends on the number of rows"
CHANGED = "a copy of it is changed in place"
UNRECORDED = "the calls to torch cannot be recorded"

NAME_THEM = "Name the weights that are to be random (weights=...): those that are named can be read row by row."

# What two ways of computing one number may differ by: relative to its own size, and the share of the largest of all
# gradients below which a gradient counts as rounding noise (the bias of a key in attention has gradient zero).
TOLERANCES = {torch.float64: (1e-8, 1e-3), torch.float32: (1e-3, 1e-2)}
COARSE = (5e-2, 0.3)


def rounding(f: Tensor) -> float:
    """What two ways of computing one number may differ by, relative to its size, for outputs f."""
    relative = (COARSE if _coarse(f) else TOLERANCES[f.dtype])[0]
    return 10 * relative if f.device.type == "cuda" and f.dtype == torch.float32 else relative  # TF32


def _coarse(f: Tensor) -> bool:
    return torch.is_autocast_enabled(f.device.type) or f.dtype not in TOLERANCES


def trace(module: nn.Module, inputs: Inputs, choice: Choice) -> Treatment:
    """Runs the network on a few rows of a batch and settles how it is read.

    Raises:
        InputError: if the rows are not independent, or f has another shape than (N, ..., C).
        UnsupportedError: if a parameter's gradients cannot be read row by row.
    """
    with reading(module):
        probe = Probe.of(module, inputs)
        weights = Weights.select(module, choice, probe.last_layer)
        reference = probe.gradients(weights)
        reasons: dict[str, str] = {}
        computing = Computing()
        while True:  # each round leaves at least one parameter to a simpler reading
            try:
                treatment, refused, joined = probe.treat(weights, reference, reasons, computing)
                if not refused:
                    return _settled(treatment, reasons, next(module.parameters()).device)
                joined = joined - computing.direct
            except ChangedInPlaceError as error:
                refused, joined = {str(error): CHANGED}, frozenset()
                if str(error) not in computing.followed:
                    computing = replace(computing, followed=computing.followed | {str(error)})
                    continue
            except UnsupportedError as error:
                if len(reasons) == len(weights.names):
                    raise
                refused = {name: _unrecorded(error) for name in weights.names if name not in reasons}
                joined = frozenset(refused) - computing.direct
            computing = replace(computing, direct=computing.direct | (joined & refused.keys()))
            _demote(reasons, {name: reason for name, reason in refused.items() if name not in joined})


def _unrecorded(error: UnsupportedError) -> str:
    lines = str(error.__cause__ or error).strip().splitlines()
    return f"{UNRECORDED}: {lines[0] if lines else type(error.__cause__).__name__}"


def _demote(reasons: dict[str, str], refused: Mapping[str, str]) -> None:
    for name, reason in refused.items():
        if name in reasons:
            raise UnsupportedError(
                f"weights: the gradients of {name!r} could not be read row by row ({reasons[name]}). "
                "Leave it out of `weights`, or write the layer in calls to torch."
            )
        reasons[name] = reason


@final
@dataclass(frozen=True, eq=False)
class Probe:
    """A few rows of a batch, and random cotangents of which the k-th is zero but in row k.

    Attributes:
        module: the network.
        inputs: `PROBES` rows; those of a smaller batch are repeated.
        f: the network's output, with the graph of its own parameters.
        seeds: shape (N, N, ..., C).
        overwrites_inputs: whether the network changes what it is given.
        dtype: the coarsest that the network computes in, which may cast inside.
    """

    module: nn.Module
    inputs: Inputs
    f: Tensor
    seeds: Tensor
    overwrites_inputs: bool
    dtype: torch.dtype

    @classmethod
    def of(cls, module: nn.Module, inputs: Inputs) -> Probe:
        """Runs the network as it is.

        Raises:
            InputError: if the network cannot be run on the batch, the outputs are not finite or not of shape
                (N, ..., C), or the rows are not independent.
        """
        rows = count_rows(inputs)
        if rows == 0:
            raise InputError("inputs: expected at least one row, got none.")
        chosen = [place * rows // PROBES for place in ORDER]
        batch, inputs = inputs, map_tensors(lambda tensor: tensor.detach()[chosen], inputs)
        run_on = owned(inputs, copy=True)
        before = [tensor._version for tensor in tensors(run_on)]
        dtypes: set[torch.dtype] = set()  # of what depends on the weights: norms of language models are in float32

        def note(_: Function, __: Args, ___: Kwargs, result: object) -> None:
            if isinstance(result, Tensor) and result.requires_grad:
                dtypes.add(result.dtype)

        with torch.enable_grad(), explained(module, batch), observed(note):
            f = checked_outputs(call(module, run_on), PROBES)
        if not f.isfinite().all():
            row = first_not_finite(batch)
            culprit = "" if row is None else f", as are the inputs, first in row {row} of the data"
            raise InputError(
                f"model: expected finite outputs, got NaN or infinite ones{culprit}. Check the data first."
            )
        wrote = before != [tensor._version for tensor in tensors(run_on)]
        seeds = torch.zeros(PROBES, *f.shape, dtype=f.dtype, device=f.device)
        generator = torch.Generator().manual_seed(0)
        for row in range(PROBES):
            seeds[row, row] = torch.randn(f.shape[1:], generator=generator).to(f)
        coarsest = max({f.dtype, *dtypes}, key=lambda dtype: torch.finfo(dtype).eps)
        probe = cls(module, inputs, f, seeds, wrote, coarsest)
        probe.check_rows()
        return probe

    def check_rows(self) -> None:
        """Checks that f of a row by itself is that row of f."""
        limit = self.tolerance[0] * max(1.0, float(self.f.detach().abs().max()))
        for row in range(PROBES):
            one = owned(take_rows(self.inputs, slice(row, row + 1)), copy=True)
            try:
                with torch.no_grad():
                    alone = call(self.module, one)
            except (RuntimeError, ValueError) as error:
                raise InputError(f"model: expected a network that takes one row, got {error!r} from it.") from error
            together = self.f.detach()[row : row + 1]
            if alone.shape != together.shape or not (alone - together).abs().max() <= limit:
                raise InputError(
                    "model: expected rows that do not depend on each other, got an output that changes with the rest "
                    "of the batch, or from call to call. Leave out statistics of the batch and random numbers."
                )

    @property
    def tolerance(self) -> tuple[float, float]:
        """What rounding may do, in the coarsest dtype at work."""
        inside = COARSE if _coarse(self.f) else TOLERANCES.get(self.dtype, COARSE)
        return max(rounding(self.f), inside[0]), inside[1]

    @cached_property
    def mixture(self) -> Tensor:
        """What rows and cotangents are weighted with before their gradients are summed, shape (N, K).

        No two weights are alike and none is small, so that a row or a cotangent in another's place changes the sum.
        One sum is compared and not N K rows: a network of many weights has no room for several times their number.
        """
        numbers = torch.arange(PROBES**2, dtype=torch.float64, device=self.f.device)
        return ((0.5 + numbers / 32) * (1 - 2 * (numbers % 2))).reshape(PROBES, PROBES)  # exact in bfloat16

    def gradients(self, weights: Weights) -> dict[str, Tensor]:
        """The gradient of the mixture of all seeds, by plain automatic differentiation, by name.

        Raises:
            InputError: if f depends on none of the weights.
            UnsupportedError: if torch cannot differentiate the network.
        """
        parameters = weights.parameters(self.module)
        mixed = torch.einsum("kn...,nk->n...", self.seeds, self.mixture.to(self.seeds))
        options = {"retain_graph": True, "allow_unused": True}
        gradients: Sequence[Tensor | None] = ()
        if self.f.requires_grad:
            try:
                gradients = torch.autograd.grad(self.f, list(parameters.values()), mixed, **options)
            except RuntimeError as error:  # such as activations that are needed and were changed in place
                reason = f"model: expected a network that torch can differentiate, got: {error}"
                raise UnsupportedError(reason) from error
        if all(gradient is None for gradient in gradients):
            raise InputError("weights: expected weights that the network's output depends on, got none.")
        pairs = zip(parameters.items(), gradients, strict=True)
        return {name: torch.zeros_like(value) if g is None else dense(g) for (name, value), g in pairs}

    def record(
        self,
        names: frozenset[str],
        overwritten: frozenset[Hashable] = frozenset(),
        rows: int = PROBES,
        computing: Computing | None = None,
    ) -> _Recorded:
        """The sites of some parameters, on all or the first of the rows.

        Raises:
            UnsupportedError: if the network fails under the recorder.
        """
        try:
            some = owned(take_rows(self.inputs, slice(rows)), copy=True)
            f, notes = forward(self.module, names, some, overwritten, computing)
        except RuntimeError as error:  # it has run by itself
            raise UnsupportedError(
                f"model: expected a network whose calls to torch can be recorded, got: {error} {NAME_THEM}"
            ) from error
        return _Recorded(f, notes.sites, self.seeds[:rows, :rows], notes.derived)

    def last_layer(self) -> list[str]:
        """The parameters of the last layer."""
        trainable = [name for name, parameter in self.module.named_parameters() if parameter.requires_grad]
        computing = Computing(direct=frozenset(trainable))
        try:
            recorded = self.record(frozenset(trainable), rows=1, computing=computing)
        except ChangedInPlaceError as error:
            raise UnsupportedError(
                f"weights: expected a last layer that can be found by where weights are used, got {str(error)!r}: "
                f"{CHANGED}. {NAME_THEM}"
            ) from error
        return last_layer([site for site, _ in recorded.used], trainable)

    def treat(
        self, weights: Weights, reference: Mapping[str, Tensor], reasons: Mapping[str, str], computing: Computing
    ) -> tuple[Treatment, dict[str, str], frozenset[str]]:
        """Records the network with some parameters left to the reading row by row, and sorts the others into parts.

        Args:
            weights: which are random.
            reference: the gradients that the tape has to give.
            reasons: why parameters are read row by row, by name.
            computing: what is noted of calls that take weights alone.

        Returns:
            How the sites are read; the parameters that this cannot hold, with the reasons; and those that others are
            computed from.
        """
        names = frozenset(weights.names) - reasons.keys()
        recorded = self.record(names, computing=computing)
        overwritten = frozenset(site.key for site in recorded.sites if site.overwritten)
        recorded = self.record(names, overwritten, computing=computing) if overwritten else recorded
        fewer = self.record(names, overwritten, FEWER, computing)
        folds = row_folds(self.module)
        found, agreed = recorded.layouts(folds), fewer.layouts(folds)
        settled: dict[Hashable, tuple[Layout, ...]] = {}
        refused: dict[str, str] = {}
        used = [site for site, _ in recorded.used]
        for site in used:
            pairs = zip(found[site.key], agreed.get(site.key, []), strict=False)
            common = [[layout for layout in some if layout in others] for some, others in pairs]
            if len(common) == len(found[site.key]) and all(len(some) == 1 for some in common):
                settled[site.key] = tuple(layout for (layout,) in common)
            else:
                refused |= {view.name: "rows cannot be separated where it is used" for view in site.views}
        known = {view.name for view in recorded.views}
        derived = {name: each for name, each in recorded.derived.items() if name in known}
        refused |= {name: GROWS for name, each in derived.items() if not each.is_like(fewer.derived.get(name))}
        joined = frozenset(name for each in derived.values() for name in each.leaves)
        sizes = {name: shape.numel() for name, shape in zip(weights.names, weights.shapes, strict=True)}
        met = {name: size for name, size in sizes.items() if name in known or name not in joined}
        met |= {name: each.shape.numel() for name, each in derived.items()}
        parts, overlapping = ((), {}) if refused else make_parts(met, used, reasons, derived)
        refused |= overlapping
        parts = parts if refused else composed(parts, derived, sizes)
        outputs = self.f[0].numel()
        numbers = outputs * sum(site.shape.numel() for site in used) // PROBES
        treatment = Treatment(
            weights, names, recorded.is_head(parts) and not weights.masks, parts, settled, overwritten,
            self.overwrites_inputs, numbers, self.f.shape[1:], computing,
        )  # fmt: skip
        if refused:
            real = {source: reason for name, reason in refused.items() for source in recorded.sources(name)}
        else:
            real = self.wrong(recorded, treatment, joined, reference, reasons)
        return treatment, real, joined

    def wrong(
        self,
        recorded: _Recorded,
        treatment: Treatment,
        joined: frozenset[str],
        reference: Mapping[str, Tensor],
        reasons: Mapping[str, str],
    ) -> dict[str, str]:
        """The parameters for which the tape gives other gradients than automatic differentiation."""
        weights = treatment.weights
        like = recorded.f.detach().to(tape_dtype(recorded.f))
        module, inputs, seeds, autocast = self.module, self.inputs, self.seeds, autocast_now(like.device.type)

        def by_row(names: Sequence[str], rows: slice) -> Tensor:
            with autocast():
                return rowwise(module, names, take_rows(inputs, rows), seeds[:, rows])

        read = BatchReading(
            rows=PROBES,
            outputs=PROBES,
            uses=treatment.uses(recorded.sites, recorded.gradients, PROBES, like.dtype),
            like=like,
            rowwise=by_row,
            derived=recorded.derived,
            passes=autocast,
        )
        sizes = [shape.numel() for shape in weights.shapes]
        found = like.new_zeros(sum(sizes))
        offsets = starts(dict(zip(weights.names, sizes, strict=True)))
        mixture = self.mixture[..., None]
        try:
            with torch.autocast(like.device.type, enabled=False):  # it is for the network's own products
                for part in treatment.parts:
                    places = part.positions(offsets).to(like.device)  # first: what they are made of takes as much again
                    found[places] = part.read(read).transpose_multiply(mixture)[:, 0].to(like)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if not joined - treatment.computing.direct:
                raise
            reason = f"what is computed from it cannot be differentiated by itself: {str(error).splitlines()[0]}"
            return dict.fromkeys(joined, reason)
        values = dict(zip(weights.names, found.split(sizes), strict=True))
        in_sites = {view.name for view in recorded.views} | joined
        # Where nothing is seen no rounding is either: in a coarse dtype all of a small gradient is within tolerance.
        unseen = [n for n in weights.names if (reasons[n] == UNSEEN if n in reasons else n not in in_sites)]
        missed = {name: UNSEEN for name in unseen if reference[name].any() and not values[name].any()}
        return self._differing(values, reference) | missed

    def _differing(self, found: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> dict[str, str]:
        """Those that differ by more than rounding."""
        relative, share = self.tolerance
        largest = {name: float(gradient.abs().max()) for name, gradient in reference.items()}
        floor = share * max(largest.values())
        return {
            name: "its gradients where it is seen in use are not all of its gradients"
            for name, value in found.items()
            if not (value - reference[name].reshape(value.shape)).abs().max() <= relative * max(largest[name], floor)
        }


@final
@dataclass(frozen=True, eq=False)
class _Recorded:
    f: Tensor
    sites: Sequence[Site]
    seeds: Tensor
    derived: Mapping[str, Derived]

    @property
    def views(self) -> list[WeightView]:
        """The random weights that f depends on, where they met the data."""
        return [view for site, _ in self.used for view in site.views]

    def sources(self, name: str) -> Iterable[str]:
        """The parameters that a weight is computed from, or its own name."""
        return self.derived[name].leaves if name in self.derived else (name,)

    @cached_property
    def gradients(self) -> Sequence[Tensor | None]:
        """The cotangents of the sites, (K, *site.shape)."""
        return cotangents(self.f, [site.target for site in self.sites], self.seeds)

    @property
    def used(self) -> list[tuple[Site, Tensor]]:
        """The sites that f depends on, with their cotangents."""
        return [(site, g) for site, g in zip(self.sites, self.gradients, strict=True) if g is not None]

    def layouts(self, folds: Sequence[str]) -> dict[Hashable, list[list[Layout]]]:
        """For each key of a site the layouts that each of its occurrences may have."""
        found: dict[Hashable, list[list[Layout]]] = {}
        for site, g in self.used:
            found.setdefault(site.key, []).append(layouts(g, site.lead, site.constant, folds))
        return found

    def is_head(self, parts: Sequence[WeightPart]) -> bool:
        """Whether all weights are in one linear site whose cotangents are the seeds themselves."""
        if len(self.sites) != 1 or len(parts) != 1 or parts[0].form is None:
            return False
        g, placed = self.gradients[0], parts[0].form.placed(self.seeds)
        return g is not None and placed is not None and g.shape == placed.shape and torch.equal(g, placed)


def _settled(treatment: Treatment, reasons: Mapping[str, str], device: torch.device) -> Treatment:
    """The treatment without the weights that a mask fixes, with the flat positions and descriptions of its parts."""
    weights = treatment.weights
    offsets = starts({name: shape.numel() for name, shape in zip(weights.names, weights.shapes, strict=True)})
    parts = list(treatment.parts)
    indices = [part.positions(offsets).to(device) for part in parts]
    if weights.masks:
        random = torch.cat([weights.mask(name).flatten() for name in weights.names]).to(device)
        place = random.cumsum(0) - 1
        kept = [random[index].nonzero().squeeze(-1) for index in indices]
        cut = [
            (part if len(some) == len(index) else part.selected(some), place[index[some]])
            for part, index, some in zip(parts, indices, kept, strict=True)
            if len(some)
        ]
        parts, indices = [part for part, _ in cut], [index for _, index in cut]
    infos = []
    for part, index, name in zip(parts, indices, _names(parts), strict=True):
        reason = next((reasons[parameter] for parameter in part.names if parameter in reasons), None)
        infos.append(PartInfo(name, part.names, part.kind, len(index), part.shape, reason))
    return replace(treatment, parts=tuple(parts), indices=tuple(indices), infos=tuple(infos))


def _names(parts: Sequence[WeightPart]) -> list[str]:
    """A name for each part: its module where that has one part, else its parameters, numbered where they are cut."""
    owners = [part.names[0].rpartition(".")[0] for part in parts]
    names = [
        owner if owner and owners.count(owner) == 1 else " + ".join(part.names)
        for owner, part in zip(owners, parts, strict=True)
    ]
    return [
        name if names.count(name) == 1 else f"{name} #{names[: place + 1].count(name)}"
        for place, name in enumerate(names)
    ]
