"""Ctrl-C waits for the other processes, and a second one does not."""

from __future__ import annotations

import signal

import pytest

from bayescope.processes import Processes
from bayescope.training import interrupts as module_under_test
from bayescope.training.interrupts import Interrupts


def test_a_single_process_is_interrupted_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), Interrupts(Processes()):
        signal.raise_signal(signal.SIGINT)


def test_one_of_several_waits_until_all_know(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts(Processes(0, 2)) as interrupts:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)  # the launcher's, of the same Ctrl-C
        assert interrupts.pending
        interrupts.raise_agreed()  # nobody else knows yet
        interrupts.agreed = True
        with pytest.raises(KeyboardInterrupt):
            interrupts.raise_agreed()
        monkeypatch.setattr(module_under_test, "SAME", -1.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


class _Stopped(SystemExit):
    pass


def test_a_program_s_own_handler_says_what_an_interrupt_is() -> None:
    def stop(*_: object) -> None:
        raise _Stopped

    before = signal.signal(signal.SIGINT, stop)
    try:
        with Interrupts(Processes(0, 2)) as interrupts:
            signal.raise_signal(signal.SIGINT)
            interrupts.agreed = True
            with pytest.raises(_Stopped):
                interrupts.raise_agreed()
    finally:
        signal.signal(signal.SIGINT, before)
