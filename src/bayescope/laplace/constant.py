"""Whether a network predicts the same for every row, and the warning about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from bayescope.errors import ConvergenceWarning
from bayescope.likelihoods import Likelihood
from bayescope.network.batches import row_parts, row_totals
from bayescope.network.forward import reading
from bayescope.network.inputs import call
from bayescope.processes import warn_once
from bayescope.training.objective import log_likelihood

# Predictions are the same in effect where they explain the targets by less than this many nats more than their mean
# does, in all and a row.
LITTLE, LITTLE_A_ROW = 1.0, 0.01


def warn_if_constant(
    module: nn.Module, likelihood: Likelihood, rows: Callable[[], Iterable[tuple[Any, Tensor]]], advice: str
) -> None:
    """Warns if the network's outputs f explain the training rows no better than their mean f̄ does.

    The gain is Σ_n log p(y_n∣f_n) − log p(y_n∣f̄). Targets that are all equal are no reason to warn.

    Args:
        module: the network, with outputs of shape (N, C) or (N, …, C).
        likelihood: p(y∣f).
        rows: gives a pass over the training rows, with canonical targets (N, S, ...).
        advice: how to tell inputs that say nothing from a network that was switched off.

    Warns:
        ConvergenceWarning: with the gain.
    """
    with reading(module), torch.no_grad():  # the first of which records gradients
        total, count, lowest, highest = torch.zeros(()), 0, torch.inf, -torch.inf
        for inputs, targets in rows():
            f = call(module, inputs).flatten(0, -2)
            total, count = total + f.sum(0).double(), count + len(f)
            lowest, highest = min(lowest, float(targets.min())), max(highest, float(targets.max()))
        spread = max(row_parts(highest)) - min(row_parts(lowest))
        (counted,) = row_totals(float(count))
        # A process without rows does not know how many outputs there are.
        total = torch.tensor(
            [each for each in row_parts(total.tolist()) if isinstance(each, list)], dtype=torch.float64
        ).sum(0)
        gain = 0.0
        for inputs, targets in rows():
            f = call(module, inputs)
            mean = (total / counted).to(f).expand_as(f)
            gain += float(log_likelihood(likelihood, f, targets) - log_likelihood(likelihood, mean, targets))
    (gain,) = row_totals(gain)
    if spread > 0.0 and gain < min(LITTLE, LITTLE_A_ROW * counted):
        warn_once(
            f"The network predicts the same for every row: its outputs explain the training targets by {gain:.2g} nats "
            "more than one constant prediction does. Either the inputs say nothing about the targets, or the network "
            f"was switched off before it had learnt. {advice}",
            ConvergenceWarning,
        )
