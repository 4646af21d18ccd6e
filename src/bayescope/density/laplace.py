"""Laplace's approximation of any log density."""

from __future__ import annotations

import math
from typing import Any, Literal, overload

import numpy as np
import torch
from torch import Tensor

from bayescope import checks
from bayescope.density.modes import Mode, find_mode
from bayescope.density.problem import Problem, pose, starting_points
from bayescope.errors import BayescopeError, ConvergenceWarning, InputError, InputTypeError, warn
from bayescope.log_density import LogDensity
from bayescope.posterior import GaussianPosterior, MixturePosterior, Record

# Where more modes are asked for than the starts lead to: rounds of further starts, at distances in sds of a mode found.
_SPREADS = (1.0, 3.0, 10.0, 30.0)
_STARTS_A_ROUND = 8


@overload
def laplace(
    log_density: Any,
    start: Any,
    *,
    modes: Literal[1] = 1,
    hessian: str = "autograd",
    transform: Any = None,
    generator: torch.Generator | int | None = 0,
) -> GaussianPosterior: ...


@overload
def laplace(
    log_density: Any,
    start: Any,
    *,
    modes: int,
    hessian: str = "autograd",
    transform: Any = None,
    generator: torch.Generator | int | None = 0,
) -> GaussianPosterior | MixturePosterior: ...


def laplace(
    log_density: Any,
    start: Any,
    *,
    modes: int = 1,
    hessian: str = "autograd",
    transform: Any = None,
    generator: torch.Generator | int | None = 0,
) -> GaussianPosterior | MixturePosterior:
    """The Gaussian with the mode and the curvature of a log density there, or a mixture of them over several modes.

    In unconstrained coordinates u, with A = −∂² log p̃(u*) at the mode u*, q(u) = N(u*, A⁻¹) and the normaliser is
    log Z = log p̃(u*) + (P/2) log 2π − ½ log∣A∣ (MacKay 2003, eq. 27.5; Bishop 2006, eq. 4.135). For n data its
    relative error falls as 1/n (Tierney & Kadane 1986). The answer depends on the coordinates: ``transform=`` chooses
    them.

    Args:
        log_density: a function from a float64 tensor (P,) in the user's coordinates to a scalar tensor.
        start: where to begin, in the user's coordinates, floating-point, shape (P,) or (K, P) for K starts.
        modes: how many distinct modes to find. One: the highest that the starts lead to. Several: where the starts lead
            to fewer, more are drawn around those found, up to 30 sds away; of more, those of largest Z are kept.
            The mixture's weights are Z_k / Σ Z.
        hessian: "autograd", or "finite_difference" for functions that autograd cannot differentiate: the gradient and
            the Hessian then come from the function's values alone, to about 1e-8.
        transform: ``None``; "positive", "unit_interval" or "ordered"; a list with one of these a coordinate; or an
            object with forward, inverse and log_jacobian.
        generator: for the further starts, a ``torch.Generator`` or an int.

    Returns:
        A `GaussianPosterior`, or for ``modes`` above 1 a `MixturePosterior`. Their mean and covariance are those of the
        user's coordinates; ``log_evidence()`` is log Z.

    Raises:
        InputTypeError: for integer starts: discrete parameters have no Laplace approximation.
        InputError: if a start is outside the support, or the density has a kink at its maximum.
        NotPositiveDefiniteError: at a saddle point, or a maximum without curvature, such as that of −x⁴, with the
            smallest eigenvalue and its direction; and where the Hessian is not finite.
        ConvergenceError: if the density rises without bound.

    Warns:
        ConvergenceWarning: if fewer modes were found than asked for.
    """
    checks.count("modes", modes)
    checks.choice("hessian", hessian, ("autograd", "finite_difference"))
    point = _continuous(start)
    problem = pose(log_density, point.shape[-1], transform, differences=hessian != "autograd")
    starts = torch.atleast_2d(starting_points(problem, point))
    found = _modes_from(problem.unconstrained, starts)
    if modes == 1:
        return _gaussian(problem, max(found, key=lambda mode: float(mode.value)), starts.shape[0])
    found = _more_modes(problem.unconstrained, found, modes, checks.generator(generator))
    parts = sorted((_gaussian(problem, mode, 1) for mode in found), key=lambda part: -float(part.log_evidence()))[
        :modes
    ]
    if len(parts) < modes:
        warn(
            f"laplace: found {len(parts)} of the {modes} modes asked for. Pass starts nearer to the others, shape (K, "
            "dim).",
            ConvergenceWarning,
        )
    log_z = torch.stack([part.log_evidence() for part in parts])
    evidence = torch.logsumexp(log_z, 0)
    notes = {"modes": f"{len(parts)}, with weights {', '.join(f'{w:.4f}' for w in (log_z - evidence).exp().tolist())}"}
    return MixturePosterior(log_z - evidence, parts, Record("laplace", evidence=evidence, notes=notes))


def _continuous(start: Any) -> Tensor:
    """The start as a float64 tensor; integers are refused."""
    kind = start.dtype if isinstance(start, Tensor) else np.asarray(start).dtype
    discrete = not (kind.is_floating_point or kind.is_complex) if isinstance(kind, torch.dtype) else kind.kind in "biu"
    if discrete:
        raise InputTypeError(
            f"start: expected floating-point numbers, got {kind}. Laplace's approximation is for continuous "
            "parameters: discrete ones have no gradient. Write 0.0 for 0 if the parameter is continuous."
        )
    point = checks.float64("start", start)
    if point.ndim not in (1, 2) or point.numel() == 0:
        raise InputError(f"start: expected shape (dim,) or (K, dim), got {tuple(point.shape)}.")
    return point


def _modes_from(density: LogDensity, starts: Tensor) -> list[Mode]:
    """The distinct modes that the starts lead to; if none does, the first failure is raised."""
    found: list[Mode] = []
    failures: list[BayescopeError] = []
    for start in starts:
        try:
            _add(found, find_mode(density, start))
        except BayescopeError as error:
            failures.append(error)
    if not found:
        raise failures[0]
    return found


def _more_modes(density: LogDensity, found: list[Mode], modes: int, generator: torch.Generator) -> list[Mode]:
    """Adds modes reached from starts drawn around those found, in rounds that reach further, until there are enough."""
    found = list(found)
    for spread in _SPREADS:
        if len(found) >= modes:
            break
        noise = torch.randn(len(found), _STARTS_A_ROUND, density.dim, dtype=torch.float64, generator=generator)
        for mode, draws in list(zip(found, noise, strict=True)):
            starts = mode.location + spread * mode.precision.sqrt_solve(draws.mT).mT
            inside = starts[torch.isfinite(density.log_prob(starts))]
            try:
                reached = _modes_from(density, inside) if len(inside) else []
            except BayescopeError:  # none of these starts led to a mode; the others may
                continue
            for other in reached:
                _add(found, other)
    return found


def _add(found: list[Mode], mode: Mode) -> None:
    if not any(known.is_at(mode) for known in found):
        found.append(mode)


def _gaussian(problem: Problem, mode: Mode, starts: int) -> GaussianPosterior:
    dim = mode.location.shape[0]
    evidence = mode.value + 0.5 * (dim * math.log(2.0 * math.pi) - mode.precision.logdet())
    notes = {"optimiser": f"trust-ncg and Newton, {len(mode.trace)} iterations, the best of {starts} starts"}
    record = Record("laplace", evidence=evidence, notes=notes, trace={"log density": mode.trace})
    return GaussianPosterior(mode.location, mode.precision, record, transform=problem.transform)
