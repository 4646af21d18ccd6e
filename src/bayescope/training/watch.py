"""What looks at the weights after each epoch, keeps the best of them and may end the training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, final

import torch
from torch import nn

from bayescope import checks
from bayescope.network.forward import reading
from bayescope.network.inputs import call
from bayescope.training.minibatches import Minibatches
from bayescope.training.objective import Objective, log_likelihood


class Verdict(NamedTuple):
    """On the weights after an epoch.

    Attributes:
        trace: what is to be added to the trace.
        best: whether they are the best so far; the best weights are what the training returns.
        stop: whether there is no use in going on.
    """

    trace: Mapping[str, Any]
    best: bool = False
    stop: bool = False


class Watch(Protocol):
    """Judges the weights after each epoch."""

    def judge(self, epoch: int) -> Verdict:
        """The verdict on the weights after so many epochs."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of it: tensors, numbers and text."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint."""


@final
class NoWatch:
    """The last weights are as good as any."""

    def judge(self, epoch: int) -> Verdict:
        """Nothing to say."""
        return Verdict({})

    def state(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Nothing."""


@final
class Validation:
    """The best weights are those with the lowest −Σ log p(y∣f) on rows that are not trained on.

    Args:
        module: the network, read in eval mode.
        rows: the validation rows.
        objective: has the likelihood.
        patience: so many epochs without a better one end the training; ``None`` for never.

    Raises:
        InputError: if the patience is no positive whole number.
    """

    def __init__(self, module: nn.Module, rows: Minibatches, objective: Objective, patience: int | None) -> None:
        self._module, self._rows, self._objective = module, rows, objective
        self._patience = math.inf if patience is None else checks.count("patience", patience)
        self._best, self._epoch = math.inf, 0

    def judge(self, epoch: int) -> Verdict:
        """Reads all validation rows."""
        total = 0.0
        with reading(self._module), torch.no_grad():  # in this order: reading a module turns gradients on
            for inputs, targets in self._rows.in_order():
                f = call(self._module, inputs).to(torch.float64)
                total -= float(log_likelihood(self._objective.likelihood, f, targets))
        better = total < self._best
        if better:
            self._best, self._epoch = total, epoch
        return Verdict({"validation_nll": total}, better, epoch - self._epoch >= self._patience)

    def state(self) -> dict[str, Any]:
        """The best so far."""
        return {"best": self._best, "epoch": self._epoch}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from there."""
        self._best, self._epoch = state["best"], state["epoch"]
