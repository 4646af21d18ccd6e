"""Sample-then-optimise: draws from Laplace's posterior of a linearised network, without any matrix over its weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, final

import torch
from torch import Tensor, nn

from bayescope import checks
from bayescope.curvature import CurvatureOptions, plan
from bayescope.curvature.passes import Passes
from bayescope.curvature.plan import Plan
from bayescope.errors import ConvergenceError, InputError, UnsupportedError
from bayescope.laplace.distance import TRAIN, Distance
from bayescope.laplace.fit import LaplaceFit
from bayescope.laplace.hyperparameters import hyperparameters
from bayescope.laplace.judgement import automatic, warn_if_worse
from bayescope.laplace.options import LaplaceOptions
from bayescope.memory import require_memory
from bayescope.models import LinearizedModel
from bayescope.network.batches import Batches, Data
from bayescope.network.priors import PriorPrecision
from bayescope.network.row_weights import row_weight_notes
from bayescope.posterior import DrawsPosterior, Record
from bayescope.precision import DiagonalPrecision, Precision
from bayescope.precision.low_rank import ProductSum
from bayescope.processes import same
from bayescope.tape import Tape

SAMPLES = 64
TOLERANCE = 1e-4
PASSES = 300
FLOAT64 = 8
# What a posterior of draws says where it is asked for what draws do not have.
INSTEAD = "Take laplace with another structure, such as 'kfac'."
# Blocks of the size of all draws that the iteration holds at once: X, B, Q, M⁻¹Q, D, A D and their successors.
BLOCKS = 10


def sample_posterior(
    options: LaplaceOptions,
    module: nn.Module,
    data: Data,
    prior_precision: PriorPrecision | Literal["auto", "evidence"],
    *,
    samples: int | None = None,
    generator: torch.Generator | int | None = None,
    origin: object = None,
) -> DrawsPosterior:
    """Draws θ* + z, z ~ N(0, A⁻¹), of Laplace's posterior under the full GGN, A = Σ JᵀΛJ/T + P₀.

    z = A⁻¹ (Σ Jᵀ S ε/√T + P₀^{½} η) with S Sᵀ = Λ and ε, η standard normal has the covariance A⁻¹ A A⁻¹ = A⁻¹ (Antorán
    et al. 2023, "Sampling-based inference for large linear models"). All draws are solved for together by
    block conjugate gradients, whose products J and Jᵀ are read from the network in one pass over the data each. The
    preconditioner is the Kronecker-factored A where its factors take no more memory than the draws, and the prior goes
    with it; else the diagonal of A. No matrix over all the weights is built.

    Draws come in pairs θ* ± z, one system for both: their average is θ*, and that of their functions f(x, θ*), to the
    rounding. A pair tells of a variance what one draw does.

    Args:
        options: the likelihood, the weights, the temperature; its ``tolerance`` is that of the solution, 1e-4 of the
            right-hand side by default.
        module: the network at a mode, which belongs to the posterior from now on.
        data: a DataLoader, a Dataset, or (X, y).
        prior_precision: in any form that `network_prior` takes, or "auto", which is found for the preconditioner.
        samples: how many draws, 64 by default: an even number. S/2 systems are solved, and a variance from S draws has
            the relative standard error √(4/S).
        generator: draws ε and η.
        origin: what the network was taken from: of a posterior "auto" takes the prior.

    Returns:
        The draws, first all θ* + z and then all θ* − z. Their functions are those of the linearised network,
        f(x, θ*) ± J(x) z (method="linearized"), or f(x, θ* ± z) of the network itself with method="sampled".

    Raises:
        InputError: if the number of draws is odd.
        UnsupportedError: if an option is given that no draw depends on, or another curvature than the GGN.
        ConvergenceError: if the tolerance is not reached.
        MemoryBudgetError: if the draws take more than the budget.

    Warns:
        ConvergenceWarning: if the draws predict training rows worse than the network, as by `laplace`.
    """
    _refuse_ignored(options)
    count = _pairs(samples)
    source = checks.generator(generator)
    planned = _plan(options, module, data, count)
    fit, preconditioner, name, tuned = _preconditioned(options, planned, module, data, prior_precision, count, origin)
    system = _System(options, fit, data, planned)
    noise = system.noise(count, source)
    slope = fit.joint_gradient()
    tolerance = TOLERANCE if options.tolerance is None else checks.fraction("tolerance", options.tolerance)
    solution = block_conjugate_gradients(
        system.product, preconditioner.solve, torch.cat([noise, slope[:, None]], 1),
        tolerance=tolerance, iterations=PASSES,
    )  # fmt: skip
    gamma = system.effective_parameters(solution, count)
    squared = float(slope @ solution.x[:, -1])  # gᵀA⁻¹g
    notes = {
        "curvature": f"ggn, {2 * count} draws in pairs by sample-then-optimise, {fit.curvature.rows:,} rows",
        **row_weight_notes(fit.likelihood, fit.curvature.rows),
        "conjugate gradients": f"{solution.iterations} passes to a residual of {solution.residual:.1e}, {name}",
        "effective parameters": f"{gamma:.1f} of {fit.function.dim:,}, from the draws",
        "Newton decrement": f"{max(squared, 0.0) ** 0.5:.3g}",
    }
    notes |= hyperparameters(fit.prior, fit.likelihood, fit.function) | tuned
    record = Record("laplace, samples", notes=notes, trace={"residual": solution.trace}, instead=INSTEAD)
    offsets = solution.x[:, :count].mT
    draws = torch.cat([fit.mode + offsets, fit.mode - offsets])[None]
    q = DrawsPosterior(draws, record, LinearizedModel(fit.function, fit.mode), fit.likelihood.unweighted)
    if not tuned:
        warn_if_worse(q, fit, TRAIN, Distance(max(squared, 0.0), gamma))
    return q


@final
class _System:
    """A = Σ UᵀU/T + P₀ of a network's data, with U = SᵀJ, as products: one pass over the data each.

    Args:
        options: how the data are read.
        fit: at the mode, in the preconditioner's structure.
        data: as they were given.
        planned: how much is read at once.
    """

    def __init__(self, options: LaplaceOptions, fit: LaplaceFit, data: Data, planned: Plan) -> None:
        network = fit.curvature.network
        self._prior = fit.prior.structured(fit.function.dim)
        self._temperature, self._like = options.temperature, fit.mode
        self._batches = Batches(data, network.module, batch_size=options.curved.batch_size)
        self._passes = Passes(
            network, self._batches, options.likelihood,
            curvature="ggn", seed=0, rows=planned.rows, cotangents=planned.cotangents, progress=options.progress,
        )  # fmt: skip

    def product(self, vectors: Tensor) -> Tensor:
        """A V, shape (P, R)."""
        sums = ProductSum(vectors)
        self._passes.run(sums.add)
        (total,) = self._batches.sum(sums.totals())
        return total / self._temperature + self._prior.multiply(vectors)

    def noise(self, count: int, generator: torch.Generator) -> Tensor:
        """Σ Uᵀε/√T + P₀^{½} η with the covariance A, shape (P, count)."""
        # The prior's part first: it does not depend on how the data are cut into batches.
        eta = torch.randn(self._like.shape[0], count, dtype=torch.float64, generator=generator)
        (eta,) = same(eta)
        of_prior = self._prior.multiply(self._prior.sqrt_solve(eta.to(self._like)))  # P₀ R with R Rᵀ = P₀⁻¹
        generator = self._batches.generator(generator)
        of_data = torch.zeros_like(of_prior)

        def add(tape: Tape, fresh: bool, weights: Tensor | None) -> None:  # noqa: ARG001
            white = torch.randn(tape.rows, tape.outputs, count, dtype=torch.float64, generator=generator)
            of_data.add_(tape.transpose_multiply(white.to(self._like.device)).to(torch.float64))

        self._passes.run(add)
        (total,) = self._batches.sum([of_data])
        return of_prior.add_(total, alpha=self._temperature**-0.5)

    def effective_parameters(self, solution: Solution, count: int) -> float:
        """γ = tr(H A⁻¹) = E[zᵀHz], from the draws and the products A z that the solution ends with."""
        z, moved = solution.x[:, :count], solution.product[:, :count]
        return float((z * (moved - self._prior.multiply(z))).sum() / count)


def _preconditioned(
    options: LaplaceOptions,
    planned: Plan,
    module: nn.Module,
    data: Data,
    prior_precision: PriorPrecision | Literal["auto", "evidence"],
    count: int,
    origin: object,
) -> tuple[LaplaceFit, Precision, str, dict[str, str]]:
    """The fit that gives the gradient, a precision close to A, the name of its structure, and notes on the prior."""

    def fitted(structure: str) -> tuple[LaplaceFit, dict[str, str]]:
        in_structure = replace(options, curved=replace(options.curved, structure=structure))
        if not isinstance(prior_precision, str):
            return in_structure.fit(module, data, prior_precision), {}
        fit, note = automatic(in_structure.fit(module, data), noise=False, origin=origin)
        return fit, {"tuned": note}

    if planned.curvature_bytes <= BLOCKS * FLOAT64 * count * planned.weights:
        fit, tuned = fitted("kfac")
        try:
            return fit, fit.precision(), "preconditioned by Kronecker factors", tuned
        except UnsupportedError:  # a prior that leaves no Kronecker structure
            pass
    fit, tuned = fitted("diagonal")
    return fit, _diagonal(fit), "preconditioned by the diagonal", tuned


def _diagonal(fit: LaplaceFit) -> Precision:
    """diag(H)/T + diag(P₀), for a prior of any structure."""
    diagonal = fit.curvature.precision.diagonal() / fit.temperature
    return DiagonalPrecision(diagonal + fit.prior.diagonal(fit.function.dim).to(diagonal.device))


def _plan(options: LaplaceOptions, module: nn.Module, data: Data, count: int) -> Plan:
    """What is read at once, once the draws are known to fit."""
    planned = plan(
        module, data, likelihood=options.likelihood, structure="kfac", weights=options.weights,
        memory=options.curved.memory, batch_size=options.curved.batch_size,
    )  # fmt: skip
    needed = BLOCKS * FLOAT64 * count * planned.weights + planned.reading_bytes
    require_memory(
        needed,
        f"solving for {2 * count} draws of {planned.weights:,} weights",
        "Ask for fewer samples, or raise memory=.",
        budget=planned.budget,
    )
    return planned


def _pairs(samples: int | None) -> int:
    """How many pairs of draws there are."""
    count = SAMPLES if samples is None else checks.count("samples", samples, least=2)
    if count % 2:
        raise InputError(f"samples: expected an even number, as draws come in pairs, got {count}. Take {count + 1}.")
    return count // 2


def _refuse_ignored(options: LaplaceOptions) -> None:
    if options.curved.curvature != "ggn":
        raise UnsupportedError(f"curvature: the structure 'samples' is of the GGN, got {options.curved.curvature!r}.")
    for name in ("blocks", "rank", "cutoff", "sharing", "output_factor"):
        if getattr(options.curved, name) != getattr(CurvatureOptions, name):
            raise UnsupportedError(f"{name}: the structure 'samples' does not depend on it. Leave it out.")


# Block conjugate gradients: A X = B for many right-hand sides at once, from products with A alone.

Product = Callable[[Tensor], Tensor]

# Directions of the residual below this share of the largest are rounding, and leave the block.
ROUNDING = 1e-14


@final
@dataclass(frozen=True, eq=False)
class Solution:
    """X with A X ≈ B.

    Attributes:
        x: X, shape (P, S).
        product: A X as it was computed in the end, shape (P, S).
        residual: the largest ‖b − A x‖ / ‖b‖ over the columns, from that product; norms are ‖r‖² = rᵀM⁻¹r.
        iterations: how many products with A it took, beside those that check the residual.
        trace: after each product, the residual as the recurrence has it.
    """

    x: Tensor
    product: Tensor
    residual: float
    iterations: int
    trace: tuple[float, ...]


def block_conjugate_gradients(
    product: Product, precondition: Product, b: Tensor, *, tolerance: float, iterations: int
) -> Solution:
    """Solves A X = B for a symmetric positive definite A by block conjugate gradients.

    The residuals R = Q δ are held with Q orthonormal in the inner product of M⁻¹, the preconditioner, so that nothing
    degenerates when right-hand sides converge at different times (O'Leary 1980; Dubrulle 2001, "Retooling the method of
    block conjugate gradients", algorithm BCGrQ): with D = M⁻¹Q at first,

        ξ = (DᵀAD)⁻¹,  X ← X + D ξ δ,  Q′ τ = Q − A D ξ,  D ← M⁻¹Q′ + D τᵀ,  δ ← τ δ.

    Args:
        product: V ↦ A V, shape (P, R) to (P, R).
        precondition: V ↦ M⁻¹ V, with M symmetric positive definite and close to A.
        b: B, shape (P, S).
        tolerance: on ‖r‖/‖b‖ of every column, in the norm of M⁻¹.
        iterations: the most products with A.

    Raises:
        ConvergenceError: if the tolerance is not reached.
    """
    norms = _norms(b, precondition)
    scale = torch.where(norms > 0, norms, 1.0)
    x, rest = torch.zeros_like(b), b / scale
    image = torch.zeros_like(b)
    residual, trace = 1.0, list[float]()
    while residual > tolerance and len(trace) < iterations:
        # The recurrence drifts from the true residual by rounding, that of the products above all: what is left is
        # solved for anew, for as long as that helps.
        before = residual
        x = x + _iterated(product, precondition, rest, tolerance, iterations - len(trace), trace)
        image = product(x)
        rest = b / scale - image
        residual = float(_norms(rest, precondition).max())
        if not residual <= 0.5 * before:
            break
    if not residual <= tolerance:
        raise ConvergenceError(
            f"conjugate gradients: expected a residual of at most {tolerance:.2g} of the right-hand side, got "
            f"{residual:.2g} after {len(trace)} passes over the data. Allow a larger tolerance, give a larger prior "
            "precision, or read the network in float64."
        )
    return Solution(x * norms, image * norms, residual, len(trace), tuple(trace))


def _iterated(
    product: Product, precondition: Product, b: Tensor, tolerance: float, iterations: int, trace: list[float]
) -> Tensor:
    """X from X = 0, once no column of the residual is longer than the tolerance, or after this many products.

    Args:
        product: V ↦ A V.
        precondition: V ↦ M⁻¹ V.
        b: B, of columns of at most unit length.
        tolerance: the length that no column of the residual may exceed.
        iterations: the most products.
        trace: the residual after each product is added to it.
    """
    x = torch.zeros_like(b)
    q, delta, direction = _orthonormal(b, precondition)
    for _ in range(iterations):
        moved = product(direction)
        factor = torch.linalg.cholesky(_symmetric(direction.mT @ moved))
        x = x + direction @ torch.cholesky_solve(delta, factor)
        turned = torch.linalg.solve_triangular(factor, moved.mT, upper=False).mT  # A D L⁻ᵀ, and ξ = L⁻ᵀL⁻¹
        inverse = torch.linalg.solve_triangular(factor, torch.eye(len(factor)).to(factor), upper=False)
        q, tau, image = _orthonormal(q - turned @ inverse, precondition)
        direction = image + direction @ tau.mT
        delta = tau @ delta
        trace.append(float(delta.square().sum(0).sqrt().max()))
        if trace[-1] <= tolerance:
            break
    return x


def _orthonormal(r: Tensor, precondition: Product) -> tuple[Tensor, Tensor, Tensor]:
    """Q, δ and M⁻¹Q with Q δ = R and QᵀM⁻¹Q = I; directions of rounding are left out."""
    image = precondition(r)
    values, vectors = torch.linalg.eigh(_symmetric(r.mT @ image))
    kept = values > ROUNDING * values[-1:].clamp_min(torch.finfo(r.dtype).tiny)
    root, vectors = values[kept].sqrt(), vectors[:, kept]
    q, image = r @ (vectors / root), image @ (vectors / root)
    # Once more: what was far smaller than the rest is orthogonal to it only up to the rounding of the rest.
    again = torch.linalg.cholesky(_symmetric(q.mT @ image))
    turned = [torch.linalg.solve_triangular(again, part.mT, upper=False).mT for part in (q, image)]
    return turned[0], again.mT @ (root[:, None] * vectors.mT), turned[1]


def _symmetric(matrix: Tensor) -> Tensor:
    return 0.5 * (matrix + matrix.mT)


def _norms(r: Tensor, precondition: Product) -> Tensor:
    """The preconditioned norm √(rᵀM⁻¹r) of each column of residuals."""
    return (r * precondition(r)).sum(0).clamp_min(0.0).sqrt()
