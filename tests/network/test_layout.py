from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bayescope.network.sites import Layout, layouts
from tests.network.networks import numbers

ROWS = 3


def cotangents(layout: Layout, positions: tuple[int, ...] = (4, 5)) -> Tensor:
    """The k-th is zero but in row k, which the layout places."""
    plain = numbers(ROWS, ROWS, *positions) * torch.eye(ROWS, dtype=torch.float64).reshape(
        ROWS, ROWS, *[1] * len(positions)
    )
    if layout.fold == "alone":
        return plain.movedim(1, 1 + layout.dim)
    if layout.fold == "outer":
        return plain.flatten(1, 2)
    return plain.transpose(1, 2).flatten(1, 2)


LAYOUTS = [Layout(0), Layout(1), Layout(2), Layout(0, "outer"), Layout(0, "inner")]


@pytest.mark.parametrize("layout", LAYOUTS, ids=repr)
@pytest.mark.parametrize("positions", [(4, 5), (3, 5), (3, 3), (6, 3)])
def test_finds_where_the_rows_are_even_if_other_dimensions_are_as_long(
    layout: Layout, positions: tuple[int, ...]
) -> None:
    g = cotangents(layout, positions)
    (found,) = layouts(g, g.ndim - 1)
    assert found == layout
    split = found.split(g, ROWS, 1)
    assert split.shape[:2] == (ROWS, ROWS)
    for k in range(ROWS):
        for n in range(ROWS):
            assert bool(split[k, n].any()) == (k == n)


def test_rows_that_are_mixed_have_no_layout() -> None:
    assert layouts(numbers(ROWS, ROWS, 4), 2) == []


def test_no_dimension_that_may_hold_them_has_no_layout() -> None:
    assert layouts(cotangents(Layout(1)), 1) == []


def test_a_weight_that_is_indexed_by_the_row_itself_is_refused() -> None:
    g = cotangents(Layout(0), (4,))
    shared, own = torch.zeros(1, 4).expand(ROWS, 4), torch.zeros(ROWS, 4)
    assert layouts(g, 2, shared) == [Layout(0)]
    assert layouts(g, 2, own) == []


def test_cotangents_of_zero_decide_nothing() -> None:
    assert layouts(torch.zeros(ROWS, 4, ROWS, 5), 3) == [Layout(1)]
    assert layouts(torch.zeros(ROWS, ROWS, ROWS, 5), 3) == [Layout(0), Layout(1)]
    assert layouts(torch.zeros(ROWS, ROWS, 2 * ROWS, 5), 1) == [Layout(0)]
    assert layouts(torch.zeros(ROWS, ROWS, 2 * ROWS, 5), 2) == [Layout(0), Layout(1, "outer"), Layout(1, "inner")]
    assert layouts(torch.zeros(ROWS, 2 * ROWS, 5), 2) == [Layout(0, "outer"), Layout(0, "inner")]


@pytest.mark.parametrize(
    ("layout", "shape", "fits"),
    [
        (Layout(0), (7, 2), True),
        (Layout(0), (14, 2), False),
        (Layout(1), (2, 7), True),
        (Layout(1), (7,), False),
        (Layout(0, "outer"), (14, 2), True),
        (Layout(0, "inner"), (15, 2), False),
    ],
)
def test_fits_batches_of_other_sizes(layout: Layout, shape: tuple[int, ...], fits: bool) -> None:
    assert layout.fits(shape, 7) is fits
