"""Fitting a curvature: the network is traced once, the data are read in as many passes as the structure takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast, final

import torch
from torch import Tensor, nn

from bayescope import checks
from bayescope.curvature.curvature import Curvature
from bayescope.curvature.fallbacks import fallbacks_of
from bayescope.curvature.groups import group_indices
from bayescope.curvature.hessian import add_blocks, add_diagonal
from bayescope.curvature.kinds import check_pair
from bayescope.curvature.low_rank import SETTLED, low_rank
from bayescope.curvature.output_factor import DENSE, check_output_factor, factored_otherwise, output_factors
from bayescope.curvature.passes import Passes
from bayescope.curvature.plan import plan_network
from bayescope.curvature.structures import (
    Accumulator,
    Blocks,
    Corrected,
    Dense,
    Diagonal,
    Kept,
    Kronecker,
    Products,
    Squares,
)
from bayescope.errors import InputError, UnsupportedError
from bayescope.likelihoods import Likelihood, resolve
from bayescope.module_copies import twin
from bayescope.network.batches import Batches
from bayescope.network.forward import reading
from bayescope.network.guard import check_readable
from bayescope.network.network import Network
from bayescope.network.same_network import require_same_function, require_same_weights
from bayescope.network.weights import LargestVariance
from bayescope.network.wrappers import unwrapped
from bayescope.precision import BlockPrecision, DensePrecision, DiagonalPrecision, KroneckerPrecision, Precision
from bayescope.precision.distributed import sum_over
from bayescope.precision.eigenvectors import share_eigenvectors
from bayescope.process_state import outside_inference_mode
from bayescope.processes import Processes, present


@outside_inference_mode
def fit_curvature(
    model: nn.Module,
    data: Any,
    *,
    likelihood: str | Likelihood,
    weights: Any = "all",
    curvature: str = "ggn",
    structure: str = "kfac",
    groups: Any = "layer",
    rank: int | None = None,
    tolerance: float | None = None,
    sharing: str = "expand",
    output_factor: str | Mapping[str, str] = DENSE,
    cotangents: int | None = None,
    batch_size: int = 1024,
    memory: int | None = None,
    generator: torch.Generator | int | None = None,
    progress: bool = False,
) -> Curvature:
    """The curvature of −Σ_n log p(y_n∣f(x_n)) in a network's random weights, at their present values.

    The network is read in eval mode and left as it was found. But for rounding, the result does not depend on the batch
    size, the order of the data, or how many cotangents travel at once.

    Under an initialised process group of torch.distributed every process calls it and reads its share of the rows (that
    of its `DistributedSampler`; of arrays that all of them have, a contiguous part). Sums travel, data do not; the
    result is the same on all processes, that of all the rows.

    Args:
        model: any module with outputs f of shape (N, C) or (N, …, C); of `DistributedDataParallel` the one inside.
        data: a DataLoader, a Dataset, or (X, y).
        likelihood: a name or a likelihood.
        weights: "all", "last_layer", names or globs, a mask, `largest_magnitude` or `largest_variance`.
        curvature: "ggn", Σ JᵀΛJ exactly; "fisher", with one drawn label an observation; "empirical_fisher"; "hessian".
        structure: "full", "block", "diagonal", "kfac", "ekfac" (the former's eigenvectors, exact moments), "low_rank".
        groups: of the structure "block": "layer", "tensor", or a list of lists of parameter names or globs.
        rank: the number of eigenvalues of "low_rank".
        tolerance: instead of the rank, the share of the largest eigenvalue below which the others are left out.
        sharing: how "kfac" treats positions that share weights (tokens, pixels): "expand" or "reduce".
        output_factor: Σ g gᵀ of "kfac" and "ekfac": "dense", or its diagonal alone, "diagonal", for a layer of so many
            outputs that a matrix of their square does not fit; a dict gives it to some layers, by name or glob.
        cotangents: the most cotangents that travel through the network at once; fewer take less memory.
        batch_size: rows at once, where the data are not in batches already; fewer where the plan says so.
        memory: the budget in bytes that the run may take; half of what is free by default.
        generator: draws the labels of "fisher" and the first vectors of "low_rank".
        progress: whether a bar is drawn.

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
    with present().called("fit_curvature", locals()):
        model, processes = unwrapped(model), present()
        settings = _Settings(
            resolve(likelihood), curvature, structure, groups, rank, tolerance, sharing, output_factor, cotangents,
            memory, checks.generator(generator), progress, processes,
        ).checked()  # fmt: skip
        check_readable(model)  # on all processes at once
        model = twin(model)
    require_same_weights(model)
    return settings.fit(model, Batches(data, model, batch_size=batch_size), weights)


@final
@dataclass(frozen=True)
class _Settings:
    """What `fit_curvature` has been asked for, beside the model, its weights and the data."""

    likelihood: Likelihood
    curvature: str
    structure: str
    groups: Any
    rank: int | None
    tolerance: float | None
    sharing: str
    output_factor: str | Mapping[str, str]
    cotangents: int | None
    memory: int | None
    generator: torch.Generator
    progress: bool
    processes: Processes

    def checked(self) -> _Settings:
        """The settings themselves, where they go together."""
        check_pair(self.curvature, self.structure)
        _check_options(self.structure, self.groups, self.rank, self.tolerance, self.sharing)
        check_output_factor(self.output_factor, self.structure)
        return self

    def fit(self, model: nn.Module, batches: Batches, weights: Any) -> Curvature:
        # Rows with numbers among those of all processes get the labels that a single process would draw for them.
        draw = self.processes.common_seed if batches.shard.numbered else self.processes.own_seed
        seed = draw(self.generator)
        if isinstance(weights, LargestVariance):
            diagonal = replace(
                self, curvature="ggn", structure="diagonal", groups="layer", rank=None, tolerance=None,
                sharing="expand", output_factor=DENSE,
            )  # fmt: skip
            # The variance under a prior δ is 1/(h + δ): whatever δ is, it is largest where h is smallest.
            weights = weights.mask(-diagonal.fit(model, batches, "all").precision.diagonal())
        # The state of a reading: a shuffling loader gives the first pass the batch that the trace has seen.
        with reading(model):
            inputs, targets = batches.example()
            require_same_function(model, inputs)
        with torch.inference_mode(False), torch.no_grad():
            with self.processes.agreed():
                network = Network.trace(model, inputs, weights=weights)
                plan = plan_network(
                    network, inputs, targets, self.likelihood, structure=self.structure, curvature=self.curvature,
                    groups=self.groups, rank=self.rank, output_factor=self.output_factor, cotangents=self.cotangents,
                    memory=self.memory,
                ).require()  # fmt: skip
            passes = Passes(
                network, batches, self.likelihood, curvature=self.curvature, seed=seed, rows=plan.rows,
                cotangents=plan.cotangents, progress=self.progress, example=(inputs, targets),
            )  # fmt: skip
            run = _Run(network, passes, self, plan.cotangents)
            precision = (_HESSIANS if self.curvature == "hessian" else _STRUCTURES)[self.structure](run)
        return Curvature(
            precision, network, self.curvature, self.structure, passes.rows, passes.log_likelihood, passes.count,
            fallbacks_of(network, self.structure), plan.rows, factored_otherwise(self.output_factor, network.parts),
        )  # fmt: skip


@final
@dataclass(frozen=True)
class _Run:
    """What every structure is computed from: the network, the passes over its data, and what has been asked for."""

    network: Network
    passes: Passes
    settings: _Settings
    cotangents: int

    @property
    def dim(self) -> int:
        return self.network.dim

    @property
    def everything(self) -> Tensor:
        return torch.arange(self.dim, device=self.network.indices[0].device)

    def read(self, sums: Accumulator, *, moments: bool = False) -> Precision:
        """One pass into an accumulator, its result not summed over processes yet."""
        self.passes.run(sums.add, moments=moments, positions_apart=self.settings.sharing == "expand")
        return sums.finish()

    def reduce(self, precision: Precision) -> Precision:
        """The sum of the precisions of all processes."""
        return sum_over(self.settings.processes, precision, counts=self.passes.counts)

    def summed(self, values: Tensor) -> Tensor:
        """A tensor summed over processes."""
        (total,) = self.settings.processes.sum([values if self.passes.counts else torch.zeros_like(values)])
        return total


def _full(run: _Run) -> Precision:
    return run.reduce(run.read(Dense(run.dim)))


def _block(run: _Run) -> Precision:
    groups = group_indices(run.network, run.settings.groups)
    return run.reduce(run.read(Blocks([Dense(len(group)) for group in groups], groups, run.dim)))


def _diagonal(run: _Run) -> Precision:
    return run.reduce(run.read(Diagonal(run.network.indices, run.dim), moments=True))


def _kfac(run: _Run) -> BlockPrecision:
    unfactored: dict[str, Callable[[int], Accumulator]] = {"full": Dense, "diagonal": lambda _: Squares()}
    fallbacks = fallbacks_of(run.network, "kfac")
    parts = run.network.parts
    sums: list[Accumulator] = [
        Kronecker(run.settings.sharing, factor)
        if part.factored
        else unfactored[fallbacks[part.name].structure](part.dim)
        for part, factor in zip(parts, output_factors(run.settings.output_factor, parts), strict=True)
    ]
    summed = run.reduce(run.read(Blocks(sums, run.network.indices, run.dim), moments=True))
    assert isinstance(summed, BlockPrecision)
    share_eigenvectors(
        run.settings.processes, [block for block in summed.blocks if isinstance(block, KroneckerPrecision)]
    )
    return summed


def _ekfac(run: _Run) -> BlockPrecision:
    """The eigenvectors of the first pass's factors, summed over processes, and the second pass's moments in them."""
    kronecker = _kfac(run)
    factored = [part.factored for part in run.network.parts]
    pairs = list(zip(kronecker.blocks, factored, strict=True))
    sums: list[Accumulator] = [
        Corrected(cast(KroneckerPrecision, block)) if corrected else Kept(block) for block, corrected in pairs
    ]
    second = run.read(Blocks(sums, run.network.indices, run.dim))
    assert isinstance(second, BlockPrecision)
    # What is kept from the first pass has been summed over processes already.
    pairs = list(zip(second.blocks, factored, strict=True))
    blocks = [run.reduce(block) if corrected else block for block, corrected in pairs]
    return BlockPrecision(blocks, run.network.indices, run.dim)


def _low_rank(run: _Run) -> Precision:
    """Products are summed over processes, first vectors shared: all of them iterate on the whole curvature."""

    def product(vectors: Tensor) -> Tensor:
        products = Products(vectors)
        run.passes.run(products.add)
        return run.summed(products.total())

    def draw(columns: int) -> Tensor:
        vectors = torch.randn(run.dim, columns, dtype=torch.float64, generator=run.settings.generator)
        run.settings.processes.share([vectors])
        return vectors.to(run.everything.device)

    parameters = run.network.weights.parameters(run.network.module).values()
    double = all(parameter.dtype == torch.float64 for parameter in parameters)
    return low_rank(product, draw, run.dim, run.settings.rank, run.settings.tolerance, SETTLED[double])


def _full_hessian(run: _Run) -> Precision:
    (matrix,) = _hessian_blocks(run, [run.everything])
    return run.reduce(matrix)


def _block_hessian(run: _Run) -> Precision:
    groups = group_indices(run.network, run.settings.groups)
    return run.reduce(BlockPrecision(_hessian_blocks(run, groups), groups, run.dim))


def _diagonal_hessian(run: _Run) -> Precision:
    total = torch.zeros(run.dim, dtype=torch.float64, device=run.everything.device)
    run.passes.run_hessian(lambda product: add_diagonal(total, product, run.cotangents))
    return run.reduce(DiagonalPrecision(total, semidefinite=True))


def _hessian_blocks(run: _Run, groups: Sequence[Tensor]) -> list[DensePrecision]:
    totals = [torch.zeros(len(g), len(g), dtype=torch.float64, device=g.device) for g in groups]
    run.passes.run_hessian(lambda product: add_blocks(totals, product, groups, run.dim, run.cotangents))
    return [DensePrecision(total, semidefinite=True) for total in totals]


_STRUCTURES: dict[str, Callable[[_Run], Precision]] = {
    "full": _full,
    "block": _block,
    "diagonal": _diagonal,
    "kfac": _kfac,
    "ekfac": _ekfac,
    "low_rank": _low_rank,
}
_HESSIANS: dict[str, Callable[[_Run], Precision]] = {
    "full": _full_hessian,
    "block": _block_hessian,
    "diagonal": _diagonal_hessian,
}


def _check_options(structure: str, groups: Any, rank: int | None, tolerance: float | None, sharing: str) -> None:
    """Refuses options that the structure would ignore, and a low rank without its size."""
    checks.choice("sharing", sharing, ("expand", "reduce"))
    given = {
        "groups": (groups == "layer", ("block",)),
        "rank": (rank is None, ("low_rank",)),
        "tolerance": (tolerance is None, ("low_rank",)),
        "sharing": (sharing == "expand", ("kfac", "ekfac")),
    }
    for name, (default, structures) in given.items():
        if not default and structure not in structures:
            takes = " and ".join(map(repr, structures))
            raise UnsupportedError(f"{name}: expected with the structure {takes}, got {structure!r}. Leave it out.")
    if structure != "low_rank":
        return
    if (rank is None) == (tolerance is None):
        got = "neither. Say how many eigenvalues to keep, such as rank=50" if rank is None else "both. Leave one out"
        raise InputError(f"structure 'low_rank': expected either rank= or tolerance=, got {got}.")
    if rank is not None:
        checks.count("rank", rank)
    if tolerance is not None:
        checks.fraction("tolerance", tolerance)
