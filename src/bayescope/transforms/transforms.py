"""Transforms: invertible maps from unconstrained coordinates u to the user's coordinates x."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, final, runtime_checkable

import torch
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError, InputTypeError, OptionError
from bayescope.quadrature import normal_nodes
from bayescope.storage import stored
from bayescope.transforms.maps import Entry, Interval, Map, map_of
from bayescope.transforms.moments import elementwise_moments

NAMES = ("positive", "unit_interval", "ordered", "simplex", "cholesky_correlation", "correlation")
# Quasi-Monte-Carlo nodes for the moments of a transform that has no closed form.
MOMENT_NODES = 2**14
# Numbers of a point that a message shows.
_SHOWN = 6
# How closely a user's own transform has to agree with its inverse and with autograd's Jacobian.
_AGREEMENT = 1e-6


@runtime_checkable
class Transform(Protocol):
    """x = forward(u), with u unconstrained in ℝᴾ; all methods broadcast over leading dimensions."""

    def forward(self, u: Tensor) -> Tensor:
        """From unconstrained to the user's coordinates, shape (..., P)."""

    def inverse(self, x: Tensor) -> Tensor:
        """From the user's to unconstrained coordinates, shape (..., P)."""

    def log_jacobian(self, u: Tensor) -> Tensor:
        """The log of the volume change, log∣det ∂forward(u)/∂u∣, shape (...)."""


@stored("named_transforms")
@final
@dataclass(frozen=True)
class NamedTransforms:
    """Named transforms of groups of consecutive coordinates.

    A name transforms as follows. None is x = u; "positive" is x = exp(u); "unit_interval" is x = 1/(1 + exp(−u)); an
    `Interval` is x between two bounds; "ordered" is x_1 = u_1, x_k = x_{k−1} + exp(u_k). "between_1_and_2" and
    "up_to_a_million" are for likelihoods alone. Those that follow have fewer unconstrained coordinates than x has:

    "simplex" is x = softmax(V u), with V (K, K − 1) an orthonormal basis of the vectors whose sum is 0: the isometric
    log-ratio (Egozcue et al. 2003), so that a Gaussian over u answers alike however the K parts are numbered.

    "cholesky_correlation" is the lower triangular factor L of a K × K correlation matrix, row-major, from the
    K(K − 1)/2 canonical partial correlations tanh(u) (Lewandowski, Kurowicka & Joe 2009; Stan's reference manual,
    "Cholesky factors of correlation matrices"); "correlation" is L Lᵀ.

    Densities of these are over the `free` coordinates, which determine the others: all but the last part of a simplex,
    and what is below the diagonal of a matrix.

    Attributes:
        names: one a coordinate of x.
        groups: how many consecutive coordinates belong together, as a simplex or a matrix, one after another; by
            default each run of equal names.
    """

    names: tuple[Entry, ...]
    groups: tuple[int, ...] = ()

    def forward(self, u: Tensor) -> Tensor:
        return torch.cat([each.forward(part) for each, part in self._split(u)], dim=-1)

    def inverse(self, x: Tensor) -> Tensor:
        """u, shape (..., P'); NaN or infinite for a point outside the image."""
        pieces = x.split([size for _, _, size, _ in self.parts], dim=-1)
        return torch.cat([each.inverse(part) for (_, each, _, _), part in zip(self.parts, pieces, strict=True)], dim=-1)

    def log_jacobian(self, u: Tensor) -> Tensor:
        """log∣det ∂x/∂u∣ over the free coordinates of x, shape (...)."""
        return torch.stack([each.log_jacobian(part) for each, part in self._split(u)]).sum(0)

    def moments(self, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor] | None:
        """Moments of x = c + K h(u), with h a function of one coordinate each; ``None`` where x is no such function.

        They have closed forms for u and exp(u), and are by quadrature (1e-10) where a logistic function enters.
        """
        if any(each.kinds is None for _, each, _, _ in self.parts):
            return None
        h_mean, h_covariance = elementwise_moments(self._kinds, mean, covariance)
        shift, sums = self._affine
        return shift + sums @ h_mean, sums @ h_covariance @ sums.mT

    @property
    def free(self) -> Tensor:
        """The coordinates of x that determine the others, as many as u has, shape (P',)."""
        return torch.nonzero(torch.cat([each.free(size) for _, each, size, _ in self.parts]))[:, 0]

    @property
    def fixed(self) -> Tensor:
        """Whether a coordinate of x is the same number whatever u is, shape (P,)."""
        return torch.cat([each.fixed(size) for _, each, size, _ in self.parts])

    @property
    def parts(self) -> tuple[Part, ...]:
        """The groups of coordinates of x that belong together."""
        return _parts(self.names, self.groups)

    def outside(self, u: Tensor) -> tuple[range, str]:
        """Of a point whose u (P',) is not finite: the first coordinates of x without u, and what is expected of them.

        They are one coordinate, or a group that has no u as a whole.
        """
        place = 0
        for (_, each, size, _), (_, part) in zip(self.parts, self._split(u), strict=True):
            bad = torch.nonzero(~torch.isfinite(part))
            if len(bad):
                first, whole = place + int(bad[0]), len(part) != size
                return (range(place, place + size) if whole else range(first, first + 1)), each.range
            place += size
        raise InputError(f"transform: expected a point outside its range, got u = {u.tolist()}.")

    @property
    def _kinds(self) -> list[str]:
        """Which function of one coordinate h is: "identity", "exp" or "logistic"."""
        kinds: list[str] = []
        for _, each, size, _ in self.parts:
            first, rest = each.kinds or ("", "")
            kinds += [first, *[rest] * (size - 1)]
        return kinds

    @property
    def _affine(self) -> tuple[Tensor, Tensor]:
        """c and K: K is diagonal, but lower triangular in the groups of ordered coordinates, (P,) and (P, P)."""
        shifts, blocks = [], []
        for name, each, size, _ in self.parts:
            shift, scale = each.affine
            shifts.append(torch.full((size,), shift, dtype=torch.float64))
            eye = torch.eye(size, dtype=torch.float64)
            blocks.append(torch.ones_like(eye).tril() if name == "ordered" else scale * eye)
        return torch.cat(shifts), torch.block_diag(*blocks)

    def _split(self, u: Tensor) -> list[tuple[Map, Tensor]]:
        """The coordinates u of each group, with its map."""
        pieces = u.split([free for *_, free in self.parts], dim=-1)
        return [(each, part) for (_, each, _, _), part in zip(self.parts, pieces, strict=True)]

    def _check_stored(self) -> None:
        if sum(size for _, _, size, _ in self.parts) != len(self.names):
            raise InputError(f"transform: expected groups of {len(self.names)} coordinates, got {self.groups}.")
        for name, each, size, _ in self.parts:
            each.check(name, size)


