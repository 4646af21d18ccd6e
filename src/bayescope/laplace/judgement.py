"""Compare a posterior's predictions with those of the network alone, and choose a prior precision that keeps them good.

Both are judged by the log loss of training rows under the linearised predictive. A posterior that is too wide raises
this loss, and raises the loss of new rows by as much, or by less if the network has overfitted. The comparison errs on
the network's side therefore: a posterior that passes it is hardly ever worse than the network on new rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from bayescope.errors import ConvergenceWarning, NotPositiveDefiniteError, UnsupportedError
from bayescope.laplace.distance import Distance
from bayescope.laplace.evidence import has_noise, mean_square_residual
from bayescope.laplace.fit import LaplaceFit
from bayescope.latent import DrawsLatent, GaussianLatent, Latent
from bayescope.likelihoods import read_targets
from bayescope.likelihoods.targets import SUM_TOLERANCE
from bayescope.network.batches import row_totals
from bayescope.network.inputs import Inputs, take_rows
from bayescope.posterior import DrawsPosterior, GaussianPosterior, Posterior, in_rows
from bayescope.priors import Prior
from bayescope.processes import same, warn_once
from bayescope.tape.tape import row_blocks

# The word for a prior precision that is found by the evidence and the log loss of training rows.
AUTO = "auto"
# Predictions are reported as worse than the network's own where the log loss of training rows is larger by this many
# nats a row: by `WORSE` if the weights are far from a mode, else by `WORSE_AT_A_MODE`. At a mode the exact posterior of
# a linear model has up to ½ log 2 more in each output, where there are no more rows than parameters.
WORSE, WORSE_AT_A_MODE = 0.05, 0.5
# "auto" raises the prior precision until the log loss of training rows is larger by at most `MARGIN`, and by at least
# `SPENT` of it. Over 320 networks on 11 tables the loss of test rows then was larger by at most about twice as much.
# From the prior that a network was trained with, "auto" begins there and allows `WORSE`: of 36 trainings at such modes
# (moons and six tables, prior precisions 0.1 to 10) the loss of test rows was .074 nats lower on average than the
# network's, and .046 higher at most; with `MARGIN` it would be .009 lower and .003 higher.
MARGIN, SPENT = 0.0015, 0.5
# Predictives of 3 to `DRAWN` classes are integrated by draws, which are 20 times quicker than the default integral and
# with 256 of them err by about a tenth of `MARGIN`; those of more classes by the variances alone.
DRAWN = 64
# The share of the determined parameters that weights far from a mode have fitted at least: no noise variance is 0.
LEAST_FITTED = 0.01
# The largest steps of the logarithm of the prior precision, and how many steps there are at most.
STRIDE, STEPS = math.log(1e3), 24
# How many decades below the largest possible prior precision the evidence is searched, and how close in its log.
DECADES, CLOSE = 12, 0.05
# The height of the objective where the matrix A is not positive definite.
WALL = 1e100


class Limits(NamedTuple):
    """How much a comparison reads.

    Attributes:
        cotangents: derivatives of outputs at most, unless the least number of rows takes more.
        least: rows at least.
        places: positions of a row at most.
        draws: of f.
        numbers: outputs times draws that are held at once.
    """

    cotangents: int = 2**16
    least: int = 8
    places: int = 32
    draws: int = 256
    numbers: int = 2**18


LIMITS = Limits()


@final
@dataclass(frozen=True)
class LossComparison:
    """The log loss of training rows under a posterior and under the network at its mode, in nats an observation.

    Attributes:
        observations: how many there are.
        posterior: −log p(y∣x) of the posterior's predictive, on average.
        network: −log p(y∣f*), on average.
    """

    observations: int
    posterior: float
    network: float

    @property
    def excess(self) -> float:
        """How much larger the posterior's loss is."""
        return self.posterior - self.network if math.isfinite(self.posterior) else math.inf

    def __str__(self) -> str:
        return (
            f"a log loss of {self.posterior:.4f} nats on {self.observations:,} training rows, the network's own "
            f"{self.network:.4f}"
        )


def compared(q: Posterior, fit: LaplaceFit, limits: Limits = LIMITS) -> LossComparison | None:
    """The comparison of a posterior with the network on the fit's sample of training rows, where it has one.

    Args:
        q: a posterior of the linearised network.
        fit: what it stands on.
        limits: how much is read.
    """
    sums = [0.0, 0.0, 0.0]
    for block in _blocks(fit, limits):
        found = _losses(q, fit, limits, *block)
        sums = [total + more for total, more in zip(sums, found, strict=True)]
    count, posterior, network = row_totals(*sums)
    return LossComparison(int(count), posterior / count, network / count) if count else None


