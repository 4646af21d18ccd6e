"""A likelihood from a function log p(y∣f): derivatives by autograd, everything else by sums over y and over f."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NoReturn, Self, final

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError, InputTypeError, OptionError, UnsupportedError
from bayescope.likelihoods.curvatures import DenseLambdas, DiagonalLambdas
from bayescope.likelihoods.elementwise import Elementwise, refuse_outside
from bayescope.likelihoods.likelihood import Domain, Integral, Likelihood, Moments, variances
from bayescope.likelihoods.quasi_monte_carlo import gaussian_points, log_expected, principal_root
from bayescope.likelihoods.targets import numbers_in_columns
from bayescope.quadrature import gauss_legendre
from bayescope.storage import unstorable

LogProb = Callable[[Tensor, Tensor], Tensor]
_DOMAINS = {
    "real": Domain("numbers"),
    "positive": Domain("numbers", low=0.0, closed=False),
    "count": Domain("numbers", low=0.0, integer=True),
    "unit_interval": Domain("numbers", low=0.0, high=1.0, closed=False),
}
# A search for the outcomes that have probability: nodes, the number of times that the search interval is narrowed, how
# deep below the peak it goes, and the fall beside a peak that is found; then the nodes of sums over them, of which
# counts may have more, and of distribution functions.
_SEARCH, _ZOOMS, _DEPTH, _SETTLED, _BESIDE = 65, 14, 42.0, 0.5, 1.0
_GRID, _COUNTS, _PANEL, _STEP_PANEL = 513, 2049, 200, 12
# The farthest outcomes, as logarithms, beside a peak in its width, and outputs that are looked at.
_FARTHEST, _FARTHEST_BESIDE, _FARTHEST_OUTPUT = 40.0, 60.0, 60.0
_NEWTON_STEPS = 4
_BLOCK_NUMBERS = 2**21
# What a sum of probabilities may miss 1 by.
_UNNORMALISED = 0.01
# Points of several outputs, the probability outside of which no outcome is looked for, and eigenvalues that are 0.
POINTS, _TAIL, _ROUNDING = 256, 1e-13, 1e-10
# Outputs at which log p is asked whether it bends.
_BENDS_AT = torch.linspace(-4.0, 4.0, 65, dtype=torch.float64)
_NO_FILE = (
    "expected a likelihood of the library in {path}, got one made by bs.likelihood: files hold no functions. Keep the "
    "table, or a network's weights, and fit again."
)


def likelihood(
    log_prob: LogProb,
    *,
    domain: Literal["real", "positive", "count", "unit_interval"] | tuple[float, float] = "real",
    sample: Callable[[Tensor, torch.Generator], Tensor] | None = None,
    outputs: int = 1,
) -> OwnLikelihood | OwnOfSeveral:
    """Return a likelihood of one's own, of one number a row, from its log density.

    It has what every likelihood has: derivatives by autograd; E(y∣f), Var(y∣f), the Fisher information and entropies by
    sums over y (all whole numbers, or a trapezoidal rule about the peak of the density of y, log y or the log odds of
    y, in any unit: right to 1e-9 for smooth densities without heavy tails, to 1e-4 for one with a kink); quantiles and
    draws by inversion; and integrals over a Gaussian f by quadrature, or over several outputs by 256 quasi-Monte-Carlo
    points. The error of these grows with the standard deviations of the outputs. Where they are 0.1, 0.3 and 1, the
    largest errors for three likelihoods of two outputs were, beside a fine quadrature: of means 0.0004, 0.0012 and
    0.008 standard deviations of y, of variances 0.07 %, 0.3 % and 14 %, of log densities 0.0002, 0.0008 and 0.035, and
    of the levels of quantiles 0.0002, 0.0004 and 0.006. The GGN takes the observed Λ, or the Fisher information in rows
    where that is negative or indefinite.

    A Poisson likelihood, whose mean is eᶠ:

        def log_prob(f, y):
            return (y * f - f.exp() - torch.lgamma(y + 1)).sum(-1)

        poisson = bs.likelihood(log_prob, domain="count")
        q = bs.laplace(model, (X, y), likelihood=poisson)

    A Laplace distribution whose location and log scale are two outputs:

        def log_prob(f, y):
            return -(y[..., 0] - f[..., 0]).abs() / f[..., 1].exp() - f[..., 1] - math.log(2.0)

        laplace = bs.likelihood(log_prob, outputs=2)

    Args:
        log_prob: from outputs f of shape (..., N, C) and targets y, whose shape broadcasts with (..., N, 1), to log
            p(y∣f) of shape (..., N), by differentiable functions of torch. Rows must not depend on each other, and p
            must sum to 1. For counts it is also asked for numbers between whole ones, as `torch.lgamma` allows.
        domain: what y is: "real", "positive", "count" (0, 1, 2, …), "unit_interval", or an open interval (low, high).
        sample: draws y of shape (..., N, 1), in float64, from f and a `torch.Generator`; by inversion if not given.
        outputs: C, how many outputs of the model a row's number depends on.

    Raises:
        InputTypeError: if ``log_prob`` or ``sample`` is no function.
        OptionError: if the domain is unknown.
        InputError: if an interval is empty, or p does not sum to 1 over y where all f are 0.1 and 1, to 1 %.
    """
    for name, function in (("log_prob", log_prob), ("sample", sample)):
        if not callable(function) and not (name == "sample" and function is None):
            raise InputTypeError(f"{name}: expected a function, got {type(function).__name__}.")
    return _of_domain(log_prob, _domain(domain), sample, checks.count("outputs", outputs)).normalised()


def _of_domain(
    log_prob: LogProb, domain: Domain, sample: Callable[[Tensor, torch.Generator], Tensor] | None, outputs: int
) -> OwnLikelihood | OwnOfSeveral:
    if outputs == 1:
        return OwnLikelihood(log_prob, domain, sample)
    return OwnOfSeveral(log_prob, sample, outputs, replace(domain, elementwise=False))


def _domain(domain: str | tuple[float, float]) -> Domain:
    if isinstance(domain, str):
        if domain not in _DOMAINS:
            raise OptionError.unknown("domain", domain, _DOMAINS)
        return _DOMAINS[domain]
    low, high = (float(end) for end in domain)
    if not -math.inf < low < high < math.inf:
        raise InputError(f"domain: expected (low, high) with finite low < high, got {domain}. Or name it: 'positive'.")
    return Domain("numbers", low=low, high=high, closed=False)


@final
@dataclass(frozen=True, eq=False)
class _Line:
    """Numbers u, from which outcomes y follow by b = centre + scale · sinh u: b is y, log y, or the log odds of y.

    Densities of any unit and origin are alike on it, and those with heavy tails fall off exponentially. Of counts u is
    log(1 + y).
    """

    domain: Domain
    centre: Tensor
    scale: Tensor

    def outcome(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """y and dy/du."""
        if self.domain.integer:
            return torch.expm1(u), u.exp()
        y, slope = self.of_coordinate(self.centre + self.scale * u.sinh())
        return y, slope * self.scale * u.cosh()

    def of_coordinate(self, b: Tensor) -> tuple[Tensor, Tensor]:
        """y and dy/db."""
        domain = self.domain
        if domain.high < math.inf:
            width = domain.high - domain.low
            return domain.low + width * torch.sigmoid(b), width * torch.sigmoid(b) * torch.sigmoid(-b)
        return (b, torch.ones_like(b)) if domain.low == -math.inf else (b.exp(), b.exp())

    def place(self, y: Tensor) -> Tensor:
        """u of y."""
        domain = self.domain
        if domain.high < math.inf:
            b = torch.logit((y - domain.low) / (domain.high - domain.low))
        else:
            b = y if domain.low == -math.inf else y.clamp_min(0.0).log()
        return ((b - self.centre) / self.scale).asinh()


class OfOneNumber(Likelihood):
    """One number y a row, of which sums over y tell everything; f has shape (..., N, C) and y (..., N, 1).

    Attributes:
        function: log p(y∣f).
        sampler: draws y, if it is given.
        outputs: C.
    """

    function: LogProb
    sampler: Callable[[Tensor, torch.Generator], Tensor] | None
    outputs: int

    name = "own"

    def normalised(self) -> Self:
        """The same, after a look at two outputs.

        Raises:
            InputError: if p does not sum to 1 over y.
        """
        f = torch.tensor([[0.1], [1.0]], dtype=torch.float64).expand(2, self.outputs)  # at 0 a formula may be 0 over 0
        for output, total in zip(f[:, 0].tolist(), self._outcomes(f)[1].sum(0)[:, 0].tolist(), strict=True):
            if not abs(total - 1.0) <= _UNNORMALISED:
                raise InputError(
                    f"log_prob: expected probabilities that sum to 1 over y, got {total:.4g} at f = {output:g}. Add "
                    "the constants that depend on y or on f, such as -torch.lgamma(y + 1)."
                )
        return self

    def targets(self, y: ArrayLike, outputs: int) -> Tensor:
        """Checks numbers and returns them in float64, shape (N, 1).

        Args:
            y: shape (N,) or (N, 1).
            outputs: C.

        Raises:
            InputError: if there is another number of outputs, or a number is outside the domain.
        """
        if outputs != self.outputs:
            raise InputError(
                f"outputs: expected {self.outputs} for this likelihood made by bs.likelihood, got {outputs}."
            )
        values = numbers_in_columns(y, 1, outputs)
        refuse_outside(self.domain, values)
        return values

    def log_density(self, f: Tensor, y: Tensor) -> Tensor:
        """What the function returns.

        Raises:
            InputError: if it is of another shape than f without its last dimension.
        """
        y = y.to(f)
        found = self.function(f, y)
        shape = torch.broadcast_shapes(f.shape, y.shape)[:-1]
        if found.shape != shape:
            raise InputError(
                f"log_prob: expected shape {tuple(shape)}, one for each row, got {tuple(found.shape)} from outputs "
                f"{tuple(f.shape)} and targets {tuple(y.shape)}. Sum over the last dimension: .sum(-1)."
            )
        return found[..., None]

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """What the function returns, shape (..., N)."""
        return self.log_density(f, y)[..., 0]

    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        """∂ log p/∂f by autograd, shape (..., N, C)."""
        y = y.to(f)
        whole = f.expand(*torch.broadcast_shapes(f.shape[:-1], y.shape[:-1]), -1)
        return torch.func.grad(lambda at: self.log_density(at, y).sum())(whole)

    def conditional(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """E(y∣f) and Var(y∣f), each (..., N, 1)."""

        def moments(f: Tensor) -> Tensor:
            y, p = self._outcomes(f)
            # From a probable outcome on: far from 0 the last digits of Σ p would be digits of the mean
            near = y.take_along_dim(p.argmax(0, keepdim=True), 0)
            mean = near[0] + (p * (y - near)).sum(0)
            return torch.cat([mean, (p * (y - mean).square()).sum(0)], -1)

        mean, variance = self._in_blocks(moments, f, 2).split(1, -1)
        return mean, variance

    def entropy(self, f: Tensor) -> Tensor:
        """−Σ p log p over y."""

        def entropy(f: Tensor) -> Tensor:
            y, p = self._outcomes(f)
            return -torch.where(p > 0.0, p * self.log_density(f, y), 0.0).sum(0)

        return self._in_blocks(entropy, f, 1)

    def _in_blocks(self, answer: Callable[[Tensor], Tensor], f: Tensor, columns: int) -> Tensor:
        """What is answered of some rows at a time, shape (..., N, columns)."""
        parts = [answer(some) for some in f.reshape(-1, f.shape[-1]).split(_rows(f)) if len(some)]
        return torch.cat(parts or [f.new_zeros(0, columns)]).reshape(*f.shape[:-1], columns)

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """Draws y by the given function, or by inversion."""
        if self.sampler is not None:
            return self.sampler(f, generator).to(torch.float64)
        level = torch.rand(f[..., :1].shape, dtype=torch.float64, device=generator.device, generator=generator)
        return self.quantile(f, level.clamp_min(2.0**-54).to(f.device))

    def cdf(self, f: Tensor, y: Tensor) -> Tensor:
        """P(y' ≤ y∣f), by the same sums."""
        shape = torch.broadcast_shapes(f.shape[:-1], y.shape[:-1])
        return self._by_blocks(self._below, f.expand(*shape, -1), y.to(f).expand(*shape, 1))

    def quantile(self, f: Tensor, level: float | Tensor) -> Tensor:
        """The smallest y with P(y' ≤ y∣f) ≥ level."""
        levels = torch.as_tensor(level, dtype=f.dtype, device=f.device).expand(f[..., :1].shape)
        return self._by_blocks(self._inverse, f, levels)

    # Sums over y, whose nodes are in front

    def _by_blocks(self, answer: Callable[[Tensor, Tensor], Tensor], f: Tensor, other: Tensor) -> Tensor:
        """The answers of outputs (M, C) and numbers (M, 1), some at a time, in float64 and of the numbers' shape."""
        pairs = (each.detach().to(torch.float64).reshape(-1, each.shape[-1]).split(_rows(f)) for each in (f, other))
        parts = [answer(*pair) for pair in zip(*pairs, strict=True) if len(pair[0])]
        return torch.cat(parts).reshape(other.shape) if parts else other.to(torch.float64)

    def _outcomes(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Outcomes y (S, ..., N, 1) and their probabilities given f, of the same shape."""
        y, weights = self._nodes(*self._line(f))
        return y, self._mass(f, y, weights)

    def _mass(self, f: Tensor, y: Tensor, width: Tensor) -> Tensor:
        """p(y∣f) times a width, where either may be beyond float64."""
        return (_known(self.log_density(f, y)) + width.log()).exp()

    def _nodes(self, line: _Line, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Outcomes between two ends on a line, and the weights of a sum over them."""
        if self.domain.integer:
            low, high = low.expm1().round().floor(), high.expm1().ceil()
            size = min(_COUNTS, int((high - low).max()) + 1 if low.numel() else 1)
            step = ((high - low) / max(1, size - 1)).clamp_min(1.0)
            places = torch.arange(size, dtype=low.dtype, device=low.device).reshape(-1, *[1] * low.ndim)
            return low + step * places, step.expand(size, *low.shape)
        y, unit = line.outcome(low + (high - low) * _unit(_GRID, low))
        return y, unit * (high - low) / (_GRID - 1)

    @torch.no_grad()
    def _peak(self, f: Tensor) -> _Line:
        """The line about the most probable outcome in its own coordinate, with the width that the density has there."""
        line = _Line(self.domain, torch.zeros_like(f[..., :1]), torch.ones_like(f[..., :1]))
        if self.domain.integer:
            return line
        low, high = line.centre - _FARTHEST, line.centre + _FARTHEST
        for _ in range(_ZOOMS):
            t = low + (high - low) * _unit(_SEARCH, f)
            # Numbers of any size are looked at in proportion to it
            b = t.sinh() if self.domain.low == -math.inf else t
            y, unit = line.of_coordinate(b)
            values = _known(self.log_density(f, y) + unit.log())
            best = values.argmax(0, keepdim=True)
            beside = [(best + side).clamp(0, _SEARCH - 1) for side in (-1, 1)]
            low, high = (t.take_along_dim(each, 0)[0] for each in beside)
            top = values.take_along_dim(best, 0)[0]
            line = _Line(self.domain, b.take_along_dim(best, 0)[0], (-top).exp() / math.sqrt(2.0 * math.pi))
            if all((values.take_along_dim(each, 0)[0] > top - _BESIDE).all() for each in beside):
                break
        return line

    @torch.no_grad()
    def _line(self, f: Tensor) -> tuple[_Line, Tensor, Tensor]:
        """The line, and the ends on it between which all but exp(−42) of the probability is, each (..., N, 1)."""
        line, integer = self._peak(f), self.domain.integer
        low = torch.full_like(line.centre, 0.0 if integer else -_FARTHEST_BESIDE)
        high = torch.full_like(low, _FARTHEST if integer else _FARTHEST_BESIDE)
        for _ in range(_ZOOMS):
            t = low + (high - low) * _unit(_SEARCH, f)
            y, unit = line.outcome(t)
            values = _known(self.log_density(f, y) + unit.log())
            kept = (values > values.amax(0, keepdim=True) - _DEPTH).to(torch.int8)
            first, last = kept.argmax(0, keepdim=True), _SEARCH - 1 - kept.flip(0).argmax(0, keepdim=True)
            start, stop = (first - 1).clamp_min(0), (last + 1).clamp(max=_SEARCH - 1)
            low, high = (t.take_along_dim(end, 0)[0] for end in (start, stop))
            if (stop - start >= _SETTLED * _SEARCH).all():
                break
        return line, low, high

    def _below(self, f: Tensor, y: Tensor) -> Tensor:
        line, low, high = self._line(f)
        if self.domain.integer:
            nodes, step = self._nodes(line, low, high)
            p = self._mass(f, nodes, step)
            return (p * ((y.floor() + 0.5 - nodes) / step + 0.5).clamp(0.0, 1.0)).sum(0).clamp(max=1.0)
        return self._integral(f, line, low, torch.minimum(torch.maximum(line.place(y), low), high))

    def _integral(self, f: Tensor, line: _Line, low: Tensor, end: Tensor, size: int = _PANEL) -> Tensor:
        """∫ p dy from low to end, on a line."""
        nodes, weights = (each.to(f).reshape(-1, *[1] * f.ndim) for each in gauss_legendre(size))
        y, unit = line.outcome(low + (end - low) * nodes)
        return ((weights * self._mass(f, y, unit)).sum(0) * (end - low)).clamp(max=1.0)

    def _inverse(self, f: Tensor, level: Tensor) -> Tensor:
        line, low, high = self._line(f)
        nodes, weights = self._nodes(line, low, high)
        p = self._mass(f, nodes, weights)
        reached = (p.cumsum(0) < level).sum(0, keepdim=True).clamp(max=len(nodes) - 1)
        if self.domain.integer:
            return nodes.take_along_dim(reached, 0)[0].floor()
        # Newton's steps within two cells of the grid: only the first integral is over more than that
        cell = (high - low) / (_GRID - 1)
        start = t = low + cell * reached[0]
        below = self._integral(f, line, low, t)
        for _ in range(_NEWTON_STEPS):
            y, unit = line.outcome(t)
            density = self._mass(f, y, unit).clamp_min(1e-300)
            ahead = (t - (below - level) / density).clamp(start - 2.0 * cell, start + 2.0 * cell).clamp(low, high)
            below = below + self._integral(f, line, t, ahead, _STEP_PANEL)
            t = ahead
        return line.outcome(t)[0]


@unstorable(_NO_FILE)
@final
@dataclass(frozen=True, eq=False)
class OwnLikelihood(OfOneNumber, Elementwise):
    """What `bs.likelihood` returns for one output: p(y∣f) from a function of outputs and targets."""

    function: LogProb
    domain: Domain = _DOMAINS["real"]
    sampler: Callable[[Tensor, torch.Generator], Tensor] | None = None

    outputs = 1

    @cached_property
    def _bends(self) -> Tensor:
        """−∂² log p/∂f² over a grid of outputs, for outcomes that are probable at some of them."""
        f = _BENDS_AT[:, None]
        y = torch.cat([self.quantile(f[::8], level) for level in (0.01, 0.3, 0.7, 0.99)])
        return self.bend(f, y[:, None])

    @property
    def log_concave(self) -> bool:
        """Whether log p bends down on all of a grid."""
        return bool((self._bends >= -_ROUNDING * self._bends.abs().amax()).all())

    @property
    def kinked(self) -> bool:
        """Whether log p is a line wherever it is looked at on a grid, so that a kink holds its curvature."""
        return not bool(self._bends.any())

    def slope(self, f: Tensor, y: Tensor) -> Tensor:
        return self.gradient(f, y)

    def bend(self, f: Tensor, y: Tensor) -> Tensor:
        """−∂² log p/∂f² by autograd."""
        shape = torch.broadcast_shapes(f.shape, y.shape)
        return -torch.func.grad(lambda at: self.slope(at, y).sum())(f.expand(shape))

    def ggn(self, f: Tensor, y: Tensor) -> DiagonalLambdas:
        """The observed Λ, or the expected one where that is not positive."""
        entries = self.bend(f, y)
        flat = entries <= 0
        return DiagonalLambdas(torch.where(flat, self.fisher(f), entries) if flat.any() else entries)

    def fisher(self, f: Tensor) -> Tensor:
        """The Fisher information of f, Σ p (∂ log p/∂f)² over y."""
        y, p = self._outcomes(f)
        return torch.where(p > 0.0, p * self.slope(f, y).square(), 0.0).sum(0)

    def distribution(self, f: np.ndarray) -> NoReturn:
        """Refused: scipy does not know it.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError("distribution: expected a likelihood of the library, got one made by bs.likelihood.")

    def place(self, y: Tensor) -> Tensor:
        """The most probable f between −60 and 60."""
        low, high = torch.full_like(y, -_FARTHEST_OUTPUT), torch.full_like(y, _FARTHEST_OUTPUT)
        with torch.no_grad():
            for _ in range(_ZOOMS):
                f = low + (high - low) * _unit(_SEARCH, y)
                best = _known(self.log_density(f, y)).argmax(0, keepdim=True)
                low, high = (f.take_along_dim((best + k).clamp(0, _SEARCH - 1), 0)[0] for k in (-1, 1))
        return 0.5 * (low + high)


@unstorable(_NO_FILE)
@final
@dataclass(frozen=True, eq=False)
class OwnOfSeveral(OfOneNumber):
    """What `bs.likelihood` returns for several outputs that decide one number."""

    function: LogProb
    sampler: Callable[[Tensor, torch.Generator], Tensor] | None
    outputs: int
    domain: Domain = _DOMAINS["real"]

    @property
    def log_concave(self) -> bool:
        """Unknown, so that no rule relies on it."""
        return False

    def observed(self, f: Tensor, y: Tensor) -> DenseLambdas:
        """By autograd of the gradient."""
        whole = f.expand(*torch.broadcast_shapes(f.shape[:-1], y.shape[:-1]), -1)
        rows = [torch.func.grad(lambda at, c=c: self.gradient(at, y)[..., c].sum())(whole) for c in range(self.outputs)]
        return DenseLambdas(-torch.stack(rows, -2))

    def expected(self, f: Tensor) -> DenseLambdas:
        """The variance of the score, Σ p ∇log p ∇log pᵀ over y."""
        y, p = self._outcomes(f)
        slope = torch.where(p > 0.0, self.gradient(f, y), 0.0)
        return DenseLambdas(torch.einsum("s...c,s...d->...cd", p * slope, slope))

    def ggn(self, f: Tensor, y: Tensor) -> DenseLambdas:
        """The observed Λ, or the expected one in rows where that is indefinite."""
        observed = self.observed(f, y).entries
        values = torch.linalg.eigvalsh(observed.detach())
        indefinite = values[..., 0] < -_ROUNDING * values[..., -1].abs()
        if not indefinite.any():
            return DenseLambdas(observed)
        return DenseLambdas(torch.where(indefinite[..., None, None], self.expected(f).entries, observed))

    def constant(self, y: Tensor) -> Tensor:
        return torch.zeros(self.outputs, dtype=torch.float64)

    def averaged(self, log_weights: Tensor, points: Tensor) -> tuple[OwnOfSeveral, Tensor]:
        """The distribution of y over points of f, (S, N, C), as a likelihood at outputs of shape (N, S C)."""
        count, _, outputs = points.shape

        def log_prob(f: Tensor, y: Tensor) -> Tensor:
            each = f.unflatten(-1, (count, outputs)).movedim(-2, 0)
            each = each.reshape(count, *[1] * (y.ndim - f.ndim), *each.shape[1:])
            log_prob = self.log_prob(each, y)
            return (log_prob + log_weights.to(f).reshape(-1, *[1] * (log_prob.ndim - 1))).logsumexp(0)

        mixture = OwnOfSeveral(log_prob, None, count * outputs, replace(self.domain, elementwise=True))
        return mixture, points.movedim(0, 1).flatten(1)

    @property
    def integrals(self) -> Mapping[str, Integral]:
        return {"quadrature": _OverOutputs(self)}


@final
@dataclass(frozen=True)
class _OverOutputs(Integral):
    """Averages over 256 quasi-Monte-Carlo points of f; log p(y) by more of them, moved to where y is probable."""

    likelihood: OwnOfSeveral

    def moments(self, mean: Tensor, cov: Tensor) -> Moments:
        conditional, scatter = self.likelihood.conditional(gaussian_points(mean, cov, POINTS))
        centre = conditional.mean(0)
        return Moments(centre, scatter.mean(0), (conditional - centre).square().mean(0))

    def log_prob(self, mean: Tensor, cov: Tensor, y: Tensor) -> Tensor:
        return log_expected(self.likelihood, mean, principal_root(cov, variances(cov).amax(-1)), y)

    def conditional_entropy(self, mean: Tensor, cov: Tensor) -> Tensor:
        return self.likelihood.entropy(gaussian_points(mean, cov, POINTS)).mean(0)

    def information(self, mean: Tensor, cov: Tensor) -> Tensor:
        f = gaussian_points(mean, cov, POINTS)
        mixture, whole = self.likelihood.averaged(f.new_full((POINTS,), -math.log(POINTS)), f)
        return (mixture.entropy(whole) - self.likelihood.entropy(f).mean(0)).clamp_min(0.0).sum(-1)


def _rows(f: Tensor) -> int:
    """How many rows of outputs are worked on at once."""
    return max(1, _BLOCK_NUMBERS // (_GRID * f.shape[-1]))


def _known(log_density: Tensor) -> Tensor:
    """A log density on a grid: −∞ where the caller's function has no number, as ∞ − ∞ far out, or ∞ at a bound."""
    return torch.where(log_density.isnan() | (log_density == math.inf), -math.inf, log_density)


def _unit(size: int, like: Tensor) -> Any:
    return torch.linspace(0.0, 1.0, size, dtype=like.dtype, device=like.device).reshape(-1, *[1] * like.ndim)
