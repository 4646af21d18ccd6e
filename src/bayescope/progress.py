"""A progress bar over named steps, on the error stream, for people: a pipe sees none of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

Report = Callable[[int, int, str], None]


@contextmanager
def progress_bar(doing: str, *, shown: bool = True) -> Iterator[Report]:
    """A bar that names the step which runs, counts those done and tells the time.

    Args:
        doing: the verb before each name, such as "fitting".
        shown: whether to draw it; it stays hidden where the error stream is no terminal.

    Yields:
        A function to call before each step, with how many steps are done, how many there are, and the step's name.
    """
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal)) as bar:
        task = bar.add_task(doing, total=None)

        def report(done: int, steps: int, name: str) -> None:
            bar.update(task, completed=done, total=steps, description=f"{doing} {name}")

        yield report
