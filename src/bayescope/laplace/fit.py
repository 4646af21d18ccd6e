"""What is left of the data once a network has been read: all that the evidence and its hyperparameters stand on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from bayescope import checks
from bayescope.curvature import Curvature
from bayescope.errors import UndefinedQuantityError, UnsupportedError
from bayescope.laplace.distance import Distance
from bayescope.laplace.hyperparameters import hyperparameters
from bayescope.laplace.training_rows import TrainingRows
from bayescope.likelihoods import Likelihood
from bayescope.network.model import NetworkModel
from bayescope.network.priors import by_parameter, resolved_prior
from bayescope.network.row_weights import row_weight_notes
from bayescope.posterior import Evidence, GaussianPosterior, Posterior, Record
from bayescope.precision import BlockPrecision, DensePrecision, Precision
from bayescope.priors import Prior
from bayescope.storage import stored

# A number, shape (P,), precisions by parameter, module or glob, or a prior.
PriorPrecisions = float | Tensor | Mapping[str, float | Tensor] | Prior
GivenPrior = PriorPrecisions | None
GivenNoise = float | Tensor | None

_MADE = Record("laplace")


@stored("laplace_fit", without=("sample",))
@final
@dataclass(frozen=True, eq=False)
class LaplaceFit(Evidence):
    """Laplace's approximation at a mode θ* as a function of its hyperparameters; no data are read again.

    With H the curvature of the data, T the temperature, and P₀ and m₀ the prior's precision and mean, A = H/T + P₀ and

        log Z = Σ log p(y∣f*)/T + log N(θ*; m₀, P₀⁻¹) + ½ P log 2π − ½ log∣A∣

    over the P random weights alone (MacKay 1992; Immer et al. 2021a): all others are conditioned on. Under a
    Gaussian likelihood with one noise variance, H(σ²) = H(σ₀²) σ₀²/σ² and Σ log p is a function of the residuals' sum
    of squares, so that another σ² takes no pass over the data either.

    Attributes:
        curvature: of the data alone, at the likelihood's own noise.
        function: f(x, θ), with the module that was read.
        mode: θ*, shape (P,), float64.
        prior: p(θ).
        likelihood: p(y∣f).
        temperature: T.
        observations: the number of rows, times that of the positions where outputs are dense.
        gradient: ∂ Σ log p(y∣f)/∂θ at θ*, shape (P,), float64, or ``None`` where it was not read.
        fingerprint: of the data, whatever their order.
        infer: gives of a fit the inference behind `Posterior.condition`, a function of the prior and the data.
        record: of how it was made, which its posteriors' records begin from.
        sample: some of the training rows, on which the posterior is compared with the network.
        learns_noise: whether the noise variance is learnt with the prior: the caller has given no number.
        left_over: of a projection H̃ of the curvature, the diagonal of H − H̃, shape (P,). The log evidence is then a
            lower bound, log Z ≥ log Z̃ − ½ tr(P₀⁻¹(H − H̃)), as log∣I + K∣ ≤ log∣I + K̃∣ + tr(K − K̃) for K − K̃ ⪰ 0
            (Titsias 2009, eq. 9, with the mean at the mode). It is a bound for priors that are multiples of the one
            that H was projected for, and else near one.
    """

    curvature: Curvature
    function: NetworkModel
    mode: Tensor
    prior: Prior
    likelihood: Likelihood
    temperature: float = 1.0
    observations: int = 0
    gradient: Tensor | None = None
    fingerprint: str = ""
    infer: Callable[[LaplaceFit], Callable[..., Posterior]] | None = None
    record: Record = _MADE
    sample: TrainingRows = ()
    learns_noise: bool = False
    left_over: Tensor | None = None

    def at_noise(self, noise_variance: float | Tensor | str) -> LaplaceFit:
        """The same fit under another noise variance of its Gaussian likelihood, as a number or a tensor in its graph.

        Raises:
            UnsupportedError: if the likelihood is no Gaussian with one noise variance for all outputs.
            InputError: if the noise variance is not positive.
        """
        old = self.noise_variance
        checked = checks.positive("noise_variance", noise_variance)
        new = noise_variance if isinstance(noise_variance, Tensor) else checked
        new = new.to(old).reshape(())
        factor = old / new
        numbers = self.numbers
        constant = 0.5 * numbers * math.log(2.0 * math.pi)
        squares = -2.0 * (self.curvature.log_likelihood.to(old) + constant + 0.5 * numbers * old.log())  # RSS/σ₀²
        log_likelihood = -0.5 * factor * squares - 0.5 * numbers * new.log() - constant
        curvature = replace(
            self.curvature, precision=self.curvature.precision.scaled(factor), log_likelihood=log_likelihood
        )
        gradient = None if self.gradient is None else self.gradient * factor
        likelihood = self.likelihood.with_noise_variance(new.detach())
        left_over = None if self.left_over is None else self.left_over * factor
        return replace(self, curvature=curvature, gradient=gradient, likelihood=likelihood, left_over=left_over)

    @property
    def noise_variance(self) -> Tensor:
        """σ₀², that of the fit itself, a float64 scalar.

        Raises:
            UnsupportedError: if the likelihood is no Gaussian with one noise variance for all outputs.
        """
        noise = self.likelihood.unweighted.noise_variance
        if noise is None:
            raise UnsupportedError(
                f"noise_variance: expected a Gaussian likelihood, got {self.likelihood.name!r}, which has none."
            )
        if isinstance(noise, str) or noise.numel() != 1:
            raise UnsupportedError(
                "noise_variance: expected one number for all outputs, got one for each. Only a single one is a factor "
                "of the curvature: fit again with other values."
            )
        return noise.reshape(()).to(self.mode.device)

    @property
    def numbers(self) -> float:
        """How many outcomes the likelihood is of: outputs of observations, by their weights."""
        return self.observations * self.function.outputs * (self.likelihood.mean_weight or 1.0)

    def tempered(self) -> Precision:
        """H/T, the curvature of the data as it enters A."""
        precision = self.curvature.precision
        return precision if self.temperature == 1.0 else precision.scaled(1.0 / self.temperature)

    def precision(self) -> Precision:
        """A = H/T + P₀.

        Raises:
            UnsupportedError: if the structure cannot take the prior's diagonal.
        """
        return self.curvature.with_prior(self.prior, of=self.tempered()) if self._in_graph else self._own_precision

    def log_evidence(self, prior_precision: GivenPrior = None, noise_variance: GivenNoise = None) -> Tensor:
        """log Z, a float64 scalar, differentiable in what is given as a tensor.

        Args:
            prior_precision: in place of the fit's own: a number, shape (P,), a dict by parameter, module or glob, or a
                `Prior`; tensors stay in their graph.
            noise_variance: in place of the likelihood's own.

        Raises:
            InputError: if a hyperparameter cannot be used.
            UnsupportedError: if the structure cannot take the prior's diagonal, or the likelihood has no such noise.
        """
        fit = self if noise_variance is None else self.at_noise(noise_variance)
        prior = fit.prior if prior_precision is None else prior_precision
        precision = fit.precision() if prior_precision is None else fit.curvature.with_prior(prior, of=fit.tempered())
        logdet = precision.logdet()
        normaliser = 0.5 * self.function.dim * math.log(2.0 * math.pi)
        likelihood = fit.curvature.log_likelihood.to(logdet) / self.temperature
        value = likelihood + self._log_prior(prior) + normaliser - 0.5 * logdet
        if fit.left_over is None:
            return value
        diagonal = resolved_prior(prior, self.function.weights, self.mode.device)
        assert isinstance(diagonal, Tensor)
        return value - 0.5 * (fit.left_over / diagonal).sum()

    def newton_decrement(self) -> Tensor:
        """λ = √(gᵀA⁻¹g) with g the gradient of the log joint density: 0 at its mode, a float64 scalar.

        ½ λ² is what a Newton step gains, and λ is the step's length in units of the posterior's standard deviations
        (Boyd and Vandenberghe 2004, section 9.5.1).

        Raises:
            UndefinedQuantityError: if the gradient was not read.
        """
        gradient = self.joint_gradient()
        return (gradient @ self.precision().solve(gradient)).clamp_min(0.0).sqrt()

    @cached_property
    def distance(self) -> Distance | None:
        """How far θ* is from a mode under the fit's own prior, or ``None`` where the gradient was not read."""
        if self.gradient is None:
            return None
        return Distance(float(self.newton_decrement()) ** 2, self._determined)

    @cached_property
    def _determined(self) -> float:
        return float(self.effective_parameters())

    def joint_gradient(self) -> Tensor:
        """∂ (Σ log p(y∣f)/T + log p(θ))/∂θ at θ*, shape (P,).

        Raises:
            UndefinedQuantityError: if the gradient was not read.
        """
        if self.gradient is None:
            raise UndefinedQuantityError("newton_decrement: this fit was made without the gradient of its data.")
        resolved = resolved_prior(self.prior, self.function.weights, self.mode.device)
        if isinstance(resolved, Prior):
            return self.gradient / self.temperature + resolved.gradient(self.mode)
        return self.gradient / self.temperature + resolved * (self._centre(self.prior) - self.mode)

    def effective_parameters(self) -> Tensor:
        """γ = tr((H/T) A⁻¹) = P − tr(P₀ A⁻¹), how many parameters the data determine (MacKay 1992, eq. 4.9).

        It is the slope of log∣c H/T + P₀∣ in log c, which every structure has without its inverse. Where H is dense,
        the slope would take several matrices more, and P − tr(P₀ A⁻¹) is read off A.
        """
        diagonal = resolved_prior(self.prior, self.function.weights, self.mode.device)
        if isinstance(diagonal, Tensor) and _is_dense(self.curvature.precision):
            with torch.no_grad():
                return (1.0 - diagonal * self.precision().marginal_variance()).sum()
        with torch.inference_mode(False), torch.enable_grad():
            factor = torch.ones((), dtype=torch.float64, device=self.mode.device, requires_grad=True)
            logdet = self.curvature.with_prior(self.prior, of=self.tempered().scaled(factor)).logdet()
            (slope,) = torch.autograd.grad(logdet, factor)
        return slope.detach()

    def posterior(self) -> GaussianPosterior:
        """q(θ) = N(θ*, A⁻¹).

        Raises:
            UnsupportedError: if the structure cannot take the prior's diagonal.
        """
        record = replace(
            self.record, evidence=self.log_evidence().detach(), notes={**self.record.notes, **self._notes()}
        )
        infer = None if self.infer is None else self.infer(self)
        return replace(self.predicting(), record=record, infer=infer, fit=self)

    def predicting(self) -> GaussianPosterior:
        """The posterior as far as predictions go: without its evidence."""
        return GaussianPosterior(self.mode, self.precision(), _MADE, self.function, self.likelihood.unweighted)

    @cached_property
    def _own_precision(self) -> Precision:
        """A under the fit's own prior and noise: built and factorised once, whatever is asked of it."""
        with torch.inference_mode(False), torch.no_grad():
            return self.curvature.with_prior(self.prior, of=self.tempered())

    @property
    def _in_graph(self) -> bool:
        """Whether gradients flow through the fit's own prior or noise: their graph serves once, and is not kept."""
        precision = self.prior.precision
        diagonal = precision if isinstance(precision, Tensor) else precision.diagonal()
        return diagonal.requires_grad or self.curvature.log_likelihood.requires_grad

    def _centre(self, prior: PriorPrecisions) -> Tensor:
        """m₀: precisions alone leave it where the fit's own prior has it."""
        return (prior if isinstance(prior, Prior) else self.prior).centre(self.function.dim).to(self.mode.device)

    def _log_prior(self, prior: PriorPrecisions) -> Tensor:
        """The log density of a prior at the mode, log N(θ*; m₀, P₀⁻¹)."""
        weights, normaliser = self.function.weights, 0.5 * self.function.dim * math.log(2.0 * math.pi)
        if isinstance(prior, Mapping):
            values, counts = by_parameter(prior, weights).to(self.mode.device), self.mode.new_tensor(weights.counts)
            return 0.5 * (counts @ values.log() - self._squares @ values) - normaliser
        resolved = resolved_prior(prior, weights, self.mode.device)
        if isinstance(resolved, Prior):
            return resolved.log_prob(self.mode)
        if not resolved.ndim and not isinstance(prior, Prior):
            return 0.5 * (weights.dim * resolved.log() - resolved * self._squares.sum()) - normaliser
        squares = (self.mode - self._centre(prior)).square()
        return 0.5 * (resolved.log().expand(weights.dim).sum() - (resolved * squares).sum()) - normaliser

    @cached_property
    def _squares(self) -> Tensor:
        """Σ (θ* − m₀)² for each random parameter."""
        offsets = self.mode - self._centre(self.prior)
        return torch.stack([part.square().sum() for part in offsets.split(list(self.function.weights.counts))])

    def _notes(self) -> dict[str, str]:
        """Lines for the posterior's summary."""
        curvature = self.curvature
        notes = {
            **hyperparameters(self.prior, self.likelihood, self.function),
            "curvature": f"{curvature.kind} in the structure {curvature.structure}, {curvature.rows:,} rows",
            **row_weight_notes(self.likelihood, curvature.rows),
            "effective parameters": f"{round(self._determined, 1) + 0.0:.1f} of {self.function.dim:,}",
        }
        if curvature.output_factors:
            notes["output factors"] = ", ".join(f"{k}: {v}" for k, v in curvature.output_factors.items())
        if self.temperature != 1.0:
            notes["temperature"] = f"{self.temperature:g}"
        if self.distance is not None:
            notes["Newton decrement"] = f"{self.distance.squared**0.5:.3g}"
            if self.distance.is_far:
                notes["no mode of this prior"] = (
                    f"the log evidence leaves out a slope that is worth about {0.5 * self.distance.squared:.3g} nats"
                )
        if curvature.fallbacks:
            notes["read in another structure"] = ", ".join(f"{k}: {v}" for k, v in curvature.fallbacks.items())
        return notes


def _is_dense(precision: Precision) -> bool:
    """Whether it is held in matrices of P² numbers, or in blocks of such."""
    blocks = precision.blocks if isinstance(precision, BlockPrecision) else (precision,)
    return all(isinstance(block, DensePrecision) for block in blocks)
