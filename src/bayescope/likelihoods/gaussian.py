"""Regression with constant noise: one variance for each output, or noise that is correlated among them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError
from bayescope.likelihoods.curvatures import DiagonalLambdas, RootLambdas
from bayescope.likelihoods.elementwise import hyperparameter, one_or_each
from bayescope.likelihoods.likelihood import Domain, Integral, Likelihood, Moments, variances
from bayescope.likelihoods.targets import numbers_in_columns
from bayescope.storage import stored

# Where a search for the noise begins, at least: a standard deviation of this share of the largest target.
_LEAST_NOISE, _TINY = 1e-6, 1e-100
# The smallest eigenvalue of a correlation matrix that can be told from 0.
_SINGULAR = 1e-10
_LOG_ROOT_TAU = 0.5 * math.log(2 * math.pi)


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
    domain = Domain("numbers")
    hyperparameters: ClassVar[Mapping[str, str]] = {"noise_variance": "positive"}
    gaussian_outcome = True

    def __init__(self, noise_variance: ArrayLike | Literal["evidence"] = 1.0) -> None:
        value = hyperparameter("noise_variance", noise_variance)
        if isinstance(value, Tensor) and value.ndim > 1:
            raise InputError(f"noise_variance: expected a number or shape (D,), got {tuple(value.shape)}.")
        object.__setattr__(self, "noise_variance", value)

    def in_unit(self, scale: Tensor) -> Gaussian:
        """The noise variance times the scale's square; one number where all outputs have the same."""
        variance = self.noise(scale) * scale.square()
        return self.with_noise_variance(variance if len(variance.unique()) > 1 else variance[0])

    def starting(self, y: Tensor) -> Gaussian:
        """The variance of the targets, one for each of several outputs."""
        if not self.learnable:
            return self
        return Gaussian(one_or_each(_spread(y)))

    def targets(self, y: ArrayLike, outputs: int) -> Tensor:
        """Checks finite numbers and returns them in float64, shape (N, D).

        Args:
            y: shape (N,) or (N, 1) for D = 1, else (N, D).
            outputs: D.

        Raises:
            InputError: if the shape does not fit or a number is not finite.
        """
        return numbers_in_columns(y, outputs, outputs)

    def _fitted_in_closed_form(self, f: Tensor, y: Tensor, total: Callable[[Tensor], Tensor]) -> Gaussian:
        """The noise variance that is the mean of (y − f)²."""
        squares = (y.to(f) - f).square()
        sums = total(torch.stack([squares.sum(), squares.new_tensor(float(squares.numel()))]).to(torch.float64))
        return self.with_noise_variance(sums[0] / sums[1])

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

    def ggn_sqrt(self, f: Tensor, y: Tensor) -> Tensor:
        """The root of Λ, which is one matrix for all rows."""
        return torch.diag_embed(self.noise(f).rsqrt()).expand(*f.shape, f.shape[-1])

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """f plus noise, float64, shape (..., N, D)."""
        mean = f.to(torch.float64)
        standard = torch.randn(f.shape, dtype=torch.float64, device=generator.device, generator=generator)
        return mean + self.noise(mean).sqrt() * standard.to(f.device)

    def conditional(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """f and the noise variance, each (..., N, D)."""
        return f, self.noise(f).expand(f.shape)

    def noise_covariance(self, like: Tensor) -> Tensor:
        """The noise variances on the diagonal, shape (D, D)."""
        return torch.diag(self.noise(like))

    @property
    def integrals(self) -> Mapping[str, Integral]:
        return {"exact": _Exact(self)}


@stored("multivariate_gaussian")
@final
@dataclass(frozen=True, init=False, eq=False)
class MultivariateGaussian(Likelihood):
    """p(y∣f) = N(y; f, covariance), for D = C outputs with correlated noise. Canonical targets are float64, (N, D).

    Every integral over f is exact: y is N(mean, cov + covariance). Log densities and draws are of all outputs together;
    quantiles, entropies and the mutual information are of each output by itself.

    Args:
        covariance: of the noise, symmetric and positive definite of shape (D, D), in the targets' units; or
            ``"evidence"`` for one that is to be learnt.

    Attributes:
        covariance: the same as a float64 tensor, or ``"evidence"``.

    Raises:
        InputError: if it is not symmetric or not positive definite.
        OptionError: if it is another word than "evidence".
    """

    covariance: Tensor | str

    name = "multivariate_gaussian"
    domain = Domain("numbers")
    hyperparameters: ClassVar[Mapping[str, str]] = {"covariance": "covariance"}
    gaussian_outcome = True

    def __init__(self, covariance: ArrayLike | Literal["evidence"] = "evidence") -> None:
        object.__setattr__(self, "covariance", hyperparameter("covariance", covariance, checks.covariance))

    def in_unit(self, scale: Tensor) -> MultivariateGaussian:
        """The covariance in other units, where it is known."""
        if self.learnable:
            return self
        return MultivariateGaussian(scale[:, None] * self.known("covariance") * scale)

    def starting(self, y: Tensor) -> MultivariateGaussian:
        """The variances of the targets, or 1 for a constant one, without correlations.

        Raises:
            InputError: if a column of the targets follows from the others, so that there is no covariance to be learnt.
        """
        if not self.learnable:
            return self
        constant = (y == y[:1]).all(0)
        variance = torch.where(constant, 1.0, _spread(y))
        scores = ((y - y.mean(0)) * variance.rsqrt())[:, ~constant]
        if scores.shape[1] and torch.linalg.eigvalsh(scores.mT @ scores)[0] < _SINGULAR * len(y):
            raise InputError(
                f"y: expected columns of which none follows from the others, got {len(y)} rows of {y.shape[1]} columns "
                "in which one does. Leave it out, give more rows, or give a covariance."
            )
        return MultivariateGaussian(torch.diag(variance))

    def targets(self, y: ArrayLike, outputs: int) -> Tensor:
        """Checks finite numbers and returns them in float64, shape (N, D), as `Gaussian` does."""
        return numbers_in_columns(y, outputs, outputs)

    def _fitted_in_closed_form(self, f: Tensor, y: Tensor, total: Callable[[Tensor], Tensor]) -> MultivariateGaussian:
        """The covariance that is the mean of (y − f)(y − f)ᵀ."""
        residual = (y.to(f) - f).flatten(0, -2).to(torch.float64)
        products = residual.mT @ residual
        sums = total(torch.cat([products.flatten(), products.new_tensor([float(len(residual))])]))
        return MultivariateGaussian(sums[:-1].reshape(products.shape) / sums[-1])

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """log N(y; f, covariance), shape (..., N)."""
        white = self._whitening(f)
        constant = white.diagonal().log().sum() - f.shape[-1] * _LOG_ROOT_TAU
        return constant - 0.5 * ((y.to(f) - f) @ white.mT).square().sum(-1)

    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        """covariance⁻¹ (y − f), shape (..., N, D)."""
        white = self._whitening(f)
        return (y.to(f) - f) @ white.mT @ white

    def expected(self, f: Tensor) -> RootLambdas:
        """Λ = covariance⁻¹."""
        return RootLambdas(self._whitening(f).mT.expand(*f.shape, f.shape[-1]))

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """f plus noise, float64, shape (..., N, D)."""
        mean = f.to(torch.float64)
        standard = torch.randn(f.shape, dtype=torch.float64, device=generator.device, generator=generator)
        return mean + standard.to(f.device) @ torch.linalg.cholesky(self.noise_covariance(mean)).mT

    def conditional(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """f and the noise variances, each (..., N, D)."""
        return f, self.noise_covariance(f).diagonal().expand(f.shape)

    def noise_covariance(self, like: Tensor) -> Tensor:
        """The covariance of the noise in the dtype of outputs (..., D).

        Raises:
            InputError: if it is still to be learnt, or was given for another number of outputs.
        """
        covariance = self.known("covariance")
        if len(covariance) != like.shape[-1]:
            raise InputError(
                f"covariance: expected shape {(like.shape[-1],) * 2} for {like.shape[-1]} output(s), got "
                f"{tuple(covariance.shape)}."
            )
        return covariance.to(like)

    @property
    def integrals(self) -> Mapping[str, Integral]:
        return {"exact": _Exact(self)}

    def _whitening(self, f: Tensor) -> Tensor:
        """W with Λ = WᵀW, the inverse of the Cholesky factor, in the dtype of f."""
        factor = torch.linalg.cholesky(self.noise_covariance(f.to(torch.float64)))
        return torch.linalg.solve_triangular(factor, torch.eye(len(factor)).to(factor), upper=False).to(f)


@final
@dataclass(frozen=True)
class _Exact(Integral):
    """The outcome as N(mean, cov + noise)."""

    likelihood: Gaussian | MultivariateGaussian

    def moments(self, mean: Tensor, cov: Tensor) -> Moments:
        """The mean of f, the noise as the aleatoric and the variance of f as the epistemic part, each (N, D)."""
        return Moments(mean, self.likelihood.conditional(mean)[1], variances(cov))

    def log_prob(self, mean: Tensor, cov: Tensor, y: Tensor) -> Tensor:
        """log N(y; mean, cov + noise) per row, shape (N,)."""
        factor = torch.linalg.cholesky(cov + self.likelihood.noise_covariance(mean))
        residual = torch.linalg.solve_triangular(factor, (y.to(mean) - mean)[..., None], upper=False)[..., 0]
        constant = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1) + 0.5 * mean.shape[-1] * math.log(2 * math.pi)
        return -0.5 * residual.square().sum(-1) - constant

    def information(self, mean: Tensor, cov: Tensor) -> Tensor:
        """Σ_d ½ log(1 + Var[f_d]/noise_d), shape (N,)."""
        return 0.5 * torch.log1p(variances(cov) / self.likelihood.conditional(mean)[1]).sum(-1)

    def components(self, mean: Tensor, cov: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One Gaussian, N(mean, cov + noise) per output: log weight (1,), mean and variance (1, N, D)."""
        moments = self.moments(mean, cov)
        return mean.new_zeros(1), mean[None], (moments.aleatoric + moments.epistemic)[None]


def _spread(y: Tensor) -> Tensor:
    """The variance of each target, above 0."""
    return y.var(0, correction=0).clamp_min((_LEAST_NOISE * y.abs().amax(0)).square()).clamp_min(_TINY)
