"""The latent: a distribution of the model's outputs f at N inputs, and what it says about the outcomes y.

The final forms answer the same questions, so that a `Predictive` never asks which posterior it came from: a Gaussian
(linear and linearised models), of many classes perhaps its margins alone, draws (samples, ensembles, points) and a
mixture of these.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self, final

import torch
from torch import Tensor

from bayescope.errors import UnsupportedError
from bayescope.likelihoods import (
    Likelihood,
    Moments,
    eigenroot,
    information_of_draws,
    information_of_mixture,
    variances,
)
from bayescope.quadrature import normal_nodes
from bayescope.special import log_ndtr
from bayescope.tape.tape import block_bytes, row_blocks

# Nodes for quantiles of class probabilities with more than two classes: their spacing bounds the error in level.
QUANTILE_NODES = 4096
# Draws of f for rows with missing inputs, where f is given by draws: at least this many.
FEWEST_DRAWS = 256
# Moments are taken over the draws of as many rows at once as these bytes hold.
MOMENT_BYTES = 256 * 2**20


class Latent(ABC):
    """A distribution of f, shape (N, C), with the rows' joint left aside.

    Attributes:
        mean: E[f] at each input, shape (N, C).
    """

    mean: Tensor

    @property
    @abstractmethod
    def cov(self) -> Tensor:
        """Cov[f] per row, shape (N, C, C)."""

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """The diagonal of `cov`, shape (N, C)."""

    @abstractmethod
    def moments(self, likelihood: Likelihood) -> Moments:
        """Mean, aleatoric and epistemic variance of y, each of shape (N, K)."""

    @abstractmethod
    def expected(self, likelihood: Likelihood) -> Tensor:
        """The mean of `moments`, shape (N, K), to the last bit the same, without the work of its variances."""

    @abstractmethod
    def mutual_information(self, likelihood: Likelihood) -> Tensor:
        """I(y; f) in nats, shape (N,), each label or output of a row for itself and summed."""

    @abstractmethod
    def log_prob(self, likelihood: Likelihood, y: Tensor) -> Tensor:
        """log ∫ p(y∣f) q(f) df per row, shape (N,)."""

    @abstractmethod
    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n draws of f, shape (n, N, C); rows are drawn independently where the form holds marginals only."""

    @abstractmethod
    def quantile(self, level: float) -> Tensor:
        """The quantile of each output, shape (N, C)."""

    @abstractmethod
    def expected_quantile(self, likelihood: Likelihood, level: float) -> Tensor:
        """The quantile of E(y∣f) per outcome column (class probabilities for classes), shape (N, K)."""

    @abstractmethod
    def components(self, likelihood: Likelihood) -> tuple[Tensor, Tensor, Tensor]:
        """Log weights (S,), means and variances (S, N, K) of the Gaussians that make up a continuous outcome."""

    @abstractmethod
    def integration_error(self, likelihood: Likelihood) -> Tensor:
        """The standard error of the means of `moments` as integrals over this distribution, shape (N, K).

        Raises:
            UnsupportedError: for a closed form that is an approximation, whose error is unknown.
        """

    @abstractmethod
    def pooled(self, rows: Tensor, nodes: Self, owners: Tensor) -> Self:
        """The latent with some rows integrated over inputs that they lack, by the law of total covariance.

        f has the mean E_x E[f∣x] and the covariance E_x Cov[f∣x] + Cov_x E[f∣x], x being what is missing.

        Args:
            rows: which rows, int64 of shape (R,).
            nodes: the latent at M nodes of x, of the same kind.
            owners: node m is one of the equally weighted nodes of rows[owners[m]], int64 of shape (M,).
        """


