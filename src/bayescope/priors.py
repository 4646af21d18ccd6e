"""The prior over the weights: Gaussian, with a precision per weight or a full one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError
from bayescope.precision import DiagonalPrecision, Precision
from bayescope.storage import stored


@stored("prior")
@final
@dataclass(frozen=True, init=False, eq=False)
class Prior:
    """p(θ) = N(mean, precision⁻¹) over P weights.

    Args:
        precision: a positive number for all weights, an array of shape (P,), or a `Precision` (a posterior that
            became the prior brings a dense one). Its unit is one over the weight's unit squared.
        mean: a number for all weights or an array of shape (P,).

    Raises:
        InputError: if a precision is not positive or a shape does not fit.
    """

    precision: Tensor | Precision
    mean: Tensor

    def __init__(self, precision: Any = 1.0, mean: Any = 0.0) -> None:
        structured = isinstance(precision, Precision)
        object.__setattr__(
            self, "precision", precision if structured else checks.positive("prior_precision", precision).clone()
        )
        object.__setattr__(self, "mean", checks.float64("prior mean", mean).clone())
        for name, value in (("prior_precision", self.precision), ("prior mean", self.mean)):
            if isinstance(value, Tensor) and value.ndim > 1:
                raise InputError(f"{name}: expected a number or shape (P,), got {tuple(value.shape)}.")

    def structured(self, dim: int) -> Precision:
        """The precision as a P×P structure.

        Raises:
            InputError: if the prior was given for another number of weights.
        """
        if not isinstance(self.precision, Tensor):
            if self.precision.dim != dim:
                raise InputError(f"prior_precision: expected {dim} weights, got a precision for {self.precision.dim}.")
            return self.precision
        return DiagonalPrecision(_vector("prior_precision", self.precision, dim), name="the prior precision")

    def centre(self, dim: int) -> Tensor:
        """The mean, shape (P,)."""
        return _vector("prior mean", self.mean, dim)

    def diagonal(self, dim: int) -> Tensor:
        """The diagonal of the precision, shape (P,)."""
        return self.structured(dim).diagonal()

    def log_prob(self, theta: Tensor) -> Tensor:
        """log N(θ; mean, precision⁻¹), with its constants, shape (...) for θ of shape (..., P)."""
        dim = theta.shape[-1]
        return log_normal(theta.to(torch.float64) - self.centre(dim), self.structured(dim))

    def gradient(self, theta: Tensor) -> Tensor:
        """∂ log p(θ)/∂θ = −precision (θ − mean), for θ of shape (P,)."""
        dim = theta.shape[-1]
        return -self.structured(dim).multiply(theta - self.centre(dim))


def log_normal(offset: Tensor, precision: Precision) -> Tensor:
    """log N(θ; m, A⁻¹) of offsets θ − m, with its constants, shape (...) for offsets of shape (..., P)."""
    dim = offset.shape[-1]
    flat = offset.reshape(-1, dim)
    quadratic = (flat * precision.multiply(flat.mT).mT).sum(-1).reshape(offset.shape[:-1])
    return 0.5 * (precision.logdet() - dim * math.log(2 * math.pi) - quadratic)


def _vector(name: str, value: Tensor, dim: int) -> Tensor:
    if value.ndim and value.shape[0] != dim:
        raise InputError(f"{name}: expected one number or {dim} of them, got {value.shape[0]}.")
    return value.expand(dim)
