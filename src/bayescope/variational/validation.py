"""Keeping the best q: by its predictive probabilities of rows that are not trained on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, final

import torch
from torch import nn

from bayescope import checks
from bayescope.network.forward import reading
from bayescope.network.random_weights import passes_at
from bayescope.network.weights import Weights
from bayescope.training.loop import random_states
from bayescope.training.minibatches import Minibatches
from bayescope.training.watch import Verdict, refuse_non_finite
from bayescope.variational.families import Family
from bayescope.variational.gradients import at_offsets
from bayescope.variational.objective import NegativeBound

# Draws of the weights that predictions are averaged over: the same noise after every epoch.
DRAWS, SEED = 16, 0


@final
class PredictiveValidation:
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

    def __init__(
        self, module: nn.Module, weights: Weights, family: Family, rows: Minibatches, objective: NegativeBound,
        patience: int | None,
    ) -> None:  # fmt: skip
        self._module, self._weights, self._family = module, weights, family
        self._rows, self._objective = rows, objective
        self._patience = math.inf if patience is None else checks.count("patience", patience)
        self._best, self._epoch = math.inf, 0

    def judge(self, epoch: int) -> Verdict:
        """Reads all validation rows.

        Raises:
            InputError: if inputs hold NaN or infinity, and with them the outputs.
            ConvergenceError: if the outputs do for inputs that do not.
        """
        total, likelihood = 0.0, self._objective.likelihood
        noise = torch.Generator().manual_seed(SEED)
        # In this order: reading a module turns gradients on.
        with reading(self._module), torch.no_grad(), random_states(self._module, noise):
            values = at_offsets(self._module, self._weights, self._family.noise(DRAWS))
            for inputs, targets in self._rows.in_order():
                f = passes_at(self._module, values, inputs).to(torch.float64).flatten(1, -2)
                log_prob = likelihood.log_prob(f, targets.flatten(0, 1))
                nll = -float((log_prob.logsumexp(0) - math.log(DRAWS)).sum())
                if not math.isfinite(nll):  # NaN is neither better nor worse than the best
                    refuse_non_finite(inputs, nll, epoch)
                total += nll
        better = total < self._best
        if better:
            self._best, self._epoch = total, epoch
        return Verdict({"validation_nll": total}, better, epoch - self._epoch >= self._patience)

    def facts(self) -> dict[str, Any]:
        """The rows, and the patience, which a run that has ended for it has lost."""
        return {"validation": self._rows.fingerprint(), "patience": self._patience}

    def state(self) -> dict[str, Any]:
        """The best so far."""
        return {"best": self._best, "epoch": self._epoch}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from there."""
        self._best, self._epoch = state["best"], state["epoch"]
