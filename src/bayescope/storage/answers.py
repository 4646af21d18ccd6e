"""Answers of objects out of files: where one fails inside, the message names the file."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from bayescope.errors import OUT_OF_MEMORY, BayescopeError, FileError, first_line

# The methods that answer by what was learnt.
ANSWERS = (
    "predict", "predict_proba", "predict_log_proba", "predict_distribution", "sample", "sample_functions",
    "transform_inputs", "coefficients", "effects", "surface", "importance", "explain",
)  # fmt: skip
# The file of each object that was loaded, while it lives.
_FILES: weakref.WeakKeyDictionary[Any, Path] = weakref.WeakKeyDictionary()


def remember(objects: Iterable[Any], path: Path) -> None:
    """Remembers the file of those objects whose class has answers."""
    for each in objects:
        if hasattr(type(each), ANSWERS[0]):
            _FILES[each] = path


def forget(model: object) -> None:
    """Forgets the file of a model that was fitted anew."""
    _FILES.pop(model, None)


@contextmanager
def answering(model: object) -> Iterator[None]:
    """A stretch in which a model answers; of one that was loaded, errors of others are reported as the file's.

    Raises:
        FileError: for any error but the library's own and those of memory that ran out.
    """
    try:
        yield
    except (BayescopeError, MemoryError):
        raise
    except Exception as error:
        if model not in _FILES or OUT_OF_MEMORY in str(error):
            raise
        raise FileError(
            f"{_FILES[model]}: expected a model that answers for these inputs, got {type(error).__name__}: "
            f"{first_line(error)}. Check the inputs; if the model answered for such inputs before, its file was "
            "altered: save it again."
        ) from error


def guard_answers(kind: type) -> None:
    """Has the methods of a class that answer raise a `FileError` where an object from a file fails inside."""
    for name in ANSWERS if hasattr(kind, ANSWERS[0]) else ():
        # A method that some objects of the class lack is no function, and stays so.
        if inspect.isfunction(inspect.getattr_static(kind, name, None)):
            setattr(kind, name, _guarded(getattr(kind, name)))


def _guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def answer(self: object, /, *arguments: Any, **options: Any) -> Any:
        if self in _FILES:  # a slip of the caller says nothing of the file
            inspect.signature(method).bind(self, *arguments, **options)
        with answering(self):
            return method(self, *arguments, **options)

    return answer
