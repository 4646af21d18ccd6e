"""An estimator whose tables are read and encoded here passes scikit-learn's own checks of its input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import check_is_fitted, check_X_y, validate_data

from bayescope.tables import TableEncoding, read_table


class Reader(RegressorMixin, BaseEstimator):
    """Least squares on the encoded numbers: as little as a regressor can be around our reading."""

    def __init__(self, categorical: Any = None) -> None:
        self.categorical = categorical

    def fit(self, X: Any, y: Any) -> Reader:
        columns = read_table(X, categorical=self.categorical)
        validate_data(self, X, skip_check_array=True)
        self.encoding_ = TableEncoding.fit(columns)
        numbers = self.encoding_.encode(columns).values
        _, y = check_X_y(numbers, y, y_numeric=True, estimator=self)
        self.weights_ = np.linalg.lstsq(np.column_stack([numbers, np.ones(len(y))]), y)[0]
        return self

    def predict(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        columns = read_table(X, categorical=self.categorical, names=self.encoding_.names)
        validate_data(self, X, skip_check_array=True, reset=False)
        numbers = self.encoding_.encode(columns).values
        return numbers @ self.weights_[:-1] + self.weights_[-1]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


@pytest.mark.global_rng  # some of the checks draw from NumPy's own generator
@parametrize_with_checks([Reader()])
def test_check_estimator(estimator: Any, check: Any) -> None:
    check(estimator)


def test_an_estimator_fitted_to_a_frame_reads_arrays_by_position() -> None:
    frame = pd.DataFrame({"age": [20.0, 30.0, np.nan, 50.0], "weight": [60.0, 70.0, 80.0, 55.0]})
    reader = Reader().fit(frame, [1.0, 2.0, 3.0, 4.0])
    with pytest.warns(UserWarning, match="feature names"):
        by_position = reader.predict(frame.to_numpy())
    np.testing.assert_array_equal(by_position, reader.predict(frame))
