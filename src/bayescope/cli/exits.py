"""How commands end: 0 when all went well, 2 for bad input, 1 for a failure inside, 130 when interrupted."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from bayescope.errors import BayescopeError, InputError, InputTypeError

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130

# The parent of all complaints about arguments; of them typer exports this one child only.
UsageError: Any = typer.BadParameter.__base__


@contextmanager
def exits() -> Iterator[None]:
    """Turns what a command raises on purpose into one line on the error stream and an exit code.

    Raises:
        typer.Exit: with 2 for an input that cannot be used, 1 for any other error of bayescope, 130 for Ctrl-C.
    """
    try:
        yield
    except (InputError, InputTypeError) as error:
        raise _ended(str(error), BAD_INPUT) from None
    except BayescopeError as error:
        raise _ended(str(error), FAILED) from None
    except KeyboardInterrupt:
        raise _ended("interrupted; no file is half-written.", INTERRUPTED) from None


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turns a missing or unknown argument, option or command into one line on the error stream and exit code 2."""
    try:
        yield
    except UsageError as error:
        message = error.format_message().rstrip(".")
        command = error.ctx.command_path if error.ctx is not None else "bayescope"
        _tell(f"{message[:1].lower()}{message[1:]}; see '{command} --help'.")
        sys.exit(BAD_INPUT)


def _ended(message: str, code: int) -> typer.Exit:
    _tell(message)
    return typer.Exit(code)


def _tell(message: str) -> None:
    typer.echo(f"bayescope: {' '.join(message.split())}", err=True)
