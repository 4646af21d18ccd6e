"""Headline figures equal the library's metrics; their intervals what slow resampling, or a formula, says."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import bayescope as bs
from bayescope import metrics
from bayescope.report import judged as rows
from bayescope.report import statistics

# The log probabilities of three classes and more are integrals of their own.
TOLERANCE = 3e-4


@pytest.mark.parametrize("name", ["logistic", "three_classes", "additive_classes"])
def test_scores_of_classes_are_the_metrics(name, request):
    case = request.getfixturevalue(name)
    judged = case.judged()
    told = rows.predictions(case.estimator, judged)
    scores = {score.name: score for score in statistics.class_scores(judged, told, 0)}
    probs = case.estimator.predict_proba(case.X)
    assert scores["accuracy"].value == pytest.approx((case.estimator.predict(case.X) == case.y).mean())
    for metric in ("nll", "brier", "ece", "auroc"):
        assert scores[metric].value == pytest.approx(
            getattr(metrics, metric)(probs, judged.y), rel=3e-4
        )  # each class is integrated apart
    assert all(score.low <= score.value <= score.high for score in scores.values())
    assert scores["nll"].baseline > scores["nll"].value


def test_rows_of_one_class_have_no_baseline(three_classes):
    """A model without features that knows these rows' class would be right in all of them."""
    judged = three_classes.judged()
    told = rows.predictions(three_classes.estimator, judged)
    scores = statistics.class_scores(replace(judged, y=np.zeros_like(judged.y)), told, 0)
    assert "auroc" not in [score.name for score in scores]
    assert all(math.isnan(score.baseline) for score in scores)


def test_the_crps_of_counts_is_that_of_counts():
    source = np.random.default_rng(0)
    X = pd.DataFrame({"x": source.normal(size=60)})
    y = source.poisson(np.exp(0.5 * X["x"]))
    model = bs.BayesianGeneralizedLinearModel(likelihood="poisson").fit(X, y)
    judged = rows.Judged.of(model, X, y, 0)
    scores = {each.name: each for each in statistics.number_scores(judged, rows.predictions(model, judged), 0)}
    assert scores["crps"].value == pytest.approx(model.predict_distribution(X).crps(y).mean(), rel=1e-9)
    mean, sd = model.predict(X, return_std=True)
    assert scores["crps"].value < 0.97 * metrics.crps(mean, sd**2, y)  # of a Gaussian


@pytest.mark.parametrize("name", ["linear", "additive_numbers"])
def test_scores_of_numbers_are_the_metrics(name, request):
    case = request.getfixturevalue(name)
    told = rows.predictions(case.estimator, case.judged())
    scores = {score.name: score for score in statistics.number_scores(case.judged(), told, 0)}
    mean, sd = case.estimator.predict(case.X, return_std=True)
    y = np.asarray(case.y)
    assert scores["rmse"].value == pytest.approx(math.sqrt(((mean - y) ** 2).mean()))
    assert scores["crps"].value == pytest.approx(metrics.crps(mean, sd**2, y))
    assert scores["nll"].value == pytest.approx(metrics.nll(mean, sd**2, y))
    assert scores["coverage"].value == pytest.approx(metrics.coverage(mean - 1.96 * sd, mean + 1.96 * sd, y), abs=0.03)
    assert scores["rmse"].baseline == pytest.approx(y.std())
    assert scores["nll"].baseline == pytest.approx(metrics.nll(np.full(len(y), y.mean()), np.full(len(y), y.var()), y))


def test_the_bootstrap_resamples_rows():
    values = np.random.default_rng(0).exponential(size=80)
    ours = statistics.central(statistics.bootstrap(lambda weights: (weights @ values / 80)[:, None], 80, 0))[:, 0]
    known = stats.bootstrap((values,), np.mean, method="percentile", rng=np.random.default_rng(1)).confidence_interval
    assert ours == pytest.approx([known.low, known.high], abs=0.03)
    weights = statistics.bootstrap(lambda weights: weights, 80, 0)
    assert (weights.sum(1) == 80).all()
    assert weights.var() == pytest.approx(79 / 80, rel=0.02)


