"""A Gaussian latent: linear and linearised models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from bayescope.errors import UnsupportedError
from bayescope.latent.latent import QUANTILE_NODES, DrawsLatent, Latent, averages, empirical_quantile, monotone_quantile
from bayescope.likelihoods import (
    Likelihood,
    Moments,
    Ordinal,
    eigenroot,
    gaussian_points,
    normal_quantile,
    variances,
)
from bayescope.quadrature import normal_nodes


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

    def shifted(self, offset: Tensor) -> GaussianLatent:
        draws = None if self.draws is None else self.draws.shifted(offset)
        return GaussianLatent(self.mean + offset.to(self.mean), self.covariance, self.integral, draws)

    def with_draws(self, n: int, generator: torch.Generator) -> GaussianLatent:
        """The same Gaussian, integrated over n draws."""
        return GaussianLatent(self.mean, self.covariance, self.integral, DrawsLatent(self.sample(n, generator)))

    def taken(self, rows: Tensor) -> GaussianLatent:
        draws = None if self.draws is None else self.draws.taken(rows)
        return GaussianLatent(self.mean[rows], self.covariance[rows], self.integral, draws)

    def joined(self, others: Sequence[GaussianLatent], generator: torch.Generator) -> GaussianLatent:
        """All rows, or their margins where one of the latents has nothing else."""
        parts = [self, *others]
        covariances = [part.covariance for part in parts]
        if len({each.ndim for each in covariances}) > 1:
            covariances = [variances(each) for each in covariances]
        whole = GaussianLatent(torch.cat([part.mean for part in parts]), torch.cat(covariances), self.integral)
        return whole if self.draws is None else whole.with_draws(len(self.draws.values), generator)

    def points(self, count: int) -> tuple[Tensor, Tensor]:
        draws = self.draws or DrawsLatent(gaussian_points(self.mean, self._covariances("quantile"), count))
        return draws.points(count)

    def of_part(self, place: int, part: Likelihood) -> GaussianLatent:
        draws = None if self.draws is None else self.draws.of_part(place, part)
        mean, variance = self.mean[:, place, None], self.variance[:, place, None]
        return GaussianLatent(mean, variance[..., None], part.integral(None, 1), draws)

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

    def _log_prob(self, likelihood: Likelihood, y: Tensor) -> Tensor:
        """log predictive density or probability of y by the latent's integral."""
        if self.draws is not None:
            return self.draws.log_prob(likelihood, y)
        return likelihood.predictive_log_prob(self.mean, self.covariance, y, self.integral)

    def log_density(self, likelihood: Likelihood, y: Tensor) -> Tensor:
        if self.draws is not None:
            return self.draws.log_density(likelihood, y)
        return likelihood.by(self.integral, self.mean).log_density(self.mean, self.covariance, y)

    def cdf(self, likelihood: Likelihood, y: Tensor) -> Tensor:
        if self.draws is not None:
            return self.draws.cdf(likelihood, y)
        return likelihood.by(self.integral, self.mean).cdf(self.mean, self.covariance, y)

    def conditional_entropy(self, likelihood: Likelihood) -> Tensor:
        if self.draws is not None:
            return self.draws.conditional_entropy(likelihood)
        return likelihood.by(self.integral, self.mean).conditional_entropy(self.mean, self.covariance)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """mean + R z with R Rᵀ = cov."""
        self._covariances("sample")
        noise = torch.randn(n, *self.mean.shape, dtype=self.mean.dtype, generator=generator)
        return self._at(noise.to(self.mean.device))

    def quantile(self, level: float) -> Tensor:
        return self.mean + normal_quantile(level) * self.variance.sqrt()

    def expected_quantile(self, likelihood: Likelihood, level: float) -> Tensor:
        """Exact where each column is monotone in one output; else over fixed quasi-Monte-Carlo nodes."""
        if likelihood.domain.elementwise:
            return monotone_quantile(self, likelihood, level)
        if isinstance(likelihood, Ordinal):
            return likelihood.probability_quantile(self.mean, variances(self.covariance), level)
        nodes = normal_nodes(self.mean.shape[-1], QUANTILE_NODES).to(self.mean.device)
        blocks = [
            empirical_quantile(
                likelihood.conditional(GaussianLatent(m, c, self.integral)._at(nodes[:, None, :]))[0], level
            )
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
        mean = averages(nodes.mean, owners, len(rows))
        apart = nodes.mean - mean[owners]
        squares = apart[..., :, None] * apart[..., None, :] if nodes.covariance.ndim == 3 else apart.square()
        cov = averages(nodes.covariance + squares, owners, len(rows))
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
