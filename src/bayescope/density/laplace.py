"""Laplace's approximation of any log density."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, final, overload

import numpy as np
import torch
from scipy.optimize import OptimizeResult, minimize
from torch import Tensor

from bayescope import checks
from bayescope.density.problem import LogProb, Problem, dim_of, pose, starting_points
from bayescope.errors import (
    BayescopeError,
    ConvergenceError,
    ConvergenceWarning,
    InputError,
    InputTypeError,
    NotPositiveDefiniteError,
    warn,
)
from bayescope.log_density import LogDensity
from bayescope.logs import logged
from bayescope.posterior import GaussianPosterior, MixturePosterior, Record
from bayescope.precision import DensePrecision

# Where more modes are asked for than the starts lead to: rounds of further starts, at distances in sds of a mode found.
_SPREADS = (1.0, 3.0, 10.0, 30.0)
_STARTS_A_ROUND = 8


@overload
def laplace(
    log_density: LogProb,
    start: Any,
    *,
    modes: Literal[1] = 1,
    hessian: str = "autograd",
    transform: Any = None,
    generator: torch.Generator | int | None = 0,
) -> GaussianPosterior: ...


@overload
def laplace(
    log_density: LogProb,
    start: Any,
    *,
    modes: int,
    hessian: str = "autograd",
    transform: Any = None,
    generator: torch.Generator | int | None = 0,
) -> GaussianPosterior | MixturePosterior: ...


@logged
def laplace(
    log_density: LogProb,
    start: Any,
    *,
    modes: int = 1,
    hessian: str = "autograd",
    transform: Any = None,
    generator: torch.Generator | int | None = 0,
) -> GaussianPosterior | MixturePosterior:
    """The Gaussian with the mode and the curvature of a log density there, or a mixture of them over several modes.

    In unconstrained coordinates u, with A = −∂² log p̃(u*) at the mode u*, q(u) = N(u*, A⁻¹) and the normaliser is
    log Z = log p̃(u*) + (P/2) log 2π − ½ log∣A∣ (MacKay 2003, chapter 27; Bishop 2006, eq. 4.135). For n data its
    relative error falls as 1/n (Tierney & Kadane 1986). The answer depends on the coordinates: ``transform=`` chooses
    them.

    Args:
        log_density: a function from a float64 tensor (P,) in the user's coordinates to a scalar tensor; or from named
            parameters, which it takes as keyword arguments.
        start: where to begin, in the user's coordinates, floating-point, shape (P,) or (K, P) for K starts; for named
            parameters a dict with a number or an array for each, or a list of K of them.
        modes: how many distinct modes to find. One: the highest that the starts lead to. Several: where the starts lead
            to fewer, more are drawn around those found, up to 30 sds away; of more, those of largest Z are kept.
            The mixture's weights are Z_k / Σ Z.
        hessian: "autograd", or "finite_difference" for functions that autograd cannot differentiate: the gradient and
            the Hessian then come from the function's values alone, to about 1e-8.
        transform: ``None``; a name ("positive", "unit_interval", "ordered", "simplex", "cholesky_correlation",
            "correlation") or `between`; a list with one of these a coordinate; for named parameters a dict with one of
            these for those that are constrained; or an object with forward, inverse and log_jacobian.
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
    _refuse_discrete(start)
    problem = pose(log_density, dim_of(start), transform, differences=hessian != "autograd")
    starts = torch.atleast_2d(starting_points(problem, start))
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
    record = Record("laplace", evidence=evidence, notes=notes, parameters=problem.parameters)
    return MixturePosterior(log_z - evidence, parts, record)


def _refuse_discrete(start: Any, name: str = "start") -> None:
    """Raises for integers, in a start or in one of the parameters that it names."""
    if isinstance(start, Mapping):
        for parameter, value in start.items():
            _refuse_discrete(value, f"start[{parameter!r}]")
        return
    if isinstance(start, Sequence) and any(isinstance(each, Mapping) for each in start):
        for each in start:
            _refuse_discrete(each)
        return
    kind = start.dtype if isinstance(start, Tensor) else np.asarray(start).dtype
    discrete = not (kind.is_floating_point or kind.is_complex) if isinstance(kind, torch.dtype) else kind.kind in "biu"
    if discrete:
        raise InputTypeError(
            f"{name}: expected floating-point numbers, got {kind}. Laplace's approximation is for continuous "
            "parameters: discrete ones have no gradient. Write 0.0 for 0 if the parameter is continuous."
        )


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
    trace = {"log density": mode.trace}
    record = Record("laplace", evidence=evidence, notes=notes, trace=trace, parameters=problem.parameters)
    return GaussianPosterior(mode.location, mode.precision, record, transform=problem.transform)


