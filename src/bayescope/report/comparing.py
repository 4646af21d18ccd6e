"""A comparison of posteriors as blocks: its table with the best values, its pictures in the browser, its footnotes."""

from __future__ import annotations

import numpy as np

from bayescope import metrics
from bayescope.comparison import Comparison
from bayescope.comparison.measures import best_cells, columns, written
from bayescope.plots import style
from bayescope.plots.numbers import fixed, percent
from bayescope.plots.posteriors import log_odds
from bayescope.report.blocks import Block, Cell, Figure, Figures, Folded, Page, Paragraphs, Section, Table, aside
from bayescope.report.facts import Reference
from bayescope.report.figures import axis, diagonal, dots, layout, table

MOST_POINTS = 400


def comparison_blocks(reference: Reference) -> tuple[Block, ...]:
    """What was compared, or why nothing was."""
    comparison, reason = reference
    return (Paragraphs((reason,), "unknown"),) if comparison is None else (aside(reason), *blocks(comparison))


def comparison_page(comparison: Comparison, title: str) -> Page:
    """A page of its own.

    Args:
        comparison: as `bayescope.compare` returns it.
        title: its heading.
    """
    table_, pictures, notes = blocks(comparison)
    return Page(
        title,
        comparison.title,
        None,
        (
            Section("table", "Every posterior on the same rows", (table_, notes), "Table"),
            Section("pictures", "Against the reference", (pictures,), "Pictures"),
        ),
    )


def blocks(comparison: Comparison) -> tuple[Table, Figures, Folded]:
    """The table, the pictures and the footnotes."""
    notes = Folded("What the columns mean, and what the fits noted", (aside(*comparison.footnotes),))
    others = [name for name in comparison.outcomes if name != comparison.reference]
    figures = (_agreement(comparison, others), _reliability(comparison)) if others else (_reliability(comparison),)
    return _table(comparison), Figures(figures, "half"), notes


def _table(comparison: Comparison) -> Table:
    measures = columns(comparison.reference)
    parts: list[list[Cell]] = []
    for column in measures:
        best = best_cells(comparison.table, column, comparison.reference)
        parts.append(
            [Cell(text, strong=bold) for text, bold in zip(written(comparison.table, column), best, strict=True)]
        )
    names = [Cell(style.label(str(name))) for name in comparison.table.index]
    rows = tuple((name, *cells) for name, *cells in zip(names, *parts, strict=True))
    head = ("posterior", *(column.label for column in measures))
    return Table(f"{comparison.title}; the best of each column in bold", head, rows, frozenset(range(1, len(head))))


def _agreement(comparison: Comparison, others: list[str]) -> Figure:
    """Log odds of the test rows under each posterior against the reference's."""
    reference, classes = style.label(comparison.reference), comparison.split.classes
    odds = {name: log_odds(outcome.log_probs) for name, outcome in comparison.outcomes.items()}
    truth = odds[comparison.reference]
    some = np.linspace(0, len(truth) - 1, min(len(truth), MOST_POINTS)).round().astype(int)
    look = {"size": 6, "opacity": 0.7, "line": {"width": 0}}
    traces = []
    for name in others:
        pairs = zip(odds[name][some], truth[some], strict=True)
        hover = [f"{style.label(name)} {fixed(a, 2)}, {reference} {fixed(b, 2)}" for a, b in pairs]
        traces.append(dots(truth[some], odds[name][some], _tint(name), hover, marker=look, name=style.label(name)))
    what = f"log odds of {classes[1]}" if len(classes) == 2 else "log odds of each class"
    distance = comparison.table[f"tv_to_{comparison.reference}"]
    return Figure(
        "agreement",
        f"Predictions compared with {reference}",
        "One point a test row. On the dotted line both agree; steeper is overconfident, flatter underconfident.",
        f"Scatter of {what} under {len(others)} posteriors against {reference}.",
        (diagonal(float(truth.min()), float(truth.max())), *traces),
        layout(axis(f"{what}, {reference}", nticks=6), axis(what, nticks=6)),
        table(
            f"Total variation to {reference}",
            ("posterior", "distance"),
            [(style.label(name), fixed(float(distance[name]), 4)) for name in others],
        ),
        380,
        tuple((style.label(name), _tint(name), "dot") for name in others),
    )


def _reliability(comparison: Comparison) -> Figure:
    """All reliability curves in one frame."""
    traces, rows = [], []
    y = comparison.split.y_test
    for name, outcome in comparison.outcomes.items():
        r, label = metrics.reliability(outcome.probs, y, 10), style.label(name)
        confidence, accuracy, count = (part[r.count > 0] for part in (r.confidence, r.accuracy, r.count))
        hover = [
            f"{label}: confidence {percent(said)}\nright {percent(right)} of {n} rows"
            for said, right, n in zip(confidence, accuracy, count, strict=True)
        ]
        look = {"mode": "lines+markers", "line": {"color": _tint(name), "width": 1.6}, "name": label}
        traces.append(dots(confidence, accuracy, _tint(name), hover, marker={"size": 6}) | look)
        rows.append((label, fixed(metrics.ece(outcome.probs, y), 4)))
    share = {"tickformat": ".0%", "nticks": 6}
    return Figure(
        "curves",
        "Reliability",
        "Share that is right against confidence, in ten bins of the test rows. Few rows a bin: mind the noise.",
        f"Reliability curves of {len(comparison.outcomes)} posteriors on {len(y)} test rows.",
        (diagonal(1 / len(comparison.split.classes), 1.0), *traces),
        layout(axis("confidence", **share), axis("share that is right", **share)),
        table("Expected calibration error", ("posterior", "ECE"), rows),
        380,
        tuple((style.label(name), _tint(name), "line") for name in comparison.outcomes),
    )


def _tint(name: str) -> str:
    """A posterior's colour; what is ink on white is ink in every theme."""
    tint = style.colour(name)
    return "@ink" if tint == style.INK else tint
