"""How commands end: 0 when all went well, 2 for bad input, 1 for a failure inside, 130 when interrupted."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from bayescope_command.process import (
    BAD_INPUT,
    INTERRUPTED,
    SIGNALLED,
    Stopped,
    Undelivered,
    beside,
    check_output,
    clean_up_first,
    streams,
)

FAILED = 1
LINE_BREAK = re.compile(r"\s*[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]\s*")

# Seconds that a process beside another one, both started by torchrun, waits for that to say what went wrong: torchrun
# ends all of them as soon as one has failed.
LINGER = 10.0

# The parent of all complaints about arguments; of them typer exports this one child only.
UsageError: Any = typer.BadParameter.__base__


@contextmanager
def exits(linger: float = LINGER) -> Iterator[None]:
    """Turns what a command raises on purpose into one line on the error stream and an exit code.

    Args:
        linger: seconds that a process waits whose first rank speaks.

    Raises:
        typer.Exit: with 2 for an input that cannot be used, 1 for any other error of bayescope, 130 for Ctrl-C.
    """
    clean_up_first()
    try:
        yield
    except (Stopped, KeyboardInterrupt) as stop:
        raise _ended(" ".join([INTERRUPTED, *getattr(stop, "__notes__", ())]), _code(stop), linger) from None
    except Exception as error:
        from bayescope.errors import BayescopeError, InputError, InputTypeError
        from bayescope.memory import refuse_ran_out

        try:
            refuse_ran_out(error)
        except BayescopeError as refusal:
            error = refusal
        if not isinstance(error, BayescopeError):
            raise
        code = BAD_INPUT if isinstance(error, InputError | InputTypeError) else FAILED
        raise _ended(
            "\n".join(_one_line(each) for each in getattr(error, "problems", (str(error),))), code, linger
        ) from None


@contextmanager
def process_exits() -> Iterator[None]:
    """Ends the process with one line and an exit code for slips in the arguments, signals and a lost output."""
    with streams():
        try:
            check_output()
            yield
            check_output()
        except UsageError as error:
            message = error.format_message().rstrip(".")
            command = error.ctx.command_path if error.ctx is not None else "bayescope"
            _tell(f"{message[:1].lower()}{message[1:]}; see '{command} --help'.")
            _linger(message, LINGER)
            sys.exit(BAD_INPUT)
        except Undelivered as lost:
            if lost.message:
                _tell(lost.message)
            sys.exit(lost.code)
        except (Stopped, typer.Abort) as stop:
            _tell(INTERRUPTED)
            sys.exit(_code(stop))


def _code(stop: BaseException) -> int:
    return SIGNALLED + (stop.number if isinstance(stop, Stopped) else signal.SIGINT)


def _ended(message: str, code: int, linger: float) -> typer.Exit:
    _tell(message)
    if code in (FAILED, BAD_INPUT):
        _linger(message, linger)
    return typer.Exit(code)


def _linger(message: str, seconds: float) -> None:
    """Waits, beside the process that speaks, until that has spoken and torchrun ends this one; else it speaks itself.

    It is still there where that process has not failed, and knows nothing of what went wrong here.
    """
    if beside():
        time.sleep(seconds)
        _say(f"rank {os.environ['RANK']}: {message}")


def _tell(message: str) -> None:
    if not beside():
        _say(message)


def _say(message: str) -> None:
    for line in message.split("\n"):
        typer.echo(f"bayescope: {printable(_one_line(line))}", err=True)


def _one_line(message: str) -> str:
    """A message without its line breaks; other spaces may be part of a name that is to be pasted."""
    return LINE_BREAK.sub(" ", message.strip())


def printable(text: str) -> str:
    r"""Text with an escape such as ``\x1b`` in the place of each character that steers a terminal or cannot be encoded.

    Files and tables name columns, labels and models as they like: a terminal must not take these names for commands.
    """
    return "".join(letter.encode("unicode_escape").decode() if steers_terminal(letter) else letter for letter in text)


def steers_terminal(letter: str) -> bool:
    """Whether a character is a control or format character, or a lone surrogate; line breaks and tabs are not."""
    return letter not in "\n\t" and unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp")
