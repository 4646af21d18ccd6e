"""Fitting a curvature: the network is traced once, the data are read in as many passes as the structure takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack, final

import torch
from torch import Tensor, nn

from bayescope import checks
from bayescope.curvature.curvature import Curvature
from bayescope.curvature.fallbacks import fallbacks_of
from bayescope.curvature.hessian import add_blocks, add_diagonal
from bayescope.curvature.options import (
    DENSE,
    DIAGONAL,
    CurvatureKeywords,
    CurvatureOptions,
    block_indices,
    output_factors,
)
from bayescope.curvature.passes import Passes
from bayescope.curvature.plan import plan_network
from bayescope.likelihoods import Likelihood, resolve
from bayescope.module_copies import twin
from bayescope.network import Network
from bayescope.network.batches import Batches
from bayescope.network.forward import reading
from bayescope.network.guard import check_readable
from bayescope.network.same_network import require_same_function, require_same_weights
from bayescope.network.weights import LargestVariance
from bayescope.network.wrappers import unwrapped
from bayescope.precision import STRUCTURES
from bayescope.precision.accumulator import Summing
from bayescope.precision.structure import Reading
from bayescope.process_state import outside_inference_mode
from bayescope.processes import Processes, collective, present


@outside_inference_mode
@collective
def fit_curvature(
    model: nn.Module,
    data: Any,
    *,
    likelihood: str | Likelihood,
    weights: Any = "all",
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
        options: ``curvature``, ``structure`` and the other options of `CurvatureOptions`.

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
    model = unwrapped(model)
    fit = _Fit(
        CurvatureOptions.of("fit_curvature", options).checked(), resolve(likelihood), cotangents,
        checks.generator(generator), progress, present(),
    )  # fmt: skip
    check_readable(model)  # on all processes at once
    model = twin(model)
    require_same_weights(model)
    return fit.run(model, Batches(data, model, batch_size=fit.options.batch_size), weights)


@final
@dataclass(frozen=True)
class _Fit:
    """What has been asked for, apart from the model, its weights and the data."""

    options: CurvatureOptions
    likelihood: Likelihood
    cotangents: int | None
    generator: torch.Generator
    progress: bool
    processes: Processes

    def run(self, model: nn.Module, batches: Batches, weights: Any) -> Curvature:
        options = self.options
        # Rows with numbers among those of all processes get the labels that a single process would draw for them.
        draw = self.processes.common_seed if batches.shard.numbered else self.processes.own_seed
        seed = draw(self.generator)
        if isinstance(weights, LargestVariance):
            diagonal = replace(self, options=CurvatureOptions(structure=DIAGONAL, memory=options.memory))
            # The variance under a prior δ is 1/(h + δ): whatever δ is, it is largest where h is smallest.
            weights = weights.mask(-diagonal.run(model, batches, "all").precision.diagonal())
        # The state of a reading: a shuffling loader gives the first pass the batch that the trace has seen.
        with reading(model):
            inputs, targets = batches.example()
            require_same_function(model, inputs)
        with torch.inference_mode(False), torch.no_grad():
            network = Network.trace(model, inputs, weights=weights)
            plan = plan_network(
                network, inputs, targets, self.likelihood, options, cotangents=self.cotangents
            ).require()
            passes = Passes(
                network, batches, self.likelihood, curvature=options.curvature, seed=seed, rows=plan.rows,
                cotangents=plan.cotangents, progress=self.progress, example=(inputs, targets),
            )  # fmt: skip
            structure = STRUCTURES[options.structure]
            read = structure.fit if options.curvature != "hessian" else structure.hessian
            assert read is not None
            factors = output_factors(options.output_factor, network.parts)
            precision = read(self._reading(network, passes, factors, plan.cotangents))
        otherwise = {
            part.name: factor
            for part, factor in zip(network.parts, factors, strict=True)
            if factor != DENSE and part.factored
        }
        return Curvature(
            precision, network, options.curvature, options.structure, passes.rows, passes.log_likelihood, passes.count,
            fallbacks_of(network, options.structure), plan.rows, otherwise,
        )  # fmt: skip

    def _reading(self, network: Network, passes: Passes, factors: Sequence[str], cotangents: int) -> Reading:
        options, processes, dim, device = self.options, self.processes, network.dim, network.indices[0].device
        parameters = network.weights.parameters(network.module).values()

        def over_processes(totals: list[Tensor]) -> list[Tensor]:
            """Adds up the totals of all processes in place."""
            if processes.count > 1:
                if not passes.counts:  # no rows: the pass over the example has given the shapes, and must not count
                    for total in totals:
                        total.zero_()
                for total, summed in zip(totals, processes.sum(totals), strict=True):
                    total.copy_(summed)
            return totals

        def read(sums: Summing, moments: bool) -> None:
            passes.run(sums.add, moments=moments, positions_apart=options.sharing == "expand")
            over_processes(sums.totals())

        def draw(columns: int) -> Tensor:
            vectors = torch.randn(dim, columns, dtype=torch.float64, generator=self.generator)
            processes.share([vectors])
            return vectors.to(device)

        def hessian_blocks(blocks: Sequence[Tensor]) -> list[Tensor]:
            totals = [torch.zeros(len(block), len(block), dtype=torch.float64, device=device) for block in blocks]
            passes.run_hessian(lambda product: add_blocks(totals, product, blocks, dim, cotangents))
            return over_processes(totals)

        def hessian_diagonal() -> Tensor:
            total = torch.zeros(dim, dtype=torch.float64, device=device)
            passes.run_hessian(lambda product: add_diagonal(total, product, cotangents))
            return over_processes([total])[0]

        return Reading(
            network.parts, network.indices, block_indices(network, options.blocks), dim, device, options.rank,
            options.cutoff, options.sharing, [factor == DIAGONAL for factor in factors],
            all(parameter.dtype == torch.float64 for parameter in parameters), processes,
            read, draw, hessian_blocks, hessian_diagonal,
        )  # fmt: skip
