"""Distinct points of rows."""

from __future__ import annotations

import pytest
import torch

from bayescope.additive import Distinct, TermFamily
from tests.additive.problems import FIRST, MIXED, PAIR, SECOND, labels, nets, table, valued


@pytest.mark.parametrize("family", [nets(FIRST, SECOND), nets(PAIR, MIXED), valued(), labels()])
def test_each_row_is_at_its_own_point_and_no_two_points_are_the_same(family: TermFamily) -> None:
    rows = table(40)[torch.arange(80) % 40]
    read = family.points(rows)
    found = Distinct.of(read)
    for term, (place, count) in enumerate(zip(found.place, found.counts, strict=True)):
        assert torch.equal(found.points.inputs[term, place], read.inputs[term])
        assert torch.equal(found.points.levels[term, place], read.levels[term])
        both = torch.cat([found.points.inputs[term], found.points.levels[term, :, None]], 1)[:count]
        assert len(both.unique(dim=0)) == count == int(place.max()) + 1 <= 40
