"""Where the model doubts: the scatter of rows, the list of the most doubtful, and what explains a chosen one."""

from __future__ import annotations

from typing import Any

import numpy as np

from bayescope.plots.numbers import alike, cell, count, percent, plain, tidy
from bayescope.plots.style import shorten
from bayescope.report.blocks import Cell, Explorer, Figure, Table
from bayescope.report.facts import Facts
from bayescope.report.figures import axis, dots, layout, rounded, table
from bayescope.report.reasons import Explanations

# Parts of a row that are listed one by one; the others are summed.
MOST_PARTS = 8
# Parts kept for all rows and outputs together, which bounds the size of the page.
MOST_STORED = 60_000
# Columns of the caller's table in the list of rows.
MOST_COLUMNS = 4


def explorer(facts: Facts) -> Explorer:
    """Draws the rows that can be looked at, and packs what explains them.

    Args:
        facts: of the report.
    """
    reasons = facts.explanations
    kept = max(1, min(MOST_PARTS, MOST_STORED // (len(reasons.places) * reasons.parts.shape[2])))
    rows = [_row(facts, reasons, place, kept) for place in range(len(reasons.places))]
    payload = {
        "rows": rows,
        "unit": reasons.unit,
        "sums": reasons.sums,
        "outputs": list(reasons.outputs) if reasons.parts.shape[2] > 1 else [],
        "classes": list(facts.judged.classes),
        "target": facts.judged.target,
        "names": ["right", "wrong"] if facts.judged.classes else ["inside its interval", "outside its interval"],
        # What rows are searched by; the data of "what if" have it too.
        "table": _table(facts, reasons.places) if isinstance(facts.what_if, str) else None,
    }
    return Explorer(_scatter(facts), _list(facts), tuple(range(len(facts.doubt.listed))), payload)


def _row(facts: Facts, reasons: Explanations, place: int, most: int) -> dict[str, Any]:
    row = int(reasons.places[place])
    judged = facts.judged
    outputs = reasons.parts.shape[2]
    return {
        "name": shorten(judged.row_names.of_row(row), 60),
        "truth": _truth(facts, row),
        "predicted": _prediction(facts, row),
        "interval": _interval(facts, reasons, place),
        "right": bool(facts.doubt.error[row] == 0 if judged.classes else facts.predicted.inside(judged.y)[row]),
        "output": int(facts.doubt.predicted[row]) if outputs > 1 and judged.classes else 0,
        "probs": _probabilities(reasons, place) if judged.classes else [],
        "parts": [_parts(reasons, place, output, most) for output in range(outputs)],
    }


def _table(facts: Facts, places: np.ndarray) -> dict[str, Any]:
    """The rows' values: numbers, or positions among a column's labels; ``None`` where one is missing."""
    columns: list[dict[str, Any]] = []
    found = []
    for column in facts.judged.columns:
        values = column.values[places]
        if column.kind == "numeric":
            columns.append({"name": column.name})
            found.append([None if value != value else float(f"{value:.6g}") for value in values.tolist()])
            continue
        labels = sorted({cell(value) for value in values if value is not None})
        known = {label: place for place, label in enumerate(labels)}
        columns.append({"name": column.name, "labels": labels})
        found.append([None if value is None else known[cell(value)] for value in values])
    return {"columns": columns, "rows": [list(row) for row in zip(*found, strict=True)]}


def _probabilities(reasons: Explanations, place: int) -> list[list[float]]:
    ends = (reasons.mean[place], reasons.mean_low[place], reasons.mean_high[place])
    return [rounded(each) for each in zip(*ends, strict=True)]


def _parts(reasons: Explanations, place: int, output: int, most: int) -> list[list[Any]]:
    """[name, value, low, high, kind] of the largest parts, the rest, what is constant and the total."""
    parts = reasons.parts[place, :, output]
    order = np.argsort(-np.abs(parts), kind="stable")
    ends = (parts, reasons.low[place, :, output], reasons.high[place, :, output])
    lines = [[_named(reasons, place, part), *rounded([end[part] for end in ends]), "part"] for part in order[:most]]
    rest = float(parts[order[most:]].sum())
    if len(order) > most and reasons.sums:
        lines.append([f"{count(len(order) - most, 'other part')}", *rounded([rest, rest, rest]), "rest"])
    if reasons.sums:
        # What is neither in the parts nor random: the intercept, and an offset where there is one.
        constant = float(reasons.total[place, output] - parts.sum())
        lines.append(["mean over the data", *rounded([constant] * 3), "rest"])
    total = [end[place, output] for end in (reasons.total, reasons.total_low, reasons.total_high)]
    return [*lines, ["together" if reasons.sums else "prediction", *rounded(total), "total"]]


def _named(reasons: Explanations, place: int, part: int) -> str:
    value = reasons.values[place, part]
    return f"{shorten(reasons.names[part].replace(' & ', ' × '), 40)} = {cell(value)}"


def _scatter(facts: Facts) -> Figure:
    judged, d, predicted = facts.judged, facts.doubt, facts.predicted
    places = d.explorable
    classes = judged.classes
    if classes:
        column = np.ones(len(places), dtype=int) if len(classes) == 2 else predicted.mean[places].argmax(1)
        x = predicted.mean[places, column]
        what = f"probability of {judged.target} = {classes[1]}" if len(classes) == 2 else "probability of its class"
    else:
        x, what = predicted.mean[places, 0], f"predicted {judged.target}"
    good = d.error[places] == 0 if classes else predicted.inside(judged.y)[places]
    names = ("right", "wrong") if classes else ("inside its 95 % interval", "outside")
    hover = [
        f"{shorten(judged.row_names.of_row(row), 60)}\n{_prediction(facts, row)}\ntruth {_truth(facts, row)}\n"
        f"± {plain(d.sd[row], 2)}"
        for row in places
    ]
    traces = []
    for mask, name, colour, symbol, opacity in (
        (good, names[0], "@accent", "circle", 0.75),
        (~good, names[1], "@bad", "x", 1.0),
    ):
        texts = [text for text, chosen in zip(hover, mask, strict=True) if chosen]
        look = {"symbol": symbol, "opacity": opacity, "line": {"width": 0}}
        trace = dots(x[mask], d.sd[places][mask], colour, texts, marker=look, name=name)
        traces.append(trace | {"customdata": np.flatnonzero(mask).tolist()})
    part_of = f"All {count(len(places), 'row')}."
    if len(places) < len(judged):
        part_of = f"{len(places)} of {len(judged)} rows: the {len(d.listed)} most uncertain ones and others at random."
    part = "epistemic sd" if d.epistemic else "sd (a point has no epistemic part)"
    x_axis = axis(what, **({"tickformat": ".0%"} if classes else {"nticks": 6}))
    counted = [(name, str(int(mask.sum()))) for name, mask in zip(names, (good, ~good), strict=True)]
    return Figure(
        "rows",
        "How sure it is of each row",
        f"{part_of} Choose a point to see its reasons.",
        f"Scatter of {len(places)} rows: prediction against {part}; {int((~good).sum())} are marked {names[1]}.",
        tuple(traces),
        layout(x_axis, axis(part, rangemode="tozero", nticks=5)),
        table("Rows in the chart", ("rows", "how many"), counted),
        340,
        ((names[0], "@accent", "dot"), (names[1], "@bad", "cross")),
    )


def _list(facts: Facts) -> Table:
    judged, d = facts.judged, facts.doubt
    telling = [judged.columns[place] for place in _telling_columns(facts)]
    head = (
        shorten(judged.row_names.noun, 24),
        "predicted",
        "sd" if not d.epistemic else "epistemic sd",
        "truth",
        *(column.name for column in telling),
    )
    rows = []
    for row in d.listed:
        wrong = bool(d.error[row]) if judged.classes else not facts.predicted.inside(judged.y)[row]
        mark = " ✗" if wrong else ""
        rows.append(
            (
                Cell(shorten(str(judged.row_names.values[row]), 40)),
                Cell(_prediction(facts, row)),
                Cell(plain(d.sd[row], 2)),
                Cell(_truth(facts, row) + mark, strong=wrong),
                *(Cell(cell(column.values[row])) for column in telling),
            )
        )
    note = "✗: the predicted class is wrong" if judged.classes else "✗: outside the 95 % interval"
    return Table(
        f"The rows with the largest {'epistemic ' if d.epistemic else ''}uncertainty ({note}; "
        f"{judged.row_names.explained})",
        head,
        tuple(rows),
        frozenset(
            {
                2,
                *(() if judged.classes else (1, 3)),
                *(4 + place for place, column in enumerate(telling) if column.kind == "numeric"),
            }
        ),
    )


def _telling_columns(facts: Facts) -> list[int]:
    """The columns that move the listed rows' predictions most, as far as parts are columns."""
    reasons, columns = facts.explanations, facts.judged.columns
    size = np.abs(reasons.parts[: len(facts.doubt.listed)]).max(axis=2).mean(axis=0)
    names = [column.name for column in columns]
    order = [names.index(reasons.names[part]) for part in np.argsort(-size) if reasons.names[part] in names]
    order += [place for place in range(len(columns)) if place not in order]
    return order[:MOST_COLUMNS]


def _truth(facts: Facts, row: int) -> str:
    judged = facts.judged
    return shorten(judged.classes[judged.y[row]], 24) if judged.classes else tidy(float(judged.y[row]))


def _prediction(facts: Facts, row: int) -> str:
    judged, predicted = facts.judged, facts.predicted
    if not judged.classes:
        return plain(float(predicted.mean[row, 0]), 4)
    code = int(facts.doubt.predicted[row])
    return f"{shorten(judged.classes[code], 24)} ({percent(predicted.mean[row, code], 0)})"


def _interval(facts: Facts, reasons: Explanations, place: int) -> str:
    row = int(reasons.places[place])
    if not facts.judged.classes:
        return f"95\u00a0% interval {alike(*facts.predicted.interval[row])}"
    code = int(facts.doubt.predicted[row])
    return (
        f"95\u00a0% interval of that probability {percent(reasons.mean_low[place, code], 0)} to "
        f"{percent(reasons.mean_high[place, code], 0)}"
    )