def warn_if_worse(q: Posterior, fit: LaplaceFit, advice: str, distance: Distance | None = None) -> None:
    """Warns if the posterior predicts training rows worse than the network, by more than an exact posterior would.

    Args:
        q: the posterior.
        fit: what it stands on.
        advice: what to do about it.
        distance: from a mode; the fit's own by default.

    Warns:
        ConvergenceWarning: with the Newton decrement and both log losses.
    """
    distance = fit.distance if distance is None else distance
    found = compared(q, fit)
    if found is None or distance is None:
        return
    if found.excess <= (WORSE if distance.is_far else WORSE_AT_A_MODE * _outcomes(fit)):
        return
    warn_once(
        f"Predictions of this posterior are likely worse than the network's own. {advice} Expected weights at a mode "
        f"for this prior, found a Newton decrement of {distance.squared**0.5:.3g} (the data determine "
        f"{distance.determined:.3g} parameters), and {found}. A network that has overfitted may gain all the same: "
        "held-out rows would show it.",
        ConvergenceWarning,
    )


def automatic(fit: LaplaceFit, *, noise: bool, origin: object = None, margin: float = MARGIN) -> tuple[LaplaceFit, str]:
    """Return the fit under prior_precision="auto", and a note of how its prior precision was found.

    If the weights are a mode under the prior that they were trained with, it is this prior; else one number for all
    weights, where the evidence is largest. Both are raised where the log loss of the training rows would be larger than
    the network's own by more than `WORSE` and `MARGIN`.

    Args:
        fit: under any prior precision.
        noise: whether a Gaussian's noise variance is learnt, too.
        origin: what the network was taken from: a posterior knows its prior.
        margin: how much larger the log loss may be under the evidence's prior precision.
    """
    noise = noise and has_noise(fit)
    prior = None if noise else _trained_with(origin, fit)
    if prior is not None:
        at_mode = replace(fit, prior=prior)
        try:
            if at_mode.distance is not None and not at_mode.distance.is_far:
                return _raised(at_mode, "the prior that the network was trained with", WORSE)
        except UnsupportedError:  # a structure that cannot hold this prior
            pass
    best = by_evidence(fit, noise=noise)
    return _raised(at_fitted_noise([best])[0] if noise else best, "the evidence", margin)


def at_fitted_noise(fits: Sequence[LaplaceFit]) -> list[LaplaceFit]:
    """Return fits at the largest evidence with the noise variance that suits weights which are no mode.

    The evidence's noise variance, RSS/(n − γ), takes γ parameters for fitted to the noise. A network that has stopped
    early has fitted fewer. The Newton decrement λ² is what the fit to the data could still gain, and would be about γ
    if nothing were fitted: σ² = RSS/n + (1 − λ²/γ) (RSS/(n − γ) − RSS/n), with 1 − λ²/γ at least `LEAST_FITTED`. The
    γ of a diagonal curvature counts parameters that stand for one another apart: far from a mode it is not used.
    """
    shares = [1.0]
    for fit in fits:
        if (distance := fit.distance) is not None:
            lost = distance.is_far and fit.curvature.structure == "diagonal"
            shares.append(0.0 if lost else 1.0 - distance.squared / max(distance.determined, 1e-9))
    residual = sum(float(mean_square_residual(fit)) for fit in fits) / len(fits)
    share = max(LEAST_FITTED, min(shares))
    return [fit.at_noise(residual + share * (float(fit.noise_variance) - residual)) for fit in fits]


def _trained_with(origin: object, fit: LaplaceFit) -> Prior | None:
    """The prior that a posterior's weights are the mode of, where it is one for the random weights of the fit, too."""
    if not isinstance(origin, Posterior) or origin.function is None:
        return None
    prior = origin.fit.prior if isinstance(origin.fit, LaplaceFit) else origin.record.prior
    if prior is None or origin.function.space == fit.function.space:
        return prior
    of_any_weight = isinstance(prior.precision, Tensor) and not prior.precision.ndim and not prior.mean.ndim
    return prior if of_any_weight else None


