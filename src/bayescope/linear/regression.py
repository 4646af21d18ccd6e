"""Bayesian linear regression: the exact posterior and evidence, and the scales that maximise the evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from bayescope.errors import BayescopeWarning, ConvergenceWarning, InputError
from bayescope.likelihoods import Gaussian
from bayescope.linear.density import Again, LinearDensity
from bayescope.linear.evidence import FLAT, GRID, precision_range
from bayescope.linear.groups import GroupedEvidence, WeightGroups, ascend
from bayescope.linear.mode import find_mode, laplace_at
from bayescope.linear.table import Batch
from bayescope.posterior import GaussianPosterior, Record
from bayescope.precision import BlockPrecision, DensePrecision, DiagonalPrecision
from bayescope.priors import Prior
from bayescope.processes import warn_once
from bayescope.storage import stored_function

# The noise variance is sought between these multiples of the mean squared deviation of y.
NOISE_BOUNDS = (1e-12, 1e2)
# Below this share of the mean squared deviation of y there is next to no noise. As many weights as this share of the
# rows explain any y.
NO_NOISE, EXPLAINING = 1e-5, 0.9
# The noise of a constant y, whose noise cannot be learnt: this share of the constant, as a standard deviation.
CONSTANT_NOISE = 1e-12
# A y whose deviations from its mean are all below this many units in the last place of the mean is a constant.
CONSTANT_DIGITS = 16 * np.finfo(float).eps
# Of fewer rows, or weights that count as many, no noise can be learnt.
FEWEST_ROWS = 2
# The sizes of y whose squares, and sums of these, neither vanish nor overflow.
SIZES = (1e-100, 1e100)
POLISH_STEPS = 3
# Newton's steps to the mean of a Gaussian: the first lands there but for rounding, most of which the second takes away.
NEWTON_STEPS = 2


@stored_function("conjugate")
def conjugate(density: LinearDensity) -> GaussianPosterior:
    """p(θ∣y) = N(m, A⁻¹), A = P₀ + Σ JᵀΛJ, with the exact log evidence (Bishop 2006, eqs. 3.49–3.51 and 3.86).

    The log joint of a Gaussian likelihood with known noise is quadratic: Newton's method lands on m in one step but for
    rounding, and a second step takes most of that away. How small the decrement can become depends on the digits of y,
    which may be far from 0. Laplace's formula is exact.

    Outputs with noises and priors of their own are regressions of their own: A has a block for each output, and XᵀX,
    which all blocks share, is summed once.

    Returns:
        A posterior with `log_evidence` and `condition`: data in two parts, one after the other, give the posterior of
        all, and log evidences whose sum is that of all.
    """
    priors = _priors_of_outputs(density)
    if priors is not None:
        return _conjugate_of_each(density, priors)
    near = find_mode(density, density.prior_mean, tolerance=math.inf)
    return laplace_at(find_mode(density, near.theta, tolerance=math.inf), method="conjugate", infer=conjugate)


def _priors_of_outputs(density: LinearDensity) -> list[Tensor] | None:
    """The prior's precision of each output's weights as a matrix; ``None`` of one output, or where outputs are joined.

    The noise of `MultivariateGaussian`, for example, joins outputs.
    """
    model, prior = density.model, density.prior_precision
    if model.outputs == 1 or not isinstance(density.likelihood, Gaussian):
        return None
    if isinstance(prior, DiagonalPrecision):
        each = prior.diagonal()
        return [each[places].diag() for places in model.places_of_outputs]
    blocks = model.blocks_of_outputs(prior)
    return None if blocks is None else [block.to_dense() for block in blocks]


def _conjugate_of_each(density: LinearDensity, priors: Sequence[Tensor]) -> GaussianPosterior:
    """`conjugate` for independent outputs, whose priors have these precisions."""
    model, dim, name = density.model, density.dim, "the precision of the log joint"
    noises = density.likelihood.known("noise_variance").expand(model.outputs)
    one = LinearDensity(replace(model, outputs=1), Gaussian(), Prior(), density.table)

    def products(rows: Batch) -> tuple[Tensor]:
        return (one.gram(rows.features, rows.weighed(rows.features.new_ones(len(rows.features), 1, 1))),)

    (gram,) = one.sum(products, size=one.dim**2)
    blocks = [DensePrecision(gram / noise + prior, name=name) for noise, prior in zip(noises, priors, strict=True)]
    precision = BlockPrecision(blocks, model.places_of_outputs, dim, name=name)
    theta, log_joint = density.prior_mean, density.constant.new_zeros(())
    trace: dict[str, list[float]] = {"log_joint": [], "decrement": []}
    for _ in range(NEWTON_STEPS):
        value, gradient = density.value_and_gradient(theta)
        step = precision.solve(gradient)
        squared = (gradient @ step).clamp(min=0.0)
        step, value, squared = density.table.agreed(step, value, squared)
        theta, log_joint = theta + step, value + 0.5 * squared
        trace["log_joint"].append(float(value))
        trace["decrement"].append(float(squared.sqrt()))
    evidence = log_joint + 0.5 * (dim * math.log(2.0 * math.pi) - precision.logdet())
    record = Record("conjugate", evidence=evidence, trace=trace)
    again = Again(conjugate, model, density.likelihood)
    return GaussianPosterior(theta, precision, record, model, density.likelihood, infer=again)


@final
@dataclass(frozen=True)
class Scales:
    """The prior precision of the weights and the noise variance that maximise the log evidence.

    Attributes:
        prior_precision: α, in one over (the unit of y per unit of x) squared; one a feature, shape (D,), for groups.
        noise_variance: 1/β, in the unit of y squared.
        log_evidence: the log evidence there.
        useless: whether the evidence still rises as α → ∞: the features tell nothing of y, and α/β is the upper bound,
            or infinity for groups.
    """

    prior_precision: float | Tensor
    noise_variance: float
    log_evidence: float
    useless: bool = False


def tune_scales(
    density: LinearDensity,
    *,
    intercept_prior_precision: float | None,
    prior_precision: float | None = None,
    noise_variance: float | None = None,
    scale: Tensor | None = None,
) -> Scales:
    """Maximises the exact log evidence of a regression with one output over α, β = 1/noise, or both.

    It is `tune_scales_of_each` for one output; see there for the arguments.
    """
    (found,) = tune_scales_of_each(
        density,
        intercept_prior_precision=intercept_prior_precision,
        prior_precision=prior_precision,
        noise_variance=None if noise_variance is None else [noise_variance],
        scale=scale,
    )
    return found


def tune_scales_of_each(
    density: LinearDensity,
    *,
    intercept_prior_precision: float | None,
    prior_precision: float | None = None,
    noise_variance: Sequence[float] | None = None,
    scale: Tensor | None = None,
) -> list[Scales]:
    """Maximises the exact log evidence of each output's regression over its own α, β = 1/noise, or both.

    The table is read twice: with the eigenvalues λ of the centred XᵀX, which all outputs share, an evaluation takes
    O(D). With the intercept
    (prior precision τ) integrated out, the weights have precision S = α I + β XᵀX (centred) + c N x̄x̄ᵀ, where
    c = βτ/(βN + τ), and in the eigenbasis this is diagonal plus rank one:

        2 log Z = N log(β/2π) + D log α + log(τ/(βN + τ)) − log∣S∣ − β‖y − ȳ‖² − c N ȳ² + ρᵀS⁻¹ρ,
        ρ = β Xᵀ(y − ȳ) + c N ȳ x̄.

    A flat intercept, of density 1, takes one degree of freedom and leaves no rank one:

        2 log Z = (N − 1) log(β/2π) − log N + D log α − log∣α I + β XᵀX∣ − β‖y − ȳ‖² + ρᵀS⁻¹ρ,    ρ = β Xᵀ(y − ȳ).

    Args:
        density: the table, whose N is the sum of its rows' weights; its prior and noise are not used.
        intercept_prior_precision: τ; ``None`` for a flat intercept.
        prior_precision: α, if it is known; else it is learnt.
        noise_variance: 1/β of each output, if it is known; else it is learnt.
        scale: what each column of X is multiplied by, shape (D,); 1 by default.

    Raises:
        InputError: if the rows' weights count fewer than two rows and the noise is to be learnt, or squares of y vanish
            or overflow.

    Warns:
        ConvergenceWarning: if the maximum is at a bound other than that of useless features: α/β at the lower of
            `BOUNDS` times the largest λ, or the noise at one of `NOISE_BOUNDS` times the mean squared deviation of y.
        BayescopeWarning: if y is constant and the noise is to be learnt: the noise is then next to nothing.
    """
    every = _RegressionSums.of_each(density, scale)
    known = [None] * len(every) if noise_variance is None else noise_variance
    noises = [_noise(sums, noise) for sums, noise in zip(every, known, strict=True)]
    found = []
    for spectrum, noise in zip(_RegressionSpectrum.of_each(every, intercept_prior_precision), noises, strict=True):
        search = _ScaleSearch.over(spectrum, prior_precision, noise)
        (q,) = density.table.agreed(search.maximum())
        alpha, beta = (search.offset + search.matrix @ q).exp().tolist()
        useless, unbounded = search.ends(q)
        if unbounded:
            _warn_unbounded(alpha, beta)
        found.append(Scales(alpha, 1.0 / beta, float(search.log_evidence(q)), useless))
    return found


def tune_group_scales(
    density: LinearDensity,
    groups: WeightGroups,
    *,
    intercept_prior_precision: float | None,
    noise_variance: float | None = None,
    output: int = 0,
) -> Scales:
    """Maximises the exact log evidence over a prior precision for each group of weights, and over the noise.

    The table is read twice. Its Gram matrix has the intercept's column too, where that has a prior.

    Args:
        density: the table; its prior and noise are not used.
        groups: of the features.
        intercept_prior_precision: ``None`` for a flat intercept.
        noise_variance: if it is known; else it is learnt.
        output: the column of y.

    Returns:
        The scales; the prior precisions have shape (D,), infinity where a group is switched off.

    Raises:
        InputError: as `tune_scales`.

    Warns:
        ConvergenceWarning: if the maximum is at a bound other than that of groups that are switched off.
        BayescopeWarning: as `tune_scales`.
    """
    sums = _RegressionSums.of_each(density)[output]
    noise_variance = _noise(sums, noise_variance)
    gram, projected, index, given = sums.gram, sums.projected, groups.index, groups.given
    rows, squares = sums.rows, sums.squares
    if density.model.bias and intercept_prior_precision is None:
        rows -= 1.0
    elif density.model.bias:
        column = torch.cat([sums.centre * sums.rows, gram.new_full((1,), sums.rows)])
        gram = torch.cat([gram + sums.rows * torch.outer(sums.centre, sums.centre), column[None, :-1]])
        gram = torch.cat([gram, column[:, None]], 1)
        projected = torch.cat([projected, projected.new_zeros(1)]) + column * sums.mean
        index, squares = torch.cat([index, index.new_tensor([len(given)])]), squares + sums.rows * sums.mean**2
        given = torch.cat([given, given.new_tensor([intercept_prior_precision])])
    scale = GroupedEvidence.scales(gram, index, len(given))
    evidence = GroupedEvidence(gram, projected, index, given, scale, rows, squares)
    deviation = max(sums.squares / sums.rows, np.finfo(float).tiny)
    ends = [each * deviation for each in NOISE_BOUNDS] if noise_variance is None else [noise_variance] * 2
    highest, lowest = (-math.log(each) for each in ends)
    low, high = evidence.bounds((lowest, highest))
    z = ascend(evidence, evidence.start(low, high), low, high, tolerance=FLAT)
    (z,) = density.table.agreed(z)
    beta = float(z[-1].exp())
    at_end = (z >= high - 1e-6) & (low < high)
    precision = torch.where(given.isnan(), beta / evidence.variances(z), given)[groups.index]
    as_many = int(precision.isfinite().sum()) >= EXPLAINING * rows
    explained = lowest < highest and as_many and beta * deviation > 1.0 / NO_NOISE
    if explained or bool(at_end.any()) or (lowest < highest and float(z[-1]) <= lowest + 1e-6):
        _warn_unbounded(beta / float(evidence.variances(z).max()), beta)
    constant = rows * math.log(2.0 * math.pi) + (math.log(sums.rows) if rows < sums.rows else 0.0)
    return Scales(precision, 1.0 / beta, evidence(z)[0] - 0.5 * constant, bool(precision.isinf().all()))


def _warn_unbounded(alpha: float, beta: float) -> None:
    warn_once(
        f"prior_precision, noise_variance: the evidence has no maximum within range; {alpha:.3g} and "
        f"{1.0 / beta:.3g} are used. y is explained without noise, or the prior is flat. Give them as numbers.",
        ConvergenceWarning,
    )


def _noise(sums: _RegressionSums, noise_variance: float | None) -> float | None:
    """The noise variance if it is known: as it was given, or next to nothing for a constant y."""
    if noise_variance is not None:
        return noise_variance
    if sums.constant:
        noise_variance = (CONSTANT_NOISE * (abs(sums.mean) or 1.0)) ** 2
        warn_once(
            f"y: expected numbers that vary, got the constant {sums.mean:.6g} in each row{sums.place}. It leaves no "
            "noise to learn, so that each prediction is this constant with a standard deviation of "
            f"{noise_variance**0.5:.3g}. Give noise_variance= if y is known to be noisy.",
            BayescopeWarning,
        )
    elif sums.rows < FEWEST_ROWS:
        raise InputError(
            f"sample_weight: expected weights that count at least {FEWEST_ROWS} rows in all, from which noise can be "
            f"learnt, got a sum of {sums.rows:.3g}. Divide the weights by their mean, or give noise_variance=."
        )
    return noise_variance


@final
@dataclass(frozen=True)
class _RegressionSums:
    """What the evidence of one output needs of the table.

    Attributes:
        rows: N, the sum of the weights.
        gram: the centred XᵀX, shape (D, D).
        projected: Xᵀ(y − ȳ), shape (D,).
        centre: x̄, shape (D,); zero without an intercept.
        squares: ‖y − ȳ‖².
        mean: ȳ; zero without an intercept.
        bias: whether there is an intercept.
        place: where y stands, for messages: " of column 1"; nothing of a single column.
    """

    rows: float
    gram: Tensor
    projected: Tensor
    centre: Tensor
    squares: float
    mean: float
    bias: bool
    place: str

    @classmethod
    def of_each(cls, density: LinearDensity, scale: Tensor | None = None) -> list[_RegressionSums]:
        """Of each output; reads the table twice, the second time for what is centred: XᵀX − N x̄x̄ᵀ cancels far from 0.

        The matrix is the same tensor for all outputs.
        """
        columns, outputs, bias = density.model.features, density.model.outputs, density.model.bias
        rows = density.table.total
        factor = torch.ones(columns, dtype=torch.float64) if scale is None else scale

        def centres(part: Batch) -> tuple[Tensor, ...]:
            y = part.weighed(part.targets).sum(0)
            return y, part.features.sum(0) if part.weights is None else part.weights @ part.features

        mean, centre = torch.zeros(outputs, dtype=torch.float64), torch.zeros(columns, dtype=torch.float64)
        if bias:
            mean, centre = (total / rows for total in density.sum(centres, size=columns + outputs))

        def squares(part: Batch) -> tuple[Tensor, ...]:
            centred, deviation = part.features - centre, part.targets - mean
            rooted = centred if part.weights is None else centred * part.weights.sqrt()[:, None]
            weighed = part.weighed(deviation)
            return rooted.mT @ rooted, weighed.mT @ centred, (weighed * deviation).sum(0)

        gram, projected, deviations = density.sum(squares, size=columns * (columns + outputs))
        gram, centre = gram * factor * factor[:, None], centre * factor
        found = []
        for c in range(outputs):
            place = f" of column {c}" if outputs > 1 else ""
            size = float((deviations[c] / rows + mean[c].square()).sqrt()) or abs(float(mean[c]))
            if size and not SIZES[0] < size < SIZES[1]:
                raise InputError(
                    f"y: expected numbers whose squares have a sum, of a size between {SIZES[0]:g} and {SIZES[1]:g}, "
                    f"got {size:.3g} on average{place}. Multiply y by a constant."
                )
            square, y = float(deviations[c]), float(mean[c])
            found.append(cls(rows, gram, projected[c] * factor, centre, square, y, bias, place))
        return found

    @property
    def constant(self) -> bool:
        """Whether y is a constant, up to the rounding of its mean."""
        return bool(self.squares <= (CONSTANT_DIGITS * self.mean * math.sqrt(self.rows)) ** 2)


@final
@dataclass(frozen=True)
class _RegressionSpectrum:
    """What the evidence needs of the table, in the eigenbasis of the centred XᵀX.

    Attributes:
        rows: N, the sum of the weights.
        values: λ, shape (D,).
        projected: Vᵀ Xᵀ(y − ȳ), shape (D,).
        centre: √N Vᵀx̄, shape (D,); zero without an intercept.
        squares: ‖y − ȳ‖².
        mean: √N ȳ; zero without an intercept.
        intercept: τ; 0 without an intercept, and for a flat one.
        flat: whether there is a flat intercept.
    """

    rows: float
    values: Tensor
    projected: Tensor
    centre: Tensor
    squares: float
    mean: float
    intercept: float
    flat: bool

    @classmethod
    def of_each(cls, every: Sequence[_RegressionSums], intercept: float | None) -> list[_RegressionSpectrum]:
        """Those of each output, in the eigenbasis of the matrix that all share."""
        first = every[0]
        root, bias = math.sqrt(first.rows), first.bias
        values, vectors = torch.linalg.eigh(first.gram)
        values = values.clamp(min=0.0)  # eigenvalues of a Gram matrix: below zero by rounding alone
        centre = vectors.mT @ (first.centre * root)
        tau, flat = (intercept or 0.0) if bias else 0.0, bias and intercept is None
        return [
            cls(first.rows, values, vectors.mT @ sums.projected, centre, sums.squares, sums.mean * root, tau, flat)
            for sums in every
        ]

    def log_evidence(self, point: Tensor) -> Tensor:
        """log Z, shape (...), at (log α, log β) of shape (..., 2)."""
        log_alpha, log_beta = point.unbind(-1)
        alpha, beta = log_alpha.exp(), log_beta.exp()
        coupling = beta * self.intercept / (beta * self.rows + self.intercept) if self.intercept else 0.0 * beta
        precision = alpha[..., None] + beta[..., None] * self.values
        linear = beta[..., None] * self.projected + (coupling * self.mean)[..., None] * self.centre
        along = 1.0 + coupling * (self.centre.square() / precision).sum(-1)
        fitted = (linear.square() / precision).sum(-1)
        fitted = fitted - coupling * (self.centre * linear / precision).sum(-1).square() / along
        determinant = precision.log().sum(-1) + along.log()
        if self.intercept:
            determinant = determinant + torch.log1p(beta * self.rows / self.intercept)
        constant = (self.rows - self.flat) * (log_beta - math.log(2.0 * math.pi)) + self.values.shape[0] * log_alpha
        constant = constant - self.flat * math.log(self.rows)
        return 0.5 * (constant - determinant - beta * self.squares - coupling * self.mean**2 + fitted)

    def best_log_beta(self, log_ratio: Tensor) -> Tensor:
        """The log β of the highest evidence for given log(α/β), shapes (T, 1), but for the intercept's prior."""
        explained = (self.projected.square() / (self.values + log_ratio.exp())).sum(-1, keepdim=True)
        freedom = max(self.rows - self.flat, np.finfo(float).tiny)
        return math.log(freedom) - (self.squares - explained).clamp(min=np.finfo(float).tiny).log()


