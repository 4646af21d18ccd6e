"""Gradients of layered networks by hand: linear layers with elementwise functions between them.

A sampler asks for hundreds of thousands of gradients of one small network. There autograd's bookkeeping takes several
times as long as the arithmetic, and NumPy's tanh a third of torch's. Each function here has a slope that its own value
tells, so that the pass forward leaves all that the pass back needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn

from bayescope.likelihoods import Likelihood
from bayescope.network.weights import Weights

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
    def of(cls, module: nn.Module, weights: Weights, inputs: Any) -> LayeredNetwork | None:
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
