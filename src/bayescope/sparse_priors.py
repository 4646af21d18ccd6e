"""Priors for weights of which a few matter: the regularised horseshoe, and Laplace's (the Bayesian lasso).

Both are scale mixtures of Gaussians. The C weights w_j of input j have

    p(w_j∣λ_j, τ) ∝ N(w_j; 0, τ²λ_j² I) N(w_j; 0, c² I),    λ_j ~ p(λ),    τ ~ C⁺(0, s) or known,

with λ_j ~ C⁺(0, 1) and τ ≤ s for the horseshoe, and λ_j² ~ Exp(½) for Laplace's prior, which has no slab: c = ∞. The
slab is the Gaussian factor of width c. p(w_j, λ_j∣τ) is normalised for each τ by

    z(τ) = E_{p(λ)} (1 + τ²λ²/c²)^{−C/2}.

**The scales integrated out.** For q(w) with the mean squares m_j = E_q‖w_j‖², the best q(λ, τ) that is independent of
q(w) puts log p at the root mean squares into the bound in the place of E_q[log p(w)] (Palmer et al. 2006, Variational
EM algorithms for non-Gaussian latent variable models; for the horseshoe Neville, Ormerod & Wand 2014, Mean field
variational Bayes for continuous sparse signal shrinkage):

    Φ(m) = log ∫ p(τ) Π_j k(√m_j/τ) τ^{−C} e^{−m_j/2c²}/z(τ) dτ,    k(x) = ∫ p(λ) (2πλ²)^{−C/2} e^{−x²/2λ²} dλ.

Φ is convex in m. So its tangent, which is the expected log density of a Gaussian with the precisions
p_j = −2 ∂Φ/∂m_j = E_q[1/τ²λ_j²] + 1/c², touches it from below, and each fit under this Gaussian raises the bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol, final

import numpy as np
import torch
from scipy.special import erfcx, exp1, expit, gammaln, kve, logit, logsumexp
from torch import Tensor

from bayescope import checks
from bayescope.storage import stored

Array = np.ndarray
# The default slab, in units of how far f varies.
SLAB = 2.0
# Points of the grids over log τ that narrow it to where its density is not negligible, and of the rule used there.
GRIDS, LEGENDRE = (33, 33), np.polynomial.legendre.leggauss(80)
NEGLIGIBLE = 32.0
# Grids reach this far beyond all lengths of the problem, in log τ: the density falls at least like τ^{±1}.
MARGIN = 20.0
# Above this argument a continued fraction gives `cauchy_transform`, below it a recursion.
CROSSOVER, TERMS = 4.0, 24
# SciPy has Bessel functions of arguments up to 2³⁰.
LARGE = 1e8
# The trapezoidal rule over log λ for z(τ): the integrand is analytic within ±π/2, so that the error is e^{−2π·π/2h}.
LOG_LOCAL = np.arange(-160, 161) * 0.25


class ScalePosterior(NamedTuple):
    """What q(λ, τ) makes of the mean squares of the weights.

    Attributes:
        log_prior: Φ, a scalar.
        precision: p_j of the weights of each input, shape (D,).
        slope: ∂Φ/∂ log s, a scalar; of a known τ, with which the weights' scale moves, ∂Φ/∂ log τ.
    """

    log_prior: Tensor
    precision: Tensor
    slope: Tensor


class LocalScale(Protocol):
    """The distribution of λ."""

    def kernel(self, x: Array, size: int) -> tuple[Array, Array]:
        """log k(x), and E[1/λ²] under p(λ) N(x; 0, λ²I), for ‖w_j‖/τ = x of C weights."""

    def log_density(self, log_scale: Array) -> tuple[Array, Array]:
        """The log density of log λ and its slope."""


@final
class HalfCauchy:
    """λ ~ C⁺(0, 1)."""

    def kernel(self, x: Array, size: int) -> tuple[Array, Array]:
        order, g = 0.5 * (size + 1), 0.5 * np.square(x)
        here, above = (log_cauchy_transform(a, g) for a in (order, order + 1.0))
        return here - math.log(math.pi) - 0.5 * size * math.log(2.0 * math.pi), np.exp(above - here)

    def log_density(self, log_scale: Array) -> tuple[Array, Array]:
        return log_half_cauchy(log_scale)


@final
class RootExponential:
    """λ² ~ Exp(½), which makes a single weight Laplace's: p(w) = e^{−∣w∣/τ}/2τ."""

    def kernel(self, x: Array, size: int) -> tuple[Array, Array]:
        order, near = 1.0 - 0.5 * size, np.minimum(x, LARGE)
        here = kve(order, near)
        log_bessel = np.log(here) + 0.5 * np.log(near / x) - x  # beyond LARGE its leading term
        constant = -0.5 * size * math.log(2.0 * math.pi)
        return constant + order * np.log(x) + log_bessel, kve(order - 1.0, near) / (x * here)

    def log_density(self, log_scale: Array) -> tuple[Array, Array]:
        square = np.exp(2.0 * log_scale)
        return 2.0 * log_scale - 0.5 * square, 2.0 - square


