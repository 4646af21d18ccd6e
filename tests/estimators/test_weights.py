from __future__ import annotations

import numpy as np
import pytest
from sklearn.utils.class_weight import compute_sample_weight

import bayescope as bs
from bayescope.errors import InputError, InputTypeError, OptionError
from bayescope.estimators.labels import numbers
from bayescope.estimators.table_rows import RowBlock, TableRows, row_weights
from bayescope.estimators.targets import class_factors


def test_weights_are_one_by_default_and_checked_otherwise():
    np.testing.assert_array_equal(row_weights(None, 3), np.ones(3))
    np.testing.assert_array_equal(row_weights([1, 0, 2], 3), [1.0, 0.0, 2.0])
    with pytest.raises(InputError, match=r"sample_weight: expected no negative weights, got -1 in row 1"):
        row_weights([1, -1, 2], 3)
    with pytest.raises(InputError, match=r"each of the 3 rows, got shape \(3, 1\)"):
        row_weights(np.ones((3, 1)), 3)
    with pytest.raises(InputError, match=r"at least one non-zero"):
        row_weights(np.zeros(3), 3)


def held(X: np.ndarray, weights: list[float]) -> tuple[RowBlock, bool]:
    rows = TableRows.of(bs.BayesianLinearRegression(), X, np.arange(3), weights, target=numbers, numbers=True)
    assert rows.held is not None
    return rows.held, rows.weighted


def test_rows_that_count_once_have_no_weights():
    X = np.arange(6.0).reshape(3, 2)
    block, weighted = held(X, [1.0, 1.0, 1.0])
    assert block.features is X
    assert not weighted
    block, weighted = held(X, [2.0, 0.0, 1.0])
    np.testing.assert_array_equal(block.features, X[[0, 2]])
    assert block.target.tolist() == [0, 2]
    np.testing.assert_array_equal(block.weights, [2.0, 1.0])
    assert weighted
    assert not held(X, [1.0, 0.0, 1.0])[1]


@pytest.mark.parametrize("class_weight", [None, "balanced", {"b": 3.0}, {"a": 0.5, "c": 2}])
def test_class_factors_are_those_of_scikit_learn(class_weight: object):
    labels = np.array(["a", "b", "a", "c", "a"])
    codes = np.array([0, 1, 0, 2, 0])
    factors = class_factors(class_weight, ["a", "b", "c"], codes, None)
    np.testing.assert_allclose(factors[codes], compute_sample_weight(class_weight, labels))


def test_balanced_classes_weigh_rows_by_their_weights():
    codes, weights = np.array([0, 1, 0, 0]), np.array([2.0, 3.0, 1.0, 0.5])
    factors = class_factors("balanced", [False, True], codes, weights)
    each = np.bincount(codes, weights * factors[codes])
    np.testing.assert_allclose(each, weights.sum() / 2)


def test_class_weights_that_cannot_be_used():
    codes = np.array([0, 1])
    with pytest.raises(OptionError, match="class_weight: expected one of 'balanced', got 'balance'"):
        class_factors("balance", ["a", "b"], codes, None)
    with pytest.raises(OptionError, match="class_weight: expected one of 'a', 'b', got 'x'"):
        class_factors({"x": 1.0}, ["a", "b"], codes, None)
    with pytest.raises(InputTypeError, match="class_weight: expected None, 'balanced' or a dict"):
        class_factors([1.0, 2.0], ["a", "b"], codes, None)
    with pytest.raises(InputError, match="class_weight of 'a': expected a positive number, got 0"):
        class_factors({"a": 0}, ["a", "b"], codes, None)
