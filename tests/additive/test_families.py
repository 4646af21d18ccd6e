"""Nets and tables of levels, side by side, against single ones written out plainly."""

from __future__ import annotations

import math

import pytest
import torch

from bayescope.additive import HiddenNets, Points, TermFamily
from tests.additive.problems import (
    FIRST,
    MIXED,
    PAIR,
    SECOND,
    labels,
    nets,
    normal,
    plain_effect,
    seeded,
    steps,
    table,
    valued,
)

FAMILIES = {
    "features": nets(FIRST, SECOND),
    "features, three outputs": nets(FIRST, SECOND, outputs=3),
    "pairs": nets(PAIR, MIXED, hidden=5, outputs=2),
    "widths that differ": nets(FIRST, MIXED, PAIR),
    "values": valued(),
    "values, two outputs": valued(2),
    "steps": steps(),
    "steps, two outputs": steps(2, hidden=9),
    "labels": labels(),
    "labels, three outputs": labels(3),
}


@pytest.fixture(params=FAMILIES.values(), ids=FAMILIES.keys())
def family(request: pytest.FixtureRequest) -> TermFamily:
    return request.param


def test_values_are_those_of_each_term_by_itself(family: TermFamily) -> None:
    rows, theta = table(20), normal(len(family.terms), family.weights)
    values = family.values(theta, family.points(rows))
    expected = torch.stack(
        [plain_effect(family, term, own, rows) for term, own in zip(family.terms, theta, strict=True)]
    )
    torch.testing.assert_close(values, expected, rtol=1e-12, atol=1e-12)


def test_values_of_many_weights_at_once(family: TermFamily) -> None:
    points, draws = family.points(table(9)), normal(2, 3, len(family.terms), family.weights)
    values = family.values(draws, points)
    assert values.shape == (2, 3, len(family.terms), 9, family.outputs)
    torch.testing.assert_close(values[1, 2], family.values(draws[1, 2], points))


def test_jacobian_is_autograds(family: TermFamily) -> None:
    points, theta = family.points(table(11)), normal(len(family.terms), family.weights)
    jacobian = family.jacobian(theta, points).dense()
    for term, expected in enumerate(torch.func.jacrev(lambda at: family.values(at, points))(theta)):
        torch.testing.assert_close(jacobian[term], expected[:, :, term], rtol=1e-12, atol=1e-12)
        others = [other for other in range(len(family.terms)) if other != term]
        assert not expected[:, :, others].any()


def test_layers_part_the_weights() -> None:
    family = nets(PAIR, hidden=4, outputs=2)
    points = family.points(table(30))
    theta = normal(1, family.weights).requires_grad_()
    assert family.weights == 4 * (2 + 1) + 2 * (4 + 1)
    # f is linear in the outer layer, and only there.
    (slope,) = torch.autograd.grad(family.values(theta, points).sum(), theta, create_graph=True)
    outer = slope[0, family.layer == 1]
    (again,) = torch.autograd.grad(outer.square().sum(), theta)
    assert (again[0, family.layer == 0] != 0).all()
    assert not again[0, family.layer == 1].any()
    assert family.layers == ("inner", "outer")
    assert labels().layers == ("levels",)
    assert labels(2).layer.tolist() == [0] * labels(2).weights


def test_a_missing_value_has_its_own_effect_which_numbers_do_not_touch() -> None:
    family = nets(FIRST, hidden=8)
    theta = normal(1, family.weights)
    far = Points(torch.tensor([[[0.0], [3.0], [-7.0]]], dtype=torch.float64), torch.tensor([[0, 0, -1]]))
    missing = family.values(theta, far)[0, :2, 0]
    assert missing.tolist() == pytest.approx([2.0 * float(theta[0, -1])] * 2)
    assert not family.jacobian(theta, far).dense()[0, :2, 0, :-1].any()
    assert family.jacobian(theta, far).dense()[0, 2, 0, -1] == 0.0


def test_under_the_prior_a_missing_values_effect_is_as_wide_as_a_values() -> None:
    family = nets(FIRST, hidden=16)
    points = Points(torch.tensor([[[0.0], [1.0]]], dtype=torch.float64), torch.tensor([[0, -1]]))
    spread = family.values(normal(20000, 1, family.weights), points)[:, 0, :, 0].std(0)
    assert float(spread[0]) == pytest.approx(math.sqrt(8.0), rel=0.03)
    assert 0.6 < float(spread[1] / spread[0]) < 1.4


def test_first_kinks_lie_at_points_of_the_data() -> None:
    family = nets(FIRST, PAIR, hidden=50)
    rows = table(12)
    points = family.points(rows)
    mass = torch.full((2, 12), 1.0 / 12)
    theta = family.start(points, mass, seeded())
    inner = theta[:, : 50 * 2].reshape(2, 50, 2)
    bias = theta[:, 100:150]
    at_points = inner @ points.inputs.mT + bias[..., None]
    seen = (points.levels == -1)[:, None]
    nearest = torch.where(seen, at_points.abs(), torch.inf).amin(-1)
    assert float(nearest.max()) < 1e-12
    slopes = inner.norm(dim=-1)
    assert 0.3 <= float(slopes.min()) < 1.0 < 2.5 < float(slopes.max()) <= 3.0


def test_points_without_data_have_no_kinks() -> None:
    family = nets(FIRST, hidden=50)
    points = Points(torch.tensor([[[0.0], [1.0], [5.0]]], dtype=torch.float64), torch.tensor([[-1, -1, -1]]))
    theta = family.start(points, torch.tensor([[0.5, 0.5, 0.0]], dtype=torch.float64), seeded())
    kinks = -theta[0, 50:100] / theta[0, :50]
    assert set(kinks.round(decimals=9).abs().tolist()) == {0.0, 1.0}


def test_the_first_weights_are_the_seeds(family: TermFamily) -> None:
    points = family.points(table(10))
    mass = torch.full((len(family.terms), 10), 0.1)
    first, again, other = (family.start(points, mass, seeded(seed)) for seed in (0, 0, 1))
    assert first.shape == (len(family.terms), family.weights)
    assert torch.equal(first, again)
    assert torch.equal(first, other) != isinstance(family, HiddenNets)
    assert not family.values(first, points).any()  # the model begins at its intercept


def test_a_column_without_any_value_still_has_first_weights() -> None:
    rows = table(6)
    rows.levels[:, 0] = 0
    family = nets(FIRST)
    theta = family.start(family.points(rows), torch.full((1, 6), 1.0 / 6), seeded())
    assert theta.isfinite().all()
