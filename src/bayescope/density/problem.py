"""What every inference is given: a log density in the user's coordinates and a way to unconstrained ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError, InputTypeError
from bayescope.log_density import CallableDensity, LogDensity, TransformedDensity
from bayescope.posterior import GaussianPosterior, MixturePosterior
from bayescope.transforms import Transform, check_at, resolve, unconstrain

# What every inference takes: a function from a float64 tensor (P,) to a scalar tensor, or a density as a whole.
LogProb = Callable[[Tensor], Tensor] | LogDensity
# The posteriors that have a density.
WithDensity = GaussianPosterior | MixturePosterior


@final
@dataclass(frozen=True)
class Problem:
    """log p̃(x) with x = transform.forward(u).

    Attributes:
        target: log p̃ in the user's coordinates x.
        transform: ``None`` where u = x.
        unconstrained: log p̃(x(u)) + log∣∂x/∂u∣, over ℝᴾ.
    """

    target: LogDensity
    transform: Transform | None
    unconstrained: LogDensity


def pose(log_density: LogProb, dim: int, transform: Any = None, *, differences: bool = False) -> Problem:
    """The problem that a user's log density and ``transform=`` make.

    Args:
        log_density: a function from a float64 tensor (P,) to a scalar tensor, or a `LogDensity`.
        dim: P.
        transform: as `transforms.resolve` takes it.
        differences: whether derivatives come from differences of the function's values instead of from autograd.

    Raises:
        InputTypeError: if the log density is neither.
        InputError: if it is a `LogDensity` of another dimension.
    """
    checks.count("dim", dim)
    coordinates = resolve(transform, dim)
    if isinstance(log_density, LogDensity):
        if log_density.dim != dim:
            raise InputError(f"log_density: expected {dim} coordinates, got one over {log_density.dim}.")
        pulled_back = log_density if coordinates is None else TransformedDensity(log_density, coordinates)
        return Problem(log_density, coordinates, pulled_back)
    if not callable(log_density):
        raise InputTypeError(
            "log_density: expected a function from a float64 tensor (dim,) to a scalar tensor, got "
            f"{type(log_density).__name__}."
        )
    target = CallableDensity(log_density, dim, differences)
    if coordinates is None:
        return Problem(target, None, target)

    def composed(u: Tensor) -> Tensor:  # one function, differentiated once, is a third faster than the chain rule
        return target.log_prob(coordinates.forward(u)) + coordinates.log_jacobian(u)

    return Problem(target, coordinates, CallableDensity(composed, dim, differences))


def starting_points(problem: Problem, start: Any | None) -> Tensor:
    """Checked starts in unconstrained coordinates, of the shape given, (P,) or (K, P); ``None`` is u = 0.

    Raises:
        InputError: if the shape does not fit, or a point is outside the transform's range.
    """
    dim = problem.target.dim
    if start is None:
        origin = torch.zeros(dim, dtype=torch.float64)
        if problem.transform is not None:
            check_at(problem.transform, origin)
        return origin
    points = checks.float64("start", start)
    if points.ndim not in (1, 2) or points.shape[-1] != dim or points.numel() == 0:
        raise InputError(f"start: expected shape ({dim},) or (K, {dim}), got {tuple(points.shape)}.")
    return unconstrain(problem.transform, points)
