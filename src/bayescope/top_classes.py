"""A latent of which a few outputs a row are asked for: the most probable of very many classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn, final

import torch
from torch import Tensor

from bayescope.errors import UnsupportedError
from bayescope.latent import GaussianLatent
from bayescope.models import among
from bayescope.quadrature import gauss_hermite

# How many of the other classes of a row stand for all of them.
REPRESENTATIVES = 64
EULER = 0.5772156649015329
# Nodes of the quadrature over each f, and steps of that over u: from where E[exp(−R eᵘ)] is 1 − e^−_LEFT at least to
# where R would have to be below its value at means _REACH sds lower.
_NODES = 16
_STEPS = 48
_LEFT, _RIGHT, _REACH = 20.0, 4.0, 5.0
_MOST = 1.0 - 1e-15
# The mean of a sum's logarithm is corrected by at most this, found to _WIDEST / 2^_HALVINGS.
_WIDEST, _HALVINGS = 6.0, 32
# Classes of this many rows are drawn at once that these are their outputs.
_NUMBERS = 2**20
_TINY = 1e-10
# Variances below which a sum is taken to be log-normal.
_SMALL = 0.1


class TopClasses(NamedTuple):
    """The classes that a prediction is asked for.

    Attributes:
        columns: their places among the outputs that are integrated together, int64 of shape (N, K).
        classes: which classes they are, int64 of shape (N, K).
        covariance: Cov[f] of them, shape (N, K, K); ``None`` where the latent of all outputs has it.
    """

    columns: Tensor
    classes: Tensor
    covariance: Tensor | None = None

    @classmethod
    def of(cls, mean: Tensor, count: int) -> TopClasses:
        """The most probable classes for outputs of the mean (N, C)."""
        classes = top_classes(mean, count)
        return cls(classes, classes)

    def taken(self, rows: Tensor) -> TopClasses:
        """Those of some rows, by their numbers."""
        covariance = None if self.covariance is None else self.covariance[rows]
        return TopClasses(self.columns[rows], self.classes[rows], covariance)

    def joined(self, others: Sequence[TopClasses]) -> TopClasses:
        """These, and after them those of other rows."""
        columns, classes, covariances = zip(self, *others, strict=True)
        known = [each for each in covariances if each is not None]
        return TopClasses(torch.cat(columns), torch.cat(classes), torch.cat(known) if known else None)


@final
@dataclass(frozen=True)
class Together:
    """The top classes of rows of very many, and some of the others, each of which stands for some more.

    A representative that stands for n classes is one output more, g = log Σ exp f_j over n outputs f_j of its own mean
    and variance, whose covariances with all else are its own. What it has in common with the others that were drawn is
    common to its n; the rest of it, s, is independent in each. So g has the mean and variance of the logarithm of a sum
    of n independent terms exp N(m, s) (`sums_of_copies`), plus the common part. A Gaussian has not the tail of such a
    logarithm: the mean is moved to where E[exp(−exp(g)/T)] is that of the sum, T about the sum of all classes.

    The rests are the largest multiple of the partial variances 1/(Σ⁻¹)_rr by which the covariance stays positive
    semidefinite: all of f where outputs are independent, nothing of it where a few directions move all of them.

    Attributes:
        mean: m of all classes, shape (N, C).
        classes: the top ones, int64 of shape (N, K).
        others: those that stand for the others.
        covariance: Σ of the top classes and then of ``others.classes``, shape (N, K + R, K + R).
    """

    mean: Tensor
    classes: Tensor
    others: Representatives
    covariance: Tensor

    @property
    def chosen(self) -> Tensor:
        """Cov[f] of the top classes, shape (N, K, K)."""
        top = self.classes.shape[1]
        return self.covariance[:, :top, :top]

    def gaussian(self, integral: str) -> GaussianLatent:
        """f of the top classes and the g of the others, jointly Gaussian."""
        (covariance, rest), counts = self._rests(), self.others.log_counts
        chosen, means = among(self.mean, self.classes), among(self.mean, self.others.classes)
        shift, spread = sums_of_copies(rest, counts)
        total = torch.cat([chosen, means + counts], -1).logsumexp(-1, keepdim=True)
        shift = shift + correction(means - total, rest, counts, shift, spread)
        means = torch.cat([chosen, means + shift], -1)
        changed = torch.cat([torch.zeros_like(self.classes, dtype=rest.dtype), spread - rest], -1)
        return GaussianLatent(means, covariance + torch.diag_embed(changed), integral)

    def _rests(self) -> tuple[Tensor, Tensor]:
        """Σ, of full rank up to rounding, and the variances that the representatives do not share, shape (N, R)."""
        top, eye = self.classes.shape[1], torch.eye(self.covariance.shape[-1]).to(self.covariance)
        largest = self.covariance.diagonal(dim1=-2, dim2=-1).amax(-1)
        tiny = torch.where(largest > 0, _TINY * largest, 1.0)[:, None]
        covariance = self.covariance + tiny[..., None] * eye
        inverse = torch.linalg.inv(covariance)[:, top:, top:]
        partial = 1.0 / inverse.diagonal(dim1=-2, dim2=-1)
        scaled = partial.sqrt()[:, :, None] * inverse * partial.sqrt()[:, None]
        multiple = 1.0 / torch.linalg.eigvalsh(0.5 * (scaled + scaled.mT))[:, -1:]
        rest = (multiple * partial - tiny).clamp_min(0.0)
        return torch.where(largest[:, None, None] > 0, covariance, 0.0), torch.where(largest[:, None] > 0, rest, 0.0)

    def marginals(self, integral: str) -> GaussianLatent:
        """All classes, the others with the average variance of those that stand for them."""
        share = (self.others.log_counts + among(self.mean, self.others.classes)).softmax(-1)
        variance = (share * self._variance).sum(-1, keepdim=True).expand(self.mean.shape)
        variance = variance.scatter(-1, self.classes, self.chosen.diagonal(dim1=-2, dim2=-1))
        return GaussianLatent(self.mean, variance, integral)

    @property
    def _variance(self) -> Tensor:
        """v of the representatives, shape (N, R)."""
        return self.covariance.diagonal(dim1=-2, dim2=-1)[:, self.classes.shape[1] :]


class Representatives(NamedTuple):
    """Classes that stand for those that are not chosen.

    Attributes:
        classes: int64 of shape (N, R), none of the chosen ones, and each once.
        log_counts: log of how many classes each of them stands for, itself among them; shape (N, R).
    """

    classes: Tensor
    log_counts: Tensor

    @classmethod
    def of(
        cls, mean: Tensor, classes: Tensor, variance: Tensor | None, count: int = REPRESENTATIVES
    ) -> Representatives:
        """R of them, drawn without replacement, class c with probability π_c = min(1, κ q_c); it stands for 1/π_c.

        q is the average of shares: of exp m_c, of exp(m_c + sd_c), of exp(m_c + 2 sd_c) and of one class each, where
        the standard deviations are known; of the first and the last where they are not. Those that may lead the sum
        are there for certain, and rare ones of large variance are not left out. The draw is systematic: at even steps
        of the sum of π. The 1/π_c of those that are not certain have a factor by which all sum to Σ exp m_c.

        Args:
            mean: m of all classes, shape (N, C).
            classes: the chosen ones, int64 of shape (N, K).
            variance: v of all classes, shape (N, C), or ``None``.
            count: R.
        """
        rows = max(1, _NUMBERS // mean.shape[1])
        known = [None] * len(mean.split(rows)) if variance is None else variance.split(rows)
        blocks = [_drawn(*some, count) for some in zip(mean.split(rows), classes.split(rows), known, strict=True)]
        found, log_counts = (torch.cat(parts) for parts in zip(*blocks, strict=True))
        return cls(found, log_counts)


def _drawn(mean: Tensor, classes: Tensor, variance: Tensor | None, count: int) -> tuple[Tensor, Tensor]:
    """The representatives of some rows, and how many classes each stands for."""
    steps = (0.0,) if variance is None else (0.0, 1.0, 2.0)
    sd = 0.0 if variance is None else variance.detach().sqrt()
    m = mean.detach().scatter(-1, classes, -torch.inf)
    shares = [(m + step * sd).softmax(-1) for step in steps]
    shares.append(m.isfinite() / m.isfinite().sum(-1, keepdim=True))
    count = min(count, m.shape[1] - classes.shape[1])
    included = inclusion(torch.stack(shares).mean(0), count)
    ends = torch.arange(count, dtype=m.dtype, device=m.device) + 0.5
    found = torch.searchsorted(included.cumsum(-1), ends.expand(len(m), count).contiguous(), right=True)
    found_share, found_m = (each.take_along_dim(found, -1) for each in (included, m))
    certain = found_share >= 1.0
    left = m.scatter(-1, torch.where(certain, found, classes[:, :1]), -torch.inf).logsumexp(-1, keepdim=True)
    log_counts = -found_share.log()
    drawn = (found_m + log_counts).masked_fill(certain, -torch.inf).logsumexp(-1, keepdim=True)
    return found, torch.where(certain | ~left.isfinite(), 0.0, log_counts + left - drawn)


def inclusion(share: Tensor, count: int) -> Tensor:
    """π_c = min(1, κ q_c) with Σ π_c = R, shape (N, C).

    Args:
        share: q, shape (N, C), of sum 1.
        count: R, at most as many as have a share.
    """
    largest, order = share.sort(-1, descending=True)
    certain = torch.arange(share.shape[1], dtype=share.dtype, device=share.device)
    rest = largest.flip(-1).cumsum(-1).flip(-1).clamp_min(torch.finfo(share.dtype).tiny)
    # With the k largest certain the next is κ q = (R − k) q / Σ of the others: the first k where it is below 1.
    factor = (count - certain).clamp_min(0.0) / rest
    first = (factor * largest < 1.0).to(torch.int64).argmax(-1, keepdim=True)
    first = torch.where((factor * largest < 1.0).any(-1, keepdim=True), first, share.shape[1] - 1)
    kept = torch.where(certain < first, 1.0, factor.take_along_dim(first, -1) * largest)
    return torch.zeros_like(share).scatter(-1, order, kept.clamp(0.0, 1.0))


def sums_of_copies(variance: Tensor, log_counts: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of log R, R = Σ_j exp e_j over n independent e_j ~ N(0, s), for each s and n of one shape.

    With E standard exponential and X = log E − log R, P(X > u) = E[exp(−R eᵘ)] = exp(−n h(u)), where
    h(u) = −log E[exp(−exp(e + u))] is a quadrature; the moments of X follow by the trapezoidal rule over u, and those
    of log R from E[log E] = −γ and Var[log E] = π²/6. Nothing is expanded: a few large exp e_j may lead the sum. For a
    small s, R is taken to be the Gaussian's exponential that has its two moments (Fenton 1960).

    Args:
        variance: s.
        log_counts: log n; n may be any positive number. One of at most 1 is one e less a constant, log n + e.
    """
    small = (torch.expm1(variance) * (-log_counts).exp()).log1p()
    largest = (0.5 * variance + log_counts).detach()  # log E[R]
    smallest = (log_counts - _REACH * variance.sqrt()).detach()
    start, stop = -largest - _LEFT, _RIGHT - smallest
    steps = torch.linspace(0, 1, _STEPS, dtype=variance.dtype, device=variance.device)
    u = start[..., None] + (stop - start)[..., None] * steps
    survival = (-log_counts.exp()[..., None] * _lost(u, variance[..., None])).exp()
    first = start + torch.trapezoid(survival, u)
    # 2 u P(X > u) does not level out at its lower end, where its slope is 2: the rule is short of it by step²/6.
    second = start.square() + torch.trapezoid(2 * u * survival, u) + ((stop - start) / (_STEPS - 1)).square() / 6
    spread = (second - first.square() - math.pi**2 / 6).clamp_min(0.0)
    one, large = log_counts <= 0.0, variance > _SMALL
    mean = torch.where(large, -first - EULER, log_counts + 0.5 * (variance - small))
    return torch.where(one, log_counts, mean), torch.where(one, variance, torch.where(large, spread, small))


