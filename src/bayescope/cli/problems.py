"""Several problems of one table in one run, each with a message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import final

from bayescope.errors import InputError


@final
class TableProblems(InputError):
    """Several things are wrong with a table; each is a message of its own.

    Attributes:
        problems: the messages.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(" ".join(problems))
        self.problems = tuple(problems)


@final
class ColumnProblem(InputError):
    """A column of a type that is neither numbers nor labels.

    Attributes:
        option: that helps, such as "--drop".
    """

    def __init__(self, message: str, option: str) -> None:
        super().__init__(message)
        self.option = option


def refuse(problems: Sequence[str]) -> None:
    """Raises all problems as one error, each once; nothing where there are none.

    Raises:
        InputError: with all messages.
    """
    problems = [*dict.fromkeys(problems)]
    if problems:
        raise InputError(problems[0]) if len(problems) == 1 else TableProblems(problems)


@contextmanager
def collected(problems: list[str]) -> Iterator[None]:
    """Adds the message of an `InputError` that the block raises to a list."""
    try:
        yield
    except InputError as error:
        problems += getattr(error, "problems", (str(error),))
