"""Keeping the best q: by its predictive probabilities of rows that are not trained on."""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

import torch
from torch import nn

from bayescope.network.forward import reading
from bayescope.network.random_weights import passes_at
from bayescope.network.weights import Weights
from bayescope.training.loop import random_states
from bayescope.training.minibatches import Minibatches
from bayescope.training.watch import Validation
from bayescope.variational.families import Family
from bayescope.variational.gradients import at_offsets
from bayescope.variational.objective import NegativeBound

# Draws of the weights that predictions are averaged over: the same noise after every epoch.
DRAWS, SEED = 16, 0


def predictive_validation(
    module: nn.Module, weights: Weights, family: Family, rows: Minibatches, objective: NegativeBound,
    patience: int | None,
) -> Validation:  # fmt: skip
    """The best q is the one with the lowest −Σ log (S⁻¹ Σ_s p(y∣f(x, θ_s))) on rows that are not trained on.

    Args:
        module: the network, read in eval mode.
        weights: which are random.
        family: how they scatter around the module's.
        rows: the validation rows.
        objective: has the likelihood.
        patience: so many epochs without a better one end the training; ``None`` for never.

    Raises:
        InputError: if the patience is no positive whole number.
    """

    def losses() -> Generator[tuple[Any, float], None, None]:
        noise = torch.Generator().manual_seed(SEED)
        # In this order: reading a module turns gradients on.
        with reading(module), torch.no_grad(), random_states(module, noise):
            values = at_offsets(module, weights, family.noise(DRAWS))
            for inputs, targets in rows.in_order():
                f = passes_at(module, values, inputs).to(torch.float64).flatten(1, -2)
                log_prob = objective.likelihood.log_prob(f, targets.flatten(0, 1))
                yield inputs, -float((log_prob.logsumexp(0) - math.log(DRAWS)).sum())

    return Validation(losses, rows, patience)
