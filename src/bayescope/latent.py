"""The latent: a distribution of the model's outputs f at N inputs, and what it says about the outcomes y.

Three final forms answer the same questions, so that a `Predictive` never asks which posterior it came from:
a Gaussian (linear and linearised models), draws (samples, ensembles, points) and a mixture of either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Tensor

from bayescope.likelihoods import Likelihood, Moments
from bayescope.quadrature import normal_nodes

# Nodes for quantiles of class probabilities with more than two classes: their spacing bounds the error in level.
QUANTILE_NODES = 4096


class Latent(Protocol):
    """A distribution of f, shape (N, C), with the rows' joint left aside."""

    @property
    def mean(self) -> Tensor:
        """E[f], shape (N, C)."""

    @property
    def cov(self) -> Tensor:
        """Cov[f] per row, shape (N, C, C)."""

    def moments(self, likelihood: Likelihood) -> Moments:
        """Mean, aleatoric and epistemic variance of y, each of shape (N, K)."""

    def log_prob(self, likelihood: Likelihood, y: Tensor) -> Tensor:
        """log ∫ p(y∣f) q(f) df per row, shape (N,)."""

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n draws of f, shape (n, N, C); rows are drawn independently where the form holds marginals only."""

    def quantile(self, level: float) -> Tensor:
        """The quantile of each output, shape (N, C)."""

    def expected_quantile(self, likelihood: Likelihood, level: float) -> Tensor:
        """The quantile of E(y∣f) per outcome column (class probabilities for classes), shape (N, K)."""

    def components(self, likelihood: Likelihood) -> tuple[Tensor, Tensor, Tensor]:
        """Log weights (S,), means and variances (S, N, K) of the Gaussians that make up a continuous outcome."""


@final
@dataclass(frozen=True)
class GaussianLatent:
    """f ~ N(mean, cov) per row.

    Attributes:
        mean: shape (N, C).
        cov: shape (N, C, C).
        integral: the resolved name of the integral over f.
        draws: the Monte Carlo draws, when that is the integral.
    """

    mean: Tensor
    cov: Tensor
    integral: str
    draws: DrawsLatent | None = None

    def with_draws(self, n: int, generator: torch.Generator) -> GaussianLatent:
        """The same Gaussian, integrated over n draws."""
        return GaussianLatent(self.mean, self.cov, self.integral, DrawsLatent(self.sample(n, generator)))

    def moments(self, likelihood: Likelihood) -> Moments:
        """Moments of y by the latent's integral."""
        if self.draws is not None:
            return self.draws.moments(likelihood)
        return likelihood.predictive(self.mean, self.cov, self.integral)

    def log_prob(self, likelihood: Likelihood, y: Tensor) -> Tensor:
        """log predictive density or probability of y by the latent's integral."""
        if self.draws is not None:
            return self.draws.log_prob(likelihood, y)
        return likelihood.predictive_log_prob(self.mean, self.cov, y, self.integral)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """mean + R z with R Rᵀ = cov."""
        noise = torch.randn(n, *self.mean.shape, dtype=self.mean.dtype, generator=generator)
        return self._at(noise)

    def quantile(self, level: float) -> Tensor:
        """mean + Φ⁻¹(level) sd."""
        sd = self.cov.diagonal(dim1=-2, dim2=-1).sqrt()
        return self.mean + _normal_quantile(level) * sd

    def expected_quantile(self, likelihood: Likelihood, level: float) -> Tensor:
        """Exact where each column is monotone in one output; else over fixed quasi-Monte-Carlo nodes."""
        if likelihood.elementwise:
            ends = torch.stack([likelihood.conditional(self.quantile(at))[0] for at in (level, 1.0 - level)])
            return ends.amin(0) if level < 0.5 else ends.amax(0)
        nodes = normal_nodes(self.mean.shape[-1], QUANTILE_NODES)
        blocks = [
            _quantile(likelihood.conditional(GaussianLatent(m, c, self.integral)._at(nodes[:, None, :]))[0], level)
            for m, c in zip(self.mean.split(256), self.cov.split(256), strict=True)
        ]
        return torch.cat(blocks)

    def components(self, likelihood: Likelihood) -> tuple[Tensor, Tensor, Tensor]:
        """One Gaussian: the outcome's mean and total variance."""
        moments = self.moments(likelihood)
        return moments.mean.new_zeros(1), moments.mean[None], (moments.aleatoric + moments.epistemic)[None]

    def _at(self, noise: Tensor) -> Tensor:
        """mean + V diag(√λ) noise: the eigenroot exists for singular covariances too (a point, tied outputs)."""
        if self.mean.shape[-1] == 1:
            return self.mean + noise * self.cov[..., 0].sqrt()
        values, vectors = torch.linalg.eigh(self.cov)
        # eigh of a positive semidefinite matrix returns zeros as ±1e-17: their roots are zero to working precision.
        root = vectors * values.clamp(min=0.0).sqrt()[..., None, :]
        return self.mean + (root @ noise[..., None])[..., 0]


