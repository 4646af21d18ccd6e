"""Several models on one page: their scores, the paired differences, their curves, and the rows where they differ."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bayescope import metrics
from bayescope.comparison.answers import share_inside
from bayescope.comparison.resampling import evenly
from bayescope.plots.numbers import count, fixed, percent, plain, tidy
from bayescope.plots.style import shorten
from bayescope.report.blocks import (
    BarTable,
    Block,
    Cell,
    Code,
    Figure,
    Figures,
    Page,
    Paragraphs,
    Section,
    Table,
    Tone,
    Trust,
    aside,
)
from bayescope.report.comparing import reliability_of
from bayescope.report.figures import MANY, axis, diagonal, dots, layout, line_with_dots, table, track
from bayescope.report.judged import Judged
from bayescope.report.paired import JudgedModel, PairedScore, apart, headline, paired_scores, said
from bayescope.report.statistics import LEVELS

LISTED = 15
MOST_POINTS = 400
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star")


def models_page(
    models: Sequence[JudgedModel],
    judged: Judged,
    *,
    notes: Sequence[str],
    command: str,
    random_state: int,
) -> tuple[Page, tuple[PairedScore, ...]]:
    """The page, and the scores that are on it.

    Args:
        models: at least two, on the same rows.
        judged: the rows, with their truths in the common order of the classes.
        notes: what a reader has to know of models and rows, such as a score that was left out.
        command: that makes the page again.
        random_state: the seed of the bootstrap.
    """
    scores = paired_scores(models, judged, random_state)
    names = [model.name for model in models]
    tables = Section(
        "scores",
        "Scores on the same rows",
        (_scores(scores, names), *(_differences(score, names) for score in scores), _method(judged)),
        "Scores",
    )
    page = Page(
        f"Which model predicts {judged.target} better?",
        f"{' · '.join(names)} · {count(len(judged), 'row')}",
        _verdict(models, scores, len(judged)),
        (
            tables,
            Section("curves", "Does their uncertainty hold?", (_curves(models, judged),), "Calibration"),
            Section("rows", "Where they differ most", _rows(models, judged), "Rows"),
            Section("models", "The models", _models(models, notes), "Models"),
            Section("reproduce", "How to get this again", (Code("Command line", command),), "Reproduce"),
        ),
        f"seed {random_state}",
    )
    return page, scores


# The answer -----------------------------------------------------------------------------------------------------------
def provenance(models: Sequence[JudgedModel]) -> tuple[Tone, str]:
    """Whether the models were trained on the rows, and what that does to the comparison."""
    by = {seen: [model.name for model in models if model.seen == seen] for seen in ("held out", "fitted", "unknown")}
    if len(by["held out"]) == len(models):
        return "good", "No model was trained on these rows: their files say that the rows were held out."
    if len(by["fitted"]) == len(models):
        return "bad", (
            "All models were trained on these rows: every score is better than it would be for new rows, most so for "
            "the most flexible model."
        )
    if by["fitted"]:
        return "bad", (
            f"Trained on these rows: {', '.join(by['fitted'])}. This makes the scores of such a model too good beside "
            "the others. Give rows that no model was trained on."
        )
    return "caution", (
        f"It is unknown whether these models were trained on some of these rows: {', '.join(by['unknown'])}. The "
        "scores of a model that was are too good."
    )


def _verdict(models: Sequence[JudgedModel], scores: Sequence[PairedScore], rows: int) -> Trust:
    """By the first score, on which the others follow."""
    names = [model.name for model in models]
    tone, seen = provenance(models)
    if tone == "good" and not scores[0].won:
        tone = "unknown"
    sentences = [said(scores[0], names), seen, *(said(score, names) for score in scores[1:])]
    return Trust(tone, headline(scores[0], names, rows), tuple(sentences), "Which one predicts better?")


def _method(judged: Judged) -> Paragraphs:
    coverage = "" if judged.classes else " Coverage has no winner: a calibrated model has 95 %."
    return aside(
        f"Each score is compared with that of the best model. The intervals of differences are from a bootstrap of the "
        f"{count(len(judged), 'row')}: each resample has the same rows for all models, so that rows that are difficult "
        "for all cancel. A value is bold only if the intervals of the differences to all other models exclude "
        f"0.{coverage}"
    )


# Scores ---------------------------------------------------------------------------------------------------------------
def _scores(scores: Sequence[PairedScore], names: Sequence[str]) -> Table:
    rows = tuple(
        (
            Cell(name),
            *(
                Cell("{} ({})".format(*score.value(place)), strong=score.won and place == score.best)
                for score in scores
            ),
        )
        for place, name in enumerate(names)
    )
    head = ("model", *(score.label for score in scores))
    caption = "Scores with 95 % intervals, each by itself; bold where a model is better than every other"
    return Table(caption, head, rows, frozenset(range(1, len(head))))


def _differences(score: PairedScore, names: Sequence[str]) -> BarTable:
    """A line a model: how far it is from the best, with the interval of that."""
    span = min(0.0, float(score.differences.min())), max(0.0, float(score.differences.max()))
    lines = [
        track(
            name,
            ("best", score.value(model)[0]) if model == score.best else score.difference(model),
            tuple(score.differences[model]),
            span,
        )
        for model, name in enumerate(names)
    ]
    caption = f"{score.label[0].upper()}{score.label[1:]}: difference to the best, with its 95 % interval"
    return BarTable(caption, ("model", "", "difference"), tuple(lines))


# Curves ---------------------------------------------------------------------------------------------------------------
def _curves(models: Sequence[JudgedModel], judged: Judged) -> Figures:
    """The calibration of all models in one frame, and what each says of each row beside the first."""
    curve = _reliability(models, judged) if judged.classes else _coverage(models)
    return Figures((curve, _beside(models, judged)), "half")


def _reliability(models: Sequence[JudgedModel], judged: Judged) -> Figure:
    traces, rows = [], []
    for place, model in enumerate(models):
        *each, hover = reliability_of(model.predicted.mean, judged.y, model.name)
        traces.append(_line(each[0], each[1], hover, place))
        rows += [(model.name, percent(c), percent(a), str(n)) for c, a, n in zip(*each, strict=True)]
    share = {"tickformat": ".0%", "nticks": 6}
    return Figure(
        "reliability",
        "Are they right as often as they say?",
        f"Share of rows that are right against confidence, in {metrics.BINS} bins. Below the dotted line a model is "
        "too sure of itself. Bins with few rows are noisy; the table has the counts.",
        f"Reliability curves of {len(models)} models over {len(judged)} rows.",
        (diagonal(1.0 / len(judged.classes), 1.0), *traces),
        layout(axis("confidence in the predicted class", **share), axis("share that is right", **share)),
        table("Reliability by bin", ("model", "mean confidence", "right", "rows"), rows),
        380,
        _key(models),
    )


def _coverage(models: Sequence[JudgedModel]) -> Figure:
    traces, rows = [], []
    for place, model in enumerate(models):
        shares = share_inside(model.predicted.pit_ends, LEVELS).mean(0)
        each = list(zip(LEVELS, shares, strict=True))
        hover = [f"{model.name}: {percent(level, 0)} intervals\nhold {percent(share)}" for level, share in each]
        traces.append(_line(LEVELS, shares, hover, place))
        rows += [(model.name, percent(level, 0), percent(share)) for level, share in each]
    look = {"range": [-0.02, 1.02], "tickformat": ".0%", "dtick": 0.2}
    return Figure(
        "coverage",
        "Do their intervals hold what they promise?",
        "Share of truths inside central intervals. Below the dotted line intervals are too narrow, above it too wide.",
        f"Coverage of the central intervals of {len(models)} models at {len(LEVELS)} levels.",
        (diagonal(0.0, 1.0), *traces),
        layout(axis("probability of the interval", **look), axis("share of truths inside", **look)),
        table("Coverage by level", ("model", "interval", "truths inside"), rows),
        380,
        _key(models),
    )


def _beside(models: Sequence[JudgedModel], judged: Judged) -> Figure:
    """One point a row and model: the probability of the truth, or the mean, against that by the first model."""
    some = evenly(len(judged), MOST_POINTS)
    if judged.classes:
        at = [model.predicted.mean[some, judged.y[some]] for model in models]
        what, look = "probability of the truth", {"tickformat": ".0%", "nticks": 6, "range": [-0.03, 1.03]}
        how = "Above the dotted line the model gives the truth a larger probability than"
        ends = (0.0, 1.0)
    else:
        at = [model.predicted.mean[some, 0] for model in models]
        what, look = f"predicted {shorten(judged.target)}", {"nticks": 6}
        how = "On the dotted line the model predicts the same as"
        ends = (float(np.min(at)), float(np.max(at)))
    first = models[0].name
    traces, rows = [], []
    for place, (model, y) in enumerate(zip(models[1:], at[1:], strict=True), start=1):
        hover = [f"{first} {plain(a)}\n{model.name} {plain(b)}" for a, b in zip(at[0], y, strict=True)]
        look_of = {**MANY, "symbol": SYMBOLS[place]}
        traces.append(dots(at[0], y, f"@class{place}", hover, marker=look_of, name=model.name))
        rows.append((model.name, plain(float(np.mean(np.abs(y - at[0]))))))
    who = models[1].name if len(models) == 2 else "the other model"
    return Figure(
        "beside",
        "Row by row",
        f"Each point is a row. {how} {first}.",
        f"Scatter of the {what} by {len(models) - 1} models against that by {first}.",
        (diagonal(*ends), *traces),
        layout(axis(f"{what}, {shorten(first)}", **look), axis(f"{what}, {shorten(who)}", **look)),
        table(f"Mean distance to {first}", ("model", "distance"), rows),
        380,
        _key(models)[1:],
    )


def _line(x: np.ndarray, y: np.ndarray, hover: list[str], place: int) -> dict[str, object]:
    return line_with_dots(x, y, f"@class{place}", hover, size=7, symbol=SYMBOLS[place])


def _key(models: Sequence[JudgedModel]) -> tuple[tuple[str, str, str], ...]:
    return tuple((model.name, f"@class{place}", "dot") for place, model in enumerate(models))


# Rows -----------------------------------------------------------------------------------------------------------------
def _rows(models: Sequence[JudgedModel], judged: Judged) -> tuple[Block, ...]:
    """The rows where two models are furthest from each other."""
    distance, called = apart(models, judged), judged.row_names
    order = np.argsort(-distance, kind="stable")[:LISTED]
    unit = "total variation" if judged.classes else f"distance of means, in the unit of {judged.target}"
    lines = []
    for row in order[distance[order] > 0]:
        cells = [_prediction(model, judged, row) for model in models]
        apart_by = fixed(distance[row], 2) if judged.classes else plain(distance[row])
        lines.append((Cell(shorten(str(called.values[row]), 40)), Cell(_truth(judged, row)), *cells, Cell(apart_by)))
    if not lines:
        return (aside("The models predict the same for every row."),)
    mark = "✗: the predicted class is wrong" if judged.classes else "✗: the truth lies outside the 95 % interval"
    head = (shorten(called.noun), "truth", *(model.name for model in models), unit)
    numeric = {len(head) - 1} if judged.classes else set(range(1, len(head)))
    caption = f"Rows by how far two models are apart ({mark}; {called.explained})"
    return (
        aside(f"In half of the rows the models are at most {_middle(distance, judged)} apart."),
        Table(caption, head, tuple(lines), frozenset(numeric)),
    )


def _middle(distance: np.ndarray, judged: Judged) -> str:
    middle = float(np.median(distance))
    return fixed(middle, 3) if judged.classes else plain(middle)


def _prediction(model: JudgedModel, judged: Judged, row: int) -> Cell:
    said = model.predicted
    if not judged.classes:
        inside = bool(said.inside(judged.y)[row])
        return Cell(f"{plain(float(said.mean[row, 0]), 4)}{'' if inside else ' ✗'}", strong=not inside)
    code = int(said.mean[row].argmax())
    right = code == judged.y[row]
    text = f"{shorten(judged.classes[code])} ({percent(said.mean[row, code], 0)}){'' if right else ' ✗'}"
    return Cell(text, strong=not right)


def _truth(judged: Judged, row: int) -> str:
    return shorten(judged.classes[judged.y[row]]) if judged.classes else tidy(float(judged.y[row]))


# Models ---------------------------------------------------------------------------------------------------------------
def _models(models: Sequence[JudgedModel], notes: Sequence[str]) -> tuple[Block, ...]:
    facts = dict(models[0].facts)
    rows = tuple((Cell(what), *(Cell(dict(model.facts)[what]) for model in models)) for what in facts)
    seen = (Cell("these rows"), *(Cell({"fitted": "trained on"}.get(model.seen, model.seen)) for model in models))
    whole = Table("What was fitted", ("", *(model.name for model in models)), (*rows, seen))
    return (*((Paragraphs(tuple(notes)),) if notes else ()), whole)
