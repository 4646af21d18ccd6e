"""What was chosen, and why, as messages of Python's logging: those of the logger "bayescope", silent by default."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from bayescope.processes import present

LOGGER = logging.getLogger("bayescope")
# Without a handler of ours, Python would print what is logged as a warning or above in programs that set up no logging.
LOGGER.addHandler(logging.NullHandler())

_Arguments = ParamSpec("_Arguments")
_Found = TypeVar("_Found")
# A fit may call others: the outermost alone speaks, since its notes have what theirs said.
_speaking: ContextVar[bool] = ContextVar("the outermost function will log its notes", default=False)


def logged(function: Callable[_Arguments, _Found]) -> Callable[_Arguments, _Found]:
    """Log the notes of the posterior, or of the fitted estimator, that a function returns, each as a message at INFO.

    The notes are the lines of its summary: what each option resolved to, and the reason where there is one. They are
    made whether or not somebody listens, so that there is one place where a choice is put into words. Of several
    processes that fit together the first one speaks.
    """

    @wraps(function)
    def speaking(*arguments: _Arguments.args, **options: _Arguments.kwargs) -> _Found:
        if _speaking.get() or not LOGGER.isEnabledFor(logging.INFO):
            return function(*arguments, **options)
        token = _speaking.set(True)
        try:
            found = function(*arguments, **options)
        finally:
            _speaking.reset(token)
        _log(found)
        return found

    return speaking


def say(maker: str, choice: str) -> None:
    """Log at INFO a choice that no summary has, since it changes no result: such as how many chains run at a time.

    Args:
        maker: who chose.
        choice: what, and why, as one sentence.
    """
    if present().first:
        LOGGER.info("%s: %s", maker, choice)


def _log(found: Any) -> None:
    """The notes of a posterior, after the name of its inference; or of a fitted estimator, after the estimator's."""
    fitted = hasattr(found, "posterior_")
    record = (found.posterior_ if fitted else found).record
    for name, note in record.notes.items():
        say(type(found).__name__ if fitted else record.method, f"{name}: {note}")