@final
@dataclass(frozen=True)
class GaussianLatent(Latent):
    """f ~ N(mean, cov) per row, or of very many outputs its margins: N C variances in place of N C² covariances.

    Margins answer by the integrals that need no covariance, and refuse what a covariance decides.

    Attributes:
        mean: shape (N, C).
        covariance: shape (N, C, C), or the variances, shape (N, C).
        integral: the resolved name of the integral over f; for margins one whose `Likelihood.needs_covariance` is
            false.
        draws: the Monte Carlo draws, when that is the integral.
    """

    mean: Tensor
    covariance: Tensor
    integral: str
    draws: DrawsLatent | None = None

    @property
    def cov(self) -> Tensor:
        return self._covariances("latent_cov")

    @property
    def variance(self) -> Tensor:
        return variances(self.covariance)

    def with_draws(self, n: int, generator: torch.Generator) -> GaussianLatent:
        """The same Gaussian, integrated over n draws."""
        return GaussianLatent(self.mean, self.covariance, self.integral, DrawsLatent(self.sample(n, generator)))

    def moments(self, likelihood: Likelihood) -> Moments:
        """Moments of y by the latent's integral."""
        if self.draws is not None:
            return self.draws.moments(likelihood)
        return likelihood.predictive(self.mean, self.covariance, self.integral)

    def expected(self, likelihood: Likelihood) -> Tensor:
        """The mean of y by the latent's integral."""
        if self.draws is not None:
            return self.draws.expected(likelihood)
        return likelihood.predictive_mean(self.mean, self.covariance, self.integral)

    def mutual_information(self, likelihood: Likelihood) -> Tensor:
        """I(y; f) by the latent's integral."""
        if self.draws is not None:
            return self.draws.mutual_information(likelihood)
        return likelihood.mutual_information(self.mean, self.covariance, self.integral)

    def log_prob(self, likelihood: Likelihood, y: Tensor) -> Tensor:
        """log predictive density or probability of y by the latent's integral."""
        if self.draws is not None:
            return self.draws.log_prob(likelihood, y)
        return likelihood.predictive_log_prob(self.mean, self.covariance, y, self.integral)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """mean + R z with R Rᵀ = cov."""
        self._covariances("sample")
        noise = torch.randn(n, *self.mean.shape, dtype=self.mean.dtype, generator=generator)
        return self._at(noise.to(self.mean.device))

    def quantile(self, level: float) -> Tensor:
        return self.mean + _normal_quantile(level) * self.variance.sqrt()

    def expected_quantile(self, likelihood: Likelihood, level: float) -> Tensor:
        """Exact where each column is monotone in one output; else over fixed quasi-Monte-Carlo nodes."""
        if likelihood.domain.elementwise:
            return _monotone_quantile(self, likelihood, level)
        nodes = normal_nodes(self.mean.shape[-1], QUANTILE_NODES).to(self.mean.device)
        blocks = [
            _quantile(likelihood.conditional(GaussianLatent(m, c, self.integral)._at(nodes[:, None, :]))[0], level)
            for m, c in zip(self.mean.split(256), self._covariances("interval").split(256), strict=True)
        ]
        return torch.cat(blocks)

    def components(self, likelihood: Likelihood) -> tuple[Tensor, Tensor, Tensor]:
        """Those that the likelihood makes of the Gaussian: one, where the noise is the same for all f."""
        return likelihood.components(self.mean, self.covariance)

    def integration_error(self, likelihood: Likelihood) -> Tensor:
        """That of the integral, or of the draws."""
        if self.draws is not None:
            return self.draws.integration_error(likelihood)
        return likelihood.integration_error(self.mean, self.covariance, self.integral)

    def pooled(self, rows: Tensor, nodes: GaussianLatent, owners: Tensor) -> GaussianLatent:
        mean = _averaged(nodes.mean, owners, len(rows))
        apart = nodes.mean - mean[owners]
        squares = apart[..., :, None] * apart[..., None, :] if nodes.covariance.ndim == 3 else apart.square()
        cov = _averaged(nodes.covariance + squares, owners, len(rows))
        draws = self.draws
        if draws is not None:
            drawn = GaussianLatent(mean, cov, self.integral).sample(len(draws.values), torch.Generator().manual_seed(0))
            draws = draws.with_rows(rows, drawn)
        whole, covariance = self.mean.index_copy(0, rows, mean), self.covariance.index_copy(0, rows, cov)
        return GaussianLatent(whole, covariance, self.integral, draws)

    def _covariances(self, question: str) -> Tensor:
        if self.covariance.ndim == 3:
            return self.covariance
        rows, outputs = self.mean.shape
        raise UnsupportedError(
            f"{question}: expected covariances between outputs, got their variances alone: {rows} rows of {outputs} x "
            f"{outputs} numbers would have taken {8e-9 * rows * outputs**2:.1f} GB. Predict fewer rows at once."
        )

    def _at(self, noise: Tensor) -> Tensor:
        """mean + V diag(√λ) noise: the eigenroot exists for singular covariances too (a point, tied outputs)."""
        if self.mean.shape[-1] == 1:
            return self.mean + noise * self.cov[..., 0].sqrt()
        values, vectors = torch.linalg.eigh(self.cov.detach())
        # eigh of a positive semidefinite matrix returns zeros as ±1e-17: their roots are zero to working precision.
        root = eigenroot(values.clamp(min=0.0), vectors, self.cov)
        return self.mean + torch.einsum("nij,snj->sni", root, noise)  # a matmul would copy the roots for each draw


