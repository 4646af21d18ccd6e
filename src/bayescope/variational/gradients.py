"""How the gradient of the bound is estimated on a minibatch: which draws are taken, and what the KL term adds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, final

import torch
from torch import Tensor, nn

from bayescope.network.random_weights import RandomWeights, passes_at
from bayescope.network.weights import Weights
from bayescope.priors import Prior
from bayescope.reparameterization import GaussianTensor
from bayescope.variational.families import Family, LogScale, MeanField, kl_divergence

# From f at draws of the weights, (S, B, *positions, C), to the mean of −log p(y∣f) over draws and rows.
Loss = Callable[[Tensor], Tensor]


class Gradients(Protocol):
    """Sets the gradient of E_q[−log p(y∣f)] + share KL(q∥p), per row, in every parameter."""

    def begin_epoch(self, prior: Prior, share: float) -> None:
        """Takes p(θ), and the weight of the KL term over N, for the steps to come."""

    def accumulate(self, inputs: object, loss: Loss) -> Tensor:
        """Adds an unbiased estimate of the gradient to those of the parameters.

        Returns:
            The loss, detached.
        """


@final
class ByRow:
    """Independent weights: outputs that are drawn for each row, and the closed form of the KL term.

    Args:
        random: the random weights of the network, where they meet the data.
        weights: the same weights, in their flat order.
        family: their sds.
        estimator: "local_reparameterization", "flipout" or "reparameterization".
        samples: S.
    """

    def __init__(self, random: RandomWeights, weights: Weights, family: MeanField, estimator: str, samples: int):
        self._random, self._family = random, family
        self._estimator, self._samples = estimator, samples
        self._means = weights.parameters(random.module)
        self._penalty = Penalty(weights, random.module, family)

    def begin_epoch(self, prior: Prior, share: float) -> None:
        """The KL term's pull on means and sds."""
        self._penalty.begin_epoch(prior, share)

    def accumulate(self, inputs: object, loss: Loss) -> Tensor:
        """The gradient of drawn outputs, and that of the KL term."""
        sds = self._family.scale.sds()
        gaussians = {name: GaussianTensor(mean, sds[name]) for name, mean in self._means.items()}
        value = loss(self._random.passes(gaussians, inputs, estimator=self._estimator, samples=self._samples))
        value.backward()
        self._penalty.add_gradient()
        return value.detach()


@final
class AtDraws:
    """Weights of any family, drawn once for all rows of a pass, and the closed form of the KL term.

    Args:
        module: the network.
        weights: which are random.
        family: how they scatter.
        samples: S.
    """

    def __init__(self, module: nn.Module, weights: Weights, family: Family, samples: int) -> None:
        self._module, self._weights, self._family, self._samples = module, weights, family, samples
        self._penalty = Penalty(weights, module, family)

    def begin_epoch(self, prior: Prior, share: float) -> None:
        """The KL term's pull on means and scales."""
        self._penalty.begin_epoch(prior, share)

    def accumulate(self, inputs: object, loss: Loss) -> Tensor:
        """The gradient at drawn weights, and that of the KL term."""
        values = at_offsets(self._module, self._weights, self._family.noise(self._samples))
        value = loss(passes_at(self._module, values, inputs))
        value.backward()
        self._penalty.add_gradient()
        return value.detach()


