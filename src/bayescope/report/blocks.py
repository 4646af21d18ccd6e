"""What a page is made of: blocks without any markup, which the template writes as HTML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

Tone = Literal["good", "caution", "bad", "unknown"]


@final
@dataclass(frozen=True)
class Paragraphs:
    """Paragraphs of plain text.

    Attributes:
        paragraphs: one text each.
        look: "plain", "muted" for an aside, or the tone of a notice that must not be missed.
    """

    kind: ClassVar[str] = "text"
    paragraphs: tuple[str, ...]
    look: Literal["plain", "muted"] | Tone = "plain"


@final
@dataclass(frozen=True)
class Card:
    """A figure that is read at a glance.

    Attributes:
        label: what it is.
        value: the figure.
        interval: its interval, as text.
        note: what it means, or what it is to be compared with.
    """

    label: str
    value: str
    interval: str
    note: str


@final
@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: what it says.
        bars: a small histogram in its place: heights from 0 to 1.
        strong: whether it stands out.
    """

    text: str
    bars: tuple[float, ...] = ()
    strong: bool = False


@final
@dataclass(frozen=True)
class Table:
    """A table with a caption.

    Attributes:
        caption: what it shows.
        head: the column headings.
        rows: cells; the first of each row is its heading.
        numeric: which columns hold numbers, and are set flush right.
    """

    kind: ClassVar[str] = "table"
    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numeric: frozenset[int] = frozenset()


@final
@dataclass(frozen=True)
class TrackBar:
    """A line of a bar table, in percent of the track's width.

    Attributes:
        name: of what.
        value: as text.
        interval: as text.
        left: where the bar begins.
        width: of the bar.
        whisker: left end and width of the interval, or ``None``.
        zero: where 0 lies.
        tint: "high", "low" or "accent".
        mark: where a tick stands, or ``None``.
    """

    name: str
    value: str
    interval: str
    left: float
    width: float
    whisker: tuple[float, float] | None
    zero: float
    tint: str = "accent"
    mark: float | None = None


@final
@dataclass(frozen=True)
class BarTable:
    """A table whose middle column is a bar with its interval: chart and numbers in one.

    Attributes:
        caption: what it shows.
        head: the three column headings.
        bars: its lines.
    """

    kind: ClassVar[str] = "bar_table"
    caption: str
    head: tuple[str, str, str]
    bars: tuple[TrackBar, ...]


@final
@dataclass(frozen=True)
class Figure:
    """A chart with its caption and the table behind it.

    Attributes:
        name: unique on the page.
        title: its heading.
        caption: how to read it.
        alt: what it shows, for those who do not see it.
        data: the traces; colours are names of the style sheet's, as "@accent".
        layout: of the chart.
        table: the numbers.
        height: in pixels.
        key: what marks mean: (name, colour as in ``data``, "dot", "cross", "square" or "line").
    """

    name: str
    title: str
    caption: str
    alt: str
    data: tuple[Mapping[str, Any], ...]
    layout: Mapping[str, Any]
    table: Table
    height: int = 320
    key: tuple[tuple[str, str, str], ...] = ()


@final
@dataclass(frozen=True)
class Figures:
    """Charts in a grid.

    Attributes:
        figures: the charts.
        size: "wide" for one in a row, "half" for two, "small" for three.
        scales: whether a switch gives all of them one scale.
    """

    kind: ClassVar[str] = "figures"
    figures: tuple[Figure, ...]
    size: str = "half"
    scales: bool = False


@final
@dataclass(frozen=True)
class Definitions:
    """Names and what they stand for."""

    kind: ClassVar[str] = "definitions"
    pairs: tuple[tuple[str, str], ...]


@final
@dataclass(frozen=True)
class Code:
    """Code to copy, with a label."""

    kind: ClassVar[str] = "code"
    label: str
    text: str


@final
@dataclass(frozen=True)
class Folded:
    """Blocks behind a line that opens them."""

    kind: ClassVar[str] = "folded"
    summary: str
    blocks: tuple[Block, ...]


@final
@dataclass(frozen=True)
class Explorer:
    """A scatter of rows, the list of those most in doubt, and the place where a chosen one is explained.

    Attributes:
        figure: the scatter; its points' ``customdata`` are positions in ``payload``'s rows.
        table: the rows listed; their headings are buttons.
        places: of the listed rows in ``payload``'s rows.
        payload: what the script explains rows from.
    """

    kind: ClassVar[str] = "explorer"
    figure: Figure
    table: Table
    places: tuple[int, ...]
    payload: Mapping[str, Any]


@final
@dataclass(frozen=True)
class WhatIf:
    """Controls for the features of a row, and what the model predicts for it, computed on the page.

    Attributes:
        payload: f as a sum on grids, as `bayescope.report.whatif.what_if` packs it.
    """

    kind: ClassVar[str] = "what_if"
    payload: Mapping[str, Any]


@final
@dataclass(frozen=True)
class Decisions:
    """A threshold slider, the confusion matrix there, and what its cells are worth.

    Attributes:
        payload: counts for each class and threshold, as `bayescope.report.decisions` has them.
    """

    kind: ClassVar[str] = "decisions"
    payload: Mapping[str, Any]


@final
@dataclass(frozen=True)
class Cards:
    """Cards that stand in one row, as many as fit."""

    kind: ClassVar[str] = "cards"
    cards: tuple[Card, ...]


Block = Paragraphs | Cards | Table | BarTable | Figures | Definitions | Code | Folded | Explorer | WhatIf | Decisions


@final
@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        name: of its anchor.
        title: its heading.
        blocks: what it holds.
        short: its name in the list of contents.
    """

    name: str
    title: str
    blocks: tuple[Block, ...]
    short: str = ""


@final
@dataclass(frozen=True)
class Trust:
    """The answer to the question that the page begins with.

    Attributes:
        tone: of the answer.
        headline: in a few words.
        sentences: the reasons.
        question: what is answered.
    """

    tone: Tone
    headline: str
    sentences: tuple[str, ...]
    question: str = "How far can its uncertainty be trusted?"


@final
@dataclass(frozen=True)
class Page:
    """A whole page.

    Attributes:
        title: its heading.
        subtitle: the line below it.
        verdict: the first paragraph, where there is one.
        sections: all else.
        footer: the last line.
    """

    title: str
    subtitle: str
    verdict: Trust | None
    sections: tuple[Section, ...]
    footer: str = ""


def aside(*paragraphs: str) -> Paragraphs:
    """Paragraphs that explain what follows them."""
    return Paragraphs(paragraphs, "muted")
