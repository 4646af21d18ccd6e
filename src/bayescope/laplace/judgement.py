"""Whether a posterior predicts worse than the network alone, and a prior precision under which it does not.

Both are judged by the log loss of training rows under the linearised predictive. A posterior that is too wide raises
it, and raises the loss of new rows by as much, or by less if the network has overfitted. The test errs on the network's
side therefore: a posterior that passes it is no worse than the network on new rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from bayescope.errors import ConvergenceWarning, NotPositiveDefiniteError
from bayescope.laplace.distance import Distance
from bayescope.laplace.evidence import has_noise, mean_square_residual
from bayescope.laplace.fit import LaplaceFit
from bayescope.latent import DrawsLatent, GaussianLatent, MarginalLatent
from bayescope.likelihoods import Categorical
from bayescope.likelihoods.targets import read_targets
from bayescope.likelihoods.weighted import Weighted
from bayescope.network.inputs import take_rows
from bayescope.posterior import GaussianPosterior, Posterior, Record
from bayescope.posterior.posterior import in_rows
from bayescope.priors import Prior
from bayescope.processes import present, warn_once
from bayescope.tape.tape import row_blocks

# The word for a prior precision that is found by the evidence and the log loss of training rows.
AUTO = "auto"
# Predictions are said to be worse than the network's own where the log loss of training rows is larger by so many nats
# a row: by `WORSE` if the weights are far from a mode, else by `WORSE_AT_A_MODE`. At a mode the exact posterior of a
# linear model has up to ½ log 2 more in each output, where there are no more rows than parameters.
WORSE, WORSE_AT_A_MODE = 0.05, 0.5
# "auto" raises the prior precision until the log loss of training rows is larger by at most `MARGIN`, and by at least
# `SPENT` of it. Over 320 networks on 11 tables the loss of test rows then was larger by at most about twice as much.
MARGIN, SPENT = 0.0015, 0.5
# Of 3 to `DRAWN` classes the predictive is integrated by so many draws, which are 20 times quicker than its default and
# err by about a tenth of `MARGIN`; of more classes by the variances alone.
DRAWN, DRAWS, DRAWN_NUMBERS = 64, 256, 2**18
# Rows with more positions are compared at so many of them; so many rows at least are read.
PLACES, LEAST = 32, 8
# The largest steps of the logarithm of the prior precision, and how many steps there are at most.
STRIDE, STEPS = math.log(1e3), 24
# The evidence is sought over so many decades below the largest prior precision that it can have, to so much of a log.
DECADES, CLOSE = 12, 0.05
# The height of the objective where there is no precision.
WALL = 1e100


@final
@dataclass(frozen=True)
class Comparison:
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


def compared(q: Posterior, fit: LaplaceFit) -> Comparison | None:
    """The comparison of a posterior with the network on the fit's sample of training rows, where it has one.

    Args:
        q: a posterior of the linearised network.
        fit: what it stands on.
    """
    sums, processes = [0.0, 0.0, 0.0], present()
    if isinstance(fit.likelihood, Weighted):
        return None
    with processes.agreed():
        for inputs, y in _blocks(fit):
            found = _losses(q, fit, inputs, y)
            sums = [total + more for total, more in zip(sums, found, strict=True)]
    count, posterior, network = processes.sum_numbers(*sums)
    return Comparison(int(count), posterior / count, network / count) if count else None


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


def automatic(fit: LaplaceFit, *, noise: bool) -> tuple[LaplaceFit, str]:
    """The fit under prior_precision="auto", with a note of how it was found.

    The precision, one for all weights, is where the evidence is largest, or above it where the log loss of the training
    rows would be larger than the network's own by more than `MARGIN`.

    Args:
        fit: under any prior precision.
        noise: whether a Gaussian's noise variance is set where the evidence is largest, too.
    """
    best = _by_evidence(fit, noise=noise and has_noise(fit))
    return _raised(best)


def _raised(fit: LaplaceFit) -> tuple[LaplaceFit, str]:
    """The fit, and where its predictions are worse than the network's own, one with a larger prior precision."""
    start = fit.prior.diagonal(1)[0]

    def at(log_factor: float) -> LaplaceFit:
        return replace(fit, prior=Prior(start * math.exp(log_factor), fit.prior.mean))

    first = compared(_predicting(fit), fit)
    if first is None or first.excess <= MARGIN:
        return fit, "auto: by the evidence" + ("" if first is None else f"; {first}")
    found, log_factor = _narrowest(lambda log_factor: compared(_predicting(at(log_factor)), fit), first)
    return at(log_factor), f"auto: {math.exp(log_factor):.3g} times the {float(start):.4g} of the evidence; {found}"


