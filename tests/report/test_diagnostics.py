"""Diagnostics of sampled posteriors in the report, against ArviZ and the posterior's own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bayescope.report.blocks import Figures, Paragraphs, Table
from bayescope.report.diagnostics import _ranks, diagnostics, diagnostics_blocks
from tests.browser import needs_a_browser

pytestmark = pytest.mark.filterwarnings("ignore::bayescope.errors.BayescopeWarning")


def test_figures_are_arvizs(sampled):
    arviz = pytest.importorskip("arviz", reason="pip install 'bayescope[nuts]' brings ArviZ")
    found = diagnostics(sampled.estimator)
    assert found.draws.shape == (3, 230, len(found.names))
    assert "a: width" in found.names
    for k in (0, 5, len(found.names) - 1):
        assert found.r_hat[k] == pytest.approx(float(arviz.rhat(found.draws[..., k])))
        assert found.bulk[k] == pytest.approx(float(arviz.ess(found.draws[..., k], method="bulk")))
        assert found.tail[k] == pytest.approx(float(arviz.ess(found.draws[..., k], method="tail")))
    place = found.names.index("b: height")
    drawn = sampled.estimator.to_arviz()["posterior"]["weights"].sel({"class": "b", "feature": "height"})
    np.testing.assert_array_equal(found.draws[..., place], drawn.values)


def test_the_verdict_follows_the_limits_and_the_worst_come_first(sampled):
    found = diagnostics(sampled.estimator)
    said, _, figures, numbers = diagnostics_blocks(found)
    assert isinstance(said, Paragraphs)
    assert said.look == "caution"
    assert f"{found.unsettled.sum()} weights of {len(found.names)} have not settled" in said.paragraphs[0]
    assert isinstance(figures, Figures)
    assert len(figures.figures) == 6
    assert isinstance(numbers, Table)
    assert {row[0].text for row in numbers.rows} == set(found.names)
    worst = found.order[0]
    assert found.unsettled[worst]
    many = np.full(len(found.names), 900.0)
    good = replace(found, r_hat=1.0 + 0.0 * many, bulk=many, tail=many)
    assert diagnostics_blocks(good)[0].look == "good"
    assert diagnostics_blocks(replace(good, divergences=2))[0].look == "caution"


def test_ranks_are_even_where_chains_are_alike_and_not_where_one_is_apart(sampled):
    found = diagnostics(sampled.estimator)
    generator = np.random.default_rng(0)
    alike, apart = generator.normal(size=(2, 3, 400, 1))
    apart[2] += 3.0
    spread = []
    for draws in (alike, apart):
        figure = _ranks(replace(found, draws=draws), 0, 0)
        counts = np.array([[int(cell.text) for cell in row[1:]] for row in figure.table.rows])
        assert counts.sum(0).tolist() == [400, 400, 400]
        assert counts.sum(1).tolist() == [60] * 20
        spread.append(counts.std())
    assert spread[1] > 3 * spread[0]


def test_other_posteriors_have_none(logistic):
    assert diagnostics(logistic.estimator) is None


@needs_a_browser
def test_the_page_has_traces_and_ranks_and_says_why_there_is_no_what_if(visit):
    told = visit("sampled")
    assert told.complaints == []
    assert told.page.locator("#diagnostics .chart .main-svg").count() >= 6
    assert told.page.locator("#diagnostics .key").first.is_visible()
    assert "draws of the weights" in told.page.locator("#whatif").inner_text()
    assert told.page.locator(".whatif").count() == 0
    told.page.locator("#row-text").fill("width > 1")
    assert " of " in told.page.locator("#row-count").text_content()
