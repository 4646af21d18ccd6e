"""Rows that judge."""

import numpy as np
import pytest

from bayescope.cli import held_out_rows
from bayescope.cli.target import Target
from bayescope.errors import InputError


def target(values):
    task = "classification" if isinstance(values[0], str) else "regression"
    return Target("y", np.array(values), task, "")


def test_classes_are_held_out_in_proportion_and_alike_at_every_call():
    y = target(["a"] * 80 + ["b"] * 20)
    split = held_out_rows(y, 0.25, 3)
    assert sorted([*split[0], *split[1]]) == list(range(100))
    assert (y.values[split[1]] == "b").sum() == 5
    again, other = held_out_rows(y, 0.25, 3), held_out_rows(y, 0.25, 4)
    assert split[1].tolist() == again[1].tolist() != other[1].tolist()


def test_nothing_is_held_out_for_0():
    split = held_out_rows(target([1.0, 2.0]), 0.0, 0)
    assert (split[0].tolist(), split[1].tolist()) == ([0, 1], [])


@pytest.mark.parametrize(
    ("values", "share", "message"),
    [
        ([1.0] * 10, -0.1, "from 0 to below 1"),
        ([1.0] * 10, 1.0, "from 0 to below 1"),
        ([1.0] * 10, 0.1, "at least 2 rows on either side, got 1 of 10"),
        (["a", "b", "c"] * 3, 0.2, "at least 3 rows on either side, got 2 of 9"),
        (["a"] * 20 + ["b"], 0.2, "at least 2 rows of each class, one to learn from and one to judge by, got 1 of b"),
    ],
)
def test_too_few_rows(values, share, message):
    with pytest.raises(InputError, match=message):
        held_out_rows(target(values), share, 0)
