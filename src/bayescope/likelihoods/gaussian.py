"""The Gaussian likelihood of regression, with known or learnable noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError, OptionError
from bayescope.likelihoods.likelihood import INTEGRALS, Moments, refuse_distributions
from bayescope.likelihoods.targets import numbers_in_columns
from bayescope.storage import stored

_LEARNT = "evidence"


@stored("gaussian")
@final
@dataclass(frozen=True, init=False, eq=False)
class Gaussian:
    """p(y∣f) = Π_d N(y_d; f_d, noise_variance_d), for D = C outputs. Canonical targets are float64 of shape (N, D).

    Every integral over f is exact: the marginal of y is N(mean, cov + noise).

    Args:
        noise_variance: a positive number for all outputs, an array of shape (D,), or ``"evidence"`` for one that is
            to be learnt. Its unit is the target's unit squared.

    Attributes:
        noise_variance: the same as a float64 tensor, or ``"evidence"``.

    Raises:
        InputError: if it is not positive or has more than one dimension.
        OptionError: if it is another word than "evidence".
    """

    noise_variance: Tensor | str

    def __init__(self, noise_variance: Any = 1.0) -> None:
        if isinstance(noise_variance, str):
            value: Tensor | str = checks.choice("noise_variance", noise_variance, [_LEARNT])
        else:
            value = checks.positive("noise_variance", noise_variance).clone()
            if value.ndim > 1:
                raise InputError(f"noise_variance: expected a number or shape (D,), got {tuple(value.shape)}.")
        object.__setattr__(self, "noise_variance", value)

    @property
    def name(self) -> str:
        """``"gaussian"``, as ``likelihood=`` spells it."""
        return "gaussian"

    @property
    def discrete(self) -> bool:
        """False: y is a number."""
        return False

    @property
    def elementwise(self) -> bool:
        """True: the mean of each output is a function of this output alone."""
        return True

    @property
    def learnable(self) -> bool:
        """Whether the noise variance is still to be learnt from the evidence."""
        return isinstance(self.noise_variance, str)

    def with_noise_variance(self, noise_variance: Any) -> Gaussian:
        """The same likelihood with another noise variance, such as the one that was learnt."""
        return Gaussian(noise_variance)

    def noise(self, like: Tensor) -> Tensor:
        """The noise variance per output, shape (D,), for f of shape (..., D) and in its dtype.

        Raises:
            InputError: if it is still to be learnt, or was given for another number of outputs.
        """
        if isinstance(self.noise_variance, str):
            raise InputError(
                "noise_variance: expected a number, got 'evidence', which has not been learnt yet. Fit a posterior "
                "that learns it (fit_evidence, variational, mc_dropout; BayesianLinearRegression), or give its value: "
                "likelihood.with_noise_variance(value)."
            )
        outputs = like.shape[-1]
        if self.noise_variance.ndim and self.noise_variance.shape[0] != outputs:
            raise InputError(
                f"noise_variance: expected one number or {outputs} of them for {outputs} output(s), "
                f"got {self.noise_variance.shape[0]}."
            )
        return self.noise_variance.to(like).expand(outputs)

    def targets(self, y: Any, outputs: int) -> Tensor:
        """Checks finite numbers and returns them in float64, shape (N, D).

        Args:
            y: shape (N,) or (N, 1) for D = 1, else (N, D).
            outputs: D.

        Raises:
            InputError: if the shape does not fit or a number is not finite.
        """
        return numbers_in_columns(y, outputs, outputs)

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Σ_d log N(y_d; f_d, noise_d), shape (..., N)."""
        noise = self.noise(f)
        return -0.5 * ((y.to(f) - f).square() / noise + noise.log() + math.log(2 * math.pi)).sum(-1)

    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        """(y − f)/noise, shape (..., N, D)."""
        return (y.to(f) - f) / self.noise(f)

    def hessian(self, f: Tensor, y: Tensor) -> Tensor:
        """Λ = diag(1/noise), shape (..., N, D, D)."""
        return torch.diag_embed(self.ggn_diagonal(f, y))

    def ggn_diagonal(self, f: Tensor, y: Tensor) -> Tensor:
        """1/noise, shape (..., N, D)."""
        return self.noise(f).reciprocal().expand(f.shape)

    def ggn_sum(self, f: Tensor, y: Tensor) -> Tensor:
        """N diag(1/noise), shape (..., D, D)."""
        return torch.diag_embed(self.ggn_diagonal(f, y).sum(-2))

    def ggn_sqrt(self, f: Tensor, y: Tensor) -> Tensor:
        """diag(noise^(−½)), shape (..., N, D, D)."""
        return self.fisher_sqrt(f)

    def fisher_sqrt(self, f: Tensor) -> Tensor:
        """diag(noise^(−½)), shape (..., N, D, D): observed and expected Λ are the same."""
        return torch.diag_embed(self.noise(f).rsqrt().expand(f.shape))

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """f plus noise, float64, shape (..., N, D)."""
        mean = f.to(torch.float64)
        standard = torch.randn(f.shape, dtype=torch.float64, device=generator.device, generator=generator)
        return mean + self.noise(mean).sqrt() * standard.to(f.device)

    def conditional(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """f and the noise variance, each (..., N, D)."""
        return f, self.noise(f).expand(f.shape)

    def integral(self, name: str | None, outputs: int) -> str:
        """Resolves every integral to "exact".

        Raises:
            OptionError: if the name is unknown.
        """
        checks.choice("integral", "exact" if name is None else name, ["exact", *INTEGRALS])
        return "exact"

    def needs_covariance(self, integral: str) -> bool:
        """Always: outputs of a row are correlated in log p(y)."""
        return True

    def predictive(self, mean: Tensor, cov: Tensor, integral: str) -> Moments:
        """The mean of f, the noise as the aleatoric and the variance of f as the epistemic part, each (N, D)."""
        _check_exact(integral)
        mean = mean.to(torch.float64)
        return Moments(mean, self.noise(mean).expand(mean.shape), cov.diagonal(dim1=-2, dim2=-1).to(torch.float64))

    def predictive_mean(self, mean: Tensor, cov: Tensor, integral: str) -> Tensor:
        """The mean of f, shape (N, D)."""
        return self.predictive(mean, cov, integral).mean

    def predictive_log_prob(self, mean: Tensor, cov: Tensor, y: Tensor, integral: str) -> Tensor:
        """log N(y; mean, cov + diag(noise)) per row, shape (N,)."""
        _check_exact(integral)
        mean = mean.to(torch.float64)
        factor = torch.linalg.cholesky(cov.to(torch.float64) + torch.diag(self.noise(mean)))
        residual = torch.linalg.solve_triangular(factor, (y.to(mean) - mean)[..., None], upper=False)[..., 0]
        constant = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1) + 0.5 * mean.shape[-1] * math.log(2 * math.pi)
        return -0.5 * residual.square().sum(-1) - constant

    def distributions(self, columns: Tensor, outputs: int) -> Tensor:
        """Refused: a number has no class probabilities."""
        refuse_distributions(self.name)

    def mutual_information(self, mean: Tensor, cov: Tensor, integral: str) -> Tensor:
        """Σ_d ½ log(1 + Var[f_d]/noise_d), shape (N,)."""
        _check_exact(integral)
        variance = cov.diagonal(dim1=-2, dim2=-1).to(torch.float64)
        return 0.5 * torch.log1p(variance / self.noise(variance)).sum(-1)

    def integration_error(self, mean: Tensor, cov: Tensor, integral: str) -> Tensor:
        """Zero, shape (N, D): the integrals are closed forms."""
        _check_exact(integral)
        return torch.zeros_like(mean, dtype=torch.float64)

    def components(self, mean: Tensor, cov: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One Gaussian, N(mean, cov + noise) per output: log weight (1,), mean and variance (1, N, D)."""
        moments = self.predictive(mean, cov, "exact")
        return moments.mean.new_zeros(1), moments.mean[None], (moments.aleatoric + moments.epistemic)[None]


def _check_exact(integral: str) -> None:
    if integral != "exact":
        raise OptionError.unknown("integral", integral, ["exact"])
