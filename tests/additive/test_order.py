"""The order in which first weights are drawn follows what columns hold, against moments that are summed row by row."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from bayescope.additive import Design, EncodedRows, FeatureInput, HiddenNets, LevelEffects, RowsInMemory, Term
from bayescope.additive.order import feature_ranks, first_weights
from bayescope.tables.order import CELL, content_order
from tests.additive.problems import seeded

ROWS = 37
# Numbers that are skewed, of both signs, and with gaps in the third column; the fourth column has labels.
NUMBERS, LEVELS = 3, 4


def table() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Numbers (N, 4), levels (N, 4), two targets (N, 2), and weights (N,)."""
    source = np.random.default_rng(5)
    numbers = np.column_stack([source.normal(3, 2, ROWS), source.gamma(1.5, 10, ROWS), source.normal(0, 1, ROWS)])
    levels = np.full((ROWS, NUMBERS + 1), -1)
    levels[:, NUMBERS] = source.integers(0, LEVELS, ROWS)
    levels[source.random(ROWS) < 0.2, 2] = 0
    numbers = np.where(levels[:, :NUMBERS] == 0, 0.0, numbers)
    targets = np.column_stack([numbers[:, 0] + source.normal(size=ROWS), source.normal(size=ROWS)])
    return np.column_stack([numbers, np.zeros(ROWS)]), levels, targets, source.integers(1, 4, ROWS).astype(float)


def ranks_of(order: list[int], rows: np.ndarray | None = None) -> list[int]:
    """The ranks of the columns of `table`, where they stand in this order and their rows in that one."""
    numbers, levels, targets, weights = (part if rows is None else part[rows] for part in table())
    encoded = EncodedRows(torch.from_numpy(numbers[:, order]), torch.from_numpy(levels[:, order]))
    one, zero = torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    data = RowsInMemory(encoded, torch.from_numpy(targets), torch.from_numpy(weights), one, zero)
    terms = [Term(f"x{column}", (FeatureInput(place),)) for place, column in enumerate(order)]
    nets = HiddenNets.of([term for term, column in zip(terms, order, strict=True) if column < NUMBERS], 3, 2)
    label = LevelEffects((terms[order.index(NUMBERS)],), LEVELS, 2)
    ranks = feature_ranks([nets, label], [data.design(nets), data.design(label)], data)
    return [ranks[order.index(column)] for column in range(NUMBERS + 1)]


def plain_moments() -> np.ndarray:
    """Of each column Σ w z^p for p = 2, 3, 4, and Σ w z^p s for p = 1, 2, 3 with s each target and Σ z², over Σ w."""
    numbers, levels, targets, weights = table()
    columns = []
    for column in range(NUMBERS + 1):
        raw = levels[:, column].astype(float) if column == NUMBERS else numbers[:, column]
        there = np.ones(ROWS, dtype=bool) if column == NUMBERS else levels[:, column] == -1
        share = weights[there] / weights[there].sum()
        deviation = np.where(there, raw - share @ raw[there], 0.0)
        columns.append(deviation / math.sqrt(share @ deviation[there] ** 2))
    z = np.stack(columns)
    others = np.column_stack([targets, (z**2).sum(0)])
    share = weights / weights.sum()
    alone = np.stack([(z**power * share).sum(1) for power in (2, 3, 4)], 1)
    return np.hstack([alone, *[(z**power * share) @ others for power in (1, 2, 3)]])


def test_the_ranks_are_those_of_moments_added_up_row_by_row() -> None:
    moments = np.round(plain_moments() / CELL).tolist()
    expected = sorted(range(NUMBERS + 1), key=lambda column: moments[column])
    assert [expected.index(column) for column in range(NUMBERS + 1)] == ranks_of([0, 1, 2, 3])


@pytest.mark.parametrize("order", [[3, 2, 1, 0], [1, 3, 0, 2]])
def test_the_ranks_depend_neither_on_the_places_of_columns_nor_on_those_of_rows(order: list[int]) -> None:
    assert ranks_of(order) == ranks_of([0, 1, 2, 3])
    assert ranks_of(order, np.random.default_rng(0).permutation(ROWS)) == ranks_of([0, 1, 2, 3])


def test_columns_are_ordered_by_their_first_moment_that_differs_and_equal_ones_stay() -> None:
    moments = np.array([[2.0, 1.0, 0.0], [1.0, 5.0, 0.0], [2.0, 0.0, 9.0], [1.0, 5.0, 0.0], [1.0, 5.0, -1.0]])
    assert content_order(moments).tolist() == [4, 1, 3, 2, 0]
    rounding = 1e-12 * np.random.default_rng(0).normal(size=moments.shape)
    assert content_order(moments + rounding).tolist() == [4, 1, 3, 2, 0]


def test_a_net_starts_with_the_same_weights_wherever_its_columns_stand() -> None:
    numbers = np.random.default_rng(1).normal(size=(ROWS, 3))
    weights, starts = torch.ones(ROWS, dtype=torch.float64), []
    for order in ([0, 1, 2], [2, 0, 1]):
        ranks = {place: [2, 0, 1][column] for place, column in enumerate(order)}
        rows = EncodedRows(torch.from_numpy(numbers[:, order]), torch.full((ROWS, 3), -1))
        pairs = [sorted((order.index(a), order.index(b))) for a, b in ((0, 1), (0, 2), (1, 2))]
        net = HiddenNets.of([Term("", (FeatureInput(a), FeatureInput(b))) for a, b in pairs], 4, 2)
        start = first_weights(net, Design.of(net, rows, weights), ranks, seeded(7))
        # A net's inputs are put in the order of the columns of the first table
        inner = [
            part if order[a] < order[b] else part.flip(1)
            for part, (a, b) in zip(start[:, :8].view(3, 4, 2), pairs, strict=True)
        ]
        starts.append(torch.cat([torch.stack(inner).flatten(1), start[:, 8:]], 1))
    torch.testing.assert_close(starts[1], starts[0])
    assert len(starts[0].unique(dim=0)) == 3
