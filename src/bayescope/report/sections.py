"""The parts of a report, in the order in which a reader needs them."""

from __future__ import annotations

from collections import Counter

import numpy as np

from bayescope import metrics
from bayescope.plots.numbers import alike, cell, count, fixed, percent, plain, tidy
from bayescope.plots.style import shorten
from bayescope.report import calibration_charts, effect_charts
from bayescope.report.blocks import (
    BarTable,
    Block,
    Card,
    Cards,
    Cell,
    Code,
    Definitions,
    Figure,
    Figures,
    Folded,
    Paragraphs,
    Section,
    Table,
    TrackBar,
    WhatIf,
    aside,
)
from bayescope.report.decisions import decisions
from bayescope.report.diagnostics import diagnostics_blocks
from bayescope.report.explorer import explorer
from bayescope.report.facts import Facts
from bayescope.report.figures import axis, bars, layout, rounded, table
from bayescope.report.reasons import Coefficients, Dependence, Effects
from bayescope.report.standing import standing_blocks
from bayescope.report.statistics import ClassCalibration, Score
from bayescope.report.suspects import suspects
from bayescope.report.verdict import provenance
from bayescope.tables import Column

BINS, SPARKS = 30, 16
MANY_COLUMNS = 14
MANY_PRIORS, FEW_TABLES = 12, 3
# (label, digits, whether a share, what it means) of each headline figure.
SCORES = {
    "accuracy": ("Accuracy", 1, True, "share of rows whose most probable class is right"),
    "auroc": ("AUROC", 3, False, "how well it ranks: ½ is chance, 1 perfect"),
    "nll": ("NLL", 3, False, "mean −log p(truth), in nats; lower is better"),
    "brier": ("Brier score", 3, False, "squared error of the probabilities; lower is better"),
    "ece": ("Calibration error", 3, False, f"expected gap between confidence and accuracy, {metrics.BINS} bins"),
    "rmse": ("RMSE", 3, False, "root mean square error, in the target's unit"),
    "crps": ("CRPS", 3, False, "error of the whole distribution, in the target's unit"),
    "coverage": (
        "Coverage",
        1,
        True,
        "share of truths inside the 95 % intervals; a count at an end is inside in part",
    ),
}


def sections(facts: Facts) -> tuple[Section, ...]:
    """All sections of a report."""
    tone, seen = provenance(facts.held_out)
    headline = Paragraphs((seen,), tone), Cards(tuple(_card(score) for score in facts.scores))
    return (
        Section("figures", "Headline figures", headline, "Figures"),
        Section("calibration", "Does its uncertainty hold?", (_calibration(facts),), "Calibration"),
        *_decisions(facts),
        Section("doubt", "Where the model doubts", (_doubt_lead(facts), explorer(facts)), "Doubt"),
        Section("effects", "What moves its predictions", _effects(facts), "Effects"),
        Section("whatif", "What if", _what_if(facts), "What if"),
        Section("data", "The data", _data(facts), "Data"),
        *_diagnostics(facts),
        Section("posteriors", "How wrong is this posterior?", standing_blocks(facts), "Posterior"),
        Section("model", "The model", _model(facts), "Model"),
        Section("reproduce", "How to get this again", _reproduction(facts), "Reproduce"),
    )


def _card(score: Score) -> Card:
    label, digits, share, meaning = SCORES[score.name]
    if share:
        value = percent(score.value, digits)
        interval = f"{fixed(100 * score.low, digits)} to {fixed(100 * score.high, digits)} %"
        base = percent(score.baseline, digits)
    else:
        value = fixed(score.value, 3) if score.name in ("auroc", "ece") else plain(score.value, digits)
        interval = alike(score.low, score.high)
        base = plain(score.baseline, digits)
    beside = "" if score.baseline != score.baseline else f" Without features: {base}."
    return Card(label, value, f"95 %: {interval}", f"{meaning[0].upper()}{meaning[1:]}.{beside}")


def _calibration(facts: Facts) -> Figures:
    measured = facts.calibration
    if isinstance(measured, ClassCalibration):
        curve = calibration_charts.reliability(measured, len(facts.judged.classes))
        return Figures((curve, calibration_charts.separation(facts.judged, facts.predicted)), "half")
    return Figures((calibration_charts.coverage(measured), calibration_charts.pit(measured)), "half")


def _decisions(facts: Facts) -> tuple[Section, ...]:
    if not facts.judged.classes:
        return ()
    blocks = decisions(facts.judged, facts.predicted, facts.random_state)
    return (Section("decisions", "Where to draw the line", blocks, "Decide"),)


def _doubt_lead(facts: Facts) -> Paragraphs:
    if not facts.doubt.epistemic:
        return aside(
            "A point estimate has no epistemic uncertainty, so the rows are listed by their total uncertainty."
        )
    return aside(
        "Epistemic uncertainty is the part that more data would remove. It is large where few training rows are like "
        "the row. The rest is noise, which no data remove."
    )


