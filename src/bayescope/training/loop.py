"""The training loop: epochs of minibatches, an optimiser, a schedule, somebody who watches, a checkpoint."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from bayescope import checks
from bayescope.errors import BayescopeError, ConvergenceError, ConvergenceWarning, InputError
from bayescope.network import Inputs, compiled, explained
from bayescope.priors import Prior
from bayescope.private_draws import PrivateDraws, RandomSource, present_source
from bayescope.process_state import threads_for
from bayescope.processes import present, warn_once
from bayescope.progress import PATIENCE_SECONDS, Report, progress_bar
from bayescope.training.checkpoint import Checkpoint
from bayescope.training.convergence import Pace
from bayescope.training.facts import describe
from bayescope.training.lbfgs import Lbfgs
from bayescope.training.minibatches import Minibatches
from bayescope.training.objective import Objective
from bayescope.training.steps import Interrupts, Steps, Turn, gpus_of, held, share_random_states
from bayescope.training.watch import Watch

# A training of a given number of epochs, `TOLD` at least, is at rest where its second half has lowered the loss, a mean
# over a quarter of the epochs, by at most this many nats and nats a row, or by this many standard errors.
REST, REST_A_ROW, ERRORS, TOLD = 1.0, 3e-2, 3.0, 8
# Why a training ended, where it did before its last epoch.
STOPPED, CONVERGED = "no better validation", "convergence"


@final
@dataclass(frozen=True)
class Outcome:
    """How a training went; the module holds the weights.

    Attributes:
        trace: numbers per epoch: "loss" and what else the objective tells of it, and what the watch adds.
        epochs: how many were completed, those before a checkpoint included.
        kept: after which epoch the weights are those that are returned.
        ended: why it ended: "all epochs", "no better validation", "convergence" or "an interrupt".
        rows: N.
        left: how many nats were left to gain at the end; ``None`` where nobody knows.
        converged: whether that is little; ``None`` where the caller counted the epochs.
        row_weights: what the summary says of the weights of the rows; empty where they have none.
    """

    trace: Mapping[str, list[Any]]
    epochs: int
    kept: int
    ended: str
    rows: int = 0
    left: float | None = None
    converged: bool | None = None
    row_weights: Mapping[str, str] = field(default_factory=dict)

    def notes(self, prior: Prior, advice: str) -> dict[str, str]:
        """What the summary of a posterior says of its training; advice is for a loss that is not at rest."""
        return {
            "prior": describe(prior), "rows": f"{self.rows:,}", **self.row_weights, "training": self.summary(),
            "loss": self.loss(), "at rest": self.rest(advice),
        }  # fmt: skip

    def summary(self) -> str:
        """How many epochs, what ended them, and which weights were kept."""
        kept = "" if self.kept == self.epochs else f", the weights after epoch {self.kept} kept"
        why = "" if self.ended == "all epochs" else f", ended by {self.ended}"
        return f"{self.epochs} epochs{why}{kept}"

    def warn(self) -> bool:
        """Warns of a training that ended before it converged, where it was to train until then.

        Returns:
            Whether it did.

        Warns:
            ConvergenceWarning: with what may be left to gain.
        """
        if self.converged is not False or self.ended != "all epochs":
            return False
        left = "" if self.left is None else f": about {self.left:.3g} nats may be left to gain"
        warn_once(
            "This posterior's predictions may be worse than the network allows: the training has not converged "
            f"after {self.epochs:,} epochs{left}. Give epochs= for a longer one, standardise the inputs, or "
            "continue from its .model.",
            ConvergenceWarning,
        )
        return True

    def loss(self) -> str:
        """The loss of the weights that are returned, and the two terms of a log joint."""
        if not self.kept:
            return "none"
        loss, nll, penalty = (self.trace[name][self.kept - 1] for name in ("loss", "nll", "penalty"))
        return f"{loss:.4f} (negative log likelihood {nll:.4f}, penalty {penalty:.4f})"

    def rest(self, advice: str) -> str:
        """Whether the loss has come to rest at the weights that are returned, with what to do if not."""
        rest = self._at_rest()
        if rest is None or (self.left is None and self.kept < TOLD):
            return f"unknown after {self.kept} epoch{'s' * (self.kept != 1)}. {advice}"
        reason = self._change() if self.left is None else f"about {self.left:.2g} nats are left to gain"
        return f"yes, {reason}" if rest else f"no, {reason}. {advice}"

    def _at_rest(self) -> bool | None:
        """Whether little is left to gain; ``None`` after a few epochs, of which nobody can tell."""
        if self.converged is not None or self.kept < TOLD:
            return self.converged
        change, error = self._second_half()
        return -change <= max(REST + REST_A_ROW * self.rows, ERRORS * error)

    def _change(self) -> str:
        change, error = self._second_half()
        return (
            f"the second half {'lowered' if change < 0 else 'raised'} the loss by {abs(change):.2g} ± {error:.1g} nats"
        )

    def _second_half(self) -> tuple[float, float]:
        """By how much the mean loss of the last quarter is above that of the second one, and the standard error."""
        losses, span = self.trace["loss"][: self.kept], self.kept // 4
        before, after = losses[-3 * span : -2 * span], losses[-span:]
        error = math.sqrt((statistics.pvariance(before) + statistics.pvariance(after)) / span)
        return statistics.fmean(after) - statistics.fmean(before), error


@final
class Loop:
    """Trains a module in place, under random states of its own; several processes train theirs alike.

    Args:
        module: the network.
        objective: of all rows.
        rows: in minibatches.
        optimizer: of the objective's parameters.
        pace: sets its step sizes and how many epochs there are, those of a run that goes on included.
        watch: judges the weights after each epoch.
        checkpoint: where the state is kept.
        progress: whether a bar is drawn once the run takes over two seconds.
    """

    def __init__(
        self,
        module: nn.Module,
        objective: Objective,
        rows: Minibatches,
        optimizer: Optimizer,
        *,
        pace: Pace,
        watch: Watch,
        checkpoint: Checkpoint,
        progress: bool,
    ) -> None:
        self._module, self._objective, self._rows = module, objective, rows
        self._processes = present()
        self._watch, self._checkpoint = watch, checkpoint
        self._progress = progress
        known = type(optimizer).__module__.startswith(("torch.optim.", "bayescope."))
        # Whether the steps need the value of the whole objective, as a line search does, or may need it.
        self._optimizer, self._values = optimizer, not known or isinstance(optimizer, LBFGS | Lbfgs)
        self._draws_of_optimizer = nullcontext() if known else PrivateDraws()
        self._pace, self._epochs = pace, pace.epochs
        self._epoch = self._kept = 0
        self._trace: dict[str, list[Any]] = {}
        self._best: dict[str, Tensor] | None = None
        self._copy: tuple[int, dict[str, Tensor]] | None = None
        self._ended = ""

    def run(self) -> Outcome:
        """Trains until the epochs are over, the watch stops it, or Ctrl-C does.

        Returns:
            How it went. The module has the best weights, or the last ones where none was called best, and is in eval
            mode; its gradients are ``None``.

        Raises:
            ConvergenceError: if the loss is no longer a finite number.
            InputError: if the checkpoint is one of another run.
            ProcessError: if another process has failed or died.
        """
        self._processes.share(held(self._module))
        share_random_states(self._processes)
        interrupts = Interrupts(self._processes)
        self._steps = Steps(self._processes, self._rows, self._objective.parameters, self._module, interrupts)
        if self._pace.keeps:
            self._copy = 0, _snapshot(self._module)
        self._resume()
        weights = sum(parameter.numel() for parameter in self._objective.parameters)
        bar = progress_bar("training", visible=self._progress, patience=PATIENCE_SECONDS)
        try:
            # Ctrl-C is held back inside of all the rest.
            with interrupts, bar as report, threads_for(self._rows.largest * weights):
                while self._epoch < self._epochs and not self._ended:
                    self._one_epoch(report, interrupts)
                interrupts.ask()
        except KeyboardInterrupt:
            self._ended = "an interrupt"
            self._forget_unfinished()
        if self._best is not None:
            _restore(self._module, self._best)
        self._processes.share(held(self._module))
        self._module.eval()
        for parameter in self._module.parameters():
            parameter.grad = None
        pace = self._pace
        ended = self._ended or "all epochs"
        return Outcome(self._trace, self._epoch, self._kept, ended, left=pace.left, converged=pace.converged)

    def _one_epoch(self, report: Report, interrupts: Interrupts) -> None:
        self._module.train()
        self._objective.begin_epoch(self._epoch, self._epochs)
        total: Tensor | float = 0.0
        for turn in self._steps.turns(self._epoch):
            report(self._epoch, self._epochs if self._pace.converged is None else None, f"epoch {self._epoch + 1}")
            total = total + self._step(turn)
            interrupts.raise_agreed()
        terms = self._objective.finish_epoch(float(total))
        if not math.isfinite(terms["loss"]):
            self._go_back_or_refuse(terms["loss"])
            return
        self._steps.share_buffers()
        done = self._epoch + 1
        verdict = self._watch.judge(done)
        best, kept = self._best, done if self._best is None else self._kept
        if verdict.best:
            best, kept = _snapshot(self._module), done
        for name, value in {**terms, **verdict.trace}.items():
            self._trace.setdefault(name, []).append(value)
        # Together, and last: Ctrl-C before it leaves the epoch uncounted (`_forget_unfinished`).
        self._epoch, self._kept, self._best, self._ended = done, kept, best, STOPPED if verdict.stop else ""
        move = self._pace.step(terms["loss"], verdict.trace.get("validation_nll"))
        if move == "end" and not self._ended:
            self._ended = CONVERGED
        elif move == "keep":
            self._copy = done, _snapshot(self._module)
        elif move == "back":
            self._go_back()
        if self._is_due() or self._epoch == self._epochs or self._ended:
            self._checkpoint.save(self._state())

    def _is_due(self) -> bool:
        """Whether rank 0, which writes it, has the time for a checkpoint."""
        if self._processes.count == 1 or not self._checkpoint.wanted:
            return self._checkpoint.due()
        return self._processes.sum_numbers(self._processes.first and self._checkpoint.due())[0] > 0

    def _forget_unfinished(self) -> None:
        """Leaves in the trace what is of epochs that were completed and judged."""
        for values in self._trace.values():
            del values[self._epoch :]
        self._trace = {name: values for name, values in self._trace.items() if values}

    def _step(self, turn: Turn) -> Tensor:
        """One step of the optimiser, which may ask for the gradient more than once.

        Returns:
            The minibatch's sum of −log p(y∣f) before the step, float64.
        """
        first: list[Tensor] = []

        def evaluate() -> Tensor:
            nll, rows = self._steps.evaluate(self._estimate, turn)
            first.append(nll.to(torch.float64) * rows)
            return nll + self._objective.per_row_penalty() if self._values else nll

        with self._draws_of_optimizer:
            self._optimizer.step(evaluate)  # type: ignore[arg-type]  # torch's optimisers take a closure of a tensor
        return first[0]

    def _estimate(self, inputs: Inputs, targets: Tensor) -> Tensor:
        with explained(self._module, inputs):
            try:
                return self._objective.estimate(inputs, targets)
            except BayescopeError:
                raise
            except ValueError as error:
                if len(targets) > 1:
                    raise
                raise InputError(
                    "data: expected minibatches of at least two rows for this model (it has batch norm, which has no "
                    f"spread in a single one), got one of a single row: {error} Give a loader drop_last=True, or take "
                    "another batch_size."
                ) from error

    def _go_back(self) -> None:
        """Takes the copy of the weights, with nothing of what the optimiser has learnt since."""
        assert self._copy is not None
        epoch, weights = self._copy
        _restore(self._module, weights)
        self._optimizer.state.clear()
        if self._best is None:
            self._kept = epoch

    def _go_back_or_refuse(self, loss: float) -> None:
        self._rows.require_finite()
        if self._pace.failed():
            self._go_back()
            return
        sizes = ", ".join(f"{float(group['lr']):g}" for group in self._optimizer.param_groups if "lr" in group)
        raise ConvergenceError(
            f"loss: expected a finite number, got {loss} in epoch {self._epoch + 1}, with the step size {sizes}. Take "
            "a smaller lr, standardise inputs and targets, and see that the data hold no NaN."
        )

    def _state(self) -> dict[str, Any]:
        draws = present_source()
        assert draws is not None
        return {
            "epoch": self._epoch,
            "kept": self._kept,
            "ended": self._ended,
            "trace": self._trace,
            "module": _snapshot(self._module),
            "best": self._best,
            "copy": self._copy,
            "optimizer": self._optimizer.state_dict(),
            "schedule": self._pace.state(),
            "watch": self._watch.state(),
            "random": draws.states(),
            "random_global": draws.globally,
            **self._orders(),
        }

    def _orders(self) -> dict[str, Any]:
        """The states of what the order of the rows, and the processes' own random numbers, come from."""
        orders = [generator.get_state() for generator in self._rows.generators]
        if self._processes.count == 1:
            return {"orders": orders}
        return {
            "orders": orders,
            "orders_by_rank": self._processes.gather(orders),
            "own": self._steps.seeds.get_state(),
        }

    def _resume(self) -> None:
        state = self._checkpoint.load()
        if state is None:
            return
        _restore(self._module, state["module"])
        self._epoch, self._kept, self._ended = state["epoch"], state["kept"], state["ended"]
        self._trace, self._best, self._copy = state["trace"], state["best"], state["copy"]
        self._optimizer.load_state_dict(state["optimizer"])
        self._pace.restore(state["schedule"])
        self._watch.restore(state["watch"])
        draws = present_source()
        assert draws is not None
        if state["random_global"]:
            draws.hand_over()
        draws.restore(state["random"])
        orders, ranks = state["orders"], state.get("orders_by_rank", [])
        if len(ranks) == self._processes.count > 1:
            orders = ranks[self._processes.rank]
            self._steps.seeds.set_state(state["own"])
        for generator, order in zip(self._rows.generators, orders, strict=True):
            generator.set_state(order)


@contextmanager
def random_states(module: nn.Module, generator: torch.Generator) -> Iterator[torch.Generator]:
    """Has what is drawn inside, by dropout for example, come from generators that another one has seeded.

    What has been compiled draws from torch's global generator alone, whose state is then put back afterwards.

    Yields:
        A generator for the order of the rows. The caller's is read twice, however long the training is.
    """
    draws = RandomSource(checks.seed_from(generator), gpus_of(module), globally=compiled(module), fit=True)
    with draws.inside():
        yield torch.Generator().manual_seed(checks.seed_from(generator))


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers of a module by name, detached."""
    return {name: tensor.detach() for name, tensor in [*module.named_parameters(), *module.named_buffers()]}


def _snapshot(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors_of(module).items()}


def _restore(module: nn.Module, snapshot: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in tensors_of(module).items():
            tensor.copy_(snapshot[name])