def test_one_seed_gives_one_bootstrap_and_leaves_others_alone():
    draws = [statistics.bootstrap(lambda weights: weights[:, :3], 30, seed) for seed in (0, 0, 1)]
    assert np.array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])


def test_weighted_statistics_are_those_of_repeated_rows():
    generator = np.random.default_rng(0)
    probs = np.round(generator.dirichlet([1, 1], size=60), 1)  # with ties
    y = generator.integers(2, size=60)
    weights = generator.integers(0, 4, size=(2, 60)).astype(float)
    weights[1] *= 60 / weights[1].sum()
    again = np.repeat(np.arange(60), weights[0].astype(int))
    gaps = statistics.gap_in_bins(probs, y)(weights)[0, 0]
    assert gaps == pytest.approx(metrics.ece(probs[again], y[again]) * len(again) / 60)
    whole = np.ones((1, 60))
    assert statistics.gap_in_bins(probs, y)(whole)[0, 0] == pytest.approx(metrics.ece(probs, y))


def test_rows_of_scores_average_to_the_metrics():
    generator = np.random.default_rng(0)
    for classes in (2, 4):
        probs, y = generator.dirichlet(np.ones(classes), size=50), generator.integers(classes, size=50)
        assert statistics.brier_rows(probs, y).mean() == pytest.approx(metrics.brier(probs, y))
    mean, sd, y = generator.normal(size=50), generator.exponential(size=50), generator.normal(size=50)
    assert statistics.crps_rows(mean, sd, y).mean() == pytest.approx(metrics.crps(mean, sd**2, y))


def test_bins_of_a_calibration_error_are_one_thing():
    """At the edges of the bins too, where rounding would decide otherwise."""
    confidence = np.concatenate([np.arange(8, 16) / 15, np.linspace(0.5, 1.0, 400)])
    y = np.random.default_rng(0).integers(2, size=len(confidence))
    probs = np.column_stack([1 - confidence, confidence])
    diagram = metrics.reliability(probs, y)
    assert metrics.ece(probs, y) == statistics.gap_in_bins(probs, y)(np.ones((1, len(y))))[0, 0]
    assert np.bincount(metrics.bin_of(confidence), minlength=metrics.BINS).tolist() == diagram.count.tolist()
    inside = (diagram.edges[metrics.bin_of(confidence)] < confidence) & (
        confidence <= diagram.edges[metrics.bin_of(confidence) + 1]
    )
    assert inside.all()


@pytest.mark.parametrize(("ones", "rows"), [(24, 54), (5, 12), (300, 1000)])
def test_an_area_of_1_has_an_interval(ones, rows):
    """As Newcombe's equation has it, and as is the mirror image of an area of 0."""
    positive = np.arange(rows) < ones
    low, high = statistics.newcombe(1.0, positive)
    assert high == 1.0
    assert 0.5 < low < 1.0
    assert statistics.newcombe(0.0, positive) == pytest.approx((0.0, 1.0 - low))
    spread = low * (1 - low) * (1 + (rows / 2 - 1) * ((1 - low) / (2 - low) + low / (1 + low)))
    assert (1.0 - low) ** 2 == pytest.approx(1.959964**2 * spread / (ones * (rows - ones)), rel=1e-5)


@pytest.mark.parametrize("shift", [0.5, 1.5, 2.5])
def test_intervals_of_an_area_hold_it(shift):
    """In about 95 of 100 samples of 54 rows, however near to 1 the area is."""
    generator = np.random.default_rng(0)
    truth, positive = stats.norm.cdf(shift / np.sqrt(2)), np.arange(54) < 24
    held = []
    for _ in range(400):
        score = generator.normal(size=54) + shift * positive
        area = (score[positive][:, None] > score[~positive]).mean()
        low, high = statistics.newcombe(float(area), positive)
        held.append(low <= truth <= high)
    assert 0.92 <= np.mean(held) <= 0.99


@pytest.mark.parametrize(("right", "rows"), [(0, 20), (20, 20), (7, 20), (812, 900)])
def test_interval_of_a_share_is_wilsons(right, rows):
    known = stats.binomtest(right, rows).proportion_ci(method="wilson")
    assert statistics.wilson(right / rows, rows) == pytest.approx((known.low, known.high))
