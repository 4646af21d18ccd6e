"""The ordinal likelihood: one of several ordered classes, by where a latent number falls between cutpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError
from bayescope.likelihoods.curvatures import DiagonalLambdas
from bayescope.likelihoods.elementwise import hyperparameter
from bayescope.likelihoods.information import divergence
from bayescope.likelihoods.likelihood import Domain, Integral, Likelihood, Moments, variances
from bayescope.likelihoods.location import Errors, LogisticErrors, NormalErrors
from bayescope.likelihoods.mixtures import normal_quantile
from bayescope.likelihoods.targets import LabelError, labels_in_rows
from bayescope.quadrature import log_expected_sigmoid
from bayescope.storage import stored

_ERRORS: dict[str, Errors] = {"logit": LogisticErrors(), "probit": NormalErrors()}
_HALF = -math.log(2.0)
# Nodes over f: within this many sds, and this many for each unit of it, beside the least and the most there are.
_REACH, _DENSITY, _LEAST, _MOST = 7.5, 24, 28, 4096
_BLOCK_NUMBERS = 2**20
# The distance of f from the middle of a class is sought up to this many sds beyond that of its mean, by halvings.
_FARTHEST, _HALVINGS = 10.0, 60


@stored("ordinal")
@final
@dataclass(frozen=True, eq=False)
class Ordinal(Likelihood):
    """P(y ≤ k∣f) = F(c_k − f) for K ordered classes and one output: the cumulative model (McCullagh 1980).

    F is the logistic (proportional odds) or the normal distribution function: y is the interval between the cutpoints
    c_0 < … < c_{K−2} in which f plus an error falls, so that a larger f makes later classes more probable. A constant
    added to f and to all cutpoints changes nothing: the cutpoints are free, and a model needs no intercept of its own.

    Canonical targets are int64 of shape (N,). The K outcome columns are the indicators of the classes. The density is
    log-concave in f; the GGN takes the observed Λ. Under f ~ N(m, v) probabilities are exact for the probit link, where
    they are those of (c_k − m)/√(1 + v); for the logit link they are right to 1e-10, in the tails too.

    Args:
        link: "logit" or "probit".
        cutpoints: K − 1 increasing numbers, or "evidence" if they are to be learnt.
        classes: K, of cutpoints that are to be learnt; ``None`` for the number of classes up to the highest label.

    Raises:
        InputError: if the cutpoints do not increase.
        OptionError: if the link is unknown, or the cutpoints are another word than "evidence".
    """

    link: Literal["logit", "probit"] = "logit"
    cutpoints: Tensor | str = "evidence"
    classes: int | None = None

    domain = Domain("ordered", elementwise=False)
    hyperparameters: ClassVar[Mapping[str, str]] = {"cutpoints": "ordered"}

    def __init__(
        self,
        link: Literal["logit", "probit"] = "logit",
        cutpoints: ArrayLike | Literal["evidence"] = "evidence",
        classes: int | None = None,
    ) -> None:
        object.__setattr__(self, "link", checks.choice("link", link, tuple(_ERRORS)))
        object.__setattr__(self, "cutpoints", hyperparameter("cutpoints", cutpoints, _increasing))
        object.__setattr__(self, "classes", None if classes is None else checks.count("classes", classes))

    @property
    def name(self) -> str:
        """``"ordinal"`` for the logit link, ``"ordinal_probit"`` for the probit link."""
        return "ordinal" if self.link == "logit" else "ordinal_probit"

    def targets(self, y: ArrayLike, outputs: int) -> Tensor:
        """Checks whole numbers 0…K−1 and returns them in int64, shape (N,).

        Args:
            y: shape (N,) or (N, 1).
            outputs: 1.

        Raises:
            InputError: if there is more than one output, or a label is none of 0…K−1.
        """
        if outputs != 1:
            raise InputError(f"outputs: expected 1 for the ordinal likelihood, got {outputs}. Its classes share it.")
        labels = labels_in_rows(y, "ordered classes of")
        last = "…" if isinstance(self.cutpoints, str) else f"…{len(self.cutpoints)}"
        wrong = (labels < 0) | (labels != labels.floor())
        if not isinstance(self.cutpoints, str):
            wrong |= labels > len(self.cutpoints)
        if wrong.any():
            row = int(torch.nonzero(wrong)[0])
            advice = "Number the levels from 0 in their order, or use the categorical likelihood where they have none."
            raise LabelError(f"ordered classes 0{last}", f"{labels[row].item():g}", row, advice)
        return labels.to(torch.int64)

    def starting(self, y: Tensor) -> Ordinal:
        """The cutpoints at which f = 0 gives the classes their frequencies, of one row more each."""
        if not self.learnable:
            return self
        counts = torch.bincount(y, minlength=self.classes or 0).to(torch.float64) + 1.0
        if len(counts) < 2:
            raise InputError("y: expected at least two ordered classes, got one. There is nothing to learn.")
        below = (counts.cumsum(0) / counts.sum())[:-1]
        return self.with_hyperparameters(
            cutpoints=torch.logit(below) if self.link == "logit" else torch.special.ndtri(below)
        )

    def constant(self, y: Tensor) -> Tensor:
        """0, which the cutpoints are about."""
        return torch.zeros(1, dtype=torch.float64)

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """log(F(c_y − f) − F(c_{y−1} − f)), shape (..., N)."""
        return self._errors.between(*self._around(f, y)).log_prob[..., 0]

    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        """∂ log p/∂f, shape (..., N, 1)."""
        return self._errors.between(*self._around(f, y)).slope

    def observed(self, f: Tensor, y: Tensor) -> DiagonalLambdas:
        return DiagonalLambdas(self._errors.between(*self._around(f, y)).bend)

    def expected(self, f: Tensor) -> DiagonalLambdas:
        """Λ = Σ_k p_k (∂ log p_k/∂f)²."""
        at = self._errors.between(*self._classes(f))
        return DiagonalLambdas((at.log_prob.exp() * at.slope.square()).sum(-1, keepdim=True))

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """Draws labels, int64 of shape (..., N): the number of cutpoints below f plus an error."""
        uniform = torch.rand(f.shape, dtype=torch.float64, device=generator.device, generator=generator).to(f.device)
        error = torch.logit(uniform) if self.link == "logit" else torch.special.ndtri(uniform)
        latent = f.to(torch.float64) + error
        return (latent > self._cuts(latent)).sum(-1)

    def conditional(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """p and p(1 − p) per class, each (..., N, K)."""
        a, b = self._classes(f)
        p = self._errors.between(a, b).log_prob.exp()
        rest = self._errors.lower(a).log_mass.exp() + self._errors.upper(b).log_mass.exp()
        return p, p * rest

    def probability_quantile(self, mean: Tensor, variance: Tensor, level: float) -> Tensor:
        """The quantile of P(y = k∣f) of each class under f ~ N(mean, variance), both of shape (N, 1), shape (N, K).

        Of the first class P(y = k∣f) falls with f, of the last one it rises. Between two cutpoints it falls with the
        distance of f from their middle, whose quantile, that of a folded normal, is found by bisection.
        """
        edges = self._edges(mean)
        sd, reach = variance.sqrt(), normal_quantile(level) * variance.sqrt()
        middle = 0.5 * (edges[1:-2] + edges[2:-1])
        apart = (mean - middle).abs()
        low, high = torch.zeros_like(apart), apart + _FARTHEST * sd
        for _ in range(_HALVINGS):
            distance, scale = 0.5 * (low + high), sd.clamp_min(torch.finfo(sd.dtype).tiny)
            mass = torch.special.ndtr((distance - apart) / scale) - torch.special.ndtr(-(distance + apart) / scale)
            farther = mass < 1.0 - level
            low, high = torch.where(farther, distance, low), torch.where(farther, high, distance)
        f = torch.cat([mean - reach, middle + low, mean + reach], -1)
        return self._errors.between(edges[:-1] - f, edges[1:] - f).log_prob.exp()

    @property
    def integrals(self) -> Mapping[str, Integral]:
        return {"quadrature" if self.link == "logit" else "exact": _OverClasses(self)}

    @property
    def _errors(self) -> Errors:
        return _ERRORS[self.link]

    def _cuts(self, f: Tensor) -> Tensor:
        if isinstance(self.cutpoints, str):
            raise InputError(
                "cutpoints: expected numbers, got 'evidence', which has not been learnt yet. Fit a posterior that "
                "learns them, or give their values: likelihood.with_hyperparameters(cutpoints=values)."
            )
        return self.cutpoints.to(f)

    def _edges(self, f: Tensor) -> Tensor:
        """−∞, the cutpoints and ∞."""
        cuts = self._cuts(f)
        end = cuts.new_full((1,), math.inf)
        return torch.cat([-end, cuts, end])

    def _around(self, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The errors at the edges of a row's class, each (..., N, 1)."""
        edges, place = self._edges(f), y.to(f.device)
        if place.numel() and int(place.max()) > len(edges) - 2:
            raise InputError(
                f"y: expected ordered classes 0…{len(edges) - 2}, got {int(place.max())}. Learn the cutpoints again."
            )
        return edges[place][:, None] - f, edges[place + 1][:, None] - f

    def _classes(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """The errors at the edges of each class, each (..., N, K)."""
        edges = self._edges(f)
        return edges[:-1] - f, edges[1:] - f


@final
@dataclass(frozen=True)
class _OverClasses(Integral):
    """The integral over the one output: probabilities by closed forms or to 1e-10, variances by nodes."""

    likelihood: Ordinal

    needs_covariance = False

    def moments(self, mean: Tensor, cov: Tensor) -> Moments:
        parts = [self._parts(*block) for block in self._blocks(mean, cov)]
        aleatoric, epistemic = (torch.cat(each) for each in zip(*parts, strict=True))
        # The nodes tell how the variance divides; its sum follows from the mean
        p, rest = (each.exp() for each in self._log_probabilities(mean, variances(cov)))
        total = aleatoric + epistemic
        share = torch.where(total > 0, epistemic / torch.where(total > 0, total, 1.0), 0.0)
        return Moments(p, (1.0 - share) * p * rest, share * p * rest)

    def mean(self, mean: Tensor, cov: Tensor) -> Tensor:
        return self._log_probabilities(mean, variances(cov))[0].exp()

    def log_prob(self, mean: Tensor, cov: Tensor, y: Tensor) -> Tensor:
        """The logarithm of `mean` at the label, also below what a float holds."""
        return self._log_probabilities(mean, variances(cov))[0].take_along_dim(y[:, None], -1)[:, 0]

    def information(self, mean: Tensor, cov: Tensor) -> Tensor:
        """I(y; f), right to 1e-10."""

        def told(mean: Tensor, variance: Tensor) -> Tensor:
            p, weights = self._at_nodes(mean, variance)
            return torch.tensordot(weights, divergence(p, torch.tensordot(weights, p, dims=1)), dims=1)

        return torch.cat([told(*block) for block in self._blocks(mean, cov)])

    def _log_probabilities(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """log P(y = k) and log P(y ≠ k), each (N, K)."""
        likelihood = self.likelihood
        if likelihood.link == "probit":
            scale = (1.0 + variance).rsqrt()
            a, b = (scale * edge for edge in likelihood._classes(mean))
            rest = torch.logaddexp(likelihood._errors.lower(a).log_mass, likelihood._errors.upper(b).log_mass)
            return likelihood._errors.between(a, b).log_prob, rest
        gaps = likelihood._cuts(mean) - mean
        wide = variance.expand(gaps.shape)
        below, above = log_expected_sigmoid(gaps, wide), log_expected_sigmoid(-gaps, wide)
        none, all_ = torch.full_like(mean, -math.inf), torch.zeros_like(mean)
        # Of each class: log P(y < k) and log P(y ≤ k), log P(y > k) and log P(y ≥ k)
        less, up_to = torch.cat([none, below], -1), torch.cat([below, all_], -1)
        more, from_ = torch.cat([above, none], -1), torch.cat([all_, above], -1)
        right, left = from_ < _HALF, up_to < _HALF
        near, far = torch.where(right, from_, up_to), torch.where(right, more, less)
        tail = near + torch.log(-torch.expm1(torch.where(right | left, far - near, -1.0)))
        rest = torch.logaddexp(less, more)
        return torch.where(right | left, tail, torch.log1p(-torch.where(right | left, 0.0, rest.exp()))), rest

    def _parts(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """E[p(1 − p)] and Var[p], each (N, K)."""
        p, weights = self._at_nodes(mean, variance)
        average = torch.tensordot(weights, p, dims=1)
        return tuple(torch.tensordot(weights, each, dims=1) for each in (p * (1.0 - p), (p - average).square()))

    def _at_nodes(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """p at evenly spaced f, (S, N, K), and their weights (S,)."""
        sd = variance.sqrt()
        z = torch.linspace(-_REACH, _REACH, _node_count(sd), dtype=mean.dtype, device=mean.device)
        p = self.likelihood.conditional(mean + sd * z[:, None, None])[0]
        return p, torch.softmax(-0.5 * z.square(), 0)

    def _blocks(self, mean: Tensor, cov: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Rows that are taken at once."""
        variance = variances(cov)
        size = max(1, _BLOCK_NUMBERS // (_node_count(variance.sqrt()) * (len(self.likelihood._cuts(mean)) + 1)))
        return list(zip(mean.split(size), variance.split(size), strict=True))


def _node_count(sd: Tensor) -> int:
    largest = float(sd.detach().max()) if sd.numel() else 0.0
    return int(min(_MOST, _LEAST + math.ceil(_DENSITY * largest)))


def _increasing(name: str, value: Any) -> Tensor:
    """Numbers that increase, float64 of shape (K − 1,).

    Raises:
        InputError: if they do not.
    """
    found = checks.float64(name, value)
    if found.ndim != 1 or not len(found) or (found.diff() <= 0).any():
        raise InputError(f"{name}: expected increasing numbers of shape (K - 1,), got {found.tolist()}. Sort them.")
    return found