@final
@dataclass(frozen=True)
class DrawsLatent(Latent):
    """Equally weighted draws of f, shape (S, N, C)."""

    values: Tensor

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        """The average over the draws, shape (N, C)."""
        return self.values.mean(0)

    @property
    def cov(self) -> Tensor:
        """The draws' covariance per row (divided by S), shape (N, C, C)."""
        centred = self.values - self.mean
        return torch.einsum("snc,snd->ncd", centred, centred) / self.values.shape[0]

    @property
    def variance(self) -> Tensor:
        """The draws' variance per output (divided by S), shape (N, C)."""
        return self.values.var(0, correction=0)

    def moments(self, likelihood: Likelihood) -> Moments:
        """The law of total variance over the draws, some rows at a time where all of them are very many numbers."""
        parts = []
        for values in self._blocks():
            mean, variance = likelihood.conditional(values)
            centre = mean.mean(0)
            parts.append((centre, variance.mean(0), (mean - centre).square().mean(0)))
        return Moments(*(torch.cat(column) for column in zip(*parts, strict=True)))

    def expected(self, likelihood: Likelihood) -> Tensor:
        """The average of E(y∣f) over the draws, by the same blocks of rows."""
        return torch.cat([likelihood.conditional(values)[0].mean(0) for values in self._blocks()])

    def mutual_information(self, likelihood: Likelihood) -> Tensor:
        """What y tells of which draw f is: at most log S for each label or output."""
        if not likelihood.discrete:
            return information_of_mixture(*self.components(likelihood))
        columns = likelihood.conditional(self.values)[0]
        draws = likelihood.distributions(columns, self.values.shape[-1])
        return information_of_draws(draws, draws.new_full((len(draws),), 1.0 / len(draws))).sum(-1)

    def log_prob(self, likelihood: Likelihood, y: Tensor) -> Tensor:
        """The log of the mean density over draws, log S⁻¹ Σ_s p(y∣f_s)."""
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
        """The Gaussian of y under each draw."""
        mean, variance = likelihood.conditional(self.values)
        return mean.new_full((mean.shape[0],), -math.log(mean.shape[0])), mean, variance.expand_as(mean)

    def integration_error(self, likelihood: Likelihood) -> Tensor:
        """The draws' standard deviation over √S, as of independent draws; 0 for a point."""
        mean = likelihood.conditional(self.values)[0]
        return mean.std(0, correction=0) / math.sqrt(max(1, mean.shape[0] - 1))

    def pooled(self, rows: Tensor, nodes: DrawsLatent, owners: Tensor) -> DrawsLatent:
        """Each draw's mean over the nodes of a row, plus Gaussian noise with the covariance of f over the nodes."""
        means = torch.stack([_averaged(draw, owners, len(rows)) for draw in nodes.values])
        apart = nodes.values - means[:, owners]
        cov = _averaged(torch.einsum("smc,smd->mcd", apart, apart) / len(apart), owners, len(rows))
        eigenvalues, vectors = torch.linalg.eigh(cov)
        root = vectors * eigenvalues.clamp(min=0.0).sqrt()[..., None, :]
        means = means.repeat_interleave(-(-FEWEST_DRAWS // len(means)), 0)
        count = 1 << (len(means) - 1).bit_length()
        noise = normal_nodes(cov.shape[-1], count).to(means)[: len(means)]
        return self.with_rows(rows, means + torch.einsum("bcd,sd->sbc", root, noise))

    def with_rows(self, rows: Tensor, values: Tensor) -> DrawsLatent:
        """The draws with others for some rows, shape (S', R, C), where S' is a multiple of S."""
        repeated = self.values.repeat_interleave(len(values) // len(self.values), 0)
        return DrawsLatent(repeated.index_copy(1, rows, values))

    def _blocks(self) -> list[Tensor]:
        """The draws of some rows at a time, as many as take `MOMENT_BYTES`; of no rows, one block."""
        draws, rows, outputs = self.values.shape
        blocks = list(row_blocks(rows, 8 * draws * outputs, block_bytes(MOMENT_BYTES))) or [slice(None)]
        return [self.values[:, some] for some in blocks]


@final
@dataclass(frozen=True)
class MixtureLatent(Latent):
    """A weighted mixture of latents.

    Attributes:
        log_weights: normalised, shape (K,).
        parts: the K latents, all over the same inputs.
    """

    log_weights: Tensor
    parts: Sequence[Latent]

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        return self._average([part.mean for part in self.parts])

    @property
    def cov(self) -> Tensor:
        """Σ_k w_k (Cov_k + (m_k − m)(m_k − m)ᵀ)."""
        centre = self.mean
        offsets = [part.mean - centre for part in self.parts]
        return self._average(
            [part.cov + o[..., :, None] * o[..., None, :] for part, o in zip(self.parts, offsets, strict=True)]
        )

    @property
    def variance(self) -> Tensor:
        """Σ_k w_k (Var_k + (m_k − m)²)."""
        centre = self.mean
        return self._average([part.variance + (part.mean - centre).square() for part in self.parts])

    def moments(self, likelihood: Likelihood) -> Moments:
        """The law of total variance over the parts."""
        each = [part.moments(likelihood) for part in self.parts]
        mean = self._average([m.mean for m in each])
        epistemic = self._average([m.epistemic + (m.mean - mean).square() for m in each])
        return Moments(mean, self._average([m.aleatoric for m in each]), epistemic)

    def expected(self, likelihood: Likelihood) -> Tensor:
        return self._average([part.expected(likelihood) for part in self.parts])

    def mutual_information(self, likelihood: Likelihood) -> Tensor:
        """By the chain rule I(y; k) + Σ_k w_k I_k(y; f)."""
        within = self._average([part.mutual_information(likelihood) for part in self.parts])
        if not likelihood.discrete:
            sizes = [len(part.components(likelihood)[0]) for part in self.parts]
            return within + information_of_mixture(*self.components(likelihood), sizes)
        outputs = self.parts[0].mean.shape[-1]
        each = torch.stack([likelihood.distributions(part.expected(likelihood), outputs) for part in self.parts])
        return within + information_of_draws(each, self.log_weights.exp()).sum(-1)

    def log_prob(self, likelihood: Likelihood, y: Tensor) -> Tensor:
        each = torch.stack([part.log_prob(likelihood, y) for part in self.parts])
        return torch.logsumexp(each + self.log_weights[:, None], 0)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Each draw from a part chosen by weight."""
        chosen = torch.multinomial(self.log_weights.exp().cpu(), n, replacement=True, generator=generator)
        draws = [part.sample(int((chosen == k).sum()), generator) for k, part in enumerate(self.parts)]
        return torch.cat(draws)[torch.randperm(n, generator=generator)]

    def quantile(self, level: float) -> Tensor:
        """The mixture's quantile of each output, each part taken as a Gaussian by its two moments."""
        means = torch.stack([part.mean for part in self.parts])
        variances = torch.stack([part.variance for part in self.parts])
        return mixture_quantile(self.log_weights, means, variances, level)

    def expected_quantile(self, likelihood: Likelihood, level: float) -> Tensor:
        """Over draws with a fixed seed, each part represented by its weight."""
        draws = self.sample(QUANTILE_NODES, torch.Generator().manual_seed(0))
        return _quantile(likelihood.conditional(draws)[0], level)

    def components(self, likelihood: Likelihood) -> tuple[Tensor, Tensor, Tensor]:
        """The Gaussians of all parts, weighted by the parts."""
        each = [part.components(likelihood) for part in self.parts]
        weights = torch.cat([w + log_weights for w, (log_weights, _, _) in zip(self.log_weights, each, strict=True)])
        return weights, torch.cat([mean for _, mean, _ in each]), torch.cat([variance for _, _, variance in each])

    def integration_error(self, likelihood: Likelihood) -> Tensor:
        """Σ_k w_k e_k: a bound, as parts may share nodes."""
        return self._average([part.integration_error(likelihood) for part in self.parts])

    def pooled(self, rows: Tensor, nodes: MixtureLatent, owners: Tensor) -> MixtureLatent:
        parts = [part.pooled(rows, other, owners) for part, other in zip(self.parts, nodes.parts, strict=True)]
        return MixtureLatent(self.log_weights, parts)

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
    sds, weights = variances.sqrt(), log_weights.exp()[:, None, None]
    each = means + _normal_quantile(level) * sds

    def below(q: Tensor) -> Tensor:
        # A part with sd 0 is a step at its mean; (0)/0 at the step itself is its upper side.
        score = torch.where(sds > 0, (q - means) / sds, torch.where(q >= means, math.inf, -math.inf))
        return (weights * torch.special.ndtr(score)).sum(0) < level

    return _bisected(below, each)


def mixture_interval(log_weights: Tensor, means: Tensor, variances: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """The ends below and above which Σ_k w_k N(m_k, v_k) has the mass Φ(−score) each, however little that is.

    By bisection of the logarithm of the tails to working precision, elementwise over (N, K).

    Args:
        log_weights: shape (S,).
        means: shape (S, N, K).
        variances: positive, shape (S, N, K).
        scores: not negative, shape (K,).
    """
    sds, log_tail = variances.sqrt(), log_ndtr(-scores)

    def lower_end(centres: Tensor) -> Tensor:
        def below(q: Tensor) -> Tensor:
            terms = log_weights[:, None, None] + log_ndtr((q - centres) / sds)
            return torch.logsumexp(terms, 0) < log_tail

        return _bisected(below, centres - scores * sds)

    return lower_end(means), -lower_end(-means)


def _bisected(below: Callable[[Tensor], Tensor], each: Tensor) -> Tensor:
    """A mixture's quantile, which lies between those of its parts, shape (S, N, K)."""
    low, high = each.amin(0), each.amax(0)
    for _ in range(60):
        if torch.equal(low, high):
            break
        middle = 0.5 * (low + high)
        less = below(middle)
        low, high = torch.where(less, middle, low), torch.where(less, high, middle)
    return 0.5 * (low + high)


def _monotone_quantile(latent: Latent, likelihood: Likelihood, level: float) -> Tensor:
    """The quantile of E(y∣f) where each of its columns rises or falls with one output alone."""
    ends = torch.stack([likelihood.conditional(latent.quantile(at))[0] for at in (level, 1.0 - level)])
    return ends.amin(0) if level < 0.5 else ends.amax(0)


def _quantile(values: Tensor, level: float) -> Tensor:
    """The empirical quantile over the first dimension, linear between order statistics."""
    position = level * (values.shape[0] - 1)
    lower = int(position)
    upper = min(lower + 1, values.shape[0] - 1)
    ordered = values.sort(0).values
    return ordered[lower] + (position - lower) * (ordered[upper] - ordered[lower])


def _normal_quantile(level: float) -> float:
    return float(torch.special.ndtri(torch.tensor(level, dtype=torch.float64)))


def _averaged(values: Tensor, owners: Tensor, rows: int) -> Tensor:
    """The averages over the nodes of each row, shape (rows, ...), of values (M, ...) at the nodes."""
    counts = torch.bincount(owners, minlength=rows).reshape(-1, *[1] * (values.ndim - 1)).to(values)
    return values.new_zeros(rows, *values.shape[1:]).index_add_(0, owners, values) / counts
