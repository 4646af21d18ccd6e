from __future__ import annotations

import numpy as np
import pytest

from bayescope.errors import InputError
from bayescope.estimators.weights import row_weights


def test_weights_are_one_by_default_and_checked_otherwise():
    np.testing.assert_array_equal(row_weights(None, 3), np.ones(3))
    np.testing.assert_array_equal(row_weights([1, 0, 2], 3), [1.0, 0.0, 2.0])
    with pytest.raises(InputError, match=r"sample_weight: expected no negative weights, got -1 in row 1"):
        row_weights([1, -1, 2], 3)
    with pytest.raises(InputError, match=r"each of the 3 rows, got shape \(3, 1\)"):
        row_weights(np.ones((3, 1)), 3)
    with pytest.raises(InputError, match=r"at least one non-zero"):
        row_weights(np.zeros(3), 3)
