"""Fitting a curvature: the network is traced once, the data are read in as many passes as the structure takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast, final

import torch
from torch import Tensor, nn

from bayescope import checks
from bayescope.curvature.curvature import Curvature, Fallback
from bayescope.curvature.footprint import FULL_BLOCK
from bayescope.curvature.groups import group_indices
from bayescope.curvature.hessian import add_blocks, add_diagonal
from bayescope.curvature.kinds import check_pair
from bayescope.curvature.low_rank import low_rank
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
from bayescope.network.batches import Batches
from bayescope.network.forward import reading
from bayescope.network.network import Network
from bayescope.network.weights import LargestVariance
from bayescope.precision import BlockPrecision, DensePrecision, DiagonalPrecision, KroneckerPrecision, Precision

Reduce = Callable[[Precision], Precision]


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
        weights: which weights are random: "all", "last_layer", names or globs, a mask, `largest_magnitude` or
            `largest_variance`.
        curvature: "ggn", Σ JᵀΛJ exactly; "fisher", with one drawn label an observation; "empirical_fisher", with the
            observed labels; or "hessian".
        structure: "full", "block", "diagonal", "kfac" (Kronecker), "ekfac" (Kronecker eigenvectors, the exact
            second moments in them) or "low_rank".
        groups: the blocks of the structure "block": "layer", "tensor", or a list of lists of parameter names or globs.
        rank: the number of eigenvalues of "low_rank".
        tolerance: instead of the rank, the share of the largest eigenvalue below which the others are left out.
        sharing: how "kfac" treats positions that share weights (tokens, pixels): "expand" or "reduce".
        cotangents: the most cotangents that travel through the network at once; fewer take less memory.
        batch_size: rows at once, where the data are not in batches already; fewer where the plan says so.
        memory: the budget in bytes that the run may take; half of what is free by default.
        generator: draws the labels of "fisher" and the first vectors of "low_rank".
        progress: whether a bar is drawn.
        reduce: sums a precision over processes that each read a shard of the data, such as `all_reduce`.

    Returns:
        The curvature of the data alone; `Curvature.with_prior` adds the prior.

    Raises:
        OptionError: if a name is unknown.
        UnsupportedError: if the kind and the structure do not go together, or an option is given to a structure
            that does not take it.
        InputError: if the data do not fit the model or the likelihood, or passes over it differ.
        MemoryBudgetError: if the run would take more than the budget; nothing has been read then.
    """
    check_pair(curvature, structure)
    _check_options(structure, groups, rank, tolerance, sharing)
    source, chosen = checks.generator(generator), resolve(likelihood)
    batches = Batches(data, model, batch_size=batch_size)
    seed = checks.seed_from(source)
    if isinstance(weights, LargestVariance):
        everything = fit_curvature(
            model, data, likelihood=chosen, curvature="ggn", structure="diagonal", cotangents=cotangents,
            batch_size=batch_size, memory=memory, progress=progress, reduce=reduce,
        )  # fmt: skip
        # The variance under a prior δ is 1/(h + δ): whatever δ is, it is largest where h is smallest.
        weights = weights.mask(-everything.precision.diagonal())
    # The state of a reading: a shuffling loader gives the first pass the batch that the trace has seen.
    with reading(model):
        inputs, targets = batches.first()
    with torch.inference_mode(False), torch.no_grad():
        network = Network.trace(model, inputs, weights=weights)
        plan = plan_network(
            network, inputs, targets, chosen, structure=structure, curvature=curvature, groups=groups, rank=rank,
            cotangents=cotangents, memory=memory,
        ).require()  # fmt: skip
        passes = Passes(
            network, batches, chosen, curvature=curvature, seed=seed, rows=plan.rows,
            cotangents=plan.cotangents, progress=progress,
        )  # fmt: skip
        run = _Run(network, passes, groups, rank, tolerance, sharing, plan.cotangents, source, reduce or _alone)
        precision = (_HESSIANS if curvature == "hessian" else _STRUCTURES)[structure](run)
        rows, log_likelihood = run.totals()
    fallbacks = _fallbacks(network) if structure in ("kfac", "ekfac") else {}
    return Curvature(precision, network, curvature, structure, rows, log_likelihood, fallbacks)


@final
@dataclass(frozen=True)
class _Run:
    """What every structure is computed from; the fields are `fit_curvature`'s arguments, checked."""

    network: Network
    passes: Passes
    groups: Any
    rank: int | None
    tolerance: float | None
    sharing: str
    cotangents: int
    generator: torch.Generator
    reduce: Reduce

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

    def totals(self) -> tuple[int, Tensor]:
        """N and Σ log p(y∣f), summed over processes as a precision is."""
        own = torch.stack([torch.tensor(float(self.passes.rows), dtype=torch.float64), self.passes.log_likelihood])
        rows, log_likelihood = self.reduce(DiagonalPrecision(own, semidefinite=True)).diagonal()
        return round(rows.item()), log_likelihood


def _full(run: _Run) -> Precision:
    return run.reduce(run.read(Dense(run.dim)))


def _block(run: _Run) -> Precision:
    groups = group_indices(run.network, run.groups)
    return run.reduce(run.read(Blocks([Dense(len(group)) for group in groups], groups, run.dim)))


def _diagonal(run: _Run) -> Precision:
    return run.reduce(run.read(Diagonal(run.network.indices, run.dim), moments=True))


def _kfac(run: _Run) -> BlockPrecision:
    sums: list[Accumulator] = [
        Kronecker(run.sharing) if part.factored else _fallback_sum(part.dim) for part in run.network.parts
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
    def product(vectors: Tensor) -> Tensor:
        products = Products(vectors)
        run.passes.run(products.add)
        return products.total()

    return run.reduce(low_rank(product, run.dim, run.rank, run.tolerance, run.everything, run.generator))


def _full_hessian(run: _Run) -> Precision:
    (matrix,) = _hessian_blocks(run, [run.everything])
    return run.reduce(matrix)


def _block_hessian(run: _Run) -> Precision:
    groups = group_indices(run.network, run.groups)
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


def _alone(precision: Precision) -> Precision:
    return precision


def _fallback_sum(dim: int) -> Accumulator:
    return Dense(dim) if dim <= FULL_BLOCK else Squares()


def _fallbacks(network: Network) -> dict[str, Fallback]:
    """The parts that are no sum of outer products, and what their blocks are."""
    return {
        part.name: Fallback(
            "full" if part.dim <= FULL_BLOCK else "diagonal",
            part.reason or f"{part.kind} weights are no matrix that meets its inputs",
        )
        for part in network.parts
        if not part.factored
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
        raise InputError("structure 'low_rank': expected either rank= or tolerance=, got both or neither.")
    if rank is not None:
        checks.count("rank", rank)
    if tolerance is not None:
        checks.fraction("tolerance", tolerance)
