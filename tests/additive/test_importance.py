"""Importance is the mean absolute contribution over the data, under the posterior."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy.special import ndtr

import bayescope as bs
from bayescope import progress
from bayescope.additive import explain, importance
from bayescope.errors import InputError
from tests.additive.fitted import encoded, fitted, frame, weights


def folded(mean: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """E∣N(m, s²)∣ = s √(2/π) exp(−m²/2s²) + m (1 − 2Φ(−m/s))."""
    ratio = mean / np.maximum(sd, 1e-300)
    return sd * math.sqrt(2 / math.pi) * np.exp(-0.5 * ratio**2) + mean * (1 - 2 * ndtr(-ratio))


@pytest.mark.parametrize("kind", ["gaussian", "bernoulli", "categorical"])
@pytest.mark.parametrize("structure", ["block", "full"])
def test_means_are_those_of_folded_gaussians(kind, structure):
    additive = fitted(kind, structure)
    shown = importance(additive, draws=1000)
    rows = explain(additive, encoded(frame()))
    mass = weights().numpy() / float(weights().sum())
    exact = np.tensordot(mass, folded(rows.contributions, rows.sds), 1)
    error = shown.sd / math.sqrt(1000)
    assert (np.abs(shown.mean - exact) < 5 * error + 1e-12).all()
    np.testing.assert_allclose(shown.at_mean, np.tensordot(mass, np.abs(rows.contributions), 1), atol=1e-12)
    assert ((shown.low < shown.mean) & (shown.mean < shown.high)).all()
    assert shown.names == ("age", "dose", "kind", "age & dose")


def test_intervals_hold_the_share_of_draws_that_they_say():
    wide, narrow = (importance(fitted(), level=level) for level in (0.95, 0.5))
    assert (wide.low < narrow.low).all()
    assert (narrow.high < wide.high).all()
    z = (wide.high - wide.low) / wide.sd
    assert (np.abs(z / 3.92 - 1) < 0.2).all(), "close to Gaussian"


def test_a_point_has_one_importance():
    shown = importance(fitted(posterior="map"))
    assert not shown.sd.any()
    np.testing.assert_allclose(shown.mean, shown.at_mean, atol=1e-12)
    np.testing.assert_allclose(shown.low, shown.at_mean, atol=1e-12)
    np.testing.assert_allclose(shown.at_mean, importance(fitted()).at_mean, atol=1e-12)


def test_order_and_frame_begin_with_the_most_important():
    shown = importance(fitted())
    told = shown.as_frame()
    assert told["mean"].is_monotonic_decreasing
    assert told["term"].tolist() == [shown.names[place] for place in shown.order]
    assert list(told.columns) == ["term", "mean", "sd", "low", "high", "at_mean"]
    many = importance(fitted("categorical"))
    told = many.as_frame()
    assert len(told) == 4 * 3
    assert told["mean"].max() == told["mean"][:3].max()
    assert told["output"].tolist() == [0, 1, 2] * 4
    known = dataclasses.replace(many, outputs=("low", "middle", "high")).as_frame()
    assert known["output"].tolist() == ["low", "middle", "high"] * 4


def test_seeds_are_repeated_and_told_apart():
    first, again, other = (
        importance(fitted(), draws=50, generator=seed) for seed in (0, torch.Generator().manual_seed(0), 1)
    )
    np.testing.assert_array_equal(first.mean, again.mean)
    assert (first.mean != other.mean).any()


@pytest.mark.parametrize(("option", "value"), [("level", 1.0), ("draws", 0), ("draws", 2.5)])
def test_options_are_checked(option, value):
    with pytest.raises(InputError, match=option):
        importance(fitted(), **{option: value})


def test_each_phase_of_a_fit_and_of_its_importance_is_heard() -> None:
    X = np.random.default_rng(0).standard_normal((40, 4))
    heard: list[str] = []
    with progress.listening(lambda done, steps, name: heard.append(name)):
        model = bs.NeuralAdditiveRegressor(hidden=4, epochs=8, random_state=0).fit(X[:, :3], X[:, 0] + X[:, 3])
        model.importance()
    for phase in ("encoding x2", "preparing 3 features", "computing the mode", "computing the importance of x2"):
        assert phase in heard
