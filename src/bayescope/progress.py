"""A progress bar over named steps, on the error stream, for people: a pipe sees none of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from typing import TYPE_CHECKING, Self, cast

from bayescope.processes import present

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

# Nobody reads a bar faster than this.
REFRESH_SECONDS = 0.1

Report = Callable[[int, int | None, str], None]

# Work that may be short shows no bar before so many seconds.
PATIENCE_SECONDS = 2.0
# A bar inside another one stays hidden: the outer one says what a person waits for.
_drawn: ContextVar[bool] = ContextVar("a bar is drawn", default=False)
_listener: ContextVar[Report | None] = ContextVar("who hears each step", default=None)


@contextmanager
def listening(listener: Report) -> Iterator[None]:
    """The listener hears each step of all work inside, whether a bar is drawn or not.

    What it raises ends the work. Exceptions that are no `Exception` pass through the library as Ctrl-C does.

    Args:
        listener: takes how many steps are done, how many there are, and the bar's verb with the step's name. Samplers
            call it from a thread of their own.
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def progress_bar(doing: str, *, visible: bool = True, patience: float = 0.0) -> Iterator[Report]:
    """A bar that names the step which runs, counts those done and tells the time; a listener hears the steps as well.

    Args:
        doing: the verb before each name, such as "fitting".
        visible: whether to draw it; it stays hidden where the error stream is no terminal, and inside another bar.
        patience: shorter work shows no bar, in seconds. With any patience it is drawn anew ten times a second at most.

    Yields:
        A function to call before each step, with how many steps are done, how many there are (``None`` where
        nobody knows), and the step's name.
    """
    listener = _listener.get()
    with _drawn_bar(doing, visible=visible, patience=patience) as draw:

        def report(done: int, steps: int | None, name: str) -> None:
            if listener is not None:
                listener(done, steps, f"{doing} {name}")
            draw(done, steps, name)

        yield report


@contextmanager
def _drawn_bar(doing: str, *, visible: bool, patience: float) -> Iterator[Report]:
    """What draws each step that it is told, if anything does."""
    bar = _bar() if visible and not _drawn.get() and present().first else None
    if bar is None:
        yield lambda done, steps, name: None
        return
    token, due, task = _drawn.set(True), time.monotonic() + patience, None
    try:
        with ExitStack() as stack:

            def report(done: int, steps: int | None, name: str) -> None:
                nonlocal due, task
                if patience and time.monotonic() < due:
                    return
                if task is None:
                    stack.enter_context(bar)
                    task = bar.add_task(doing, total=None)
                bar.update(task, completed=done, total=steps, description=f"{doing} {name}")
                due = time.monotonic() + REFRESH_SECONDS

            yield report
    finally:
        _drawn.reset(token)


def _bar() -> _Line | Progress | None:
    """What draws on the error stream; ``None`` where that is no terminal: a disabled bar may print an empty line."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    except ImportError:  # a slim install
        return _Line() if sys.stderr.isatty() else None
    console = Console(stderr=True)
    if not (console.is_terminal or console.is_jupyter):
        return None
    if console.is_jupyter and find_spec("ipywidgets") is None:  # rich warns there, and shows nothing
        return _Line()
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=console, transient=True)


class _Line:
    """The step that runs, on one line that is written over: what a bar is where rich draws none."""

    _width = 0
    _step = ""
    _due = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._write("", end="\r")

    def add_task(self, description: str, *, total: int | None) -> TaskID:
        return cast("TaskID", 0)

    def update(self, task: TaskID, *, completed: int, total: int | None, description: str) -> None:
        # A notebook keeps each line that is written: of many steps of one name it gets some.
        if description == self._step and time.monotonic() < self._due:
            return
        self._write(f"{description} {completed}/{'?' if total is None else total}")
        self._step, self._due = description, time.monotonic() + REFRESH_SECONDS

    def _write(self, text: str, end: str = "") -> None:
        sys.stderr.write(f"\r{text:<{self._width}}{end}")
        sys.stderr.flush()
        self._width = len(text)


@contextmanager
def no_bars() -> Iterator[None]:
    """No bar is drawn inside, such as by a process that works beside the one that draws it."""
    token = _drawn.set(True)
    try:
        yield
    finally:
        _drawn.reset(token)
