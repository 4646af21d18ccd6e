"""The curvature of a network's loss, before any prior, and the fit of it in as many passes as the structure takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Unpack, cast, final

import torch
from torch import Tensor, nn

from bayescope import checks
from bayescope.curvature.hessian import add_blocks, add_diagonal
from bayescope.curvature.options import (
    DENSE,
    DIAGONAL,
    CurvatureKeywords,
    CurvatureOptions,
    Fallback,
    fallbacks_of,
    output_factors,
    structure_options,
)
from bayescope.curvature.passes import Passes
from bayescope.curvature.plan import plan_network
from bayescope.keywords import picked, takes
from bayescope.layers.output_choice import OutputChoice
from bayescope.likelihoods import Likelihood, LikelihoodName
from bayescope.module_copies import twin
from bayescope.network.batches import Batches, Data
from bayescope.network.forward import reading
from bayescope.network.guard import check_readable, unwrapped, with_output
from bayescope.network.network import Network
from bayescope.network.priors import PriorPrecision, by_parameter, owners, resolved_prior
from bayescope.network.row_weights import likelihood_of_rows
from bayescope.network.shards import require_same_function, require_same_weights
from bayescope.network.weights import Choice, by_variance
from bayescope.precision import STRUCTURES, BlockPrecision, Precision
from bayescope.precision.structure import StructureReading, TapeSum
from bayescope.priors import Prior
from bayescope.process_state import outside_inference_mode
from bayescope.processes import collective, same
from bayescope.storage import stored


@stored("curvature")
@final
@dataclass(frozen=True, eq=False)
class Curvature:
    """The curvature of −Σ log p(y∣f) in the random weights of a network at their present values.

    Attributes:
        precision: the curvature of the data alone, shape (P, P): without a prior it is semidefinite at best.
        network: how the network was read; it holds the module.
        kind: "ggn", "fisher", "empirical_fisher" or "hessian".
        structure: "full", "block", "diagonal", "kfac", "ekfac" or "low_rank".
        rows: N, the number of rows read.
        log_likelihood: Σ log p(y∣f) over all of them, a float64 scalar.
        passes: how many times the data were read.
        fallbacks: by the name of the part, what the structure could not treat.
        at_once: the most rows that were read together; ``None`` for those of a batch.
        output_factors: by the name of the part, the output factor of a Kronecker structure where it is not dense.
    """

    precision: Precision
    network: Network
    kind: str
    structure: str
    rows: int
    log_likelihood: Tensor
    passes: int
    fallbacks: Mapping[str, Fallback]
    at_once: int | None = None
    output_factors: Mapping[str, str] = field(default_factory=dict)

    def with_prior(self, prior_precision: PriorPrecision, *, of: Precision | None = None) -> Precision:
        """The posterior precision: the curvature plus the prior's precision.

        Args:
            prior_precision: in any form that `network_prior` takes: a number; an array of shape (P,); a dict with a
                number for each parameter, module or glob; or a `Prior`. Tensors that require a gradient stay in the
                graph.
            of: the curvature at another temperature or noise; ``None`` for `precision`.

        Raises:
            InputTypeError: if it is no number or array of numbers.
            InputError: if a precision is not positive, or a parameter is named twice or not at all.
            OptionError: if a name in the dict stands for no random parameter.
            UnsupportedError: if the structure cannot take the prior's diagonal; the message lists those that can.
        """
        curved, weights = self.precision if of is None else of, self.network.weights
        device = self.network.indices[0].device
        rotated = isinstance(curved, BlockPrecision) and STRUCTURES[self.structure].rotates
        if rotated and isinstance(prior_precision, Mapping):
            owner = owners(prior_precision, weights)
            if all(len({owner[name] for name in part.parameters}) == 1 for part in self.network.parts):
                # a number for each block, whose eigenbasis stays
                first = torch.tensor([weights.names.index(part.parameters[0]) for part in self.network.parts])
                values = by_parameter(prior_precision, weights)
                return cast(BlockPrecision, curved).add_per_block(values[first.to(values.device)].to(device))
        resolved = resolved_prior(prior_precision, weights, device)
        if isinstance(resolved, Prior):
            return curved + resolved.structured(curved.dim)
        return curved.add_diagonal(resolved)

    def summary(self) -> str:
        """Which part of the network is treated how, and why where it is not as asked."""
        rows = [("part", "kind", "weights", "structure")]
        for part, index in zip(self.network.parts, self.network.indices, strict=True):
            fallback = self.fallbacks.get(part.name)
            factor = self.output_factors.get(part.name)
            name = self.structure if factor is None else f"{self.structure}, {factor} output factor"
            treated = name if fallback is None else str(fallback)
            rows.append((part.name, part.kind, f"{len(index):,}", treated))
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [
            f"  {name:<{widths[0]}}  {kind:<{widths[1]}}  {count:>{widths[2]}}  {treated}"
            for name, kind, count, treated in rows
        ]
        head = f"Curvature {self.kind!r} in the structure {self.structure!r} over {self.network.dim:,} weights"
        passes = f"{self.passes} {'pass' if self.passes == 1 else 'passes'}"
        data = f"  {self.rows:,} rows read in {passes}, log likelihood {float(self.log_likelihood):.4f}"
        return "\n".join([head, data, "", *lines])

    def __repr__(self) -> str:
        return self.summary()


@outside_inference_mode
@collective
@takes(CurvatureKeywords, CurvatureOptions, OutputChoice)
def fit_curvature(
    model: nn.Module,
    data: Data,
    *,
    likelihood: LikelihoodName | Likelihood,
    weights: Choice = "all",
    cotangents: int | None = None,
    generator: torch.Generator | int | None = None,
    progress: bool = False,
    **options: Unpack[CurvatureKeywords],
) -> Curvature:
    """The curvature of −Σ_n log p(y_n∣f(x_n)) in a network's random weights, at their present values.

    The network is read in eval mode and left unchanged. But for rounding, the result does not depend on the batch size,
    the order of the data, or how many cotangents travel at once.

    Under an initialised process group of torch.distributed every process calls it and reads its share of the rows (that
    of its `DistributedSampler`; of arrays that all of them have, a contiguous part). Sums travel, data do not; the
    result is the same on all processes, that of all the rows.

    Args:
        model: any module with outputs f of shape (N, C) or (N, …, C); of `DistributedDataParallel` the one inside.
        data: a DataLoader, a Dataset, or (X, y).
        likelihood: a name or a likelihood.
        weights: "all", "last_layer", names or globs, a mask, `largest_magnitude` or `largest_variance`.
        cotangents: the most cotangents that travel through the network at once; fewer take less memory.
        generator: draws the labels of "fisher" and the first vectors of "low_rank".
        progress: whether a bar is drawn.
        options: as `CurvatureOptions` describes them: ``curvature``, ``structure``, ``blocks``, ``rank``, ``cutoff``,
            ``sharing``, ``output_factor``, ``batch_size`` and ``memory``.
            ``output`` and ``classes_dim`` say which part of what the module returns is f: see `OutputChoice`.

    Returns:
        The curvature of the data alone; `Curvature.with_prior` adds the prior.

    Raises:
        OptionError: if a name is unknown.
        UnsupportedError: if kind and structure do not go together, or the structure does not take an option.
        InputError: if the data do not fit the model or the likelihood, or passes over it differ; of several processes,
            if they read the same rows or have other weights.
        MemoryBudgetError: if the run would take more than the budget; nothing has been read then.
        ProcessError: on all processes, if one of them has failed or died, or they are called with other options.
    """
    given, chosen = picked(CurvatureOptions, options).checked(), likelihood_of_rows(likelihood, data)
    check_readable(model := unwrapped(with_output(model, options)))  # on all processes at once
    model, source = twin(model), checks.generator(generator)
    require_same_weights(model)
    batches = Batches(data, model, batch_size=given.batch_size)
    return _fitted(model, batches, weights, given, chosen, cotangents=cotangents, generator=source, progress=progress)


def _fitted(
    model: nn.Module,
    batches: Batches,
    weights: Choice,
    options: CurvatureOptions,
    likelihood: Likelihood,
    *,
    cotangents: int | None,
    generator: torch.Generator,
    progress: bool,
) -> Curvature:
    """The curvature of a model that nobody else holds; see `fit_curvature`."""
    seed = batches.seed(generator)
    if by_variance(weights):
        of_all = CurvatureOptions(structure=DIAGONAL, memory=options.memory)
        diagonal = _fitted(
            model, batches, "all", of_all, likelihood, cotangents=cotangents, generator=generator, progress=progress
        )
        # The variance under a prior δ is 1/(h + δ): whatever δ is, it is largest where h is smallest.
        weights = weights.mask(-diagonal.precision.diagonal())
    # The state of a reading: a shuffling loader gives the first pass the batch that the trace has seen.
    with reading(model):
        inputs, targets = batches.example()
        require_same_function(model, inputs)
    with torch.inference_mode(False), torch.no_grad():
        network = Network.trace(model, inputs, weights=weights)
        plan = plan_network(network, inputs, targets, likelihood, options, cotangents=cotangents).require()
        passes = Passes(
            network, batches, likelihood, curvature=options.curvature, seed=seed, rows=plan.rows,
            cotangents=plan.cotangents, progress=progress, example=(inputs, targets),
        )  # fmt: skip
        structure = STRUCTURES[options.structure]
        read = structure.fit if options.curvature != "hessian" else structure.hessian
        assert read is not None
        factors = output_factors(options.output_factor, network.parts)
        precision = read(_reading(passes, options, factors, plan.cotangents, generator))
    otherwise = {
        part.name: factor for part, factor in zip(network.parts, factors, strict=True) if factor != DENSE and part.shape
    }
    return Curvature(
        precision, network, options.curvature, options.structure, passes.rows, passes.log_likelihood, passes.count,
        fallbacks_of(network, options.structure), plan.rows, otherwise,
    )  # fmt: skip


def _reading(
    passes: Passes, options: CurvatureOptions, factors: Sequence[str], cotangents: int, generator: torch.Generator
) -> StructureReading:
    """The passes as a structure reads them."""
    asked = structure_options(passes.network, options, [factor == DIAGONAL for factor in factors])

    def fill(sums: TapeSum[object], moments: bool) -> None:
        passes.run(sums.add, moments=moments, positions_apart=options.sharing == "expand")
        passes.sum(sums.totals())

    def draw(columns: int) -> Tensor:
        vectors = torch.randn(asked.dim, columns, dtype=torch.float64, generator=generator)
        return same(vectors)[0].to(asked.device)

    def hessian_blocks(blocks: Sequence[Tensor]) -> list[Tensor]:
        totals = [torch.zeros(len(block), len(block), dtype=torch.float64, device=asked.device) for block in blocks]
        passes.run_hessian(lambda product: add_blocks(totals, product, blocks, asked.dim, cotangents))
        return passes.sum(totals)

    def hessian_diagonal() -> Tensor:
        total = torch.zeros(asked.dim, dtype=torch.float64, device=asked.device)
        passes.run_hessian(lambda product: add_diagonal(total, product, cotangents))
        return passes.sum([total])[0]

    return StructureReading(
        **vars(asked), fill=fill, draw=draw, hessian_blocks=hessian_blocks, hessian_diagonal=hessian_diagonal
    )
