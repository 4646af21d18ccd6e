"""The latent: a distribution of the model's outputs f at N inputs, and what it says about the outcomes y.

The final forms answer the same questions, so that a `Predictive` never asks which posterior it came from: a Gaussian
(linear and linearised models), of many classes perhaps its margins alone, draws (samples, ensembles, points) and a
mixture of these.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import Self, cast, final

import torch
from torch import Tensor

from bayescope.likelihoods import (
    POINTS,
    Likelihood,
    Moments,
    OwnOfSeveral,
    between_counts,
    crps_of_mixture,
    crps_of_numbers,
    entropy_of_mixture,
    entropy_of_numbers,
    information_of_draws,
    information_of_mixture,
    mixture_cdf,
    mixture_quantile,
    quantile_of_numbers,
)
from bayescope.likelihoods.elementwise import Elementwise
from bayescope.quadrature import normal_nodes
from bayescope.tape.tape import block_bytes, row_blocks

# Nodes for quantiles of class probabilities with more than two classes: their spacing bounds the error in level.
QUANTILE_NODES = 4096
# Probabilities of outcomes that a search for quantiles, or an entropy, leaves out.
TAIL = 1e-13
# The mass beyond the last whole number of those whose probabilities are summed.
COUNT_TAIL = 1e-8
# The CRPS of counts is a sum where these are as many numbers at most, and else an integral.
SUMMED_COUNTS = 256.0
# Draws of f for rows with missing inputs, where f is given by draws: at least this many.
FEWEST_DRAWS = 256
# Groups of draws whose two moments stand for them where F(y∣f) is averaged many times, and the error of that average.
GROUPS, CONDENSED = 64, 1e-5
# Moments are taken over the draws of as many rows at once as these bytes hold.
MOMENT_BYTES = 256 * 2**20


def by_part(question: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A question that the parts of a `Joint` answer, each for its own number: side by side, or summed if one a row."""

    @wraps(question)
    def answer(latent: Latent, likelihood: Likelihood, *arguments: Tensor | float) -> Tensor:
        if not likelihood.parts:
            return question(latent, likelihood, *arguments)
        each = []
        for d, part in enumerate(likelihood.parts):
            column = (value[:, d : d + 1] if isinstance(value, Tensor) else value for value in arguments)
            each.append(answer(latent.of_part(d, part), part, *column))
        return torch.cat(each, -1) if each[0].ndim == 2 else torch.stack(each).sum(0)

    return answer


