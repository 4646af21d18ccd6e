"""The mixture of Gaussians: several modes, each with its weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from bayescope import checks
from bayescope.errors import UndefinedQuantityError
from bayescope.latent import MixtureLatent
from bayescope.likelihoods import Likelihood
from bayescope.models import Model
from bayescope.posterior.gaussian import GaussianPosterior
from bayescope.posterior.posterior import Answer, Options, Posterior, as_points
from bayescope.posterior.record import Record
from bayescope.priors import Prior


@final
@dataclass(frozen=True, eq=False, repr=False)
class MixturePosterior(Posterior):
    """q(θ) = Σ_k w_k q_k(θ) over Gaussian components.

    Attributes:
        log_weights: normalised, shape (K,).
        components: the K Gaussians, with their own records.
        record: how the mixture was made.
        function: f(x, θ), for predictions.
        likelihood: p(y∣f).
    """

    log_weights: Tensor
    components: Sequence[GaussianPosterior]
    record: Record
    function: Model | None = None
    likelihood: Likelihood | None = None

    @property
    def weights(self) -> Tensor:
        """w, shape (K,), summing to 1."""
        return self.log_weights.exp()

    @property
    def mean(self) -> Tensor:
        """Σ_k w_k m_k, shape (P,)."""
        return self.weights @ torch.stack([component.mean for component in self.components])

    @property
    def covariance(self) -> Tensor:
        """Σ_k w_k (Σ_k + (m_k − m)(m_k − m)ᵀ), shape (P, P)."""
        offsets = torch.stack([component.mean for component in self.components]) - self.mean
        within = torch.stack([component.covariance for component in self.components])
        return torch.tensordot(self.weights, within, dims=1) + (self.weights * offsets.mT) @ offsets

    def sample(self, n: int = 1, *, generator: torch.Generator | int | None = None) -> Tensor:
        """n draws, each from a component chosen by weight, shape (n, P)."""
        source = checks.generator(generator)
        chosen = torch.multinomial(self.weights, checks.count("n", n), replacement=True, generator=source)
        draws = self.mean.new_empty(n, self.mean.shape[0])
        for k, component in enumerate(self.components):
            members = chosen == k
            if members.any():
                draws[members] = component.sample(int(members.sum()), generator=source)
        return draws

    def log_prob(self, theta: Any) -> Tensor:
        """log Σ_k w_k q_k(θ), shape (...) for θ of shape (..., P)."""
        point = as_points(theta, self.mean.shape[0])
        each = torch.stack([component.log_prob(point) for component in self.components])
        return torch.logsumexp(each + self.log_weights.reshape(-1, *[1] * (each.ndim - 1)), 0)

    def _latent(self, x: Any, function: Model, likelihood: Likelihood, options: Options) -> Answer:
        parts = [part._latent(x, part.function or function, likelihood, options) for part in self.components]
        latent = MixtureLatent(self.log_weights, [part.latent for part in parts])
        return Answer(latent, f"mixture of {len(parts)}, {parts[0].note}", parts[0].shape)

    def _functions(self, x: Any, function: Model, n: int, generator: torch.Generator) -> Tensor:
        chosen = torch.multinomial(self.weights, n, replacement=True, generator=generator)
        functions = [
            part._functions(x, part.function or function, int((chosen == k).sum()), generator)
            for k, part in enumerate(self.components)
            if (chosen == k).any()
        ]
        return torch.cat(functions)[chosen.argsort(stable=True).argsort(stable=True)]

    def _as_prior(self) -> Prior:
        raise UndefinedQuantityError("condition: a mixture cannot be a prior; a Gaussian posterior can.")

    def _chains(self, draws: int, generator: torch.Generator) -> Tensor:
        return self.sample(draws, generator=generator)[None]
