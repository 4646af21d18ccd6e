"""Models: maps from inputs and flat weights to outputs f, read through a tape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, final

import torch
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError
from bayescope.precision import Precision
from bayescope.tape import LinearTape


class Model(Protocol):
    """A parametric function f(x, θ) with P random weights θ and C outputs, in float64.

    Outputs of a row may be dense: C numbers at each of several positions (tokens, pixels), shape (N, *positions, C).
    """

    @property
    def dim(self) -> int:
        """P, the number of random weights."""

    @property
    def outputs(self) -> int:
        """C, the number of outputs."""

    @property
    def source(self) -> Any:
        """What the user knows it by: the module of a network, the linear model itself."""

    def inputs(self, x: Any) -> Any:
        """Checks inputs and returns them in the form that the other methods take.

        Raises:
            InputError: if the shape does not fit the model.
        """

    def forward(self, x: Any, theta: Tensor) -> Tensor:
        """f(x, θ), shape (..., N, *positions, C) for θ of shape (..., P)."""

    def covariance(self, x: Any, theta: Tensor, precision: Precision) -> Tensor:
        """J A⁻¹ Jᵀ per row and position, shape (N, *positions, C, C), with J = ∂f/∂θ at θ of shape (P,)."""

    def jacobian_product(self, x: Any, theta: Tensor, v: Tensor) -> Tensor:
        """J v, shape (R, N, *positions, C), for v of shape (R, P), with J at θ of shape (P,)."""


@final
@dataclass(frozen=True)
class LinearModel:
    """f = W x (+ b), for flat weights θ = (W row-major, b), as in ``nn.Linear``.

    Attributes:
        features: D, the number of columns of x.
        outputs: C.
        bias: whether b is there.
    """

    features: int
    outputs: int = 1
    bias: bool = True

    @property
    def dim(self) -> int:
        """P = C D (+ C)."""
        return self.outputs * (self.features + self.bias)

    @property
    def source(self) -> LinearModel:
        """The model itself."""
        return self

    def inputs(self, x: Any) -> Tensor:
        """Checks a table of shape (N, D) and returns it in float64.

        Raises:
            InputError: if it is not two-dimensional, has another number of columns or is not finite.
        """
        table = checks.float64("X", x)
        if table.ndim != 2 or table.shape[1] != self.features:
            raise InputError(f"X: expected shape (N, {self.features}), got {tuple(table.shape)}.")
        return table

    def forward(self, x: Tensor, theta: Tensor) -> Tensor:
        """x Wᵀ + b, shape (..., N, C) for θ of shape (..., P)."""
        split = self.outputs * self.features
        weights = theta[..., :split].unflatten(-1, (self.outputs, self.features))
        f = x @ weights.mT
        return f + theta[..., None, split:] if self.bias else f

    def covariance(self, x: Tensor, theta: Tensor, precision: Precision) -> Tensor:
        """J A⁻¹ Jᵀ per row, shape (N, C, C); J is the same at all weights."""
        return precision.covariance_of(self.tape(x))

    def jacobian_product(self, x: Tensor, theta: Tensor, v: Tensor) -> Tensor:
        """J v, shape (R, N, C): the model itself, which is linear."""
        return self.forward(x, v)

    def tape(self, x: Tensor) -> LinearTape:
        """The Jacobian in factors."""
        return LinearTape(x, self.outputs, self.bias)

    def flat(self, weights: Tensor, bias: Tensor | None = None) -> Tensor:
        """Joins W (C, D) and b (C,) to the flat weights, shape (P,)."""
        return torch.cat([weights.reshape(-1), bias]) if bias is not None else weights.reshape(-1)

    def unflat(self, theta: Tensor) -> tuple[Tensor, Tensor | None]:
        """Splits flat weights (..., P) into W (..., C, D) and b (..., C) or ``None``."""
        split = self.outputs * self.features
        weights = theta[..., :split].unflatten(-1, (self.outputs, self.features))
        return weights, (theta[..., split:] if self.bias else None)


@final
@dataclass(frozen=True)
class LinearizedModel:
    """A model replaced by its tangent, f(x, θ) ≈ f(x, θ₀) + J(x) (θ − θ₀): what Laplace's predictive is exact for.

    Attributes:
        model: f.
        at: θ₀, shape (P,).
    """

    model: Model
    at: Tensor

    @property
    def dim(self) -> int:
        """P."""
        return self.model.dim

    @property
    def outputs(self) -> int:
        """C."""
        return self.model.outputs

    @property
    def source(self) -> Any:
        """What the user knows the model by."""
        return self.model.source

    def inputs(self, x: Any) -> Any:
        """Inputs as the model takes them."""
        return self.model.inputs(x)

    def forward(self, x: Any, theta: Tensor) -> Tensor:
        """f(x, θ₀) + J(x) (θ − θ₀), shape (..., N, *positions, C) for θ of shape (..., P)."""
        offsets = (theta - self.at).reshape(-1, self.dim)
        moved = self.model.jacobian_product(x, self.at, offsets)
        return self.model.forward(x, self.at) + moved.reshape(*theta.shape[:-1], *moved.shape[1:])

    def covariance(self, x: Any, theta: Tensor, precision: Precision) -> Tensor:
        """J A⁻¹ Jᵀ per row and position, whatever θ is."""
        return self.model.covariance(x, self.at, precision)

    def jacobian_product(self, x: Any, theta: Tensor, v: Tensor) -> Tensor:
        """J v, whatever θ is."""
        return self.model.jacobian_product(x, self.at, v)