@final
@dataclass(frozen=True)
class DrawsLatent:
    """Equally weighted draws of f, shape (S, N, C)."""

    values: Tensor

    @property
    def mean(self) -> Tensor:
        """The average over the draws, shape (N, C)."""
        return self.values.mean(0)

    @property
    def cov(self) -> Tensor:
        """The draws' covariance per row (divided by S), shape (N, C, C)."""
        centred = self.values - self.mean
        return torch.einsum("snc,snd->ncd", centred, centred) / self.values.shape[0]

    def moments(self, likelihood: Likelihood) -> Moments:
        """The law of total variance over the draws."""
        mean, variance = likelihood.conditional(self.values)
        centre = mean.mean(0)
        return Moments(centre, variance.mean(0), (mean - centre).square().mean(0))

    def log_prob(self, likelihood: Likelihood, y: Tensor) -> Tensor:
        """log S⁻¹ Σ_s p(y∣f_s)."""
        return torch.logsumexp(likelihood.log_prob(self.values, y), 0) - math.log(self.values.shape[0])

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n of the draws, with replacement."""
        return self.values[torch.randint(self.values.shape[0], (n,), generator=generator)]

    def quantile(self, level: float) -> Tensor:
        """The empirical quantile of each output."""
        return _quantile(self.values, level)

    def expected_quantile(self, likelihood: Likelihood, level: float) -> Tensor:
        """The empirical quantile of E(y∣f)."""
        return _quantile(likelihood.conditional(self.values)[0], level)

    def components(self, likelihood: Likelihood) -> tuple[Tensor, Tensor, Tensor]:
        """One Gaussian a draw."""
        mean, variance = likelihood.conditional(self.values)
        return mean.new_full((mean.shape[0],), -math.log(mean.shape[0])), mean, variance.expand_as(mean)


@final
@dataclass(frozen=True)
class MixtureLatent:
    """A weighted mixture of latents.

    Attributes:
        log_weights: normalised, shape (K,).
        parts: the K latents, all over the same inputs.
    """

    log_weights: Tensor
    parts: Sequence[Latent]

    @property
    def mean(self) -> Tensor:
        """Σ_k w_k E_k[f]."""
        return self._average([part.mean for part in self.parts])

    @property
    def cov(self) -> Tensor:
        """Σ_k w_k (Cov_k + (m_k − m)(m_k − m)ᵀ)."""
        centre = self.mean
        offsets = [part.mean - centre for part in self.parts]
        return self._average(
            [part.cov + o[..., :, None] * o[..., None, :] for part, o in zip(self.parts, offsets, strict=True)]
        )

    def moments(self, likelihood: Likelihood) -> Moments:
        """The law of total variance over the parts."""
        each = [part.moments(likelihood) for part in self.parts]
        mean = self._average([m.mean for m in each])
        epistemic = self._average([m.epistemic + (m.mean - mean).square() for m in each])
        return Moments(mean, self._average([m.aleatoric for m in each]), epistemic)

    def log_prob(self, likelihood: Likelihood, y: Tensor) -> Tensor:
        """log Σ_k w_k p_k(y)."""
        each = torch.stack([part.log_prob(likelihood, y) for part in self.parts])
        return torch.logsumexp(each + self.log_weights[:, None], 0)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Each draw from a part chosen by weight."""
        chosen = torch.multinomial(self.log_weights.exp(), n, replacement=True, generator=generator)
        draws = [part.sample(int((chosen == k).sum()), generator) for k, part in enumerate(self.parts)]
        return torch.cat(draws)[torch.randperm(n, generator=generator)]

    def quantile(self, level: float) -> Tensor:
        """The mixture's quantile of each output, each part taken as a Gaussian by its two moments."""
        means = torch.stack([part.mean for part in self.parts])
        variances = torch.stack([part.cov.diagonal(dim1=-2, dim2=-1) for part in self.parts])
        return mixture_quantile(self.log_weights, means, variances, level)

    def expected_quantile(self, likelihood: Likelihood, level: float) -> Tensor:
        """Over draws with a fixed seed, each part represented by its weight."""
        draws = self.sample(QUANTILE_NODES, torch.Generator().manual_seed(0))
        return _quantile(likelihood.conditional(draws)[0], level)

    def components(self, likelihood: Likelihood) -> tuple[Tensor, Tensor, Tensor]:
        """The parts' Gaussians, reweighted."""
        each = [part.components(likelihood) for part in self.parts]
        weights = torch.cat([w + log_weights for w, (log_weights, _, _) in zip(self.log_weights, each, strict=True)])
        return weights, torch.cat([mean for _, mean, _ in each]), torch.cat([variance for _, _, variance in each])

    def _average(self, values: Sequence[Tensor]) -> Tensor:
        return torch.tensordot(self.log_weights.exp(), torch.stack(list(values)), dims=1)


def mixture_quantile(log_weights: Tensor, means: Tensor, variances: Tensor, level: float) -> Tensor:
    """Solves Σ_k w_k Φ((q − m_k)/s_k) = level by bisection to working precision, elementwise over (N, K).

    Args:
        log_weights: shape (S,).
        means: shape (S, N, K).
        variances: shape (S, N, K).
        level: in (0, 1).
    """
    sds = variances.sqrt()
    z = _normal_quantile(level)
    low, high = (means + z * sds).amin(0), (means + z * sds).amax(0)  # the quantile lies between the parts' own
    weights = log_weights.exp()[:, None, None]
    for _ in range(60):
        middle = 0.5 * (low + high)
        # A part with sd 0 is a step at its mean; (0)/0 at the step itself is its upper side.
        score = torch.where(sds > 0, (middle - means) / sds, torch.where(middle >= means, math.inf, -math.inf))
        below = (weights * torch.special.ndtr(score)).sum(0) < level
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return 0.5 * (low + high)


def _quantile(values: Tensor, level: float) -> Tensor:
    """The empirical quantile over the first dimension, linear between order statistics."""
    position = level * (values.shape[0] - 1)
    lower = int(position)
    upper = min(lower + 1, values.shape[0] - 1)
    ordered = values.sort(0).values
    return ordered[lower] + (position - lower) * (ordered[upper] - ordered[lower])


def _normal_quantile(level: float) -> float:
    return float(torch.special.ndtri(torch.tensor(level, dtype=torch.float64)))
