"""IVON: mean field by natural gradients, at the cost of Adam.

Shen et al. 2024, "Variational learning is effective for large deep networks", Algorithm 1. In units of one of N rows,
with λ = N/w for the KL term's weight w and δ = P₀/λ, each weight has σ² = 1/(λ (h + δ)) and

    ĝ = ∇ℓ(θ) at θ = m + σ∘ε,    ĥ = ĝ (θ − m)/σ²   (Stein's lemma: E ĥ is the expected second derivative of ℓ),
    g ← β₁g + (1−β₁)ĝ,           h ← β₂h + (1−β₂)ĥ + ½ (1−β₂)² (h − ĥ)²/(h + δ),
    m ← m − α (g/(1−β₁ᵗ) + δ (m − m₀))/(h + δ).

The last term of h makes the step a retraction: h + δ stays positive (Lin, Schmidt & Khan 2020). Where h is negative and
a prior that is learnt lowers δ, h shrinks by the same factor (`CurvatureScale.move`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bayescope.errors import UnsupportedError
from bayescope.network import Weights, passes_at
from bayescope.priors import Prior
from bayescope.variational.families import MeanField
from bayescope.variational.objective import Loss, at_offsets

LEARNING_RATE = 0.1
# Of Algorithm 1; β₂ is for some thousands of steps, where the paper's 1 − 1e-5 is for hundreds of thousands.
MOMENTUM, CURVATURE_DECAY = 0.9, 0.999
# h₀, in the units of a row's loss; the paper takes 0.1 to 1.
FIRST_CURVATURE = 0.5


@final
class CurvatureScale(nn.Module):
    """σ² = 1/(λ (h + δ)).

    Args:
        weights: which are random; all entries of their parameters.
        parameters: of the network, by name.
        curvatures: the first h, shape (P,).
        prior: p(θ), with independent weights.
        share: 1/λ.
    """

    def __init__(
        self, weights: Weights, parameters: Mapping[str, Tensor], curvatures: Tensor, prior: Prior, share: float
    ) -> None:
        super().__init__()
        self._weights, self.names = weights, weights.names
        first = weights.unflat(curvatures)
        self.curvature = nn.ParameterList(nn.Parameter(first[name].to(parameters[name])) for name in self.names)
        for place, name in enumerate(self.names):
            self.register_buffer(f"delta_{place}", torch.zeros_like(parameters[name]))
            self.register_buffer(f"centre_{place}", torch.zeros_like(parameters[name]))
        self.register_buffer("share", torch.zeros((), dtype=torch.float64))
        self.move(prior, share)

    @torch.no_grad()
    def move(self, prior: Prior, share: float) -> None:
        """Takes another prior and share.

        A negative h is the noise of draws, kept above −δ: where δ falls by a factor, h shrinks by it, and the
        ratio of q's precision to the prior's stays what it was. A positive h is what the data tell, and stays.
        """
        if not isinstance(prior.precision, Tensor):
            raise UnsupportedError("optimizer: 'ivon' expects a prior of independent weights. Take 'adam'.")
        dim = self._weights.dim
        deltas = self._weights.unflat(share * prior.diagonal(dim))
        centres = self._weights.unflat(prior.centre(dim))
        for place, name in enumerate(self.names):
            curvature, delta, _ = self.parts(place)
            next_delta = deltas[name].to(delta)
            lowered = (curvature < 0) & (next_delta < delta)
            curvature[lowered] *= next_delta[lowered] / delta[lowered]
            delta.copy_(next_delta)
            self.get_buffer(f"centre_{place}").copy_(centres[name])
        self.get_buffer("share").fill_(share)

    def parts(self, place: int) -> tuple[nn.Parameter, Tensor, Tensor]:
        """h, δ and m₀ of a parameter."""
        return self.curvature[place], self.get_buffer(f"delta_{place}"), self.get_buffer(f"centre_{place}")

    def sds(self) -> dict[str, Tensor]:
        """The standard deviations σ, by the name of the weight."""
        share = float(self.get_buffer("share"))
        sds = {}
        for place, name in enumerate(self.names):
            curvature, delta, _ = self.parts(place)
            sds[name] = (share / (curvature.detach() + delta)).sqrt()
        return sds


@final
class Ivon(Optimizer):
    """The steps of Algorithm 1, for ``grad`` of a mean that holds ĝ and ``grad`` of its curvature that holds ĥ.

    Args:
        means: m, the random parameters of the network.
        scale: h, δ and m₀ of each.
        lr: α.
    """

    def __init__(self, means: list[nn.Parameter], scale: CurvatureScale, lr: float) -> None:
        options = {"lr": lr, "betas": (MOMENTUM, CURVATURE_DECAY)}
        super().__init__([*means, *scale.curvature], options)
        self._means, self._scale = means, scale

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step, of the gradients that the closure sets."""
        value = None
        if closure is not None:
            with torch.enable_grad():
                value = closure()
        (group,) = self.param_groups
        alpha, (beta_1, beta_2) = group["lr"], group["betas"]
        for place, mean in enumerate(self._means):
            curvature, delta, centre = self._scale.parts(place)
            if mean.grad is None or curvature.grad is None:
                continue
            state = self.state[mean]
            if not state:
                state["step"], state["momentum"] = torch.zeros(()), torch.zeros_like(mean)
            state["step"] += 1
            momentum = state["momentum"].lerp_(mean.grad, 1 - beta_1)
            apart = curvature.grad - curvature
            bend = 0.5 * (1 - beta_2) ** 2 * apart.square() / (curvature + delta)
            curvature.add_((1 - beta_2) * apart + bend)
            pull = momentum / (1 - beta_1 ** float(state["step"])) + delta * (mean - centre)
            mean.addcdiv_(pull, curvature + delta, value=-alpha)
        return value