@final
@dataclass(frozen=True)
class _ScaleSearch:
    """The free scales q, shape (K,): log(α/β) and log β, or the one of α and β that is not known.

    Attributes:
        spectrum: the evidence.
        offset: (log α, log β) at q = 0.
        matrix: ∂(log α, log β)/∂q, shape (2, K).
        low: the lower bounds of q.
        high: the upper bounds of q.
        ratio_free: whether the first of q is log(α/β).
    """

    spectrum: _RegressionSpectrum
    offset: Tensor
    matrix: Tensor
    low: np.ndarray
    high: np.ndarray
    ratio_free: bool

    @classmethod
    def over(
        cls, spectrum: _RegressionSpectrum, prior_precision: float | None, noise_variance: float | None
    ) -> _ScaleSearch:
        """The scales that are not known."""
        largest = float(spectrum.values.max())
        deviation = max(spectrum.squares / spectrum.rows, np.finfo(float).tiny)
        low, high, informed = precision_range(largest, spectrum.rows)
        ratio = [low if informed else high, high]
        beta = [-math.log(bound * deviation) for bound in reversed(NOISE_BOUNDS)]
        log_alpha = 0.0 if prior_precision is None else math.log(prior_precision)
        log_beta = 0.0 if noise_variance is None else -math.log(noise_variance)
        free_alpha, free_beta = prior_precision is None, noise_variance is None
        columns = [[1.0, 0.0]] * free_alpha + [[1.0 * free_alpha, 1.0]] * free_beta
        box = np.array([ratio] * free_alpha + [beta] * free_beta).reshape(-1, 2)
        return cls(
            spectrum,
            torch.tensor([log_alpha + log_beta * free_alpha, log_beta], dtype=torch.float64),
            torch.tensor(columns, dtype=torch.float64).reshape(-1, 2).mT,
            box[:, 0],
            box[:, 1],
            free_alpha,
        )

    def log_evidence(self, q: Tensor) -> Tensor:
        """log Z, shape (...), for q of shape (..., K)."""
        return self.spectrum.log_evidence(self.offset + q @ self.matrix.mT)

    def maximum(self) -> Tensor:
        """The q of the highest evidence: the best of a grid, a quasi-Newton climb, Newton's steps to the last digit."""
        if self.low.size == 0:
            return torch.zeros(0, dtype=torch.float64)
        grid = torch.linspace(float(self.low[0]), float(self.high[0]), GRID, dtype=torch.float64)[:, None]
        if self.low.size == 2:
            grid = torch.cat([grid, self.spectrum.best_log_beta(grid).clamp(self.low[1], self.high[1])], dim=-1)
        start = grid[self.log_evidence(grid).argmax()]
        box = list(zip(self.low.tolist(), self.high.tolist(), strict=True))
        climb = minimize(self._negative, start.numpy(), jac=True, method="L-BFGS-B", bounds=box)
        return self._polish(torch.from_numpy(climb.x))

    def ends(self, q: Tensor) -> tuple[bool, bool]:
        """Whether α/β ended at its upper bound, and whether a free scale ended at another bound."""
        low, high = (q.numpy() <= self.low + 1e-6) & (self.low < self.high), q.numpy() >= self.high - 1e-6
        useless = self.ratio_free and bool(high[0])
        return useless, bool(low.any() or high[int(self.ratio_free) :].any())

    def _negative(self, q: np.ndarray) -> tuple[float, np.ndarray]:
        with torch.enable_grad():
            point = torch.tensor(q, requires_grad=True)
            value = -self.log_evidence(point)
            (gradient,) = torch.autograd.grad(value, point)
        return float(value.detach()), gradient.numpy()

    def _polish(self, q: Tensor) -> Tensor:
        for _ in range(POLISH_STEPS):
            inside = torch.from_numpy((q.numpy() > self.low) & (q.numpy() < self.high))
            gradient = -torch.from_numpy(self._negative(q.numpy())[1])
            hessian = torch.autograd.functional.hessian(self.log_evidence, q)
            step = torch.zeros_like(q)
            step[inside] = torch.linalg.solve(-hessian[inside][:, inside], gradient[inside])
            moved = q + step
            if (step.abs() > 0.1).any() or (moved.numpy() < self.low).any() or (moved.numpy() > self.high).any():
                break  # flat or not yet concave: the climb's own answer stands
            q = moved
        return q