_MAX_ITERATIONS = 500
_MAX_NEWTON = 50
# A Newton step below this times (1 + ∣u_i∣) in each coordinate is rounding.
_STEP_TOLERANCE = 1e-9
# The last steps may instead stop shrinking, at a length of this many posterior sds, because gradients are rounded.
_ROUNDED_DECREMENT = 1e-6
# Beyond this times (1 + ∣start∣) a search is following a density that rises for ever: the start is rounding there. A
# nearer limit would refuse modes in large units; the trust region doubles, so that this one is reached in 54 steps.
_FAR = 1e16
# Nor has a log density a mode as high as this; the optimiser's squares overflow further up.
_HIGH = 1e100
# The search ends where this many iterations have not raised the log density by more than its rounding.
_PATIENCE = 20
# Relative to its diagonal, a Hessian's smallest eigenvalue below this many roundings is zero.
_SINGULAR = 16 * np.finfo(np.float64).eps
# Kinks are looked for at this many conditional sds, where a smooth density has the Hessian's curvature to 5 %.
_PROBE, _PROBE_TOLERANCE = 1e-2, 0.05
# Where the search failed, kinks and maxima without curvature are looked for at these distances, times (1 + ∣u_i∣), and
# at half of them. Without curvature the fall is lost in rounding sooner.
_REACH, _FLAT_REACH = 1e-3, 1e-1
# Over half the distance a kink falls half as far, curvature a quarter, and less where the curvature is zero.
_KINKED, _QUARTIC = 1 / 3.9, 1 / 12.0


@final
@dataclass(frozen=True)
class Mode:
    """A strict local maximum of a log density.

    Attributes:
        location: where, shape (P,).
        value: the log density there.
        precision: A = −∂² log p̃ there.
        trace: the log density at each iteration of the search.
    """

    location: Tensor
    value: Tensor
    precision: DensePrecision
    trace: list[float]

    def is_at(self, other: Mode) -> bool:
        """Whether the other mode is within 1e-3 sd of this one."""
        offset = other.location - self.location
        return float(offset @ self.precision.multiply(offset)) < 1e-6


def find_mode(density: LogDensity, start: Tensor) -> Mode:
    """Climbs to a mode from a start (P,): scipy's Newton conjugate-gradient trust region, then plain Newton steps.

    The mode is found to working precision: the last Newton step is below 1e-9 (1 + ∣u_i∣), or at the rounding of the
    gradient.

    Raises:
        InputError: if the density at the start is not finite, or if it has a kink at its maximum.
        NotPositiveDefiniteError: at a saddle point, or a maximum without curvature, such as that of −u⁴, with the
            smallest eigenvalue of A and its direction; and where the Hessian is not finite.
        ConvergenceError: if there is no maximum to be found: the density rises without bound.
    """
    search = _Search(density, start)
    best = search.climb()
    _refuse_flat(_finite_hessian(density, best), best)
    try:
        location = _polish(density, best, _curvature(density, best))
        precision = _curvature(density, location)
    except (NotPositiveDefiniteError, ConvergenceError):
        _refuse_misshapen_near(density, best)
        raise
    _refuse_misshapen_at(density, location, precision)
    return Mode(location, density.log_prob(location).detach(), precision, search.trace)


def climbed(density: LogDensity, start: Tensor) -> Tensor:
    """Where the search for a mode ends, mode or not, shape (P,); the start where the density rises for ever."""
    try:
        return _Search(density, start).climb()
    except ConvergenceError:
        return start


