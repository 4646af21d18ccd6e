"""Ctrl-C while several processes work together: it waits until all of them stop at the same place."""

from __future__ import annotations

import math
import signal
import threading
import time
from typing import Any, Self, final

from bayescope.processes import Processes, present

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

    def __exit__(self, *reason: Any) -> None:
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

    def _note(self, *_: Any) -> None:
        now = time.monotonic()
        if now - self._noted > self._same:
            self._interrupt()
        self.pending, self._noted = True, min(now, self._noted)
