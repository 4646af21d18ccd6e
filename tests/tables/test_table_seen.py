"""Preprocessing learnt from blocks is that of the whole table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from bayescope.errors import InputError, OptionError, UnsupportedError
from bayescope.tables import Preprocessing, TableSeen, read_table

ROWS = 700


def table() -> pd.DataFrame:
    source = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "far": 1e3 + 3.0 * source.normal(size=ROWS),
            "rank": source.integers(0, 5, ROWS),
            "text": source.choice(["x", "y", "z"], ROWS),
            "truth": source.random(ROWS) < 0.5,
            "gaps": source.normal(size=ROWS),
            "grade": pd.Categorical(source.choice(["lo", "hi", "mid"], ROWS), ["lo", "mid", "top", "hi"]),
            "one": 1.5,
        }
    )
    frame.loc[3, "gaps"], frame.loc[5, "text"] = np.nan, None
    return frame


@pytest.mark.parametrize("encoding", ["one_hot", "ordinal"])
@pytest.mark.parametrize("scaling", [None, "standard", "quantile"])
@pytest.mark.parametrize("weighted", [False, True])
def test_blocks_and_parts_tell_what_the_table_tells(scaling: str | None, encoding: str, weighted: bool):
    columns = read_table(table())
    weights = np.random.default_rng(1).integers(1, 4, ROWS).astype(float) if weighted else np.ones(ROWS)
    kinds = {column.name: column.kind for column in columns}
    passes = [TableSeen(kinds, scaling=scaling, encoding=encoding) for _ in range(2)]
    for start in range(0, ROWS, 90):
        rows = np.arange(start, min(start + 90, ROWS))
        block = [replace(column, values=column.values[rows]) for column in columns]
        passes[start > 300].add(block, weights[rows], rows)
    learnt = passes[0].joined(passes[1]).preprocessing()
    whole, numbers = Preprocessing.fit(
        columns, None, scaling=scaling, encoding=encoding, weights=weights if weighted else None
    )
    assert learnt.names == whole.names
    assert learnt.notes() == whole.notes()
    np.testing.assert_allclose(learnt(columns), numbers, rtol=1e-12, atol=2e-12)


def test_what_blocks_cannot_tell_is_refused():
    with pytest.raises(UnsupportedError, match="encoding: expected 'one_hot' or 'ordinal'"):
        TableSeen({"x": "numeric"}, scaling=None, encoding="target")
    with pytest.raises(OptionError, match="scaling"):
        TableSeen({"x": "numeric"}, scaling="max", encoding="one_hot")
    seen = TableSeen({"x": "numeric"}, scaling="standard", encoding="one_hot")
    seen.add(read_table(pd.DataFrame({"x": [1e200, 1.0]})), np.ones(2), np.arange(2))
    with pytest.raises(InputError, match="column 'x': expected numbers whose squares are floats"):
        seen.preprocessing()
