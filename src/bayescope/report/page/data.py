"""The section on the data: rows, columns, what is missing, and how the target is distributed."""

from __future__ import annotations

import numpy as np

from bayescope.report.facts.facts import Facts
from bayescope.report.page.blocks import Bar, BarTable, Cell, Figure, Figures, Folded, Table, Text
from bayescope.report.page.figures import axis, layout, rounded, table
from bayescope.report.page.numbers import cell, count, percent, plain, short, tidy
from bayescope.tables import Column

BINS, SPARKS = 30, 16
MANY_COLUMNS = 14


def data_blocks(facts: Facts) -> tuple[object, ...]:
    """A sentence, the target's distribution and the columns.

    Args:
        facts: of the report.
    """
    judged = facts.judged
    rows, every = len(judged), len(judged.every_y)
    labels = sum(column.kind == "categorical" for column in judged.every)
    gone = sum(_missing(column) for column in judged.every)
    said = (
        f"{count(every, 'row')} and {count(len(judged.every), 'column')}: {len(judged.every) - labels} of numbers, "
        f"{labels} of labels. {_gaps(gone, every * len(judged.every))} The target is {judged.target}."
    )
    part = f" The figures are of {count(rows, 'row')} drawn from them at random." if rows < every else ""
    columns = Table(
        "Columns", ("column", "kind", "missing", "values", "shape"), tuple(_column(column) for column in judged.every),
        frozenset({2}),
    )  # fmt: skip
    shown = columns if len(judged.every) <= MANY_COLUMNS else Folded(f"All {len(judged.every)} columns", (columns,))
    target = _classes(facts) if judged.classes else Figures((_numbers(facts),), "wide")
    return Text((said + part,)), target, shown


def _gaps(gone: int, cells: int) -> str:
    if not gone:
        return "No value is missing."
    return f"{count(gone, 'value')} {'is' if gone == 1 else 'are'} missing ({percent(gone / cells)})."


def _missing(column: Column) -> int:
    if column.kind == "numeric":
        return int(np.isnan(column.values).sum())
    return sum(value is None for value in column.values)


def _column(column: Column) -> tuple[Cell, ...]:
    gone = _missing(column)
    share = f"{gone} ({percent(gone / len(column.values), 1)})" if gone else "0"
    if column.kind == "categorical":
        labels, counts = _labels(column)
        often = ", ".join(
            f"{short(cell(label), 16)} {percent(n / len(column.values), 0)}"
            for label, n in zip(labels[:3], counts[:3], strict=True)
        )
        said = f"{count(len(labels), 'label')}: {often}" if labels else "no value"
        bars = tuple(n / counts[0] for n in counts[:SPARKS]) if labels else ()
        return Cell(column.name), Cell("labels"), Cell(share), Cell(said), Cell("", bars)
    there = column.values[~np.isnan(column.values)]
    if there.size == 0:
        return Cell(column.name), Cell("numbers"), Cell(share), Cell("no value"), Cell("")
    low, middle, high = np.quantile(there, [0.0, 0.5, 1.0])
    counts_in = np.histogram(there, SPARKS)[0] if high > low else np.array([there.size])
    said = f"{tidy(low)} to {tidy(high)}, median {tidy(middle)}"
    bars = tuple((counts_in / counts_in.max()).tolist())
    return Cell(column.name), Cell("numbers"), Cell(share), Cell(said), Cell("", bars)


def _labels(column: Column) -> tuple[list[object], list[int]]:
    """Labels and their counts, the most frequent first."""
    counts: dict[object, int] = {}
    for value in column.values:
        if value is not None:
            counts[value] = counts.get(value, 0) + 1
    order = sorted(counts, key=lambda label: -counts[label])
    return order, [counts[label] for label in order]


def _classes(facts: Facts) -> BarTable:
    judged = facts.judged
    counts = np.bincount(judged.every_y, minlength=len(judged.classes))
    shares = counts / counts.sum()
    bars = tuple(
        Bar(name, str(n), percent(share), 0.0, round(100.0 * share / shares.max(), 2), None, 0.0)
        for name, n, share in zip(judged.classes, counts, shares, strict=True)
    )
    return BarTable(f"Classes of {judged.target}", ("class", "", "rows"), bars)


def _numbers(facts: Facts) -> Figure:
    y, target = facts.judged.every_y, facts.judged.target
    heights, edges = np.histogram(y, BINS)
    hover = [f"{plain(a)} to {plain(b)}: {n} rows" for a, b, n in zip(edges[:-1], edges[1:], heights, strict=True)]
    bars = {
        "type": "bar",
        "x": rounded(0.5 * (edges[1:] + edges[:-1])),
        "y": heights.tolist(),
        "width": rounded(0.94 * np.diff(edges)),
        "marker": {"color": "@bar"},
        "hovertext": hover,
        "hoverinfo": "text",
    }
    mean, sd, low, high = (tidy(float(part)) for part in (y.mean(), y.std(), y.min(), y.max()))
    told = f"mean {mean}, sd {sd}, from {low} to {high}"
    rows = [(f"{plain(a)} to {plain(b)}", str(n)) for a, b, n in zip(edges[:-1], edges[1:], heights, strict=True)]
    return Figure(
        "target",
        f"Distribution of {short(target, 40)}",
        f"{told[0].upper()}{told[1:]}.",
        f"Histogram of {target}: {told}.",
        (bars,),
        layout(axis(short(target, 50)), axis("rows", nticks=4)),
        table(f"Rows by {target}", (target, "rows"), rows),
        220,
    )
