"""A comparison in the terminal: the table with its best values in bold green, then the footnotes."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from bayescope.cli.answer import PIPED_WIDTH, shown_as_is
from bayescope.comparison.columns import Column, best_cells, columns, written
from bayescope.comparison.comparison import Comparison
from bayescope.plots import style

BEST = "bold green"

# Columns of the upper part where the terminal is narrow: scores and distances, which fit 80 letters.
FIRST_PART = 6


def show(comparison: Comparison, console: Console) -> None:
    """Prints the table, in two parts where the terminal is too narrow for one, and the footnotes.

    Args:
        comparison: to be shown.
        console: to print to.
    """
    console.print(shown_as_is(comparison.title, "bold"))
    every = columns(comparison.reference)
    whole = _table(comparison, every)
    if Measurement.get(console, console.options.update(max_width=PIPED_WIDTH), whole).maximum <= console.width:
        console.print(whole)
    else:
        console.print(_table(comparison, every[:FIRST_PART]), _table(comparison, every[FIRST_PART:]))
    for note in comparison.footnotes:
        console.print(shown_as_is(note, "dim"), soft_wrap=not console.is_terminal)


def _table(comparison: Comparison, shown: Sequence[Column]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1))
    table.add_column("posterior", no_wrap=True)
    cells = [[style.label(str(name)) for name in comparison.table.index]]
    for column in shown:
        table.add_column(column.label, justify="right", no_wrap=True)
        best = best_cells(comparison.table, column, comparison.reference)
        texts = zip(written(comparison.table, column), best, strict=True)
        cells.append([Text(cell, style=BEST if is_best else "") for cell, is_best in texts])  # type: ignore[misc]
    for row in zip(*cells, strict=True):
        table.add_row(*row)
    return table
