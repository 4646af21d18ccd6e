"""L-BFGS on all rows, which goes on until rounding hides what is left to gain."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

# Evaluations a step, and pairs of steps and changes of the gradient that the model of the curvature is made of.
EVALUATIONS, MEMORY = 20, 20
# The shares of the first slope that the Wolfe conditions ask for: of the fall, and of what may be left of the slope.
FALL, SLOPE = 1e-4, 0.9
# The least share of an interval that a search goes to by the parabola through both slopes; it halves it at least.
LEAST_SHARE = 1e-4
# Sums over rows are exact to this many roundings of their values.
ROUNDINGS = 8.0
# The slope along a direction whose length the memory has set is about twice what is left to gain. With residuals r and
# a column x of the inputs, the gradient Σ r x is rounded by eps ‖r‖ ‖x‖ (Cauchy-Schwarz), and a gradient of that size
# gains eps² ‖r‖²/2, a share eps² of the objective: below this, in the finest precision, nothing is left. At an optimum
# of zero weights, where no rounding ends the search, it would go on to the smallest floating-point numbers.
LOST = torch.finfo(torch.float64).eps ** 2


class _Point(NamedTuple):
    """Weights, with the objective and its gradient there."""

    weights: Tensor
    value: float
    gradient: Tensor


@final
class Lbfgs(Optimizer):
    """Limited-memory BFGS (Nocedal 1980) with the bisection of Lewis and Overton (2013) as its line search.

    ``torch.optim.LBFGS`` keeps a pair of a step and its change of gradient only where their product is over 1e-10, in
    the units of the objective, and repeats a direction that has failed. Here pairs are judged by their angle, and a
    search that fails empties the memory: the method ends only where the gradient itself leads no further down.

    Where the change of the objective is lost in its rounding, the slope decides (the approximate Wolfe conditions of
    Hager and Zhang 2005, eq. 23), so that the gradient becomes as small as its own rounding allows.

    Args:
        parameters: what is trained.
        lr: the first length that is tried along a direction.

    Attributes:
        gained: by how much the last call of `step` lowered the objective.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float = 1.0) -> None:
        super().__init__(parameters, {"lr": lr})
        self._parameters: list[nn.Parameter] = self.param_groups[0]["params"]
        self.gained, self._evaluations = 0.0, 0

    @torch.no_grad()
    def step(self, closure: Callable[[], Any]) -> float:  # type: ignore[override]
        """Evaluates twenty times, or until no direction leads down; the gradients are those of the last weights.

        Args:
            closure: sets the gradients and returns the objective.

        Returns:
            The objective before.
        """
        self._closure, self._evaluations = torch.enable_grad()(closure), 0
        here = self._at(_flat(self._parameters))
        first = here.value
        while self._evaluations < EVALUATIONS:
            whole, direction = self._evaluations == 1, self._direction(here.gradient)
            if self._memory["steps"] and abs(float(direction @ here.gradient)) <= LOST * abs(here.value):
                break
            found = self._along(direction, here)
            if found is not None:
                self._remember(found.weights - here.weights, found.gradient - here.gradient)
                here = found
            elif self._evaluations == EVALUATIONS and not whole:
                break  # the next step searches along this direction again, for longer
            elif self._memory["steps"]:
                self._memory["steps"], self._memory["changes"] = [], []
            else:
                break
        self._leave_at(here)
        self.gained = first - here.value
        return first

    @property
    def _memory(self) -> dict[str, list[Tensor]]:
        memory: dict[str, list[Tensor]] = self.state[self._parameters[0]]
        for name in ("steps", "changes"):
            memory.setdefault(name, [])
        return memory

    def _direction(self, gradient: Tensor) -> Tensor:
        """−H g with H the model of the inverse curvature, by the two loops of Nocedal (1980)."""
        steps, changes = self._memory["steps"], self._memory["changes"]
        if not steps:
            return -gradient / gradient.abs().sum().clamp_min(1.0)
        left, shares = -gradient, []
        for step, change in zip(reversed(steps), reversed(changes), strict=True):
            shares.append((step @ left) / (step @ change))
            left = left - shares[-1] * change
        left = left * ((steps[-1] @ changes[-1]) / (changes[-1] @ changes[-1]))
        for step, change, share in zip(steps, changes, reversed(shares), strict=True):
            left = left + (share - (change @ left) / (step @ change)) * step
        return left

    def _remember(self, step: Tensor, change: Tensor) -> None:
        smallest = torch.finfo(step.dtype).eps * float(step.norm() * change.norm())
        if float(step @ change) > smallest:
            for name, tensor in (("steps", step), ("changes", change)):
                self._memory[name] = [*self._memory[name], tensor][-MEMORY:]

    def _along(self, direction: Tensor, here: _Point) -> _Point | None:
        """A point that satisfies the Wolfe conditions; ``None`` where the direction leads nowhere."""
        slope = float(direction @ here.gradient)
        if not slope < 0.0:
            return None
        rounding = ROUNDINGS * torch.finfo(direction.dtype).eps * abs(here.value)
        low, high, length = 0.0, math.inf, float(self.param_groups[0]["lr"])
        at_low = slope
        best: _Point | None = None
        while self._evaluations < EVALUATIONS:
            weights = here.weights + length * direction
            if torch.equal(weights, here.weights):
                break
            there = self._at(weights)
            new = float(direction @ there.gradient)
            fallen = there.value <= here.value + FALL * length * slope or (
                there.value <= here.value + rounding and new <= (1.0 - 2.0 * FALL) * -slope
            )
            if not (math.isfinite(there.value) and math.isfinite(new) and fallen):
                high = length
            elif new < SLOPE * slope:
                low, best, at_low = length, there, new
            else:
                return there
            if math.isinf(high):
                length = 2.0 * length
                continue
            share = at_low / (at_low - new) if high == length and new > at_low else 0.5
            length = low + min(max(share, LEAST_SHARE), 0.5) * (high - low)
        return best

    def _at(self, weights: Tensor) -> _Point:
        for parameter, saved in zip(self._parameters, self._parts(weights), strict=True):
            parameter.copy_(saved)
        value = float(self._closure())
        self._evaluations += 1
        return _Point(weights, value, _flat([_gradient(parameter) for parameter in self._parameters]))

    def _leave_at(self, point: _Point) -> None:
        weights, gradients = self._parts(point.weights), self._parts(point.gradient)
        for parameter, saved, gradient in zip(self._parameters, weights, gradients, strict=True):
            parameter.copy_(saved)
            parameter.grad = gradient.clone()

    def _parts(self, flat: Tensor) -> list[Tensor]:
        parts = flat.split([parameter.numel() for parameter in self._parameters])
        return [part.view_as(parameter) for part, parameter in zip(parts, self._parameters, strict=True)]


def _gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        return torch.zeros_like(parameter)
    return parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
