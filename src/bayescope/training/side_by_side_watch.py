"""Who judges networks that are trained side by side: each by itself, on rows that none is trained on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor

from bayescope import checks
from bayescope.likelihoods import Likelihood
from bayescope.network.batches import row_total
from bayescope.network.forward import reading
from bayescope.network.inputs import call
from bayescope.training.minibatches import Minibatches
from bayescope.training.side_by_side import nll_of_each
from bayescope.training.stack import Stack, for_each
from bayescope.training.watch import Verdict, refuse_non_finite


@final
class ValidationOfEach:
    """Keeps the best weights of each network of a stack by the rule that `Validation` has for a single one.

    A network that has had its patience is trained on with the others; its best weights stay what they were then.

    Args:
        stack: the networks, read in eval mode.
        rows: the validation rows.
        likelihood: p(y∣f).
        patience: so many epochs without a better one end the training of a network; ``None`` for never.

    Attributes:
        kept: after which epoch each network was at its best, shape (M,).
        last: the last epoch that counts for each, shape (M,).
        ended: whose training is over, shape (M,).

    Raises:
        InputError: if the patience is no positive whole number.
    """

    def __init__(self, stack: Stack, rows: Minibatches, likelihood: Likelihood, patience: int | None) -> None:
        self._stack, self._rows, self._likelihood = stack, rows, likelihood
        self._patience = math.inf if patience is None else checks.count("patience", patience)
        self._lowest = torch.full((stack.members,), math.inf, dtype=torch.float64)
        self.ended = torch.zeros(stack.members, dtype=torch.bool)
        self.kept = torch.zeros(stack.members, dtype=torch.int64)
        self.last = torch.zeros(stack.members, dtype=torch.int64)
        self._best = [tensor.detach().clone() for tensor in self._tensors()]

    def judge(self, epoch: int) -> Verdict:
        """Reads all validation rows; raises as `Validation` does.

        The trace has the mean over the networks in training, and NaN for each whose training had ended before.
        """
        total = self._read(epoch)
        shown = total.masked_fill(self.ended, math.nan)
        self.last[~self.ended] = epoch
        better = (total < self._lowest) & ~self.ended
        self._lowest = torch.where(better, total, self._lowest)
        self.kept[better] = epoch
        if better.any():
            for best, tensor in zip(self._best, self._tensors(), strict=True):
                chosen = better.to(tensor.device)
                best[chosen] = tensor.detach()[chosen]
        self.ended = epoch - self.kept >= self._patience
        trace = {"validation_nll": float(shown.nanmean()), "validation_nlls": shown.tolist()}
        return Verdict(trace, stop=bool(self.ended.all()))

    def restore_best(self) -> None:
        """Gives each network of the stack its best weights, where it has been judged."""
        with torch.no_grad():
            for best, tensor in zip(self._best, self._tensors(), strict=True):
                judged = (self.kept > 0).to(tensor.device)
                tensor[judged] = best[judged]

    def facts(self) -> dict[str, Any]:
        """The rows, and the patience, which a run that has ended for it has lost."""
        return {"validation": self._rows.fingerprint(), "patience": self._patience}

    def state(self) -> dict[str, Any]:
        """The best of each so far."""
        return {
            "lowest": self._lowest, "ended": self.ended, "kept": self.kept, "last": self.last, "best": self._best,
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes the state of a checkpoint."""
        self._lowest, self.ended, self._best = state["lowest"], state["ended"], state["best"]
        self.kept, self.last = state["kept"], state["last"]

    def _read(self, epoch: int) -> Tensor:
        """Σ −log p(y∣f) of each network, shape (M,), float64."""
        members = self._stack.members
        total = torch.zeros(members, dtype=torch.float64)
        with reading(self._stack), torch.no_grad():  # in this order: reading a module turns gradients on
            for inputs, targets in self._rows.in_order():
                f = call(self._stack, for_each(inputs, members)).to(torch.float64)
                nll = nll_of_each(self._likelihood, f, for_each(targets, members).flatten(1, 2)).cpu()
                if not torch.isfinite(nll).all():
                    refuse_non_finite(inputs, float(nll.sum()), epoch)
                total += nll
        return row_total(total)

    def _tensors(self) -> list[Tensor]:
        return [*self._stack.parameters(), *self._stack.buffers()]
