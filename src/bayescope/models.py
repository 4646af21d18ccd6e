"""Models: maps from inputs and flat weights to outputs f, and what precisions of the weights say about f."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any, Self, final

import torch
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError
from bayescope.precision import BlockPrecision, Precision, weight_draws
from bayescope.storage import stored
from bayescope.tape import LinearTape


class Model(ABC):
    """A parametric function f(x, θ) with P random weights θ and C outputs, in float64.

    Outputs of a row may be dense: C numbers at each of several positions (tokens, pixels), shape (N, *positions, C).

    Attributes:
        outputs: C.
    """

    outputs: int

    @property
    @abstractmethod
    def dim(self) -> int:
        """P, the number of random weights."""

    @property
    @abstractmethod
    def space(self) -> Hashable:
        """What the entries of θ stand for: weights of models with equal spaces can be averaged."""

    @property
    @abstractmethod
    def weight_names(self) -> tuple[str, ...]:
        """What each entry of θ is called, P names."""

    @abstractmethod
    def state(self, theta: Tensor) -> dict[str, Tensor]:
        """θ of shape (P,) as named tensors: for a network the ``state_dict`` of its module with these weights."""

    @abstractmethod
    def inputs(self, x: Any) -> Any:
        """Checks inputs and returns them in the form that the other methods take.

        Raises:
            InputError: if the shape does not fit the model.
        """

    @abstractmethod
    def forward(self, x: Any, theta: Tensor) -> Tensor:
        """f(x, θ), shape (..., N, *positions, C) for θ of shape (..., P)."""

    @abstractmethod
    def covariance(self, x: Any, theta: Tensor, precision: Precision, classes: Tensor | None = None) -> Tensor:
        """J A⁻¹ Jᵀ per row and position, shape (N, *positions, C, C), with J = ∂f/∂θ at θ of shape (P,).

        Of chosen classes, int64 of shape (N, *positions, K), the shape is (N, *positions, K, K).
        """

    @abstractmethod
    def variance(self, x: Any, theta: Tensor, precision: Precision) -> Tensor:
        """The diagonal of `covariance`, shape (N, *positions, C), without the rest of it: for many classes."""

    @abstractmethod
    def jacobian(self, x: Any, theta: Tensor) -> Tensor:
        """J of all outputs, shape (N, *positions, C, P), float64: for the few inputs of a joint covariance."""

    @abstractmethod
    def jacobian_product(self, x: Any, theta: Tensor, v: Tensor) -> Tensor:
        """J v, shape (R, N, *positions, C), for v of shape (R, P), with J at θ of shape (P,)."""

    @property
    def source(self) -> object:
        """What the user knows the model by: the module of a network, any other model itself."""
        return self

    @property
    def differentiable(self) -> Self:
        """The same function, whose answers can be differentiated in x; those of other models have no graph."""
        return self

    def sampled(self, x: Any, theta: Tensor, precision: Precision, n: int, generator: torch.Generator) -> Tensor:
        """f at n draws of the weights from N(θ, A⁻¹), shape (n, N, *positions, C): right for each row by itself.

        What two rows have in common may be left aside: `forward` at the same draws has it.
        """
        return torch.cat([self.forward(x, some) for some in weight_draws(theta, precision, n, generator)])

    def is_last_layer(self, x: Any, theta: Tensor) -> bool:
        """Whether θ is one linear layer whose output is f: then the variances of all classes cost little."""
        return False

    def opened(self, x: Any, theta: Tensor) -> Self:
        """The same model for questions at these inputs and weights: what f and J both need is computed once for all."""
        return self


@stored("linear_model")
@final
@dataclass(frozen=True)
class LinearModel(Model):
    """f = W x (+ b), for flat weights θ = (W row-major, b), as in ``nn.Linear``.

    Attributes:
        features: D, the number of columns of x.
        outputs: C.
        bias: whether b is there.
        graph: whether answers keep the graph of x.
    """

    features: int
    outputs: int = 1
    bias: bool = True
    graph: bool = False

    @property
    def dim(self) -> int:
        """P = C D (+ C)."""
        return self.outputs * (self.features + self.bias)

    @property
    def space(self) -> Hashable:
        """The sizes: models of the same sizes share a space of weights."""
        return "linear", self.features, self.outputs, self.bias

    @property
    def weight_names(self) -> tuple[str, ...]:
        """Each output's "x0", "x1", … and then the intercepts; of several outputs "0: x0" and so on."""
        outputs = [f"{output}: " for output in range(self.outputs)] if self.outputs > 1 else [""]
        names = [f"{output}x{feature}" for output in outputs for feature in range(self.features)]
        return (*names, *(f"{output}intercept" for output in outputs * self.bias))

    def state(self, theta: Tensor) -> dict[str, Tensor]:
        """The "weight" (C, D) and the "bias" (C,), as an ``nn.Linear`` has them."""
        weight, bias = self.unflat(theta)
        return {"weight": weight.clone()} | ({} if bias is None else {"bias": bias.clone()})

    @property
    def differentiable(self) -> LinearModel:
        """The model that keeps the graph of x."""
        return replace(self, graph=True)

    def inputs(self, x: Any) -> Tensor:
        """Checks a table of shape (N, D) and returns it in float64.

        Raises:
            InputError: if it is not two-dimensional, has another number of columns or is not finite.
        """
        table = checks.float64("X", x)
        if table.ndim != 2 or table.shape[1] != self.features:
            raise InputError(f"X: expected shape (N, {self.features}), got {tuple(table.shape)}.")
        return x.to(torch.float64) if self.graph else table

    def forward(self, x: Tensor, theta: Tensor) -> Tensor:
        """x Wᵀ + b, shape (..., N, C) for θ of shape (..., P)."""
        weights, bias = self.unflat(theta)
        f = x @ weights.mT
        return f if bias is None else f + bias[..., None, :]

    def covariance(self, x: Tensor, theta: Tensor, precision: Precision, classes: Tensor | None = None) -> Tensor:
        """J A⁻¹ Jᵀ per row, shape (N, C, C); J is the same at all weights."""
        if self.blocks_of_outputs(precision) is not None:
            return among_pairs(torch.diag_embed(self.variance(x, theta, precision)), classes)
        return among_pairs(precision.covariance_of(self.tape(x)), classes)

    def variance(self, x: Tensor, theta: Tensor, precision: Precision) -> Tensor:
        """The diagonal of `covariance`, shape (N, C)."""
        blocks = self.blocks_of_outputs(precision)
        if blocks is None:
            return precision.variance_of(self.tape(x))
        return torch.cat([block.variance_of(LinearTape(x, 1, self.bias)) for block in blocks], -1)

    def jacobian(self, x: Tensor, theta: Tensor) -> Tensor:
        """J, shape (N, C, P), the same at all weights."""
        return self.tape(x).jacobian(slice(None))

    def jacobian_product(self, x: Tensor, theta: Tensor, v: Tensor) -> Tensor:
        """J v, shape (R, N, C): the model itself, which is linear."""
        return self.forward(x, v)

    def is_last_layer(self, x: Tensor, theta: Tensor) -> bool:
        """True: the model is one linear layer."""
        return True

    def tape(self, x: Tensor) -> LinearTape:
        """The Jacobian of f at some inputs, kept in factors."""
        return LinearTape(x, self.outputs, self.bias)

    @property
    def places_of_outputs(self) -> list[Tensor]:
        """The flat positions of each output's weights, its intercept last: C tensors of shape (D + 1,) or (D,)."""
        split = self.outputs * self.features
        weights = torch.arange(split).unflatten(0, (self.outputs, self.features))
        intercepts = torch.arange(split, self.dim).unflatten(0, (self.outputs, int(self.bias)))
        return list(torch.cat([weights, intercepts], 1))

    def blocks_of_outputs(self, precision: Precision) -> tuple[Precision, ...] | None:
        """The precision of each output's weights, C of them; ``None`` where outputs are joined."""
        if not isinstance(precision, BlockPrecision) or len(precision.blocks) != self.outputs:
            return None
        same = all(map(torch.equal, precision.indices, self.places_of_outputs))
        return precision.blocks if same else None

    def flat(self, weights: Tensor, bias: Tensor | None = None) -> Tensor:
        """Joins W (C, D) and b (C,) to the flat weights, shape (P,)."""
        return torch.cat([weights.reshape(-1), bias]) if bias is not None else weights.reshape(-1)

    def unflat(self, theta: Tensor) -> tuple[Tensor, Tensor | None]:
        """Splits flat weights (..., P) into W (..., C, D) and b (..., C) or ``None``."""
        split = self.outputs * self.features
        weights = theta[..., :split].unflatten(-1, (self.outputs, self.features))
        return weights, (theta[..., split:] if self.bias else None)


