"""Calibration is judged against what chance does to a calibrated model; made-up truths are called as they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from bayescope import metrics
from bayescope.latent import DrawsLatent
from bayescope.likelihoods import NegativeBinomial, Poisson, Tweedie
from bayescope.predictive import Predictive
from bayescope.report import judged, statistics


def rows_of(y: np.ndarray, classes: tuple[str, ...]) -> judged.Judged:
    return judged.Judged(None, y, judged.RowNames.of(y), (), (), y, classes, "y")


def told_of(mean: np.ndarray, sd: np.ndarray, y: np.ndarray) -> judged.Predictions:
    """Gaussian predictions without an epistemic part."""
    ends = np.repeat(stats.norm.cdf(y, mean, sd)[:, None], 2, 1)
    interval = mean[:, None] + sd[:, None] * stats.norm.ppf([0.025, 0.975])
    zero = np.zeros((len(mean), 1))
    none = np.zeros(len(mean))
    return judged.Predictions(mean[:, None], zero, sd[:, None], none, ends, interval, none)


def classes_told(probs: np.ndarray) -> judged.Predictions:
    none = np.empty((len(probs), 0))
    zero = np.zeros(len(probs))
    return judged.Predictions(probs, np.zeros_like(probs), np.sqrt(probs * (1 - probs)), zero, none, none, zero)


@pytest.mark.parametrize(("sharpen", "over", "under"), [(1.0, False, False), (3.0, True, False), (0.3, False, True)])
def test_over_and_underconfidence_are_told_from_chance(sharpen, over, under):
    generator = np.random.default_rng(0)
    logits = generator.normal(size=800)
    y = (generator.random(800) < 1 / (1 + np.exp(-logits))).astype(int)
    p = 1 / (1 + np.exp(-sharpen * logits))
    measured = statistics.class_calibration(rows_of(y, ("0", "1")), classes_told(np.column_stack([1 - p, p])), 0)
    assert (measured.gap > measured.chance_high) == over
    assert (measured.gap < measured.chance_low) == under
    assert (measured.share < 0.05) == (over or under)
    assert measured.ece == pytest.approx(metrics.ece(p, y))
    assert measured.gap == pytest.approx(measured.confidence - measured.accuracy)


def test_what_chance_does_to_a_calibrated_model_is_what_simulations_show():
    generator = np.random.default_rng(1)
    p = generator.uniform(0.5, 1.0, size=120)
    probs = np.column_stack([1 - p, p])
    measured = statistics.class_calibration(rows_of(np.ones(120, dtype=int), ("0", "1")), classes_told(probs), 0)
    errors = [metrics.ece(probs, (generator.random(120) < p).astype(int)) for _ in range(600)]
    assert measured.expected == pytest.approx(np.mean(errors), abs=0.003)
    assert measured.limit == pytest.approx(np.quantile(errors, 0.95), abs=0.008)
    spread = 1.96 * np.sqrt((p * (1 - p)).sum()) / 120
    assert measured.chance_high == pytest.approx(spread, abs=0.012)
    assert measured.chance_low == pytest.approx(-spread, abs=0.012)


@pytest.mark.parametrize(("said", "shift"), [(1.0, 0.0), (0.6, 0.0), (1.7, 0.0), (1.0, 0.5)])
def test_coverage_spread_and_bias_of_numbers(said, shift):
    generator = np.random.default_rng(2)
    mean = generator.normal(size=600)
    y = mean + shift + generator.normal(size=600)
    told = told_of(mean, np.full(600, said), y)
    measured = statistics.number_calibration(rows_of(y, ()), told, 0)
    assert measured.levels.tolist() == pytest.approx([*np.arange(1, 10) / 10, 0.95])
    assert measured.coverage[-1] == pytest.approx(metrics.coverage(told.interval[:, 0], told.interval[:, 1], y))
    z = np.abs(y - mean) / said
    for level, share in zip(measured.levels, measured.coverage, strict=True):
        assert share == pytest.approx((z <= stats.norm.ppf(0.5 + level / 2)).mean())
    places = stats.norm.cdf((y - mean) / said)
    assert measured.pit.tolist() == np.histogram(places, np.linspace(0, 1, 11))[0].tolist()
    assert measured.spread == pytest.approx(np.sqrt(((y - mean) ** 2).mean()) / said)
    assert (measured.spread_low > 1) == (said < 1 or shift > 0)
    assert (measured.spread_high < 1) == (said > 1)
    assert (measured.bias_low > 0) == (shift > 0)
    assert measured.width == pytest.approx(2 * 1.959964 * said)


class Told:
    """An estimator whose predictions are known."""

    def __init__(self, f, likelihood):
        self.f, self.likelihood = f, likelihood

    def predict_distribution(self, rows):
        return Predictive(DrawsLatent(self.f[None, rows]), self.likelihood, arrays=True)


@pytest.mark.parametrize(
    ("truth", "said", "right"),
    [
        (Poisson(), Poisson(), True),
        (Tweedie(1.5, 2.0), Tweedie(1.5, 2.0), True),
        (NegativeBinomial(1.5), NegativeBinomial(1.5), True),
        (NegativeBinomial(1.5), Poisson(), False),
        (Tweedie(1.5, 4.0), Tweedie(1.5, 2.0), False),
    ],
)
def test_right_models_of_counts_and_of_amounts_with_zeros_lie_in_the_bands_and_others_do_not(truth, said, right):
    f = torch.randn(400, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 0.3 - 0.3
    y = truth.sample(f, torch.Generator().manual_seed(1))[:, 0].numpy()
    rows = replace(rows_of(y, ()), X=np.arange(400))
    measured = statistics.number_calibration(rows, judged.predictions(Told(f, said), rows, block=150), 0)
    assert measured.partly
    assert measured.pit.sum() == pytest.approx(400)
    covered = (measured.low <= measured.coverage) & (measured.coverage <= measured.high)
    filled = (measured.pit_low <= measured.pit) & (measured.pit <= measured.pit_high)
    assert (covered.all() and filled.all()) == right
    assert right or filled.sum() <= 8