class Part(NamedTuple):
    """Consecutive coordinates of x that belong together."""

    name: Entry
    map: Map
    size: int
    free: int


@lru_cache(maxsize=256)
def _parts(names: tuple[Entry, ...], groups: tuple[int, ...]) -> tuple[Part, ...]:
    if groups:
        starts = itertools.accumulate(groups, initial=0)
        sized = [(names[start], size) for start, size in zip(starts, groups, strict=False)]
    else:
        sized = [(name, len(list(run))) for name, run in itertools.groupby(names)]
    maps = [map_of(name) for name, _ in sized]
    return tuple(
        Part(name, each, size, int(each.free(size).sum())) for (name, size), each in zip(sized, maps, strict=True)
    )


def coordinates_of(kind: str, value: Tensor) -> Tensor:
    """The unconstrained coordinates of a parameter of any shape, shape (H,).

    Those of a "covariance" L Lᵀ, L lower triangular, are log L_ii, and L_ij/L_ii below the diagonal, which have no
    unit; of other kinds one for each number, by `NamedTransforms`.
    """
    if kind != "covariance":
        return NamedTransforms((kind,) * value.numel()).inverse(value.reshape(-1))
    factor = torch.linalg.cholesky(value)
    scales = factor.diagonal()
    row, column = torch.tril_indices(len(factor), len(factor), -1)
    return torch.cat([scales.log(), (factor / scales[:, None])[row, column]])


def parameter_at(kind: str, coordinates: Tensor, shape: torch.Size) -> Tensor:
    """The parameter with these coordinates, the inverse of `coordinates_of`."""
    if kind != "covariance":
        return NamedTransforms((kind,) * shape.numel()).forward(coordinates).reshape(shape)
    size = shape[0]
    scales, ratios = coordinates[:size].exp(), coordinates[size:]
    row, column = torch.tril_indices(size, size, -1)
    factor = scales[:, None] * torch.eye(size).to(ratios).index_put((row, column), ratios)
    return factor @ factor.mT


def resolve(transform: Any, dim: int) -> Transform | None:
    """The transform that the argument ``transform=`` of an inference means.

    Args:
        transform: ``None``; a name or an `Interval` for all coordinates; a list with one of these or ``None`` for each
            coordinate, where consecutive equal names of "ordered", "simplex", "cholesky_correlation" or "correlation"
            form one group; or an object with the methods ``forward``, ``inverse`` and ``log_jacobian``.
        dim: P.

    Returns:
        ``None`` where the coordinates are unconstrained as they are.

    Raises:
        OptionError: for an unknown name.
        InputError: if a list has another length than P, or coordinates do not make up a simplex or a matrix.
        InputTypeError: for anything else.
    """
    if transform is None:
        return None
    if isinstance(transform, str | Interval):
        return _of_names([transform] * dim)
    if isinstance(transform, Transform):
        return transform
    if not isinstance(transform, Sequence):
        raise InputTypeError(
            "transform: expected None, a name, a list with one entry a coordinate, or an object with the methods "
            f"forward, inverse and log_jacobian, got {type(transform).__name__}."
        )
    if len(transform) != dim:
        raise InputError(f"transform: expected one entry for each of the {dim} coordinates, got {len(transform)}.")
    return _of_names(transform)


