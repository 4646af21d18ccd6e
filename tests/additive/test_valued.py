"""Nets with effects of single values."""

from __future__ import annotations

import pytest
import torch

from bayescope.additive import EncodedRows, HiddenNets, Points, has_values, values_of
from tests.additive.problems import FIRST, SECOND, normal, table, valued, without_values


def at(*numbers: float) -> Points:
    inputs = torch.tensor(numbers, dtype=torch.float64)[None, :, None]
    return Points(inputs, torch.full(inputs.shape[:2], -1))


def test_a_value_moves_by_itself() -> None:
    family = valued(hidden=8)
    theta = torch.zeros(1, family.weights, dtype=torch.float64)
    seen = family.seen[0]
    theta[0, without_values(family).weights + 1] = 0.5
    effects = family.values(theta, at(*seen.tolist()))[0, :, 0]
    assert effects.nonzero().flatten().tolist() == [1]
    assert float(effects[1]) == pytest.approx(0.5 * 2.0)
    assert not family.values(theta, at(float(seen[1]) + 1e-9)).any()


def test_values_that_were_not_seen_share_one_effect() -> None:
    family = valued()
    theta = normal(1, family.weights)
    own = family.values(theta, at(-50.0, 0.2501, 77.0))
    net = without_values(family).values(theta[:, : without_values(family).weights], at(-50.0, 0.2501, 77.0))
    torch.testing.assert_close(own - net, family.scale * theta[0, -1].expand_as(own))


def test_a_missing_value_has_no_effect_of_a_value() -> None:
    family = valued()
    theta = normal(1, family.weights)
    gone = Points(torch.zeros(1, 1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.int64))
    torch.testing.assert_close(
        family.values(theta, gone),
        without_values(family).values(theta[:, : without_values(family).weights], gone),
        rtol=0.0,
        atol=0.0,
    )
    assert not family.jacobian(theta, gone).dense()[..., without_values(family).weights :].any()


def test_values_are_the_different_numbers_of_a_column() -> None:
    rows = table(50)
    present = rows.levels[:, 1] == -1
    assert values_of(SECOND, rows).tolist() == sorted(set(rows.values[present, 1].tolist()))


def test_columns_with_fewer_values_are_filled_up() -> None:
    rows = EncodedRows(torch.tensor([[0.0, 5.0], [1.0, 5.0], [2.0, 6.0]], dtype=torch.float64), torch.full((3, 2), -1))
    family = HiddenNets.of([FIRST, SECOND], 2, 1, rows)
    assert family.seen.tolist() == [[0.0, 1.0, 2.0], [5.0, 6.0, torch.inf]]
    theta = torch.zeros(2, family.weights, dtype=torch.float64)
    theta[:, without_values(family).weights :] = torch.arange(1.0, 5.0)
    values = family.values(theta, family.points(rows))[..., 0]
    assert values.tolist() == [[1.0, 2.0, 3.0], [1.0, 1.0, 2.0]]


def test_values_have_a_layer_of_their_own() -> None:
    family = valued(2)
    assert family.layers == ("inner", "outer", "values")
    assert family.layer.tolist() == [
        *without_values(family).layer.tolist(),
        *[2] * (2 * (family.seen.shape[1] + 1)),
    ]


def test_only_columns_of_few_values_that_come_often_have_effects_of_them() -> None:
    n = 3000
    levels = torch.full((n, 3), -1)
    few = torch.arange(n, dtype=torch.float64) % 12
    rows = EncodedRows(torch.stack([torch.linspace(0.0, 1.0, n, dtype=torch.float64), few, few % 2], 1), levels)
    assert not has_values(FIRST, rows, n)  # as many as rows
    assert has_values(SECOND, rows, n)
    assert not has_values(SECOND, rows[:15], 15.0)  # too few rows of each
    assert has_values(SECOND, rows[:15], 300.0)  # each row stands for twenty
    two = EncodedRows(rows.values[:, 2:].expand(-1, 2), levels[:, :2])
    assert not has_values(SECOND, two, n)  # a net of two values is as free as two effects
