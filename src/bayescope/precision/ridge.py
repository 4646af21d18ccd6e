"""What is added to the diagonal of a Kronecker structure: one number a group, or an outer product of two vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from bayescope.errors import InputError, UnsupportedError
from bayescope.storage import stored

# A diagonal counts as constant or separable up to the rounding of the dtype that it was given in.
ROUNDINGS = 64


@stored("ridge")
@final
@dataclass(frozen=True, eq=False)
class Ridge:
    """A diagonal d over weights in canonical order (G, O, D) that leaves a Kronecker structure solvable.

    Either d_god = δ_g, or d_god = u_go w_gd (a bias with a precision of its own, a precision for each input feature).

    Attributes:
        name: what the matrix is, for messages.
        shape: (G, O, D).
        separable: whether an outer product is of use to the matrix.
        constant: δ, shape (G, 1, 1), or ``None`` where d is an outer product.
        output: u, shape (G, O), or ``None`` where d is constant.
        input: w, shape (G, D), or ``None`` where d is constant.
        residual: what was given less what is attributed to δ or u ⊗ w, shape (G, O, D): 0 up to rounding. It is kept
            where it requires a gradient, so that a derivative with respect to single weights is not lost. Beside an
            outer product it carries all of the gradient: that of eigenvectors is infinite where eigenvalues repeat.
    """

    name: str
    shape: tuple[int, int, int]
    separable: bool
    constant: Tensor | None
    output: Tensor | None = None
    input: Tensor | None = None
    residual: Tensor | None = None

    @classmethod
    def zero(cls, name: str, shape: tuple[int, int, int], device: torch.device, *, separable: bool) -> Ridge:
        """A ridge that adds nothing: all of d is 0."""
        return cls(name, shape, separable, torch.zeros(shape[0], 1, 1, dtype=torch.float64, device=device))

    def plus(self, diagonal: Tensor | float) -> Ridge:
        """d + e for e a scalar, or of shape (P,), (G, 1, 1) or (G, O, D).

        Raises:
            UnsupportedError: if the sum has neither form.
        """
        before = self.given()
        dtype = diagonal.dtype if isinstance(diagonal, Tensor) else torch.float64  # torch's default is less
        given = torch.as_tensor(diagonal, dtype=dtype, device=before.device)
        rounding = torch.finfo(given.dtype if given.is_floating_point() else torch.float64).eps
        total = before + self._canonical(given.to(torch.float64))
        if total.shape[1:] == (1, 1):
            return self._with(total, None, None, None)
        mean = total.mean((1, 2), keepdim=True)
        if _close(total, mean, rounding):
            # One number per group before, and no gradient weight by weight now: the mean has all of it.
            whole = self.constant is not None and self.residual is None and not given.requires_grad
            return self._with(mean, None, None, None if whole else _kept(total, mean))
        if self.separable:
            fixed = total.detach()
            output, inputs = fixed.mean(2), fixed.mean(1) / fixed.mean((1, 2))[:, None]
            product = output[:, :, None] * inputs[:, None]
            if _close(total, product, rounding):
                return self._with(None, output, inputs, _kept(total, product))
        also = ", or an outer product of a vector over outputs and one over inputs" if self.separable else ""
        raise UnsupportedError(
            f"{self.name}: expected a diagonal that is one number per group of weights{also}, got another. "
            "The structures 'full', 'block', 'diagonal' and 'low_rank' take any diagonal."
        )

    def scaled(self, factor: Tensor | float) -> Ridge:
        """c d for a positive number c."""
        return Ridge.zero(self.name, self.shape, self.values().device, separable=self.separable).plus(
            self.given() * factor
        )

    def given(self) -> Tensor:
        """d, shape (G, 1, 1) or (G, O, D), with the gradient of what was given."""
        values = self.values()
        return values if self.residual is None else values + self.residual

    def flat(self) -> Tensor:
        """The diagonal d that is added, shape (P,)."""
        return self.given().expand(self.shape).flatten()

    def multiply(self, v: Tensor) -> Tensor:
        """diag(d) v for v of shape (P,) or (P, K)."""
        return (self.given()[..., None] * v.reshape(*self.shape, -1)).reshape(v.shape)

    def values(self) -> Tensor:
        """d, shape (G, 1, 1) or (G, O, D), in its form."""
        if self.constant is not None:
            return self.constant
        assert self.output is not None
        assert self.input is not None
        return self.output[:, :, None] * self.input[:, None]

    def _canonical(self, given: Tensor) -> Tensor:
        groups, outputs, inputs = self.shape
        if given.ndim == 0:
            return given
        if given.shape == (groups * outputs * inputs,):
            return given.unflatten(0, self.shape)
        if given.shape in (self.shape, (groups, 1, 1)):
            return given
        raise InputError(
            f"{self.name}: expected a diagonal of one number or of shape ({groups * outputs * inputs},), got "
            f"{tuple(given.shape)}."
        )

    def _with(
        self, constant: Tensor | None, output: Tensor | None, inputs: Tensor | None, residual: Tensor | None
    ) -> Ridge:
        return Ridge(self.name, self.shape, self.separable, constant, output, inputs, residual)


def _close(diagonal: Tensor, fitted: Tensor, rounding: float) -> bool:
    with torch.no_grad():
        return bool(((diagonal - fitted).abs() <= ROUNDINGS * rounding * fitted.abs()).all())


def _kept(diagonal: Tensor, fitted: Tensor) -> Tensor | None:
    return diagonal - fitted if diagonal.requires_grad else None
