"""How commands end: 0 when all went well, 2 for bad input, 1 for a failure inside, 130 when interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from bayescope.errors import BayescopeError, InputError, InputTypeError

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130


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


def _ended(message: str, code: int) -> typer.Exit:
    typer.echo(f"bayescope: {' '.join(message.split())}", err=True)
    return typer.Exit(code)
