"""Rows as distinct points: exact where there are few, groups of like size where there are many."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bayescope.additive import MOST_POINTS, Design, EncodedRows, HiddenNets, TermFamily
from tests.additive.problems import FIRST, MIXED, PAIR, SECOND, labels, nets, normal, seeded, table

FAMILIES = {"features": nets(FIRST, SECOND), "pairs": nets(PAIR, MIXED, outputs=2), "labels": labels(3)}


MOST_CELLS = 4096  # of a pair


def ones(n: int) -> Tensor:
    return torch.ones(n, dtype=torch.float64)


@pytest.fixture(params=FAMILIES.values(), ids=FAMILIES.keys())
def family(request: pytest.FixtureRequest) -> TermFamily:
    return request.param


def test_rows_have_the_values_of_their_points(family: TermFamily) -> None:
    rows, theta = table(50), normal(len(family.terms), family.weights)
    design = Design.of(family, rows, ones(50))
    at_points = family.values(theta, design.points)
    assert at_points.shape[1] < 50
    torch.testing.assert_close(design.gathered(at_points), family.values(theta, family.points(rows)).sum(0))
    assert design.grouped == ()


def test_means_are_over_the_rows_by_weight(family: TermFamily) -> None:
    rows, theta = table(40), normal(len(family.terms), family.weights)
    weights = torch.rand(40, generator=seeded(), dtype=torch.float64)
    design = Design.of(family, rows, weights)
    torch.testing.assert_close(design.mass.sum(1), ones(len(family.terms)))
    for read in (family.values, lambda *at: family.jacobian(*at).dense()):
        of_rows = read(theta, family.points(rows))
        there = family.centred(family.points(rows))
        for place, own in enumerate(there):
            values, share = of_rows[place], weights / weights.sum()
            of_values = torch.einsum("n,n...->...", weights * own / (weights * own).sum(), values)
            of_all = torch.einsum("n,n...->...", share, values) - (share @ own.to(share)) * of_values
            found = design.mean(read(theta, design.points))[:, place]
            torch.testing.assert_close(found, torch.stack([of_values + of_all, of_all]))


@pytest.mark.parametrize("shape", [(2,), (2, 2)])
def test_sums_at_points_are_the_transpose_of_values_at_rows(family: TermFamily, shape: tuple[int, ...]) -> None:
    rows = table(30)
    design = Design.of(family, rows, ones(30))
    u = normal(30, *shape)
    sums = design.scattered(u)
    assert sums.shape == (*design.mass.shape, *shape)
    v = normal(*design.mass.shape, 4, seed=1)
    paired = torch.einsum("nc,n...->c...", design.gathered(v), u)
    torch.testing.assert_close(torch.einsum("guc,gu...->c...", v, sums), paired)


def test_points_do_not_depend_on_the_rows_order(family: TermFamily) -> None:
    rows = table(60)
    order = torch.randperm(60, generator=seeded())
    here, there = (Design.of(family, some, ones(60)) for some in (rows, rows[order]))
    assert torch.equal(here.points.inputs, there.points.inputs)
    assert torch.equal(here.points.levels, there.points.levels)
    assert torch.equal(here.place[:, order], there.place)
    torch.testing.assert_close(here.mass, there.mass, rtol=1e-14, atol=0.0)


def numbers(values: Tensor) -> EncodedRows:
    levels = torch.full(values.shape, -1)
    return EncodedRows(values, levels)


@given(st.lists(st.integers(-8, 8), min_size=1, max_size=60), st.lists(st.booleans(), min_size=60, max_size=60))
def test_a_number_is_one_point_however_often_it_is_there(values: list[int], gaps: list[bool]) -> None:
    rows = numbers(torch.tensor(values, dtype=torch.float64)[:, None] / 3.0)
    gone = torch.tensor(gaps[: len(values)])
    rows.values[gone] = 0.0
    rows.levels[gone] = 0
    design = Design.of(nets(FIRST), rows, ones(len(values)))
    seen = {value for value, absent in zip(values, gaps, strict=False) if not absent}
    assert design.mass.shape[1] == len(seen) + bool(gone.any())
    assert torch.equal(design.points.inputs[0, design.place[0]], rows.values)
    assert torch.equal(design.points.levels[0, design.place[0]], rows.levels[:, 0])


def test_a_zero_is_not_a_missing_value() -> None:
    rows = EncodedRows(torch.zeros(4, 1, dtype=torch.float64), torch.tensor([[-1], [0], [-1], [0]]))
    design = Design.of(nets(FIRST), rows, ones(4))
    assert design.points.levels[0, design.place[0]].tolist() == [-1, 0, -1, 0]


# --- more numbers than a fit reads -----------------------------------------------------------------------------------


def drawn(n: int, columns: int) -> EncodedRows:
    """Skewed numbers, a third of them one number, with gaps."""
    values = normal(n, columns).exp()
    values[torch.rand(n, columns, generator=seeded(1)) < 1.0 / 3] = 1.0
    gaps = torch.rand(n, columns, generator=seeded(2)) < 0.1
    return EncodedRows(values.masked_fill(gaps, 0.0), torch.where(gaps, 0, -1))


def test_numbers_are_grouped_into_means_of_neighbours() -> None:
    rows = drawn(6000, 2)
    design = Design.of(nets(FIRST, SECOND), rows, ones(6000))
    assert design.grouped == ("a", "b")
    assert 0.6 * MOST_POINTS < design.mass.shape[1] <= MOST_POINTS
    for term in range(2):
        values, place, points = rows.values[:, term], design.place[term], design.points.inputs[term, :, 0]
        seen = rows.levels[:, term] == -1
        assert torch.equal(design.points.levels[term, place], rows.levels[:, term])
        # Equal numbers are one point, and groups lie beside each other: where a number is larger, its point is.
        order = values[seen].argsort(stable=True)
        assert (points[place[seen]][order].diff() >= 0).all()
        ties = place[seen & (values == 1.0)]
        assert (ties == ties[0]).all()
        means = torch.zeros_like(points).scatter_add_(0, place, values) / (6000 * design.mass[term]).clamp(min=1.0)
        torch.testing.assert_close(points, means)


def test_groups_are_of_like_size() -> None:
    design = Design.of(nets(FIRST), numbers(normal(10 * MOST_POINTS + 3, 1)), ones(10 * MOST_POINTS + 3))
    counts = design.mass[0] * (10 * MOST_POINTS + 3)
    assert float(counts.min()) >= 9
    assert float(counts.max()) <= 21


def test_pairs_are_grouped_into_cells() -> None:
    rows = drawn(9000, 2)
    design = Design.of(nets(PAIR), rows, ones(9000))
    assert design.grouped == ("a & b",)
    assert 0.35 * MOST_CELLS < design.mass.shape[1] <= MOST_CELLS
    present = (rows.levels == -1).all(1)
    moved = design.points.inputs[0, design.place[0]][present] - rows.values[present]
    assert float((moved.abs() < 0.1).to(torch.float64).mean()) > 0.9
    torch.testing.assert_close(design.points.inputs[0, design.place[0]][present].mean(0), rows.values[present].mean(0))


def test_categories_beside_a_number_are_never_mixed() -> None:
    n = 9000
    rows = EncodedRows(torch.cat([normal(n, 1), torch.zeros(n, 2, dtype=torch.float64)], 1), torch.full((n, 3), -1))
    rows.levels[:, 2] = torch.randint(3, (n,), generator=seeded())
    family = nets(MIXED)
    design = Design.of(family, rows, ones(n))
    assert design.grouped == ("a & label",)
    assert design.mass.shape[1] <= MOST_CELLS
    assert torch.equal(design.points.inputs[0, design.place[0], 1:], family.points(rows).inputs[0, :, 1:])


def test_grouped_effects_are_close() -> None:
    family, rows = HiddenNets.of([FIRST], 8, 1), drawn(6000, 1)
    theta = family.start(family.points(rows), torch.full((1, 6000), 1.0 / 6000), seeded())
    theta[:, 16:] = normal(1, 9)
    exact = family.values(theta, family.points(rows))[0]
    design = Design.of(family, rows, ones(6000))
    assert design.grouped == ("a",)
    error = (design.gathered(family.values(theta, design.points)) - exact).square().mean().sqrt()
    assert float(error) < 0.01 * float(exact.std())


def test_few_different_numbers_are_left_as_they_are_however_many_rows() -> None:
    values = torch.arange(5000, dtype=torch.float64)[:, None] % MOST_POINTS
    design = Design.of(nets(FIRST), numbers(values), ones(5000))
    assert design.grouped == ()
    assert torch.equal(design.points.inputs[0, design.place[0]], values)
