"""The Kullback–Leibler divergence: in closed form for Gaussians, by quadrature in one and two dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from bayescope.density.problem import LogProb, WithDensity, pose
from bayescope.errors import ConvergenceError, ConvergenceWarning, UnsupportedError, warn
from bayescope.posterior import GaussianPosterior, MixturePosterior, Parameters
from bayescope.process_state import one_thread
from bayescope.transforms import Transform, free_coordinates

# Nodes per axis of the grids that find a density's mass, and of those that integrate, each twice the last.
_SCAN = {1: 4001, 2: 161}
_GRIDS = {1: [2**k + 1 for k in range(10, 19)], 2: [2**k + 1 for k in range(6, 12)]}
# Below its maximum by more than this, a log density counts as zero: e⁻⁵⁰ = 2e-22.
_DEPTH = 50.0
_DOUBLINGS, _ZOOMS = 60, 12
# Two grids that agree to the first are converged; the second is still worth returning, with a warning.
_TOLERANCE, _LOOSE = 1e-8, 1e-3


Side = WithDensity | LogProb


def kl(p: Side, q: Side) -> Tensor:
    """KL(p‖q) = ∫ p log(p/q), in nats, a float64 scalar.

    For two Gaussian posteriors with the same transform, with precisions Λ and covariances Σ in unconstrained
    coordinates, ½(tr Λ_q Σ_p + (m_q − m_p)ᵀ Λ_q (m_q − m_p) − P + log∣Λ_p∣ − log∣Λ_q∣). Otherwise, in one and two
    dimensions, by trapezoidal sums over a box that holds p down to e⁻⁵⁰ of its maximum, on grids that are refined until
    two agree to 1e-8. The box is sought from the posterior's mean outwards; a peak much narrower than 1/100 of the
    distance to it can be missed. The integral runs over p's unconstrained coordinates, or over q's where p is a
    function: a function is taken, and normalised, over the range of the other's transform.

    Args:
        p: a posterior with a density (Gaussian or mixture), or a function from a float64 tensor (P,) in the user's
            coordinates to a log density, which is normalised numerically over its own box.
        q: the same; at least one of the two is a posterior.

    Raises:
        UnsupportedError: for draws and points, for two bare functions, and above two dimensions.
        ConvergenceError: if a function cannot be normalised or the grids do not agree.

    Warns:
        ConvergenceWarning: if the finest two grids agree to 1e-3 and not to 1e-8.
    """
    if isinstance(p, GaussianPosterior) and isinstance(q, GaussianPosterior) and p.transform == q.transform:
        return _between_gaussians(p, q)
    with one_thread():  # the sums are cheap for a point and many: threads wait for each other longer than they work
        return _integrated(p, q)


def _integrated(p: Side, q: Side) -> Tensor:
    """The divergence KL(p‖q) by quadrature over one or two coordinates."""
    frame = _frame(p, q)
    log_p, log_q = _coordinates(p, frame), _coordinates(q, frame)
    box_p = _box(log_p, frame)
    normaliser_p = _zero if isinstance(p, WithDensity) else _log_integral(log_p, box_p)
    normaliser_q = _zero if isinstance(q, WithDensity) else _log_integral(log_q, _box(log_q, frame))

    def integral(nodes: int) -> Tensor:
        points, log_cell = _grid(box_p, nodes)
        a, b = log_p(points) - normaliser_p, log_q(points) - normaliser_q
        return torch.where(a > -math.inf, (a + log_cell).exp() * (a - b), 0.0).sum()

    return _refined("kl", integral, frame.dim)


def _between_gaussians(p: GaussianPosterior, q: GaussianPosterior) -> Tensor:
    if p.precision.dim != q.precision.dim or p.sizes != q.sizes:
        raise UnsupportedError(f"kl: expected equal dimensions, got {p.precision.dim} and {q.precision.dim}.")
    root = p.precision.sqrt_solve(torch.eye(p.precision.dim, dtype=torch.float64))
    trace = (root * q.precision.multiply(root)).sum()
    offset = q.location - p.location
    quadratic = offset @ q.precision.multiply(offset)
    return 0.5 * (trace + quadratic - p.precision.dim + p.precision.logdet() - q.precision.logdet())


_zero = torch.zeros((), dtype=torch.float64)


@final
@dataclass(frozen=True)
class _IntegralFrame:
    """The coordinates u of the integral, and where to begin looking for mass in them."""

    transform: Transform | None
    centre: Tensor
    scale: Tensor
    of: Parameters | int

    @property
    def dim(self) -> int:
        return self.centre.shape[0]


def _frame(p: Side, q: Side) -> _IntegralFrame:
    known = [side for side in (p, q) if isinstance(side, WithDensity)]
    for side in (p, q):
        if not isinstance(side, WithDensity) and not callable(side):
            raise UnsupportedError(
                f"kl: expected posteriors with a density (Gaussian or mixture) or functions, got {type(side).__name__}."
            )
    if not known:
        raise UnsupportedError("kl: expected at least one posterior, got two functions, whose mass could be anywhere.")
    frames = [_own_frame(side) for side in known]
    dim = frames[0].dim
    for side, frame in zip(known, frames, strict=True):
        if side.sizes != known[0].sizes or not torch.equal(_free(side), _free(known[0])):
            raise UnsupportedError(
                "kl: expected densities over the same coordinates, got one over "
                f"{dim} of {known[0].sizes[0]} and one over {frame.dim} of {side.sizes[0]}."
            )
    if dim > 2:
        raise UnsupportedError(
            f"kl: expected two Gaussian posteriors with the same transform, or one or two dimensions, got {dim}."
        )
    # Its own coordinates show all of p; a function, which has none, is taken over the range of the other's.
    return frames[0]


def _own_frame(side: WithDensity) -> _IntegralFrame:
    """The coordinates in which a posterior is Gaussian, or a mixture of Gaussians."""
    gaussian, of = _gaussian(side), side.record.parameters or side.sizes[0]
    if gaussian is not None and gaussian.transform is not None:
        sd = gaussian.precision.marginal_variance().sqrt()
        return _IntegralFrame(gaussian.transform, gaussian.location, sd, of)
    return _IntegralFrame(None, side.mean, side.sd, of)


def _gaussian(side: WithDensity) -> GaussianPosterior | None:
    first = side.components[0] if isinstance(side, MixturePosterior) else side
    return first if isinstance(first, GaussianPosterior) else None


def _free(side: WithDensity) -> Tensor:
    """The coordinates that its density is one over."""
    gaussian = _gaussian(side)
    return free_coordinates(None if gaussian is None else gaussian.transform, side.sizes[0])


def _coordinates(side: Side, frame: _IntegralFrame) -> Callable[[Tensor], Tensor]:
    """The log density over u, −∞ where it is undefined."""
    density = side if isinstance(side, WithDensity) else pose(side, frame.of).target

    @torch.no_grad()
    def log_density(u: Tensor) -> Tensor:
        x = u if frame.transform is None else frame.transform.forward(u)
        value = density.log_prob(x)
        value = value if frame.transform is None else value + frame.transform.log_jacobian(u)
        return torch.where(value.isnan(), -math.inf, value)

    return log_density


def _box(log_density: Callable[[Tensor], Tensor], frame: _IntegralFrame) -> Tensor:
    """(low, high), shape (2, P): doubled until its faces are empty, then cut to what lies within the depth."""
    half = 10.0 * frame.scale
    box = torch.stack([frame.centre - half, frame.centre + half])
    for _ in range(_DOUBLINGS):
        points, values = _scanned(log_density, box)
        held = points[values > values.max() - _DEPTH]
        edge = ((held <= box[0]) | (held >= box[1])).any(0)
        if not edge.any():
            break
        half = torch.where(edge, 2.0 * half, half)
        box = torch.stack([frame.centre - half, frame.centre + half])
    else:
        raise ConvergenceError("kl: a log density does not fall off in any direction: it cannot be normalised.")
    for _ in range(_ZOOMS):
        points, values = _scanned(log_density, box)
        held = points[values > values.max() - _DEPTH]
        cell = (box[1] - box[0]) / (_SCAN[frame.dim] - 1)
        tighter = torch.stack([held.amin(0) - cell, held.amax(0) + cell])
        if bool(((tighter[1] - tighter[0]) > 0.9 * (box[1] - box[0])).all()):
            break
        box = tighter
    return box


def _scanned(log_density: Callable[[Tensor], Tensor], box: Tensor) -> tuple[Tensor, Tensor]:
    points, _ = _grid(box, _SCAN[box.shape[1]])
    values = log_density(points)
    if not torch.isfinite(values.max()):
        raise ConvergenceError(f"kl: expected a positive and finite density near {box.mean(0).tolist()}, got none.")
    return points, values


def _grid(box: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """All points of a grid (n, P) and the log volume of its cells: no mass on the faces, so all weights are equal."""
    axes = [torch.linspace(float(low), float(high), nodes, dtype=torch.float64) for low, high in box.mT]
    points = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, box.shape[1])
    return points, ((box[1] - box[0]) / (nodes - 1)).log().sum()


def _log_integral(log_density: Callable[[Tensor], Tensor], box: Tensor) -> Tensor:
    def integral(nodes: int) -> Tensor:
        points, log_cell = _grid(box, nodes)
        return torch.logsumexp(log_density(points), 0) + log_cell

    return _refined("kl: the normaliser", integral, box.shape[1])


def _refined(name: str, integral: Callable[[int], Tensor], dim: int) -> Tensor:
    """The integral on grids that are doubled until two agree."""
    previous = integral(_GRIDS[dim][0])
    difference = math.inf
    for nodes in _GRIDS[dim][1:]:
        current = integral(nodes)
        difference = abs(float(current - previous)) if torch.isfinite(current) else 0.0
        if difference <= _TOLERANCE * (1.0 + abs(float(current))):
            return current
        previous = current
    if difference > _LOOSE * (1.0 + abs(float(previous))):
        raise ConvergenceError(
            f"{name}: the two finest grids differ by {difference:.2g}. Are there jumps, or heavy tails?"
        )
    warn(f"{name}: right to about {difference:.1g} only.", ConvergenceWarning)
    return previous
