"""Transforms: invertible maps from unconstrained coordinates u to the user's coordinates x."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, final, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from bayescope import checks
from bayescope.errors import InputError, InputTypeError
from bayescope.quadrature import activation_nodes, normal_nodes
from bayescope.storage import stored

NAMES = ("positive", "unit_interval", "ordered")
# Quasi-Monte-Carlo nodes for the moments of a transform that has no closed form.
MOMENT_NODES = 2**14
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
    """Named transforms of consecutive coordinates: x = K h(u), with h a function of one coordinate each.

    A name transforms as follows: None is x = u; "positive" is x = exp(u); "unit_interval" is x = 1/(1 + exp(−u));
    "ordered" is x_1 = u_1, x_k = x_{k−1} + exp(u_k), for each run of consecutive such coordinates; "between_1_and_2" is
    x = 1.01 + .98/(1 + exp(−u)), which is for likelihoods alone and has no moments.

    Attributes:
        names: one a coordinate.
    """

    names: tuple[str | None, ...]

    def forward(self, u: Tensor) -> Tensor:
        return torch.cat([_MAPS[name].forward(part) for name, part in self._runs(u)], dim=-1)

    def inverse(self, x: Tensor) -> Tensor:
        """u, shape (..., P); NaN or infinite for a point outside the image."""
        return torch.cat([_MAPS[name].inverse(part) for name, part in self._runs(x)], dim=-1)

    def log_jacobian(self, u: Tensor) -> Tensor:
        """Σ u over "positive" and all but the first "ordered", Σ log x(1 − x) over "unit_interval", shape (...)."""
        parts = [_MAPS[name].log_jacobian(part) for name, part in self._runs(u)]
        return torch.stack(parts).sum(0)

    def moments(self, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
        """Moments of K h(u): closed forms for u and exp(u), quadrature (1e-10) where a logistic function enters."""
        kinds = self._kinds
        h_mean, h_covariance = _elementwise_moments(kinds, mean, covariance)
        sums = self._sums
        return sums @ h_mean, sums @ h_covariance @ sums.mT

    @property
    def _kinds(self) -> list[str]:
        """Which function of one coordinate h is: "identity", "exp" or "logistic"."""
        kinds = []
        for name, run in itertools.groupby(self.names):
            kinds += [_MAPS[name].first, *[_MAPS[name].rest for _ in list(run)[1:]]]
        return kinds

    @property
    def _sums(self) -> Tensor:
        """K: the identity, but lower triangular ones in the blocks of ordered coordinates, shape (P, P)."""
        blocks = []
        for name, run in itertools.groupby(self.names):
            size = len(list(run))
            ones = torch.ones(size, size, dtype=torch.float64)
            blocks.append(ones.tril() if name == "ordered" else torch.eye(size, dtype=torch.float64))
        return torch.block_diag(*blocks)

    def _runs(self, values: Tensor) -> list[tuple[str | None, Tensor]]:
        sizes = [(name, len(list(run))) for name, run in itertools.groupby(self.names)]
        parts = values.split([size for _, size in sizes], dim=-1)
        return [(name, part) for (name, _), part in zip(sizes, parts, strict=True)]


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


class _Map(NamedTuple):
    """What a name means for a run of coordinates (..., n), and which function of one coordinate h is in it."""

    forward: Callable[[Tensor], Tensor]
    inverse: Callable[[Tensor], Tensor]
    log_jacobian: Callable[[Tensor], Tensor]
    first: str
    rest: str


def _ordered_forward(u: Tensor) -> Tensor:
    return torch.cat([u[..., :1], u[..., 1:].exp()], dim=-1).cumsum(-1)


def _ordered_inverse(x: Tensor) -> Tensor:
    return torch.cat([x[..., :1], (x[..., 1:] - x[..., :-1]).log()], dim=-1)


_MAPS: dict[str | None, _Map] = {
    None: _Map(lambda u: u, lambda x: x, lambda u: torch.zeros_like(u[..., 0]), "identity", "identity"),
    "positive": _Map(lambda u: u.exp(), lambda x: x.log(), lambda u: u.sum(-1), "exp", "exp"),
    "unit_interval": _Map(
        lambda u: u.sigmoid(),
        lambda x: x.logit(),
        lambda u: (logsigmoid(u) + logsigmoid(-u)).sum(-1),
        "logistic",
        "logistic",
    ),
    "between_1_and_2": _Map(
        lambda u: 1.01 + 0.98 * u.sigmoid(),
        lambda x: ((x - 1.01) / 0.98).logit(),
        lambda u: (math.log(0.98) + logsigmoid(u) + logsigmoid(-u)).sum(-1),
        "none",
        "none",
    ),
    "up_to_a_million": _Map(
        lambda u: 1e6 * (u - math.log(1e6)).sigmoid(),
        lambda x: x.log() - torch.log1p(-1e-6 * x),
        lambda u: (math.log(1e6) + logsigmoid(u - math.log(1e6)) + logsigmoid(math.log(1e6) - u)).sum(-1),
        "none",
        "none",
    ),
    "ordered": _Map(_ordered_forward, _ordered_inverse, lambda u: u[..., 1:].sum(-1), "identity", "exp"),
}


def resolve(transform: Any, dim: int) -> Transform | None:
    """The transform that the argument ``transform=`` of an inference means.

    Args:
        transform: ``None``; a name for all coordinates ("positive", "unit_interval", "ordered"); a list with a name or
            ``None`` for each coordinate, where consecutive "ordered" ones form one increasing group; or an object
            with the methods ``forward``, ``inverse`` and ``log_jacobian``.
        dim: P.

    Returns:
        ``None`` where the coordinates are unconstrained as they are.

    Raises:
        OptionError: for an unknown name.
        InputError: if a list has another length than P.
        InputTypeError: for anything else.
    """
    if transform is None:
        return None
    if isinstance(transform, str):
        return NamedTransforms((checks.choice("transform", transform, NAMES),) * dim)
    if isinstance(transform, Transform):
        return transform
    if not isinstance(transform, Sequence):
        raise InputTypeError(
            "transform: expected None, a name, a list with one entry a coordinate, or an object with the methods "
            f"forward, inverse and log_jacobian, got {type(transform).__name__}."
        )
    if len(transform) != dim:
        raise InputError(f"transform: expected one entry for each of the {dim} coordinates, got {len(transform)}.")
    names = tuple(name if name is None else checks.choice("transform", name, NAMES) for name in transform)
    return None if set(names) == {None} else NamedTransforms(names)


def unconstrain(transform: Transform | None, x: Tensor, *, name: str = "start") -> Tensor:
    """u = inverse(x) for points (..., P) in the user's coordinates, after checking them and the transform there.

    Raises:
        InputError: if x is outside the transform's image, or if the transform's inverse or its log-Jacobian disagrees
            with its forward map at x.
    """
    if transform is None:
        return x
    u = torch.as_tensor(transform.inverse(x))
    if u.shape != x.shape:
        raise InputError(f"transform: expected inverse(x) of shape {tuple(x.shape)}, got {tuple(u.shape)}.")
    if not torch.isfinite(u).all():
        index = torch.nonzero(~torch.isfinite(u))[0].tolist()
        raise InputError(
            f"{name}: expected a point inside the transform's range, got {float(x[tuple(index)]):.6g} in coordinate "
            f"{index[-1]}."
        )
    check_at(transform, u.reshape(-1, u.shape[-1])[0])
    return u


def check_at(transform: Transform, u: Tensor) -> None:
    """Checks at one point u (P,) that inverse(forward(u)) = u and that log_jacobian is log∣det ∂forward/∂u∣.

    Raises:
        InputError: if either does not hold to 1e-6.
    """
    x = transform.forward(u)
    if not isinstance(x, Tensor) or x.shape != u.shape:
        raise InputError(f"transform: expected forward(u) to be a tensor of shape {tuple(u.shape)}, got {x!r}.")
    back = transform.inverse(x)
    if not torch.allclose(back, u, rtol=_AGREEMENT, atol=_AGREEMENT):
        raise InputError(
            f"transform: expected inverse(forward(u)) = u, got {back.tolist()} for u = {u.tolist()}. "
            "inverse takes the user's coordinates and returns the unconstrained ones."
        )
    claimed = torch.as_tensor(transform.log_jacobian(u))
    actual = torch.linalg.slogdet(torch.func.jacrev(transform.forward)(u)).logabsdet
    if claimed.shape != actual.shape or not torch.allclose(claimed, actual, rtol=_AGREEMENT, atol=_AGREEMENT):
        raise InputError(
            f"transform: expected log_jacobian(u) = log|det ∂forward(u)/∂u| = {float(actual):.8g}, a scalar, got "
            f"{claimed.tolist()} at u = {u.tolist()}."
        )


def elementwise(transform: Transform, dim: int) -> Tensor:
    """Which coordinates x_k are increasing functions of u_k alone, bool of shape (P,): quantiles go through those.

    Of a caller's own transform nothing is known: none.
    """
    if not isinstance(transform, NamedTransforms):
        return torch.zeros(dim, dtype=torch.bool)
    first = [len(list(run)) for _, run in itertools.groupby(transform.names)]
    starts = set(itertools.accumulate(first, initial=0))
    return torch.tensor([name != "ordered" or place in starts for place, name in enumerate(transform.names)])


def pushforward_moments(transform: Transform, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (P,) and covariance (P, P) of x = forward(u) for u ~ N(mean, covariance).

    By the moments of the named transforms; for others by 2¹⁴ fixed quasi-Monte-Carlo nodes (scrambled Sobol' points,
    always the same), whose error in smooth cases is about 1e-4 of a standard deviation.
    """
    if isinstance(transform, NamedTransforms):
        return transform.moments(mean, covariance)
    factor = torch.linalg.cholesky(covariance)
    x = transform.forward(mean + normal_nodes(mean.shape[0], MOMENT_NODES) @ factor.mT)
    centre = x.mean(0)
    return centre, (x - centre).mT @ (x - centre) / x.shape[0]


