"""Attacks of the robustness benchmark whose quick run is a law in itself: nothing may come out wrong."""

import pytest

from bench.attacks import numbers


@pytest.mark.global_rng
def test_numbers_beyond_floating_point_are_refused_or_answered_right():
    outcomes = list(numbers.attacks(quick=True))
    assert {outcome.attack: outcome.said for outcome in outcomes if outcome.wrong} == {}
    assert sum(outcome.refused for outcome in outcomes) > 20
    assert sum(outcome.right for outcome in outcomes) > 20
