"""The unit of a regression's targets."""

import numpy as np
import pytest

from bayescope.errors import InputError
from bayescope.estimators import BayesianMLPRegressor, NeuralAdditiveRegressor

SOURCE = np.random.default_rng(0)
X = SOURCE.normal(size=(40, 2))


@pytest.mark.parametrize("make", [BayesianMLPRegressor, NeuralAdditiveRegressor])
@pytest.mark.parametrize("size", [1e155, -1e200, 1e308])
@pytest.mark.parametrize("one", [True, False])
def test_targets_whose_squares_leave_floating_point_are_refused_by_name(make, size, one):
    y = SOURCE.normal(size=40)
    y = np.where(np.arange(40) == 3, size, y) if one else y / np.abs(y).max() * size
    with pytest.raises(InputError, match=r"^y: expected numbers whose squares are floats, got one of 1e\+"):
        make().fit(X, y)