@final
class IvonGradients:
    """ĝ and ĥ, averages over S draws.

    Args:
        module: the network.
        weights: which are random: all that is trained.
        family: their sds.
        scale: the same sds as curvatures.
        samples: S.
    """

    def __init__(
        self, module: nn.Module, weights: Weights, family: MeanField, scale: CurvatureScale, samples: int
    ) -> None:
        self._module, self._weights, self._family = module, weights, family
        self._scale, self._samples = scale, samples

    def begin_epoch(self, prior: Prior, share: float) -> None:
        self._scale.move(prior, share)

    def accumulate(self, inputs: object, loss: Loss) -> Tensor:
        """Sets ĝ in the means and ĥ in the curvatures."""
        noise = self._family.noise(self._samples)
        moved = at_offsets(self._module, self._weights, noise)
        values = {name: value.detach().requires_grad_() for name, value in moved.items()}
        value = loss(passes_at(self._module, values, inputs))
        gradients = torch.autograd.grad(value, list(values.values()), allow_unused=True)
        curved = self._weights.unflat(self._family.solve(noise))
        for place, (name, mean) in enumerate(self._weights.parameters(self._module).items()):
            gradient = torch.zeros_like(values[name]) if gradients[place] is None else gradients[place]
            mean.grad = gradient.sum(0)
            self._scale.curvature[place].grad = (gradient * curved[name].to(gradient)).sum(0)
        return value.detach()


def require_independent(module: nn.Module, weights: Weights) -> None:
    """Checks that all that is trained is random: Algorithm 1 has no step for anything else.

    Raises:
        UnsupportedError: if something is not.
    """
    others = [
        name for name, parameter in module.named_parameters()
        if parameter.requires_grad and (name not in weights.names or name in weights.masks)
    ]  # fmt: skip
    if others:
        raise UnsupportedError(
            f"optimizer: 'ivon' steps on random weights alone, got {', '.join(others[:3])} to train without a "
            "distribution. Freeze them by requires_grad_(False), or take 'adam'."
        )
