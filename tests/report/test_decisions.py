"""Where to draw the line: counts at thresholds, curves with bands, and rows that are searched and compared."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, precision_recall_curve, roc_curve

from bayescope.report import decisions
from tests.browser import needs_a_browser


def _scores(rows: int, ties: bool) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    own = generator.random(rows) < 0.3
    p = 1 / (1 + np.exp(-generator.normal(size=rows) - 1.5 * own))
    return (np.round(p, 1) if ties else p), own


@pytest.mark.parametrize("ties", [False, True])
def test_the_curves_are_scikit_learns(ties):
    p, own = _scores(307, ties)
    roc, precision = decisions._at_weights(p, own.astype(float), (~own).astype(float))
    wrong, recall, _ = roc_curve(own, p, drop_intermediate=False)
    inside = ~np.isin(decisions.GRID, wrong)  # at a jump the larger rate counts
    np.testing.assert_allclose(roc[inside], np.interp(decisions.GRID, wrong, recall)[inside], atol=1e-12)
    at, reached, _ = precision_recall_curve(own, p)
    for share, value in zip(decisions.GRID, precision, strict=True):
        assert value == pytest.approx(at[np.flatnonzero(reached >= share - 1e-12)[-1 if share else -2]])


def test_the_bands_hold_the_curve_and_never_say_that_few_rows_are_certain():
    p, own = np.linspace(0, 1, 20), np.arange(20) >= 12  # separated without an error
    for curve, low, high in decisions._curves(p, own, np.random.default_rng(0)):
        assert (low <= curve).all()
        assert (curve <= high).all()
    (curve, low, _), _ = decisions._curves(p, own, np.random.default_rng(0))
    assert curve[10] == 1.0
    assert low[10] < 0.95


def test_counts_are_those_of_the_confusion_matrix(facts_of, three_classes):
    told = facts_of(three_classes)
    found = decisions._counts(told.judged, told.predicted, [0, 1, 2])
    for k, own in enumerate(found["classes"]):
        p, y = told.predicted.mean[:, k], told.judged.y == k
        for at in (0, 13, 50, 100):
            (tn, fp), (fn, tp) = confusion_matrix(y, p >= at / 100, labels=[False, True])
            assert (own["true"][at], own["false"][at]) == (tp, fp)
            assert own["positives"] == tp + fn
            assert found["rows"] - own["positives"] - own["false"][at] == tn
            assert own["sums"][at] == pytest.approx(p[p >= at / 100].sum(), abs=1e-3)


def test_a_probability_at_the_threshold_is_positive(facts_of, three_classes):
    told = facts_of(three_classes)
    p = np.full((len(told.judged), 3), 0.25)
    own = decisions._counts(told.judged, replace(told.predicted, mean=p), [0])["classes"][0]
    assert own["true"][25] + own["false"][25] == len(p)
    assert own["true"][26] + own["false"][26] == 0


@pytest.mark.parametrize("present", [[0], [0, 2]])
def test_a_class_without_rows_has_no_curve(facts_of, three_classes, present):
    told = facts_of(three_classes)
    y = np.array(present)[np.arange(len(told.judged)) % len(present)]
    said, *rest = decisions.decisions(replace(told.judged, y=y), told.predicted, 0)
    assert [len(block.figures) for block in rest[:-1]] == ([2] if len(present) > 1 else [])
    assert ("have no curve: b" if len(present) > 1 else "All rows here are of the class a") in said.paragraphs[0]
    assert [each["name"] for each in rest[-1].payload["classes"]] == [told.judged.classes[k] for k in present]


def _counts(page) -> dict[str, int]:
    return {cell: int(page.locator(f"#count-{cell}").text_content()) for cell in ("tp", "fp", "fn", "tn")}


@needs_a_browser
def test_the_threshold_moves_counts_utility_and_the_point_on_the_curves(visit, facts_of, additive_classes):
    page, told = visit("additive_classes").page, facts_of(additive_classes)
    p, own = told.predicted.mean[:, 1], told.judged.y == 1
    page.locator("#threshold").focus()
    before = page.locator("#threshold-worth").text_content()
    for _ in range(20):
        page.keyboard.press("ArrowLeft")
    assert page.locator("#threshold-value").text_content() == "30\u00a0%"
    found = _counts(page)
    assert found == {
        "tp": (own & (p >= 0.3)).sum(), "fp": (~own & (p >= 0.3)).sum(),
        "fn": (own & (p < 0.3)).sum(), "tn": (~own & (p < 0.3)).sum(),
    }  # fmt: skip
    assert page.locator("#threshold-worth").text_content() != before
    ring = page.evaluate("document.getElementById('chart-roc').data.find(t => t.name === 'chosen').y[0]")
    assert ring == pytest.approx(found["tp"] / (found["tp"] + found["fn"]))
    page.locator("#worth-fn").fill("-4")
    said = page.locator("#threshold-worth").text_content()
    utility = -(4 * found["fn"] + found["fp"]) / len(p)
    written = re.search(r"Utility: (−?\d+\.?\d*)", said)
    assert written is not None
    assert float(written[1].replace("−", "-")) == pytest.approx(utility, rel=0.006)
    expected = re.search(r"expect (−?\d+\.?\d*)", said)
    assert expected is not None
    risk = np.where(p >= 0.3, 1 - p, 4 * p).mean()
    assert float(expected[1].replace("−", "-")) == pytest.approx(-risk, rel=0.006)
    page.locator("#threshold-best").click()  # (tn − fp) / (tn − fp + tp − fn) = 1 / 5
    assert page.locator("#threshold").input_value() == "20"


@needs_a_browser
def test_one_class_of_several_is_held_against_the_others(visit, facts_of, three_classes):
    page, told = visit("three_classes").page, facts_of(three_classes)
    page.locator("#threshold-class").select_option("2")
    assert page.locator("#is-positive").text_content() == "is c"
    assert _counts(page)["tp"] == ((told.judged.y == 2) & (told.predicted.mean[:, 2] >= 0.5)).sum()


@needs_a_browser
def test_rows_are_found_by_words_bounds_and_outcome(visit, facts_of, additive_classes):
    page, told = visit("additive_classes").page, facts_of(additive_classes)
    data = json.loads(page.locator("#whatif-data").text_content())
    text, found = page.locator("#row-text"), page.locator("#row-count")
    ages = np.array([row[0] if row[0] is not None else np.nan for row in data["rows"]])
    text.fill("AGE > 50")
    assert found.text_content().startswith(f"{(ages > 50).sum()} of {len(ages)} rows")
    kind = data["columns"][2]["labels"].index("plain")
    plain = np.array([row[2] == kind for row in data["rows"]])
    text.fill("age > 50, kind = plain")
    assert found.text_content().startswith(f"{((ages > 50) & plain).sum()} of")
    text.fill("")
    page.locator("#row-filter").select_option("wrong")
    wrong = told.doubt.error[told.explanations.places] > 0
    assert found.text_content().startswith(f"{wrong.sum()} of")
    button = page.locator("#row-results button").first
    button.click()
    assert (
        page.locator("#explanation-heading").text_content() == f"{button.text_content().capitalize()} and its reasons"
    )
    page.locator("#row-filter").select_option("")
    assert page.locator("#row-results li").count() == 0


@needs_a_browser
def test_two_rows_are_compared(visit, facts_of, additive_numbers):
    page, told = visit("additive_numbers").page, facts_of(additive_numbers)
    page.locator("tr[data-place='0'] button").click()
    page.locator("#keep").click()
    page.locator("tr[data-place='2'] button").click()
    cells = page.locator("#comparison tr td.number").all_text_contents()
    values = [float(text.replace("−", "-").replace("+", "")) for text in cells]
    assert sum(values[:-1]) == pytest.approx(values[-1], abs=0.05 * max(map(abs, values)))
    total = told.explanations.total[:, 0]
    assert values[-1] == pytest.approx(total[2] - total[0], abs=0.02 * np.abs(total[:3]).max())
    page.locator("#keep").click()
    assert page.locator("#comparison table").count() == 0