def _effects(facts: Facts) -> tuple[Block, ...]:
    match facts.influence:
        case Effects() as moved:
            return _additive(moved)
        case Coefficients() as moved:
            lead = aside("Each bar is the weight of an input times the standard deviation of this input.")
            tables = effect_charts.coefficients(moved)
            if len(tables) <= FEW_TABLES:
                return lead, *tables
            names = zip(moved.outputs, tables, strict=True)
            return lead, *(Folded(f"Weights for {name}", (one,)) for name, one in names)
        case Dependence() as moved:
            return _dependence(moved, facts)


def _diagnostics(facts: Facts) -> tuple[Section, ...]:
    if facts.diagnostics is None:
        return ()
    return (Section("diagnostics", "Has the sampler settled?", diagnostics_blocks(facts.diagnostics), "Sampler"),)


def _what_if(facts: Facts) -> tuple[Block, ...]:
    if isinstance(facts.what_if, str):
        return (aside(facts.what_if),)
    off, unit = facts.what_if["difference"], facts.what_if["unit"]
    said = (
        "Choose values, and this page predicts the row from the terms of the model and their posterior. Sliders end "
        "where the data end. "
    )
    checked = (
        f"In {count(off['rows'], 'row')} of this page the {unit} that the page computes differs from the model's by "
        f"at most {plain(max(off['mean'], off['sd']), 1)}."
    )
    return aside(said + checked), WhatIf(facts.what_if)


def _additive(moved: Effects) -> tuple[Block, ...]:
    lows = [part for one in moved.effects for part in (one.low, *([one.missing.low] if one.missing else []))]
    highs = [part for one in moved.effects for part in (one.high, *([one.missing.high] if one.missing else []))]
    span = effect_charts.span_of(lows, highs)
    bars, more = effect_charts.importance(moved.importance)
    found: list[Block] = [bars]
    if more is not None:
        found.append(Folded(f"{count(len(more.rows), 'more term')} of less importance", (more,)))
    if moved.silent:
        names = ", ".join(moved.silent).replace(" & ", " × ")
        found.append(aside(f"Terms with almost no effect, because their priors switched them off: {names}."))
    if moved.others:
        names = ", ".join(moved.others).replace(" & ", " × ")
        found.append(aside(f"Terms of less importance, which have no chart: {names}."))
    found.append(
        aside(
            f"The prediction is a sum of these effects, in {moved.importance.unit}; each is reported as the difference "
            "from its mean over the training rows. Bands are 95 % intervals; the bars at the foot, and the shares of "
            "labels, show where the data lie. Each chart has its own scale."
        )
    )
    charts = tuple(effect_charts.effect(one, k, span) for k, one in enumerate(moved.effects))
    found.append(Figures(charts, "small", scales=len(charts) > 1))
    if moved.surfaces:
        found.append(Figures(tuple(effect_charts.surface(one, k) for k, one in enumerate(moved.surfaces)), "half"))
    return tuple(found)


def _dependence(moved: Dependence, facts: Facts) -> tuple[Block, ...]:
    several = len(moved.outputs) > 2
    unit = facts.judged.target
    if moved.outputs:
        unit = "probability" if several else f"probability of {facts.judged.target} = {moved.outputs[1]}"
    chosen = slice(None) if several or not moved.outputs else slice(1, 2)
    span = effect_charts.span_of(
        [curve.low[:, chosen] for curve in moved.curves], [curve.high[:, chosen] for curve in moved.curves]
    )
    lead = aside(
        f"Partial dependence: the mean prediction of {moved.rows} rows if one feature takes other values and all else "
        "stays. The band is the mean of the 95 % intervals of these rows. The mean includes combinations that never "
        "occur."
    )
    figures = [effect_charts.curve(curve, k, moved, span, unit) for k, curve in enumerate(moved.curves)]
    more = aside(f"Features with less influence on the mean, which have no curve: {', '.join(moved.others)}.")
    scales = len(figures) > 1
    return (lead, Figures(tuple(figures), "small", scales=scales), *([more] if moved.others else []))


def _model(facts: Facts) -> tuple[Block, ...]:
    model = facts.fitted
    chosen = [(name, value) for name, value, changed in model.parameters if changed]
    rows = tuple((Cell(name), Cell(value, strong=changed)) for name, value, changed in model.parameters)
    pairs = [("Model", model.model), ("Posterior", model.posterior), ("Random weights", str(model.weights))]
    if model.log_evidence is not None:
        kind = "Evidence lower bound" if model.bound else "Log evidence"
        pairs.append((kind, f"{fixed(model.log_evidence, 2)} nats: log p(training targets) under the model"))
    else:
        pairs.append(("Log evidence", "this approximation does not define it"))
    if model.noise is not None:
        pairs.append(("Noise", f"variance {plain(model.noise, 4)}, sd {plain(float(np.sqrt(model.noise)), 4)}"))
    pairs += [("Chosen options", ", ".join(f"{name}={value}" for name, value in chosen) or "all defaults")]
    priors = tuple((Cell(name), Cell(value)) for name, value in model.priors)
    table = Table(
        "Prior precisions, 1/variance: the larger, the closer a term is held to 0", ("of", "precision"), priors
    )
    prior_table = table if len(priors) <= MANY_PRIORS else Folded(f"Prior precisions of {len(priors)} terms", (table,))
    return (
        Definitions(tuple(pairs)),
        *([prior_table] if priors else []),
        Folded("What the fit noted", (Definitions(model.notes),)),
        Folded("All options", (Table("Options of the estimator", ("option", "value"), rows),)),
    )