@final
@dataclass(frozen=True)
class ScaleMixture:
    """A sparse prior with its scales in the units of the weights.

    Attributes:
        local: the distribution of λ.
        scale: s, or τ itself where it is known.
        known: whether τ is known.
        slab: c.
        cut: whether τ is at most s.
        moving: whether s moves with the width of the likelihood, 1/√(mean Λ), where its hyperparameters are learnt.
    """

    local: LocalScale
    scale: float
    known: bool = False
    slab: float = math.inf
    cut: bool = False
    moving: bool = False

    def posterior(self, squares: Tensor, size: int) -> ScalePosterior:
        """Φ and the precisions at the mean squares m_j of C weights each, shape (D,)."""
        x = np.sqrt(np.maximum(squares.numpy(), np.finfo(float).tiny))
        log_tau, log_weights = self._nodes(x, size)
        each, inverse = self.local.kernel(x * np.exp(-log_tau)[:, None], size)
        log_joint = self._log_global(log_tau, each, x, size) + log_weights
        total = float(logsumexp(log_joint))
        share, inverse = np.exp(log_joint - total), inverse * np.exp(-2.0 * log_tau)[:, None]
        precision = torch.from_numpy(share @ inverse + self.slab**-2.0)
        # At a fixed τ/s: ∂ log k(x/τ)/∂ log τ = x²/τ² E[1/λ²].
        slope = share @ (inverse @ x**2 - len(x) * (size + self.log_normaliser(log_tau, size)[1]))
        return ScalePosterior(torch.tensor(total, dtype=torch.float64), precision, torch.tensor(slope))

    def log_normaliser(self, log_tau: Array, size: int) -> tuple[Array, Array]:
        """log z(τ) and its slope in log τ."""
        if math.isinf(self.slab):
            return np.zeros_like(log_tau), np.zeros_like(log_tau)
        reach = 2.0 * (log_tau[..., None] + LOG_LOCAL - math.log(self.slab))
        log_each = self.local.log_density(LOG_LOCAL)[0] - 0.5 * size * np.logaddexp(0.0, reach)
        weights = np.exp(log_each)
        total = weights.sum(-1)
        slope = -size * (weights / (1.0 + np.exp(-reach))).sum(-1) / total
        return np.log(total * (LOG_LOCAL[1] - LOG_LOCAL[0])), slope

    def global_scale(self, v: Array) -> tuple[Array, Array, Array, Array]:
        """log τ at a coordinate v on the real line, its slope there, and the log density of v with its slope.

        v is log τ/s, and where τ is at most s the log odds of τ/s.
        """
        if self.known:
            return math.log(self.scale) + 0.0 * v, 0.0 * v, 0.0 * v, 0.0 * v
        if not self.cut:
            return math.log(self.scale) + v, np.ones_like(v), *log_half_cauchy(v)
        u, rate = -np.logaddexp(0.0, -v), expit(-v)
        density, slope = log_half_cauchy(u)
        return math.log(self.scale) + u, rate, density + np.log(2.0 * rate), rate * slope + rate - 1.0

    def coordinate(self, log_tau: float) -> float:
        """v of a log τ, or of the nearest that is well inside its range."""
        below = log_tau - math.log(self.scale)
        return float(logit(math.exp(min(below, math.log(0.5))))) if self.cut else 0.0 if self.known else below

    def _nodes(self, x: Array, size: int) -> tuple[Array, Array]:
        """Gauss–Legendre nodes of log τ where its density is not negligible, and the logarithms of their weights."""
        if self.known:
            return np.array([math.log(self.scale)]), np.zeros(1)
        ends = np.log([x.min(), x.max(), self.scale])
        low, high = ends.min() - MARGIN, ends[2] if self.cut else ends.max() + MARGIN
        for points in GRIDS:
            log_tau = np.linspace(low, high, points)
            each = self.local.kernel(x * np.exp(-log_tau)[:, None], size)[0]
            log_joint = self._log_global(log_tau, each, x, size)
            near = np.flatnonzero(log_joint > log_joint.max() - NEGLIGIBLE)
            low, high = log_tau[max(near[0] - 1, 0)], log_tau[min(near[-1] + 1, points - 1)]
        half = 0.5 * (high - low)
        return low + half * (1.0 + LEGENDRE[0]), np.log(half * LEGENDRE[1])

    def _log_global(self, log_tau: Array, each: Array, x: Array, size: int) -> Array:
        """log of p(τ) times the integrand of Φ, by τ."""
        normaliser = len(x) * (self.log_normaliser(log_tau, size)[0] + size * log_tau)
        slab = 0.5 * float(np.square(x / self.slab).sum())
        known = 0.0 if self.known else log_half_cauchy(log_tau - math.log(self.scale))[0] + self.cut * math.log(2.0)
        return known + each.sum(1) - normaliser - slab