def _of_outcome(question: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A question of `by_part`, which a number that depends on several outputs answers by its average over f."""
    asked = by_part(question)

    @wraps(question)
    def answer(latent: Latent, likelihood: Likelihood, *arguments: Tensor | float) -> Tensor:
        if isinstance(likelihood, OwnOfSeveral) and not likelihood.domain.elementwise:
            likelihood, f = likelihood.averaged(*latent.points(POINTS))
            latent = DrawsLatent(f[None])
        return asked(latent, likelihood, *arguments)

    return answer


class Latent(ABC):
    """A distribution of f, shape (N, C), with the rows' joint left aside.

    Attributes:
        mean: E[f] at each input, shape (N, C).
    """

    mean: Tensor

    @property
    @abstractmethod
    def cov(self) -> Tensor:
        """Cov[f] per row, shape (N, C, C)."""

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """The diagonal of `cov`, shape (N, C)."""

    @abstractmethod
    def moments(self, likelihood: Likelihood) -> Moments:
        """Mean, aleatoric and epistemic variance of y, each of shape (N, K)."""

    @abstractmethod
    def expected(self, likelihood: Likelihood) -> Tensor:
        """The mean of `moments`, shape (N, K), to the last bit the same, without the work of its variances."""

    @abstractmethod
    def mutual_information(self, likelihood: Likelihood) -> Tensor:
        """I(y; f) in nats, shape (N,), each label or output of a row for itself and summed."""

    def log_prob(self, likelihood: Likelihood, y: Tensor) -> Tensor:
        """log ∫ p(y∣f) q(f) df per row, shape (N,), times its weight; of soft labels the mean over the labels."""
        outcomes, weights = likelihood.apart(y)
        plain = likelihood if weights is None else likelihood.unweighted
        if plain.soft(outcomes):
            found = plain.cross_entropy(outcomes, self.expected(plain)).neg()
        else:
            found = self._log_prob(plain, outcomes)
        return found if weights is None else found * weights.to(found)

    @abstractmethod
    def _log_prob(self, likelihood: Likelihood, y: Tensor) -> Tensor:
        """log ∫ p(y∣f) q(f) df per row, shape (N,), of labels or numbers that count once each."""

    @abstractmethod
    def log_density(self, likelihood: Likelihood, y: Tensor) -> Tensor:
        """log ∫ p(y_d∣f) q(f) df of each number of an outcome by itself, shape (N, D)."""

    @abstractmethod
    def cdf(self, likelihood: Likelihood, y: Tensor) -> Tensor:
        """P(y_d' ≤ y_d) of each number of an outcome by itself, shape (N, D)."""

    @abstractmethod
    def conditional_entropy(self, likelihood: Likelihood) -> Tensor:
        """E H[y_d∣f] in nats of each number of an outcome by itself, shape (N, D)."""

    @abstractmethod
    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n draws of f, shape (n, N, C); rows are drawn independently where the form holds marginals only."""

    @abstractmethod
    def quantile(self, level: float) -> Tensor:
        """The quantile of each output, shape (N, C)."""

    @abstractmethod
    def expected_quantile(self, likelihood: Likelihood, level: float) -> Tensor:
        """The quantile of E(y∣f) per outcome column (class probabilities for classes), shape (N, K)."""

    @abstractmethod
    def components(self, likelihood: Likelihood) -> tuple[Tensor, Tensor, Tensor]:
        """Log weights (S,), means and variances (S, N, K) of the Gaussians that make up y, Gaussian given f."""

    @abstractmethod
    def integration_error(self, likelihood: Likelihood) -> Tensor:
        """The standard error of the means of `moments` as integrals over this distribution, shape (N, K).

        Raises:
            UnsupportedError: for a closed form that is an approximation, whose error is unknown.
        """

    @abstractmethod
    def pooled(self, rows: Tensor, nodes: Self, owners: Tensor) -> Self:
        """The latent with some rows integrated over inputs that they lack, by the law of total covariance.

        f has the mean E_x E[f∣x] and the covariance E_x Cov[f∣x] + Cov_x E[f∣x], x being what is missing.

        Args:
            rows: which rows, int64 of shape (R,).
            nodes: the latent at M nodes of x, of the same kind.
            owners: node m is one of the equally weighted nodes of rows[owners[m]], int64 of shape (M,).
        """

    @abstractmethod
    def shifted(self, offset: Tensor) -> Latent:
        """The latent of f + offset, for an offset of shape (N, C)."""

    @_of_outcome
    def outcome_quantile(self, likelihood: Likelihood, level: float | Tensor) -> Tensor:
        """The smallest number y_d with P(y_d' ≤ y_d) ≥ level, shape (N, D); the level may be one for each number.

        Raises:
            UnsupportedError: if y is a class label.
        """
        if likelihood.gaussian_outcome:
            return mixture_quantile(*self.components(likelihood), cast(float, level))
        if self._known:
            return likelihood.quantile(self.mean, level)
        of = self.condensed(likelihood)
        low, high = of._outcome_ends(likelihood, level)
        return quantile_of_numbers(lambda y: of.cdf(likelihood, y), low, high, level, integer=likelihood.domain.integer)

    @_of_outcome
    def outcome_cdf(self, likelihood: Likelihood, y: Tensor) -> Tensor:
        """P(Y_d ≤ y_d) of each number, shape (N, D)."""
        return mixture_cdf(*self.components(likelihood), y) if likelihood.gaussian_outcome else self.cdf(likelihood, y)

    @_of_outcome
    def entropy(self, likelihood: Likelihood) -> Tensor:
        """H[y] in nats of numbers y, each by itself and summed, shape (N,)."""
        if likelihood.gaussian_outcome:
            return entropy_of_mixture(*self.components(likelihood))
        if self._known:
            return self.conditional_entropy(likelihood).sum(-1)
        density = partial(self.log_density, likelihood)
        return entropy_of_numbers(likelihood.domain, density, *self._outcome_reach(likelihood)).sum(-1)

    @_of_outcome
    def crps(self, likelihood: Likelihood, y: Tensor) -> Tensor:
        """∫ (F(x) − 1{x ≥ y_d})² dx of each number of an outcome by itself, shape (N, D)."""
        if likelihood.gaussian_outcome:
            return crps_of_mixture(*self.components(likelihood), y)
        if not likelihood.domain.integer:
            of = self.condensed(likelihood)
            return of._integrated_crps(likelihood, y, partial(of.cdf, likelihood))
        high = torch.maximum(self._outcome_ends(likelihood, 1.0 - COUNT_TAIL)[1], y)
        few, found = high <= SUMMED_COUNTS, torch.zeros_like(y)
        if (rows := few.any(-1)).any():
            found[rows] = self.taken(rows)._summed_crps(likelihood, y[rows], few[rows])
        if (rows := ~few.all(-1)).any():
            some = self.taken(rows)
            cdf = partial(between_counts, partial(some.cdf, likelihood))
            found[rows] = torch.where(few[rows], found[rows], some._integrated_crps(likelihood, y[rows], cdf))
        return found

    @abstractmethod
    def taken(self, rows: Tensor) -> Latent:
        """The latent of some rows, by a mask or by their numbers."""

    @abstractmethod
    def joined(self, others: Sequence[Self], generator: torch.Generator) -> Self:
        """The latent of these rows, and after them of those of other latents of the same kind.

        Args:
            others: latents of other rows, in their order.
            generator: makes the draws of f anew for all rows, where draws are the integral over a Gaussian.
        """

    @abstractmethod
    def points(self, count: int) -> tuple[Tensor, Tensor]:
        """Log weights (S,) and points (S, N, C) of f, of which each Gaussian gets this many and a draw is one."""

    @abstractmethod
    def of_part(self, place: int, part: Likelihood) -> Latent:
        """The latent of one output, as a part of a `Joint` takes it."""

    def condensed(self, likelihood: Likelihood) -> Latent:
        """A latent whose `cdf` is right to `CONDENSED` and costs less, for searches and integrals over y."""
        return self

    def _summed_crps(self, likelihood: Likelihood, y: Tensor, few: Tensor) -> Tensor:
        """Σ_k (F(k) − 1{k ≥ y_d})² over whole numbers, right where a mask says that few of them have mass."""
        below, total, k = torch.zeros_like(y), torch.zeros_like(y), torch.zeros_like(y)
        while bool(((k <= y) | (below < 1.0 - COUNT_TAIL))[few].any()):
            below = (below + self.log_density(likelihood, k).exp()).clamp(max=1.0)
            total = total + (below - (k >= y).to(below)).square()
            k = k + 1.0
        return total

    def _integrated_crps(self, likelihood: Likelihood, y: Tensor, cdf: Callable[[Tensor], Tensor]) -> Tensor:
        least = cdf(torch.zeros_like(y)) if likelihood.domain.atom else 0.0  # the quartiles of the others
        quartiles = [self.outcome_quantile(likelihood, least + (1.0 - least) * share) for share in (0.25, 0.75)]
        return crps_of_numbers(cdf, y, *self._outcome_reach(likelihood), (quartiles[0], quartiles[1]))

    @property
    def _known(self) -> bool:
        """Whether f is one number."""
        return torch.equal(self.quantile(TAIL), self.quantile(1.0 - TAIL))

    def _outcome_reach(self, likelihood: Likelihood) -> tuple[Tensor, Tensor]:
        """Numbers between which all but 2e-13 of y is, (N, D)."""
        return self._outcome_ends(likelihood, TAIL)[0], self._outcome_ends(likelihood, 1.0 - TAIL)[1]

    def _outcome_ends(self, likelihood: Likelihood, level: float | Tensor) -> tuple[Tensor, Tensor]:
        """Bounds of the quantile of y, (N, D): all but 1e-13 of f is between those whose quantiles they are."""
        ends = torch.stack([likelihood.quantile(self.quantile(at), level) for at in (TAIL, 1.0 - TAIL)])
        return ends.amin(0), ends.amax(0)

    def _information_of_numbers(self, likelihood: Likelihood) -> Tensor:
        """I(y; f) of numbers y, each by itself and summed, as a difference of entropies, shape (N,)."""
        return (self.entropy(likelihood) - self.conditional_entropy(likelihood).sum(-1)).clamp_min(0.0)


@final
@dataclass(frozen=True)
class DrawsLatent(Latent):
    """Equally weighted draws of f, shape (S, N, C)."""

    values: Tensor

    def shifted(self, offset: Tensor) -> DrawsLatent:
        return DrawsLatent(self.values + offset.to(self.values))

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        """The average over the draws, shape (N, C)."""
        return self.values.mean(0)

    @property
    def cov(self) -> Tensor:
        """The draws' covariance per row (divided by S), shape (N, C, C)."""
        centred = self.values - self.mean
        return torch.einsum("snc,snd->ncd", centred, centred) / self.values.shape[0]

    @property
    def variance(self) -> Tensor:
        """The draws' variance per output (divided by S), shape (N, C)."""
        return self.values.var(0, correction=0)

    def taken(self, rows: Tensor) -> DrawsLatent:
        return DrawsLatent(self.values[:, rows])

    def joined(self, others: Sequence[DrawsLatent], generator: torch.Generator) -> DrawsLatent:
        return DrawsLatent(torch.cat([self.values, *(other.values for other in others)], 1))

    def condensed(self, likelihood: Likelihood) -> Latent:
        """Two points for each of `GROUPS` groups of neighbouring draws, with the group's mean and variance.

        The mean of F(y∣f) over a group then errs by its third derivative alone: about that of a normal distribution
        function of f whose width is the inverse root of the Fisher information, 0.4/width³.
        """
        count = len(self.values)
        if count < 4 * GROUPS or likelihood.kinked or not isinstance(likelihood, Elementwise):
            return self
        centre = self.values.mean(0)
        ranked = (self.values - centre).sort(0).values
        place = torch.linspace(0.0, count, GROUPS + 1, dtype=torch.float64)
        before = place.floor().clamp(max=count - 1).long()
        share = (place - before).to(ranked)[:, None, None]

        def means(values: Tensor) -> Tensor:
            """Of each group, to which the draws at its ends may belong in part."""
            whole = torch.cat([values.new_zeros(1, *values.shape[1:]), values.cumsum(0)])[before]
            return (whole + share * values[before]).diff(dim=0) * (GROUPS / count)

        mean = means(ranked)
        sd = (means(ranked.square()) - mean.square()).clamp_min(0.0).sqrt()
        relative = sd * likelihood.fisher(centre + mean).sqrt()
        if not float((relative**3).mean(0).max()) / 10.0 <= CONDENSED:
            return self
        return DrawsLatent(centre + torch.cat([mean - sd, mean + sd]))

    def points(self, count: int) -> tuple[Tensor, Tensor]:
        return self.values.new_full((len(self.values),), -math.log(len(self.values))), self.values

    def of_part(self, place: int, part: Likelihood) -> DrawsLatent:
        return DrawsLatent(self.values[..., place, None])

    def moments(self, likelihood: Likelihood) -> Moments:
        """The law of total variance over the draws, some rows at a time where all of them are very many numbers."""
        parts = []
        for values in self._blocks():
            mean, variance = likelihood.conditional(values)
            centre = mean.mean(0)
            parts.append((centre, variance.mean(0), (mean - centre).square().mean(0)))
        return Moments(*(torch.cat(column) for column in zip(*parts, strict=True)))

    def expected(self, likelihood: Likelihood) -> Tensor:
        """The average of E(y∣f) over the draws, by the same blocks of rows."""
        return torch.cat([likelihood.conditional(values)[0].mean(0) for values in self._blocks()])

    @by_part
    def mutual_information(self, likelihood: Likelihood) -> Tensor:
        """What y tells of which draw f is: at most log S for each label or output."""
        if likelihood.gaussian_outcome:
            return information_of_mixture(*self.components(likelihood))
        if not likelihood.discrete:
            return self._information_of_numbers(likelihood)
        columns = likelihood.conditional(self.values)[0]
        draws = likelihood.distributions(columns, self.values.shape[-1])
        return information_of_draws(draws, draws.new_full((len(draws),), 1.0 / len(draws))).sum(-1)

    def _log_prob(self, likelihood: Likelihood, y: Tensor) -> Tensor:
        """The log of the mean density over draws, log S⁻¹ Σ_s p(y∣f_s)."""
        return torch.logsumexp(likelihood.log_prob(self.values, y), 0) - math.log(self.values.shape[0])

    def log_density(self, likelihood: Likelihood, y: Tensor) -> Tensor:
        return torch.logsumexp(likelihood.log_density(self.values, y), 0) - math.log(self.values.shape[0])

    def cdf(self, likelihood: Likelihood, y: Tensor) -> Tensor:
        return likelihood.cdf(self.values, y).mean(0)

    def conditional_entropy(self, likelihood: Likelihood) -> Tensor:
        return likelihood.entropy(self.values).mean(0)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n of the draws, with replacement."""
        return self.values[torch.randint(self.values.shape[0], (n,), generator=generator)]

    def quantile(self, level: float) -> Tensor:
        """The empirical quantile of each output."""
        return empirical_quantile(self.values, level)

    def expected_quantile(self, likelihood: Likelihood, level: float) -> Tensor:
        """The empirical quantile of E(y∣f)."""
        return empirical_quantile(likelihood.conditional(self.values)[0], level)

    def components(self, likelihood: Likelihood) -> tuple[Tensor, Tensor, Tensor]:
        """The Gaussian of y under each draw."""
        mean, variance = likelihood.conditional(self.values)
        return mean.new_full((mean.shape[0],), -math.log(mean.shape[0])), mean, variance.expand_as(mean)

    def integration_error(self, likelihood: Likelihood) -> Tensor:
        """The draws' standard deviation over √S, as of independent draws; 0 for a point."""
        mean = likelihood.conditional(self.values)[0]
        return mean.std(0, correction=0) / math.sqrt(max(1, mean.shape[0] - 1))

    def pooled(self, rows: Tensor, nodes: DrawsLatent, owners: Tensor) -> DrawsLatent:
        """Each draw's mean over the nodes of a row, plus Gaussian noise with the covariance of f over the nodes."""
        means = torch.stack([averages(draw, owners, len(rows)) for draw in nodes.values])
        apart = nodes.values - means[:, owners]
        cov = averages(torch.einsum("smc,smd->mcd", apart, apart) / len(apart), owners, len(rows))
        eigenvalues, vectors = torch.linalg.eigh(cov)
        root = vectors * eigenvalues.clamp(min=0.0).sqrt()[..., None, :]
        means = means.repeat_interleave(-(-FEWEST_DRAWS // len(means)), 0)
        count = 1 << (len(means) - 1).bit_length()
        noise = normal_nodes(cov.shape[-1], count).to(means)[: len(means)]
        return self.with_rows(rows, means + torch.einsum("bcd,sd->sbc", root, noise))

    def with_rows(self, rows: Tensor, values: Tensor) -> DrawsLatent:
        """The draws with others for some rows, shape (S', R, C), where S' is a multiple of S."""
        repeated = self.values.repeat_interleave(len(values) // len(self.values), 0)
        return DrawsLatent(repeated.index_copy(1, rows, values))

    def _blocks(self) -> list[Tensor]:
        """The draws of some rows at a time, as many as take `MOMENT_BYTES`; of no rows, one block."""
        draws, rows, outputs = self.values.shape
        blocks = list(row_blocks(rows, 8 * draws * outputs, block_bytes(MOMENT_BYTES))) or [slice(None)]
        return [self.values[:, some] for some in blocks]


def monotone_quantile(latent: Latent, likelihood: Likelihood, level: float) -> Tensor:
    """The quantile of E(y∣f) where each of its columns rises or falls with one output alone."""
    ends = torch.stack([likelihood.conditional(latent.quantile(at))[0] for at in (level, 1.0 - level)])
    return ends.amin(0) if level < 0.5 else ends.amax(0)


def empirical_quantile(values: Tensor, level: float) -> Tensor:
    """The empirical quantile over the first dimension, linear between order statistics."""
    position = level * (values.shape[0] - 1)
    lower = int(position)
    upper = min(lower + 1, values.shape[0] - 1)
    ordered = values.sort(0).values
    return ordered[lower] + (position - lower) * (ordered[upper] - ordered[lower])


def averages(values: Tensor, owners: Tensor, rows: int) -> Tensor:
    """The averages over the nodes of each row, shape (rows, ...), of values (M, ...) at the nodes."""
    counts = torch.bincount(owners, minlength=rows).reshape(-1, *[1] * (values.ndim - 1)).to(values)
    return values.new_zeros(rows, *values.shape[1:]).index_add_(0, owners, values) / counts
