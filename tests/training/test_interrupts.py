"""Ctrl-C waits for the other processes, and a second one does not."""

from __future__ import annotations

import signal

import pytest

from bayescope.processes import Processes
from bayescope.training import Interrupts


def test_a_single_process_is_interrupted_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), Interrupts(Processes()):
        signal.raise_signal(signal.SIGINT)


def test_one_of_several_waits_until_all_know() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts(Processes(0, 2)) as interrupts:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)  # the launcher's, of the same Ctrl-C
        assert interrupts.pending
        interrupts.raise_agreed()  # nobody else knows yet
        interrupts.agreed = True
        with pytest.raises(KeyboardInterrupt):
            interrupts.raise_agreed()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_does_not_wait() -> None:
    with Interrupts(Processes(0, 2), same=0.0):
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


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
