"""Rows that count several times, or in part: a likelihood to the power of each row's weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn, final

import torch
from torch import Tensor

from bayescope.errors import InputError, UnsupportedError
from bayescope.likelihoods.gaussian import Gaussian
from bayescope.likelihoods.likelihood import Likelihood, Moments


@final
@dataclass(frozen=True)
class Weighted:
    """p(y∣f)^w: log densities, gradients and curvatures of a row times its weight w, as if it were there w times.

    Targets have the weight as one column more, shape (N, K + 1): canonical ones are float64. It is for fitting: what is
    fitted predicts with the likelihood itself, and what needs another outcome than the observed one is refused.

    A Kronecker factorisation takes the weights into the factor of the cotangents, not into that of the inputs.

    Attributes:
        likelihood: p(y∣f).
        mean_weight: of the rows it is for: so many observations stand behind each, where a noise variance is learnt.
    """

    likelihood: Likelihood
    mean_weight: float = 1.0

    @staticmethod
    def join(targets: Tensor, weights: Tensor) -> Tensor:
        """Targets with their weights: (N,) or (N, K), and (N,)."""
        columns = targets[:, None] if targets.ndim == 1 else targets
        return torch.cat([columns.to(torch.float64), weights[:, None].to(torch.float64)], 1)

    @property
    def name(self) -> str:
        return self.likelihood.name

    @property
    def discrete(self) -> bool:
        return self.likelihood.discrete

    @property
    def elementwise(self) -> bool:
        return self.likelihood.elementwise

    def with_noise_variance(self, noise_variance: Any) -> Weighted:
        """The same weights with another noise variance.

        Raises:
            UnsupportedError: if the likelihood has none.
        """
        gaussian = self.likelihood
        if not isinstance(gaussian, Gaussian):
            raise UnsupportedError(f"noise_variance: expected a Gaussian likelihood, got {self.name!r}.")
        return Weighted(gaussian.with_noise_variance(noise_variance), self.mean_weight)

    def targets(self, y: Any, outputs: int) -> Tensor:
        """Checks targets and weights and returns both in float64, shape (N, K + 1).

        Raises:
            InputError: if there is no column of weights, one is negative, or the targets do not fit the likelihood.
        """
        table = torch.as_tensor(y)
        if table.ndim != 2 or table.shape[1] < 2:
            raise InputError(f"y: expected targets and a last column of weights, got shape {tuple(table.shape)}.")
        if (table[:, -1] < 0).any():
            raise InputError("y: expected weights of at least 0 in the last column, got a negative one.")
        return self.join(self.likelihood.targets(table[:, :-1], outputs), table[:, -1])

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """w log p(y∣f), shape (..., N)."""
        return self.likelihood.log_prob(f, self._y(y)) * _weights(y, f)

    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        """w ∂ log p(y∣f)/∂f, shape (..., N, C)."""
        return self.likelihood.gradient(f, self._y(y)) * _weights(y, f)[..., None]

    def hessian(self, f: Tensor, y: Tensor) -> Tensor:
        """w Λ, shape (..., N, C, C)."""
        return self.likelihood.hessian(f, self._y(y)) * _weights(y, f)[..., None, None]

    def ggn_sqrt(self, f: Tensor, y: Tensor) -> Tensor:
        """√w S, shape (..., N, C, K)."""
        return self.likelihood.ggn_sqrt(f, self._y(y)) * _weights(y, f).sqrt()[..., None, None]

    def ggn_diagonal(self, f: Tensor, y: Tensor) -> Tensor:
        """w times the diagonal of S Sᵀ, shape (..., N, C)."""
        return self.likelihood.ggn_diagonal(f, self._y(y)) * _weights(y, f)[..., None]

    def ggn_sum(self, f: Tensor, y: Tensor) -> Tensor:
        """Σ_n w_n S_n S_nᵀ, shape (..., C, C)."""
        roots = self.ggn_sqrt(f, y)
        return torch.einsum("...nck,...ndk->...cd", roots, roots)

    def conditional(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """E(y∣f) and Var(y∣f), those of the likelihood."""
        return self.likelihood.conditional(f)

    def integral(self, name: str | None, outputs: int) -> str:
        """As the likelihood resolves it."""
        return self.likelihood.integral(name, outputs)

    def needs_covariance(self, integral: str) -> bool:
        return self.likelihood.needs_covariance(integral)

    def predictive(self, mean: Tensor, cov: Tensor, integral: str) -> Moments:
        """Moments of the outcome, which has no weight."""
        return self.likelihood.predictive(mean, cov, integral)

    def predictive_mean(self, mean: Tensor, cov: Tensor, integral: str) -> Tensor:
        """The mean of the outcome, which has no weight."""
        return self.likelihood.predictive_mean(mean, cov, integral)

    def predictive_log_prob(self, mean: Tensor, cov: Tensor, y: Tensor, integral: str) -> Tensor:
        """w log ∫ p(y∣f) N(f; mean, cov) df, shape (N,)."""
        return self.likelihood.predictive_log_prob(mean, cov, self._y(y), integral) * _weights(y, mean)

    def distributions(self, columns: Tensor, outputs: int) -> Tensor:
        """As the likelihood has them."""
        return self.likelihood.distributions(columns, outputs)

    def mutual_information(self, mean: Tensor, cov: Tensor, integral: str) -> Tensor:
        """That of an outcome, which has no weight."""
        return self.likelihood.mutual_information(mean, cov, integral)

    def integration_error(self, mean: Tensor, cov: Tensor, integral: str) -> Tensor:
        return self.likelihood.integration_error(mean, cov, integral)

    def components(self, mean: Tensor, cov: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.likelihood.components(mean, cov)

    def fisher_sqrt(self, f: Tensor) -> Tensor:
        """Refused: f does not tell the weight."""
        _refuse()

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """Refused: a drawn outcome has no weight."""
        _refuse()

    def _y(self, y: Tensor) -> Tensor:
        """The targets as the likelihood takes them: of one label a row, which several outputs decide, its number."""
        one_label = self.discrete and not self.elementwise and y.shape[1] == 2
        return y[:, 0].long() if one_label else y[:, :-1]


def unweighted(likelihood: Likelihood) -> Likelihood:
    """The likelihood of a row that counts once."""
    return likelihood.likelihood if isinstance(likelihood, Weighted) else likelihood


def observations_per_row(likelihood: Likelihood) -> float:
    """How many observations stand behind a row, on average."""
    return likelihood.mean_weight if isinstance(likelihood, Weighted) else 1.0


def _weights(y: Tensor, f: Tensor) -> Tensor:
    return y[:, -1].to(f)


def _refuse() -> NoReturn:
    raise UnsupportedError(
        "curvature: expected 'ggn' or 'hessian' for weighted rows, got one of drawn outcomes, which have no weights."
    )
