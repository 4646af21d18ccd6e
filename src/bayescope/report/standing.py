"""How wrong the posterior is, as blocks: one sentence, what was compared, and pictures of each row."""

from __future__ import annotations

import numpy as np

from bayescope.density import PARETO_K_LIMIT
from bayescope.plots.numbers import count, fixed, percent, plain
from bayescope.report.blocks import Block, Figure, Figures, Paragraphs, Tone, aside
from bayescope.report.facts import Facts
from bayescope.report.figures import MANY, axis, diagonal, dots, layout, table
from bayescope.report.reference import LEAST_SD, Difference, Standing

REFERENCES = {"nuts": "NUTS", "importance": "importance sampling from the exact posterior"}
# Differences up to this many standard errors of the reference may be the reference's own.
UNCLEAR = 2.0
# Up to these differences of probabilities (or of means in predictive sds) and of sds a posterior is close, or near.
CLOSE, NEAR = (0.02, 0.10), (0.05, 0.25)


def standing_blocks(facts: Facts) -> tuple[Block, ...]:
    """The answer, what was compared, and the rows; or why there is no answer."""
    found = facts.standing
    if found.method == "exact":
        said = (
            "This posterior is exact for the noise and the prior precision of the model: under a Gaussian prior and "
            "Gaussian noise it has a closed form."
        )
        return (Paragraphs((said,), "good"),)
    if found.mean is None:
        return (Paragraphs((found.reason,), "unknown"),)
    return (
        Paragraphs((sentence(found, bool(facts.judged.classes)),), _tone(found)),
        aside(*_grounds(found, bool(facts.judged.classes))),
        Figures((_predictions(found, facts), *([_sds(found)] if found.spread else [])), "half"),
    )


def sentence(found: Standing, classes: bool) -> str:
    """How wrong the posterior is, in one sentence.

    Args:
        found: with a reference.
        classes: whether classes are predicted.
    """
    assert found.mean is not None
    what = "probabilities" if classes else "means"
    unit = "" if classes else " predictive standard deviations"
    said = (
        f"Compared with {REFERENCES[found.method]} for the same {count(found.rows, 'training row')}, model and prior, "
        f"the {what} of this posterior are off by {_digits(found.mean.typical)}{unit} on average and by at most "
        f"{_digits(found.mean.largest)}"
    )
    if found.spread is None:
        return f"{said}. It is a point and has no epistemic standard deviation."
    lean = "not too wide or narrow in the median row"
    if round(100 * found.ratio) != 100:
        side = "wide" if found.ratio > 1 else "narrow"
        lean = f"in the median row {percent(abs(found.ratio - 1), 0)} too {side}"
    return (
        f"{said}; its epistemic standard deviations are off by {percent(found.spread.typical, 0)} on average and by at "
        f"most {percent(found.spread.largest, 0)} ({lean})."
    )


def _grounds(found: Standing, classes: bool) -> list[str]:
    """What was compared, how precise the reference is, and what these numbers leave out."""
    assert found.mean is not None
    rests = f"Predictions of {count(found.compared, 'row')} are compared"
    rests += f"; {count(found.left_out, 'row')} with a missing value are left out." if found.left_out else "."
    rests += f" The reference is a sample: its own standard errors are about {_digits(found.mean.noise)}"
    if found.spread is not None:
        rests += f" and {percent(found.spread.noise, 1)}"
    within = [part.typical <= UNCLEAR * part.noise for part in (found.mean, found.spread) if part is not None]
    if any(within):
        rests += ", so that chance alone may explain " + ("these averages" if all(within) else "one of the averages")
    rests += "."
    if found.spread is not None:
        least = f"{LEAST_SD:g}{'' if classes else ' predictive standard deviations'}"
        rests += f" Errors of standard deviations below {least} are relative to {least}."
    if found.pareto_k is not None:
        fine = found.pareto_k <= PARETO_K_LIMIT
        rests += f" Pareto k\u0302 from this posterior to the exact one is {fixed(found.pareto_k, 2)}, "
        rests += f"{'at most' if fine else 'above'} the limit of {PARETO_K_LIMIT}: importance weights "
        rests += f"{'can' if fine else 'cannot'} correct this posterior."
    kept = "The reference has the prior precisions and the noise of the model."
    if found.linearized:
        kept += (
            " It is computed for the model that the predictions use, which is linearised at the mode: errors of the "
            "linearisation are not in these numbers."
        )
    return [rests, kept]


def _digits(value: float) -> str:
    return fixed(value, 3) if value >= 0.0005 else plain(value, 1)


def _tone(found: Standing) -> Tone:
    def within(limits: tuple[float, float], mean: Difference) -> bool:
        spread = found.spread is None or found.spread.typical <= limits[1]
        return mean.largest <= limits[0] and spread

    assert found.mean is not None
    if within(CLOSE, found.mean):
        return "good"
    return "caution" if within(NEAR, found.mean) else "bad"


def _predictions(found: Standing, facts: Facts) -> Figure:
    assert found.predictions is not None
    if facts.judged.classes:
        what, share = "probability of its class", True
    else:
        what, share = f"mean of {facts.judged.target}", False
    return _scatter("agreement", "Predictions, beside the reference", what, found.predictions, share=share)


def _sds(found: Standing) -> Figure:
    assert found.sds is not None
    return _scatter("sds", "Epistemic standard deviations, beside the reference", "epistemic sd", found.sds)


def _scatter(name: str, title: str, what: str, pairs: np.ndarray, *, share: bool = False) -> Figure:
    """A point for each row, (reference, model), with the diagonal on which both agree."""
    exact, ours = pairs.T
    hover = [f"reference {plain(a, 3)}\nmodel {plain(b, 3)}" for a, b in pairs]
    options = {"tickformat": ".0%"} if share else {"nticks": 6}
    ends = np.quantile(ours - exact, [0.0, 0.25, 0.5, 0.75, 1.0])
    names = ("smallest", "lower quartile", "median", "upper quartile", "largest")
    return Figure(
        name,
        title,
        "Each point is a row. On the dotted line the model and the reference agree.",
        f"Scatter of the {what} of {len(pairs)} rows by the model against the reference.",
        (diagonal(float(pairs.min()), float(pairs.max())), dots(exact, ours, "@accent", hover, marker=MANY)),
        layout(axis(f"{what}, reference", **options), axis(f"{what}, model", **options)),
        table(
            "Differences",
            ("model \u2212 reference", what),
            [(n, plain(e, 2)) for n, e in zip(names, ends, strict=True)],
        ),
        320,
    )
