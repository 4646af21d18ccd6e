"""Likelihoods of numbers that each depend on one output, and their integrals over a Gaussian output."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast, final

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bayescope import checks
from bayescope.likelihoods.curvatures import DiagonalLambdas
from bayescope.likelihoods.likelihood import Domain, Integral, Likelihood, Moments, correlated, variances
from bayescope.likelihoods.numbers import entropy_of_numbers
from bayescope.likelihoods.quasi_monte_carlo import log_expected, principal_root
from bayescope.likelihoods.targets import LabelError, numbers_in_columns
from bayescope.quadrature import activation_nodes, log_integral

# The integrand p(y∣f) N(f) is followed down to exp(−_DEPTH) of its peak.
_DEPTH = 42.0
_ROW_BLOCK = 1024
# Tail probabilities that bound the search for quantiles, and the sum or integral over y of an entropy.
_TAIL = 1e-13
_REACH = 7.5
# Beyond this a count has the same float64 as its neighbours.
_MOST_COUNT = 2.0**53


class Elementwise(Likelihood):
    """p(y∣f) = Π_d p(y_d∣f_d) for D numbers and D outputs; canonical targets are float64 of shape (N, D).

    A subclass writes the functions up to `distribution`, each elementwise over f of shape (..., N, D).
    """

    @property
    @abstractmethod
    def domain(self) -> Domain:
        """Which numbers y may be."""

    @abstractmethod
    def log_density(self, f: Tensor, y: Tensor) -> Tensor:
        """log p(y_d∣f_d)."""

    @abstractmethod
    def slope(self, f: Tensor, y: Tensor) -> Tensor:
        """∂ log p(y_d∣f_d)/∂f_d."""

    @abstractmethod
    def bend(self, f: Tensor, y: Tensor) -> Tensor:
        """−∂² log p(y_d∣f_d)/∂f_d²."""

    @abstractmethod
    def fisher(self, f: Tensor) -> Tensor:
        """E_{y∣f} of `bend`."""

    @abstractmethod
    def distribution(self, f: np.ndarray) -> Any:
        """p(y∣f) as a frozen distribution of scipy.stats."""

    @abstractmethod
    def place(self, y: Tensor) -> Tensor:
        """A finite f near the one at which log p(y∣f) is largest."""

    def averaged(self, mean: Tensor, variance: Tensor) -> Moments:
        """The moments of y for f ~ N(mean, variance), both of shape (N, D), by quadrature.

        The nodes suit conditional moments whose structure is of unit size around f = 0; overridden by closed forms.
        """
        nodes, log_weights = activation_nodes(mean, variance)
        conditional, scatter = self.conditional(nodes.movedim(-1, 0))
        weights = log_weights.exp().movedim(-1, 0)
        centre = (weights * conditional).sum(0)
        return Moments(centre, (weights * scatter).sum(0), (weights * (conditional - centre).square()).sum(0))

    def log_marginal(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """log ∫ p(y_d∣f_d) N(f_d; mean_d, variance_d) df_d, (N, D), by quadrature; overridden by closed forms.

        With h the log density, z = (f − mean)/sd and M ≥ h, the integrand is below exp(−42) of its value at z = 0
        beyond ½ z² = M − h(mean) + 42.
        """
        sd = variance.sqrt()

        def log_integrand(z: Tensor) -> Tensor:
            at = mean + sd * z.movedim(-1, 0)
            return (self.log_density(at, y)).movedim(0, -1) - 0.5 * z.square()

        at_mean = self.log_density(mean, y)
        with torch.no_grad():
            peak = self.log_density(self._place(mean, y), y) + 1.0
            reach = (2.0 * ((peak - at_mean).clamp_min(0.0) + _DEPTH)).sqrt()
        integral = log_integral(log_integrand, -reach, reach) - 0.5 * math.log(2.0 * math.pi)
        return torch.where(sd > 0, integral, at_mean)

    def marginal_cdf(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """P(y_d' ≤ y_d) for f ~ N(mean, variance), shape (N, D), by quadrature; overridden by closed forms.

        F(y∣f) falls from 1 to 0 around the f where y is most probable, over about the inverse root of the Fisher
        information there: in that unit `activation_nodes` resolve it for any variance of f.
        """
        place, width = self.near(mean, y)
        nodes, log_weights = activation_nodes((mean - place) / width, variance / width.square())
        f = place + width * nodes.movedim(-1, 0)
        return (log_weights.exp().movedim(-1, 0) * self.cdf(f, y)).sum(0).clamp(0.0, 1.0)

    def expected_log_density(self, mean: Tensor, variance: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """E of `log_density`, `slope` and `bend` for f ~ N(mean, variance), all of shape (N, D), by quadrature.

        The nodes resolve the place where y is most probable, in units of its width; overridden by closed forms.
        """
        place, width = self.near(mean, y)
        nodes, log_weights = activation_nodes((mean - place) / width, variance / width.square())
        f, weights = place + width * nodes.movedim(-1, 0), log_weights.exp().movedim(-1, 0)
        log_density, slope, bend = ((weights * each(f, y)).sum(0) for each in (self.log_density, self.slope, self.bend))
        return log_density, slope, bend

    # What follows from these

    def targets(self, y: ArrayLike, outputs: int) -> Tensor:
        """Checks numbers and returns them in float64, shape (N, D).

        Args:
            y: shape (N,) or (N, 1) for D = 1, else (N, D).
            outputs: D.

        Raises:
            InputError: if the shape does not fit, or a number is not finite or outside the domain.
        """
        values = numbers_in_columns(y, outputs, outputs)
        refuse_outside(self.domain, values)
        return values

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Σ_d log p(y_d∣f_d), shape (..., N)."""
        return self.log_density(f, y).sum(-1)

    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        """∂ log p(y∣f)/∂f, shape (..., N, D)."""
        return self.slope(f, y)

    def observed(self, f: Tensor, y: Tensor) -> DiagonalLambdas:
        return DiagonalLambdas(self.bend(f, y))

    def expected(self, f: Tensor) -> DiagonalLambdas:
        return DiagonalLambdas(self.fisher(f))

    def ggn(self, f: Tensor, y: Tensor) -> DiagonalLambdas:
        """The observed Λ, or the expected one for a density that is not log-concave, or has a kink."""
        return self.observed(f, y) if self.log_concave and not self.kinked else self.expected(f)

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """Draws y by inversion, float64, shape (..., N, D): rows that are drawn in batches are the same."""
        level = torch.rand(f.shape, dtype=torch.float64, device=generator.device, generator=generator)
        return self.quantile(f, level.clamp_min(2.0**-54).to(f.device))

    def cdf(self, f: Tensor, y: Tensor) -> Tensor:
        """P(y_d' ≤ y_d∣f_d) for outcomes y that broadcast with f."""
        at = f.detach().to("cpu", torch.float64).numpy()
        return torch.from_numpy(np.asarray(self.distribution(at).cdf(y.cpu().numpy()))).to(f.device)

    def quantile(self, f: Tensor, level: float | Tensor) -> Tensor:
        """The y_d with P(y_d' ≤ y_d∣f_d) ≥ level, the smallest one; the level may be one for each number."""
        at, levels = f.detach().double(), torch.as_tensor(level, dtype=torch.float64)
        if not self.domain.integer:
            return self._inverted(at, levels)
        # scipy has no quantiles of counts beyond 2⁵³; such counts are nearly continuous
        mean, variance = self.conditional(at)
        huge = mean > _MOST_COUNT
        found = self._inverted(torch.where(huge, 0.0, at), levels)
        score = torch.special.ndtri(levels.to(f.device))
        return torch.where(found.isnan() | huge, (mean + score * variance.sqrt()).clamp_min(0.0), found)

    def _inverted(self, f: Tensor, level: Tensor) -> Tensor:
        found = np.asarray(self.distribution(f.cpu().numpy()).ppf(level.cpu().numpy()), dtype=np.float64)
        return torch.from_numpy(found).to(f.device).clamp(self.domain.low, self.domain.high)  # of a certain 0 it is −1

    def entropy(self, f: Tensor) -> Tensor:
        """H[y_d∣f_d] in nats, by quadrature over y; overridden by closed forms."""
        ends = [self.quantile(f, level) for level in (_TAIL, 1.0 - _TAIL)]
        return entropy_of_numbers(self.domain, lambda y: self.log_density(f, y), *ends)

    def constant(self, y: Tensor) -> Tensor:
        """f at the mean of the targets, shape (D,)."""
        return self.place(y.mean(0))

    @property
    def integrals(self) -> Mapping[str, Integral]:
        return {"quadrature": OverOutput(self)}

    def near(self, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The f where y is about most probable, and the width over which log p(y∣f) changes there, at most 1."""
        place = self._place(f, y)
        return place, self.fisher(place).rsqrt().clamp(max=1.0)

    def _place(self, f: Tensor, y: Tensor) -> Tensor:
        """`place` of targets of outputs f, (N, D): four columns may be four numbers, or one in an interval."""
        return self.place(y[..., None])[..., 0] if y.shape[-1] == f.shape[-1] else self.place(y)

    def number(self, name: str) -> np.ndarray:
        """A hyperparameter as an array."""
        return self.value(name, torch.zeros((), dtype=torch.float64)).detach().cpu().numpy()

    def value(self, name: str, f: Tensor) -> Tensor:
        """A hyperparameter in the dtype of f.

        Raises:
            InputError: if it is still to be learnt.
        """
        return self.known(name).to(f)


def hyperparameter(name: str, value: ArrayLike | str, check: Any = checks.positive) -> Tensor | str:
    """A hyperparameter of a likelihood as a float64 tensor, or "evidence"; tensors that require a gradient keep it.

    Raises:
        InputError: if it is not positive, or whatever ``check`` asks for.
        OptionError: if it is another word than "evidence".
    """
    if isinstance(value, str):
        return checks.choice(name, value, ["evidence"])
    checked = check(name, value)
    return value.to(torch.float64) if isinstance(value, Tensor) and value.requires_grad else checked.clone()


def one_or_each(values: Tensor) -> Tensor:
    """The value of a hyperparameter for each of several outputs, shape (D,), or the one number of one output."""
    return values if len(values) > 1 else values[0]


def refuse_outside(domain: Domain, values: Tensor) -> None:
    """Refuses numbers outside a domain, shape (N, D).

    Raises:
        LabelError: for the first of them.
    """
    inside = (values >= domain.low) & (values <= domain.high)
    if not domain.closed:
        inside &= (values > domain.low) & (values < domain.high)
    if domain.integer:
        inside &= values == values.round()
    if inside.all():
        return
    row, column = torch.nonzero(~inside)[0].tolist()
    expected, advice = _described(domain)
    place = f"row {row}, column {column}" if values.shape[1] > 1 else ""
    raise LabelError(expected, f"{values[row, column].item():g}", row, advice, place)


def _described(domain: Domain) -> tuple[str, str]:
    """What a number had to be, and what to do if it is not."""
    if domain.integer:
        advice = "Give whole counts, each event counted once, or use a likelihood of amounts such as 'gamma'."
        if domain.high < math.inf:
            return f"whole numbers from {domain.low:g} to {domain.high:g}", "Give more trials, or check the counts."
        return f"whole numbers of at least {domain.low:g}", advice
    if domain.high < math.inf:
        between = "from" if domain.closed else "strictly between"
        advice = f"Divide by the largest value that is possible{'' if domain.closed else ', and move 0 and 1 inside'}."
        return f"numbers {between} {domain.low:g} {'to' if domain.closed else 'and'} {domain.high:g}", advice
    if domain.low > -math.inf:
        bound = "of at least" if domain.closed else "above"
        advice = "Leave such rows out, or use a likelihood of all numbers such as 'gaussian'."
        if domain.low == 0 and not domain.closed:
            advice = "Leave such rows out, or use 'tweedie' for amounts that may be 0, 'gaussian' for all numbers."
        return f"numbers {bound} {domain.low:g}", advice
    return "finite numbers", "Leave such rows out."


@final
@dataclass(frozen=True)
class ExponentialMoments:
    """E(y∣f) = a eᶠ and Var(y∣f) = Σ_j b_j exp(p_j f): of a log link.

    Attributes:
        mean: a.
        variance: the pairs (b_j, p_j).
    """

    mean: Tensor | float
    variance: tuple[tuple[Tensor | float, Tensor | float], ...]

    def conditional(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """E(y∣f) and Var(y∣f), each of f's shape."""
        return self.mean * f.exp(), self._sum(lambda power: (power * f).exp())

    def averaged(self, mean: Tensor, variance: Tensor) -> Moments:
        """The moments of y for f ~ N(mean, variance), by E exp(p f) = exp(p mean + ½ p² variance)."""
        square = 2.0 * mean + variance
        epistemic = self.mean * self.mean * square.exp() * variance.expm1()
        aleatoric = self._sum(lambda power: (power * mean + 0.5 * power * power * variance).exp())
        return Moments(self.mean * (mean + 0.5 * variance).exp(), aleatoric, epistemic)

    def _sum(self, exponential: Any) -> Tensor:
        return cast(Tensor, sum(factor * exponential(power) for factor, power in self.variance))


@final
@dataclass(frozen=True)
class OverOutput(Integral):
    """The integral over each output by itself: moments as `Elementwise.averaged` has them, log p(y) to 1e-9.

    Of several outputs that are correlated log p(y) is that of the joint, by randomised quasi-Monte Carlo.
    """

    likelihood: Elementwise

    def moments(self, mean: Tensor, cov: Tensor) -> Moments:
        blocks = zip(mean.split(_ROW_BLOCK), variances(cov).split(_ROW_BLOCK), strict=True)
        parts = [self.likelihood.averaged(*block) for block in blocks]
        if not parts:
            return self.likelihood.averaged(mean, variances(cov))
        return Moments(*(torch.cat(p) for p in zip(*((m.mean, m.aleatoric, m.epistemic) for m in parts), strict=True)))

    def log_prob(self, mean: Tensor, cov: Tensor, y: Tensor) -> Tensor:
        """log ∫ p(y∣f) N(f; mean, cov) df, shape (N,)."""
        variance = variances(cov)
        blocks = zip(mean.split(_ROW_BLOCK), variance.split(_ROW_BLOCK), y.split(_ROW_BLOCK), strict=True)
        log_prob = torch.cat([self.likelihood.log_marginal(*block) for block in blocks] or [mean]).sum(-1)
        rows = correlated(cov)
        if rows.any():
            root = principal_root(cov[rows], variance[rows].amax(-1))
            joint = log_expected(self.likelihood, mean[rows], root, y[rows])
            log_prob = log_prob.index_put((rows,), joint)
        return log_prob

    def cdf(self, mean: Tensor, cov: Tensor, y: Tensor) -> Tensor:
        """P(y_d' ≤ y_d) of each outcome, shape (N, D)."""
        return self.likelihood.marginal_cdf(mean, variances(cov), y)

    def log_density(self, mean: Tensor, cov: Tensor, y: Tensor) -> Tensor:
        return self.likelihood.log_marginal(mean, variances(cov), y)

    def conditional_entropy(self, mean: Tensor, cov: Tensor) -> Tensor:
        nodes, log_weights = activation_nodes(mean, variances(cov))
        return (log_weights.exp().movedim(-1, 0) * self.likelihood.entropy(nodes.movedim(-1, 0))).sum(0)

    def information(self, mean: Tensor, cov: Tensor) -> Tensor:
        """Σ_d H[y_d] − E H[y_d∣f_d] ≥ 0, shape (N,), right to 1e-6."""
        variance = variances(cov)
        reach = _REACH * variance.sqrt()
        ends = [
            self.likelihood.quantile(mean + side * reach, level) for side in (-1, 1) for level in (_TAIL, 1 - _TAIL)
        ]
        low, high = torch.stack(ends).amin(0), torch.stack(ends).amax(0)
        whole = entropy_of_numbers(self.likelihood.domain, lambda y: self.log_density(mean, cov, y), low, high)
        return (whole - self.conditional_entropy(mean, cov)).clamp_min(0.0).sum(-1)