def _narrowest(compare: Callable[[float], Comparison | None], first: Comparison) -> tuple[Comparison, float]:
    """The smallest logarithm of a factor whose excess is at most `MARGIN`, and at least `SPENT` of it if it can be.

    The excess falls about as a power of the factor: the next step is where a line through the logs meets the middle of
    the wanted range.
    """
    wanted = math.log(MARGIN * math.sqrt(SPENT))
    low, high = (0.0, math.log(min(first.excess, 1e3))), (math.inf, 0.0)
    found, best = first, 0.0
    for _ in range(STEPS):
        if math.isinf(high[0]):
            point = low[0] + min(STRIDE, max(math.log(2.0), (low[1] - wanted) / 1.5))
        else:
            share = (low[1] - wanted) / (low[1] - high[1])
            point = low[0] + min(0.9, max(0.1, share)) * (high[0] - low[0])
        result = compare(point) or first
        if result.excess > MARGIN:
            low = (point, math.log(min(result.excess, 1e3)))
            found, best = (result, point) if math.isinf(high[0]) else (found, best)
            continue
        high, found, best = (point, math.log(max(result.excess, 1e-3 * MARGIN))), result, point
        if result.excess >= SPENT * MARGIN or high[0] - low[0] < CLOSE:
            break
    return found, best


def _by_evidence(fit: LaplaceFit, *, noise: bool) -> LaplaceFit:
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
    present().share([best])  # another number of threads rounds the same evidence in another way
    return at(float(best)) if found.fun < WALL else fit


def _predicting(fit: LaplaceFit) -> GaussianPosterior:
    """The fit's posterior as far as predictions go."""
    return GaussianPosterior(fit.mode, fit.precision(), Record("laplace"), fit.function, fit.likelihood)


def _blocks(fit: LaplaceFit) -> Iterator[tuple[Any, Tensor]]:
    """The sample of training rows, as many at once as the fit read, or as have `DRAWN_NUMBERS` draws of f.

    Of rows with T positions a T-th of the sample is read, or of more than `PLACES` positions as small a part; of more
    than `DRAWN` classes fewer, unless their variances cost little. At least `LEAST` rows are read.
    """
    for inputs, y in fit.sample.batches:
        positions = 1 if fit.likelihood.name != "categorical" else min(PLACES, y[0].numel())
        most = max(1, DRAWN_NUMBERS // (DRAWS * fit.function.outputs * positions))
        share, outputs = positions, fit.function.outputs
        if outputs > DRAWN and not fit.function.is_last_layer(inputs, fit.mode):
            share *= outputs // DRAWN
        count = min(len(y), max(LEAST, len(y) // share))
        for rows in row_blocks(count, 1, min(most, fit.curvature.at_once or most)):
            yield take_rows(inputs, rows), y[rows]


def _outcomes(fit: LaplaceFit) -> int:
    """How many numbers an outcome has: one label, or those of a regression."""
    return 1 if fit.likelihood.discrete else fit.function.outputs


def _losses(q: Posterior, fit: LaplaceFit, inputs: Any, y: Tensor) -> tuple[float, float, float]:
    """The number of observations in some rows, and the sums of their losses under the posterior and the network."""
    outputs = fit.function.forward(inputs, fit.mode)
    f, shape = in_rows(outputs, 0)
    targets = read_targets(fit.likelihood, y, outputs.shape).to(f.device)
    if isinstance(q, GaussianPosterior) and isinstance(fit.likelihood, Categorical) and f.shape[-1] > 2:
        places = _places(math.prod(shape[1:])).to(f.device)
        f, targets = (each.unflatten(0, (len(outputs), -1))[:, places].flatten(0, 1) for each in (f, targets))
        log_prob = _of_classes(q, fit, inputs, f, targets, places if len(shape) > 1 else None)
    else:
        log_prob = q.predict(inputs, generator=0).latent.log_prob(fit.likelihood, targets)
    network = DrawsLatent(f[None]).log_prob(fit.likelihood, targets)
    return log_prob.numel(), -float(log_prob.sum()), -float(network.sum())


def _places(positions: int) -> Tensor:
    """The positions of dense outputs at which rows are compared: all of them, or `PLACES` that are drawn."""
    return torch.randperm(positions, generator=torch.Generator().manual_seed(0))[:PLACES].sort().values


def _of_classes(
    q: GaussianPosterior, fit: LaplaceFit, inputs: Any, f: Tensor, y: Tensor, places: Tensor | None
) -> Tensor:
    """log p(y∣x) of several classes at some positions, shape (M,), by integrals that take little time and memory.

    Of at most `DRAWN` classes there are draws; of more, no covariance is computed.
    """
    function, classes = fit.function, f.shape[-1]
    if classes > DRAWN:
        if places is not None or function.is_last_layer(inputs, q.location):
            variance = function.variance(inputs, q.location, q.precision, places=places).flatten(0, -2)
        else:  # the cotangents of all classes at once would be C² numbers
            blocks = torch.arange(classes, device=f.device).split(max(1, 4 * DRAWN_NUMBERS // classes))
            each = (some.expand(len(f), -1) for some in blocks)
            variance = torch.cat([function.variance(inputs, q.location, q.precision, some) for some in each], 1)
        return MarginalLatent(f, variance, "mackay").log_prob(fit.likelihood, y)
    cov = function.covariance(inputs, q.location, q.precision, places=places).flatten(0, -3)
    latent = GaussianLatent(f, cov, "monte_carlo").with_draws(DRAWS, torch.Generator().manual_seed(0))
    return latent.log_prob(fit.likelihood, y)
