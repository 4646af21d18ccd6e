"""A latent of which a few outputs a row are asked for: the most probable of very many classes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, NoReturn, final

import torch
from torch import Tensor

from bayescope.errors import UnsupportedError
from bayescope.latent import GaussianLatent, Latent, MarginalLatent
from bayescope.likelihoods import Likelihood, Moments
from bayescope.models import among, among_pairs
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
_ROWS = 512
_TINY = 1e-12


@final
@dataclass(frozen=True)
class TopLatent:
    """The distribution of some outputs of each row, which are integrated together with all others.

    The classes of a row are those of its K largest E[f], the largest first.

    Attributes:
        whole: what is integrated: all C outputs of a row, or its K and one more that stands for the others.
        columns: where a row's K outputs are in it, int64 of shape (N, K).
        classes: which classes they are, int64 of shape (N, K).
        chosen: Cov[f] of the K outputs where the others are taken together, shape (N, K, K); else ``None``.
    """

    whole: Latent
    columns: Tensor
    classes: Tensor
    chosen: Tensor | None = None

    @classmethod
    def of(cls, whole: Latent, top: int) -> TopLatent:
        """The top classes of a latent of all outputs."""
        classes = top_classes(whole.mean, top)
        return cls(whole, classes, classes)

    @property
    def mean(self) -> Tensor:
        """E[f], shape (N, K)."""
        return among(self.whole.mean, self.columns)

    @property
    def cov(self) -> Tensor:
        """Cov[f] per row, shape (N, K, K)."""
        return among_pairs(self.whole.cov, self.columns) if self.chosen is None else self.chosen

    @property
    def variance(self) -> Tensor:
        """The diagonal of `cov`, shape (N, K)."""
        return among(self.whole.variance, self.columns)

    def moments(self, likelihood: Likelihood) -> Moments:
        """Moments of the K classes' indicators, each (N, K): they do not add up to 1."""
        whole = self.whole.moments(likelihood)
        return Moments(*(among(part, self.columns) for part in (whole.mean, whole.aleatoric, whole.epistemic)))

    def mutual_information(self, likelihood: Likelihood) -> Tensor:
        """That of what is integrated, shape (N,)."""
        return self.whole.mutual_information(likelihood)

    def log_prob(self, likelihood: Likelihood, y: Tensor) -> Tensor:
        """Refused: it may be that of a class that is not among them."""
        refuse_all_classes("log_prob")

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Refused: a label may be one that is not among them."""
        refuse_all_classes("sample")

    def quantile(self, level: float) -> Tensor:
        """The quantile of each output, shape (N, K)."""
        return among(self.whole.quantile(level), self.columns)

    def expected_quantile(self, likelihood: Likelihood, level: float) -> Tensor:
        """The quantile of the classes' probabilities, shape (N, K)."""
        return among(self.whole.expected_quantile(likelihood, level), self.columns)

    def components(self, likelihood: Likelihood) -> tuple[Tensor, Tensor, Tensor]:
        """Refused, as of a label."""
        return self.whole.components(likelihood)

    def integration_error(self, likelihood: Likelihood) -> Tensor:
        """That of the classes' probabilities, shape (N, K); refused where the others are taken together."""
        if self.chosen is not None:
            raise UnsupportedError(
                "integration_error: the other classes are taken together as one whose logarithm is Gaussian, an "
                "approximation whose error nothing tells. Predict without top= to integrate over all of them."
            )
        return among(self.whole.integration_error(likelihood), self.columns)


