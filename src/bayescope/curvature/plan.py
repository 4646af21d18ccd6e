"""The plan of a run: what it will take in memory, before it starts."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Unpack, final

import torch
from torch import Tensor, nn

from bayescope import checks
from bayescope.curvature.fallbacks import Fallback, fallbacks_of
from bayescope.curvature.footprint import POSTERIOR, Footprint
from bayescope.curvature.hessian import COLUMNS
from bayescope.curvature.kinds import Observations
from bayescope.curvature.options import (
    DENSE,
    DIAGONAL,
    FACTORS,
    SUPPORTED,
    CurvatureKeywords,
    CurvatureOptions,
    block_indices,
    output_factors,
)
from bayescope.errors import MemoryBudgetError
from bayescope.likelihoods import Likelihood, read_targets, resolve
from bayescope.memory import free_memory, readable
from bayescope.module_copies import twin
from bayescope.network.batches import Batches
from bayescope.network.forward import reading
from bayescope.network.guard import check_readable
from bayescope.network.inputs import take_rows
from bayescope.network.network import Network
from bayescope.network.weights import LargestVariance, largest_magnitude
from bayescope.network.wrappers import unwrapped
from bayescope.precision import STRUCTURES
from bayescope.precision.structure import FLOAT64, Bytes, Sizes, Structure
from bayescope.processes import alone
from bayescope.tape.tape import BLOCK_BYTES

# The cotangents at the widest part of a network that are there at once: what a processor's cache holds, more or less.
# Convolutions read in larger chunks took nearly twice as long. A GPU is filled by larger ones alone.
CHUNK_BYTES = 8 * 2**20
DEVICE_CHUNK_BYTES = 512 * 2**20
# Fewer rows use matrix products badly: the Gram matrices of a ResNet-18 took 1.6 times as long by 2 images as by 16.
FEW_ROWS = 32
# Roots of Λ, of which the cotangents are the columns, take at most so much, or are those of one row.
ROOT_BYTES = 128 * 2**20
# Up to so many outputs a root is built to see its shape; beyond them it is run through without values.
FEW_OUTPUTS = 64


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
            size = readable(self.reading_bytes)
            return (
                f"The exact curvature of a row has a cotangent for each output and takes {size} to read: "
                "curvature='fisher' takes one sampled label in their place. "
            )
        return ""

    def summary(self) -> str:
        """All the numbers in lines: what is random, how much is read at once, and the bytes of each structure."""
        lines = [
            f"Plan for the structure {self.structure!r} of the curvature {self.curvature!r}",
            f"  random weights       {self.weights:,} of {self.parameters:,} parameters",
            f"  at once              {self.rows:,} rows, {self.cotangents:,} cotangents",
            f"  checking the reading {readable(self.tracing_bytes)}",
            f"  reading a batch      {readable(self.reading_bytes)}, beside sums of {readable(self.sums_bytes)}",
            f"  ending the sums      {readable(self.finishing_bytes)}",
            f"  the curvature        {readable(self.curvature_bytes)}",
            f"  the posterior        {readable(self.posterior_bytes)}",
            f"  a copy of the module {readable(self.copy_bytes)}",
            f"  the fit in all       {readable(self.bytes)} of {readable(self.budget)}: "
            f"{'fits' if self.fits else 'does not fit'}",
            f"  predicting a batch   {readable(self.prediction_bytes)}, its variances alone "
            f"{readable(self.variance_bytes)}",
        ]
        if self.fallbacks:
            lines += ["  parts in another structure"]
            lines += [f"    {name}: {what}" for name, what in self.fallbacks.items()]
        lines += ["  all structures"]
        lines += [self._line(name, size) for name, size in self.alternatives.items()]
        if self.output_factors:
            lines += [
                f"  output factors of 'kfac', the largest of which is {readable(self.output_factor_bytes)} if dense"
            ]
            lines += [self._line(name, size) for name, size in self.output_factors.items()]
        return "\n".join(lines)

    def _line(self, name: str, size: int) -> str:
        return f"    {name:<10} {readable(size):>8}{'' if size <= self.budget else '  does not fit'}"

    def __str__(self) -> str:
        return self.summary()


def plan(
    model: nn.Module,
    data: Any,
    *,
    likelihood: str | Likelihood,
    weights: Any = "all",
    **options: Unpack[CurvatureKeywords],
) -> Plan:
    """What a curvature of a network will take in memory, from one row read; the model is left unchanged.

    Args:
        model: any module with outputs f of shape (N, C) or (N, …, C).
        data: a DataLoader, a Dataset, or (X, y); one batch of it is read. Each process plans for itself.
        likelihood: a name or a likelihood.
        weights: which weights are random. The weights of `largest_variance` count, which they are does not.
        options: ``curvature``, ``structure`` and the other options of `CurvatureOptions`. A low rank without ``rank``
            and ``cutoff`` is planned with the rank that a cutoff begins with.

    Returns:
        The plan; `Plan.require` raises where it does not fit.

    Raises:
        OptionError: if a name is unknown.
        UnsupportedError: if the kind and the structure do not go together.
        InputError: if the data do not fit the model or the likelihood.
    """
    chosen, given = resolve(likelihood), CurvatureOptions.of("plan", options).checked(sized=False)
    check_readable(model := unwrapped(model))
    model = twin(model)
    with reading(model), alone():
        inputs, targets = Batches(data, model, batch_size=given.batch_size).first()
    weights = largest_magnitude(weights.count) if isinstance(weights, LargestVariance) else weights
    network = Network.trace(model, inputs, weights=weights)
    return plan_network(network, inputs, targets, chosen, given)


def plan_network(
    network: Network,
    inputs: Any,
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
    memory, kind = options.memory, options.curvature
    budget = free_memory(network.indices[0].device) // 2 if memory is None else int(min(memory, sys.maxsize))
    footprint, factors = Footprint.of(network, inputs), output_factors(options.output_factor, network.parts)
    blocks = [len(index) for index in block_indices(network, options.blocks)]
    most = None if cotangents is None else checks.count("cotangents", cotangents)
    work = _Work(network, footprint, kind, _total(network, inputs, targets, likelihood, kind), most, budget)

    def costs(structure: str, factors: Sequence[str]) -> _Costs:
        diagonal = [factor == DIAGONAL for factor in factors]
        return work.costs(
            structure, Sizes(network.parts, diagonal, network.dim, blocks, options.rank, footprint.itemsize)
        )

    structure, dense = STRUCTURES[options.structure], DENSE in factors
    found = costs(options.structure, factors)
    by_factor = {
        each: costs("kfac", (each,) * len(network.parts)).bytes for each in FACTORS if "kfac" in SUPPORTED[kind]
    }
    return Plan(
        structure=options.structure,
        curvature=kind,
        weights=network.dim,
        parameters=sum(parameter.numel() for parameter in network.module.parameters()),
        rows=found.chunk.rows,
        cotangents=found.at_once,
        tracing_bytes=found.tracing,
        curvature_bytes=found.structure.curvature,
        reading_bytes=found.reading,
        prediction_bytes=footprint.prediction(structure, head=network.head),
        budget=budget,
        fallbacks=fallbacks_of(network, options.structure),
        alternatives={name: costs(name, factors).bytes for name in SUPPORTED[kind]},
        posterior_bytes=found.structure.posterior,
        variance_bytes=footprint.variances(structure, dense=dense, head=network.head, head_rows=network.head_rows),
        output_factors=by_factor,
        output_factor_bytes=max((FLOAT64 * part.shape[1] ** 2 for part in network.parts if part.shape), default=0),
        sums_bytes=found.structure.sums,
        copy_bytes=found.copied,
        finishing_bytes=found.structure.finishing,
    )


# So many cotangents of a row are read at once where a posterior's predictions are compared with the network's.
COMPARED = 64


class _Costs(NamedTuple):
    """How a structure is read, and the bytes of its stages."""

    chunk: Footprint
    at_once: int
    tracing: int
    reading: int
    copied: int
    structure: Bytes

    @property
    def bytes(self) -> int:
        """The most that is held at once."""
        fitting = self.structure.sums + max(self.reading, self.structure.finishing)
        return self.copied + max(self.tracing, fitting, self.structure.curvature + self.structure.posterior)


@final
@dataclass(frozen=True)
class _Work:
    """What is read, whatever the structure.

    Attributes:
        network: as it was traced.
        footprint: its bytes for a batch.
        kind: of the curvature.
        total: the cotangents of a row.
        most: of them that may travel at once, where the caller says so.
        budget: bytes.
    """

    network: Network
    footprint: Footprint
    kind: str
    total: int
    most: int | None
    budget: int

    def costs(self, name: str, sizes: Sizes) -> _Costs:
        """What a structure of a network of these sizes takes."""
        network, footprint, structure = self.network, self.footprint, STRUCTURES[name]
        copied = sum(tensor.nbytes for tensor in (*network.module.parameters(), *network.module.buffers()))
        held = structure.bytes(sizes)
        held = held._replace(sums=held.sums + FLOAT64 * sizes.dim)  # the positions of the weights of each part
        chunk, at_once, taken = self._read(structure, sizes.diagonal_outputs, self.budget - copied - held.sums)
        # Laplace compares its predictions with the network's: it holds the tape of a row, and the same in the basis of
        # the factors.
        compared = min(footprint.classes, COMPARED)
        comparing = 0 if network.head else 2 * replace(footprint, rows=1).reading(compared, structure, 0)
        posterior = max(chunk.slope(), FLOAT64 * POSTERIOR * sizes.dim + held.posterior, comparing)
        tracing = footprint.tracing(head=network.head)
        return _Costs(chunk, at_once, tracing, taken, copied, held._replace(posterior=posterior))

    def _read(self, structure: Structure, diagonal: Sequence[bool], left: int) -> tuple[Footprint, int, int]:
        """The rows that are read at once, their cotangents at once, and the bytes of that, in what memory is left."""
        network, footprint, device = self.network, self.footprint, self.network.indices[0].device
        exact = self.kind == "ggn" and structure.moments
        total = self.total if self.most is None else min(self.total, self.most)
        if exact and network.head:
            chunk = replace(footprint, rows=min(footprint.rows, network.head_rows))
            return chunk, total, chunk.head(dense=structure.rotates and not all(diagonal))
        if exact and footprint.top is not None:
            wanted = footprint.outputs // footprint.classes * footprint.below_columns
            wanted = wanted if self.most is None else min(wanted, self.most)
            chunk, at_once = _at_once(footprint.below, wanted, footprint.below_columns, left, device)
            dense = structure.rotates and not diagonal[footprint.top[0]]
            taken = footprint.reading_below(chunk, at_once, structure, dense=dense)
            return replace(footprint, rows=chunk.rows), at_once, taken
        columns = self.total * footprint.classes // footprint.outputs if self.kind == "ggn" else 0  # of a root
        chunk, at_once = _at_once(footprint, total, columns, left, device)
        drawing = chunk.drawing() if self.kind == "fisher" else 0
        return chunk, at_once, chunk.reading(at_once, structure, chunk.root(columns)) + drawing


def _total(network: Network, inputs: Any, targets: Tensor, likelihood: Likelihood, curvature: str) -> int:
    """The cotangents of a row: the columns of the roots at all its positions."""
    if curvature == "hessian":
        return COLUMNS
    if curvature == "fisher":
        return 1
    f = network.record(take_rows(inputs, slice(0, 1))).outputs
    positions = f[0, ..., 0].numel()
    if curvature == "empirical_fisher":
        return positions
    first = Observations.read(likelihood, f, targets[:1], 0)
    return positions * _columns(likelihood, first.f[:1], first.y[:1])


def _columns(likelihood: Likelihood, f: Tensor, y: Tensor) -> int:
    """How many columns a root of Λ has, without its C² numbers where its operations can do without values."""
    if f.shape[-1] <= FEW_OUTPUTS:
        return likelihood.ggn_sqrt(f, y).shape[-1]
    return likelihood.ggn_sqrt(f.to("meta"), y.to("meta")).shape[-1]


def _at_once(footprint: Footprint, total: int, columns: int, left: int, device: torch.device) -> tuple[Footprint, int]:
    """The rows and the cotangents that are read at once: at least one of each, else what cache and memory allow.

    Rows go first, since a smaller batch makes its graph smaller too; but fewer than `FEW_ROWS` use matrix products
    badly, and then it is cotangents that are fewer.
    """
    chunk, block = (CHUNK_BYTES, BLOCK_BYTES) if device.type == "cpu" else (DEVICE_CHUNK_BYTES, DEVICE_CHUNK_BYTES)
    seeds = footprint.outputs * footprint.itemsize
    one = footprint.itemsize * max(footprint.outputs, *footprint.cotangents)  # of a row, at the widest part
    rows = min(footprint.rows, max(FEW_ROWS, chunk // (one * total)))
    rows = min(rows, max(1, ROOT_BYTES // max(1, 2 * footprint.root(columns) // footprint.rows)))
    most = min(chunk // (rows * one), block // (rows * seeds))
    room = (left - rows * footprint.held) // (rows * footprint.per_cotangent)
    cotangents = max(1, min(total, most, room))
    if cotangents == 1:
        room = left // (footprint.held + footprint.per_cotangent)
        rows = max(1, min(rows, max(FEW_ROWS, chunk // one), room))
    chunks, blocks = -(-total // cotangents), -(-footprint.rows // rows)
    return replace(footprint, rows=-(-footprint.rows // blocks)), -(-total // chunks)  # of like length
