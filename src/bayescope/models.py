"""Models: maps from inputs and flat weights to outputs f, read through a tape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, final

import torch
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError
from bayescope.tape import LinearTape, Tape


class Model(Protocol):
    """A parametric function f(x, θ) with P random weights θ and C outputs."""

    @property
    def dim(self) -> int:
        """P, the number of random weights."""

    @property
    def outputs(self) -> int:
        """C, the number of outputs."""

    def inputs(self, x: Any) -> Tensor:
        """Checks inputs and returns them as the tensor that the other methods take.

        Raises:
            InputError: if the shape does not fit the model.
        """

    def forward(self, x: Tensor, theta: Tensor) -> Tensor:
        """f(x, θ), shape (..., N, C) for θ of shape (..., P)."""

    def tape(self, x: Tensor, theta: Tensor) -> Tape:
        """The Jacobian of f in θ at the given weights."""


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

    def tape(self, x: Tensor, theta: Tensor) -> LinearTape:
        """The Jacobian of a linear model is the same at all weights."""
        return LinearTape(x, self.outputs, self.bias)

    def flat(self, weights: Tensor, bias: Tensor | None = None) -> Tensor:
        """Joins W (C, D) and b (C,) to the flat weights, shape (P,)."""
        return torch.cat([weights.reshape(-1), bias]) if bias is not None else weights.reshape(-1)

    def unflat(self, theta: Tensor) -> tuple[Tensor, Tensor | None]:
        """Splits flat weights (..., P) into W (..., C, D) and b (..., C) or ``None``."""
        split = self.outputs * self.features
        weights = theta[..., :split].unflatten(-1, (self.outputs, self.features))
        return weights, (theta[..., split:] if self.bias else None)