@stored("linearized_model")
@final
@dataclass(frozen=True)
class LinearizedModel(Model):
    """A model replaced by its tangent, f(x, θ) ≈ f(x, θ₀) + J(x) (θ − θ₀): what Laplace's predictive is exact for.

    Attributes:
        model: f.
        at: θ₀, shape (P,).
    """

    model: Model
    at: Tensor

    @property
    def dim(self) -> int:
        return self.model.dim

    @property
    def outputs(self) -> int:  # type: ignore[override]
        return self.model.outputs

    @property
    def source(self) -> object:
        return self.model.source

    @property
    def space(self) -> Hashable:
        return self.model.space

    @property
    def weight_names(self) -> tuple[str, ...]:
        return self.model.weight_names

    def state(self, theta: Tensor) -> dict[str, Tensor]:
        """That of the model."""
        return self.model.state(theta)

    @property
    def differentiable(self) -> LinearizedModel:
        """The tangent of the model that can be differentiated in x."""
        return LinearizedModel(self.model.differentiable, self.at)

    def inputs(self, x: Any) -> Any:
        """Inputs as the model takes them."""
        return self.model.inputs(x)

    def forward(self, x: Any, theta: Tensor) -> Tensor:
        """f(x, θ₀) + J(x) (θ − θ₀), shape (..., N, *positions, C) for θ of shape (..., P)."""
        offsets = (theta - self.at).reshape(-1, self.dim)
        moved = self.model.jacobian_product(x, self.at, offsets)
        return self.model.forward(x, self.at) + moved.reshape(*theta.shape[:-1], *moved.shape[1:])

    def covariance(self, x: Any, theta: Tensor, precision: Precision, classes: Tensor | None = None) -> Tensor:
        """J A⁻¹ Jᵀ per row and position, whatever θ is."""
        return self.model.covariance(x, self.at, precision, classes)

    def variance(self, x: Any, theta: Tensor, precision: Precision) -> Tensor:
        """The diagonal of `covariance`, whatever θ is."""
        return self.model.variance(x, self.at, precision)

    def jacobian(self, x: Any, theta: Tensor) -> Tensor:
        """J, whatever θ is."""
        return self.model.jacobian(x, self.at)

    def jacobian_product(self, x: Any, theta: Tensor, v: Tensor) -> Tensor:
        """J v, whatever θ is."""
        return self.model.jacobian_product(x, self.at, v)

    def is_last_layer(self, x: Any, theta: Tensor) -> bool:
        return self.model.is_last_layer(x, self.at)

    def opened(self, x: Any, theta: Tensor) -> LinearizedModel:
        """That of the opened model."""
        return LinearizedModel(self.model.opened(x, self.at), self.at)


def among(values: Tensor, classes: Tensor | None) -> Tensor:
    """Of values (..., C) those of chosen classes (..., K)."""
    return values if classes is None else values.take_along_dim(classes, -1)


def among_pairs(values: Tensor, classes: Tensor | None) -> Tensor:
    """Of values (..., C, C) those of pairs of chosen classes (..., K), shape (..., K, K)."""
    if classes is None:
        return values
    return values.take_along_dim(classes[..., None], -2).take_along_dim(classes[..., None, :], -1)