def resolve_by_name(transform: Any, shapes: Mapping[str, tuple[int, ...]]) -> Transform | None:
    """The transform that ``transform=`` means for named parameters, one after another in a flat vector.

    Args:
        transform: ``None``; a name or an `Interval` for each of the parameters; a mapping from parameters to one of
            these, or to a list with one entry a number; an object with the methods ``forward``, ``inverse`` and
            ``log_jacobian`` over the flat vector. An "ordered" parameter increases and a "simplex" sums to 1 along its
            last axis; a "correlation" and a "cholesky_correlation" are matrices in the last two.
        shapes: of the parameters, by name.

    Returns:
        ``None`` where all parameters are unconstrained.

    Raises:
        OptionError: for an unknown name of a transform.
        InputError: for an unknown parameter, or one whose shape a transform does not fit.
        InputTypeError: for anything else.
    """
    if transform is None or isinstance(transform, Transform):
        return transform
    if isinstance(transform, str | Interval):
        transform = dict.fromkeys(shapes, transform)
    if not isinstance(transform, Mapping):
        raise InputTypeError(
            "transform: expected None, a name, a dict from parameters to names, or an object with the methods forward, "
            f"inverse and log_jacobian, got {type(transform).__name__}."
        )
    if unknown := [name for name in transform if name not in shapes]:
        raise OptionError.unknown("transform", unknown[0], shapes)
    names: list[Entry] = []
    groups: list[int] = []
    for parameter, shape in shapes.items():
        resolved = _of_parameter(parameter, transform.get(parameter), shape)
        names += resolved.names
        groups += [size for _, _, size, _ in resolved.parts]
    return None if set(names) == {None} else NamedTransforms(tuple(names), tuple(groups))


