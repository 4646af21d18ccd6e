"""Values as the points that a model reads: each value's point, how often it is there, and groups of like size."""

from __future__ import annotations

import numpy as np
import pytest

from bayescope.tables import (
    CategoricalEncoding,
    Column,
    ColumnMoments,
    LabelCoder,
    NumberCoder,
    NumericEncoding,
    Tally,
    numeric_encoding,
)


def column(values: np.ndarray) -> Column:
    return Column("x", "numeric", values)


@pytest.mark.parametrize("gaps", [0.0, 0.2])
def test_few_numbers_are_each_a_point(gaps):
    rng = np.random.default_rng(0)
    x, weights = rng.integers(0, 9, 200).astype(float), rng.integers(1, 4, 200).astype(float)
    x[rng.random(200) < gaps] = np.nan
    encoding = NumericEncoding.fit(column(x), "quantile", weights)
    coder = NumberCoder(encoding, x[~np.isnan(x)], True, 16)
    parts = zip(np.split(x, 4), np.split(weights, 4), strict=True)
    codes = np.concatenate([coder.codes(column(part), own) for part, own in parts])
    points = coder.coded(coder.sums())
    assert not points.grouped
    numbers, levels = encoding.encode(x)
    assert np.array_equal(points.numbers[codes], numbers)
    assert np.array_equal(points.levels[codes], levels)
    assert np.array_equal(points.weights, np.bincount(codes, weights))
    assert np.array_equal(points.encoding.counts, encoding.counts)


def test_many_numbers_are_in_groups_of_like_size_and_told_by_their_means():
    x = np.random.default_rng(0).normal(size=1000)
    encoding = NumericEncoding.fit(column(x))
    coder = NumberCoder(encoding, x, True, 10)
    codes = coder.codes(column(x), np.ones(1000))
    points = coder.coded(coder.sums())
    assert points.grouped
    assert np.bincount(codes).tolist() == [100] * 10
    assert np.all(np.diff(points.numbers) > 0)
    assert points.numbers[3] == pytest.approx(encoding.forward(x)[codes == 3].mean(), rel=1e-12)
    # Numbers that a sample does not have belong to the groups around them.
    sampled = NumberCoder(encoding, np.sort(x)[400:600], False, 10)
    assert sampled.codes(column(np.array([x.min(), x.max()])), np.ones(2)).tolist() == [0, 9]


def test_a_column_that_the_sample_has_no_number_of_has_points_all_the_same():
    x, tally = np.append(np.arange(2000.0), np.full(50, np.nan)), Tally()
    tally.add(x, np.ones(2050))
    moments = ColumnMoments.of(x[:, None], np.ones(2050))
    for transform in ("standard", "quantile"):
        known = tally.known(np.empty((0, 2)), moments, 0)
        coder = NumberCoder(numeric_encoding("x", transform, moments, 0, known), known[0], False, 16)
        codes = coder.codes(column(np.array([0.0, np.nan, 1999.0])), np.ones(3))
        points = coder.coded(coder.sums())
        assert codes.tolist() == [0, 2, 1]
        assert points.levels.tolist() == [-1, -1, 0]
        assert points.numbers[0] < 0.0 < points.numbers[1]


def test_a_column_without_a_number_is_one_point():
    x = np.full(5, np.nan)
    coder = NumberCoder(NumericEncoding.fit(column(x)), np.empty(0), True, 10)
    assert coder.codes(column(x), np.ones(5)).tolist() == [0] * 5
    points = coder.coded(coder.sums())
    assert points.levels.tolist() == [0]
    assert points.weights.tolist() == [5.0]


def test_labels_are_the_levels_that_occur():
    values = np.array(["b", None, "a", "b"], dtype=object)
    labels = Column("k", "categorical", values, categories=("a", "never", "b"))
    encoding = CategoricalEncoding.fit(labels)
    coder = LabelCoder(encoding)
    codes = coder.codes(labels, np.array([1.0, 2.0, 3.0, 4.0]))
    points = coder.coded(coder.sums())
    assert points.levels[codes].tolist() == encoding.encode(values)[1].tolist()
    assert points.levels.tolist() == [0, 2, 3]
    assert points.weights.tolist() == [3.0, 5.0, 2.0]
