"""The paragraph on trust says what was measured, bad news included."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bayescope.report import statistics, verdict
from tests.report.facts.test_calibration import classes_told, rows_of, told_of


def classes_with(facts, sharpen, rows):
    generator = np.random.default_rng(0)
    logits = generator.normal(size=rows)
    y = (generator.random(rows) < 1 / (1 + np.exp(-logits))).astype(int)
    p = 1 / (1 + np.exp(-sharpen * logits))
    judged, told = rows_of(y, ("0", "1")), classes_told(np.column_stack([1 - p, p]))
    return replace(
        facts,
        judged=judged,
        calibration=statistics.class_calibration(judged, told, 0),
        doubt=statistics.doubt(judged, told, 0),
    )


def numbers_with(facts, said, shift, rows):
    generator = np.random.default_rng(1)
    mean = generator.normal(size=rows)
    y = mean + shift + generator.normal(size=rows)
    judged, told = rows_of(y, ()), told_of(mean, np.full(rows, said), y)
    return replace(
        facts,
        judged=judged,
        calibration=statistics.number_calibration(judged, told, 0),
        doubt=statistics.doubt(judged, told, 0),
    )


@pytest.mark.parametrize(
    ("sharpen", "rows", "tone", "word"),
    [
        (1.0, 2000, "good", "held"),
        (3.0, 800, "bad", "Overconfident"),
        (0.3, 800, "caution", "Underconfident"),
        (1.0, 40, "unknown", "too few"),
    ],
)
def test_classes(facts_of, logistic, sharpen, rows, tone, word):
    told = verdict.verdict(classes_with(facts_of(logistic), sharpen, rows))
    assert told.tone == tone
    assert word in told.headline


@pytest.mark.parametrize(
    ("said", "shift", "rows", "tone", "word"),
    [
        (1.0, 0.0, 600, "good", "held"),
        (0.6, 0.0, 600, "bad", "too narrow"),
        (1.7, 0.0, 600, "caution", "wider"),
        (1.2, 0.5, 600, "caution", "lean"),
        (1.0, 0.0, 20, "unknown", "too few"),
    ],
)
def test_numbers(facts_of, linear, said, shift, rows, tone, word):
    told = verdict.verdict(numbers_with(facts_of(linear), said, shift, rows))
    assert told.tone == tone, told
    assert word in told.headline


def test_what_is_more_than_chance_and_tiny_is_no_fault(facts_of, logistic, linear):
    """A calibration error of .008 is good, also where a test of very many rows rejects; so are intervals 2 % off."""
    facts = classes_with(facts_of(logistic), 1.0, 2000)
    tiny = {"share": 0.001, "expected": 0.003, "limit": 0.005}
    told = verdict.verdict(replace(facts, calibration=replace(facts.calibration, ece=0.008, gap=0.001, **tiny)))
    assert (told.tone, told.headline) == ("good", "Its probabilities held on these rows")
    assert any("more than chance, but below one" in sentence for sentence in told.sentences)
    told = verdict.verdict(replace(facts, calibration=replace(facts.calibration, ece=0.02, gap=0.001, **tiny)))
    assert told.tone == "caution"
    gap = {"gap": 0.008, "chance_low": -0.002, "chance_high": 0.002, "ece": 0.009}
    assert verdict.verdict(replace(facts, calibration=replace(facts.calibration, **gap))).tone == "good"
    facts = numbers_with(facts_of(linear), 1.0, 0.0, 600)
    c = facts.calibration
    close = {"spread": 1.02, "spread_low": 1.01, "spread_high": 1.03, "bias": 0.01, "bias_low": 0.005, "bias_high": 1}
    held = replace(c, coverage=c.levels + 0.005, low=c.levels - 0.001, high=c.levels + 0.001, **close)
    told = verdict.verdict(replace(facts, calibration=held))
    assert told.tone == "good", told
    assert any("too small to matter" in sentence for sentence in told.sentences)
    assert verdict.verdict(replace(facts, calibration=replace(held, bias=0.2))).tone == "caution"


def test_the_number_of_bins_is_said(facts_of, logistic):
    assert any("over 15 bins" in sentence for sentence in verdict.verdict(facts_of(logistic)).sentences)


def test_rows_seen_in_training_are_never_good_news(facts_of, logistic):
    facts = classes_with(facts_of(logistic), 1.0, 2000)
    told = verdict.verdict(replace(facts, held_out=False))
    assert told.tone == "caution"
    assert "training rows" in told.headline
    assert verdict.verdict(replace(classes_with(facts, 3.0, 800), held_out=False)).tone == "bad"
    unsaid = verdict.verdict(replace(facts, held_out=None))
    assert "It is unknown" in unsaid.sentences[0]
    assert unsaid.tone == "unknown"
    assert "if they were held out" in unsaid.headline
    assert [verdict.provenance(said)[0] for said in (True, None, False)] == ["good", "caution", "bad"]


def test_a_point_is_called_one(facts_of, logistic):
    facts = facts_of(logistic)
    told = verdict.verdict(replace(facts, fitted=replace(facts.fitted, method="map")))
    assert any("point estimate" in sentence for sentence in told.sentences)


def test_of_few_errors_nobody_can_tell_where_they_lie(facts_of, logistic):
    facts = classes_with(facts_of(logistic), 1.0, 2000)
    assert any("more uncertain where it errs" in sentence for sentence in verdict.verdict(facts).sentences)
    error = np.zeros(2000)
    error[:2] = 1
    told = verdict.verdict(replace(facts, doubt=replace(facts.doubt, error=error)))
    assert "2 wrong rows are too few to tell whether the model is more uncertain where it is wrong." in told.sentences


@pytest.mark.parametrize(("rows", "few"), [(20, True), (80, False)])
def test_a_few_numbers_do_not_tell_where_errors_lie(facts_of, linear, rows, few):
    facts = facts_of(linear)
    doubt = replace(facts.doubt, error=facts.doubt.error[:rows])
    said = " ".join(verdict.verdict(replace(facts, doubt=doubt)).sentences)
    assert ("20 rows are too few to tell whether the model is more uncertain" in said) == few
    assert ("root mean square error" in said) != few
