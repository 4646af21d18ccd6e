"""Scalings against scikit-learn's and the laws of normal scores."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.preprocessing import QuantileTransformer, StandardScaler

from bayescope.tables import Quantiles, Standard

RNG = np.random.default_rng(0)
NUMBERS = st.lists(st.floats(-1e6, 1e6, allow_subnormal=False), min_size=1, max_size=60)
# 92 % zeros and a long tail, as capital gains have.
SPIKED = np.where(RNG.uniform(size=20_000) < 0.92, 0.0, np.exp(RNG.normal(8.0, 1.0, size=20_000)))


@given(NUMBERS)
def test_standard_is_scikit_learns(numbers: list[float]) -> None:
    x = np.array(numbers)
    expected = StandardScaler().fit(x[:, None])
    got = Standard.fit(x)
    assert got.mean == pytest.approx(expected.mean_[0], rel=1e-9, abs=1e-9)
    assert got.scale == pytest.approx(expected.scale_[0], rel=1e-6)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e9 + 0.1, -1e-300])
def test_a_constant_column_has_scale_one(value: float) -> None:
    x = np.full(1_000, value)
    assert Standard.fit(x).scale == 1.0
    np.testing.assert_allclose(Standard.fit(x).forward(x), 0.0, atol=1e-6)
    np.testing.assert_array_equal(Quantiles.fit(x).forward(x), 0.0)
    assert Quantiles.fit(x).forward(np.array([value + 2.0]))[0] == pytest.approx(2.0)


def test_numbers_far_from_zero_are_standardised_to_the_last_digits() -> None:
    x = 1e9 + np.arange(100.0)
    got = Standard.fit(x).forward(x)
    np.testing.assert_allclose(got, Standard.fit(np.arange(100.0)).forward(np.arange(100.0)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sizes", [50, 20_000])
@pytest.mark.parametrize("draw", ["normal", "lognormal", "uniform", "standard_cauchy"])
def test_scores_are_those_of_ranks(sizes: int, draw: str) -> None:
    x = getattr(np.random.default_rng(1), draw)(size=sizes)
    expected = stats.norm.ppf((stats.rankdata(x) - 0.5) / sizes)
    np.testing.assert_allclose(Quantiles.fit(x).forward(x), expected, atol=0.02)


def test_the_middle_agrees_with_scikit_learn() -> None:
    x = np.random.default_rng(1).lognormal(size=5_000)
    reference = QuantileTransformer(output_distribution="normal", n_quantiles=1000, subsample=None, random_state=0)
    expected = reference.fit_transform(x[:, None])[:, 0]
    inner = np.abs(expected) < 2.0
    np.testing.assert_allclose(Quantiles.fit(x).forward(x)[inner], expected[inner], atol=0.02)


@given(NUMBERS)
def test_scores_rise_strictly_and_order_is_kept(numbers: list[float]) -> None:
    x = np.array(numbers)
    scaling = Quantiles.fit(x)
    assert (np.diff(scaling.values) > 0).all()
    assert (np.diff(scaling.scores) > 0).all()
    assert min(scaling.slopes) > 0
    points = np.sort(np.concatenate([x, [x.min() - 1, x.max() + 1], (x[1:] + x[:-1]) / 2]))
    assert (np.diff(scaling.forward(points)) >= -1e-9).all()


@given(NUMBERS)
def test_a_mirrored_column_has_mirrored_scores(numbers: list[float]) -> None:
    x = np.array(numbers)
    points = np.concatenate([x, [x.min() - 3.0, x.max() + 5.0]])
    mirrored = Quantiles.fit(-x).forward(-points)
    np.testing.assert_allclose(Quantiles.fit(x).forward(points), -mirrored, rtol=1e-9, atol=1e-9)


def test_each_end_goes_on_with_its_own_slope() -> None:
    x = np.exp(stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000))
    scaling = Quantiles.fit(x)
    chord = (stats.norm.ppf(1 - 0.5 / 20_000) - stats.norm.ppf(0.95)) / (x.max() - np.quantile(x, 0.95))
    low, high, below, above = scaling.forward(np.array([x.min(), x.max(), x.min() - 1.0, x.max() + 1.0]))
    assert above - high == pytest.approx(chord, rel=0.02)  # the long tail, in which the score grows slowly
    assert low - below == pytest.approx(1 / x.std(), rel=1e-6)  # the crowded end, in which it would run away


def test_a_spike_keeps_its_own_score() -> None:
    scaling = Quantiles.fit(SPIKED)
    share = (SPIKED == 0).mean()
    assert scaling.values.size <= 1000
    assert scaling.forward(np.zeros(1))[0] == pytest.approx(stats.norm.ppf(share / 2), abs=1e-12)
    positive = SPIKED[SPIKED > 0]
    expected = stats.norm.ppf(share + (1 - share) * (stats.rankdata(positive) - 0.5) / positive.size)
    np.testing.assert_allclose(scaling.forward(positive), expected, atol=0.02)


def test_a_spike_in_the_middle_does_not_reach_its_neighbours() -> None:
    x = np.concatenate([np.random.default_rng(1).normal(size=50_000), np.zeros(50_000)])
    expected = stats.norm.ppf((stats.rankdata(x) - 0.5) / x.size)
    np.testing.assert_allclose(Quantiles.fit(x).forward(x), expected, atol=0.02)


def test_a_normal_column_goes_on_as_it_was_beyond_its_range() -> None:
    x = stats.norm.ppf((np.arange(10_000) + 0.5) / 10_000) * 3 + 5
    beyond = np.array([-20.0, 30.0, 80.0])
    np.testing.assert_allclose(Quantiles.fit(x).forward(beyond), (beyond - 5) / 3, rtol=0.02)


@pytest.mark.parametrize(
    "x",
    [
        SPIKED,
        -SPIKED,
        RNG.uniform(size=1_000),
        np.array([0.0, 1e-12, 1.0, 2.0, 3.0]),
        np.concatenate([RNG.normal(size=500) * 1e-9, RNG.lognormal(size=500)]),
    ],
)
def test_beyond_the_range_numbers_grow_no_faster_than_standardised_ones(x: np.ndarray) -> None:
    scaling, scale = Quantiles.fit(x), Standard.fit(x).scale
    low, high = scaling.forward(np.array([x.min(), x.max()]))
    below, above = scaling.forward(np.array([x.min() - 7.0, x.max() + 7.0]))
    assert low - 7.0 / scale - 1e-9 <= below < low
    assert high < above <= high + 7.0 / scale + 1e-9


def test_the_same_column_gives_the_same_scores_in_any_order() -> None:
    shuffled = np.random.default_rng(1).permutation(SPIKED)
    np.testing.assert_array_equal(Quantiles.fit(SPIKED).scores, Quantiles.fit(shuffled).scores)


@pytest.mark.parametrize("scaling", [Standard, Quantiles])
def test_no_numbers_leave_numbers_as_they_are(scaling: type[Standard] | type[Quantiles]) -> None:
    np.testing.assert_array_equal(scaling.fit(np.empty(0)).forward(np.array([3.0, np.nan])), [3.0, np.nan])


@pytest.mark.parametrize("scaling", [Standard, Quantiles])
def test_a_weight_is_so_many_numbers(scaling: type[Standard] | type[Quantiles]) -> None:
    source = np.random.default_rng(1)
    x, weights = source.normal(size=80).round(1), source.integers(1, 4, 80).astype(float)
    new = np.linspace(-4.0, 4.0, 33)
    repeated = scaling.fit(np.repeat(x, weights.astype(int))).forward(new)
    np.testing.assert_allclose(scaling.fit(x, weights).forward(new), repeated, rtol=1e-9)
    assert not np.allclose(scaling.fit(x).forward(new), repeated, rtol=1e-3)
