from __future__ import annotations

import numpy as np
import pytest

from bayescope.errors import InputError, OptionError
from bayescope.estimators.additive_reading import feature_pairs

NAMES = ("age", "dose", "city")


def test_names_and_positions_are_the_same_pairs():
    expected = [(0, 2), (0, 1)]
    assert feature_pairs([("city", "age"), ("age", "dose")], NAMES) == expected
    assert feature_pairs([(2, 0), ("age", 1)], NAMES) == expected
    assert feature_pairs(np.array([[2, 0], [0, 1]]), NAMES) == expected


def test_a_number_of_pairs_may_be_numpys():
    assert type(feature_pairs(np.int64(3), NAMES)) is int


@pytest.mark.parametrize("value", [0, 5, "auto", 1.5, None])
def test_what_is_no_list_is_left_for_the_options_to_check(value):
    assert feature_pairs(value, NAMES) == value


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ([("age", "town")], OptionError, r"interactions: expected one of 'age', 'dose', 'city', got 'town'"),
        ([("age", "Dose")], OptionError, r"Did you mean 'dose'\?"),
        ([("age", "age")], InputError, r"two different features in a pair, got 'age' twice"),
        ([("age", "dose"), (1, 0)], InputError, r"each pair once, got 'age' and 'dose' twice"),
        (["age"], InputError, r"pairs of names such as \('a', 'b'\), got 'age'"),
        ([("age", "dose", "city")], InputError, r"expected pairs of names"),
        ([(0, 3)], InputError, r"positions 0…2 or names, got 3"),
        ([(0, -1)], InputError, r"at least 0, got -1"),
    ],
)
def test_what_is_no_pair_of_the_table_is_refused(value, error, message):
    with pytest.raises(error, match=message):
        feature_pairs(value, NAMES)
