"""The log joint density of a network's weights and all of its data, in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn

from bayescope.likelihoods import Likelihood
from bayescope.linear.density import LinearDensity
from bayescope.log_density import CallableDensity, LogDensity
from bayescope.models import LinearModel
from bayescope.network import Inputs, Weights, call, count_rows, map_tensors, substituted, take_rows
from bayescope.network.draws import parameters_and_constants, values_at
from bayescope.network.forward import owned
from bayescope.network.guard import private
from bayescope.network.vectorising import vectorising
from bayescope.priors import Prior
from bayescope.training import Minibatches, log_likelihood

# Rows that are read at once: their activations should stay in the processor's cache.
ROWS = 1024


@final
class NetworkDensity:
    """log p(y, θ) = Σ_n log p(y_n∣f(x_n, θ)) + log p(θ), a `LogDensity` over the flat random weights.

    Nothing is written to the module, so that several threads may ask at once.

    Args:
        module: the network in float64, in the state in which it is to be read.
        weights: which of its parameters θ are.
        likelihood: p(y∣f).
        prior: p(θ).
        inputs: all N rows, on the module's device.
        targets: their canonical labels, shape (N, S, ...) with S positions.

    Attributes:
        dim: P, the number of random weights.
        layers: the network as layers whose gradients are taken by hand, where it is one.
    """

    def __init__(
        self, module: nn.Module, weights: Weights, likelihood: Likelihood, prior: Prior, inputs: Inputs, targets: Tensor
    ) -> None:
        self._module, self._weights, self._likelihood, self.dim = module, weights, likelihood, weights.dim
        self.layers = LayeredNetwork.of(module, weights, inputs)
        places = [slice(start, start + ROWS) for start in range(0, count_rows(inputs), ROWS)]
        self._blocks = [(take_rows(inputs, some), targets[some]) for some in places]
        self._data = CallableDensity(self._log_likelihood, self.dim)
        self._automatic = CallableDensity(lambda theta: self._log_likelihood(theta) + prior.log_prob(theta), self.dim)
        self._precision, self._centre = prior.structured(self.dim), prior.centre(self.dim)
        self._constant = prior.log_prob(self._centre)

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

    def _log_likelihood(self, theta: Tensor) -> Tensor:
        """Σ_n log p(y_n∣f(x_n, θ)), a scalar in the graph of θ, for θ of shape (P,)."""
        with private(self._module) as module:
            parameters, constants = parameters_and_constants(module, self._weights)
            values = values_at(module, self._weights, theta)
            total = theta.new_zeros(())
            for x, y in self._blocks:
                with substituted(module, parameters, [*values, *constants]):
                    f = call(module, owned(x, copy=True))  # which it may write over
                total = total + log_likelihood(self._likelihood, f, y).to(theta)
        return total

    def _by_hand(self, layers: LayeredNetwork, theta: Tensor) -> tuple[Tensor, Tensor]:
        point = theta.numpy()
        with torch.no_grad():
            parts = [
                layers.log_likelihood(point, x.numpy(), y.flatten(0, 1), self._likelihood) for x, y in self._blocks
            ]
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
    if not isinstance(inputs, Tensor) or density.layers is None or len(density.layers.layers) > 1:
        return density, inputs
    (layer,) = density.layers.layers
    model = LinearModel(layer.shape[1], layer.shape[0], layer.bias)
    return LinearDensity.of(model, likelihood, prior, inputs, targets.flatten(0, 1)), inputs


def _all(rows: Minibatches) -> tuple[Inputs, Tensor]:
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


Array = np.ndarray


class _Function(NamedTuple):
    """An elementwise function, both parts in place.

    Attributes:
        apply: z becomes a = h(z).
        slope: a becomes h′(z).
    """

    apply: Callable[[Array], object]
    slope: Callable[[Array], object]


def _tanh_slope(a: Array) -> None:
    np.square(a, out=a)
    np.subtract(1.0, a, out=a)


def _relu_slope(a: Array) -> None:
    np.greater(a, 0.0, out=a)


def _sigmoid(z: Array) -> None:
    z *= 0.5  # σ(z) = ½ + ½ tanh(z/2), which overflows nowhere
    np.tanh(z, out=z)
    z *= 0.5
    z += 0.5


def _sigmoid_slope(a: Array) -> None:
    a *= 1.0 - a


def _softplus_slope(a: Array) -> None:
    np.negative(a, out=a)  # h′ = σ(z) = 1 − exp(−h)
    np.expm1(a, out=a)
    np.negative(a, out=a)


_FUNCTIONS: dict[type[nn.Module], _Function] = {
    nn.Tanh: _Function(lambda z: np.tanh(z, out=z), _tanh_slope),
    nn.ReLU: _Function(lambda z: np.maximum(z, 0.0, out=z), _relu_slope),
    nn.Sigmoid: _Function(_sigmoid, _sigmoid_slope),
    nn.Softplus: _Function(lambda z: np.logaddexp(z, 0.0, out=z), _softplus_slope),
}
# What changes nothing in eval mode, for rows that are vectors.
_NOTHING = (nn.Identity, nn.Dropout)


class _Layer(NamedTuple):
    """A linear layer and the function that follows it.

    Attributes:
        shape: of W, (outputs, inputs).
        bias: whether b is there.
        function: ``None`` where none follows.
    """

    shape: tuple[int, int]
    bias: bool
    function: _Function | None = None


@final
@dataclass(frozen=True, eq=False)
class LayeredNetwork:
    """f(x, θ) of linear layers and elementwise functions, with θ all their weights in the order of the parameters.

    Attributes:
        layers: in order; the last has no function.
    """

    layers: tuple[_Layer, ...]

    @classmethod
    def of(cls, module: nn.Module, weights: Weights, inputs: Inputs) -> LayeredNetwork | None:
        """The network as layers; ``None`` where it is none, or some of its weights are fixed.

        Args:
            module: the network.
            weights: which of its parameters are random.
            inputs: what it is run on.
        """
        table = isinstance(inputs, Tensor) and inputs.ndim == 2 and inputs.device.type == "cpu"
        parameters = dict(module.named_parameters())
        if not table or weights.masks or weights.names != tuple(parameters):
            return None
        layers: list[_Layer] = []
        for part in _parts(module):
            if type(part) is nn.Linear:
                layers.append(_Layer((part.out_features, part.in_features), part.bias is not None))
            elif type(part) in _FUNCTIONS and _is_plain(part) and layers and layers[-1].function is None:
                layers[-1] = layers[-1]._replace(function=_FUNCTIONS[type(part)])
            elif type(part) not in _NOTHING:
                return None
        shapes = [shape for layer in layers for shape in (layer.shape, layer.shape[:1])[: 1 + layer.bias]]
        if [tuple(value.shape) for value in parameters.values()] != shapes or layers[-1].function is not None:
            return None  # tied or reparametrised weights, or a function at the end
        return cls(tuple(layers))

    def log_likelihood(self, theta: Array, x: Array, y: Tensor, likelihood: Likelihood) -> tuple[Tensor, Array]:
        """Σ_n log p(y_n∣f(x_n, θ)) and its gradient in θ, shape (P,).

        Args:
            theta: shape (P,).
            x: shape (N, D).
            y: canonical targets.
            likelihood: p(y∣f).
        """
        gradient = np.empty_like(theta)
        parts, places = list(self._unflat(theta)), list(self._unflat(gradient))
        values = [x]
        for (weight, bias), layer in zip(parts, self.layers, strict=True):
            z = values[-1] @ weight.T
            if bias is not None:
                z += bias
            if layer.function is not None:
                layer.function.apply(z)
            values.append(z)
        f = torch.from_numpy(values.pop())
        total, g = likelihood.log_prob(f, y).sum(), likelihood.gradient(f, y).numpy()
        ones = np.ones(len(x))  # a product with it is faster than a sum over the first axis
        for depth in reversed(range(len(self.layers))):
            weight, bias = places[depth]
            a = values.pop()
            np.matmul(g.T, a, out=weight)
            if bias is not None:
                np.matmul(ones, g, out=bias)
            if depth:
                g = g @ parts[depth][0]
                function = self.layers[depth - 1].function
                if function is not None:
                    function.slope(a)
                    g *= a
        return total, gradient

    def _unflat(self, vector: Array) -> Iterator[tuple[Array, Array | None]]:
        """W and b of each layer, as views."""
        at = 0
        for (rows, columns), bias, _ in self.layers:
            weight = vector[at : at + rows * columns].reshape(rows, columns)
            at += rows * columns
            yield weight, vector[at : at + rows] if bias else None
            at += rows * bias


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    """What a network is made of, in the order in which it runs; a module that is no plain sequence is one part."""
    hooked = module._forward_hooks or module._forward_pre_hooks
    if type(module) is nn.Sequential and not hooked:
        for part in module:
            yield from _parts(part)
    elif hooked:
        yield nn.Module()  # nobody knows what it does
    else:
        yield module


def _is_plain(function: nn.Module) -> bool:
    """Whether a function has no options but those that it is written with here.

    Above 20 torch takes z for softplus(z), which is 2e-9 less.
    """
    return not isinstance(function, nn.Softplus) or (function.beta == 1 and function.threshold == 20)
