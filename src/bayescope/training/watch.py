"""What looks at the weights after each epoch, keeps the best of them and may end the training."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from typing import Any, NamedTuple, NoReturn, Protocol, Self, final

import torch
from torch import nn

from bayescope import checks
from bayescope.errors import ConvergenceError, InputError
from bayescope.network.batches import row_totals
from bayescope.network.forward import reading
from bayescope.network.inputs import call, tensors
from bayescope.training.minibatches import Minibatches
from bayescope.training.objective import Objective, log_likelihood

# Blocks of rows, each with its −Σ log p(y∣f).
Losses = Callable[[], Generator[tuple[Any, float], None, None]]


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

    def facts(self) -> dict[str, Any]:
        """What a run that goes on from a checkpoint has to have in common with it."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of it: tensors, numbers and text."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint."""


@final
class NoWatch:
    """The last weights are as good as any."""

    def judge(self, epoch: int) -> Verdict:
        return Verdict({})

    def facts(self) -> dict[str, Any]:
        """That there is no validation."""
        return {"validation": None, "patience": math.inf}

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None: ...


@final
class Validation:
    """The best weights are those with the lowest −Σ log p(y∣f) on rows that are not trained on.

    Args:
        losses: reads these rows: for each block of them the inputs, and −Σ log p(y∣f).
        rows: the validation rows.
        patience: so many epochs without a better one end the training; ``None`` for never.

    Raises:
        InputError: if the patience is no positive whole number.
    """

    def __init__(self, losses: Losses, rows: Minibatches, patience: int | None) -> None:
        self._losses, self._rows = losses, rows
        self._patience = math.inf if patience is None else checks.count("patience", patience)
        self._best, self._epoch = math.inf, 0

    @classmethod
    def of(cls, module: nn.Module, rows: Minibatches, objective: Objective, patience: int | None) -> Self:
        """That of a network as it is in eval mode.

        Args:
            module: the network.
            rows: the validation rows.
            objective: has the likelihood.
            patience: as above.
        """

        def losses() -> Generator[tuple[Any, float], None, None]:
            with reading(module), torch.no_grad():  # in this order: reading a module turns gradients on
                for inputs, targets in rows.in_order():
                    f = call(module, inputs).to(torch.float64)
                    yield inputs, -float(log_likelihood(objective.likelihood, f, targets))

        return cls(losses, rows, patience)

    def judge(self, epoch: int) -> Verdict:
        """Reads all validation rows.

        Raises:
            InputError: if inputs hold NaN or infinity, and with them the outputs.
            ConvergenceError: if the outputs do for inputs that do not.
        """
        total = 0.0
        with closing(self._losses()) as losses:
            for inputs, nll in losses:
                if not math.isfinite(nll):  # NaN is neither better nor worse than the best
                    refuse_non_finite(inputs, nll, epoch)
                total += nll
        (total,) = row_totals(total)
        better = total < self._best
        if better:
            self._best, self._epoch = total, epoch
        return Verdict({"validation_nll": total}, better, epoch - self._epoch >= self._patience)

    def facts(self) -> dict[str, Any]:
        """The rows, and the patience, which a run that has ended for it has lost."""
        return {"validation": self._rows.fingerprint(), "patience": self._patience}

    def state(self) -> dict[str, Any]:
        """The best loss so far and its epoch, for a checkpoint."""
        return {"best": self._best, "epoch": self._epoch}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes the state of a checkpoint."""
        self._best, self._epoch = state["best"], state["epoch"]


def refuse_non_finite(inputs: Any, nll: float, epoch: int) -> NoReturn:
    """Says where a validation's −Σ log p(y∣f) that is no finite number comes from.

    Args:
        inputs: the rows that it is of.
        nll: what it is.
        epoch: how many epochs the network was trained for.

    Raises:
        InputError: if the inputs hold NaN or infinity.
        ConvergenceError: if they do not.
    """
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors(inputs)):
        raise InputError(
            "validation: expected finite inputs, got NaN or infinity among them. Impute or drop those rows."
        )
    raise ConvergenceError(
        f"validation: expected a finite likelihood, got −log p(y∣f) = {nll} after epoch {epoch}: the model's outputs "
        "hold NaN or infinity there. Take a smaller lr, and see what in eval mode differs from train mode."
    )
