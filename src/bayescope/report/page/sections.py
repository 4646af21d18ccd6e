"""The parts of a report, in the order in which a reader needs them."""

from __future__ import annotations

import numpy as np

from bayescope.report.facts.calibration import ClassCalibration
from bayescope.report.facts.facts import Facts
from bayescope.report.facts.influence import Coefficients, Dependence, Effects, Influence
from bayescope.report.facts.scores import Score
from bayescope.report.page import bars, calibration_figures, effect_figures
from bayescope.report.page.blocks import (
    Card,
    Cards,
    Cell,
    Code,
    Definitions,
    Figures,
    Folded,
    Notice,
    Section,
    Table,
    Text,
)
from bayescope.report.page.comparing import comparison_blocks
from bayescope.report.page.data import data_blocks
from bayescope.report.page.explorer import explorer
from bayescope.report.page.numbers import alike, count, fixed, percent, plain
from bayescope.report.page.verdict import provenance

MANY_PRIORS, FEW_TABLES = 12, 3
# (label, digits, whether a share, what it means) of each headline figure.
SCORES = {
    "accuracy": ("Accuracy", 1, True, "share of rows whose most probable class is right"),
    "auroc": ("AUROC", 3, False, "how well it ranks: ½ is chance, 1 perfect"),
    "nll": ("NLL", 3, False, "mean −log p(truth), in nats; lower is better"),
    "brier": ("Brier score", 3, False, "squared error of the probabilities; lower is better"),
    "ece": ("Calibration error", 3, False, "expected gap between confidence and accuracy"),
    "rmse": ("RMSE", 3, False, "root mean square error, in the target's unit"),
    "crps": ("CRPS", 3, False, "error of the whole distribution, in the target's unit"),
    "coverage": ("Coverage", 1, True, "share of truths inside the 95 % intervals"),
}


def sections(facts: Facts) -> tuple[Section, ...]:
    """All of them.

    Args:
        facts: of the report.
    """
    return (
        Section("figures", "Headline figures", (_provenance(facts), _cards(facts)), "Figures"),
        Section("calibration", "Does its uncertainty hold?", (_calibration(facts),), "Calibration"),
        Section("doubt", "Where the model doubts", (_doubt_lead(facts), explorer(facts)), "Doubt"),
        Section("effects", "What moves its predictions", _effects(facts.influence, facts), "Effects"),
        Section("data", "The data", data_blocks(facts), "Data"),
        Section("posteriors", "Other posteriors, against NUTS", comparison_blocks(facts.reference), "Posteriors"),
        Section("model", "The model", _model(facts), "Model"),
        Section("reproduce", "How to get this again", _reproduction(facts), "Reproduce"),
    )


def _provenance(facts: Facts) -> Notice:
    return Notice(*provenance(facts.held_out))


def _cards(facts: Facts) -> Cards:
    return Cards(tuple(_card(score) for score in facts.scores))


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
        curve = calibration_figures.reliability(measured, len(facts.judged.classes))
        return Figures((curve, calibration_figures.separation(facts.judged, facts.told)), "half")
    return Figures((calibration_figures.coverage(measured), calibration_figures.pit(measured)), "half")


def _doubt_lead(facts: Facts) -> Text:
    if facts.doubt.epistemic:
        told = (
            "Epistemic uncertainty is what more data would remove: it is large where the model has seen little like "
            "the row. The rest is noise that no data remove."
        )
    else:
        told = "A point estimate has no epistemic uncertainty; rows are listed by the whole of their uncertainty."
    return Text((told,), muted=True)


def _effects(moved: Influence, facts: Facts) -> tuple[object, ...]:
    match moved:
        case Effects():
            return _additive(moved)
        case Coefficients():
            lead = Text(
                ("Weights are those of the model's own inputs; each bar is scaled by its input's spread.",), True
            )
            tables = bars.coefficients(moved)
            if len(tables) <= FEW_TABLES:
                return (lead, *tables)
            return (
                lead,
                *(Folded(f"Weights for {name}", (one,)) for name, one in zip(moved.outputs, tables, strict=True)),
            )
        case Dependence():
            return _dependence(moved, facts)


