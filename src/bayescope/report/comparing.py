"""A comparison of posteriors as blocks: its table with the best values, its pictures in the browser, its footnotes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bayescope import metrics
from bayescope.comparison import Comparison
from bayescope.comparison.answers import LEVELS, ClassAnswers, NumberAnswers, spreads
from bayescope.comparison.measures import best_cells, written
from bayescope.comparison.resampling import evenly
from bayescope.plots import style
from bayescope.plots.numbers import fixed, percent
from bayescope.plots.posteriors import log_odds
from bayescope.report.blocks import Cell, Figure, Figures, Folded, Page, Section, Table, aside
from bayescope.report.figures import MANY, axis, diagonal, dots, layout, line_with_dots, table

MOST_POINTS = 400


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
    agreement, calibration = PICTURES[comparison.split.kind]
    figures = (agreement(comparison, comparison.reference),) if comparison.reference and comparison.others else ()
    return _table(comparison), Figures((*figures, calibration(comparison)), "half"), notes


def _table(comparison: Comparison) -> Table:
    measures = comparison.measures
    parts: list[list[Cell]] = []
    for column in measures:
        best = best_cells(comparison.table, comparison.leads.get(column.name))
        parts.append(
            [Cell(text, strong=bold) for text, bold in zip(written(comparison.table, column), best, strict=True)]
        )
    names = [Cell(style.label(str(name))) for name in comparison.table.index]
    rows = tuple((name, *cells) for name, *cells in zip(names, *parts, strict=True))
    head = ("posterior", *(column.label for column in measures))
    return Table(
        f"{comparison.title}; in bold what leads its column by more than chance",
        head,
        rows,
        frozenset(range(1, len(head))),
    )


def _agreement_of_classes(comparison: Comparison, reference: str) -> Figure:
    """Log odds of the test rows under each posterior against the reference's."""
    classes, against = comparison.split.classes, style.label(reference)
    answers = {
        name: each.answers for name, each in comparison.outcomes.items() if isinstance(each.answers, ClassAnswers)
    }
    odds = {name: log_odds(each.log_probs) for name, each in answers.items()}
    truth = odds[reference]
    what = f"log odds of {classes[1]}" if len(classes) == 2 else "log odds of each class"
    return _scatter(
        comparison,
        {name: (truth, odds[name]) for name in comparison.others},
        f"Predictions compared with {against}",
        "One point a test row. On the dotted line both agree; steeper is overconfident, flatter underconfident.",
        (f"{what}, {against}", what),
        diagonal(float(truth.min()), float(truth.max())),
    )


def _agreement_of_numbers(comparison: Comparison, reference: str) -> Figure:
    """Means and standard deviations of the test rows under each posterior against the reference's."""
    against = style.label(reference)
    answers = {name: e.answers for name, e in comparison.outcomes.items() if isinstance(e.answers, NumberAnswers)}
    mean, sds = answers[reference].mean, spreads(answers)
    return _scatter(
        comparison,
        {
            name: ((answers[name].mean - mean) / sds[reference], sds[name] / sds[reference])
            for name in comparison.others
        },
        f"Predictions compared with {against}",
        f"One point a test row. At 0 and 1 both agree; above 1 intervals are wider than those of {against}.",
        (f"difference of means, in sds by {against}", "ratio of sds"),
        None,
    )


def _scatter(
    comparison: Comparison,
    points: Mapping[str, tuple[np.ndarray, np.ndarray]],
    title: str,
    caption: str,
    axes: tuple[str, str],
    guide: dict[str, Any] | None,
) -> Figure:
    """A point for each of some test rows and each posterior, with the distances to the reference beside it."""
    traces = [] if guide is None else [guide]
    for name, (x, y) in points.items():
        some = evenly(len(x), MOST_POINTS)
        hover = [f"{style.label(name)}: {fixed(a, 2)}, {fixed(b, 2)}" for a, b in zip(x[some], y[some], strict=True)]
        traces.append(dots(x[some], y[some], _tint(name), hover, marker=MANY, name=style.label(name)))
    distance = next(each for each in comparison.measures if each.to_reference)
    return Figure(
        "agreement",
        title,
        caption,
        f"Scatter of {axes[1]} against {axes[0]} under {len(points)} posteriors.",
        tuple(traces),
        layout(axis(axes[0], nticks=6), axis(axes[1], nticks=6)),
        table(
            distance.label,
            ("posterior", "distance"),
            [(style.label(name), fixed(float(comparison.table[distance.name][name]), 4)) for name in points],
        ),
        380,
        tuple((style.label(name), _tint(name), "dot") for name in points),
    )


