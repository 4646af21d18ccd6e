"""The plan of a run: what it will take in memory, before it starts."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Unpack, final

import torch
from torch import Tensor, nn

from bayescope import checks, notebook
from bayescope.curvature.hessian import COLUMNS
from bayescope.curvature.kinds import BELOW_BYTES, DRAWN_TOGETHER, Observations, begins_below, below_columns
from bayescope.curvature.options import (
    DENSE,
    DIAGONAL,
    FACTORS,
    SUPPORTED,
    CurvatureKeywords,
    CurvatureOptions,
    Fallback,
    fallbacks_of,
    output_factors,
    structure_options,
)
from bayescope.errors import InputError, MemoryBudgetError
from bayescope.keywords import picked, takes
from bayescope.layers.output_choice import OutputChoice
from bayescope.likelihoods import Likelihood, LikelihoodName, read_targets
from bayescope.memory import free_memory, readable
from bayescope.module_copies import twin
from bayescope.network.batches import Batches, Data
from bayescope.network.forward import reading
from bayescope.network.guard import check_readable, unwrapped, with_output
from bayescope.network.inputs import Inputs, count_rows, map_tensors, take_rows, tensors
from bayescope.network.network import Network
from bayescope.network.positions import HEAD_COPIES
from bayescope.network.row_weights import likelihood_of_rows
from bayescope.network.trace import PROBES
from bayescope.network.weights import Choice, by_variance, largest_magnitude
from bayescope.precision import STRUCTURES
from bayescope.precision.structure import COPIES, FLOAT64, Structure
from bayescope.processes import alone
from bayescope.tape import LookupTape, OuterTape, StreamedTape
from bayescope.tape.tape import BLOCK_BYTES, CACHE_BYTES, DEVICE_BYTES

# The cotangents at the widest part of a network that are there at once: what a processor's cache holds, more or less.
# Convolutions read in larger chunks took nearly twice as long. A GPU is filled by larger ones alone.
CHUNK_BYTES = 8 * 2**20
DEVICE_CHUNK_BYTES = 512 * 2**20
# Fewer rows use matrix products badly: the Gram matrices of a ResNet-18 took 1.6 times as long by 2 images as by 16.
FEW_ROWS = 32
# Roots of Λ, of which the cotangents are the columns, take at most this many bytes, or are those of one row.
ROOT_BYTES = 128 * 2**20
# Up to this many outputs a root is built to see its shape; beyond them it is run through without values.
FEW_OUTPUTS = 64
# Numbers for each output of a row at a last layer: f, twice in float64, the softmax, Λ, and what is between.
HEAD_NUMBERS = 8
# The same before cotangents travel back: f in float64, and its log softmax.
OBSERVED = 4
# Vectors of the weights beside the curvature: the places of each part's weights, θ*, its gradient, and that of the log
# joint density while the Newton decrement is computed.
POSTERIOR = 4
# Numbers in float64 for each output of a prediction: mean and variance, and the integral over them.
INTEGRAL = 11
# U of one row and parameter after another goes through this many tensors of its size in a vectorised backward pass.
BACKWARD = 5
# This many cotangents of a row are read at once where a posterior's predictions are compared with the network's.
COMPARED = 64


@final
@dataclass(frozen=True)
class Plan:
    """What a fit and the predictions after it will take. Bytes are counted from sizes, those of a fit right to 50 %.

    Attributes:
        structure: the structure planned for.
        curvature: the kind.
        weights: P, the number of random weights.
        parameters: the number of all of the model's parameters.
        rows: how many rows of a batch are read at once.
        cotangents: K, how many travel through the network at once.
        tracing_bytes: the check against autograd on a few rows, before anything else is there.
        curvature_bytes: the curvature, its sum with a prior, and their factors or eigenvectors.
        reading_bytes: one batch while it is read for the curvature, or the curvature while it is made of the sums.
        prediction_bytes: one batch while the covariance of all its outputs is computed, after the fit.
        budget: the bytes that may be taken.
        fallbacks: by the name of the part, what a Kronecker structure gives it instead.
        alternatives: for each structure that the kind can have, the bytes of its fit.
        posterior_bytes: what `laplace` takes beside the curvature: the weights, their gradient, and the Newton
            decrement; or the batch whose gradient is read.
        variance_bytes: one batch while the variances of its outputs are computed, without their covariances.
        output_factors: the bytes of a fit of "kfac" with each output factor.
        output_factor_bytes: the largest dense output factor by itself, in float64: of C outputs, 8 C².
        sums_bytes: the sums over the data while they are read, from which the curvature is made.
        copy_bytes: the copy of the module that belongs to the posterior.
        finishing_bytes: what makes the curvature of the sums when all is read, beside them.
    """

    structure: str
    curvature: str
    weights: int
    parameters: int
    rows: int
    cotangents: int
    tracing_bytes: int
    curvature_bytes: int
    reading_bytes: int
    prediction_bytes: int
    budget: int
    fallbacks: Mapping[str, Fallback]
    alternatives: Mapping[str, int]
    posterior_bytes: int
    variance_bytes: int
    output_factors: Mapping[str, int]
    output_factor_bytes: int
    sums_bytes: int
    copy_bytes: int
    finishing_bytes: int

    @property
    def bytes(self) -> int:
        """The most that `laplace` takes at once, beside its module: what `fit_curvature` does, or the posterior."""
        return self.copy_bytes + max(self.fitting_bytes, self.curvature_bytes + self.posterior_bytes)

    @property
    def fitting_bytes(self) -> int:
        """The most that `fit_curvature` takes at once: the trace, or the sums with a batch or with what ends them."""
        return max(self.tracing_bytes, self.sums_bytes + max(self.reading_bytes, self.finishing_bytes))

    @property
    def fits(self) -> bool:
        """Whether that is within the budget."""
        return self.bytes <= self.budget

    def require(self) -> Plan:
        """The plan itself, if it fits.

        Raises:
            MemoryBudgetError: if it does not; the message names the structures that would.
        """
        if self.fits:
            return self
        fitting = [f"{name!r} ({readable(size)})" for name, size in self.alternatives.items() if size <= self.budget]
        advice = (
            f"Structures that fit: {', '.join(fitting)}."
            if fitting
            else "No structure fits: take fewer weights or a smaller batch_size, or raise memory=."
        )
        raise MemoryBudgetError(
            f"memory: expected at most {readable(self.budget)}, but the structure {self.structure!r} over "
            f"{self.weights:,} weights takes about {readable(self.bytes)}. {self._about_outputs()}{advice}"
        )

    def _about_outputs(self) -> str:
        """What to do about very many outputs, where it is they that do not fit."""
        diagonal, dense = (self.output_factors.get(name, 0) for name in (DIAGONAL, DENSE))
        if STRUCTURES[self.structure].rotates and diagonal <= self.budget < dense:
            return (
                f"Its largest output factor is {readable(self.output_factor_bytes)}: output_factor='diagonal' keeps "
                f"the diagonal alone ({readable(diagonal)} in all). "
            )
        if self.curvature == "ggn" and self.reading_bytes > self.budget:
            return (
                "The exact curvature of a row has a cotangent for each output and takes "
                f"{readable(self.reading_bytes)} to read: curvature='fisher' takes one sampled label in their place. "
            )
        return ""

    def summary(self) -> str:
        """All the numbers in lines: what is random, how much is read at once, and the bytes of each structure."""
        lines = [f"Plan for the structure {self.structure!r} of the curvature {self.curvature!r}"]
        lines += [f"  {name:<20} {value}" for name, value in self._facts()]
        if self.fallbacks:
            lines += ["  parts in another structure", *(f"    {k}: {what}" for k, what in self.fallbacks.items())]
        lines += ["  all structures", *self._lines(self.alternatives)]
        if self.output_factors:
            largest = readable(self.output_factor_bytes)
            lines += [f"  output factors of 'kfac', the largest of which is {largest} if dense"]
        return "\n".join([*lines, *self._lines(self.output_factors)])

    def _facts(self) -> list[tuple[str, str]]:
        variances, whether = readable(self.variance_bytes), "fits" if self.fits else "does not fit"
        return [
            ("random weights", f"{self.weights:,} of {self.parameters:,} parameters"),
            ("at once", f"{self.rows:,} rows, {self.cotangents:,} cotangents"),
            ("checking the reading", readable(self.tracing_bytes)),
            ("reading a batch", f"{readable(self.reading_bytes)}, beside sums of {readable(self.sums_bytes)}"),
            ("ending the sums", readable(self.finishing_bytes)),
            ("the curvature", readable(self.curvature_bytes)),
            ("the posterior", readable(self.posterior_bytes)),
            ("a copy of the module", readable(self.copy_bytes)),
            ("the fit in all", f"{readable(self.bytes)} of {readable(self.budget)}: {whether}"),
            ("predicting a batch", f"{readable(self.prediction_bytes)}, its variances alone {variances}"),
        ]

    @notebook.shows
    def _repr_html_(self) -> str:
        facts, (title, *lines) = self._facts(), self.summary().splitlines()
        return notebook.card(title, notebook.facts(facts), notebook.text("\n".join(lines[len(facts) :])))

    def _lines(self, sizes: Mapping[str, int]) -> list[str]:
        whether = {name: "" if size <= self.budget else "  does not fit" for name, size in sizes.items()}
        return [f"    {name:<10} {readable(size):>8}{whether[name]}" for name, size in sizes.items()]

    def __str__(self) -> str:
        return self.summary()


@takes(CurvatureKeywords, CurvatureOptions, OutputChoice)
def plan(
    model: nn.Module,
    data: Data,
    *,
    likelihood: LikelihoodName | Likelihood,
    weights: Choice = "all",
    **options: Unpack[CurvatureKeywords],
) -> Plan:
    """What a curvature of a network will take in memory, from one row read; the model is left unchanged.

    Args:
        model: any module with outputs f of shape (N, C) or (N, …, C).
        data: a DataLoader, a Dataset, or (X, y); one batch of it is read. Each process plans for itself.
        likelihood: a name or a likelihood.
        weights: which weights are random. The weights of `largest_variance` count, which they are does not.
        options: as `CurvatureOptions` describes them: ``curvature``, ``structure``, ``blocks``, ``rank``, ``cutoff``,
            ``sharing``, ``output_factor``, ``batch_size`` and ``memory``. A low rank without ``rank``
            and ``cutoff`` is planned with the rank that a cutoff begins with.
            ``output`` and ``classes_dim`` say which part of what the module returns is f: see `OutputChoice`.

    Returns:
        The plan; `Plan.require` raises where it does not fit.

    Raises:
        OptionError: if a name is unknown.
        UnsupportedError: if the kind and the structure do not go together.
        InputError: if the data do not fit the model or the likelihood.
    """
    given = picked(CurvatureOptions, options).checked(sized=False)
    check_readable(model := unwrapped(with_output(model, options)))
    model = twin(model)
    with reading(model), alone():
        chosen = likelihood_of_rows(likelihood, data)
        inputs, targets = Batches(data, model, batch_size=given.batch_size).first()
    weights = largest_magnitude(weights.count) if by_variance(weights) else weights
    network = Network.trace(model, inputs, weights=weights)
    return plan_network(network, inputs, targets, chosen, given)


def plan_network(
    network: Network,
    inputs: Inputs,
    targets: Tensor,
    likelihood: Likelihood,
    options: CurvatureOptions,
    *,
    cotangents: int | None = None,
) -> Plan:
    """The plan for a network that is traced already, from its first batch.

    Args:
        network: as it was traced.
        inputs: the first batch.
        targets: its labels.
        likelihood: p(y∣f).
        options: of the curvature.
        cotangents: the most that may travel at once; ``None`` for as many as memory and `BLOCK_BYTES` of seeds allow.

    Raises:
        InputError: if the labels of the batch do not fit the outputs.
    """
    read_targets(likelihood, targets, (len(targets), *network.treatment.outputs))
    memory, module = options.memory, network.module
    budget = free_memory(network.indices[0].device) // 2 if memory is None else int(min(memory, sys.maxsize))
    footprint = Footprint.of(network, inputs, targets, likelihood, options.curvature)
    factors = output_factors(options.output_factor, network.parts)
    most = sys.maxsize if cotangents is None else checks.count("cotangents", cotangents)
    copied = sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))

    def planned(name: str, factors: Sequence[str]) -> Plan:
        structure, diagonal = STRUCTURES[name], [factor == DIAGONAL for factor in factors]
        held = structure.bytes(structure_options(network, options, diagonal), footprint.itemsize)
        sums = held.sums + FLOAT64 * network.dim  # with the positions of the weights of each part
        chunk, at_once, reading = footprint.read(structure, diagonal, most, budget - copied - sums)
        # Laplace compares its predictions with the network's: it holds the tape of a row, and the same in the basis of
        # the factors.
        compared = replace(footprint, rows=1).reading(min(footprint.classes, COMPARED), structure, 0)
        comparing = 0 if network.head else 2 * compared
        return Plan(
            structure=name,
            curvature=options.curvature,
            weights=network.dim,
            parameters=sum(parameter.numel() for parameter in module.parameters()),
            rows=chunk.rows,
            cotangents=at_once,
            tracing_bytes=footprint.tracing(),
            curvature_bytes=held.curvature,
            reading_bytes=reading,
            prediction_bytes=footprint.prediction(structure),
            budget=budget,
            fallbacks=fallbacks_of(network, name),
            alternatives={},
            posterior_bytes=max(chunk.slope(), FLOAT64 * POSTERIOR * network.dim + held.posterior, comparing),
            variance_bytes=footprint.variances(structure, dense=DENSE in factors),
            output_factors={},
            output_factor_bytes=max((FLOAT64 * part.shape[1] ** 2 for part in network.parts if part.shape), default=0),
            sums_bytes=sums,
            copy_bytes=copied,
            finishing_bytes=held.finishing,
        )

    alternatives = {name: planned(name, factors).bytes for name in SUPPORTED[options.curvature]}
    each = {factor: (factor,) * len(network.parts) for factor in FACTORS if "kfac" in alternatives}
    by_factor = {factor: planned("kfac", factors).bytes for factor, factors in each.items()}
    return replace(planned(options.structure, factors), alternatives=alternatives, output_factors=by_factor)


def _count_cotangents(likelihood: Likelihood, curvature: str, f: Tensor, targets: Tensor) -> int:
    """The cotangents of a row: the columns of the roots at all its positions."""
    if curvature in ("hessian", "fisher"):
        return COLUMNS if curvature == "hessian" else 1
    positions = f[0, ..., 0].numel()
    if curvature == "empirical_fisher":
        return positions
    first = Observations.read(likelihood, f, targets[:1], 0)
    # Of many outputs the root is made without its C² numbers, where its operations can do without values.
    device = f.device if f.shape[-1] <= FEW_OUTPUTS else "meta"
    return positions * likelihood.ggn_sqrt(first.f[:1].to(device), first.y[:1].to(device)).shape[-1]


@final
@dataclass(frozen=True)
class Footprint:
    """The sizes that every count of bytes is made of.

    Attributes:
        network: as it was traced.
        curvature: the kind.
        every: the cotangents of a row, where all travel at once.
        rows: N, the rows of a batch.
        outputs: the entries of one row's output, S C.
        classes: C.
        itemsize: the bytes of a number in the passes.
        native: the bytes of a number in the network.
        held: the bytes that a forward pass holds of each row for the backward one.
        activations: per part, the entries of a of one row.
        cotangents: per part, the entries of g of one row and one cotangent.
        computed: per part, the entries of U of one row and one cotangent, where they are computed row by row.
        top: the place and the inputs H of the part below which the cotangents of the exact GGN begin where parts are
            summed apart.

    A part that nothing depends on has no positions: there is nothing of it.
    """

    network: Network
    curvature: str
    every: int
    rows: int
    outputs: int
    classes: int
    itemsize: int
    native: int
    held: int
    activations: tuple[int, ...]
    cotangents: tuple[int, ...]
    computed: tuple[int, ...]
    top: tuple[int, int] | None

    @classmethod
    def of(cls, network: Network, inputs: Inputs, targets: Tensor, likelihood: Likelihood, curvature: str) -> Footprint:
        """Reads one row of a batch, with one cotangent."""
        one = map_tensors(torch.clone, take_rows(inputs, slice(0, 1)))
        stored = {parameter.untyped_storage().data_ptr() for parameter in network.module.parameters()}
        kept: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in stored:
                kept[storage.data_ptr()] = max(kept.get(storage.data_ptr(), 0), storage.nbytes())
            return tensor.detach()

        try:
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                recording = network.record(one)
        except InputError:  # torch.func.grad inside of the network allows no such hooks; then nothing is recorded
            recording = network.record(one)
        f, top = recording.outputs, recording.top if begins_below(recording) else None
        tapes = recording.tape(torch.ones_like(f)[None]).parts
        activations, cotangents, computed = [], [], []
        for part, tape in zip(network.parts, tapes, strict=True):
            positions = tape.positions if isinstance(tape, OuterTape | StreamedTape | LookupTape) else 1
            groups, outputs, width = part.shape or (1, part.dim, 0)
            by_row = part.kind in ("per-row", "derived")  # U of all of the parameters, also of weights a mask has fixed
            activations.append(positions * groups * (1 if part.kind == "embedding" else width))
            cotangents.append(0 if by_row else positions * groups * outputs)
            computed.append(sum(network.module.get_parameter(name).numel() for name in part.parameters) * by_row)
        given = sum(tensor.nbytes for tensor in tensors(one))
        return cls(
            network, curvature, _count_cotangents(likelihood, curvature, f, targets), count_rows(inputs),
            f[0].numel(), f.shape[-1], f.element_size(), next(network.module.parameters()).element_size(),
            sum(kept.values()) + given, tuple(activations), tuple(cotangents), tuple(computed),
            None if top is None else (top.part, top.matrix.shape[1]),
        )  # fmt: skip

    def read(self, structure: Structure, diagonal: Sequence[bool], most: int, left: int) -> tuple[Footprint, int, int]:
        """The rows that are read at once, their cotangents at once, at most ``most``, and the bytes of that."""
        exact = self.curvature == "ggn" and structure.moments
        if exact and self.network.head:
            chunk = replace(self, rows=min(self.rows, self.network.head_rows))
            return chunk, min(self.every, most), chunk.reading_head(dense=structure.rotates and not all(diagonal))
        if exact and self.top is not None:
            wanted = min(most, self.outputs // self.classes * self.below_columns)
            chunk, at_once = self.below.at_once(wanted, self.below_columns, left)
            dense = structure.rotates and not diagonal[self.top[0]]
            taken = self.reading_below(chunk, at_once, structure, dense=dense)
            return replace(self, rows=chunk.rows), at_once, taken
        columns = self.every * self.classes // self.outputs if self.curvature == "ggn" else 0  # of a root
        chunk, at_once = self.at_once(min(self.every, most), columns, left)
        drawing = chunk.drawing() if self.curvature == "fisher" else 0
        return chunk, at_once, chunk.reading(at_once, structure, chunk.root(columns)) + drawing

    def at_once(self, total: int, columns: int, left: int) -> tuple[Footprint, int]:
        """The rows and the cotangents that are read at once: at least one of each, else what cache and memory allow.

        Rows go first, since a smaller batch makes its graph smaller too; but fewer than `FEW_ROWS` use matrix products
        badly, and then it is cotangents that are fewer.
        """
        chunk, block = (CHUNK_BYTES, BLOCK_BYTES) if self.on_cpu else (DEVICE_CHUNK_BYTES, DEVICE_CHUNK_BYTES)
        seeds = self.outputs * self.itemsize
        one = self.itemsize * max(self.outputs, *self.cotangents)  # of a row, at the widest part
        rows = min(self.rows, max(FEW_ROWS, chunk // (one * total)))
        rows = min(rows, max(1, ROOT_BYTES // max(1, 2 * self.root(columns) // self.rows)))
        most = min(chunk // (rows * one), block // (rows * seeds))
        room = (left - rows * self.held) // (rows * self.per_cotangent)
        cotangents = max(1, min(total, most, room))
        if cotangents == 1:
            room = left // (self.held + self.per_cotangent)
            rows = max(1, min(rows, max(FEW_ROWS, chunk // one), room))
        chunks, blocks = -(-total // cotangents), -(-self.rows // rows)
        return replace(self, rows=-(-self.rows // blocks)), -(-total // chunks)  # of like length

    @property
    def on_cpu(self) -> bool:
        return self.network.indices[0].device.type == "cpu"

    @property
    def below(self) -> Footprint:
        """What is left where cotangents begin at the inputs of the last layer, in the place of the outputs."""
        assert self.top is not None
        top, width = self.top
        cotangents = tuple(0 if place == top else g for place, g in enumerate(self.cotangents))
        return replace(
            self, outputs=self.outputs // self.classes * width, classes=width, cotangents=cotangents, top=None
        )

    @property
    def below_columns(self) -> int:
        """The columns of a root at the inputs of the last layer, for each position."""
        return below_columns(self.classes, self.below.classes)

    def reading_below(self, below: Footprint, cotangents: int, structure: Structure, *, dense: bool) -> int:
        """One batch whose cotangents begin below the last layer, which is read as by `reading_head`.

        Args:
            below: what is left there, of as many rows as are read at once.
            cotangents: how many travel at once.
            structure: of the curvature.
            dense: whether Σ Λ is summed, and not its diagonal alone.
        """
        one = 2 * FLOAT64 * self.classes * below.classes
        observations = below.rows * self.outputs // self.classes
        reduced = self.below_columns < self.classes  # by WᵀΛW in float64
        reducing = reduced * min(observations * one, max(BELOW_BYTES, one))
        outputs = below.rows * HEAD_NUMBERS * self.outputs * self.itemsize
        read = below.reading(cotangents, structure, below.root(self.below_columns), reducing)
        return read + outputs + 2 * dense * self.classes**2 * self.itemsize

    def tracing(self) -> int:
        """A sum of the gradients of a few rows, by autograd and from the tape, while the two are compared.

        Each row has cotangents that are zero in the others, at the outputs and at every part.
        """
        travelling = 0 if self.network.head else 2 * max(self.cotangents)
        spread = PROBES * self.native * (2 * self.outputs + sum(self.cotangents) + travelling)
        places = 3 * FLOAT64  # of each weight: in the flat vector, in the order of its part, and by both
        sums = self.network.dim * (2 * self.itemsize + places)
        return sums + PROBES * (spread + self.held)

    def reading(self, cotangents: int, structure: Structure, root: int, reducing: int = 0) -> int:
        """One batch and this many of its cotangents: the graph, g of every part, and what is made of them.

        Args:
            cotangents: how many travel at once.
            structure: of the curvature.
            root: the bytes of the root of Λ that the cotangents are columns of.
            reducing: what is there besides while that is found.
        """
        each = self.rows * cotangents
        graph = self.rows * (self.held + OBSERVED * self.outputs * self.itemsize)
        converted = self.native != self.itemsize
        inputs = converted * self.rows * self.held * self.itemsize // self.native  # a in the dtype of the sums
        carried = each * self.itemsize * (sum(self.cotangents) + self.outputs)
        travelling = each * self.native * max(self.cotangents)
        worked = max(travelling, self._written(cotangents, structure) + self._by_rows(self.rows, cotangents))
        return graph + max(2 * root + reducing, root + inputs + carried + worked)  # a root is joined from its blocks

    def drawing(self) -> int:
        """Labels being drawn, for this many observations at a time whatever the batch."""
        observations = self.rows * self.outputs // self.classes
        padded = -(-observations // DRAWN_TOGETHER) + 1
        return DRAWN_TOGETHER * self.classes * (padded * self.itemsize + OBSERVED * FLOAT64)

    def root(self, columns: int) -> int:
        """The root of Λ of one batch, with this many columns, from which chunks of cotangents are taken."""
        return self.rows * self.outputs * columns * self.itemsize

    def reading_head(self, *, dense: bool) -> int:
        """One batch at a last layer read through the moments of Λ: through Σ Λ, or its diagonal alone."""
        numbers = self.activations[0] + HEAD_NUMBERS * self.outputs
        return self.rows * (self.held + numbers * self.itemsize) + 2 * dense * self.classes**2 * self.itemsize

    def slope(self) -> int:
        """A batch and its gradient in the weights, with Σ over the batches."""
        return self.rows * (self.held + HEAD_NUMBERS * self.outputs * self.itemsize) + self.network.dim * (
            self.itemsize + FLOAT64
        )

    def variances(self, structure: Structure, *, dense: bool) -> int:
        """The variances of the outputs of one batch, as `Network.latent_variance` computes them, and an integral."""
        answers = INTEGRAL * FLOAT64 * self.rows * self.outputs
        if not self.network.head:
            return self.prediction(structure) - self.rows * FLOAT64 * self.outputs * self.classes + answers
        rows = min(self.rows, self.network.head_rows)
        piece = rows * (self.held + self.itemsize * (self.activations[0] + HEAD_COPIES * self.outputs))
        turned = structure.rotates and dense
        basis = COPIES * turned * self.classes**2 * self.itemsize
        return answers + piece + basis + self.network.dim * (FLOAT64 + self.itemsize)

    def prediction(self, structure: Structure) -> int:
        """The covariance of the outputs of one batch, as `Network.latent_covariance` computes it.

        Some rows at a time, with the cotangents of a chunk of positions at once (all of them, where outputs are not
        dense), are turned into the structure's basis.
        """
        positions = self.outputs // self.classes
        limits = self.network.limits
        together = self.classes * max(1, min(positions, limits.cotangents // self.classes))
        each = self.itemsize * (self.outputs + sum(self.cotangents) + sum(self.computed))
        if not self.network.head and positions == 1:
            together = min(together, max(1, limits.cotangent_bytes // each))
        pulled = 0 if self.network.head else together  # at a last layer the cotangents are the same for all rows
        turned = structure.rotates * self._widest(pulled)
        seeded = pulled * (sum(self.cotangents) + sum(self.computed))
        rows = max(1, min(self.rows, limits.piece_bytes // max(1, seeded * self.itemsize)))
        reading = self.held + pulled * self.per_cotangent
        worked = rows * (reading + self.itemsize * (turned + COPIES * together**2))
        row = self.itemsize * self._widest(pulled)  # unfolded inputs, or U itself, a block of rows at a time
        blocks = min(self.rows * row, max(row, BLOCK_BYTES)) + self._by_rows(rows, together)
        return worked + blocks + self.rows * FLOAT64 * positions * self.classes**2

    @property
    def per_cotangent(self) -> int:
        """Bytes for each row and cotangent: the seed, g of every part, and the one that a backward pass works on."""
        return self.itemsize * (self.outputs + sum(self.cotangents) + max(self.cotangents))

    def _written(self, cotangents: int, structure: Structure) -> int:
        """What the rows of a tape are written out to while their sums are taken."""
        if structure.writes == "jacobian":
            rows = max(1, min(self.rows, BLOCK_BYTES // (FLOAT64 * cotangents * self.network.dim)))
            # U, that of its widest part before it is placed, and U in float64 where it is not so already.
            widest = max(part.dim for part in self.network.parts)
            copies = self.network.dim + max(widest, (self.itemsize != FLOAT64) * 2 * self.network.dim)
            return self.itemsize * cotangents * rows * copies
        numbers = self._widest(cotangents)
        if structure.writes == "squares":
            # Where a row has many positions its U is written out; elsewhere products of a and g are.
            each = zip(self.network.parts, self.cotangents, strict=True)
            numbers += cotangents * max(
                (
                    part.dim
                    for part, g in each
                    if part.shape and part.kind != "embedding" and g > 2 * cotangents * part.shape[0] * part.shape[1]
                ),
                default=0,
            )
        row = self.itemsize * numbers
        return min(self.rows * row, max(row, min(BLOCK_BYTES, CACHE_BYTES) if self.on_cpu else DEVICE_BYTES))

    def _widest(self, cotangents: int) -> int:
        """The numbers of a row at the widest part, with this many cotangents."""
        return max(a + cotangents * g for a, g in zip(self.activations, self.cotangents, strict=True))

    def _by_rows(self, rows: int, cotangents: int) -> int:
        """What goes into U of a part that is read row by row: for a block of rows, or for one that takes more."""
        row = cotangents * max(self.computed)
        return BACKWARD * self.itemsize * row * max(1, min(rows, BLOCK_BYTES // max(1, FLOAT64 * row)))
