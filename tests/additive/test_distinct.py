"""Distinct points of rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bayescope.additive import TermFamily, distinct_points
from tests.additive.problems import FIRST, MIXED, PAIR, SECOND, labels, nets, table, valued


@pytest.mark.parametrize("family", [nets(FIRST, SECOND), nets(PAIR, MIXED), valued(), labels()])
def test_each_row_is_at_its_own_point_and_no_two_points_are_the_same(family: TermFamily) -> None:
    rows = table(40)[torch.arange(80) % 40]
    read = family.points(rows)
    for term, found in enumerate(distinct_points(read)):
        np.testing.assert_array_equal(found.inputs[found.place], read.inputs[term])
        np.testing.assert_array_equal(found.levels[found.place], read.levels[term])
        both = np.column_stack([found.inputs, found.levels])
        assert len(np.unique(both, axis=0)) == len(both) == found.place.max() + 1 <= 40