@final
@dataclass
class _Search:
    """One run of the trust-region method, on −log p̃."""

    density: LogDensity
    start: Tensor
    trace: list[float] = field(default_factory=list)

    def climb(self) -> Tensor:
        """The best point found; errors where the search ran away."""
        first = float(self.density.log_prob(self.start))
        if not np.isfinite(first):
            raise InputError(
                f"start: expected a finite log density, got {first} at {self.start.tolist()}. Start inside the support."
            )
        with np.errstate(all="ignore"):  # steps beyond the support evaluate to infinity and are taken back
            result = minimize(
                self._value,
                self.start.numpy(),
                method="trust-ncg",
                jac=self._gradient,
                hess=self._hessian,
                callback=self._watch,
                options={"gtol": 1e-10, "maxiter": _MAX_ITERATIONS, "max_trust_radius": np.inf},
            )
        location = torch.from_numpy(result.x)
        if self._far(location):
            raise _runaway(-result.fun, location)
        return location

    def _value(self, u: np.ndarray) -> float:
        value = -self.density.log_prob(torch.tensor(u)).item()
        if value < -_HIGH:
            raise _runaway(-value, torch.tensor(u))
        return np.inf if np.isnan(value) else value  # undefined is outside the support

    def _gradient(self, u: np.ndarray) -> np.ndarray:
        gradient = -self.density.value_and_gradient(torch.tensor(u))[1].numpy()
        if not np.isfinite(gradient).all():
            raise ConvergenceError(
                f"laplace: expected a finite gradient, got NaN or infinity at {u.tolist()[:8]}. The log density has a "
                "cusp or an edge there, or rises without bound; check its support, or start elsewhere."
            )
        return gradient

    def _hessian(self, u: np.ndarray) -> np.ndarray:
        return -_finite_hessian(self.density, torch.tensor(u)).numpy()

    def _watch(self, intermediate_result: OptimizeResult) -> None:
        self.trace.append(-float(intermediate_result.fun))
        recent = self.trace[-_PATIENCE:]
        stalled = len(recent) == _PATIENCE and recent[-1] - recent[0] <= 1e-12 * (1.0 + abs(recent[-1]))
        if stalled or self._far(torch.from_numpy(intermediate_result.x)):
            raise StopIteration

    def _far(self, u: Tensor) -> bool:
        return not float(u.norm()) <= _FAR * (1.0 + float(self.start.norm()))


def _runaway(value: float, location: Tensor) -> ConvergenceError:
    return ConvergenceError(
        f"laplace: the log density rises without bound: it is {value:.6g} at a distance of "
        f"{float(location.norm()):.3g}. It has no mode there; check its sign, its priors and its support."
    )


def _polish(density: LogDensity, location: Tensor, precision: DensePrecision) -> Tensor:
    """Newton steps until the gradient vanishes to working precision.

    Each step is measured by itself and by the decrement λ² = gᵀA⁻¹g, its squared length in posterior sds. Both vanish
    quadratically at a mode. On the flank of a density that rises for ever one of them does not; at a kink neither does.
    """
    previous, longest = np.inf, np.inf
    for _ in range(_MAX_NEWTON):
        value, gradient = density.value_and_gradient(location)
        step = precision.solve(gradient)
        decrement, longest = float((gradient @ step).sqrt()), float(step.abs().max())
        rounded = bool((step.abs() <= _STEP_TOLERANCE * (1.0 + location.abs())).all())
        if rounded and decrement < _ROUNDED_DECREMENT:
            return location + step
        if decrement < _ROUNDED_DECREMENT and decrement >= 0.9 * previous:
            return location
        proposed = location + step
        if not float(density.log_prob(proposed)) >= float(value) - 1e-8 * (1.0 + abs(float(value))):
            break
        location, previous = proposed, decrement
        precision = _curvature(density, location)
    raise ConvergenceError(
        f"laplace: no mode near {location.tolist()[:8]}: Newton's steps do not vanish there, the last was "
        f"{longest:.3g} long. The log density may rise without bound, or be flat at its top; add a prior, or start "
        "elsewhere."
    )


def _finite_hessian(density: LogDensity, location: Tensor) -> Tensor:
    hessian = density.hessian(location)
    if not torch.isfinite(hessian).all():
        raise NotPositiveDefiniteError(
            f"laplace: expected a finite Hessian, got NaN or infinity at {location.tolist()[:8]}. A kink, or the edge "
            "of the support, has no Laplace approximation: use transform= to move the edge to infinity."
        )
    return hessian


def _refuse_flat(hessian: Tensor, location: Tensor) -> None:
    """Raises where the Hessian is all zeros."""
    if not hessian.any():
        direction = torch.zeros_like(location)
        direction[0] = 1.0
        raise NotPositiveDefiniteError(
            f"laplace: expected a curved log density, got a Hessian of zeros at {location.tolist()[:8]}. Discrete "
            "parameters, kinks, and densities that are flat, linear or rise for ever have no Laplace approximation.",
            0.0,
            direction,
        )


def _curvature(density: LogDensity, location: Tensor) -> DensePrecision:
    """A = −∂² log p̃, refused with the reason where it is singular or indefinite."""
    matrix = -_finite_hessian(density, location)
    _refuse_flat(matrix, location)
    name = "laplace: the negative Hessian of the log density (a saddle point or a flat direction)"
    try:
        precision = DensePrecision(matrix, name=name)
    except NotPositiveDefiniteError as error:
        smallest, direction = error.smallest_eigenvalue, error.direction
        raise NotPositiveDefiniteError(
            f"{name}: expected a positive definite matrix, got the smallest eigenvalue {smallest:.6g} along "
            f"{direction.tolist()[:8]}. Start from another point, or add to the log density a term that holds this "
            "direction.",
            smallest,
            direction,
        ) from None
    scale = matrix.diagonal().rsqrt()
    values, vectors = torch.linalg.eigh(scale[:, None] * matrix * scale)
    if float(values[0]) <= _SINGULAR * location.shape[0]:
        direction = scale * vectors[:, 0]
        direction = direction / direction.norm()
        smallest = float(direction @ matrix @ direction)
        raise NotPositiveDefiniteError(
            f"{name}: expected a positive definite matrix, got curvature {smallest:.3g} along "
            f"{direction.tolist()[:8]}, which is zero to rounding. The density does not determine that direction; add "
            "a prior.",
            smallest,
            direction,
        )
    return precision


