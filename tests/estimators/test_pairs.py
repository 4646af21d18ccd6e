from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import bayescope as bs
from bayescope.errors import InputError, OptionError

SOURCE = np.random.default_rng(0)
X = pd.DataFrame({"age": SOURCE.normal(size=30), "dose": SOURCE.normal(size=30), "city": ["a", "b", "c"] * 10})
Y = X["age"] * X["dose"] + SOURCE.normal(size=30)


def fitted(interactions: object) -> bs.NeuralAdditiveRegressor:
    model = bs.NeuralAdditiveRegressor(interactions=interactions, hidden=2, pair_hidden=2, epochs=2, burn_in=1)
    return model.set_params(random_state=0).fit(X, Y)


@pytest.mark.parametrize(
    "given", [[("city", "age"), ("age", "dose")], [(2, 0), ("age", 1)], np.array([[2, 0], [0, 1]])], ids=str
)
def test_names_and_positions_are_the_same_pairs(given):
    assert fitted(given).pairs_ == [("age", "city"), ("age", "dose")]


def test_a_number_of_pairs_may_be_numpys():
    assert len(fitted(np.int64(2)).pairs_) == 2


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ([("age", "town")], OptionError, r"interactions: expected one of 'age', 'dose', 'city', got 'town'"),
        ([("age", "Dose")], OptionError, r"Did you mean 'dose'\?"),
        ([("age", "age")], InputError, r"two different features in a pair, got 'age' twice"),
        ([("age", "dose"), (1, 0)], InputError, r"each pair once, got 'age' and 'dose' twice"),
        (["age"], InputError, r"pairs of names such as \('a', 'b'\), got 'age'"),
        ([("age", "dose", "city")], InputError, r"expected pairs of names"),
        ([(0, 3)], InputError, r"a position from 0 to 2, got 3"),
        ([(0, -1)], InputError, r"at least 0, got -1"),
        ("all", OptionError, r"a number of pairs, pairs or 'auto', got 'all'"),
        (1.5, InputError, r"interactions"),
    ],
)
def test_what_is_no_pair_of_the_table_is_refused(value, error, message):
    with pytest.raises(error, match=message):
        fitted(value)