def _of_parameter(parameter: str, transform: Any, shape: tuple[int, ...]) -> NamedTransforms:
    """The transform of one parameter, whose last axes belong together where the name says so."""
    size = math.prod(shape)
    if isinstance(transform, str | Interval):
        name = _entry(transform)
        axes = map_of(name).axes
        if len(shape) < axes or (axes == 2 and shape[-1] != shape[-2]):
            form = "a square matrix (K, K) in the last two axes" if axes == 2 else "at least one axis"
            raise InputError(f"transform: expected {form} of {parameter!r} for {name!r}, got shape {shape}.")
        together = math.prod(shape[len(shape) - axes :]) if axes else size
        map_of(name).check(name, together)
        return NamedTransforms((name,) * size, (together,) * (size // together))
    found = resolve(transform, size)
    if found is None:
        return NamedTransforms((None,) * size)
    if not isinstance(found, NamedTransforms):
        raise InputTypeError(
            f"transform: expected a name for {parameter!r}, or a list of names, got {type(transform).__name__}. An "
            "object with forward, inverse and log_jacobian stands for all parameters, as one flat vector."
        )
    return found


def _of_names(names: Sequence[Any]) -> NamedTransforms | None:
    found = NamedTransforms(tuple(_entry(name) for name in names))
    for name, each, size, _ in found.parts:
        each.check(name, size)
    return None if set(found.names) == {None} else found


def _entry(name: Any) -> Entry:
    return name if name is None or isinstance(name, Interval) else checks.choice("transform", name, NAMES)


def free_coordinates(transform: Transform | None, dim: int) -> Tensor:
    """Which of the P = ``dim`` coordinates x determine the others: a density of x is one of these, shape (P',)."""
    return transform.free if isinstance(transform, NamedTransforms) else torch.arange(dim)


def constrained_dim(transform: Transform | None, dim: int) -> int:
    """P, the number of coordinates x of P' = ``dim`` unconstrained ones."""
    return len(transform.names) if isinstance(transform, NamedTransforms) else dim


def unconstrain(
    transform: Transform | None, x: Tensor, *, name: str = "start", coordinates: Sequence[str] = ()
) -> Tensor:
    """u = inverse(x) for points (..., P) in the user's coordinates, after checking them and the transform there.

    Args:
        transform: ``None`` where u = x.
        x: shape (..., P).
        name: of the points, for messages.
        coordinates: the names of the coordinates, where they have any.

    Raises:
        InputError: if x is outside the transform's image, or if the transform's inverse or its log-Jacobian disagrees
            with its forward map at x.
    """
    if transform is None:
        return x
    u = torch.as_tensor(transform.inverse(x))
    expected = (*x.shape[:-1], len(free_coordinates(transform, x.shape[-1])))
    if u.shape != expected:
        raise InputError(f"transform: expected inverse(x) of shape {expected}, got {tuple(u.shape)}.")
    if not torch.isfinite(u).all():
        index = tuple(torch.nonzero(~torch.isfinite(u))[0, :-1].tolist())
        raise InputError(f"{name}: {_outside(transform, u[index], x[index], coordinates)}")
    check_at(transform, u.reshape(-1, u.shape[-1])[0])
    return u


def _outside(transform: Transform, u: Tensor, x: Tensor, coordinates: Sequence[str]) -> str:
    """What was expected of a point x (P,) that has no u, and what it is."""
    if isinstance(transform, NamedTransforms):
        places, expected = transform.outside(u)
    else:
        first = int(torch.nonzero(~torch.isfinite(u))[0])
        places, expected = range(first, first + 1), "a point inside the transform's range"
    found = ", ".join(f"{value:.6g}" for value in x[places.start : places.stop].tolist()[:_SHOWN])
    more = ", …" if len(places) > _SHOWN else ""
    ends = [coordinates[k] if coordinates else str(k) for k in dict.fromkeys((places[0], places[-1]))]
    where = " to ".join(ends) if coordinates else f"coordinate{'s' * (len(ends) - 1)} {' to '.join(ends)}"
    return f"expected {expected}, got {found}{more} in {where}."


def check_at(transform: Transform, u: Tensor) -> None:
    """Checks at one point u (P',) that inverse(forward(u)) = u and that log_jacobian is log∣det ∂forward/∂u∣.

    Raises:
        InputError: if either does not hold to 1e-6.
    """
    x = transform.forward(u)
    dim = constrained_dim(transform, u.shape[0])
    if not isinstance(x, Tensor) or x.shape != (dim,):
        raise InputError(f"transform: expected forward(u) to be a tensor of shape ({dim},), got {x!r}.")
    back = transform.inverse(x)
    if not torch.allclose(back, u, rtol=_AGREEMENT, atol=_AGREEMENT):
        raise InputError(
            f"transform: expected inverse(forward(u)) = u, got {back.tolist()} for u = {u.tolist()}. "
            "inverse takes the user's coordinates and returns the unconstrained ones."
        )
    claimed = torch.as_tensor(transform.log_jacobian(u))
    jacobian = torch.func.jacrev(transform.forward)(u)[free_coordinates(transform, dim)]
    actual = torch.linalg.slogdet(jacobian).logabsdet
    if claimed.shape != actual.shape or not torch.allclose(claimed, actual, rtol=_AGREEMENT, atol=_AGREEMENT):
        raise InputError(
            f"transform: expected log_jacobian(u) = log|det ∂forward(u)/∂u| = {float(actual):.8g}, a scalar, got "
            f"{claimed.tolist()} at u = {u.tolist()}."
        )


def elementwise(transform: Transform, dim: int) -> Tensor:
    """Which coordinates x_k are monotone functions of one coordinate of u alone, bool of shape (P,), P = ``dim``.

    Quantiles go through those. Of a caller's own transform nothing is known: none.
    """
    if not isinstance(transform, NamedTransforms):
        return torch.zeros(dim, dtype=torch.bool)
    monotone = []
    for _, each, size, _ in transform.parts:
        alone = torch.full((size,), each.kinds is not None)
        if each.axes:  # "ordered": a sum of functions of one coordinate each
            alone[1:] = False
        monotone.append(alone)
    return torch.cat(monotone)


def ordered_ends(transform: Transform, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The smaller and the larger of x at two points u: a coordinate below an upper bound falls as its u rises."""
    first, second = transform.forward(low), transform.forward(high)
    return torch.minimum(first, second), torch.maximum(first, second)


def pushforward_moments(transform: Transform, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (P,) and covariance (P, P) of x = forward(u) for u ~ N(mean, covariance), u (P',).

    By closed forms and quadrature where all named transforms are of one coordinate each; otherwise by 2¹⁴ fixed
    quasi-Monte-Carlo nodes (scrambled Sobol' points, always the same), whose error in smooth cases is about 1e-4 of a
    standard deviation.
    """
    known = transform.moments(mean, covariance) if isinstance(transform, NamedTransforms) else None
    if known is not None:
        return known
    factor = torch.linalg.cholesky(covariance)
    x = transform.forward(mean + normal_nodes(mean.shape[0], MOMENT_NODES) @ factor.mT)
    centre = x.mean(0)
    return centre, (x - centre).mT @ (x - centre) / x.shape[0]
