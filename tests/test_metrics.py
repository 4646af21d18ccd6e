"""Metrics against their definitions, scikit-learn and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from bayescope import metrics
from bayescope.errors import InputError, InputTypeError

RNG = np.random.default_rng(0)
THREE = RNG.dirichlet(np.ones(3), size=200)
LABELS = RNG.integers(3, size=200)
TWO = RNG.uniform(size=200)
BINARY = (RNG.uniform(size=200) < TWO).astype(int)


def test_nll_and_brier_equal_scikit_learn() -> None:
    assert metrics.nll(THREE, LABELS) == pytest.approx(log_loss(LABELS, THREE), rel=1e-12)
    assert metrics.nll(TWO, BINARY) == pytest.approx(log_loss(BINARY, TWO), rel=1e-12)
    assert metrics.brier(TWO, BINARY) == pytest.approx(brier_score_loss(BINARY, TWO), rel=1e-12)
    assert metrics.brier(THREE, LABELS) == pytest.approx(((THREE - np.eye(3)[LABELS]) ** 2).sum(1).mean(), rel=1e-12)


def test_two_columns_say_what_one_says() -> None:
    both = np.stack([1 - TWO, TWO], 1)
    for metric in (metrics.nll, metrics.brier, metrics.ece, metrics.auroc):
        assert metric(both, BINARY) == pytest.approx(metric(TWO, BINARY), rel=1e-12)


def test_tensors_of_either_precision_and_floats_out() -> None:
    for dtype in (torch.float32, torch.float64):
        got = metrics.nll(torch.tensor(THREE, dtype=dtype), torch.tensor(LABELS))
        assert type(got) is float
        assert got == pytest.approx(log_loss(LABELS, THREE), rel=1e-5)


def test_an_impossible_truth_costs_infinity() -> None:
    assert metrics.nll([[1.0, 0.0]], [1]) == math.inf
    assert metrics.nll([[1.0, 0.0]], [0]) == 0.0


def test_nll_of_gaussian_predictions() -> None:
    mean, variance, y = np.random.default_rng(1).normal(size=(3, 50, 2))
    variance = variance**2 + 0.1
    expected = -stats.norm(mean, np.sqrt(variance)).logpdf(y)
    assert metrics.nll(mean, variance, y) == pytest.approx(expected.sum(1).mean(), rel=1e-12)
    assert metrics.nll(mean[:, 0], variance[:, 0], y[:, 0]) == pytest.approx(expected[:, 0].mean(), rel=1e-12)


def test_ece_of_a_hand_made_table() -> None:
    # Confidences 0.6 and 0.62 share a bin of ten with one right; 0.95 and 1.0 share the last with both right.
    probs = [[0.6, 0.4], [0.38, 0.62], [0.95, 0.05], [0.0, 1.0]]
    y = [0, 0, 0, 1]
    first = metrics.reliability(probs, y, bins=10)
    assert first.count.tolist() == [0, 0, 0, 0, 0, 1, 1, 0, 0, 2]
    assert first.accuracy[[5, 6, 9]].tolist() == [1.0, 0.0, 1.0]
    assert first.confidence[[5, 6, 9]].tolist() == pytest.approx([0.6, 0.62, 0.975])
    assert np.isnan(first.accuracy[0])
    assert metrics.reliability([[0.5, 0.5]], [0], bins=4).count.tolist() == [0, 1, 0, 0]  # a bin holds its upper edge
    assert metrics.ece(probs, y, bins=10) == pytest.approx((0.4 + 0.62 + 2 * 0.025) / 4)


def test_the_bands_of_a_calibrated_prediction_hold_19_times_out_of_20() -> None:
    rng, inside, total = np.random.default_rng(1), 0, 0
    for _ in range(60):
        probs = rng.dirichlet(np.ones(3), size=600)
        y = (rng.uniform(size=(600, 1)) > probs.cumsum(1)).sum(1)
        diagram = metrics.reliability(probs, y, bins=10)
        filled = diagram.count > 0
        inside += int(((diagram.low <= diagram.accuracy) & (diagram.accuracy <= diagram.high))[filled].sum())
        total += int(filled.sum())
    assert 0.94 < inside / total < 0.99  # a binomial band holds at least its level


def test_auroc_equals_scikit_learn_and_counts_ties_half() -> None:
    assert metrics.auroc(TWO, BINARY) == pytest.approx(roc_auc_score(BINARY, TWO), rel=1e-12)
    expected = roc_auc_score(LABELS, THREE, multi_class="ovr", average="macro")
    assert metrics.auroc(THREE, LABELS) == pytest.approx(expected, rel=1e-12)
    assert metrics.auroc([0.5, 0.5, 0.9, 0.1], [0, 1, 1, 0]) == pytest.approx((0.5 + 1 + 1 + 1) / 4)


def test_ood_auroc_is_the_chance_that_the_outsider_scores_higher() -> None:
    source = np.random.default_rng(1)
    inside, outside = source.integers(5, size=40), source.integers(2, 8, size=30)
    above = (outside[:, None] > inside).mean() + 0.5 * (outside[:, None] == inside).mean()
    assert metrics.ood_auroc(inside, outside) == pytest.approx(above, rel=1e-12)
    assert metrics.ood_auroc([0.0, 1.0], [2.0]) == 1.0


def test_coverage_counts_closed_intervals() -> None:
    assert metrics.coverage([0.0, 0.0, 0.0, 2.0], [1.0, 1.0, 1.0, 3.0], [0.0, 1.0, 1.5, 2.5]) == 0.75


@pytest.mark.parametrize(("mean", "variance", "y"), [(0.0, 1.0, 0.0), (2.0, 0.25, -1.0), (-1.0, 9.0, 30.0)])
def test_crps_is_the_integral_over_the_distribution_function(mean: float, variance: float, y: float) -> None:
    normal = stats.norm(mean, math.sqrt(variance))
    below, _ = integrate.quad(lambda t: normal.cdf(t) ** 2, -np.inf, y, epsabs=1e-12)
    above, _ = integrate.quad(lambda t: normal.sf(t) ** 2, y, np.inf, epsabs=1e-12)
    assert metrics.crps([mean], [variance], [y]) == pytest.approx(below + above, rel=1e-8)


@pytest.mark.parametrize(
    ("probs", "y", "message"),
    [
        ([[0.5, 0.6]], [0], "probs: expected rows that sum to 1, got the sum 1.1 in row 0"),
        ([[0.5, 0.5], [1.5, -0.5]], [0, 1], r"probs: expected numbers between 0 and 1, got \[1.5, -0.5\] in row 1"),
        ([[1.0], [1.0]], [0, 0], "probs: expected shape"),
        (np.full((2, 3, 2), 0.5), np.zeros((2, 3)), r"got \(2, 3, 2\)\. .* -p\.log_prob\(y\)\.mean\(\)"),
        ([[0.9, 0.9]], [[1, 1]], r"the sum 1\.8 in row 0\. .* -p\.log_prob"),
        ([[0.5, 0.5]], [[1, 1]], r"got \(1, 2\)\. .* -p\.log_prob"),
        ([[0.5, 0.5]], [0, 1], r"y: expected class labels of shape \(1,\), got \(2,\)\.$"),
        ([[0.5, 0.5]], [2], "y: expected class labels 0…1, got 2 in row 0"),
        ([[0.5, 0.5]], [0.5], "y: expected class labels 0…1, got 0.5 in row 0"),
        ([[0.5, math.nan]], [0], "probs: expected finite numbers"),
        (np.zeros((0, 2)), [], "probs: expected shape"),
    ],
)
def test_predictions_that_are_none_are_refused(probs: object, y: object, message: str) -> None:
    for metric in (metrics.nll, metrics.brier, metrics.ece, metrics.auroc, metrics.reliability):
        with pytest.raises(InputError, match=message):
            metric(probs, y)


def test_other_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match="got none of class 1"):
        metrics.auroc([0.2, 0.4], [0, 0])
    with pytest.raises(InputError, match="variance: expected positive numbers, got 0"):
        metrics.crps([0.0], [0.0], [1.0])
    with pytest.raises(InputError, match=r"one shape .* mean \(1,\), variance \(2,\), y \(1,\)"):
        metrics.nll([0.0], [1.0, 1.0], [0.0])
    with pytest.raises(InputError, match="low: expected each at most its high"):
        metrics.coverage([1.0], [0.0], [0.5])
    with pytest.raises(InputError, match="score_out: expected shape"):
        metrics.ood_auroc([1.0], [])
    with pytest.raises(InputError, match="bins: expected a whole number"):
        metrics.ece([0.5], [1], bins=0)


def test_labels_that_are_text_are_told_where_their_numbers_come_from():
    with pytest.raises(InputTypeError, match=r"y: expected real numbers.*np\.searchsorted\(estimator\.classes_, y\)"):
        metrics.nll([[0.5, 0.5], [0.5, 0.5]], np.array(["late", "on time"], dtype=object))
