"""Rows that count several times, or in part: a likelihood to the power of each row's weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn, final

import torch
from torch import Tensor

from bayescope.errors import InputError, UnsupportedError
from bayescope.likelihoods.curvatures import Lambdas
from bayescope.likelihoods.likelihood import Domain, Integral, Likelihood


@final
@dataclass(frozen=True)
class Weighted(Likelihood):
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
    def domain(self) -> Domain:
        return replace(self.likelihood.domain, ignored=None)

    @property
    def unweighted(self) -> Likelihood:
        return self.likelihood

    def with_noise_variance(self, noise_variance: Any) -> Weighted:
        """The same weights with another noise variance.

        Raises:
            UnsupportedError: if the likelihood has none.
        """
        return Weighted(self.likelihood.with_noise_variance(noise_variance), self.mean_weight)

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

    def observed(self, f: Tensor, y: Tensor) -> Lambdas:
        return self.likelihood.observed(f, self._y(y)).times(_weights(y, f))

    def ggn(self, f: Tensor, y: Tensor) -> Lambdas:
        """w times the Λ of the GGN."""
        return self.likelihood.ggn(f, self._y(y)).times(_weights(y, f))

    def expected(self, f: Tensor) -> NoReturn:
        """Refused: f does not determine the weight."""
        _refuse()

    def sample(self, f: Tensor, generator: torch.Generator) -> NoReturn:
        """Refused: a drawn outcome has no weight."""
        _refuse()

    def conditional(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """E(y∣f) and Var(y∣f), those of the likelihood."""
        return self.likelihood.conditional(f)

    @property
    def integrals(self) -> Mapping[str, Integral]:
        return self.likelihood.integrals

    def predictive_log_prob(self, mean: Tensor, cov: Tensor, y: Tensor, integral: str) -> Tensor:
        """w log ∫ p(y∣f) N(f; mean, cov) df, shape (N,)."""
        return self.likelihood.predictive_log_prob(mean, cov, self._y(y), integral) * _weights(y, mean)

    def _y(self, y: Tensor) -> Tensor:
        """The targets as the likelihood takes them: of one label a row, which several outputs decide, its number."""
        return y[:, 0].long() if self.domain.kind == "classes" else y[:, :-1]


def _weights(y: Tensor, f: Tensor) -> Tensor:
    return y[:, -1].to(f)


def _refuse() -> NoReturn:
    raise UnsupportedError(
        "curvature: expected 'ggn' or 'hessian' for weighted rows, got one of drawn outcomes, which have no weights."
    )
