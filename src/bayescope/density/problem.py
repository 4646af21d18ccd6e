"""What every inference is given: a log density in the user's coordinates and a way to unconstrained ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError, InputTypeError
from bayescope.log_density import CallableDensity, LogDensity, TransformedDensity
from bayescope.posterior import GaussianPosterior, MixturePosterior, Parameters
from bayescope.transforms import Transform, check_at, free_coordinates, resolve, resolve_by_name, unconstrain

# What every inference takes: a function that returns a scalar tensor, of a float64 tensor (P,) or of named parameters
# as keyword arguments; or a density as a whole.
LogProb = Callable[..., Tensor] | LogDensity
# What θ is made of: P numbers, or the shapes of named parameters.
Dim = int | Mapping[str, int | tuple[int, ...]]
# The posteriors that have a density.
WithDensity = GaussianPosterior | MixturePosterior


@final
@dataclass(frozen=True)
class Problem:
    """log p̃(x) with x = transform.forward(u).

    Attributes:
        target: log p̃ in the user's coordinates x.
        transform: ``None`` where u = x.
        unconstrained: log p̃(x(u)) + log∣∂x/∂u∣, over ℝᴾ, or over fewer coordinates than x has.
        parameters: what x is made of; ``None`` for a flat vector.
    """

    target: LogDensity
    transform: Transform | None
    unconstrained: LogDensity
    parameters: Parameters | None = None


def pose(log_density: LogProb, dim: Dim | Parameters, transform: Any = None, *, differences: bool = False) -> Problem:
    """The problem that a user's log density and ``transform=`` make.

    Args:
        log_density: a function from a float64 tensor (P,) to a scalar tensor, or a `LogDensity`; of named parameters a
            function that takes them as keyword arguments.
        dim: P, or the shapes of named parameters.
        transform: as `transforms.resolve` takes it; of named parameters as `transforms.resolve_by_name` does.
        differences: whether derivatives come from differences of the function's values instead of from autograd.

    Raises:
        InputTypeError: if the log density is neither.
        InputError: if it is a `LogDensity` of another dimension.
    """
    parameters = Parameters.of(dim) if isinstance(dim, Mapping) else dim if isinstance(dim, Parameters) else None
    size = checks.count("dim", dim) if parameters is None else parameters.dim
    coordinates = resolve(transform, size) if parameters is None else resolve_by_name(transform, parameters.shapes)
    if isinstance(log_density, LogDensity):
        if log_density.dim != size:
            raise InputError(f"log_density: expected {size} coordinates, got one over {log_density.dim}.")
        if parameters is not None:
            raise InputError("log_density: expected a function of named parameters, got one over a flat vector.")
        pulled_back = log_density if coordinates is None else TransformedDensity(log_density, coordinates)
        return Problem(log_density, coordinates, pulled_back)
    if not callable(log_density):
        raise InputTypeError(
            "log_density: expected a function from a float64 tensor (dim,) to a scalar tensor, got "
            f"{type(log_density).__name__}."
        )
    function = log_density if parameters is None else _of_keywords(log_density, parameters)
    target = CallableDensity(function, size, differences)
    if coordinates is None:
        return Problem(target, None, target, parameters)

    def composed(u: Tensor) -> Tensor:  # one function, differentiated once, is a third faster than the chain rule
        return target.log_prob(coordinates.forward(u)) + coordinates.log_jacobian(u)

    free = len(free_coordinates(coordinates, size))
    return Problem(target, coordinates, CallableDensity(composed, free, differences), parameters)


def _of_keywords(log_density: Callable[..., Tensor], parameters: Parameters) -> Callable[[Tensor], Tensor]:
    """A function of named parameters as one of a flat vector (P,)."""
    try:
        inspect.signature(log_density).bind(**dict.fromkeys(parameters.shapes))
    except TypeError as error:
        raise InputTypeError(
            f"log_density: expected a function that takes the parameters {', '.join(parameters.shapes)} as keyword "
            f"arguments ({error})."
        ) from None
    except ValueError:  # a function of C, which has no signature
        pass
    return lambda theta: log_density(**parameters.split(theta))


def starting_points(problem: Problem, start: Any | None) -> Tensor:
    """Checked starts in unconstrained coordinates, of the shape given, (P',) or (K, P'); ``None`` is u = 0.

    Args:
        problem: whose starts they are.
        start: in the user's coordinates, shape (P,) or (K, P); of named parameters a mapping with a value for each, or
            a list of K of them.

    Raises:
        InputError: if the shape does not fit, or a point is outside the transform's range.
    """
    dim = problem.target.dim
    if start is None:
        origin = torch.zeros(problem.unconstrained.dim, dtype=torch.float64)
        if problem.transform is not None:
            check_at(problem.transform, origin)
        return origin
    names: tuple[str, ...] = ()
    if problem.parameters is not None and not isinstance(start, Tensor):
        names = problem.parameters.names
        points = _joined(problem.parameters, start)
    elif isinstance(start, Mapping):
        raise InputTypeError("start: expected numbers, got a dict. Give dim= the shapes of the named parameters too.")
    else:
        points = checks.float64("start", start)
    if points.ndim not in (1, 2) or points.shape[-1] != dim or points.numel() == 0:
        raise InputError(f"start: expected shape ({dim},) or (K, {dim}), got {tuple(points.shape)}.")
    return unconstrain(problem.transform, points, coordinates=names)


def _joined(parameters: Parameters, start: Any) -> Tensor:
    if isinstance(start, Mapping):
        return parameters.join("start", start)
    if isinstance(start, Sequence) and start and all(isinstance(each, Mapping) for each in start):
        return torch.stack([parameters.join("start", each) for each in start])
    raise InputTypeError(
        f"start: expected a dict with a value for each of {', '.join(parameters.shapes)}, or a list of these, got "
        f"{type(start).__name__}."
    )


def dim_of(start: Any) -> int | Parameters:
    """What the points of a start are made of: P numbers, or the parameters that it names, with their shapes.

    Raises:
        InputTypeError: if it does not hold real numbers.
        InputError: if it has another shape than (P,) or (K, P).
    """
    first = start[0] if isinstance(start, Sequence) and len(start) else start
    if isinstance(first, Mapping):
        shapes = {name: tuple(checks.float64(f"start[{name!r}]", value).shape) for name, value in first.items()}
        return Parameters.of(shapes)
    point = checks.float64("start", start)
    if point.ndim not in (1, 2) or point.numel() == 0:
        raise InputError(f"start: expected shape (dim,) or (K, dim), got {tuple(point.shape)}.")
    return int(point.shape[-1])
