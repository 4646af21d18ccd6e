"""The Gaussian likelihood of regression, with known or learnable noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError
from bayescope.likelihoods.curvatures import DiagonalLambdas
from bayescope.likelihoods.likelihood import Domain, Integral, Likelihood, Moments, variances
from bayescope.likelihoods.targets import numbers_in_columns
from bayescope.storage import stored

_LEARNT = "evidence"


@stored("gaussian")
@final
@dataclass(frozen=True, init=False, eq=False)
class Gaussian(Likelihood):
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

    name = "gaussian"
    domain = Domain("real")

    def __init__(self, noise_variance: Any = 1.0) -> None:
        if isinstance(noise_variance, str):
            value: Tensor | str = checks.choice("noise_variance", noise_variance, [_LEARNT])
        else:
            value = checks.positive("noise_variance", noise_variance).clone()
            if value.ndim > 1:
                raise InputError(f"noise_variance: expected a number or shape (D,), got {tuple(value.shape)}.")
        object.__setattr__(self, "noise_variance", value)

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

    def expected(self, f: Tensor) -> DiagonalLambdas:
        """Λ = diag(1/noise)."""
        return DiagonalLambdas(self.noise(f).reciprocal().expand(f.shape))

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """f plus noise, float64, shape (..., N, D)."""
        mean = f.to(torch.float64)
        standard = torch.randn(f.shape, dtype=torch.float64, device=generator.device, generator=generator)
        return mean + self.noise(mean).sqrt() * standard.to(f.device)

    def conditional(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """f and the noise variance, each (..., N, D)."""
        return f, self.noise(f).expand(f.shape)

    @property
    def integrals(self) -> Mapping[str, Integral]:
        return {"exact": _Exact(self)}


@final
@dataclass(frozen=True)
class _Exact(Integral):
    """The outcome as N(mean, cov + noise)."""

    likelihood: Gaussian

    def moments(self, mean: Tensor, cov: Tensor) -> Moments:
        """The mean of f, the noise as the aleatoric and the variance of f as the epistemic part, each (N, D)."""
        return Moments(mean, self.likelihood.noise(mean).expand(mean.shape), variances(cov))

    def log_prob(self, mean: Tensor, cov: Tensor, y: Tensor) -> Tensor:
        """log N(y; mean, cov + diag(noise)) per row, shape (N,)."""
        factor = torch.linalg.cholesky(cov + torch.diag(self.likelihood.noise(mean)))
        residual = torch.linalg.solve_triangular(factor, (y.to(mean) - mean)[..., None], upper=False)[..., 0]
        constant = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1) + 0.5 * mean.shape[-1] * math.log(2 * math.pi)
        return -0.5 * residual.square().sum(-1) - constant

    def information(self, mean: Tensor, cov: Tensor) -> Tensor:
        """Σ_d ½ log(1 + Var[f_d]/noise_d), shape (N,)."""
        return 0.5 * torch.log1p(variances(cov) / self.likelihood.noise(mean)).sum(-1)

    def components(self, mean: Tensor, cov: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One Gaussian, N(mean, cov + noise) per output: log weight (1,), mean and variance (1, N, D)."""
        moments = self.moments(mean, cov)
        return mean.new_zeros(1), mean[None], (moments.aleatoric + moments.epistemic)[None]
