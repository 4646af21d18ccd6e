"""What a notebook shows of a result: a title, facts, tables and a picture, as HTML that asks for nothing else.

Each class with something to show has a `_repr_html_` that `shows` guards. Colours follow the notebook's: text has the
colour around it, and lines are a transparent grey, so that light and dark pages can show them.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from html import escape
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pandas as pd

from bayescope.errors import MissingDependencyError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from typing_extensions import TypeVar as TypeVarWithDefault

    # What a plot takes as ax=, and what it returns: the axes that were given, or else a new figure.
    Place = Figure | Axes | Sequence[Axes] | np.ndarray
    Canvas = TypeVarWithDefault("Canvas", bound=Place, default=Figure)

# How much of a table, and how many facts, are shown.
ROWS, COLUMNS, FACTS = 10, 20, 30
LONGEST_CELL = 200  # letters
DIGITS = 4

_LINE = "1px solid rgba(128, 128, 128, 0.4)"
_CELL = "padding: 2px 10px; border: 0; vertical-align: top; background: none;"
_TEXT, _NUMBER = (f"{_CELL} text-align: {side};" for side in ("left", "right"))
_TABLE = "border-collapse: collapse; border: 0; margin: 4px 0; font-size: inherit; color: inherit;"
_QUIET = "opacity: 0.75; margin: 4px 0; font-size: 90%;"

Shown = TypeVar("Shown")


def shows(build: Callable[[Shown], str]) -> Callable[[Shown], str]:
    """A `_repr_html_` that never raises, since one that does hides the result: it shows the result's text instead."""

    @wraps(build)
    def shown(result: Shown) -> str:
        try:
            return build(result)
        except Exception as error:  # noqa: BLE001  a table of answers meets whatever computing the answers meets
            reason = f"The table could not be made: {type(error).__name__}: {error}"
            return card(type(result).__name__, text(_text(result)), note(reason))

    return shown


def _text(result: object) -> str:
    try:
        return repr(result)
    except Exception:  # noqa: BLE001  as above
        return object.__repr__(result)


def plots() -> ModuleType:
    """The pictures. They stand above the results that they draw, and are imported when one is asked for.

    Raises:
        MissingDependencyError: if matplotlib is not installed.
    """
    try:
        return import_module("bayescope.plots")
    except ModuleNotFoundError as error:
        raise MissingDependencyError.of_slim_install(error) from error


def card(title: str, *parts: str) -> str:
    """A title over parts, each of which is one of the functions below."""
    heading = f'<div style="font-weight: 600; margin: 0 0 4px 0;">{escape(title)}</div>'
    return f'<div style="max-width: 100%; overflow-x: auto;">{heading}{"".join(parts)}</div>'


def facts(pairs: Iterable[tuple[str, object]]) -> str:
    """Names and values, one pair a line."""
    listed = list(pairs)
    lines = [
        [_cell("td", name, _TEXT + " opacity: 0.75; white-space: nowrap;"), _cell("td", value, _TEXT)]
        for name, value in listed[:FACTS]
    ]
    more = len(listed) - FACTS
    return _grid(lines) + (note(f"{more} more lines are in the summary.") if more > 0 else "")


def summary(lines: str, *parts: str) -> str:
    """A card of a result's summary: its first line as the title, the others as names and values, then more parts."""
    title, *others = lines.splitlines()
    pairs = [line.strip().partition(": ") for line in others]
    return card(title, facts((name, value) for name, _, value in pairs), *parts)


def table(
    frame: pd.DataFrame, *, rows: int | None = None, most: int = ROWS, bold: Sequence[Sequence[bool]] = ()
) -> str:
    """The first rows and columns of a table, and how many there are.

    Args:
        frame: the rows to show.
        rows: how many rows there are in all, where the frame has the first ones alone.
        most: how many rows are shown.
        bold: for each row of the frame which of its cells are in bold; empty for none.
    """
    part, total = frame.iloc[:most, :COLUMNS], len(frame) if rows is None else rows
    look = f"{_NUMBER} border-bottom: {_LINE}; font-weight: 600;"
    lines = [
        [_cell("th", name, look) for name in ["" if frame.index.name is None else frame.index.name, *part.columns]]
    ]
    for row, (label, values) in enumerate(zip(part.index, part.to_numpy(dtype=object), strict=True)):
        strong = [" font-weight: 600;" * on for on in bold[row]] if bold else [""] * len(values)
        cells = [_cell("td", value, _NUMBER + weight) for value, weight in zip(values, strong, strict=False)]
        lines.append([_cell("td", label, _TEXT), *cells])
    (shown, columns), (_, all_columns) = part.shape, frame.shape
    left = [f"{shown:,} of {total:,} rows"] * (shown < total)
    left += [f"{columns:,} of {all_columns:,} columns"] * (columns < all_columns)
    return _grid(lines) + (note(f"{' and '.join(left)} are shown.") if left else "")


def note(sentence: str) -> str:
    """A sentence in small type."""
    return f'<div style="{_QUIET}">{escape(sentence)}</div>'


def folded(heading: str, sentences: Sequence[str]) -> str:
    """Sentences behind a heading that opens them."""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f'<details style="{_QUIET}"><summary>{escape(heading)}</summary><ul>{items}</ul></details>' if items else ""


def text(lines: str) -> str:
    """Text as it is, in letters of one width."""
    return f'<pre style="margin: 0; background: none; color: inherit;">{escape(lines)}</pre>'


def picture(figure: Any, description: str) -> str:
    """A figure of `plots`, inside the page.

    Args:
        figure: as a plot returns it.
        description: of what it shows, for readers who do not see it.
    """
    png, size = figure._repr_png_()
    look = f"width: {size['width']}px; max-width: 100%; height: auto;"
    data = b64encode(png).decode("ascii")
    return f'<div><img alt="{escape(description)}" style="{look}" src="data:image/png;base64,{data}"></div>'


def cell(value: object) -> str:
    """A value as a cell of a table: few digits, the beginning of a long text, nothing for what is missing."""
    if isinstance(value, float | np.floating):
        return "" if math.isnan(value) else f"{value:.{DIGITS}g}"
    written = "" if value is None else str(value)
    return written if len(written) <= LONGEST_CELL else f"{written[:LONGEST_CELL]}…"


def _cell(tag: str, value: object, look: str) -> str:
    return f'<{tag} style="{look}">{escape(cell(value))}</{tag}>'


def _grid(lines: Iterable[Sequence[str]]) -> str:
    rows = "".join(f'<tr style="background: none;">{"".join(cells)}</tr>' for cells in lines)
    return f'<table style="{_TABLE}">{rows}</table>'
