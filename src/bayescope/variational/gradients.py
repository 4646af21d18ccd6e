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
from bayescope.training.objective import PriorPull, compact
from bayescope.variational.families import Family, LogScale, kl_divergence

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
        scale: their sds.
        estimator: "local_reparameterization", "flipout" or "reparameterization".
        samples: S.
    """

    def __init__(self, random: RandomWeights, weights: Weights, scale: LogScale, estimator: str, samples: int) -> None:
        self._random, self._weights, self._scale = random, weights, scale
        self._estimator, self._samples = estimator, samples
        self._means = weights.parameters(random.module)
        self._of: tuple[Prior, float] | None = None

    def begin_epoch(self, prior: Prior, share: float) -> None:
        """The KL term's pull on means and sds."""
        if self._of is not None and self._of[0] is prior and self._of[1] == share:
            return
        self._of, self._share = (prior, share), share
        self._pull = PriorPull(prior, self._weights, self._means, share)
        diagonal = self._weights.unflat(share * prior.structured(self._weights.dim).diagonal())
        self._diagonal = {name: compact(diagonal[name].to(mean)) for name, mean in self._means.items()}

    def accumulate(self, inputs: object, loss: Loss) -> Tensor:
        """The gradient of drawn outputs, and that of the KL term."""
        sds = self._scale.leaves()
        gaussians = {name: GaussianTensor(mean, sds[name]) for name, mean in self._means.items()}
        value = loss(self._random.passes(gaussians, inputs, estimator=self._estimator, samples=self._samples))
        value.backward()
        # KL(q∥p) has the gradient P₀ (μ − m) in the means, and diag(P₀) σ − 1/σ in the sds.
        self._pull.add_gradient()
        for name, sd in sds.items():
            gradient = torch.zeros_like(sd) if sd.grad is None else sd.grad  # none: it is not in use
            sd.grad = gradient.addcmul_(sd.detach(), self._diagonal[name])
        self._scale.carry(sds, self._share)
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

    def begin_epoch(self, prior: Prior, share: float) -> None:
        """p(θ), and the weight of the KL term."""
        self._prior, self._share = prior, share

    def accumulate(self, inputs: object, loss: Loss) -> Tensor:
        """The gradient at drawn weights, and that of the KL term."""
        values = at_offsets(self._module, self._weights, self._family.noise(self._samples))
        value = loss(passes_at(self._module, values, inputs))
        mean = self._weights.flatten(self._weights.parameters(self._module))
        (value + self._share * kl_divergence(self._family, mean, self._prior)).backward()
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
