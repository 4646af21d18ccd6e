"""What a term reads of encoded rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from bayescope.additive import EncodedRows, FeatureInput, Term, feature_term, pair_term
from bayescope.tables import TableEncoding, read_table
from tests.additive.problems import FIRST, MIXED, PAIR, SECOND, plain_inputs, table


def encoded(frame: pd.DataFrame) -> tuple[TableEncoding, EncodedRows]:
    columns = read_table(frame)
    encoding = TableEncoding.fit(columns)
    return encoding, EncodedRows.of(encoding.encode(columns))


def test_inputs_are_those_of_each_row_by_itself() -> None:
    rows = table(40)
    for term in (FIRST, SECOND, PAIR, MIXED):
        inputs, absent = term.read(rows)
        expected, gone = plain_inputs(term, rows)
        assert inputs.shape == (40, term.width)
        torch.testing.assert_close(inputs, expected)
        assert absent.tolist() == gone
        assert 0 < sum(gone) < 40


def test_a_pair_is_missing_where_either_feature_is() -> None:
    rows = table(60)
    _, first = FIRST.read(rows)
    _, second = SECOND.read(rows)
    inputs, both = PAIR.read(rows)
    assert torch.equal(both, first | second)
    assert not inputs[both].any()
    assert (PAIR.features, PAIR.width) == ((0, 1), 2)


def test_the_rarest_categories_share_the_last_indicator() -> None:
    labels = [f"k{k:02d}" for k in range(12) for _ in range(30 - 2 * k)]
    frame = pd.DataFrame({"x": np.arange(float(len(labels))), "label": labels})
    encoding, rows = encoded(frame)
    term = pair_term(encoding, (0, 1))
    assert (term.name, term.features, term.width) == ("x & label", (0, 1), 1 + 8)
    inputs, absent = term.read(rows)
    assert not absent.any()
    shown = inputs[:, 1:].argmax(1)
    assert torch.equal(inputs[:, 1:].sum(1), torch.ones(len(rows), dtype=torch.float64))
    assert shown.tolist() == [min(int(label[1:]), 7) for label in labels]


def test_labels_that_no_pair_tells_are_missing_to_it() -> None:
    encoding, _ = encoded(pd.DataFrame({"x": [1.0, 2.0, 3.0], "label": ["u", "v", "u"]}))
    new = read_table(pd.DataFrame({"x": [1.0, 2.0, 3.0], "label": ["u", None, "w"]}))
    inputs, absent = pair_term(encoding, (0, 1)).read(EncodedRows.of(encoding.encode(new)))
    assert absent.tolist() == [False, True, True]
    assert inputs[0, 1:].tolist() == [1.0, 0.0]


def test_one_category_is_one_indicator() -> None:
    encoding, rows = encoded(pd.DataFrame({"x": [1.0, 2.0], "label": ["u", "u"]}))
    term = pair_term(encoding, (1, 0))
    assert (term.name, term.width) == ("label & x", 2)
    assert term.read(rows)[0][:, 0].tolist() == [1.0, 1.0]


def test_a_features_term_reads_its_own_column() -> None:
    encoding, rows = encoded(pd.DataFrame({"x": [1.0, np.nan, 3.0], "z": [4.0, 5.0, 7.0]}))
    term = feature_term(encoding, 1)
    assert (term.name, term.features, term.width) == ("z", (1,), 1)
    inputs, absent = feature_term(encoding, 0).read(rows)
    assert absent.tolist() == [False, True, False]
    assert torch.equal(inputs[:, 0], rows.values[:, 0])


def test_some_rows_are_all_that_they_were() -> None:
    rows = table(10, outputs=2)
    some = rows[torch.tensor([7, 2])]
    assert len(some) == 2
    assert torch.equal(some.values, rows.values[[7, 2]])
    assert torch.equal(some.levels, rows.levels[[7, 2]])
    assert some.offset is not None
    assert rows.offset is not None
    assert torch.equal(some.offset, rows.offset[[7, 2]])
    assert EncodedRows(rows.values, rows.levels)[2:4].offset is None


def test_a_term_of_indicators_alone() -> None:
    term = Term("label", (FeatureInput(2, (0, 1, 2, -1, -1), 3),))
    rows = table(30)
    inputs, absent = term.read(rows)
    known = rows.levels[:, 2] < 3
    assert torch.equal(absent, ~known)
    assert torch.equal(inputs[known].argmax(1), rows.levels[known, 2])