def _elementwise_moments(kinds: Sequence[str], mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of h(u), h_i one of u, exp(u) and σ(u), for u ~ N(mean, covariance).

    Every covariance with u or exp(u) is one-dimensional: Cov(u_i, h(u_j)) = Σ_ij E[h'(u_j)] (Stein), and weighting with
    exp(u_i) moves the mean by Σ_i (tilting): E[exp(u_i) h(u_j)] = E[exp(u_i)] E[h(u_j + Σ_ij)].
    """
    identity, exp, logistic = (torch.tensor([kind == k for kind in kinds]) for k in ("identity", "exp", "logistic"))
    variance = covariance.diagonal()
    exp_mean = torch.where(exp, mean + 0.5 * variance, 0.0).exp()
    sigma = torch.zeros_like(mean)
    slope = torch.ones_like(mean)
    sigma[logistic] = _expected(torch.sigmoid, mean[logistic], variance[logistic])
    slope[logistic] = _expected(_sigmoid_slope, mean[logistic], variance[logistic])
    slope[exp] = exp_mean[exp]
    h_mean = torch.where(identity, mean, torch.where(exp, exp_mean, sigma))

    h_covariance = covariance * slope * slope[:, None]  # right where one of the two is u itself; the rest follows
    both = exp[:, None] & exp
    products = exp_mean[:, None] * exp_mean * torch.where(both, covariance, 0.0).expm1()
    h_covariance = torch.where(both, products, h_covariance)
    _fill(h_covariance, exp, logistic, _exp_logistic(mean, covariance, exp_mean, sigma, exp, logistic))
    _fill(h_covariance, logistic, logistic, _logistic_logistic(mean[logistic], covariance[logistic][:, logistic]))
    return h_mean, h_covariance


def _fill(matrix: Tensor, rows: Tensor, columns: Tensor, block: Tensor) -> None:
    r, c = torch.nonzero(rows)[:, 0], torch.nonzero(columns)[:, 0]
    matrix[r[:, None], c] = block
    matrix[c[:, None], r] = block.mT


def _exp_logistic(
    mean: Tensor, covariance: Tensor, exp_mean: Tensor, sigma: Tensor, exp: Tensor, logistic: Tensor
) -> Tensor:
    """Cov(exp(u_i), σ(u_j)) = E[exp(u_i)] (E[σ(u_j + Σ_ij)] − E[σ(u_j)]), one row per exp coordinate."""
    cross = covariance[exp][:, logistic]
    tilted = _expected(torch.sigmoid, mean[logistic] + cross, covariance.diagonal()[logistic].expand_as(cross))
    return exp_mean[exp][:, None] * (tilted - sigma[logistic])


def _logistic_logistic(mean: Tensor, covariance: Tensor) -> Tensor:
    """Cov(σ(u_i), σ(u_j)) = ∫ (σ(a) − E σ(u_i)) E[σ(u_j)∣u_i = a] N(a) da, the inner expectation by quadrature too."""
    variance = covariance.diagonal()
    nodes, log_weights = activation_nodes(mean, variance)  # (K, S)
    sigmoid = torch.sigmoid(nodes)
    weights = log_weights.exp()
    centred = weights * (sigmoid - (weights * sigmoid).sum(-1, keepdim=True))
    rows = []
    for i in range(mean.shape[0]):
        gain = covariance[i] / variance[i]
        inner_mean = mean[:, None] + gain[:, None] * (nodes[i] - mean[i])  # (K, S)
        inner_variance = (variance - gain * covariance[i]).clamp_min(0.0)  # rounding alone makes it negative (i = j)
        inner = _expected(torch.sigmoid, inner_mean, inner_variance[:, None].expand_as(inner_mean))
        rows.append(inner @ centred[i])
    result = torch.stack(rows) if rows else covariance
    return 0.5 * (result + result.mT)


def _expected(h: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor) -> Tensor:
    nodes, log_weights = activation_nodes(mean, variance)
    return (log_weights.exp() * h(nodes)).sum(-1)


def _sigmoid_slope(u: Tensor) -> Tensor:
    return torch.sigmoid(u) * torch.sigmoid(-u)