def _reproduction(facts: Facts) -> tuple[Block, ...]:
    model = facts.fitted
    chosen = ", ".join(f"{name}={value}" for name, value, changed in model.parameters if changed)
    held_out = "" if facts.held_out is None else f", held_out={facts.held_out}"
    training = ", training=(X_train, y_train)" if facts.standing.rows else ""
    python = (
        "import bayescope as bs\n\n"
        f"estimator = bs.{model.model}({chosen}).fit(X_train, y_train)\n"
        f'bs.report(estimator, X, y, out="report.html"{held_out}{training}, random_state={facts.random_state})'
    )
    code = Code("Command line", facts.command) if facts.command else Code("Python", python)
    seed = aside(
        f"All random numbers of this page (bootstrap, simulations, choice of rows) come from the seed "
        f"{facts.random_state}. The same rows, model and versions give the same figures."
    )
    return code, Definitions(model.versions), seed


# The data -------------------------------------------------------------------------------------------------------------
def _data(facts: Facts) -> tuple[Block, ...]:
    """A sentence, the target's distribution and the columns."""
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
        "Columns",
        ("column", "kind", "missing", "values", "shape"),
        tuple(_column(column) for column in judged.every),
        frozenset({2}),
    )
    column_table = (
        columns if len(judged.every) <= MANY_COLUMNS else Folded(f"All {len(judged.every)} columns", (columns,))
    )
    target = _classes(facts) if judged.classes else Figures((_numbers(facts),), "wide")
    suspicious = suspects(judged)
    noticed = (Paragraphs(suspicious, "caution"),) if suspicious else ()
    return Paragraphs((said + part,)), *noticed, target, column_table


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
        labels = Counter(label for label in column.values if label is not None).most_common()
        often = ", ".join(f"{shorten(cell(label), 16)} {percent(n / len(column.values), 0)}" for label, n in labels[:3])
        said = f"{count(len(labels), 'label')}: {often}" if labels else "no value"
        heights = tuple(n / labels[0][1] for _, n in labels[:SPARKS])
        return Cell(column.name), Cell("labels"), Cell(share), Cell(said), Cell("", heights)
    there = column.values[~np.isnan(column.values)]
    if there.size == 0:
        return Cell(column.name), Cell("numbers"), Cell(share), Cell("no value"), Cell("")
    low, middle, high = np.quantile(there, [0.0, 0.5, 1.0])
    counts_in = np.histogram(there, SPARKS)[0] if high > low else np.array([there.size])
    said = f"{tidy(low)} to {tidy(high)}, median {tidy(middle)}"
    heights = tuple((counts_in / counts_in.max()).tolist())
    return Cell(column.name), Cell("numbers"), Cell(share), Cell(said), Cell("", heights)


def _classes(facts: Facts) -> BarTable:
    judged = facts.judged
    counts = np.bincount(judged.every_y, minlength=len(judged.classes))
    shares = counts / counts.sum()
    lines = tuple(
        TrackBar(name, str(n), percent(share), 0.0, round(100.0 * share / shares.max(), 2), None, 0.0)
        for name, n, share in zip(judged.classes, counts, shares, strict=True)
    )
    return BarTable(f"Classes of {judged.target}", ("class", "", "rows"), lines)


def _numbers(facts: Facts) -> Figure:
    y, target = facts.judged.every_y, facts.judged.target
    heights, edges = np.histogram(y, BINS)
    rows = [(f"{plain(a)} to {plain(b)}", str(n)) for a, b, n in zip(edges[:-1], edges[1:], heights, strict=True)]
    hover = [f"{span}: {n} rows" for span, n in rows]
    trace = bars(0.5 * (edges[1:] + edges[:-1]), heights, "@bar", hover, width=rounded(0.94 * np.diff(edges)))
    mean, sd, low, high = (tidy(float(part)) for part in (y.mean(), y.std(), y.min(), y.max()))
    said = f"mean {mean}, sd {sd}, from {low} to {high}"
    return Figure(
        "target",
        f"Distribution of {shorten(target, 40)}",
        f"{said[0].upper()}{said[1:]}.",
        f"Histogram of {target}: {said}.",
        (trace,),
        layout(axis(shorten(target, 50)), axis("rows", nticks=4)),
        table(f"Rows by {target}", (target, "rows"), rows),
        220,
    )