@stored("horseshoe")
@final
@dataclass(frozen=True)
class Horseshoe:
    """The regularised horseshoe: most weights next to nothing, a few as large as the data say.

    w_j∣λ_j, τ ~ N(0, τ²λ̃_j²) with 1/(τ²λ̃_j²) = 1/(τ²λ_j²) + 1/c², λ_j ~ C⁺(0, 1), τ ~ C⁺(0, s) up to s (Piironen &
    Vehtari 2017, Sparsity information and regularization in the horseshoe and other shrinkage priors; the slab as a
    factor of the density, as in Nishimura & Suchard 2023, Shrinkage with shrunken shoulders; the bound on τ as in
    van der Pas, Szabó & van der Vaart 2017, Adaptive posterior contraction rates for the horseshoe). The weights of an
    input for all outputs share λ_j.

    It is for linear estimators, as their ``prior_precision=``; "horseshoe" stands for ``Horseshoe()``.

    Args:
        scale: s, in the unit of f per unit of input. ``None`` for p₀/(D − p₀) v/√N = v √N/(N + 2D) of
            D inputs, with p₀ = ½ DN/(D + N) (Piironen & Vehtari 2017): v is the sd of Gaussian noise, and in general
            1/√(mean Λ) with Λ = −∂² log p(y∣f)/∂f² at the best constant f. At v/√N a weight of a standardised input is
            shrunk by half, and p₀ inputs are expected to matter at most: about half of few inputs, half as many as rows
            of many. Where the noise is learnt, s moves with it. If fewer are known to matter, a smaller p₀ is sharper.
        slab: c, in the same unit; infinite for none. ``None`` for 2u: u is the sd of y for a Gaussian outcome, and in
            general √(mean g²)/mean Λ, with g = ∂ log p(y∣f)/∂f at the best constant f.

    Raises:
        InputError: if a number is not positive.

    Examples:
        >>> import bayescope as bs
        >>> model = bs.BayesianLinearRegression(prior_precision=bs.Horseshoe(slab=1.0))
    """

    scale: float | None = None
    slab: float | None = None

    def __post_init__(self) -> None:
        for name in ("scale", "slab"):
            value = getattr(self, name)
            if value is not None and value != math.inf:
                object.__setattr__(self, name, checks.positive_number(name, value))

    def mixture(self, unit: float, width: float, rows: float, inputs: int) -> ScaleMixture:
        """The prior of so many inputs, where f varies by a unit between rows and each tells it to within a width."""
        scale = rows / (rows + 2.0 * inputs) * width / math.sqrt(rows) if self.scale is None else self.scale
        slab = SLAB * unit if self.slab is None else self.slab
        return ScaleMixture(HalfCauchy(), scale, slab=slab, cut=True, moving=self.scale is None)


