"""Random passes through a network with dropout, and the noise that its predictive likelihood prefers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from bayescope.dropout.insertion import all_called, own_dropout
from bayescope.errors import ConvergenceError, InputError
from bayescope.network.batches import row_totals
from bayescope.network.dropout import random_outputs, switched_on, switches_of
from bayescope.network.forward import reading
from bayescope.network.guard import private
from bayescope.network.inputs import count_rows, described, explained
from bayescope.storage import stored
from bayescope.training.minibatches import Minibatches

# Points of log σ² that are looked at before the best of them is refined.
GRID = 64


@stored("dropout_passes")
@final
@dataclass(frozen=True, eq=False)
class DropoutPasses:
    """f with masks drawn once a pass, the same for all rows.

    Attributes:
        module: the network; nobody else's.
    """

    module: nn.Module

    def __call__(self, x: Any, n: int, generator: torch.Generator) -> Tensor:
        """f in n passes, shape (n, N, *positions, C), float64.

        Raises:
            InputError: if the network calls no dropout, or does not give a row for each of x.
        """
        with private(self.module) as module, explained(module, x):
            switches = switches_of(module, x)
            with reading(module), switched_on(switches.modules), all_called(module):
                f, sites = random_outputs(module, x, n, generator, switches.off)
        if not sites and not own_dropout(self.module):
            raise InputError(
                "model: expected a network that calls dropout in eval mode, got none of its calls. Call "
                "F.dropout(x, p, training=self.training), use nn.Dropout layers, or give rate=."
            )
        if f.ndim < 3 or f.shape[1] != count_rows(x):
            raise InputError(
                f"x: expected a row for each output, shape (N, …), got {described(x)}, which the network makes outputs "
                f"of shape {tuple(f.shape[1:])} from. Give rows on the first axis: one row is X[:1]."
            )
        return f


def squared_residuals(passes: DropoutPasses, rows: Minibatches, n: int, generator: torch.Generator) -> Tensor:
    """Σ_d (y_d − f_d)², shape (n, N), positions counted as rows, in the same n passes for all rows.

    Several processes have their own rows of them each.
    """
    state, parts = generator.get_state(), []
    for inputs, targets in rows.in_order():
        generator.set_state(state)
        f = passes(inputs, n, generator)
        parts.append((f.flatten(1, -2) - targets.flatten(0, 1).to(f)).square().sum(-1))
    return torch.cat(parts, 1) if parts else torch.zeros(n, 0, dtype=torch.float64)


def best_noise(squares: Tensor, outputs: int) -> tuple[float, float]:
    """The noise variance under which rows are most probable, and their mean log probability under it.

    It maximises Σ_n log S⁻¹ Σ_s N(y_n; f_ns, σ² I) over S passes. Where the derivative is zero σ² is a weighted mean of
    the squares, so that it lies between the mean of their least and the mean of their largest over the passes.

    Args:
        squares: Σ_d (y_d − f_d)², shape (S, N); of several processes each has its own rows.
        outputs: D.

    Raises:
        ConvergenceError: if the best pass fits each row without an error.
    """
    total, most, rows = row_totals(float(squares.amin(0).sum()), float(squares.amax(0).sum()), squares.shape[1])
    low, high = total / rows / outputs, most / rows / outputs
    if not 0 < low <= high < math.inf:
        raise ConvergenceError(
            f"noise_variance: expected residuals to learn it from, got a mean square between {low:g} and {high:g}. "
            "Give the likelihood its noise, or rows that were not trained on: validation=."
        )

    def loss(log_variance: float) -> float:
        each = torch.logsumexp(-0.5 * squares / math.exp(log_variance), 0) - math.log(len(squares))
        (total,) = row_totals(float(each.sum()))
        return 0.5 * outputs * (math.log(2 * math.pi) + log_variance) - total / rows

    ends = math.log(low), math.log(high)
    step = (ends[1] - ends[0]) / GRID
    best = min((ends[0] + step * k for k in range(GRID + 1)), key=loss)
    if step > 0:
        bounds = max(ends[0], best - step), min(ends[1], best + step)
        refined = float(minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-9}).x)
        best = min(best, refined, key=loss)
    return math.exp(best), -loss(best)
