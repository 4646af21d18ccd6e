"""The log joint density of a network's weights and all of its data, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor, nn

from bayescope.likelihoods import Likelihood
from bayescope.linear.density import LinearDensity
from bayescope.log_density import CallableDensity, LogDensity
from bayescope.models import LinearModel
from bayescope.network.draws import parameters_and_constants, values_at
from bayescope.network.forward import owned
from bayescope.network.guard import private
from bayescope.network.inputs import call, count_rows, map_tensors, take_rows
from bayescope.network.substitution import substituted
from bayescope.network.vectorising import vectorising
from bayescope.network.weights import Weights
from bayescope.precision import Precision
from bayescope.priors import Prior
from bayescope.sampling.layered import LayeredNetwork
from bayescope.training.minibatches import Minibatches
from bayescope.training.objective import log_likelihood

# Rows that are read at once: their activations should stay in the processor's cache.
ROWS = 1024


@final
@dataclass(frozen=True, eq=False)
class NetworkDensity:
    """log p(y, θ) = Σ_n log p(y_n∣f(x_n, θ)) + log p(θ), a `LogDensity` over the flat random weights.

    Nothing is written to the module, so that several threads may ask at once.

    Attributes:
        module: the network in float64, in the state in which it is to be read.
        weights: which of its parameters θ are.
        likelihood: p(y∣f).
        prior: p(θ).
        inputs: all N rows, on the module's device.
        targets: their canonical labels, shape (N, S, ...) with S positions.
    """

    module: nn.Module
    weights: Weights
    likelihood: Likelihood
    prior: Prior
    inputs: Any
    targets: Tensor

    @property
    def dim(self) -> int:
        """P, the number of random weights."""
        return self.weights.dim

    @cached_property
    def layers(self) -> LayeredNetwork | None:
        """The network as layers whose gradients are taken by hand, where it is one."""
        return LayeredNetwork.of(self.module, self.weights, self.inputs)

    def log_prob(self, theta: Tensor) -> Tensor:
        """log p(y, θ), shape (...) for θ of shape (..., P)."""
        with vectorising():
            return self._automatic.log_prob(theta)

    def value_and_gradient(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """log p(y, θ), a scalar, and its gradient, shape (P,), for θ of shape (P,), all on the CPU."""
        if self.layers is None:
            value, gradient = self._data.value_and_gradient(theta)
        else:
            value, gradient = self._by_hand(self.layers, theta)
        offset = theta - self._centre
        pull = self._precision.multiply(offset)
        return value - 0.5 * (offset @ pull) + self._constant, gradient - pull

    def hessian(self, theta: Tensor) -> Tensor:
        """∂² log p(y, θ)/∂θ², shape (P, P), for θ of shape (P,)."""
        return self._automatic.hessian(theta)

    @cached_property
    def _blocks(self) -> Sequence[tuple[Any, Tensor]]:
        rows = count_rows(self.inputs)
        places = [slice(start, start + ROWS) for start in range(0, rows, ROWS)]
        return [(take_rows(self.inputs, some), self.targets[some]) for some in places]

    @cached_property
    def _data(self) -> CallableDensity:
        return CallableDensity(self._log_likelihood, self.dim)

    @cached_property
    def _automatic(self) -> CallableDensity:
        return CallableDensity(lambda theta: self._log_likelihood(theta) + self.prior.log_prob(theta), self.dim)

    @cached_property
    def _precision(self) -> Precision:
        return self.prior.structured(self.dim)

    @cached_property
    def _centre(self) -> Tensor:
        return self.prior.centre(self.dim)

    @cached_property
    def _constant(self) -> Tensor:
        return self.prior.log_prob(self._centre)

    def _log_likelihood(self, theta: Tensor) -> Tensor:
        """Σ_n log p(y_n∣f(x_n, θ)), a scalar in the graph of θ, for θ of shape (P,)."""
        with private(self.module) as module:
            parameters, constants = parameters_and_constants(module, self.weights)
            values = values_at(module, self.weights, theta)
            total = theta.new_zeros(())
            for x, y in self._blocks:
                with substituted(module, parameters, [*values, *constants]):
                    f = call(module, owned(x, copy=True))  # which it may write over
                total = total + log_likelihood(self.likelihood, f, y).to(theta)
        return total

    def _by_hand(self, layers: LayeredNetwork, theta: Tensor) -> tuple[Tensor, Tensor]:
        point = theta.numpy()
        with torch.no_grad():
            parts = [layers.log_likelihood(point, x.numpy(), y.flatten(0, 1), self.likelihood) for x, y in self._blocks]
        value, gradient = parts[0]
        for more, slope in parts[1:]:
            value, gradient = value + more, gradient + slope
        return value, torch.from_numpy(gradient)


def compile_density(
    module: nn.Module, weights: Weights, likelihood: Likelihood, prior: Prior, rows: Minibatches
) -> tuple[LogDensity, Any]:
    """The log joint of a network in float64 and of all rows of its data, and the inputs.

    A single linear layer is a linear model, which has a density of its own.
    """
    inputs, targets = _all(rows)
    density = NetworkDensity(module, weights, likelihood, prior, inputs, targets)
    if density.layers is None or len(density.layers.layers) > 1:
        return density, inputs
    (layer,) = density.layers.layers
    model = LinearModel(layer.shape[1], layer.shape[0], layer.bias)
    return LinearDensity.of(model, likelihood, prior, inputs, targets.flatten(0, 1)), inputs


def _all(rows: Minibatches) -> tuple[Any, Tensor]:
    """All rows of the data in one piece."""
    blocks = list(rows.in_order())
    if len(blocks) == 1:
        return blocks[0]
    pieces: list[list[Tensor]] = []
    for inputs, _ in blocks:
        found: list[Tensor] = []
        map_tensors(found.append, inputs)
        pieces.append(found)
    joined = iter([torch.cat(same) for same in zip(*pieces, strict=True)])
    return map_tensors(lambda _: next(joined), blocks[0][0]), torch.cat([targets for _, targets in blocks])
