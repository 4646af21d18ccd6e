"""The evidence lower bound of a Gaussian q over all rows, and how far off its estimate is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from bayescope.likelihoods import Likelihood
from bayescope.network import NetworkModel, RandomWeights, row_total, row_totals, take_rows
from bayescope.network.draws import widest
from bayescope.network.forward import owned, reading
from bayescope.precision import Precision
from bayescope.precision import weight_draws as drawn_weights
from bayescope.priors import Prior
from bayescope.private_draws import drawing
from bayescope.reparameterization import GaussianTensor
from bayescope.training import Minibatches, random_states
from bayescope.training.steps import Interrupts, own_source

# This many draws at a time, and no fewer in all, until the standard error, which errs itself, has been this small twice
# running, or there are this many of them, or this many rows have been read.
ROUND, FEWEST_DRAWS, MOST_DRAWS = 16, 128, 1024
ACCURATE = 0.01
ROWS_READ = 2**20
# Nor more work than this share of the training's, where that is more than a second's: products of a weight and a row.
SHARE, SECOND = 0.25, 2**33
# A step of training reads its rows forth and back, which is twice as long.
PASSES = 3
# Numbers in an activation that are held at once, and rows that are read together at most.
NUMBERS, MOST_ROWS = 2**23, 1024


@final
@dataclass(frozen=True)
class Bound:
    """E_q[Σ log p(y∣f)] − KL(q∥p), in float64.

    Attributes:
        expected_log_likelihood: the first term, estimated.
        kl: the second, in closed form.
        standard_error: of the first.
        draws: how many it was estimated from.
        outcomes: how many numbers y has, over all rows.
        interrupted: whether Ctrl-C ended the drawing.
    """

    expected_log_likelihood: Tensor
    kl: Tensor
    standard_error: float
    draws: int
    outcomes: float
    interrupted: bool = False

    @property
    def terms(self) -> dict[str, Tensor]:
        """The two terms of the bound, by name."""
        return {"expected log likelihood": self.expected_log_likelihood, "kl": -self.kl}

    @property
    def note(self) -> str:
        """How far off it is, for a summary."""
        ended = ", ended by an interrupt" if self.interrupted else ""
        return f"standard error {self.standard_error:.2g} nats, from {self.draws} draws{ended}"


# `ROUND` draws of Σ log p(y∣f) over all rows, and as many values of a control of mean zero: shape (S,), float64.
Draws = Callable[[], tuple[Tensor, Tensor]]


def affordable(weights: int, rows: int, passes: int) -> int:
    """How many draws the bound may take at the end of a training.

    Args:
        weights: P.
        rows: N.
        passes: over all rows in training, those of several samples counted each.
    """
    most = max(SECOND // (weights * rows), int(SHARE * PASSES * passes))
    return max(ROUND, min(most, MOST_DRAWS, ROWS_READ // rows))


def bound(kinds: Iterable[Draws], rows: Minibatches, kl: Tensor, most: int) -> Bound | None:
    """The bound, from as many draws as it takes; Ctrl-C ends the drawing, and what there is by then counts.

    Args:
        kinds: ways to draw Σ log p(y∣f); the one with the least noise in its first draws goes on.
        rows: the data.
        kl: KL(q∥p).
        most: this many draws are enough, whatever the standard error.

    Returns:
        The bound, or ``None`` if Ctrl-C came before the first draws.
    """
    estimates: list[_Estimate] = []
    outcomes, interrupted = 0.0, False
    try:
        with Interrupts() as interrupts:
            (outcomes,) = row_totals(sum(_outcomes(rows.likelihood, targets) for _, targets in rows.in_order()))
            for draws in kinds:
                interrupts.ask()
                estimates.append(_Estimate(draws))
            estimates = [min(estimates, key=_Estimate.error)]
            estimates[0].draw(most, interrupts.ask)
    except KeyboardInterrupt:
        interrupted = True
    if not estimates:
        return None
    best = min(estimates, key=_Estimate.error)
    return Bound(best.mean(), kl, best.error(), best.count, outcomes, interrupted)


@final
class _Estimate:
    """E ℓ by regression on a control of mean zero: the average of ℓ_s less β c_s, with the slope β of ℓ on c.

    With s² the mean square of the residuals, the average c̄ of the controls is not quite 0, and the slope errs by
    s/√Σ(c_s − c̄)²: error² = s² (1/n + c̄²/Σ(c_s − c̄)²).

    Args:
        draws: how ℓ and c are drawn.
    """

    def __init__(self, draws: Draws) -> None:
        self._draws = draws
        self._rounds = [draws()]

    @property
    def count(self) -> int:
        """The number of draws so far."""
        return sum(len(values) for values, _ in self._rounds)

    def draw(self, most: int, ask: Callable[[], None]) -> None:
        """Goes on until the error is small, or the limit of draws is reached; asks before each round whether to."""
        accurate = 0
        while True:
            accurate = accurate + 1 if self.error() <= ACCURATE else 0
            if self.count >= most or (self.count >= FEWEST_DRAWS and accurate > 1):
                return
            ask()
            self._rounds.append(self._draws())  # whole or not at all, whenever Ctrl-C comes

    def mean(self) -> Tensor:
        """The estimate from all draws, float64."""
        values, controls = self._drawn()
        return values.mean() - self._slope() * controls.mean()

    def error(self) -> float:
        """The standard error of the estimate."""
        values, controls = self._drawn()
        spread = controls - controls.mean()
        left = values - values.mean() - self._slope() * spread
        share, power = 1.0 / len(values), spread.square().sum()
        if power > 0:
            share += float(controls.mean().square() / power)
        return math.sqrt(float(left.square().sum()) / (len(values) - 2) * share)

    def _slope(self) -> Tensor:
        values, controls = self._drawn()
        spread = controls - controls.mean()
        power = spread.square().sum()
        return ((values - values.mean()) * spread).sum() / power if power > 0 else power

    def _drawn(self) -> tuple[Tensor, Tensor]:
        values, controls = zip(*self._rounds, strict=True)
        return torch.cat(values), torch.cat(controls)


def weight_draws(
    function: NetworkModel, precision: Precision, prior: Prior, likelihood: Likelihood, rows: Minibatches, kl: Tensor,
    generator: torch.Generator,
) -> Draws:  # fmt: skip
    """Return draws at weights that all rows share, with log p(θ) − log q(θ) for the control.

    With ℓ_s = Σ log p(y∣f(θ_s)) and c_s = log p(θ_s) − log q(θ_s), whose mean is −KL, the average of ℓ_s + β (c_s + KL)
    has the mean of ℓ_s for every β. The β that regression finds is close to 1 near the posterior, where ℓ + c is
    log p(y) whatever θ is, and the estimate is exact there.

    Args:
        function: f(x, θ), with the mean of q for its weights.
        precision: of q.
        prior: p(θ).
        likelihood: p(y∣f).
        rows: the data.
        kl: KL(q∥p).
        generator: of the draws.
    """
    mean, together = function.flat, _rows_together(function, rows)

    def log_likelihoods(theta: Tensor) -> Tensor:
        total = theta.new_zeros(len(theta))
        with reading(function.module), torch.no_grad():
            for inputs, targets in rows.in_order(together):
                total += _summed(likelihood, function.forward(inputs, theta), targets)
        return row_total(total)

    def draw() -> tuple[Tensor, Tensor]:
        values, controls = [], []
        for theta in drawn_weights(mean, precision, ROUND, generator):
            values.append(log_likelihoods(theta))
            controls.append(prior.log_prob(theta) - _log_density(theta - mean, precision) + kl)
        return torch.cat(values), torch.cat(controls)

    return draw


def row_draws(
    function: NetworkModel, precision: Precision, likelihood: Likelihood, rows: Minibatches, generator: torch.Generator
) -> Draws:
    """Return draws of the outputs of independent weights, for each row by itself: in a network the sum has less noise.

    Rows that share a draw of the weights err together. There is no control here: it would have to know the weights.

    Args:
        function: f(x, θ), with the mean of q for its weights.
        precision: of q, diagonal.
        likelihood: p(y∣f).
        rows: the data.
        generator: of the draws.
    """
    module, weights = function.module, function.weights
    sds, means = weights.unflat(precision.marginal_variance().sqrt()), weights.parameters(function.module)
    gaussians = {name: GaussianTensor(mean.detach(), sds[name].to(mean)) for name, mean in means.items()}
    random, together = RandomWeights.of(module, weights.names, rows.few[0]), _rows_together(function, rows)

    def draw() -> tuple[Tensor, Tensor]:
        total = torch.zeros(ROUND, dtype=torch.float64)
        # Reading begins from the same random state each time: what is drawn has to come from the generator.
        with reading(module), torch.no_grad(), random_states(module, generator):
            state = own_source(module)
            for inputs, targets in rows.in_order(together):
                with drawing(rows.cut, state, backward=False):
                    f = random.passes(gaussians, inputs, estimator="local_reparameterization", samples=ROUND)
                total = total.to(f.device) + _summed(likelihood, f.to(torch.float64), targets)
        return row_total(total), torch.zeros_like(total)

    return draw


def _outcomes(likelihood: Likelihood, targets: Tensor) -> float:
    """How many numbers y has in some rows, by the weights of these."""
    y, weights = likelihood.apart(targets.flatten(0, 1))
    return y.numel() if weights is None else float(weights.sum()) * y[:1].numel()


def _summed(likelihood: Likelihood, f: Tensor, targets: Tensor) -> Tensor:
    """Σ log p(y∣f) of some rows, for f of shape (S, N, *positions, C), shape (S,)."""
    return likelihood.log_prob(f.flatten(1, -2), targets.flatten(0, 1)).sum(-1)


def _rows_together(function: NetworkModel, rows: Minibatches) -> int:
    with reading(function.module), torch.no_grad():
        wide = widest(function.module, owned(take_rows(rows.few[0], slice(0, 1)), copy=True))
    return max(1, min(MOST_ROWS, NUMBERS // (ROUND * wide)))


def _log_density(offset: Tensor, precision: Precision) -> Tensor:
    """log N(θ − θ̂; 0, precision⁻¹) for offsets (S, P), shape (S,)."""
    quadratic = (offset * precision.multiply(offset.mT).mT).sum(-1)
    return 0.5 * (precision.logdet() - offset.shape[-1] * math.log(2 * math.pi) - quadratic)
