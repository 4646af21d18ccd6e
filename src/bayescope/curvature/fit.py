"""Fitting a curvature: the network is traced once, the data are read in as many passes as the structure takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast, final

import torch
from torch import Tensor, distributed, nn

from bayescope import checks
from bayescope.curvature.curvature import Curvature
from bayescope.curvature.fallbacks import fallbacks_of
from bayescope.curvature.groups import group_indices
from bayescope.curvature.hessian import add_blocks, add_diagonal
from bayescope.curvature.kinds import check_pair
from bayescope.curvature.low_rank import SETTLED, low_rank
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
from bayescope.inference_mode import outside_inference_mode
from bayescope.likelihoods import Likelihood, resolve
from bayescope.network.batches import Batches
from bayescope.network.forward import reading
from bayescope.network.network import Network
from bayescope.network.weights import LargestVariance
from bayescope.precision import BlockPrecision, DensePrecision, DiagonalPrecision, KroneckerPrecision, Precision

Reduce = Callable[[Precision], Precision]


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
    cotangents: int | None = None,
    batch_size: int = 1024,
    memory: int | None = None,
    generator: torch.Generator | int | None = None,
    progress: bool = False,
    reduce: Reduce | None = None,
) -> Curvature:
    """The curvature of −Σ_n log p(y_n∣f(x_n)) in a network's random weights, at their present values.

    The network is read in eval mode and left as it was found. But for rounding, the result does not depend on the batch
    size, the order of the data, or how many cotangents travel at once.

    Args:
        model: any module with outputs f of shape (N, C) or (N, …, C).
        data: a DataLoader, a Dataset, or (X, y).
        likelihood: a name or a likelihood.
        weights: "all", "last_layer", names or globs, a mask, `largest_magnitude` or `largest_variance`.
        curvature: "ggn", Σ JᵀΛJ exactly; "fisher", with one drawn label an observation; "empirical_fisher"; "hessian".
        structure: "full", "block", "diagonal", "kfac", "ekfac" (the former's eigenvectors, exact moments), "low_rank".
        groups: of the structure "block": "layer", "tensor", or a list of lists of parameter names or globs.
        rank: the number of eigenvalues of "low_rank".
        tolerance: instead of the rank, the share of the largest eigenvalue below which the others are left out.
        sharing: how "kfac" treats positions that share weights (tokens, pixels): "expand" or "reduce".
        cotangents: the most cotangents that travel through the network at once; fewer take less memory.
        batch_size: rows at once, where the data are not in batches already; fewer where the plan says so.
        memory: the budget in bytes that the run may take; half of what is free by default.
        generator: draws the labels of "fisher" and the first vectors of "low_rank".
        progress: whether a bar is drawn.
        reduce: sums a precision over processes that each read a shard of the data, such as `precision.all_reduce`. What
            results is the fit to all shards: bases and iterations are shared too, so that "ekfac" and "low_rank" need
            it, where sums of separate fits are refused or truncated. Processes of torch.distributed draw other labels
            from the same generator; without it each needs a generator of its own for "fisher".

    Returns:
        The curvature of the data alone; `Curvature.with_prior` adds the prior.

    Raises:
        OptionError: if a name is unknown.
        UnsupportedError: if kind and structure do not go together, or the structure does not take an option.
        InputError: if the data do not fit the model or the likelihood, or passes over it differ.
        MemoryBudgetError: if the run would take more than the budget; nothing has been read then.
    """
    settings = _Settings(
        resolve(likelihood), curvature, structure, groups, rank, tolerance, sharing, cotangents, memory,
        checks.generator(generator), progress, reduce,
    )  # fmt: skip
    return settings.checked().fit(model, Batches(data, model, batch_size=batch_size), weights)


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
    cotangents: int | None
    memory: int | None
    generator: torch.Generator
    progress: bool
    reduce: Reduce | None

    def checked(self) -> _Settings:
        """The settings themselves, where they go together."""
        check_pair(self.curvature, self.structure)
        _check_options(self.structure, self.groups, self.rank, self.tolerance, self.sharing)
        return self

    def fit(self, model: nn.Module, batches: Batches, weights: Any) -> Curvature:
        seed = self._seed()
        if isinstance(weights, LargestVariance):
            diagonal = replace(
                self, curvature="ggn", structure="diagonal", groups="layer", rank=None, tolerance=None, sharing="expand"
            )
            # The variance under a prior δ is 1/(h + δ): whatever δ is, it is largest where h is smallest.
            weights = weights.mask(-diagonal.fit(model, batches, "all").precision.diagonal())
        # The state of a reading: a shuffling loader gives the first pass the batch that the trace has seen.
        with reading(model):
            inputs, targets = batches.first()
        with torch.inference_mode(False), torch.no_grad():
            network = Network.trace(model, inputs, weights=weights)
            plan = plan_network(
                network, inputs, targets, self.likelihood, structure=self.structure, curvature=self.curvature,
                groups=self.groups, rank=self.rank, cotangents=self.cotangents, memory=self.memory,
            ).require()  # fmt: skip
            passes = Passes(
                network, batches, self.likelihood, curvature=self.curvature, seed=seed, rows=plan.rows,
                cotangents=plan.cotangents, progress=self.progress,
            )  # fmt: skip
            run = _Run(network, passes, self, plan.cotangents)
            precision = (_HESSIANS if self.curvature == "hessian" else _STRUCTURES)[self.structure](run)
            rows, log_likelihood = run.totals()
        fallbacks = fallbacks_of(network, self.structure)
        return Curvature(
            precision, network, self.curvature, self.structure, rows, log_likelihood, passes.count, fallbacks
        )

    def _seed(self) -> int:
        """Of the drawn labels. Processes with generators that are alike read other rows, and need labels of their own.

        Each takes its own of as many seeds as there are processes: torch's generator ignores all but 32 bits of one, so
        that far apart is no further than random.
        """
        if self.reduce is None or not distributed.is_available() or not distributed.is_initialized():
            return checks.seed_from(self.generator)
        seeds = [checks.seed_from(self.generator) for _ in range(distributed.get_world_size())]
        return seeds[distributed.get_rank()]


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
        self.passes.run(sums.add, moments=moments)
        return sums.finish()

    def reduce(self, precision: Precision) -> Precision:
        """The sum over processes."""
        return precision if self.settings.reduce is None else self.settings.reduce(precision)

    def summed(self, values: Tensor) -> Tensor:
        """A tensor of float64 numbers, summed over processes as a precision is."""
        if self.settings.reduce is None:
            return values
        return self.reduce(DiagonalPrecision(values.flatten(), semidefinite=True)).diagonal().reshape(values.shape)

    def totals(self) -> tuple[int, Tensor]:
        """N and Σ log p(y∣f), of all processes."""
        own = torch.stack([torch.tensor(float(self.passes.rows), dtype=torch.float64), self.passes.log_likelihood])
        rows, log_likelihood = self.summed(own.to(self.everything.device)).cpu()
        return round(rows.item()), log_likelihood


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
    sums: list[Accumulator] = [
        Kronecker(run.settings.sharing) if part.factored else unfactored[fallbacks[part.name].structure](part.dim)
        for part in run.network.parts
    ]
    summed = run.reduce(run.read(Blocks(sums, run.network.indices, run.dim), moments=True))
    assert isinstance(summed, BlockPrecision)
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
    """Products and first vectors are summed over processes, so that all of them iterate on the whole curvature."""

    def product(vectors: Tensor) -> Tensor:
        products = Products(vectors)
        run.passes.run(products.add)
        return run.summed(products.total())

    def draw(columns: int) -> Tensor:
        vectors = torch.randn(run.dim, columns, dtype=torch.float64, generator=run.settings.generator)
        return run.summed(vectors.to(run.everything.device))

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