@final
class StickingTheLanding:
    """Weights of any family, and the KL term as log q(θ) − log p(θ) at the same draws, with q held in log q.

    The part of the gradient that is left out has mean zero, and what is left vanishes draw by draw where q is the
    posterior (Roeder, Wu & Duvenaud 2017, "Sticking the landing: simple, lower-variance gradient estimators for
    variational inference", Eq. 8): the slope in θ alone, −∂log p(θ)/∂θ − Σ⁻¹(θ − μ), is carried on to μ and Σ.

    Args:
        module: the network.
        weights: which are random.
        family: how they scatter.
        samples: S.
    """

    def __init__(self, module: nn.Module, weights: Weights, family: Family, samples: int) -> None:
        self._module, self._weights, self._family, self._samples = module, weights, family, samples

    def begin_epoch(self, prior: Prior, share: float) -> None:
        """The prior's slope."""
        dim = self._weights.dim
        self._precision, self._centre, self._share = prior.structured(dim), prior.centre(dim), share

    def accumulate(self, inputs: object, loss: Loss) -> Tensor:
        """The gradient at drawn weights."""
        noise = self._family.noise(self._samples)
        values = at_offsets(self._module, self._weights, noise)
        value = loss(passes_at(self._module, values, inputs))
        theta = self._weights.flatten(values)
        (value + self._share * (self._slope(theta, noise) * theta).sum() / self._samples).backward()
        return value.detach()

    @torch.no_grad()
    def _slope(self, theta: Tensor, noise: Tensor) -> Tensor:
        """∂ (log q − log p)/∂θ with q held, shape (S, P)."""
        offset = theta.to(torch.float64) - self._centre.to(theta.device)
        pull: Tensor = self._precision.multiply(offset.mT).mT
        return pull.to(theta) - self._family.solve(noise)


def at_offsets(module: nn.Module, weights: Weights, noise: Tensor) -> dict[str, Tensor]:
    """The random parameters of a module moved by offsets (S, P), (S, *shape) by name, in the graph of both."""
    offsets = weights.unflat(noise)  # zero where a mask leaves entries out: those are trained as they are
    return {name: mean + offsets[name].to(mean) for name, mean in weights.parameters(module).items()}


class _Pull(Protocol):
    """share KL(q∥p) in closed form."""

    def add_gradient(self) -> None:
        """Adds its gradient to that of the data."""


@final
class Penalty:
    """The closed form of the KL term under the prior of the moment."""

    def __init__(self, weights: Weights, module: nn.Module, family: Family) -> None:
        self._weights, self._module, self._family = weights, module, family
        self._of: tuple[Prior, float] | None = None

    def begin_epoch(self, prior: Prior, share: float) -> None:
        """Takes p(θ) and the share for the steps to come."""
        if self._of is not None and self._of[0] is prior and self._of[1] == share:
            return
        self._of, self._pull = (prior, share), self._made(prior, share)

    def add_gradient(self) -> None:
        """Adds its gradient to that of the data."""
        self._pull.add_gradient()

    def _made(self, prior: Prior, share: float) -> _Pull:
        scale = self._family.scale if isinstance(self._family, MeanField) else None
        if isinstance(prior.precision, Tensor) and isinstance(scale, LogScale):
            return _Elementwise(self._weights, self._module, scale, prior, share)
        return _Structured(self._weights, self._module, self._family, prior, share)


@final
class _Elementwise:
    """Independent weights under independent priors: p (μ − m) in the means, PACE (p σ² − 1) in ρ."""

    def __init__(self, weights: Weights, module: nn.Module, scale: LogScale, prior: Prior, share: float) -> None:
        self._scale, self._share = scale, share
        diagonal = prior.diagonal(weights.dim)
        precisions = weights.unflat(diagonal)  # zero where a mask leaves entries out
        pulls = weights.unflat(diagonal * prior.centre(weights.dim))
        self._terms: list[tuple[nn.Parameter, Tensor, Tensor | None]] = []
        for name, mean in weights.parameters(module).items():
            precision, pull = precisions[name].to(mean), pulls[name].to(mean)
            alike = bool((precision == precision.flatten()[0]).all())
            self._terms.append((mean, precision.flatten()[0] if alike else precision, pull if pull.any() else None))

    @torch.no_grad()
    def add_gradient(self) -> None:
        for place, (mean, precision, pull) in enumerate(self._terms):
            if mean.grad is None:
                mean.grad = torch.zeros_like(mean)
            mean.grad.addcmul_(mean, self._share * precision)
            if pull is not None:
                mean.grad.sub_(pull, alpha=self._share)
            self._scale.add_kl_gradient(place, precision, self._share)


@final
class _Structured:
    """By automatic differentiation of the closed form."""

    def __init__(self, weights: Weights, module: nn.Module, family: Family, prior: Prior, share: float) -> None:
        self._weights, self._means = weights, weights.parameters(module)
        self._family, self._prior, self._share = family, prior, share

    def add_gradient(self) -> None:
        (self._share * kl_divergence(self._family, self._weights.flatten(self._means), self._prior)).backward()
