from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayescope.errors import InputError
from bayescope.estimators.table_rows import RowBlock, row_offset
from bayescope.estimators.table_rows import distinct as merged
from bayescope.tables import Column

NUMBER = st.sampled_from([0.0, -0.0, 1.5, -2.0, np.nan])
LABEL = st.sampled_from(["a", "1", 1, True, 2.5, None])
ROW = st.tuples(NUMBER, LABEL, st.sampled_from([0.0, 1.0]), st.sampled_from([-1.0, 3.0]), st.integers(0, 3))


def distinct(rows: list[tuple[object, ...]], *, offset: bool = True) -> RowBlock:
    number, label, target, shift, weight = zip(*rows, strict=True)
    labels = np.empty(len(rows), dtype=object)
    labels[:] = label
    columns = [Column("x", "numeric", np.array(number, dtype=float)), Column("c", "categorical", labels)]
    offsets = np.array(shift)[:, None] if offset else None
    weights = np.array(weight, dtype=float)
    block = RowBlock(columns, np.array(target)[:, None], weights, offsets, np.arange(len(rows)))
    return merged(block.counted())


def contents(rows: RowBlock) -> list[tuple[object, ...]]:
    x, c = (column.values.tolist() for column in rows.columns)
    x = [None if np.isnan(value) else value for value in x]
    offset = rows.offset[:, 0].tolist() if rows.offset is not None else [None] * len(x)
    return list(zip(x, c, rows.target[:, 0].tolist(), offset, strict=True))


@given(st.lists(ROW, min_size=1, max_size=30).filter(lambda rows: any(row[-1] for row in rows)), st.randoms())
def test_each_combination_is_there_once_with_its_summed_weight_whatever_the_order(rows, random):
    found = distinct(rows)
    expected: Counter[tuple[object, ...]] = Counter()
    for *key, weight in rows:
        expected[tuple(None if value != value else value for value in key)] += weight
    assert dict(zip(contents(found), found.weights.tolist(), strict=True)) == {k: w for k, w in expected.items() if w}
    assert len(found.weights) == len(set(contents(found)))
    shuffled = random.sample(rows, len(rows))
    assert contents(distinct(shuffled)) == contents(found)
    repeated = [(*row[:-1], 1) for row in rows for _ in range(row[-1])]
    assert contents(distinct(repeated)) == contents(found)
    np.testing.assert_array_equal(distinct(repeated).weights, found.weights)


def test_weights_of_equal_rows_have_one_sum_in_whatever_order_they_come():
    weights = [1e16, 1.0, 1.0]
    sums = {float(distinct([(1.0, "a", 0.0, 0.0, weight) for weight in some]).weights[0])
            for some in (weights, weights[::-1])}  # fmt: skip
    assert len(sums) == 1


def test_without_an_offset_there_is_none():
    assert distinct([(1.0, "a", 0.0, 0.0, 1), (1.0, "a", 0.0, 5.0, 2)], offset=False).offset is None
    assert distinct([(1.0, "a", 0.0, 0.0, 1), (1.0, "a", 0.0, 5.0, 2)], offset=False).weights.tolist() == [3.0]


def test_an_offset_has_a_column_for_each_output():
    assert row_offset(None, 3, 1) is None
    assert row_offset([1.0, 2.0, 3.0], 3, 1).shape == (3, 1)
    assert row_offset(np.ones((3, 2)), 3, 2).shape == (3, 2)
    with pytest.raises(InputError, match=r"offset: expected shape \(3, 2\), a column an output, got \(3,\)"):
        row_offset(np.ones(3), 3, 2)
    with pytest.raises(InputError, match=r"offset: expected shape \(3,\), got \(2,\)"):
        row_offset(np.ones(2), 3, 1)
