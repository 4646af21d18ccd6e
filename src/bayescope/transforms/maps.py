"""Maps by name: from unconstrained coordinates to positive numbers, intervals, simplexes and correlation matrices."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from bayescope import checks
from bayescope.errors import InputError
from bayescope.storage import stored

# How far numbers may be from those that a transform reaches: the sum of a simplex from 1, the length of a row from 1.
# Numbers in float32 are that far off.
_ON_RANGE = 1e-6


@stored("interval")
@final
@dataclass(frozen=True)
class Interval:
    """The numbers between two bounds, as an entry of ``transform=``; `between` makes one.

    Attributes:
        low: the lower bound; ``None`` for none.
        high: the upper bound; ``None`` for none.
    """

    low: float | None
    high: float | None


def between(low: float | None = None, high: float | None = None) -> Interval:
    """The transform of a coordinate that lies between two bounds, or on one side of one.

    With both bounds x = low + (high − low)/(1 + exp(−u)); with one of them x = low + exp(u), or x = high − exp(u).

    Args:
        low: the lower bound; ``None`` for none.
        high: the upper bound; ``None`` for none.

    Returns:
        An entry for ``transform=``, such as ``transform={"age": bs.density.between(0.0, 120.0)}``.

    Raises:
        InputError: if a bound is no finite number, there is none, or the lower is not below the upper.
    """
    bounds = [bound if bound is None else float(checks.float64("between", bound)) for bound in (low, high)]
    below, above = bounds
    if below is None and above is None:
        raise InputError("between: expected a lower or an upper bound, got neither. Leave the transform out.")
    if below is not None and above is not None and not below < above:
        raise InputError(f"between: expected a lower bound below the upper one, got {below:g} and {above:g}.")
    return Interval(below, above)


# What one coordinate may have for a transform.
Entry = str | Interval | None


def _all(size: int) -> Tensor:
    return torch.ones(size, dtype=torch.bool)


def _none(size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.bool)


class Map(NamedTuple):
    """What a name means for a group of coordinates (..., n).

    Attributes:
        forward: x of u.
        inverse: u of x, NaN or infinite outside the range.
        log_jacobian: log∣det ∂x/∂u∣ over the free coordinates.
        range: what x is, for messages.
        kinds: which function of one coordinate stands for the first of the group and which for the others; ``None``
            where x mixes them in another way than by sums.
        affine: (c, k) of x = c + k h(u).
        axes: how many axes of a parameter belong together: none, a vector's or a matrix's two.
        free: which of n coordinates of x determine the others.
        fixed: which of n coordinates of x are always the same.
    """

    forward: Callable[[Tensor], Tensor]
    inverse: Callable[[Tensor], Tensor]
    log_jacobian: Callable[[Tensor], Tensor]
    range: str
    kinds: tuple[str, str] | None = None
    affine: tuple[float, float] = (0.0, 1.0)
    axes: int = 0
    free: Callable[[int], Tensor] = _all
    fixed: Callable[[int], Tensor] = _none

    def check(self, name: Entry, size: int) -> None:
        """Checks how many coordinates belong together.

        Raises:
            InputError: if a simplex has fewer than two, or a matrix is not square or has fewer than two rows.
        """
        if self.axes == 2 and (math.isqrt(size) ** 2 != size or size < 4):
            raise InputError(f"transform: expected K × K coordinates with K ≥ 2 for {name!r}, got {size}.")
        if name == "simplex" and size < 2:
            raise InputError("transform: expected a 'simplex' of at least 2 coordinates, got 1, which is always 1.")


def _ordered_forward(u: Tensor) -> Tensor:
    return torch.cat([u[..., :1], u[..., 1:].exp()], dim=-1).cumsum(-1)


def _ordered_inverse(x: Tensor) -> Tensor:
    return torch.cat([x[..., :1], (x[..., 1:] - x[..., :-1]).log()], dim=-1)


@cache
def _within(low: float | None, high: float | None) -> Map:
    """x between two bounds, or on one side of one."""
    if low is not None and high is not None:
        width, text = high - low, f"numbers between {low:g} and {high:g}"
        return Map(
            lambda u: low + width * u.sigmoid(),
            lambda x: ((x - low) / width).logit(),
            lambda u: (math.log(width) + logsigmoid(u) + logsigmoid(-u)).sum(-1),
            text,
            ("logistic", "logistic"),
            (low, width),
        )
    bound, sign = (low, 1.0) if low is not None else (high or 0.0, -1.0)
    return Map(
        lambda u: bound + sign * u.exp(),
        lambda x: (sign * (x - bound)).log(),
        lambda u: u.sum(-1),
        f"numbers {'above' if sign > 0 else 'below'} {bound:g}",
        ("exp", "exp"),
        (bound, sign),
    )


@cache
def _contrasts(size: int) -> np.ndarray:
    """V, an orthonormal basis of the vectors with sum 0 (Helmert's contrasts), shape (K, K − 1).

    It is no tensor, because one that was made in torch's inference mode could never be differentiated again.
    """
    order = np.arange(1.0, size)
    columns = np.triu(np.ones((size, size - 1)))
    columns[np.arange(1, size), np.arange(size - 1)] = -order
    return columns / np.sqrt(order * (order + 1.0))


def _simplex_inverse(x: Tensor) -> Tensor:
    inside = ((x.sum(-1, keepdim=True) - 1.0).abs() <= _ON_RANGE) & (x > 0).all(-1, keepdim=True)
    return torch.where(inside, x.log(), math.nan) @ torch.from_numpy(_contrasts(x.shape[-1]))


def _log_parts(u: Tensor) -> Tensor:
    """The logarithm of a simplex, log softmax(V u), shape (..., K)."""
    return (u @ torch.from_numpy(_contrasts(u.shape[-1] + 1)).mT).log_softmax(-1)


def _simplex_log_jacobian(u: Tensor) -> Tensor:
    """½ log K + Σ log x_k, for the first K − 1 coordinates of x."""
    return 0.5 * math.log(u.shape[-1] + 1) + _log_parts(u).sum(-1)


@cache
def _places(pairs: int) -> np.ndarray:
    """Of the K rows with this many pairs: which u stands at each place below a matrix's diagonal, shape (K, K)."""
    size = (1 + math.isqrt(1 + 8 * pairs)) // 2
    places = np.zeros((size, size), dtype=np.int64)
    places[np.tril_indices(size, -1)] = np.arange(pairs)
    return places


def _triangle(pairs: int) -> tuple[Tensor, Tensor]:
    """The places (K, K) of the pairs, and a mask of what is below the diagonal."""
    places = torch.from_numpy(_places(pairs))
    return places, torch.ones_like(places, dtype=torch.bool).tril(-1)


def _partial(u: Tensor) -> tuple[Tensor, Tensor]:
    """Partial correlations z (..., K, K), zero where none are, and log √(1 − z²) summed over the columns before."""
    places, below = _triangle(u.shape[-1])
    spread = torch.where(below, u[..., places], 0.0)
    # log(1 − tanh² u), right in the tails.
    log_rest = 0.5 * torch.where(below, math.log(4.0) + logsigmoid(2.0 * spread) + logsigmoid(-2.0 * spread), 0.0)
    return spread.tanh(), log_rest.cumsum(-1) - log_rest


def _factor(u: Tensor) -> Tensor:
    """L, shape (..., K, K): L_ij = z_ij Π_{k<j} √(1 − z_ik²), and L_ii the whole product."""
    partial, log_before = _partial(u)
    return (partial + torch.eye(partial.shape[-1]).to(u)) * log_before.exp()


def _correlation(u: Tensor) -> Tensor:
    """L Lᵀ, shape (..., K, K), with a diagonal of exactly 1."""
    factor = _factor(u)
    return torch.where(torch.eye(factor.shape[-1], dtype=torch.bool), 1.0, factor @ factor.mT)


def _factor_log_jacobian(u: Tensor) -> Tensor:
    """Σ_{i>j} log(1 − z_ij²) + ½ Σ_{i>j} Σ_{k<j} log(1 − z_ik²), for the elements below the diagonal."""
    _, log_before = _partial(u)
    _, below = _triangle(u.shape[-1])
    own = (math.log(4.0) + logsigmoid(2.0 * u) + logsigmoid(-2.0 * u)).sum(-1)
    return own + torch.where(below, log_before, 0.0).sum((-2, -1))


def _correlation_log_jacobian(u: Tensor) -> Tensor:
    """That of L, and Σ_j (K − j) log L_jj for the step from L to L Lᵀ."""
    _, log_before = _partial(u)
    log_diagonal = log_before.diagonal(dim1=-2, dim2=-1)
    times = torch.arange(log_diagonal.shape[-1] - 1, -1, -1).to(u)
    return _factor_log_jacobian(u) + (times * log_diagonal).sum(-1)


def _factor_inverse(x: Tensor) -> Tensor:
    return _coordinates_of_factor(_square(x))


def _correlation_inverse(x: Tensor) -> Tensor:
    matrix = _square(x)
    symmetric = ((matrix - matrix.mT).abs() <= _ON_RANGE).flatten(-2).all(-1)
    factor, info = torch.linalg.cholesky_ex(0.5 * (matrix + matrix.mT))
    return _coordinates_of_factor(torch.where((symmetric & (info == 0))[..., None, None], factor, math.nan))


def _coordinates_of_factor(factor: Tensor) -> Tensor:
    """u of L: sinh u_ij = L_ij/√(Σ_{k>j} L_ik²), the rest of row i; NaN if L is no factor of a correlation matrix."""
    squares = factor.square()
    rest = squares.flip(-1).cumsum(-1).flip(-1) - squares
    rows = ((squares.sum(-1) - 1.0).abs() <= _ON_RANGE).all(-1)
    lower = (factor.triu(1).abs() <= _ON_RANGE).flatten(-2).all(-1)
    inside = rows & lower & (factor.diagonal(dim1=-2, dim2=-1) > 0).all(-1)
    _, below = _triangle(factor.shape[-1] * (factor.shape[-1] - 1) // 2)
    return torch.where(inside[..., None], (factor / rest.sqrt()).asinh()[..., below], math.nan)


def _square(x: Tensor) -> Tensor:
    return x.unflatten(-1, (math.isqrt(x.shape[-1]), -1))


def _below(size: int) -> Tensor:
    rows = math.isqrt(size)
    return torch.ones(rows, rows, dtype=torch.bool).tril(-1).flatten()


def _fixed_in_factor(size: int) -> Tensor:
    rows = math.isqrt(size)
    fixed = torch.ones(rows, rows, dtype=torch.bool).triu(1)
    fixed[0, 0] = True
    return fixed.flatten()


def map_of(name: Entry) -> Map:
    return _within(name.low, name.high) if isinstance(name, Interval) else _MAPS[name]


_MAPS: dict[str | None, Map] = {
    None: Map(
        lambda u: u, lambda x: x, lambda u: torch.zeros_like(u[..., 0]), "finite numbers", ("identity", "identity")
    ),
    "positive": _within(0.0, None)._replace(range="positive numbers"),
    "unit_interval": _within(0.0, 1.0),
    "between_1_and_2": _within(1.01, 1.99),
    "up_to_a_million": Map(
        lambda u: 1e6 * (u - math.log(1e6)).sigmoid(),
        lambda x: x.log() - torch.log1p(-1e-6 * x),
        lambda u: (math.log(1e6) + logsigmoid(u - math.log(1e6)) + logsigmoid(math.log(1e6) - u)).sum(-1),
        "positive numbers up to a million",
    ),
    "ordered": Map(
        _ordered_forward,
        _ordered_inverse,
        lambda u: u[..., 1:].sum(-1),
        "numbers that increase",
        ("identity", "exp"),
        axes=1,
    ),
    "simplex": Map(
        lambda u: _log_parts(u).exp(),
        _simplex_inverse,
        _simplex_log_jacobian,
        "positive numbers whose sum is 1",
        axes=1,
        free=lambda size: torch.arange(size) < size - 1,
    ),
    "cholesky_correlation": Map(
        lambda u: _factor(u).flatten(-2),
        _factor_inverse,
        _factor_log_jacobian,
        "a lower triangular matrix with a positive diagonal and rows of length 1",
        axes=2,
        free=_below,
        fixed=_fixed_in_factor,
    ),
    "correlation": Map(
        lambda u: _correlation(u).flatten(-2),
        _correlation_inverse,
        _correlation_log_jacobian,
        "a symmetric positive definite matrix with a diagonal of ones",
        axes=2,
        free=_below,
        fixed=lambda size: torch.eye(math.isqrt(size), dtype=torch.bool).flatten(),
    ),
}