def _raised(fit: LaplaceFit, found_by: str, margin: float) -> tuple[LaplaceFit, str]:
    """The fit, or one with a larger prior precision if its excess over the network is more than a margin."""

    def at(log_factor: float) -> LaplaceFit:
        factor, precision = math.exp(log_factor), fit.prior.precision
        scaled = factor * precision if isinstance(precision, Tensor) else precision.scaled(factor)
        return replace(fit, prior=Prior(scaled, fit.prior.mean))

    first = compared(fit.predicting(), fit)
    if first is None or first.excess <= margin:
        return fit, f"auto: by {found_by}" + ("" if first is None else f"; {first}")
    found, log_factor = _narrowest(lambda log_factor: compared(at(log_factor).predicting(), fit), first, margin)
    start = f"{float(fit.prior.diagonal(fit.function.dim)[0]):.4g} of {found_by}"
    return at(log_factor), f"auto: {math.exp(log_factor):.3g} times the {start}; {found}"


def _narrowest(
    compare: Callable[[float], LossComparison | None], first: LossComparison, margin: float
) -> tuple[LossComparison, float]:
    """The smallest logarithm of a factor whose excess is at most the margin, and at least `SPENT` of it if it can be.

    The excess falls about as a power of the factor: the next step is where a line through the logs meets the middle of
    the wanted range.
    """
    wanted = math.log(margin * math.sqrt(SPENT))
    low, high = (0.0, math.log(min(first.excess, 1e3))), (math.inf, 0.0)
    found, best = first, 0.0
    for _ in range(STEPS):
        if math.isinf(high[0]):
            point = low[0] + min(STRIDE, max(math.log(2.0), (low[1] - wanted) / 1.5))
        else:
            share = (low[1] - wanted) / (low[1] - high[1])
            point = low[0] + min(0.9, max(0.1, share)) * (high[0] - low[0])
        result = compare(point) or first
        if result.excess > margin:
            low = (point, math.log(min(result.excess, 1e3)))
            found, best = (result, point) if math.isinf(high[0]) else (found, best)
            continue
        high, found, best = (point, math.log(max(result.excess, 1e-3 * margin))), result, point
        if result.excess >= SPENT * margin or high[0] - low[0] < CLOSE:
            break
    return found, best


def by_evidence(fit: LaplaceFit, *, noise: bool) -> LaplaceFit:
    """The fit with the one prior precision, and the noise variance σ², where the evidence is largest.

    With δ = ρ/σ², log Z is ½ (P log ρ − log∣σ² H/T + ρ I∣) − ½ (RSS/T + ρ S)/σ² − ½ n/T log σ² but for a constant, with
    S = Σ (θ* − m₀)². Its largest value in σ² is at (RSS + T ρ S)/n: one number is sought, whatever is learnt. The slope
    in log δ vanishes where δ S = γ ≤ P.
    """
    squares = float((fit.mode - fit.prior.centre(fit.function.dim).to(fit.mode)).square().sum())
    if squares == 0.0:  # all weights are at their prior mean: their prior would close upon it
        return fit
    residual = float(mean_square_residual(fit)) if noise else 1.0

    def at(log_ratio: float) -> LaplaceFit:
        ratio = math.exp(log_ratio)
        if not noise:
            return replace(fit, prior=Prior(ratio, fit.prior.mean))
        variance = residual + fit.temperature * ratio * squares / fit.numbers
        return replace(fit.at_noise(variance), prior=Prior(ratio / variance, fit.prior.mean))

    def loss(log_ratio: float) -> float:
        try:
            return -float(at(log_ratio).log_evidence())
        except NotPositiveDefiniteError:  # a Hessian away from its mode
            return WALL

    high = math.log(fit.function.dim / squares * max(residual, 1e-12)) + 1.0
    with torch.no_grad():
        found = minimize_scalar(
            loss, bounds=(high - DECADES * math.log(10.0), high), method="bounded", options={"xatol": CLOSE}
        )
    best = torch.tensor([float(found.x)], dtype=torch.float64)
    (best,) = same(best)  # another number of threads rounds the same evidence in another way
    return at(float(best)) if found.fun < WALL else fit


