"""The steps of an epoch: by one process, or by several at once on parts of each minibatch, as if they were one.

Processes that train together have the same weights and random numbers, and stop at the same step after Ctrl-C.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self, final

import torch
from torch import Tensor, nn

from bayescope.module_copies import module_copy
from bayescope.network import Inputs, compiled
from bayescope.network.shards import require_same_shapes
from bayescope.private_draws import Cut, RandomSource, RecomputedError, drawing, present_source
from bayescope.processes import Processes, present
from bayescope.training.minibatches import Minibatches
from bayescope.training.stack import Stack

Estimate = Callable[[Inputs, Tensor], Tensor]
# What keeps the seeds of the processes' own random states apart from the one that torch was seeded with.
_APART = 0x5DEECE66D


# Seconds, by default: a terminal sends one to each process, and `torchrun` another.
SAME = 2.0


@final
class Interrupts:
    """Notes Ctrl-C inside a ``with`` block, where there is more than one process; a second one interrupts at once.

    A process that left a sum while others wait in it would leave them waiting. Of a single process nothing changes.

    Args:
        processes: which work together; by default those that fit together here.
        same: seconds in which a second signal is the same Ctrl-C.

    Attributes:
        pending: whether this process was interrupted.
        agreed: whether one of them was, as far as all know.
    """

    def __init__(self, processes: Processes | None = None, *, same: float = SAME) -> None:
        self._processes, self._same = processes or present(), same
        self.pending = self.agreed = False
        self._before: Any = None
        self._noted = math.inf

    def __enter__(self) -> Self:
        if self._processes.count > 1 and threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *reason: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def raise_agreed(self) -> None:
        """Interrupts on every process if it is known on every one that one was interrupted.

        Raises:
            KeyboardInterrupt: then, or what the program's own handler of the signal raises.
        """
        if self.agreed:
            self._interrupt()

    def ask(self) -> None:
        """Asks all processes, and interrupts every one if one was interrupted; collective.

        Raises:
            KeyboardInterrupt: then.
        """
        if self._processes.count > 1:
            self.agreed = self._processes.sum_numbers(self.pending)[0] > 0
        self.raise_agreed()

    def _interrupt(self) -> None:
        if callable(self._before):
            self._before(signal.SIGINT, None)
        raise KeyboardInterrupt

    def _note(self, *_: object) -> None:
        now = time.monotonic()
        if now - self._noted > self._same:
            self._interrupt()
        self.pending, self._noted = True, min(now, self._noted)


class Turn(NamedTuple):
    """A step to be taken.

    Attributes:
        inputs: this process's rows; none where it has none left and others have.
        targets: theirs; none, or those of a row that is not this process's, where it has no part of the minibatch.
        cut: where the rows are in a minibatch of all processes; ``None`` where they are one of their own.
    """

    inputs: Inputs
    targets: Tensor
    cut: Cut | None

    @property
    def rows(self) -> int:
        """How many rows this process has."""
        return len(self.targets) if self.cut is None else self.cut.count


@final
class Steps:
    """The steps that all processes take together, on the gradient of their joint minibatch.

    With B_r rows on rank r, the gradient of the minibatch of B = Σ B_r rows is Σ_r (B_r/B) g_r: what a rank adds for
    the prior or for KL(q∥p), the same on each, has the weight Σ_r B_r/B = 1 and counts once. All numbers of a step
    travel in one sum, and with them whether there is a next one, and whether a process has failed or is interrupted.

    Args:
        processes: which take part.
        rows: in minibatches.
        parameters: whose gradients are summed.
        module: what is trained.
        interrupts: of this process.

    Attributes:
        seeds: draws a seed a step, alike on all processes, for their own random states.
    """

    def __init__(
        self, processes: Processes, rows: Minibatches, parameters: Sequence[nn.Parameter], module: nn.Module,
        interrupts: Interrupts,
    ) -> None:  # fmt: skip
        self._processes, self._rows, self._parameters = processes, rows, list(parameters)
        self._module, self._interrupts = module, interrupts
        draws = present_source()
        assert draws is not None
        self._draws = draws
        self.seeds = torch.Generator().manual_seed(draws.seed ^ _APART)
        self._gpus = gpus_of(module)
        self._whole_passes = compiled(module)
        double = any(parameter.dtype == torch.float64 for parameter in self._parameters)
        self._dtype = torch.float64 if double else torch.float32
        self._error: BaseException | None = None
        self._left = self._more = self._read = False

    def turns(self, epoch: int) -> Iterator[Turn]:
        """The turns of an epoch, as many on each process."""
        if self._processes.count == 1:
            for inputs, targets in self._rows.epoch(epoch):
                yield Turn(inputs, targets, None)
            return
        self._processes.meet("epoch", {})  # the sums of the steps do not learn of errors outside of them
        self._own, self._read = self._state(), False
        iterator = self._rows.epoch(epoch)
        turn = self._next(iterator)
        self._more = True
        while self._more:
            self._own = self._state()
            following = self._next(iterator) if self._left else _NOTHING
            yield turn
            turn = following

    def share_buffers(self) -> None:
        """Gives every process the same buffers after an epoch."""
        share_buffers(self._module, read=self._read)

    def evaluate(self, estimate: Estimate, turn: Turn) -> tuple[Tensor, float]:
        """Sets the gradients to those of the minibatch of all processes.

        Args:
            estimate: sets them to those of this process's rows, and returns the mean of −log p(y∣f) over them.
            turn: the step.

        Returns:
            The mean of −log p(y∣f) over the step's rows on all processes, and how many these are.

        Raises:
            ProcessError: if another process has failed.
            KeyboardInterrupt: if one was interrupted, on all of them after the same step.
        """
        if self._processes.count == 1:
            return self._estimated(estimate, turn, None), float(turn.targets.shape[0])
        rows, nll = turn.rows, torch.zeros(())
        for parameter in self._parameters:
            parameter.grad = None
        if rows and self._error is None:
            try:
                nll = self._estimated(estimate, turn, self._own)
                self._read = True
            except BaseException as error:  # noqa: BLE001 — the others have to learn of it
                self._error = error
        taken = self._summed(0 if self._error else rows, nll)
        if turn.cut is not None and turn.cut.rows < self._processes.count:
            # Those without rows have drawn nothing; the last process always has some.
            share_random_states(self._processes, self._processes.count - 1)
        return taken

    def _estimated(self, estimate: Estimate, turn: Turn, local: RandomSource | None) -> Tensor:
        if not self._whole_passes:
            try:
                with drawing(turn.cut, local):
                    return estimate(turn.inputs, turn.targets)
            except RecomputedError:
                self._whole_passes = True  # from now on, beginning with this step
                self._draws.hand_over()
                local = None if local is None else self._own_draws(local.seed)
        with drawing(None, local):
            return estimate(turn.inputs, turn.targets)

    def _summed(self, rows: int, nll: Tensor) -> tuple[Tensor, float]:
        weighted = [self._weighted(parameter, rows) for parameter in self._parameters]
        device = self._parameters[0].device
        flags = [rows, self._left, self._error is not None, self._interrupts.pending]
        kinds = [[p.grad is not None, p.grad is not None and p.grad.is_sparse] for p in self._parameters]
        numbers = torch.tensor([*map(float, flags), *(float(kind) for pair in kinds for kind in pair)])
        value = nll.detach().to(device, self._dtype).reshape(1) * rows if rows else torch.zeros(1)
        sent = [*weighted, *(t.to(device, self._dtype) for t in (numbers, value))]
        sums = self._processes.sum(sent, meet=False)
        total, left, failed, interrupted, *used = sums[-2].tolist()
        if failed:
            self._processes.agree(self._error)
        for parameter, gradient, given, sparse in zip(self._parameters, sums, used[::2], used[1::2], strict=False):
            if given:
                mean = (gradient / total).to(parameter.dtype)
                parameter.grad = mean.to_sparse(1) if sparse else mean  # as the optimiser has it of one process
        self._more, self._interrupts.agreed = left > 0, interrupted > 0
        return sums[-1][0] / total, total

    def _weighted(self, parameter: nn.Parameter, rows: int) -> Tensor:
        """B_r g_r, in the type that sums are taken in."""
        gradient = parameter.grad
        if gradient is None or not rows:
            return torch.zeros_like(parameter, dtype=self._dtype, requires_grad=False)
        return gradient.to_dense().to(self._dtype) * rows

    def _next(self, iterator: Iterator[tuple[Inputs, Tensor]]) -> Turn:
        """This process's next rows; an error of its data waits for the step that all take next."""
        try:
            with self._own.inside():
                found = next(iterator, None)
        except BaseException as error:  # noqa: BLE001 — as above
            self._error, found = error, None
        self._left = found is not None
        return _NOTHING if found is None else Turn(*found, self._rows.cut)

    def _state(self) -> RandomSource:
        return self._own_draws(int(torch.randint(2**62, (1,), generator=self.seeds)) + self._processes.rank)

    def _own_draws(self, seed: int) -> RandomSource:
        return RandomSource(seed, self._gpus, globally=self._draws.globally, fit=True)