def _refuse_misshapen_at(density: LogDensity, location: Tensor, precision: DensePrecision) -> None:
    """Compares A with the fall of the log density a hundredth of a conditional sd away, on both sides of the mode.

    2 f(u) − f(u + d) − f(u − d) = dᵀA d to O(∣d∣⁴) where f is smooth. A kink falls linearly instead: autograd alone
    sees the smooth pieces on either side and reports their curvature. A maximum without curvature falls as d⁴ or
    faster, and A is the rounding of its location.
    """
    steps = _PROBE * precision.diagonal().rsqrt()
    fall = _fall(density, location, torch.diag(steps))
    wrong = ~((fall - _PROBE**2).abs() <= _PROBE_TOLERANCE * _PROBE**2 + _rounding(density, location))
    if not wrong.any():
        return
    # Without curvature a hundredth of a conditional sd is far from the mode, where the rate of the fall is another.
    steps = torch.minimum(steps, _REACH * (1.0 + location.abs()))
    far, half = _falls(density, location, steps)
    flat = wrong & (fall > _PROBE**2) & (half <= _KINKED * far + _rounding(density, location))
    index = int(torch.nonzero(wrong & ~flat if (wrong & ~flat).any() else flat)[0])
    if flat[index]:
        raise _uncurved(precision.to_dense(), location)
    raise InputError(
        f"log_density: expected a smooth maximum, got a kink in coordinate {index}: near the mode the log density "
        f"falls {float(fall[index]) / _PROBE**2:.3g} times as fast as its Hessian says. Kinks have no Laplace "
        "approximation."
    )


def _refuse_misshapen_near(density: LogDensity, location: Tensor) -> None:
    """Raises where the search has failed because of a kink, or of a maximum without curvature."""
    far, half = _falls(density, location, _REACH * (1.0 + location.abs()))
    kinked = (far > _rounding(density, location)) & (half > _KINKED * far)
    if kinked.any():
        raise InputError(
            f"log_density: expected a smooth maximum, got a kink in coordinate {int(torch.nonzero(kinked)[0])} near "
            f"{location.tolist()[:8]}. A density with a kink at its mode has no Laplace approximation."
        )
    steps = _FLAT_REACH * (1.0 + location.abs())
    far, half = _falls(density, location, steps)
    flat = (far > _rounding(density, location)) & (half < _QUARTIC * far)
    matrix = -_finite_hessian(density, location)
    # At a saddle the smallest eigenvalue is another direction's, and is not zero.
    if (flat & (torch.linalg.eigvalsh(matrix)[0].abs() * steps.square() < far)).any():
        raise _uncurved(matrix, location)


def _uncurved(matrix: Tensor, location: Tensor) -> NotPositiveDefiniteError:
    values, vectors = torch.linalg.eigh(matrix)
    return NotPositiveDefiniteError(
        f"laplace: expected a curved maximum, got a Hessian that is zero to rounding at the maximum near "
        f"{location.tolist()[:8]}: its smallest eigenvalue is {float(values[0]):.3g} along "
        f"{vectors[:, 0].tolist()[:8]}, and the log density falls faster than the distance squared, as −u⁴ does. Such "
        "a maximum has no Laplace approximation; add a prior, or sample it.",
        float(values[0]),
        vectors[:, 0],
    )


def _rounding(density: LogDensity, location: Tensor) -> float:
    """What rounding leaves of a fall of zero."""
    return 8 * float(np.finfo(np.float64).eps) * (1.0 + abs(float(density.log_prob(location))))


def _falls(density: LogDensity, location: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
    """The fall over the step along each axis, and over half of it."""
    return _fall(density, location, torch.diag(steps)), _fall(density, location, torch.diag(0.5 * steps))


def _fall(density: LogDensity, location: Tensor, steps: Tensor) -> Tensor:
    """2 f(u) − f(u + d) − f(u − d) for each row d of the steps (K, P)."""
    ahead, behind = density.log_prob(torch.cat([location + steps, location - steps])).detach().chunk(2)
    return 2.0 * density.log_prob(location).detach() - ahead - behind
