"""Every error and warning that bayescope raises on purpose.

Each error says what was expected, what was got and what to do. Errors about a caller's input are also
``ValueError`` (or ``TypeError``), so that code written against scikit-learn or NumPy catches them.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

__all__ = [
    "BayescopeError",
    "BayescopeWarning",
    "ConvergenceError",
    "ConvergenceWarning",
    "DivergenceWarning",
    "FileError",
    "InputError",
    "InputTypeError",
    "MemoryBudgetError",
    "MissingDependencyError",
    "NotPositiveDefiniteError",
    "OptionError",
    "ProcessError",
    "UndefinedQuantityError",
    "UnsupportedError",
]


class BayescopeError(Exception):
    """The parent of every error that bayescope raises on purpose: ``except BayescopeError`` catches them all.

    The estimators also raise scikit-learn's own errors (``ValueError``, ``NotFittedError``) where its checks of tables
    find something, so that they behave in its pipelines like any other estimator.
    """


class InputError(BayescopeError, ValueError):
    """An input has the right type and a value that cannot be used: a negative precision, an unknown label."""


class InputTypeError(BayescopeError, TypeError):
    """An input has a type that cannot be used: text where numbers belong, a class in place of an instance."""


class OptionError(InputError):
    """An option was given a name that is not among the supported ones; the message lists those."""

    @classmethod
    def unknown(cls, option: str, got: object, supported: Iterable[object], *, meant: object = None) -> OptionError:
        """Builds the message, with the closest supported name, in whatever case, where the one given looks like a slip.

        Args:
            option: its name.
            got: what was given.
            supported: the names that it may have.
            meant: the supported name that ``got`` is another word for, where that is known.
        """
        names = list(supported)
        cases = {str(name).lower(): name for name in reversed(names)}
        close = [cases[name] for name in get_close_matches(str(got).lower(), cases, n=1)]
        close = [meant] if meant in names else close
        hint = f" Did you mean {close[0]!r}?" if close else ""
        return cls(f"{option}: expected one of {', '.join(map(repr, names))}, got {got!r}.{hint}")


class FileError(InputError):
    """A saved file is truncated, altered, of another version, or none of bayescope's; nothing of it was used."""


class UnsupportedError(InputError):
    """Two options are each valid and do not go together; the message lists what does."""


class UndefinedQuantityError(BayescopeError, ValueError):
    """The posterior was asked for what its approximation does not define, such as the evidence of a set of draws."""


class NotPositiveDefiniteError(BayescopeError, ValueError):
    """A matrix that has to be positive definite is not.

    Attributes:
        smallest_eigenvalue: the smallest eigenvalue found, or ``None`` where the matrix has non-finite entries.
        direction: the unit eigenvector that belongs to it, as a tensor of shape (P,), or ``None``.
    """

    def __init__(self, message: str, smallest_eigenvalue: float | None = None, direction: Any = None) -> None:
        super().__init__(message, smallest_eigenvalue, direction)
        self.smallest_eigenvalue = smallest_eigenvalue
        self.direction = direction

    def __str__(self) -> str:
        return str(self.args[0])


class ConvergenceError(BayescopeError, RuntimeError):
    """An iteration stopped short of its tolerance, so far that its result would mislead; nothing is handed out."""


class MemoryBudgetError(BayescopeError, MemoryError):
    """A run would take more memory than its budget; it is refused before it starts, with what would fit."""


class MissingDependencyError(BayescopeError, ImportError):
    """A feature needs an optional package that is not installed; the message names the extra."""

    @classmethod
    def of_slim_install(cls, error: ModuleNotFoundError) -> MissingDependencyError:
        """Builds the message for a package that a slim install leaves out.

        Args:
            error: of its import.
        """
        return cls(f"{error.name} is needed here and is not installed: pip install bayescope (without --no-deps).")


class ProcessError(BayescopeError, RuntimeError):
    """One of the processes that fit together has failed or died; the others stop with it, and say which and why."""


class BayescopeWarning(UserWarning):
    """The parent of every warning that bayescope gives: one filter silences them or turns them into errors."""


class ConvergenceWarning(BayescopeWarning):
    """A result is usable and less accurate than asked for: too few effective draws, a loose optimum."""


class DivergenceWarning(BayescopeWarning):
    """A Hamiltonian sampler met regions that it could not integrate; its draws may miss part of the posterior."""


# What torch says where the machine's memory does not hold a tensor.
OUT_OF_MEMORY = "can't allocate memory"
# Of an error's message, where it is quoted in another one.
MOST_LETTERS = 200


def first_line(error: BaseException) -> str:
    """An error's message in one short line: a file may bring texts of any length, and any letters, into it."""
    words = " ".join(str(error).split()) or type(error).__name__
    text = "".join(letter if letter.isprintable() else "?" for letter in words[: MOST_LETTERS + 1])
    return text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]}…"


# Whose frames are never the caller's: our own, and those of torch's decorators, such as `torch.no_grad`.
_INSIDE = ("bayescope", "torch")


def warn(message: str, category: type[BayescopeWarning]) -> None:
    """Warns at the line of the caller, however deep inside of bayescope the reason is found.

    Args:
        message: what was expected, what was got and what to do.
        category: of the warning.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


@contextmanager
def recorded_warnings(*, passed_on: bool) -> Iterator[list[str]]:
    """List the messages of bayescope's warnings in the block, each once, when it ends; warnings of others pass.

    Args:
        passed_on: whether the caller is warned as well.
    """
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BayescopeWarning)
        yield messages
    for warning in caught:
        ours = issubclass(warning.category, BayescopeWarning)
        if passed_on or not ours:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        if ours and str(warning.message) not in messages:
            messages.append(str(warning.message))
