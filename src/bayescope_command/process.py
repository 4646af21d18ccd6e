"""What a process of the command line does about signals and its standard streams, known before the slow imports.

A signal during the imports ends the process at once, since nothing is written yet; once a command works, it is raised
as `Stopped`, so that everything is cleaned up on its way. What can no longer be delivered to the standard output is
raised where it is written, as `Undelivered`: both pass by whoever handles the errors of a command.
"""

from __future__ import annotations

import atexit
import errno
import io
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, NoReturn, TextIO, final

BAD_INPUT = 2
INTERRUPTED = "interrupted; no file is half-written."
# A process that a signal ended has this plus the signal's number: 130 for Ctrl-C.
SIGNALLED = 128
# SIGHUP: the terminal was closed. Windows has none.
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
SIGPIPE = 13  # which Windows does not name
# Seconds in which further signals wait until the first has cleaned up. A terminal and torchrun both send one.
PATIENCE = 5.0
# Seconds until a signal is raised again: Python has left the place that raises nothing.
SOON = 0.2


class Stopped(SystemExit):
    """A signal that ends the process, as an exception that cleans up on its way.

    Python's own for Ctrl-C is `KeyboardInterrupt`, which trainings and samplers of the library take as the word to stop
    early and to go on with what they have: right in a notebook, and not for a file that others rely on.

    Attributes:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(SIGNALLED + number)
        self.number = number


@final
class Undelivered(SystemExit):
    """The standard output takes no more: its reader has gone (code 141), or there is no space left.

    Attributes:
        message: to be written; empty where the reader has gone.
    """

    def __init__(self, error: OSError) -> None:
        gone = isinstance(error, BrokenPipeError)
        super().__init__(SIGNALLED + SIGPIPE if gone else BAD_INPUT)
        self.message = (
            ""
            if gone
            else f"standard output: expected it to take the answer, got: {error.strerror}. Send it elsewhere."
        )


# --- signals ----------------------------------------------------------------------------------------------------------


def end_at_once() -> None:
    """From here on a signal ends the process with one line; signals that it was started to ignore stay ignored."""
    for number in SIGNALS:
        if signal.getsignal(number) not in (signal.SIG_IGN, None):
            signal.signal(number, _end)


def clean_up_first() -> None:
    """From here on a signal is raised as `Stopped`, where it would have ended the process at once."""
    for number in SIGNALS:
        if signal.getsignal(number) is _end:
            signal.signal(number, _stop)


@contextmanager
def signals_end() -> Iterator[None]:
    """`end_at_once` inside; afterwards signals are handled as before, and ignored while the interpreter shuts down."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    reports, sys.unraisablehook = sys.unraisablehook, _raise_again
    end_at_once()
    try:
        yield
    finally:
        sys.unraisablehook = reports
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
        atexit.register(_ignore)


def _end(number: int, _: FrameType | None) -> None:
    if not beside():
        with suppress(OSError):
            os.write(2, f"bayescope: {INTERRUPTED}\n".encode())
    os._exit(SIGNALLED + number)


def _stop(number: int, _: FrameType | None) -> None:
    for each in SIGNALS:
        if signal.getsignal(each) is _stop:
            signal.signal(each, partial(_wait, time.monotonic()))
    raise Stopped(number)


def _wait(first: float, number: int, frame: FrameType | None) -> None:
    if time.monotonic() - first > PATIENCE:
        _end(number, frame)


def _raise_again(swallowed: Any) -> None:
    """Raises `Stopped` once more where it was raised in a place that cannot pass it on, such as ``__del__``."""
    stop = swallowed.exc_value
    if isinstance(stop, Stopped) and sys.platform != "win32":
        signal.signal(signal.SIGALRM, lambda *_: _stop(stop.number, None))
        signal.setitimer(signal.ITIMER_REAL, SOON)
    else:
        sys.__unraisablehook__(swallowed)


def _ignore() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def beside() -> bool:
    """Whether torchrun started this process, and another one speaks for it."""
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK", "0") != "0"


# --- standard streams -------------------------------------------------------------------------------------------------


@final
class Stream(io.FileIO):
    """A standard stream that drops everything from its first failure on, so that it fails once.

    Args:
        stream: as Python opened it.
        lost: takes the first failure.
    """

    def __init__(self, stream: TextIO, lost: Callable[[OSError], None]) -> None:
        super().__init__(stream.fileno(), "w", closefd=False)
        self._lost: Callable[[OSError], None] | None = lost

    def write(self, data: Any) -> int:
        """How many bytes were taken."""
        lost = self._lost
        if lost is not None:
            try:
                return super().write(data)
            except OSError as error:
                self._lost = None
                lost(error)
        return memoryview(data).nbytes


@contextmanager
def streams() -> Iterator[None]:
    """Standard streams whose failures are reported once, whoever writes: `Undelivered` for the standard output.

    What the error stream does not take is lost.
    """
    # A stream that is closed is given the null device: else the next file would get its number, and what is written.
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(opened)
    before = sys.stdout, sys.stderr
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115
    sys.stderr = _watched(sys.stderr or open(os.devnull, "w"), sys.__stderr__, lambda _: None)  # noqa: SIM115
    sys.stdout = _watched(sys.stdout or open(1, "w", closefd=False), sys.__stdout__, _undelivered)  # noqa: SIM115
    try:
        yield
    finally:
        with suppress(Undelivered):
            sys.stdout.flush()
        sys.stdout, sys.stderr = before


def check_output() -> None:
    """Raises `Undelivered` if what was written so far is not delivered, or the process began without an output."""
    if sys.__stdout__ is None:
        raise Undelivered(OSError(errno.EBADF, "it is closed"))
    sys.stdout.flush()


def _watched(stream: TextIO, standard: TextIO | None, lost: Callable[[OSError], None]) -> TextIO:
    """The stream as a `Stream`, but for one that the program has put in the place of the standard one."""
    if stream is not standard:
        return stream
    binary = io.BufferedWriter(Stream(stream, lost))
    return io.TextIOWrapper(binary, stream.encoding, stream.errors, line_buffering=bool(stream.line_buffering))


def _undelivered(error: OSError) -> NoReturn:
    raise Undelivered(error)


# `python -m bayescope` imports the whole library before it comes to `main`; the name of the script is "-m" until then.
if sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)] in ("bayescope", "-mbayescope"):
    end_at_once()
