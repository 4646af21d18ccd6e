"""Regression with noise that is an output of the model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, final

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError
from bayescope.likelihoods.curvatures import DiagonalLambdas, Lambdas
from bayescope.likelihoods.likelihood import Domain, Integral, Likelihood, Moments, variances
from bayescope.likelihoods.mixtures import information_of_mixture
from bayescope.likelihoods.quasi_monte_carlo import NODES, SCRAMBLES, by_rows, nodes, principal_root
from bayescope.likelihoods.targets import numbers_in_columns
from bayescope.quadrature import log_integral
from bayescope.storage import stored

_PARAMETRIZATIONS = ("mean_log_variance", "natural")
_LOG_ROOT_TAU = 0.5 * math.log(2 * math.pi)
# The outcome is handed out as this many Gaussians, at log variances up to this many sds from their mean. In natural
# parameters the mean moves with the log variance, and needs more of them.
_COMPONENTS, _NATURAL_COMPONENTS = 129, 257
_REACH = 7.5
# Integrands are followed down to exp(−_DEPTH) of their peak, and log variances as far as their squares are float64.
_DEPTH = 42.0
_LARGEST = 300.0
_ROW_BLOCK = 1024


@stored("heteroscedastic_gaussian")
@final
@dataclass(frozen=True)
class HeteroscedasticGaussian(Likelihood):
    """p(y∣f) = Π_d N(y_d; m_d, σ²_d) for D targets and C = 2D outputs, the D first ones of one kind, then D of another.

    Canonical targets are float64 of shape (N, D). The outputs are, by parametrisation,

    - "mean_log_variance": f = (m, s), s = log σ². The observed Λ is indefinite, so the GGN takes the expected one,
      diag(1/σ², ½), which is the Fisher's.
    - "natural": f = (η₁, log(−2η₂)) for the natural parameters η₁ = m/σ², η₂ = −1/(2σ²) (Immer, Palumbo, Marx & Vogt
      2023, section 3): the second output is the log precision, so that exp is the map that keeps η₂ negative.
      In η the observed Λ is the expected one; the GGN counts the exp as part of the model: per target
      ((σ², −m), (−m, m²/σ² + ½)).

    For f ~ N(mean, cov), with t = log σ² and v its variance, all moments are exact: the aleatoric variance is
    E[σ²] = exp(E[t] + v/2), the epistemic one Var[m]; log densities integrate m in closed form and t by quadrature, to
    1e-9. With several targets whose outputs are correlated, log p(y) is that of the joint, by randomised quasi-Monte
    Carlo over the D log variances in those rows.

    Args:
        parametrization: "mean_log_variance" or "natural".

    Raises:
        OptionError: if the parametrisation is unknown.
    """

    parametrization: Literal["mean_log_variance", "natural"] = "mean_log_variance"

    def __post_init__(self) -> None:
        checks.choice("parametrization", self.parametrization, _PARAMETRIZATIONS)

    name = "heteroscedastic_gaussian"
    gaussian_outcome = True

    def in_unit(self, scale: Tensor) -> HeteroscedasticGaussian:
        """The same: its outputs are in the unit of y."""
        return self

    @property
    def domain(self) -> Domain:
        """Numbers; E(y_d∣f) is an output, but in natural parameters it is η₁σ²."""
        return Domain("numbers", elementwise=not self.natural)

    def targets(self, y: ArrayLike, outputs: int) -> Tensor:
        """Checks finite numbers and returns them in float64, shape (N, D).

        Args:
            y: shape (N,) or (N, 1) for D = 1, else (N, D).
            outputs: C = 2D.

        Raises:
            InputError: if C is odd, the shape does not fit or a number is not finite.
        """
        if outputs % 2 or outputs < 2:
            raise InputError(
                f"outputs: expected two for each target (all means, then all log variances), got {outputs}."
            )
        return numbers_in_columns(y, outputs // 2, outputs)

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Σ_d log N(y_d; m_d, σ²_d), shape (..., N)."""
        m, t = self._mean_and_log_variance(f)
        return (-0.5 * ((y.to(f) - m).square() * torch.exp(-t) + t) - _LOG_ROOT_TAU).sum(-1)

    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        """∂ log p/∂f, shape (..., N, C), with e = y − m.

        (e/σ², ½(e²/σ² − 1)), or (e, ½(1 − e(y + m)/σ²)) in natural parameters.
        """
        m, t = self._mean_and_log_variance(f)
        error, precision = y.to(f) - m, torch.exp(-t)
        if self.natural:
            return torch.cat([error, 0.5 * (1.0 - precision * error * (y.to(f) + m))], -1)
        return torch.cat([precision * error, 0.5 * (precision * error.square() - 1.0)], -1)

    def observed(self, f: Tensor, y: Tensor) -> PairLambdas:
        """The observed Λ: indefinite where y is far from m, and not what the GGN takes.

        Per target ((1/σ², e/σ²), (e/σ², e²/(2σ²))), or ((σ², −m), (−m, (y² + m²)/(2σ²))) in natural parameters.
        """
        m, t = self._mean_and_log_variance(f)
        precision, y = torch.exp(-t), y.to(f)
        if self.natural:
            return PairLambdas(torch.exp(t), -m, 0.5 * precision * (y.square() - m.square()))
        error = y - m
        return PairLambdas(precision, precision * error, -0.5 * precision * error.square())

    def expected(self, f: Tensor) -> Lambdas:
        """The expected Λ: per target diag(1/σ², ½), or ((σ², −m), (−m, m²/σ² + ½)) in natural parameters."""
        m, t = self._mean_and_log_variance(f)
        half = torch.full_like(m, 0.5)
        if self.natural:
            return PairLambdas(torch.exp(t), -m, half)
        return DiagonalLambdas(torch.cat([torch.exp(-t), half], -1))

    def ggn(self, f: Tensor, y: Tensor) -> Lambdas:
        """The expected Λ, as the observed one is indefinite."""
        return self.expected(f)

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """m plus noise, float64, shape (..., N, D)."""
        m, t = self._mean_and_log_variance(f.to(torch.float64))
        standard = torch.randn(m.shape, dtype=torch.float64, device=generator.device, generator=generator)
        return m + torch.exp(0.5 * t) * standard.to(f.device)

    def conditional(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """m and σ², each (..., N, D)."""
        m, t = self._mean_and_log_variance(f)
        return m, torch.exp(t)

    @property
    def integrals(self) -> Mapping[str, Integral]:
        return {"quadrature": _OverLogVariance(self.natural)}

    @property
    def natural(self) -> bool:
        """Whether the outputs are natural parameters."""
        return self.parametrization == "natural"

    def _mean_and_log_variance(self, f: Tensor) -> tuple[Tensor, Tensor]:
        first, second = _halves(f)
        return (first * torch.exp(-second), -second) if self.natural else (first, second)


@final
@dataclass(frozen=True)
class _OverLogVariance(Integral):
    """Moments in closed form; log densities by quadrature over the log variance, to 1e-9."""

    natural: bool

    def moments(self, mean: Tensor, cov: Tensor) -> Moments:
        """E[m], E[σ²] and Var[m], each (N, D), in closed form.

        With a = η₁, t = log σ² and c = Cov(a, t), the moments of m = a eᵗ under a Gaussian are
        E[m] = (E[a] + c) exp(E[t] + v/2) and E[m²] = ((E[a] + 2c)² + Var[a]) exp(2E[t] + 2v).
        """
        pair = self._pairs(mean, cov)
        aleatoric = torch.exp(pair.t + 0.5 * pair.t_variance)
        if not self.natural:
            return Moments(pair.a, aleatoric, pair.a_variance)
        c, v = pair.covariance, pair.t_variance
        # E[m²] − E[m]², with E[σ²]² taken out and the squares subtracted by hand
        spread = (pair.a + 2.0 * c).square() * torch.expm1(v) + c * (2.0 * pair.a + 3.0 * c) + pair.a_variance * v.exp()
        return Moments((pair.a + c) * aleatoric, aleatoric, aleatoric.square() * spread)

    def log_prob(self, mean: Tensor, cov: Tensor, y: Tensor) -> Tensor:
        blocks = zip(mean.split(_ROW_BLOCK), cov.split(_ROW_BLOCK), y.split(_ROW_BLOCK), strict=True)
        log_prob = torch.cat([self._pairs(m, c).log_density(label, natural=self.natural) for m, c, label in blocks])
        log_prob = log_prob.sum(-1)
        same = torch.eye(y.shape[-1], dtype=torch.bool, device=cov.device).repeat(2, 2)
        correlated = torch.where(same, 0.0, cov).flatten(1).any(-1)
        if correlated.any():
            joint = self._joint_log_density(mean[correlated], cov[correlated], y[correlated])
            log_prob = log_prob.index_put((correlated,), joint)
        return log_prob

    def information(self, mean: Tensor, cov: Tensor) -> Tensor:
        """Σ_d I(y_d; t) + E[I(y_d; m∣t)] for t = log σ², shape (N,).

        Given t, y is Gaussian with some variance v(t), and the second term is E[½ log(v(t)/eᵗ)]. Both are taken over
        the t of `components`.
        """
        pair = self._pairs(mean, cov)
        weights, centres, spread = self._components(pair)
        noise = pair.t + pair.t_variance.sqrt() * self._scores(mean)[:, None, None]
        within = torch.tensordot(weights.exp(), 0.5 * (spread - noise), dims=1).sum(-1)
        return within + information_of_mixture(weights, centres, spread.exp())

    def components(self, mean: Tensor, cov: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The outcome as Gaussians at evenly spaced log variances: log weights (S,), means and variances (S, N, D).

        Given t, the other output is Gaussian, and so is y. S is 129, or 257 in natural parameters: quantiles are right
        to 1e-9 standard deviations for outputs with sds up to 1.
        """
        weights, centres, log_variances = self._components(self._pairs(mean, cov))
        return weights, centres, log_variances.exp()

    def _components(self, pair: _Pair) -> tuple[Tensor, Tensor, Tensor]:
        """Log weights (S,), and means and log variances of y, each (S, N, D)."""
        z = self._scores(pair.t)
        centres, log_variances = pair.outcome(z, natural=self.natural)
        return torch.log_softmax(-0.5 * z.square(), 0), centres.movedim(-1, 0), log_variances.movedim(-1, 0)

    def _scores(self, like: Tensor) -> Tensor:
        """Where the components are, in sds of the log variance from its mean, shape (S,)."""
        count = _NATURAL_COMPONENTS if self.natural else _COMPONENTS
        return torch.linspace(-_REACH, _REACH, count, dtype=torch.float64, device=like.device)

    def _pairs(self, mean: Tensor, cov: Tensor) -> _Pair:
        sign = -1.0 if self.natural else 1.0
        first, second = _halves(mean)
        covariance = cov.diagonal(offset=first.shape[-1], dim1=-2, dim2=-1)
        first_variance, second_variance = _halves(variances(cov))
        return _Pair(first, first_variance, sign * second, second_variance, sign * covariance)

    def _joint_log_density(self, mean: Tensor, cov: Tensor, y: Tensor) -> Tensor:
        """log E[p(y∣f)] of correlated targets: nodes over the log variances, the other outputs in closed form."""
        count = y.shape[-1]
        points = nodes(count).reshape(-1, count).to(mean.device)
        sign = -1.0 if self.natural else 1.0
        first, second = _halves(mean)
        upper, lower = cov[:, :count], cov[:, count:]
        root = principal_root(lower[:, :, count:], lower.diagonal(dim1=-2, dim2=-1).amax(-1))
        length = root.square().sum(-2, keepdim=True)
        # Cov(a, z), for t = E[t] + R z with t = ±f₂; a direction in which t does not vary tells nothing of a
        slope = torch.where(length > 0, sign * upper[:, :, count:] @ root / torch.where(length > 0, length, 1.0), 0.0)
        rest = upper[:, :, :count] - slope @ slope.mT

        def answer(rows: slice) -> tuple[Tensor]:
            t = (sign * second[rows])[:, None] + points @ root[rows].mT
            a = first[rows][:, None] + points @ slope[rows].mT
            scale = torch.exp(t) if self.natural else torch.ones_like(t)
            noisy = scale[..., :, None] * rest[rows][:, None] * scale[..., None, :] + torch.diag_embed(torch.exp(t))
            normal = torch.distributions.MultivariateNormal(scale * a, noisy, validate_args=False)
            log_terms = normal.log_prob(y[rows][:, None].to(t))
            return (torch.logsumexp(log_terms, 1) - math.log(SCRAMBLES * NODES),)

        return by_rows(answer, len(mean), count * count)[0]


@final
@dataclass(frozen=True)
class PairLambdas(Lambdas):
    """A 2 × 2 matrix for each target: ((first, cross), (cross, rest + cross²/first)), each shape (..., N, D).

    Attributes:
        first: positive.
        cross: off the diagonals.
        rest: the Schur complement of ``first``.
    """

    first: Tensor
    cross: Tensor
    rest: Tensor

    def dense(self) -> Tensor:
        return _from_blocks(self.first, self.cross, self.cross, self._second)

    def root(self) -> Tensor:
        """The Cholesky factor of each."""
        root = self.first.sqrt()
        return _from_blocks(root, torch.zeros_like(root), self.cross / root, self.rest.sqrt())

    def diagonal(self) -> Tensor:
        return torch.cat([self.first, self._second], -1)

    def sum(self) -> Tensor:
        first, cross, second = (entries.sum(-2) for entries in (self.first, self.cross, self._second))
        return _from_blocks(first, cross, cross, second)

    def times(self, weights: Tensor) -> PairLambdas:
        first, cross, rest = (entries * weights[..., None] for entries in (self.first, self.cross, self.rest))
        return PairLambdas(first, cross, rest)

    @property
    def _second(self) -> Tensor:
        return self.rest + self.cross.square() / self.first


@final
@dataclass(frozen=True)
class _Pair:
    """Per target the Gaussian of a, which is m or η₁, and of t = log σ²; all of one shape (..., D)."""

    a: Tensor
    a_variance: Tensor
    t: Tensor
    t_variance: Tensor
    covariance: Tensor

    def outcome(self, z: Tensor, *, natural: bool) -> tuple[Tensor, Tensor]:
        """The mean and log variance of y given t = E[t] + sd z, for z of shape (S,) or (..., D, S): (..., D, S)."""
        sd = self.t_variance.sqrt()
        slope = torch.where(sd > 0, self.covariance / torch.where(sd > 0, sd, 1.0), 0.0)
        rest = self.a_variance - slope.square()
        t = self.t[..., None] + sd[..., None] * z
        a = self.a[..., None] + slope[..., None] * z
        # What is left of a's variance is not negative but for rounding
        log_rest = torch.where(rest > 0, rest, 0.0).log()[..., None]
        if natural:
            return a * torch.exp(t), torch.logaddexp(t, 2.0 * t + log_rest)
        return a, torch.logaddexp(t, log_rest)

    def log_density(self, y: Tensor, *, natural: bool) -> Tensor:
        """log E[N(y; m, σ²)], shape (..., D), by quadrature over z, t = E[t] + sd z.

        As σ² bounds the variance of y from below, the integrand's log is at most ½ sd ∣z∣ − ½z² over what it would be
        at z = 0 and y = E(y∣z): that bounds the z at which it is within exp(−42) of its value at 0.
        """

        def log_integrand(z: Tensor) -> Tensor:
            centre, log_variance = self.outcome(z, natural=natural)
            distance = (y[..., None] - centre).square() * torch.exp(-log_variance)
            return -0.5 * (distance + log_variance + z.square()) - 2.0 * _LOG_ROOT_TAU

        sd = self.t_variance.sqrt()
        at_zero = log_integrand(torch.zeros_like(y)[..., None])[..., 0]
        depth = _DEPTH - 2.0 * _LOG_ROOT_TAU - 0.5 * self.t - at_zero
        bound = 0.5 * sd + torch.sqrt(0.25 * self.t_variance + 2.0 * depth)
        low, high = ((end - self.t) / sd for end in (-_LARGEST, _LARGEST))
        return log_integral(log_integrand, torch.maximum(-bound, low), torch.minimum(bound, high))


def _halves(values: Tensor) -> tuple[Tensor, Tensor]:
    first, second = values.chunk(2, -1)
    return first, second


def _from_blocks(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """The matrix ((diag a, diag b), (diag c, diag d)), shape (..., 2D, 2D)."""
    upper, lower = torch.cat([a.diag_embed(), b.diag_embed()], -1), torch.cat([c.diag_embed(), d.diag_embed()], -1)
    return torch.cat([upper, lower], -2)
