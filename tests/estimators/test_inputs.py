from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

from bayescope import BayesianLinearRegression, BayesianLogisticRegression
from bayescope.errors import InputError
from bayescope.estimators import MappedRows, TableRows


def table() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((50, 3)) * [1.0, 10.0, 100.0] + 5.0


def fit(X: np.ndarray, *, scaling: str | None = None, features: object = None) -> tuple[Any, np.ndarray]:
    model = BayesianLinearRegression()
    source = TableRows.of(model, X, np.zeros(len(X)), None, target=lambda y, _: np.asarray(y), numbers=True)
    mapped = MappedRows.fit(source, scaling=scaling, encoding="one_hot", features=features, random_state=0)
    return mapped.inputs, mapped.values


def test_a_table_that_needs_nothing_is_not_copied():
    X = table()
    inputs, mapped = fit(X)
    assert mapped is X
    assert inputs(X) is X
    assert inputs.notes()["inputs"] == "as given"


def test_standardised_inputs_come_first_and_features_second():
    X = table()
    inputs, mapped = fit(X, scaling="standard", features=FunctionTransformer(np.square))
    z = (X - X.mean(0)) / X.std(0)
    np.testing.assert_allclose(mapped, z**2, atol=1e-12)
    np.testing.assert_allclose(inputs(X[:3]), mapped[:3], atol=1e-12)
    assert "mapped by FunctionTransformer" in inputs.notes()["inputs"]


def test_a_wide_span_of_scales_is_remarked():
    assert "span" in fit(table())[0].notes()["scales"]
    assert "scales" not in fit(table(), scaling="standard")[0].notes()
    constant = np.column_stack([table()[:, 0], np.ones(50)])
    assert "scales" not in fit(constant)[0].notes()
    assert fit(np.ones((4, 2)))[0].scales == (0.0, 0.0)


def test_sparse_features_become_dense():
    X = np.array([[0.0], [1.0], [2.0], [1.0]])
    inputs, mapped = fit(X, features=OneHotEncoder())
    assert isinstance(mapped, np.ndarray)
    np.testing.assert_array_equal(mapped, np.eye(3)[[0, 1, 2, 1]])
    assert inputs.names == ("x0_0.0", "x0_1.0", "x0_2.0")
    assert not scipy.sparse.issparse(inputs(X))


def test_features_have_to_be_a_table():
    with pytest.raises(InputError, match="shape"):
        fit(table(), features=FunctionTransformer(lambda X: X[:, 0]))


@pytest.mark.parametrize("estimator", [BayesianLogisticRegression, BayesianLinearRegression])
@pytest.mark.parametrize("given", [{}, {"prior_precision": 1.0}])
def test_numbers_too_large_to_be_squared_are_refused_without_standardising(estimator, given):
    X = np.random.default_rng(0).normal(size=(40, 3))
    y = (X[:, 0] > 0).astype(int)
    for size in (1e152, 1e200, 1e307):
        with pytest.raises(InputError, match="column 'x0': expected numbers whose squares are floats"):
            estimator(standardize=False, **given).fit(X * size, y)
    X[:2, 1], X[2, 1] = 1.2e308, np.nan  # the column's mean is no float
    with pytest.raises(InputError, match=r"column 'x1': .* got one of 1\.2e\+308 in size"):
        estimator(standardize=False, **given).fit(X, y)