@torch.no_grad()
def correction(mean: Tensor, variance: Tensor, log_counts: Tensor, shift: Tensor, spread: Tensor) -> Tensor:
    """What is added to the mean of g so that E[exp(−exp g)] is that of the sum, by bisection; 0 where n = 1.

    Args:
        mean: m, less the logarithm of T; all of shape (N, R).
        variance: s of a term.
        log_counts: log n.
        shift: the mean of g, less m, that is corrected.
        spread: its variance.
    """
    wanted = log_counts.exp() * _lost(mean, variance)
    low, high = shift - _WIDEST, shift + _WIDEST
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        below = _lost(mean + middle, spread) < wanted
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return torch.where(log_counts > 0.0, 0.5 * (low + high) - shift, 0.0)


def _lost(mean: Tensor, variance: Tensor) -> Tensor:
    """−log E[exp(−exp f)] of a Gaussian f, right to its own size where that is small."""
    sd, found = variance.clamp_min(_TINY).sqrt(), torch.zeros_like(mean)  # at 0 the root has no derivative
    for z, log_weight in zip(*gauss_hermite(_NODES), strict=True):
        found = found - log_weight.exp() * torch.expm1(-(mean + float(z) * sd).exp())
    return -torch.log1p(-found.clamp_max(_MOST))


def top_classes(mean: Tensor, top: int) -> Tensor:
    """The classes of the largest outputs (N, C), int64 of shape (N, K)."""
    return mean.detach().topk(top, -1).indices


def refuse_all_classes(name: str) -> NoReturn:
    """Refuses what a few of the classes do not tell.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError(
        f"{name}: expected a prediction of all classes, got the most probable ones alone. Predict without top=."
    )
