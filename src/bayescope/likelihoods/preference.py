"""The Bradley–Terry likelihood of pairwise preferences: which of two items has the larger reward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError
from bayescope.likelihoods.bernoulli import Bernoulli
from bayescope.likelihoods.likelihood import Moments
from bayescope.likelihoods.quasi_monte_carlo import principal_root
from bayescope.storage import stored

_LOGIT = Bernoulli("logit")


@stored("bradley_terry")
@final
@dataclass(frozen=True)
class BradleyTerry:
    """p(y = 1∣f) = σ(f₁ − f₀) for the rewards f = (f₀, f₁) of two items, y the index of the preferred one.

    Bradley & Terry (1952). It is the logit Bernoulli of the difference, and sees nothing else: a reward common to both
    items changes no answer, and Λ = p(1 − p) ((1, −1), (−1, 1)) has rank one. Canonical targets are int64 of shape
    (N,); the K = 2 outcome columns are the indicators of the two items. The integrals over f ~ N(mean, cov) are the
    Bernoulli's over f₁ − f₀.
    """

    @property
    def name(self) -> str:
        """``"bradley_terry"``, as ``likelihood=`` spells it."""
        return "bradley_terry"

    @property
    def discrete(self) -> bool:
        """True: y is a label."""
        return True

    @property
    def elementwise(self) -> bool:
        """False: a preference depends on both rewards."""
        return False

    def targets(self, y: Any, outputs: int) -> Tensor:
        """Checks labels of 0 and 1 and returns them in int64, shape (N,).

        Args:
            y: shape (N,) or (N, 1): the index of the preferred item.
            outputs: 2.

        Raises:
            InputError: if there are not two rewards, or a label is neither 0 nor 1.
        """
        if outputs != 2:
            raise InputError(
                f"outputs: expected the rewards of two items, got {outputs}. bayescope.layers.Pairwise(reward) gives "
                "both from a model of one."
            )
        labels = checks.float64("y", y)
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = labels[:, 0]
        if labels.ndim != 1:
            raise InputError(f"y: expected the preferred item of each pair, shape (N,), got {tuple(labels.shape)}.")
        return _LOGIT.targets(labels, 1)[:, 0].to(torch.int64)

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """log σ(±(f₁ − f₀)), shape (..., N)."""
        return _LOGIT.log_prob(_difference(f), y[..., None])

    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        """∂ log p/∂f, shape (..., N, 2): the Bernoulli's g as (−g, g)."""
        slope = _LOGIT.gradient(_difference(f), y[..., None])
        return torch.cat([-slope, slope], -1)

    def hessian(self, f: Tensor, y: Tensor) -> Tensor:
        """Λ = p(1 − p) ((1, −1), (−1, 1)), shape (..., N, 2, 2)."""
        return self.ggn_diagonal(f, y)[..., None] * _signs(f)

    def ggn_diagonal(self, f: Tensor, y: Tensor) -> Tensor:
        """p(1 − p) twice, shape (..., N, 2)."""
        return _LOGIT.ggn_diagonal(_difference(f), y[..., None]).expand(f.shape)

    def ggn_sum(self, f: Tensor, y: Tensor) -> Tensor:
        """Σ_n Λ_n, shape (..., 2, 2)."""
        return self.ggn_diagonal(f, y).sum(-2)[..., None] * _signs(f)

    def ggn_sqrt(self, f: Tensor, y: Tensor) -> Tensor:
        """√(p(1 − p)) (−1, 1)ᵀ, shape (..., N, 2, 1); observed and expected Λ are the same."""
        return self.fisher_sqrt(f)

    def fisher_sqrt(self, f: Tensor) -> Tensor:
        """√(p(1 − p)) (−1, 1)ᵀ, shape (..., N, 2, 1)."""
        root = _LOGIT.fisher_sqrt(_difference(f))
        return torch.cat([-root, root], -2)

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """Draws preferred items, int64 of shape (..., N)."""
        return _LOGIT.sample(_difference(f), generator)[..., 0].to(torch.int64)

    def conditional(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """p and p(1 − p) per item, each (..., N, 2)."""
        return _LOGIT.conditional(_difference(f))

    def integral(self, name: str | None, outputs: int) -> str:
        """Resolves the integral over f₁ − f₀: "quadrature" by default.

        Raises:
            OptionError: if the name is unknown.
        """
        return _LOGIT.integral(name, 1)

    def needs_covariance(self, integral: str) -> bool:
        """Always: what the rewards share is not seen."""
        return True

    def predictive(self, mean: Tensor, cov: Tensor, integral: str) -> Moments:
        """Moments of the items' indicators, each (N, 2).

        Raises:
            OptionError: if the integral is not a deterministic one.
        """
        return _LOGIT.predictive(_difference(mean), _variance(cov), integral)

    def predictive_mean(self, mean: Tensor, cov: Tensor, integral: str) -> Tensor:
        """The items' probabilities, shape (N, 2).

        Raises:
            OptionError: if the integral is not a deterministic one.
        """
        return _LOGIT.predictive_mean(_difference(mean), _variance(cov), integral)

    def predictive_log_prob(self, mean: Tensor, cov: Tensor, y: Tensor, integral: str) -> Tensor:
        """log E[σ(±(f₁ − f₀))], shape (N,).

        Raises:
            OptionError: if the integral is not a deterministic one.
        """
        return _LOGIT.predictive_log_prob(_difference(mean), _variance(cov), y[..., None], integral)

    def distributions(self, columns: Tensor, outputs: int) -> Tensor:
        """The one distribution over the two items, shape (..., N, 1, 2)."""
        return columns[..., None, :]

    def mutual_information(self, mean: Tensor, cov: Tensor, integral: str) -> Tensor:
        """The Bernoulli's, shape (N,).

        Raises:
            OptionError: if the integral is not a deterministic one.
        """
        return _LOGIT.mutual_information(_difference(mean), _variance(cov), integral)

    def integration_error(self, mean: Tensor, cov: Tensor, integral: str) -> Tensor:
        """The Bernoulli's, shape (N, 2)."""
        return _LOGIT.integration_error(_difference(mean), _variance(cov), integral)

    def components(self, mean: Tensor, cov: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Refused: a preference is no mixture of Gaussians."""
        return _LOGIT.components(_difference(mean), _variance(cov))


def _difference(f: Tensor) -> Tensor:
    return f[..., 1:] - f[..., :1]


def _variance(cov: Tensor) -> Tensor:
    """Var[f₁ − f₀] as matrices (N, 1, 1): its rounding may be below 0 where what the rewards share is all they have."""
    cov = cov.to(torch.float64)
    variance = (cov[:, 1:, 1:] - cov[:, 1:, :1]) - (cov[:, :1, 1:] - cov[:, :1, :1])
    return principal_root(variance, cov.diagonal(dim1=-2, dim2=-1).amax(-1)).square()


def _signs(like: Tensor) -> Tensor:
    return torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=like.dtype, device=like.device)
