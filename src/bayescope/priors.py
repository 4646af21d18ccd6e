"""The prior over the weights: Gaussian, with a precision per weight or a full one, and flat for intercepts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError
from bayescope.precision import DiagonalPrecision, Precision
from bayescope.storage import stored


@stored("prior")
@final
@dataclass(frozen=True, init=False, eq=False)
class Prior:
    """p(θ) = N(mean, precision⁻¹) over P weights, of which some, the intercepts of a linear model, may be flat.

    A flat intercept has the improper density 1, so that the evidence is the integral over it.

    Args:
        precision: a positive number for all weights, an array of shape (P,), or a `Precision` (a posterior that
            became the prior brings a dense one). Its unit is one over the weight's unit squared. With flat intercepts
            it is a number or has shape (P − flat,), or shape (P,) with a 0 for each of them.
        mean: a number for all weights or an array of shape (P,).
        flat: how many weights are flat intercepts: the last ones, or those whose precision is 0.

    Raises:
        InputError: if a precision is not positive or a shape does not fit.
    """

    precision: Tensor | Precision
    mean: Tensor
    flat: int = 0

    def __init__(self, precision: ArrayLike | Precision = 1.0, mean: ArrayLike = 0.0, flat: int = 0) -> None:
        if isinstance(precision, Precision) and flat:
            raise InputError("prior_precision: expected numbers beside flat intercepts, got a structured precision.")
        object.__setattr__(self, "flat", checks.count("flat", flat, least=0))
        checked = precision if isinstance(precision, Precision) else _checked(precision, self.flat).clone()
        object.__setattr__(self, "precision", checked)
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
        each, name = self.precision, "the prior precision"
        if self.flat and (not each.ndim or bool(each.all())):
            each = _vector("prior_precision", each, dim - self.flat)
            each = torch.cat([each, each.new_zeros(self.flat)])
        return DiagonalPrecision(_vector("prior_precision", each, dim), name=name, semidefinite=self.flat > 0)

    def with_precision(self, some: Tensor, precision: float | Tensor) -> Prior:
        """The same prior with other precisions of some weights, by a mask of shape (P,) without flat intercepts."""
        each = self.diagonal(some.shape[0]).clone()
        each[some] = precision
        return Prior(each, self.mean, self.flat)

    def on(self, device: torch.device) -> Prior:
        """The same prior with its numbers on a device, where a mean of one number is not copied as P of them."""
        numbers = [each for each in (self.precision, self.mean) if isinstance(each, Tensor)]
        if all(each.device == device for each in numbers):
            return self
        precision = self.precision.to(device) if isinstance(self.precision, Tensor) else self.precision
        return Prior(precision, self.mean.to(device), self.flat)

    def centre(self, dim: int) -> Tensor:
        """The prior mean of each weight, shape (P,)."""
        return _vector("prior mean", self.mean, dim)

    def diagonal(self, dim: int) -> Tensor:
        """The diagonal of the precision, shape (P,)."""
        return self.structured(dim).diagonal()

    def log_prob(self, theta: Tensor) -> Tensor:
        """log p(θ) with its constants, shape (...) for θ of shape (..., P); a flat direction has the density 1."""
        dim = theta.shape[-1]
        offset, precision = theta.to(torch.float64) - self.centre(dim), self.structured(dim)
        if not self.flat:
            return log_normal(offset, precision)
        each = precision.diagonal()
        constant = each[each > 0].log().sum() - (dim - self.flat) * math.log(2 * math.pi)
        return 0.5 * (constant - _squared_length(offset, precision))

    def gradient(self, theta: Tensor) -> Tensor:
        """∂ log p(θ)/∂θ = −precision (θ − mean), for θ of shape (P,)."""
        dim = theta.shape[-1]
        return -self.structured(dim).multiply(theta - self.centre(dim))


def log_normal(offset: Tensor, precision: Precision) -> Tensor:
    """log N(θ; m, A⁻¹) of offsets θ − m, with its constants, shape (...) for offsets of shape (..., P)."""
    constant = precision.logdet() - offset.shape[-1] * math.log(2 * math.pi)
    return 0.5 * (constant - _squared_length(offset, precision))


def _squared_length(offset: Tensor, precision: Precision) -> Tensor:
    """(θ − m)ᵀ A (θ − m), shape (...) for offsets of shape (..., P)."""
    rows = offset.reshape(-1, offset.shape[-1])
    return (rows * precision.multiply(rows.mT).mT).sum(-1).reshape(offset.shape[:-1])


def _checked(precision: ArrayLike, flat: int) -> Tensor:
    """Positive precisions, or those of all weights with a 0 for each flat one.

    Raises:
        InputError: if another one is not positive.
    """
    if not flat:
        return checks.positive("prior_precision", precision)
    each = checks.float64("prior_precision", precision)
    known = each != 0
    if each.ndim != 1 or int((~known).sum()) != flat:
        return checks.positive("prior_precision", each)
    return torch.where(known, checks.positive("prior_precision", torch.where(known, each, 1.0)), 0.0)


def _vector(name: str, value: Tensor, dim: int) -> Tensor:
    if value.ndim and value.shape[0] != dim:
        raise InputError(f"{name}: expected one number or {dim} of them, got {value.shape[0]}.")
    return value.expand(dim)
