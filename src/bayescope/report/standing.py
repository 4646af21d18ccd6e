"""How wrong the posterior is, as blocks: one sentence, what it rests on, and pictures of each row."""

from __future__ import annotations

import numpy as np

from bayescope.density import PARETO_K_LIMIT
from bayescope.plots.numbers import count, fixed, percent, plain
from bayescope.report.blocks import Block, Figure, Figures, Paragraphs, Tone, aside
from bayescope.report.facts import Facts
from bayescope.report.figures import MANY, axis, diagonal, dots, layout, table
from bayescope.report.reference import Difference, Standing

REFERENCES = {"nuts": "NUTS", "importance": "the exact posterior, by importance sampling,"}
# Up to these differences of probabilities (or of means in predictive sds) and of sds a posterior is close, or near.
CLOSE, NEAR = (0.02, 0.10), (0.05, 0.25)


def standing_blocks(facts: Facts) -> tuple[Block, ...]:
    """The answer, what it rests on, and the rows; or why there is no answer."""
    found = facts.standing
    if found.method == "exact":
        said = (
            "This posterior is exact: under a Gaussian prior and Gaussian noise it has a closed form, for the noise "
            "and the prior precision in the model."
        )
        return (Paragraphs((said,), "good"),)
    if found.mean is None:
        return (Paragraphs((found.reason,), "unknown"),)
    return (
        Paragraphs((sentence(found, bool(facts.judged.classes)),), _tone(found)),
        aside(*_grounds(found)),
        Figures((_predictions(found, facts), *([_sds(found)] if found.spread else [])), "half"),
    )


def sentence(found: Standing, classes: bool) -> str:
    """How wrong the posterior is, in one sentence.

    Args:
        found: with a reference.
        classes: whether classes are predicted.
    """
    assert found.mean is not None
    what = "its probabilities are" if classes else "its means are"
    unit = "" if classes else " of a predictive standard deviation"
    said = (
        f"Held against {REFERENCES[found.method]} on the same {count(found.rows, 'training row')}, model and prior, "
        f"{what} off by {_digits(found.mean.typical)} on average and by at most {_digits(found.mean.largest)}{unit}"
    )
    if found.spread is None:
        return f"{said}; it is a point, without any epistemic standard deviation."
    side = "wide" if found.ratio > 1 else "narrow"
    lean = f"{percent(abs(found.ratio - 1), 0)} too {side} in the median row"
    return (
        f"{said}, and its epistemic standard deviations by {percent(found.spread.typical, 0)} on average and by at "
        f"most {percent(found.spread.largest, 0)} ({lean})."
    )


def _grounds(found: Standing) -> list[str]:
    """What was compared, how sure the reference is of it, and what it does not speak of."""
    assert found.mean is not None
    noise = f"{_digits(found.mean.noise)}"
    if found.spread is not None:
        noise += f" and {percent(found.spread.noise, 1)}"
    rests = (
        f"Predictions of {count(found.compared, 'row')} are compared. The reference is a sample, whose own errors are "
        f"about {noise}; it moves f in {count(found.directions, 'direction')}, all that the training rows tell about."
    )
    if found.pareto_k is not None:
        fine = "at most" if found.pareto_k <= PARETO_K_LIMIT else "above"
        rests += f" Pareto k\u0302 from this posterior to the exact one is {fixed(found.pareto_k, 2)}, {fine} "
        rests += f"{PARETO_K_LIMIT}: importance weights {'can' if fine == 'at most' else 'cannot'} correct it."
    held = "Prior precisions and noise are held as they are in the model."
    if found.linearized:
        held += (
            " The reference is of the model that its predictions use, linearised at the mode; what the linearisation "
            "itself gets wrong is not in these numbers."
        )
    return [rests, held]


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
        "One point a row. On the dotted line the model and the reference agree.",
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