def _additive(moved: Effects) -> tuple[object, ...]:
    lows = [part for one in moved.effects for part in (one.low, *([one.missing.low] if one.missing else []))]
    highs = [part for one in moved.effects for part in (one.high, *([one.missing.high] if one.missing else []))]
    span = effect_figures.span_of(lows, highs)
    unit = moved.importance.unit
    lead = Text(
        (
            f"The prediction is a sum of these effects, in {unit}; each is told from its mean over the training rows. "
            "Bands are 95 % intervals, the bars at the foot show where the data lie. All share one scale.",
        ),
        muted=True,
    )
    shown = Figures(tuple(effect_figures.effect(one, k, span) for k, one in enumerate(moved.effects)), "small")
    maps = Figures(tuple(effect_figures.surface(one, k) for k, one in enumerate(moved.surfaces)), "half")
    more = Text((f"{count(moved.others, 'term')} of less importance: no picture here.",), muted=True)
    off = Text(
        (f"Switched off by their priors, next to no effect: {', '.join(moved.silent).replace(' & ', ' × ')}.",),
        muted=True,
    )
    return (
        bars.importance(moved.importance, moved.silent),
        *([off] if moved.silent else []),
        lead,
        shown,
        *([maps] if moved.surfaces else []),
        *([more] if moved.others else []),
    )


def _dependence(moved: Dependence, facts: Facts) -> tuple[object, ...]:
    several = len(moved.outputs) > 2
    unit = facts.judged.target
    if moved.outputs:
        unit = "probability" if several else f"probability of {facts.judged.target} = {moved.outputs[1]}"
    chosen = slice(None) if several or not moved.outputs else slice(1, 2)
    span = effect_figures.span_of(
        [curve.low[:, chosen] for curve in moved.curves], [curve.high[:, chosen] for curve in moved.curves]
    )
    lead = Text(
        (
            f"Mean prediction of {moved.rows} rows as one feature takes other values and all else stays: partial "
            "dependence. The band is the mean of those rows' own 95 % intervals, so what holds for a typical row. "
            "Combinations that never occur are averaged over too.",
        ),
        muted=True,
    )
    figures = [effect_figures.curve(curve, k, moved, span, unit) for k, curve in enumerate(moved.curves)]
    more = Text((f"{count(moved.others, 'feature')} of less influence on the mean: no curve here.",), muted=True)
    return (lead, Figures(tuple(figures), "small"), *([more] if moved.others else []))


def _model(facts: Facts) -> tuple[object, ...]:
    told = facts.fitted
    chosen = [(name, value) for name, value, changed in told.parameters if changed]
    rows = tuple((Cell(name), Cell(value, strong=changed)) for name, value, changed in told.parameters)
    pairs = [("Model", told.model), ("Posterior", told.posterior), ("Random weights", str(told.weights))]
    if told.log_evidence is not None:
        kind = "Evidence lower bound" if told.bound else "Log evidence"
        pairs.append((kind, f"{fixed(told.log_evidence, 2)} nats: log p(training targets) under the model"))
    else:
        pairs.append(("Log evidence", "this approximation does not define it"))
    if told.noise is not None:
        pairs.append(("Noise", f"variance {plain(told.noise, 4)}, sd {plain(float(np.sqrt(told.noise)), 4)}"))
    pairs += [("Chosen options", ", ".join(f"{name}={value}" for name, value in chosen) or "all defaults")]
    priors = tuple((Cell(name), Cell(value)) for name, value in told.priors)
    table = Table(
        "Prior precisions, 1/variance: the larger, the closer a term is held to 0", ("of", "precision"), priors
    )
    shown = table if len(priors) <= MANY_PRIORS else Folded(f"Prior precisions of {len(priors)} terms", (table,))
    return (
        Definitions(tuple(pairs)),
        *([shown] if priors else []),
        Folded("What the fit noted", (Definitions(told.notes),)),
        Folded("All options", (Table("Options of the estimator", ("option", "value"), rows),)),
    )


def _reproduction(facts: Facts) -> tuple[object, ...]:
    told = facts.fitted
    chosen = ", ".join(f"{name}={value}" for name, value, changed in told.parameters if changed)
    held_out = "" if facts.held_out is None else f", held_out={facts.held_out}"
    python = (
        "import bayescope as bs\n\n"
        f"estimator = bs.{told.model}({chosen}).fit(X_train, y_train)\n"
        f'bs.report(estimator, X, y, out="report.html"{held_out}, random_state={facts.random_state})'
    )
    command = "bayescope report model.bayes table.csv --out report.html"
    versions = Definitions(told.versions)
    seed = Text(
        (
            f"Everything that is drawn here (bootstrap, simulations, the choice of rows) comes from the seed "
            f"{facts.random_state}; the same rows, model and versions give the same figures.",
        ),
        muted=True,
    )
    return (Code("Python", python), Code("Command line", command), versions, seed)