def _blocks(fit: LaplaceFit, limits: Limits) -> Iterator[tuple[Any, Tensor, int]]:
    """Yield inputs and targets of the sample of training rows, and at how many positions of a row f is compared.

    A last layer has the derivatives at hand.
    """
    outputs = fit.function.outputs
    for inputs, y in fit.sample:
        given = fit.likelihood.as_given(y)[0]
        alone = fit.likelihood.domain.joined and given.ndim == 2
        numbers = 1 if fit.likelihood.domain.kind in ("classes", "ordered") else outputs
        soft = numbers == 1 and given.ndim > 1 and given.shape[-1] == outputs and _sum_to_one(given)
        positions = 1 if alone else max(1, given[0].numel() // (outputs if soft else numbers))
        places = min(limits.places, positions)
        most = len(y) if fit.function.is_last_layer(inputs, fit.mode) else limits.cotangents // outputs
        count = min(len(y), max(limits.least, min(len(y), most) // places))
        places = max(1, min(places, max(most, len(y) // places) // count))
        at_once = max(1, limits.numbers // (limits.draws * outputs * places))
        for rows in row_blocks(count, 1, min(at_once, fit.curvature.at_once or at_once)):
            yield take_rows(inputs, rows), y[rows], places


def _sum_to_one(y: Tensor) -> bool:
    """Whether targets are probabilities of classes."""
    return bool((y >= 0).all() and ((y.sum(-1) - 1.0).abs() <= SUM_TOLERANCE).all())


def _outcomes(fit: LaplaceFit) -> int:
    """How many numbers an outcome has: one label, or those of a regression."""
    return 1 if fit.likelihood.discrete else fit.function.outputs


def _losses(
    q: Posterior, fit: LaplaceFit, limits: Limits, inputs: Inputs, y: Tensor, places: int
) -> tuple[float, float, float]:
    """The number of labels in some rows, and the sums of their losses under the posterior and the network."""
    outputs = fit.function.forward(inputs, fit.mode)
    f, shape = in_rows(outputs, 0)
    targets = read_targets(fit.likelihood, y, outputs.shape).to(f.device)
    if isinstance(q, DrawsPosterior):  # only as many pairs of draws as have few numbers
        few = max(1, limits.draws * limits.numbers // f.numel())
        q = replace(q, draws=q.draws.unflatten(1, (2, -1))[:, :, :few].flatten(1, 2))
        latent: Latent = q.predict(inputs).latent
    else:
        assert isinstance(q, GaussianPosterior)
        chosen = torch.randperm(math.prod(shape[1:]), generator=torch.Generator().manual_seed(0))
        has_label = fit.likelihood.labelled(targets)
        if has_label is not None:  # positions that are padding in all rows say nothing
            chosen = chosen[has_label.unflatten(0, (len(outputs), -1)).any(0).cpu()[chosen]]
        chosen = chosen[:places].sort().values
        f, targets = (
            each.unflatten(0, (len(outputs), -1))[:, chosen.to(f.device)].flatten(0, 1) for each in (f, targets)
        )
        latent = _latent(q, fit, limits.draws, inputs, f, chosen.to(f.device) if len(shape) > 1 else None)
    plain, (targets, weights) = fit.likelihood.unweighted, fit.likelihood.apart(targets)
    weights = torch.ones(len(targets), dtype=torch.float64) if weights is None else weights
    weights = weights.to(f.device)
    log_prob, network = (each.log_prob(plain, targets) * weights for each in (latent, DrawsLatent(f[None])))
    has_label = plain.labelled(targets)
    count = float((weights if has_label is None else weights[has_label]).sum())
    return count, -float(log_prob.sum()), -float(network.sum())


def _latent(
    q: GaussianPosterior, fit: LaplaceFit, draws: int, inputs: Inputs, f: Tensor, places: Tensor | None
) -> Latent:
    """The Gaussian of f at some positions, with an integral over it that takes little time and memory."""
    outputs, integral = f.shape[-1], fit.likelihood.integral(None, f.shape[-1])
    if fit.likelihood.discrete and outputs > DRAWN:
        integral = "mackay"
    elif fit.likelihood.domain.kind == "classes" and outputs > 2:
        integral = "monte_carlo"
    if outputs > 1 and not fit.likelihood.needs_covariance(integral):
        variance = fit.function.variance(inputs, q.location, q.precision, places=places).flatten(0, -2)
        return GaussianLatent(f, variance, integral)
    cov = fit.function.covariance(inputs, q.location, q.precision, places=places).flatten(0, -3)
    latent = GaussianLatent(f, cov, integral)
    return latent if integral != "monte_carlo" else latent.with_draws(draws, torch.Generator().manual_seed(0))