@stored("laplace_prior")
@final
@dataclass(frozen=True)
class LaplacePrior:
    """Laplace's prior, that of the Bayesian lasso: p(w_j) = e^{−∣w_j∣/τ}/2τ (Park & Casella 2008).

    Of several outputs, whose weights w_j share a scale, the density depends on ‖w_j‖. It is for linear estimators, as
    their ``prior_precision=``; "laplace" stands for ``LaplacePrior()``.

    Args:
        scale: τ, in the unit of f per unit of input; ``None`` for τ ~ C⁺(0, u/√N), with u as for a `Horseshoe`'s slab.

    Raises:
        InputError: if it is not positive.

    Examples:
        >>> import bayescope as bs
        >>> model = bs.BayesianLinearRegression(prior_precision=bs.LaplacePrior(scale=0.5))
    """

    scale: float | None = None

    def __post_init__(self) -> None:
        if self.scale is not None:
            object.__setattr__(self, "scale", checks.positive_number("scale", self.scale))

    def mixture(self, unit: float, width: float, rows: float, inputs: int) -> ScaleMixture:
        """The prior where f varies by a unit between so many rows."""
        scale = unit / math.sqrt(rows) if self.scale is None else self.scale
        return ScaleMixture(RootExponential(), scale, known=self.scale is not None)


SparsePrior = Horseshoe | LaplacePrior


def log_half_cauchy(u: Array) -> tuple[Array, Array]:
    """The log density of u = log x for x ~ C⁺(0, 1), and its slope."""
    return math.log(2.0 / math.pi) + u - np.logaddexp(0.0, 2.0 * u), -np.tanh(u)


def log_cauchy_transform(a: float, g: Array) -> Array:
    """log H_a(g), H_a(g) = ∫ η^{a−1} e^{−gη}/(1 + η) dη = Γ(a) e^g Γ(1 − a, g), for 2a a whole number, a ≥ ½.

    For small g by H_{a+1} = Γ(a) g^{−a} − H_a from H_1 = e^g E₁(g) or H_½ = π erfcx(√g); for large g by the continued
    fraction of the incomplete gamma function (DLMF 8.9.2).
    """
    far = g > CROSSOVER
    large, small = g[far], np.where(far, CROSSOVER, g)
    fraction = large + a + 2.0 * TERMS
    for k in range(TERMS, 0, -1):
        fraction = large + a + 2.0 * (k - 1) - k * (a + k - 1.0) / fraction
    whole = a == math.floor(a)
    order, found = (1.0, np.exp(small) * exp1(small)) if whole else (0.5, math.pi * erfcx(np.sqrt(small)))
    while order < a:
        found = np.exp(gammaln(order) - order * np.log(small)) - found
        order += 1.0
    log_found = np.log(found)
    log_found[far] = gammaln(a) + (1.0 - a) * np.log(large) - np.log(fraction)
    return log_found
