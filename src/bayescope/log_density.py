"""Log densities: what modes are sought on, what samplers and variational fits run on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, final, runtime_checkable

import torch
from torch import Tensor

from bayescope.errors import InputError, InputTypeError
from bayescope.transforms import Transform, free_coordinates

# Points that are evaluated in one vectorised call: enough to hide Python's overhead, few enough for large data.
_CHUNK = 256
# Rows of a Hessian that are differentiated in one call.
_HESSIAN_ROWS = 64
# What torch raises from code that cannot be vectorised over points: a branch on a value, .item(), NumPy, a plain float.
_NOT_VECTORISABLE = (RuntimeError, TypeError, ValueError)
# Half-widths of the difference stencils, in units of the local scale: they balance the truncation error, O(h⁴) after
# one Richardson step, against the rounding errors ε/h and ε/h².
_GRADIENT_STEP = 1e-3
_HESSIAN_STEP = 4e-3
# Rounds in which the local scale is sought. An undamped step lands at once for a parabola and swings ever wider for
# powers above four; damped, it settles for all up to nine.
_SCALE_ROUNDS, _SCALE_DAMPING, _SCALE_CUT = 40, 0.4, 0.1


@runtime_checkable
class LogDensity(Protocol):
    """An unnormalised log density over a flat vector, float64, with its gradient and Hessian."""

    @property
    def dim(self) -> int:
        """P, the number of coordinates."""

    def log_prob(self, theta: Tensor) -> Tensor:
        """log p̃(θ), shape (...) for θ of shape (..., P), differentiable by autograd."""

    def value_and_gradient(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """log p̃(θ) and its gradient, a scalar and shape (P,), for θ of shape (P,)."""

    def hessian(self, theta: Tensor) -> Tensor:
        """∂² log p̃(θ)/∂θ², shape (P, P), for θ of shape (P,)."""


@final
@dataclass(frozen=True)
class CallableDensity:
    """A function from a float64 tensor of shape (P,) to a scalar tensor, as a `LogDensity`.

    Several points are evaluated at once by ``torch.func.vmap``, and one after the other where the function branches on
    values or leaves torch.

    Differences are for functions that autograd cannot differentiate. One Richardson step makes their truncation errors
    O(h⁴); with steps on the scale of the density the gradient is right to about 1e-12 and the Hessian to 1e-10, times
    ∣log p̃∣, in units of that scale.

    Attributes:
        function: log p̃.
        dim: P.
        differences: whether derivatives come from central differences of the function's values instead of from
            autograd. The function may then return any number.
    """

    function: Callable[[Tensor], Any]
    dim: int
    differences: bool = False
    _vectorises: list[bool] = field(default_factory=lambda: [True], init=False, repr=False, compare=False)

    def log_prob(self, theta: Tensor) -> Tensor:
        """log p̃(θ), shape (...) for θ of shape (..., P).

        Raises:
            InputTypeError: if the function returns anything but a float64 tensor.
            InputError: if that is not a scalar.
        """
        return _over_points(self._value, theta, self._vectorises)

    def value_and_gradient(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """log p̃(θ) and its gradient, for θ of shape (P,).

        The gradient by differences is (4 D(h) − D(2h))/3, with D(h) = (f(θ + h) − f(θ − h))/2h in each coordinate.

        Raises:
            InputError: if the value does not depend on θ through torch operations.
        """
        if self.differences:
            scale = curvature_scale(self.log_prob, theta)
            steps = _GRADIENT_STEP * torch.diag(scale)
            near, far = (self.log_prob(torch.stack([theta + k * steps, theta - k * steps])) for k in (1, 2))
            gradient = (8.0 * (near[0] - near[1]) - (far[0] - far[1])) / (12.0 * _GRADIENT_STEP * scale)
            return self.log_prob(theta), gradient
        with torch.enable_grad():
            point = theta.detach().requires_grad_()
            value = self._differentiable(point)
            (gradient,) = torch.autograd.grad(value, point)
        return value.detach(), gradient

    def hessian(self, theta: Tensor) -> Tensor:
        """∂² log p̃(θ)/∂θ², shape (P, P), for θ of shape (P,)."""
        if self.differences:
            return finite_difference_hessian(self.log_prob, theta, curvature_scale(self.log_prob, theta))
        with torch.enable_grad():
            point = theta.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self._differentiable(point), point, create_graph=True)
            return _jacobian_of(gradient, point)

    def _value(self, theta: Tensor) -> Tensor:
        try:
            value = self.function(theta)
        except RuntimeError as error:
            if "dtype" not in str(error):
                raise
            raise InputTypeError(
                f"log_density: expected a function of a float64 tensor ({error}). Make its data float64: X.double()."
            ) from error
        return _scalar(torch.as_tensor(value, dtype=torch.float64) if self.differences else value)

    def _differentiable(self, point: Tensor) -> Tensor:
        value = self._value(point)
        if not value.requires_grad:
            raise InputError(
                "log_density: expected a value that depends on its input through torch operations, got one that "
                "autograd cannot follow (NumPy, .item(), .detach() and torch.tensor(...) break the chain; a constant "
                "has none). Write it in torch, or use metropolis, or laplace with hessian='finite_difference'."
            )
        return value


@final
@dataclass(frozen=True)
class TransformedDensity:
    """log p̃ in unconstrained coordinates u: log p̃(x(u)) + log∣∂x/∂u∣.

    The gradient and Hessian take those of log p̃ as they are, by the chain rule: with g and H those of log p̃ at x,
    they are Jᵀg + ∂ log∣J∣ and JᵀHJ + Σ_i g_i ∂²x_i + ∂² log∣J∣.

    Attributes:
        density: log p̃ in the user's coordinates x.
        transform: x = forward(u).
    """

    density: LogDensity
    transform: Transform

    @property
    def dim(self) -> int:
        """P', the number of unconstrained coordinates."""
        return len(free_coordinates(self.transform, self.density.dim))

    def log_prob(self, theta: Tensor) -> Tensor:
        """log p̃(x(u)) + log∣∂x/∂u∣, shape (...) for u of shape (..., P')."""
        return self.density.log_prob(self.transform.forward(theta)) + self.transform.log_jacobian(theta)

    def value_and_gradient(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """The value and gradient at u of shape (P',)."""
        with torch.enable_grad():
            u = theta.detach().requires_grad_()
            x = self.transform.forward(u)
            value, g = self.density.value_and_gradient(x.detach())
            log_jacobian = self.transform.log_jacobian(u)
            (gradient,) = torch.autograd.grad((x * g).sum() + log_jacobian, u)
        return value + log_jacobian.detach(), gradient

    def hessian(self, theta: Tensor) -> Tensor:
        """The Hessian at u of shape (P',), shape (P', P')."""
        with torch.enable_grad():
            u = theta.detach().requires_grad_()
            x = self.transform.forward(u)
            _, g = self.density.value_and_gradient(x.detach())
            jacobian = _jacobian_of(x, u, retain=True)
            surrogate = (x * g).sum() + self.transform.log_jacobian(u)
            (gradient,) = torch.autograd.grad(surrogate, u, create_graph=True)
            curvature = _jacobian_of(gradient, u)
        return jacobian.mT @ self.density.hessian(x.detach()) @ jacobian + curvature


def finite_difference_hessian(log_prob: Callable[[Tensor], Tensor], theta: Tensor, scale: Tensor) -> Tensor:
    """∂² log p̃(θ)/∂θ² from values alone, by central differences with one Richardson step.

    Along a direction d the second derivative is S(h) = (f(θ + hd) − 2f(θ) + f(θ − hd))/h², and (4 S(h) − S(2h))/3
    leaves O(h⁴). Off the diagonal, H_ij = (S_{i+j} − S_{i−j})/4 along the sum and the difference of the two steps.

    Args:
        log_prob: values, shape (...) for points of shape (..., P).
        theta: shape (P,).
        scale: the step along each coordinate is 4e-3 of this, shape (P,); see `curvature_scale`.
    """
    dim = theta.shape[0]
    rows, columns = torch.triu_indices(dim, dim, offset=1)
    axes = torch.eye(dim, dtype=torch.float64)
    sums, differences = axes[rows] + axes[columns], axes[rows] - axes[columns]
    second = _second_differences(log_prob, theta, torch.cat([axes, sums, differences]) * scale, _HESSIAN_STEP)
    along, plus, minus = second.split([dim, rows.shape[0], rows.shape[0]])
    hessian = torch.diag(along)
    hessian[rows, columns] = hessian[columns, rows] = 0.25 * (plus - minus)
    return hessian / (scale[:, None] * scale)


def curvature_scale(log_prob: Callable[[Tensor], Tensor], theta: Tensor) -> Tensor:
    """∣∂² log p̃/∂θ_i²∣^{−½} per coordinate, shape (P,), from values alone: a Gaussian's conditional sd.

    Found by rounds of differencing, each with the last round's scale, the first with max(1, ∣θ_i∣); a step that leaves
    the support is cut. A coordinate along which the density is linear, or nowhere finite, keeps its scale.
    """
    first = theta.abs().clamp_min(1.0)
    scale, factor, outside = first, torch.ones_like(first), torch.zeros_like(first, dtype=torch.bool)
    for _ in range(_SCALE_ROUNDS):
        second = _second_differences(log_prob, theta, torch.diag(scale), _HESSIAN_STEP).abs()
        outside = ~torch.isfinite(second)
        factor = torch.where(outside, _SCALE_CUT, torch.where(second > 0, second, 1.0).rsqrt())
        if bool(((factor > 0.5) & (factor < 2.0)).all()):
            break
        scale = scale * torch.where(outside, factor, factor**_SCALE_DAMPING)
    scale = scale * factor
    return torch.where(torch.isfinite(scale) & ~outside, scale, first)


def _second_differences(log_prob: Callable[[Tensor], Tensor], theta: Tensor, steps: Tensor, width: float) -> Tensor:
    """The second derivative along each row d of ``steps`` (K, P), with stencil points at ±width d and ±2 width d."""
    centre = log_prob(theta)
    near, far = (
        log_prob(torch.stack([theta + k * width * steps, theta - k * width * steps])).sum(0) - 2.0 * centre
        for k in (1, 2)
    )
    return (16.0 * near - far) / (12.0 * width**2)


def _over_points(function: Callable[[Tensor], Tensor], theta: Tensor, vectorises: list[bool]) -> Tensor:
    """The scalar function at each point of (..., P): vectorised, or one by one where it cannot be.

    ``vectorises`` remembers which; an error of the function's own surfaces from the second way.
    """
    if theta.ndim == 1:
        return function(theta)
    points = theta.reshape(-1, theta.shape[-1])
    if points.shape[0] == 0:
        return theta.new_zeros(theta.shape[:-1])
    if vectorises[0]:
        try:
            return torch.func.vmap(function, chunk_size=_CHUNK)(points).reshape(theta.shape[:-1])
        except _NOT_VECTORISABLE:
            values = torch.stack([function(point) for point in points])
            vectorises[0] = False
            return values.reshape(theta.shape[:-1])
    return torch.stack([function(point) for point in points]).reshape(theta.shape[:-1])


def _scalar(value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        raise InputTypeError(
            f"log_density: expected a function that returns a scalar torch tensor, got {type(value).__name__}."
        )
    if value.ndim:
        raise InputError(f"log_density: expected a scalar (shape ()), got shape {tuple(value.shape)}. Sum the terms.")
    if value.dtype != torch.float64:
        raise InputTypeError(
            f"log_density: expected a float64 value for a float64 input, got {value.dtype}. Keep constants in float64."
        )
    return value


def _jacobian_of(output: Tensor, point: Tensor, *, retain: bool = False) -> Tensor:
    """∂output/∂point, shape (K, P) for an output of shape (K,), a block of rows at a time."""
    if not output.requires_grad:  # the output is constant in the point
        return output.new_zeros(output.shape[0], point.shape[0])
    blocks = torch.eye(output.shape[0], dtype=output.dtype).split(_HESSIAN_ROWS)
    rows = [
        torch.autograd.grad(
            output,
            point,
            block,
            retain_graph=retain or place + 1 < len(blocks),
            is_grads_batched=True,
            materialize_grads=True,
        )[0]
        for place, block in enumerate(blocks)
    ]
    return torch.cat(rows)
