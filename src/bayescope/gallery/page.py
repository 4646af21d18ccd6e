"""What a picture of the gallery is, and the page that each is drawn on: one width, one header, panels in inches."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayescope.plots.style import DPI, INK, MUTED

WIDTH = 8.0  # inches: 1200 pixels
MARGIN = 0.3

_TITLE_LETTERS = 70
_SUBTITLE_LETTERS = 112


@final
@dataclass(frozen=True)
class Picture:
    """One textbook picture.

    Attributes:
        name: the file's name without its suffix, and what ``only`` selects.
        title: the subject in a few words, for the index.
        caption: one sentence that says what the picture teaches.
        source: the book or paper where the idea of the figure is from.
        draw: computes the numbers and returns the figure.
    """

    name: str
    title: str
    caption: str
    source: str
    draw: Callable[[], Figure]


@final
class Canvas:
    """An empty page with its header, to which panels are added.

    Attributes:
        figure: the matplotlib figure.
    """

    def __init__(self, height: float, title: str, subtitle: str) -> None:
        """Writes the header.

        Args:
            height: inches.
            title: the finding, one sentence.
            subtitle: what is shown and how it was computed.
        """
        self.figure = Figure(figsize=(WIDTH, height), dpi=DPI, facecolor="white")
        above, below = textwrap.wrap(title, _TITLE_LETTERS), textwrap.wrap(subtitle, _SUBTITLE_LETTERS)
        y = 0.2 + 0.235 * len(above) + 0.06
        left = MARGIN / WIDTH
        self.figure.text(left, 1 - 0.2 / height, "\n".join(above), fontsize=13, weight="bold", color=INK, va="top")
        self.figure.text(left, 1 - y / height, "\n".join(below), fontsize=9, color=MUTED, va="top", linespacing=1.35)
        self._end = y + 0.17 * len(below)

    def key(self, handles: Sequence[Artist], columns: int = 4) -> None:
        """Names what marks and lines stand for under the header, where they cover no data.

        Args:
            handles: with their labels.
            columns: of the key; it has as many rows as it needs.
        """
        width, height = self.figure.get_size_inches()
        self.figure.legend(
            handles=list(handles), loc="upper left", bbox_to_anchor=(MARGIN / width, 1 - (self._end + 0.1) / height),
            ncols=columns, fontsize=9, borderpad=0, borderaxespad=0, columnspacing=1.6, handletextpad=0.5,
        )  # fmt: skip
        self._end += 0.1 + 0.21 * math.ceil(len(handles) / columns)

    def panels(
        self,
        rows: int,
        columns: int,
        headings: Sequence[str | tuple[str, str]] = (),
        *,
        below: float = 0.45,
        bottom: float = 0.55,
        left: float = 0.65,
        right: float = MARGIN,
        gap: tuple[float, float] = (0.5, 0.45),
        widths: Sequence[float] | None = None,
        heights: Sequence[float] | None = None,
    ) -> list[Axes]:
        """Adds a grid of panels.

        Args:
            rows: of panels.
            columns: of panels.
            headings: of the first panels, each a text or a text and its colour.
            below: inches between the header and the panels.
            bottom: inches below them.
            left: inches on their left.
            right: inches on their right.
            gap: inches between columns and between rows.
            widths: of the columns, relative to each other.
            heights: of the rows, relative to each other.

        Returns:
            The panels, row by row.
        """
        width, height = self.figure.get_size_inches()
        top = self._end + below
        panel_width = (width - left - right - gap[0] * (columns - 1)) / columns
        panel_height = (height - top - bottom - gap[1] * (rows - 1)) / rows
        cells = self.figure.add_gridspec(
            rows,
            columns,
            left=left / width,
            right=1 - right / width,
            top=1 - top / height,
            bottom=bottom / height,
            wspace=gap[0] / panel_width,
            hspace=gap[1] / panel_height,
            width_ratios=widths,
            height_ratios=heights,
        )
        axes = [self.figure.add_subplot(cells[row, column]) for row in range(rows) for column in range(columns)]
        for panel, heading in zip(axes, headings, strict=False):
            text, colour = (heading, INK) if isinstance(heading, str) else heading
            panel.set_title(text, loc="left", fontsize=10, color=colour, weight="bold", pad=6)
        return axes


def number(value: float, digits: int = 3) -> str:
    """A number with a typographic minus sign."""
    return f"{value:.{digits}f}".replace("-", "−")
