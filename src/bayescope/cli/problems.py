"""Several complaints in one run: each is a message of its own."""

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
    """Raises what is wrong, if anything is, each thing once.

    Raises:
        InputError: with all messages.
    """
    problems = [*dict.fromkeys(problems)]
    if problems:
        raise InputError(problems[0]) if len(problems) == 1 else TableProblems(problems)


@contextmanager
def collected(problems: list[str]) -> Iterator[None]:
    """A stretch whose complaint about an input joins others."""
    try:
        yield
    except InputError as error:
        problems += getattr(error, "problems", (str(error),))
