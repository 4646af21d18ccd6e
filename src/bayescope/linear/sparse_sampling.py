"""NUTS for a linear model under a sparse prior: weights and scales together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, cast, final

import numpy as np
import torch
from torch import Tensor

from bayescope import checks
from bayescope.density import diagnosed, nuts_draws
from bayescope.linear.density import LinearDensity
from bayescope.linear.sampling import COPIES
from bayescope.log_density import LogDensity
from bayescope.memory import draw_count
from bayescope.posterior import DrawsPosterior, GaussianPosterior, Record
from bayescope.sparse_priors import Array, ScaleMixture


class SparseDraws(NamedTuple):
    """What NUTS says of weights and scales.

    Attributes:
        posterior: the draws of the weights, with those of the scales.
        precision: exp E[log p_j], of the prior precision p_j = 1/τ²λ_j² + 1/c² of each input, shape (D,).
        shrinkage: E[κ_j], κ_j = p_j/(p_j + h_j) with the curvature h_j of the log likelihood, shape (D,).
    """

    posterior: DrawsPosterior
    precision: Tensor
    shrinkage: Tensor


def sparse_nuts(
    density: LinearDensity,
    mixture: ScaleMixture,
    near: GaussianPosterior,
    precision: Tensor,
    *,
    draws: int = 1000,
    tune: int = 1000,
    chains: int = 4,
    target_accept: float = 0.95,
    generator: torch.Generator | int | None = None,
    progress: bool = True,
) -> SparseDraws:
    """Draws from p(θ, λ, τ∣y) by NUTS (Hoffman & Gelman 2014).

    Args:
        density: the log joint; its rows are in memory, and its prior is that of the intercepts.
        mixture: the prior of the weights.
        near: the variational posterior, which gives the coordinates.
        precision: p_j under it, shape (D,).
        draws: kept draws a chain.
        tune: warm-up draws a chain.
        chains: how many.
        target_accept: the acceptance rate that the step size aims at; the scales' density is curved.
        generator: a ``torch.Generator`` or an int.
        progress: whether to show a progress bar, on the error stream and only to a terminal.

    Raises:
        MissingDependencyError: if nutpie is not installed.
        InputError: if a number cannot be used.

    Warns:
        ConvergenceWarning: if the chains have not mixed.
        DivergenceWarning: if trajectories diverged.
    """
    source = checks.generator(generator)
    scaled = _Scaled.near(density, mixture, near, precision)
    draw_count(checks.count("chains", chains) * checks.count("draws", draws), scaled.dim, copies=COPIES)
    start = torch.randn(chains, scaled.dim, dtype=torch.float64, generator=source)
    sampled, statistics = nuts_draws(
        cast(LogDensity, scaled),  # it is asked for no Hessian, as the starts are given
        start=start,
        draws=draws,
        tune=checks.count("tune", tune),
        chains=chains,
        target_accept=checks.fraction("target_accept", target_accept),
        generator=source,
        progress=progress,
    )
    u = sampled.numpy()
    theta, log_variance = (torch.from_numpy(each) for each in scaled.weights(u)[:2])
    _, log_local, v = scaled.parts(u)
    log_scales = {"global_scale": mixture.global_scale(v[..., 0])[0], "local_scale": log_local}
    curvature = density.curvature(theta.flatten(0, 1).mean(0)).diagonal()
    curvature = curvature[: density.model.outputs * density.model.features].unflatten(0, (density.model.outputs, -1))
    curvature = curvature.mean(0)
    shrinkage = (1.0 / (1.0 + curvature * log_variance.exp())).mean((0, 1))
    posterior = diagnosed(
        theta, Record("nuts"), statistics=statistics, model=density.model, likelihood=density.likelihood
    )
    posterior = replace(posterior, scales={name: torch.from_numpy(np.exp(each)) for name, each in log_scales.items()})
    return SparseDraws(posterior, (-log_variance.mean((0, 1))).exp(), shrinkage)


@final
@dataclass(frozen=True, eq=False)
class _Scaled:
    """The log joint of weights and scales in u = (x, log λ − l₀, v − v₀), v that of log τ, near N(0, I) for x.

    With v_j = 1/p_j the prior variance of the weights of input j, and a_j between 0 and 1,

        θ = (v/v₀)^{a/2} ⊙ (m + R x),

    with the variational posterior N(m, R Rᵀ) and its v₀. At a = 1 the weights are not centred, which suits those that
    the prior decides, and at a = 0 they are, which suits those that the data decide: a is the share κ_j that is shrunk
    (Gorinova, Moore & Hoffman 2020, Automatic reparameterisation of probabilistic programs).

    Attributes:
        density: of the rows and the intercepts.
        mixture: the prior of the weights.
        mean: m, shape (P,).
        root: R, shape (P, P).
        share: a, shape (D,).
        log_variance: log v₀, shape (D,).
        log_local: l₀, shape (D,).
        centre: v₀ of the coordinate of τ.
        intercepts: their prior precisions.
    """

    density: LinearDensity
    mixture: ScaleMixture
    mean: Array
    root: Array
    share: Array
    log_variance: Array
    log_local: Array
    centre: float
    intercepts: Array

    @classmethod
    def near(
        cls, density: LinearDensity, mixture: ScaleMixture, posterior: GaussianPosterior, precision: Tensor
    ) -> _Scaled:
        """Coordinates about a variational posterior, under which the weights have these prior precisions."""
        root = posterior.precision.sqrt_solve(torch.eye(density.dim, dtype=torch.float64))
        outputs, split = density.model.outputs, density.model.outputs * density.model.features
        total = posterior.precision.diagonal()[:split].unflatten(0, (outputs, -1)).mean(0)
        log_scale = (-0.5 * (precision - mixture.slab**-2.0).log()).numpy()
        centre = mixture.coordinate(float(np.median(log_scale)))
        log_local = log_scale - mixture.global_scale(np.array(centre))[0]
        intercepts = density.prior_precision.diagonal()[split:].numpy()
        share, log_variance = (precision / total).sqrt().numpy(), -precision.log().numpy()
        mean = posterior.mean.numpy()
        return cls(density, mixture, mean, root.numpy(), share, log_variance, log_local, centre, intercepts)

    @property
    def dim(self) -> int:
        """All weights, a λ for each input, and τ where it is not known."""
        return len(self.mean) + len(self.share) + (not self.mixture.known)

    def parts(self, u: Array) -> tuple[Array, Array, Array]:
        """x (..., P), log λ (..., D), and v of log τ (..., 1)."""
        x, log_local, v = np.split(u, np.cumsum([len(self.mean), len(self.share)]), -1)
        return x, log_local + self.log_local, v.sum(-1, keepdims=True) + self.centre

    def weights(self, u: Array) -> tuple[Array, Array, Array]:
        """θ (..., P), log v (..., D), and the factor (v/v₀)^{a/2} (..., P) of θ, at u of shape (..., P + D + 1)."""
        x, log_local, v = self.parts(u)
        reach = log_local + self.mixture.global_scale(v)[0]
        log_variance = -np.log(np.exp(-2.0 * reach) + self.mixture.slab**-2.0)
        stretch = np.ones(x.shape)
        factor = np.exp(0.5 * self.share * (log_variance - self.log_variance))
        stretch[..., : x.shape[-1] - len(self.intercepts)] = np.tile(factor, self.density.model.outputs)
        return stretch * (self.mean + x @ self.root.T), log_variance, stretch

    def log_prob(self, u: Tensor) -> Tensor:
        """log p(y, θ, λ, τ), shape (...)."""
        return torch.stack([self.value_and_gradient(each)[0] for each in u.reshape(-1, self.dim)]).reshape(u.shape[:-1])

    def value_and_gradient(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """log p(y, θ, λ, τ) and its gradient, for u of shape (P + D + 1,), by NumPy, whose small sums start sooner."""
        outputs, features = self.density.model.outputs, len(self.share)
        split = outputs * features
        with np.errstate(all="ignore"):  # an infinity is an answer, which divergences show
            _, log_local, v = self.parts(u.numpy())
            theta, log_variance, stretch = self.weights(u.numpy())
            log_global, rate, of_global, global_slope = self.mixture.global_scale(v)
            log_rest = log_variance - 2.0 * (log_local + log_global)  # of r = 1/(1 + τ²λ²/c²)
            value, gradient = self.density.likelihood_and_gradient(torch.from_numpy(theta))
            slope = gradient.numpy()
            pull = self.intercepts * theta[split:]
            slope[split:] -= pull
            w = theta[:split].reshape(outputs, features)
            inwards = w * np.exp(-log_variance)
            slope[:split] -= inwards.ravel()
            along, squares = (slope[:split].reshape(w.shape) * w).sum(0), (inwards * w).sum(0)
            free, rest = outputs * (1.0 - self.share), np.exp(log_rest)
            # ∂ log v/∂ log λ = 2r; the slab adds ½ C log r to the log density.
            by_scale = rest * (self.share * along - free + squares) - outputs * (1.0 - rest)
            local, local_slope = self.mixture.local.log_density(log_local)
            normaliser, normaliser_slope = self.mixture.log_normaliser(log_global, outputs)
            prior = 0.5 * ((outputs * log_rest - free * log_variance - squares).sum() - pull @ theta[split:])
            prior += local.sum() + (of_global - features * normaliser).sum()
            found = [self.root.T @ (stretch * slope), by_scale + local_slope]
            if not self.mixture.known:
                found.append(rate * (by_scale.sum() - features * normaliser_slope) + global_slope)
        return value + float(prior), torch.from_numpy(np.concatenate(found))
