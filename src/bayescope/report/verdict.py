"""How far the uncertainty can be trusted, in plain words: what was measured decides, bad news included."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bayescope.plots.numbers import alike, count, fixed, percent, plain
from bayescope.report.blocks import Tone, Trust
from bayescope.report.facts import Facts
from bayescope.report.statistics import ClassCalibration, Doubt, NumberCalibration

# A share of simulations below this makes chance a poor excuse.
UNLIKELY = 0.05
# Differences that a reader should act on: of probabilities, and of standard deviations.
LARGE_GAP, LARGE_SPREAD = 0.03, 1.15
# Differences that matter to nobody, however sure a test of many rows is of them: of probabilities and calibration
# errors, of coverages, of standard deviations as a share of them, and of means in standard deviations.
SMALL_GAP, SMALL_SHARE, SMALL_SPREAD, SMALL_BIAS = 0.01, 0.01, 0.03, 0.05
# The width of a Gaussian's 95 % interval in standard deviations.
WIDTH = 3.92
# What rounds to no difference at all.
EXACT = 0.0005
# A calibrated model with errors up to this leaves hardly any room to see that another one is not.
BLUNT = 0.10
FEW = 50
# Wrong rows below which it is chance where they lie: of this many the association has a standard error near 0.1.
FEW_WRONG = 10
# What is known of a method before any row is seen.
OF_METHODS = {
    "map": "It is a point estimate, so it has no epistemic uncertainty.",
    "mean_field": "Its posterior treats the weights as independent, which usually makes it overconfident.",
    "mc_dropout": "Its epistemic uncertainty comes from dropout. The drop rate sets its size, not the data.",
    "ensemble": "Its epistemic uncertainty is the disagreement of a few members, which is a rough measure.",
}


def verdict(facts: Facts) -> Trust:
    """The tone, a headline and the reasons.

    Args:
        facts: of the report.
    """
    measured = facts.calibration
    answer = _of_classes(measured) if isinstance(measured, ClassCalibration) else _of_numbers(measured, facts)
    sentences = [*answer.sentences, *_of_doubt(facts.doubt, isinstance(measured, ClassCalibration))]
    sentences += [OF_METHODS[facts.fitted.method]] if facts.fitted.method in OF_METHODS else []
    sentences.append(
        "All of this holds for rows like these. It says nothing about rows from another place or a later time, or "
        "beyond the range of the training rows."
    )
    if facts.held_out is False:
        seen = (
            "The model was trained on these rows, so every figure is better than it would be for new rows. Judge the "
            "model on rows that were not used for training."
        )
        headline = answer.headline if answer.tone == "bad" else "Measured on training rows: expect worse on new ones"
        return Trust("bad" if answer.tone == "bad" else "caution", headline, (seen, *sentences))
    if facts.held_out is None:
        sentences.insert(0, provenance(None)[1])
        if answer.tone == "good":
            return Trust("unknown", f"{answer.headline}, if they were held out", tuple(sentences))
    return Trust(answer.tone, answer.headline, tuple(sentences))


def provenance(held_out: bool | None) -> tuple[Tone, str]:
    """Whether the model was trained on the rows, said plainly."""
    if held_out is None:
        return "caution", (
            "It is unknown whether these rows were used in training (held_out=). If they were, every figure here is "
            "better than it would be for new rows."
        )
    if held_out:
        return "good", "These rows were held out: the caller states that the model was not trained on them."
    return "bad", (
        "The model was trained on these rows, as the caller states. Every figure here is better than it would be for "
        "new rows."
    )


def _of_classes(c: ClassCalibration) -> Trust:
    over, under, unlikely = c.gap > c.chance_high, c.gap < c.chance_low, c.share < UNLIKELY
    rejected = over or under or unlikely
    over, under = over and c.gap >= SMALL_GAP, under and c.gap <= -SMALL_GAP
    unlikely = unlikely and c.ece >= SMALL_GAP
    blunt = c.rows < FEW or c.limit > BLUNT
    side = f"{fixed(100 * abs(c.gap), 1)} percentage points {'less' if c.gap > 0 else 'more'} than it said"
    sentences = [
        f"On average it gave its predicted class a probability of {percent(c.confidence)}, and that class was right in "
        f"{percent(c.accuracy)} of the {count(c.rows, 'row')}: {'just as it said' if abs(c.gap) < EXACT else side}. "
        f"By chance a calibrated model could be off by {alike(100 * c.chance_low, 100 * c.chance_high)} points.",
        f"Its expected calibration error, over {len(c.reliability.count)} bins, is {fixed(c.ece, 3)}. On "
        "as many rows a perfectly calibrated model with the same probabilities would show "
        f"{fixed(c.expected, 3)} on average, and more than {fixed(c.limit, 3)} one time in twenty.",
    ]
    number, sure, right = c.sure
    if number:
        sentences.append(
            f"In {count(number, 'row')} it was at least 90 % sure ({percent(sure)} on average); {percent(right)} of "
            "these were right."
        )
    small = rejected and not (over or under or unlikely)
    if small:
        sentences.append(
            "The difference is more than chance, but below one percentage point: too small to matter in practice."
        )
    tone, headline = _class_headline(over, under, unlikely, blunt, c.gap)
    if blunt:
        sentences.append("With so few rows only large faults can be found.")
    return Trust(tone, headline, tuple(sentences))


def _class_headline(over: bool, under: bool, unlikely: bool, blunt: bool, gap: float) -> tuple[Tone, str]:
    if over:
        tone: Tone = "bad" if gap >= LARGE_GAP else "caution"
        return tone, "Overconfident: it is right less often than it says"
    if under:
        return "caution", "Underconfident: it is right more often than it says"
    if unlikely:
        return "caution", "Right on average, but off in places: see where its curve leaves the band"
    if blunt:
        return "unknown", "Nothing speaks against its probabilities, but these are too few rows to tell"
    return "good", "Its probabilities held on these rows"


def _of_numbers(c: NumberCalibration, facts: Facts) -> Trust:
    unit = f", in the unit of {facts.judged.target}"
    half, wide = (int(abs(c.levels - level).argmin()) for level in (0.5, 0.95))
    sentences = [
        f"Of its 95 % intervals {percent(c.coverage[wide])} held the truth (a right model: "
        f"{_between(c.low[wide], c.high[wide])} of {count(c.rows, 'row')}), of its 50 % intervals "
        f"{percent(c.coverage[half])} (a right model: {_between(c.low[half], c.high[half])}).",
        f"Its errors are {plain(c.spread, 3)} times as large as its standard deviations say (95 % interval "
        f"{alike(c.spread_low, c.spread_high)}); a 95 % interval is {plain(c.width, 3)} wide on average{unit}.",
    ]
    found = _faults(c, wide)
    if c.bias_low > 0 or c.bias_high < 0:
        side = "low" if c.bias > 0 else "high"
        sentences.append(
            f"It predicts too {side} on average, by {plain(abs(c.bias), 3)} (mean of truth − prediction: 95 % interval "
            f"{alike(c.bias_low, c.bias_high, 2)})."
        )
    if found.small:
        sentences.append("Some of these differences are more than chance, but too small to matter in practice.")
    tone, headline = _number_headline(c, found)
    if c.rows < FEW:
        sentences.append("With so few rows only large faults can be found.")
    return Trust(tone, headline, tuple(sentences))


class _Faults(NamedTuple):
    """What is wrong with intervals, beyond chance and by more than matters to nobody.

    Attributes:
        narrow: whether errors are larger than the standard deviations say.
        wide: whether they are smaller.
        missed: whether too many truths lie outside the 95 % intervals.
        biased: whether predictions lean to one side.
        outside: whether some coverage is off.
        small: whether chance explains less than what was found, all of which is small.
    """

    narrow: bool
    wide: bool
    missed: bool
    biased: bool
    outside: bool
    small: bool


def _faults(c: NumberCalibration, wide: int) -> _Faults:
    """Each test of chance, with the size of what it found."""
    off = (c.coverage < c.low) | (c.coverage > c.high)
    each = [
        (c.spread_low > 1, c.spread >= 1 + SMALL_SPREAD),
        (c.spread_high < 1, c.spread <= 1 - SMALL_SPREAD),
        (c.coverage[wide] < c.low[wide], c.levels[wide] - c.coverage[wide] >= SMALL_SHARE),
        (c.bias_low > 0 or c.bias_high < 0, abs(c.bias) >= SMALL_BIAS * c.width / WIDTH),
        (off.any(), (off & (np.abs(c.coverage - c.levels) >= SMALL_SHARE)).any()),
    ]
    found = [bool(beyond_chance and large) for beyond_chance, large in each]
    small = any(beyond_chance for beyond_chance, _ in each) and not any(found)
    narrow, too_wide, missed, biased, outside = found
    return _Faults(narrow, too_wide, missed, biased, outside, small)


def _number_headline(c: NumberCalibration, found: _Faults) -> tuple[Tone, str]:
    if found.narrow:
        tone: Tone = "bad" if found.missed or c.spread > LARGE_SPREAD else "caution"
        return tone, "Overconfident: its intervals are too narrow"
    if found.missed:
        return "bad", "Too many truths lie outside its 95 % intervals"
    if found.biased:
        return "caution", "Its intervals are wide enough, but its predictions lean to one side"
    if found.wide and found.outside:
        return "caution", "Underconfident: its intervals are wider than they need to be"
    if found.outside:
        return "caution", "Right in width overall, but its errors have another shape than it thinks"
    if c.rows < FEW:
        return "unknown", "Nothing speaks against its intervals, but these are too few rows to tell"
    return "good", "Its intervals held on these rows"


def _of_doubt(d: Doubt, classes: bool) -> list[str]:
    """Whether the rows that it knows least about are those that it gets wrong."""
    what = "epistemic uncertainty" if d.epistemic else "uncertainty"
    if classes:
        said = (
            f"Of the tenth of the rows with the most {what} {percent(d.most)} are wrong, of the others "
            f"{percent(d.rest)}: "
        )
        useful = d.most > 1.5 * d.rest and d.association > 0.6
    else:
        said = (
            f"In the tenth of the rows with the most {what} the root mean square error is {plain(d.most)}, in all "
            f"others {plain(d.rest)}: "
        )
        useful = d.most > 1.25 * d.rest and d.association > 0.1
    if d.association != d.association:
        return []
    if not classes and len(d.error) < FEW:
        rows = count(len(d.error), "row")
        return [f"{rows} are too few to tell whether the model is more uncertain where its errors are large."]
    wrong = int(d.error.sum())
    if classes and wrong < FEW_WRONG:
        is_few = "row is" if wrong == 1 else "rows are"
        return [f"{wrong} wrong {is_few} too few to tell whether the model is more uncertain where it is wrong."]
    end = "the model is more uncertain where it errs." if useful else "its uncertainty says little about where it errs."
    return [said + end]


def _between(low: float, high: float) -> str:
    return f"{fixed(100 * low, 0)} to {fixed(100 * high, 0)} %"
