"""The mixture: several posteriors, each with its weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError, UndefinedQuantityError
from bayescope.latent import MixtureLatent
from bayescope.likelihoods import Likelihood
from bayescope.likelihoods.mixtures import mixture_quantile
from bayescope.memory import draw_count
from bayescope.models import Model
from bayescope.network.model import network_of
from bayescope.posterior.answer import Answer, Options, as_points
from bayescope.posterior.gaussian import INTERVAL_DRAWS, GaussianPosterior
from bayescope.posterior.joint import JointLatent, mixed
from bayescope.posterior.missing import TableReader
from bayescope.posterior.posterior import Posterior
from bayescope.posterior.record import Record
from bayescope.posterior.weight_tables import ends_of_draws
from bayescope.storage import stored
from bayescope.transforms import ordered_ends


@stored("mixture_posterior")
@final
@dataclass(frozen=True, eq=False, repr=False)
class MixturePosterior(Posterior):
    """q(θ) = Σ_k w_k q_k(θ): Gaussians at several modes, or points where the members of an ensemble are unlike.

    Attributes:
        log_weights: normalised, shape (K,).
        components: the K posteriors, with their own records.
        record: how the mixture was made.
        function: f(x, θ), for predictions.
        likelihood: p(y∣f).
        weighting: what the weights are by: "equal", or "evidence".
        reader: makes the model's inputs of an estimator's tables; ``None`` where x is given as the model takes it.
    """

    log_weights: Tensor
    components: Sequence[Posterior]
    record: Record
    function: Model | None = None
    likelihood: Likelihood | None = None
    weighting: str = "equal"
    reader: TableReader | None = None

    @property
    def weights(self) -> Tensor:
        """w, shape (K,), summing to 1."""
        return self.log_weights.exp()

    @property
    def mean(self) -> Tensor:
        """Σ_k w_k m_k, shape (P,)."""
        self._check_one_space("mean")
        return self.weights @ torch.stack([component.mean for component in self.components])

    @property
    def covariance(self) -> Tensor:
        """Σ_k w_k (Σ_k + (m_k − m)(m_k − m)ᵀ), shape (P, P)."""
        self._check_one_space("covariance")
        offsets = torch.stack([component.mean for component in self.components]) - self.mean
        within = torch.stack([component.covariance for component in self.components])
        return torch.tensordot(self.weights, within, dims=1) + (self.weights * offsets.mT) @ offsets

    @property
    def sd(self) -> Tensor:
        """√(Σ_k w_k (s_k² + (m_k − m)²)) with the components' standard deviations s_k, shape (P,)."""
        self._check_one_space("sd")
        offsets = torch.stack([component.mean for component in self.components]) - self.mean
        within = torch.stack([component.sd for component in self.components])
        return (self.weights @ (within.square() + offsets.square())).sqrt()

    def _ends(self, tail: float) -> tuple[Tensor, Tensor]:
        self._check_one_space("interval")
        parts = [component for component in self.components if isinstance(component, GaussianPosterior)]
        joint = parts[0]._dependent if len(parts) == len(self.components) else None
        if joint is None or len(joint) == parts[0].sizes[0]:
            return ends_of_draws(self.sample(INTERVAL_DRAWS, generator=0), tail)
        means = torch.stack([part.location for part in parts])[:, None]
        variances = torch.stack([part.precision.marginal_variance() for part in parts])[:, None]
        low, high = (mixture_quantile(self.log_weights, means, variances, at)[0] for at in (tail, 1.0 - tail))
        if parts[0].transform is not None:
            low, high = ordered_ends(parts[0].transform, low, high)
        if len(joint):
            low[joint], high[joint] = ends_of_draws(self.sample(INTERVAL_DRAWS, generator=0)[:, joint], tail)
        return low, high

    @property
    def names(self) -> tuple[str, ...]:
        """What each weight is called: by the record, else by the components."""
        self._check_one_space("names")
        return self.record.names or self.components[0].names

    @property
    def sizes(self) -> tuple[int, ...]:
        """P, the number of weights; several of them where the components have unlike models."""
        return tuple(dict.fromkeys(size for component in self.components for size in component.sizes))

    def sample(self, n: int = 1, *, generator: torch.Generator | int | None = None) -> Tensor:
        """n draws, each from a component chosen by weight, shape (n, P)."""
        self._check_one_space("sample")
        source, dim = checks.generator(generator), self.components[0].sizes[0]
        count = draw_count(n, dim)
        chosen = torch.multinomial(self.weights.cpu(), count, replacement=True, generator=source)
        draws = self.log_weights.new_empty(count, dim)
        for k, component in enumerate(self.components):
            members = torch.nonzero(chosen == k)[:, 0].to(draws.device)
            if len(members):
                draws[members] = component.sample(len(members), generator=source)
        return draws

    def log_prob(self, theta: ArrayLike) -> Tensor:
        """log Σ_k w_k q_k(θ), shape (...) for θ of shape (..., P).

        Raises:
            UndefinedQuantityError: if the components are points.
        """
        self._check_one_space("log_prob")
        point = as_points(theta, self.components[0].sizes[0], self.log_weights.device)
        parts = [component for component in self.components if isinstance(component, GaussianPosterior)]
        if len(parts) < len(self.components):
            raise self.record.undefined("log_prob", "has components that are points, which have no density.")
        each = torch.stack([component.log_prob(point) for component in parts])
        return torch.logsumexp(each + self.log_weights.reshape(-1, *[1] * (each.ndim - 1)), 0)

    def _latent(self, x: object, function: Model, likelihood: Likelihood, options: Options) -> Answer:
        options = options._replace(top=None)  # the classes are those of the mixture
        views = [options.view(part.function) if part.function else function for part in self.components]
        parts = [part._latent(x, view, likelihood, options) for part, view in zip(self.components, views, strict=True)]
        latent = MixtureLatent(self.log_weights, [part.latent for part in parts])
        return Answer(latent, f"mixture of {len(parts)}, {parts[0].note}", parts[0].shape)

    def _functions(self, x: object, function: Model, n: int, generator: torch.Generator) -> Tensor:
        chosen = torch.multinomial(self.weights.cpu(), n, replacement=True, generator=generator)
        functions = [
            part._functions(x, part.function or function, int((chosen == k).sum()), generator)
            for k, part in enumerate(self.components)
            if (chosen == k).any()
        ]
        return torch.cat(functions)[chosen.argsort(stable=True).argsort(stable=True)]

    def _joint(self, x: object, function: Model, blocks: int) -> JointLatent:
        parts = [part._joint(x, part.function or function, blocks) for part in self.components]
        return mixed(self.weights, parts, blocks)

    def _with_graph(self) -> MixturePosterior:
        function = None if self.function is None else self.function.differentiable
        return replace(self, function=function, components=[part._with_graph() for part in self.components])

    def _models(self) -> Sequence[Model]:
        inside = [model for part in self.components for model in part._models()]
        return [*inside, *([] if self.function is None else [self.function])]

    @property
    def _several_networks(self) -> bool:
        return any(network_of(model) is not None for model in self._models())

    def _check_one_space(self, quantity: str) -> None:
        """Checks that the components' weights stand for the same things.

        Raises:
            UndefinedQuantityError: if they are weights of unlike models.
        """
        spaces = {part.function.space if part.function else part.sizes for part in self.components}
        if len(spaces) > 1:
            raise UndefinedQuantityError(
                f"{quantity}: the components of this mixture are of models with unlike weights, which have none in "
                "common. Ask for predictions or for functions, or each component."
            )

    def _check_stored(self) -> None:
        if self.log_weights.shape != (len(self.components),) or not self.components:
            raise InputError(f"mixture: expected a weight for each component, got {tuple(self.log_weights.shape)}.")