@final
@dataclass(frozen=True)
class Together:
    """The top classes of rows of very many, and the others as one output more, g = log Σ exp f_c over them.

    Some of the others stand for all: a sum Σ_c h(m_c, v_c) over them is Σ_i h(m_i, v_i) / (R q_i) over R of them that
    are drawn with probabilities q. What the others' f have in common is taken to be one Gaussian variable, of their
    average covariance s: a softmax does not see what all classes have in common. The rest of each is taken to be
    independent, and g to be Gaussian: its moments are those of `log_sum` and s, its covariances with the top classes
    the others' averages.

    Attributes:
        mean: m of all classes, shape (N, C).
        classes: the top ones, int64 of shape (N, K).
        others: those that stand for the others.
        covariance: of the top classes and then of ``others.classes``, shape (N, K + R, K + R).
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
        """f of the top classes and g, jointly Gaussian."""
        top, means = self.classes.shape[1], among(self.mean, self.others.classes)
        within, variance = self.covariance[:, top:, top:], self._variance
        share = (self.others.log_counts + means + 0.5 * variance).softmax(-1)
        pairs = share[:, :, None] * share[:, None]
        unlike = pairs * (self.others.classes[:, :, None] != self.others.classes[:, None])
        total = unlike.sum((1, 2))
        shared = torch.where(total > 0, (unlike * within).sum((1, 2)) / total, 0.0).clamp_min(0.0)
        g, own = log_sum(means, (variance - shared[:, None]).clamp_min(0.0), self.others.log_counts)
        # With c and s of the representatives the matrix would be that of a linear map of f; it stays positive
        # semidefinite with t c and any variance from t² s on.
        c, s = (self.covariance[:, :top, top:] @ share[..., None])[..., 0], (pairs * within).sum((1, 2))
        spread = own + shared
        c = c * ((spread + _TINY) / (torch.maximum(s, spread) + _TINY)).sqrt()[:, None]
        below = torch.cat([c, spread[:, None]], -1)[:, None]
        cov = torch.cat([torch.cat([self.chosen, c[..., None]], -1), below], -2)
        return GaussianLatent(torch.cat([among(self.mean, self.classes), g[:, None]], -1), cov, integral)

    def marginals(self, integral: str) -> MarginalLatent:
        """All classes, the others with the average variance of those that stand for them."""
        share = (self.others.log_counts + among(self.mean, self.others.classes)).softmax(-1)
        variance = (share * self._variance).sum(-1, keepdim=True).expand(self.mean.shape)
        variance = variance.scatter(-1, self.classes, self.chosen.diagonal(dim1=-2, dim2=-1))
        return MarginalLatent(self.mean, variance, integral)

    @property
    def _variance(self) -> Tensor:
        """v of the representatives, shape (N, R)."""
        return self.covariance.diagonal(dim1=-2, dim2=-1)[:, self.classes.shape[1] :]


class Representatives(NamedTuple):
    """Classes that stand for those that are not chosen.

    Attributes:
        classes: int64 of shape (N, R), none of the chosen ones; one may be there several times.
        log_counts: how many classes each of them counts for, log 1/(R q_c) up to a number for each row, by which their
            sum of exp m_c, or of E[exp f_c] where v is known, is that of all the others; shape (N, R).
    """

    classes: Tensor
    log_counts: Tensor

    @classmethod
    def of(
        cls, mean: Tensor, classes: Tensor, variance: Tensor | None, count: int = REPRESENTATIVES
    ) -> Representatives:
        """Those at even steps of the sum of q: a class is among them about R q_c times.

        q_c is the share of E[exp f_c] = exp(m_c + v_c/2) in their sum, where v is known. Where it is not, half of the
        classes are drawn by exp(m_c) and half evenly: rare classes are of low mean and of large variance.

        Args:
            mean: m of all classes, shape (N, C).
            classes: the chosen ones, int64 of shape (N, K).
            variance: v of all classes, shape (N, C), or ``None``.
            count: R.
        """
        score = (mean if variance is None else mean + 0.5 * variance).scatter(-1, classes, -torch.inf)
        q = score.detach().softmax(-1)
        if variance is None:
            even = torch.full_like(q, 1.0 / (q.shape[1] - classes.shape[1])).scatter(-1, classes, 0.0)
            q = 0.5 * (q + even)
        steps = (torch.arange(count, dtype=q.dtype, device=q.device) + 0.5) / count
        sums = q.cumsum(-1)
        found = torch.searchsorted(sums, sums[:, -1:] * steps, right=True)
        log_counts = -q.gather(-1, found).log()
        among_them = (score.gather(-1, found) + log_counts).logsumexp(-1, keepdim=True)
        return cls(found, log_counts + score.logsumexp(-1, keepdim=True) - among_them)


def log_sum(mean: Tensor, variance: Tensor, log_counts: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of log R, R = Σ_i n_i exp f_i in distribution, f independent Gaussians; each of shape (N,).

    With E standard exponential and X = log E − log R, P(X > u) = E[exp(−R eᵘ)] = exp(−Σ_i n_i h_i(u)), where
    h_i(u) = −log E[exp(−exp(f_i + u))] is a quadrature; the moments of X follow by the trapezoidal rule over u, and
    those of log R from E[log E] = −γ and Var[log E] = π²/6. Nothing is expanded: a few large exp f_i may lead the sum.

    Args:
        mean: of f, shape (N, R).
        variance: of f, shape (N, R).
        log_counts: log n, how many independent copies there are of each, shape (N, R); n need be no whole number.
    """
    blocks = [
        _log_sum(*rows) for rows in zip(*(part.split(_ROWS) for part in (mean, variance, log_counts)), strict=True)
    ]
    centre, spread = (torch.cat(parts) for parts in zip(*blocks, strict=True))
    return centre, spread


def _log_sum(mean: Tensor, variance: Tensor, log_counts: Tensor) -> tuple[Tensor, Tensor]:
    sd = variance.clamp_min(_TINY).sqrt()  # at 0 the root has no derivative
    largest = (mean + 0.5 * variance + log_counts).logsumexp(-1).detach()  # log E[R]
    smallest = ((mean + log_counts).logsumexp(-1) - _REACH * sd.amax(-1)).detach()
    start, stop = -largest - _LEFT, _RIGHT - smallest
    u = start[:, None] + (stop - start)[:, None] * torch.linspace(0, 1, _STEPS, dtype=mean.dtype, device=mean.device)
    lost = torch.zeros_like(mean[..., None] * u[:, None])  # 1 − E[exp(−exp(f + u))], right to its own size where small
    for z, log_weight in zip(*gauss_hermite(_NODES), strict=True):
        lost = lost - log_weight.exp() * torch.expm1(-(mean + float(z) * sd)[..., None].add(u[:, None]).exp())
    survival = (log_counts.exp()[..., None] * torch.log1p(-lost.clamp_max(_MOST))).sum(1).exp()
    first = start + torch.trapezoid(survival, u)
    # 2 u P(X > u) does not level out at its lower end, where its slope is 2: the rule is short of it by step²/6.
    second = start.square() + torch.trapezoid(2 * u * survival, u) + ((stop - start) / (_STEPS - 1)).square() / 6
    return -first - EULER, (second - first.square() - math.pi**2 / 6).clamp_min(0.0)


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