def _reliability(comparison: Comparison) -> Figure:
    """All reliability curves in one frame."""
    curves, rows = {}, []
    y = comparison.split.y_test
    for name, outcome in comparison.outcomes.items():
        assert isinstance(outcome.answers, ClassAnswers)
        confidence, accuracy, _, hover = reliability_of(outcome.answers.probs, y, style.label(name))
        curves[name] = (confidence, accuracy, hover)
        rows.append((style.label(name), fixed(metrics.ece(outcome.answers.probs, y), 4)))
    return _curves(
        curves,
        ("Reliability", f"Expected calibration error, {metrics.BINS} bins"),
        f"Share that is right against confidence, in {metrics.BINS} bins. Few rows a bin: mind the noise.",
        ("confidence", "share that is right"),
        1 / len(comparison.split.classes),
        ("posterior", "ECE"),
        rows,
    )


def reliability_of(probs: np.ndarray, y: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[str]]:
    """The mean confidence, accuracy and rows of each bin that has rows, and what a pointer on it is told."""
    r = metrics.reliability(probs, y)
    confidence, accuracy, rows = (part[r.count > 0] for part in (r.confidence, r.accuracy, r.count))
    hover = [
        f"{name}: confidence {percent(said)}\nright {percent(right)} of {n} rows"
        for said, right, n in zip(confidence, accuracy, rows, strict=True)
    ]
    return confidence, accuracy, rows, hover


def _calibration(comparison: Comparison) -> Figure:
    """The shares of outcomes below their quantiles, of all posteriors in one frame."""
    curves, rows = {}, []
    for name, outcome in comparison.outcomes.items():
        answers = outcome.answers
        assert isinstance(answers, NumberAnswers)
        shares = answers.shares
        hover = [
            f"{style.label(name)}: {percent(share)} below the {percent(level)} quantile"
            for share, level in zip(shares, LEVELS, strict=True)
        ]
        curves[name] = (LEVELS, shares, hover)
        rows.append((style.label(name), fixed(float(np.abs(shares - LEVELS).max()), 4)))
    return _curves(
        curves,
        ("Calibration", "Largest distance to the diagonal"),
        "Share of the test rows' outcomes below each quantile of their predictive distribution.",
        ("level of the quantile", "share of outcomes below it"),
        0.0,
        ("posterior", "distance"),
        rows,
    )


def _curves(
    curves: Mapping[str, tuple[np.ndarray, np.ndarray, list[str]]],
    titles: tuple[str, str],
    caption: str,
    axes: tuple[str, str],
    least: float,
    head: tuple[str, str],
    rows: list[tuple[str, str]],
) -> Figure:
    """A curve of shares for each posterior in one frame, with a table of a number each."""
    traces = [
        line_with_dots(x, y, _tint(name), hover, size=6) | {"name": style.label(name)}
        for name, (x, y, hover) in curves.items()
    ]
    share = {"tickformat": ".0%", "nticks": 6}
    return Figure(
        "curves",
        titles[0],
        caption,
        f"{titles[0]} curves of {len(curves)} rows of the table.",
        (diagonal(least, 1.0), *traces),
        layout(axis(axes[0], **share), axis(axes[1], **share)),
        table(titles[1], head, rows),
        380,
        tuple((style.label(name), _tint(name), "line") for name in curves),
    )


PICTURES = {"classes": (_agreement_of_classes, _reliability), "numbers": (_agreement_of_numbers, _calibration)}


def _tint(name: str) -> str:
    """A posterior's colour; what is ink on white is ink in every theme."""
    tint = style.colour(name)
    return "@ink" if tint == style.INK else tint
