"""Small networks whose log joint is written out here by autograd on the module itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bayescope.likelihoods import resolve
from bayescope.network import Weights, network_prior
from bayescope.sampling import compile_density
from bayescope.training import Minibatches
from tests.network.networks import built, numbers


class Embedded(nn.Module):
    """Tokens to classes, with named inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(5, 3), nn.Linear(3, 3)

    def forward(self, tokens: Tensor, scale: Tensor) -> Tensor:
        return self.head(torch.tanh(self.table(tokens).mean(1)) * scale)


class Tied(nn.Module):
    """One weight in two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 1)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Loops(nn.Module):
    """A pass that no vectorisation over weights takes: it depends on a value of theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        f = self.layer(x)
        return f * 1.5 if self.layer.bias > 0 else f


class Pixels(nn.Module):
    """Two classes for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).movedim(1, -1)


class Case(NamedTuple):
    """A network, its data and what of it is random.

    Attributes:
        make: the module.
        x: inputs.
        y: targets.
        likelihood: its name.
        by_hand: whether its gradient is one that is taken by hand.
        weights: which weights are random.
        prior_precision: of those.
    """

    make: Callable[[], nn.Module]
    x: Any
    y: Tensor
    likelihood: str
    by_hand: bool
    weights: Any = "all"
    prior_precision: Any = 0.7

    def module(self) -> nn.Module:
        return built(self.make).eval()


X = numbers(30, 2)
SIDES, CLASSES, REAL = (X[:, 0] > 0).double(), torch.arange(30) % 3, X[:, :1].sin()


def layers(activation: Callable[[], nn.Module], outputs: int = 1) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(2, 4), activation(), nn.Linear(4, 3), activation(), nn.Linear(3, outputs))


def nested() -> nn.Module:
    body = nn.Sequential(nn.Linear(2, 4, bias=False), nn.Tanh(), nn.Dropout(0.5))
    return nn.Sequential(nn.Identity(), body, nn.Linear(4, 3), nn.Linear(3, 2))


def frozen() -> nn.Module:
    module = layers(nn.Tanh)()
    module[0].requires_grad_(False)
    return module


def hooked() -> nn.Module:
    module = layers(nn.Tanh)()
    module[1].register_forward_hook(lambda _module, _inputs, output: 2.0 * output)
    return module


def shared() -> nn.Module:
    layer = nn.Linear(2, 2)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(2, 1))


class Writes(nn.Module):
    """A pass that writes over its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.sin_())


CASES: Mapping[str, Case] = {
    "tanh": Case(layers(nn.Tanh), X, SIDES, "bernoulli", True),
    "relu": Case(layers(nn.ReLU, 3), X, CLASSES, "categorical", True),
    "sigmoid": Case(layers(nn.Sigmoid), X, REAL, "gaussian", True),
    "softplus": Case(layers(nn.Softplus), X, SIDES, "probit", True),
    "nested, no bias, two in a row": Case(nested, X, REAL[:, [0, 0]], "gaussian", True),
    "a prior by layer": Case(layers(nn.Tanh), X, REAL, "gaussian", True, "all", {"0": 2.0, "2": 0.5, "4": 1.0}),
    "heteroscedastic": Case(layers(nn.Tanh, 2), X, REAL, "heteroscedastic_gaussian", True),
    "gelu": Case(layers(nn.GELU), X, SIDES, "bernoulli", False),
    "softplus of another slope": Case(layers(lambda: nn.Softplus(beta=3.0)), X, SIDES, "bernoulli", False),
    "a function at the end": Case(lambda: nn.Sequential(nn.Linear(2, 1), nn.Tanh()), X, REAL, "gaussian", False),
    "a layer used twice": Case(shared, X, REAL, "gaussian", False),
    "tied weights": Case(Tied, X, REAL, "gaussian", False),
    "a hook": Case(hooked, X, REAL, "gaussian", False),
    "frozen": Case(frozen, X, REAL, "gaussian", False),
    "last layer": Case(layers(nn.Tanh), X, REAL, "gaussian", False, "last_layer"),
    "a mask": Case(layers(nn.Tanh), X, REAL, "gaussian", False, torch.arange(31) % 3 > 0),
    "named inputs": Case(
        Embedded, {"tokens": torch.arange(60).reshape(30, 2) % 5, "scale": X[:, :1]}, CLASSES, "categorical", False
    ),
    "pixels": Case(Pixels, numbers(6, 1, 3, 3), torch.arange(54).reshape(6, 3, 3) % 2, "categorical", False),
    "writes over its inputs": Case(Writes, X, REAL, "gaussian", False),
    "a branch on a weight": Case(Loops, X, REAL, "gaussian", False),
}


def compiled(case: Case) -> tuple[Any, nn.Module, Weights]:
    """The log joint of a case, a module of its own, and its random weights."""
    module = case.module()
    likelihood = resolve(case.likelihood)
    rows = Minibatches((case.x, case.y), module, likelihood, 1024, torch.Generator())
    chosen = Weights.select(module, case.weights, lambda: ("4.weight", "4.bias"))
    prior = network_prior(case.prior_precision, chosen)
    return compile_density(module, chosen, likelihood, prior, rows)[0], module, chosen


def written_out(case: Case, theta: Tensor) -> tuple[Tensor, Tensor]:
    """log p(y, θ) and its gradient, from the module with its parameters set to θ."""
    module = case.module()
    chosen = Weights.select(module, case.weights, lambda: ("4.weight", "4.bias"))
    named = dict(module.named_parameters())
    with torch.no_grad():
        for name, value in chosen.unflat(theta, module).items():
            named[name].copy_(value)
    f = module(**case.x) if isinstance(case.x, dict) else module(case.x.clone())
    likelihood = resolve(case.likelihood)
    f = f.reshape(-1, f.shape[-1])
    total = likelihood.log_prob(f, likelihood.targets(case.y.reshape(len(f), -1), f.shape[-1])).sum()
    slopes = torch.autograd.grad(total, [named[name] for name in chosen.names])
    prior = network_prior(case.prior_precision, chosen)
    gradient = chosen.flatten(dict(zip(chosen.names, slopes, strict=True)))
    return total.detach() + prior.log_prob(theta), gradient + prior.gradient(theta)
