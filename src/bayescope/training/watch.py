"""What looks at the weights after each epoch, keeps the best of them and may end the training."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from typing import Any, NamedTuple, NoReturn, Protocol, Self, final

import torch
from torch import Tensor, nn

from bayescope.errors import ConvergenceError, InputError
from bayescope.network import Inputs, call, reading, row_total, tensors
from bayescope.training.minibatches import Minibatches
from bayescope.training.objective import Objective, log_likelihood, nll_of_each
from bayescope.training.stack import Stack, for_each

# Blocks of rows, each with its −Σ log p(y∣f).
Losses = Callable[[], Generator[tuple[Any, Tensor | float], None, None]]


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
        """The verdict on the weights after this many epochs."""

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

    Each network of a stack is judged by itself: one that has had its patience is trained on with the others, and its
    best weights stay what they were then.

    Args:
        losses: reads these rows: for each block of them the inputs, and −Σ log p(y∣f) of each network.
        rows: the validation rows.
        patience: this many epochs without a better one end the training; ``None`` for never.
        stack: the networks, if there are several.

    Attributes:
        kept: after which epoch each network was at its best, shape (M,).
        last: the last epoch that counts for each, shape (M,).
        ended: whose training is over, shape (M,).
    """

    def __init__(self, losses: Losses, rows: Minibatches, patience: int | None, stack: Stack | None = None) -> None:
        self._losses, self._rows, self._stack = losses, rows, stack
        self._patience = math.inf if patience is None else patience
        members = 1 if stack is None else stack.members
        self._lowest = torch.full((members,), math.inf, dtype=torch.float64)
        self.ended = torch.zeros(members, dtype=torch.bool)
        self.kept, self.last = torch.zeros(2, members, dtype=torch.int64)
        self._best = [tensor.detach().clone() for tensor in self._tensors()]

    @classmethod
    def of(cls, module: nn.Module, rows: Minibatches, objective: Objective, patience: int | None) -> Self:
        """That of a network, or of each of a stack, in eval mode.

        Args:
            module: the network or the stack.
            rows: the validation rows.
            objective: has the likelihood.
            patience: as above.
        """
        stack = module if isinstance(module, Stack) else None

        def losses() -> Generator[tuple[Any, Tensor | float], None, None]:
            likelihood = objective.likelihood
            with reading(module), torch.no_grad():  # in this order: reading a module turns gradients on
                for inputs, targets in rows.in_order():
                    if stack is None:
                        f = call(module, inputs).to(torch.float64)
                        yield inputs, -float(log_likelihood(likelihood, f, targets))
                    else:
                        f = call(stack, for_each(inputs, stack.members)).to(torch.float64)
                        yield inputs, nll_of_each(likelihood, f, for_each(targets, stack.members).flatten(1, 2)).cpu()

        return cls(losses, rows, patience, stack)

    def judge(self, epoch: int) -> Verdict:
        """Reads all validation rows.

        For a stack the trace has the mean over the networks in training, and NaN for each whose training had ended.

        Raises:
            InputError: if inputs hold NaN or infinity, and with them the outputs.
            ConvergenceError: if the outputs do for inputs that do not.
        """
        total = torch.zeros_like(self._lowest)
        with closing(self._losses()) as losses:
            for inputs, nll in losses:
                total += nll
                if not torch.isfinite(total).all():  # NaN is neither better nor worse than the best
                    refuse_non_finite(inputs, float(total.sum()), epoch)
        total = row_total(total)
        seen = total.masked_fill(self.ended, math.nan)
        self.last[~self.ended] = epoch
        better = (total < self._lowest) & ~self.ended
        self._lowest = torch.where(better, total, self._lowest)
        self.kept[better] = epoch
        for best, tensor in zip(self._best, self._tensors(), strict=True):
            chosen = better.to(tensor.device)
            best[chosen] = tensor.detach()[chosen]
        self.ended = epoch - self.kept >= self._patience
        stop = bool(self.ended.all())
        if self._stack is None:
            return Verdict({"validation_nll": float(total)}, bool(better), stop)
        return Verdict({"validation_nll": float(seen.nanmean()), "validation_nlls": seen.tolist()}, stop=stop)

    def restore_best(self) -> None:
        """Gives each network of a stack its best weights, where it has been judged."""
        with torch.no_grad():
            for best, tensor in zip(self._best, self._tensors(), strict=True):
                judged = (self.kept > 0).to(tensor.device)
                tensor[judged] = best[judged]

    def facts(self) -> dict[str, Any]:
        """The rows, and the patience, which a run that has ended for it has lost."""
        return {"validation": self._rows.fingerprint(), "patience": self._patience}

    def state(self) -> dict[str, Any]:
        """The best of each network so far."""
        return {
            "lowest": self._lowest, "ended": self.ended, "kept": self.kept, "last": self.last, "best": self._best,
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes the state of a checkpoint."""
        self._lowest, self.ended, self._best = state["lowest"], state["ended"], state["best"]
        self.kept, self.last = state["kept"], state["last"]

    def _tensors(self) -> list[Tensor]:
        return [] if self._stack is None else [*self._stack.parameters(), *self._stack.buffers()]


def refuse_non_finite(inputs: Inputs, nll: float, epoch: int) -> NoReturn:
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