_NOTHING = Turn((), torch.empty(0), None)


def share_buffers(module: nn.Module, *, read: bool) -> None:
    """Gives every process the same buffers: the mean of batch norms' running statistics, and one rank's of all others.

    Args:
        module: whose buffers they are.
        read: whether it has read rows on this process. Where it has read none its buffers tell nothing: the mean is
            over the others, and the first of them has the buffers that all get.
    """
    processes = present()
    if processes.count == 1 or not any(True for _ in module.buffers()):
        return
    readers = processes.gather(read)
    held: list[Tensor] = []
    for part in module.modules():
        named = zip(part.buffer_names, part.buffers(), strict=True) if isinstance(part, Stack) else part.named_buffers(
            recurse=False
        )  # fmt: skip
        held += [buffer for name, buffer in named if name.rpartition(".")[2] in ("running_mean", "running_var")]
    with torch.no_grad():
        for buffer, total in zip(held, processes.sum([buffer * read for buffer in held]), strict=True):
            buffer.copy_(total / sum(readers))
    processes.share([buffer.detach() for buffer in module.buffers()], readers.index(True))


def share_start(module: nn.Module, generator: torch.Generator) -> torch.Generator:
    """Gives the module on every process rank 0's parameters and buffers, and the generator the state of rank 0's.

    Raises:
        InputError: on all processes, if their modules have other ones.
    """
    require_same_shapes(module)
    present().share(held(module))
    return present().common_generator(generator)


def shared_copy(module: nn.Module) -> nn.Module:
    """A copy of the module with rank 0's weights; the module itself where there is one process."""
    if present().count == 1:
        return module
    copied = module_copy(module)
    share_start(copied, torch.Generator())
    return copied


def own_source(module: nn.Module) -> RandomSource | None:
    """Random numbers for the rows of this process; ``None`` where one process reads all of them."""
    source, processes = present_source(), present()
    if processes.count == 1 or source is None:
        return None
    return RandomSource(source.seed + 1 + processes.rank, gpus_of(module))


def share_random_states(processes: Processes, source: int = 0) -> None:
    """Gives the fit's random numbers one rank's states on every process."""
    draws = present_source()
    if processes.count == 1 or draws is None:
        return
    states = draws.states()
    processes.share(list(states.values()), source)
    draws.restore(states)


def held(module: nn.Module) -> list[Tensor]:
    """All parameters and buffers of a module, detached."""
    return [tensor.detach() for tensor in (*module.parameters(), *module.buffers())]


def gpus_of(module: nn.Module) -> list[int]:
    """The GPUs that the parameters lie on."""
    return sorted({p.device.index for p in module.parameters() if p.device.type == "cuda"})
