from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from scipy import sparse

import bayescope as bs
from bayescope.errors import InputError, InputTypeError, UnsupportedError
from bayescope.estimators.labels import class_labels, column_names, numbers
from bayescope.estimators.table_rows import TableRows
from bayescope.estimators.targets import Labels

ONES = np.ones(4)


def labels_of(y: object, weights: np.ndarray = ONES) -> tuple[Labels, np.ndarray]:
    """The labels, and the codes of the rows that count."""
    X, estimator = np.arange(float(len(weights)))[:, None], bs.BayesianMLPClassifier()
    rows = TableRows.of(estimator, X, y, weights, target=class_labels, labels=True)
    labels, rows = Labels.of(rows, None, getattr(y, "columns", ()))
    (block,) = rows.blocks()
    return labels, block.target


def named(y: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(y, columns=["ill", "old"])


@pytest.mark.parametrize(
    ("y", "classes", "codes", "outputs"),
    [
        ([1, 0, 0, 1], [0, 1], [1, 0, 0, 1], 1),
        (["b", "a", "c", "a"], ["a", "b", "c"], [1, 0, 2, 0], 3),
        (np.array([True, False, True, True]), [False, True], [1, 0, 1, 1], 1),
        (pd.Series(["x", "y", "x", "x"], dtype="category"), ["x", "y"], [0, 1, 0, 0], 1),
        (pd.Series([5, 7, 5, 9], dtype="Int64"), [5, 7, 9], [0, 1, 0, 2], 3),
        (torch.tensor([2, 4, 2, 2]), [2, 4], [0, 1, 0, 0], 1),
    ],
    ids=["ints", "text", "booleans", "categorical", "nullable", "tensor"],
)
def test_classes_are_sorted_and_coded(y, classes, codes, outputs):
    labels, found = labels_of(y)
    assert labels.classes.tolist() == classes
    assert found.tolist() == codes
    assert (labels.outputs, labels.multilabel) == (outputs, False)


@pytest.mark.parametrize("form", [np.array, list, sparse.csr_matrix, pd.DataFrame], ids=lambda form: form.__name__)
def test_a_matrix_of_zeros_and_ones_is_several_labels(form):
    y = [[0, 1], [1, 1], [0, 0], [1, 0]]
    labels, codes = labels_of(form(y))
    assert labels.multilabel
    assert labels.outputs == 2
    assert labels.classes.tolist() == [0, 1]
    np.testing.assert_array_equal(codes, y)


def test_labels_of_a_frame_have_names():
    labels, _ = labels_of(pd.DataFrame({"ill": [0, 1, 1], "old": [1, 1, 0]}), np.ones(3))
    assert labels.classes.tolist() == ["ill", "old"]


@pytest.mark.parametrize("value", [0, 1])
@pytest.mark.parametrize(("form", "name"), [(np.array, "1"), (pd.DataFrame, "1"), (named, "'old'")])
def test_a_label_that_all_rows_have_or_none_is_refused_by_name(value, form, name):
    y = form(np.array([[0, value], [1, value], [0, value]]))
    with pytest.raises(InputError, match=rf"y: .* got {value} in all rows of column {name}\. Leave the column out"):
        labels_of(y, np.ones(3))


def test_rows_of_no_weight_do_not_tell_a_label_from_none():
    y = [[0, 0], [1, 0], [1, 1]]
    assert labels_of(y, np.array([1.0, 1.0, 0.5]))[0].outputs == 2
    with pytest.raises(InputError, match=r"got 0 in all rows of column 1"):
        labels_of(y, np.array([1.0, 1.0, 0.0]))


@pytest.mark.parametrize(
    ("y", "names", "unit"),
    [
        (["dead", "alive"], (), "logit of 'dead'"),
        (np.array([3, 1]), (), "logit of 3"),
        ([True, False], (), "logit of True"),
        (["b", "a", "c"], ("a", "b", "c"), "logit, classes centred"),
        (pd.DataFrame({"ill": [0, 1], "old": [1, 0]}), ("ill", "old"), "logit"),
        ([[0, 1], [1, 0]], ("0", "1"), "logit"),
    ],
)
def test_outputs_have_the_names_and_the_unit_of_the_classes(y, names, unit):
    labels, _ = labels_of(y, np.ones(len(y)))
    assert (labels.output_names, labels.unit) == (names, unit)


@pytest.mark.parametrize(
    ("y", "count", "names"),
    [
        (np.zeros(3), 1, ["y"]),
        (np.zeros((3, 2)), 2, ["y0", "y1"]),
        (pd.Series([1.0], name="price"), 1, ["price"]),
        (pd.Series([1.0], name=0), 1, ["y"]),
        (pd.DataFrame({"a": [1.0], "b": [2.0]}), 2, ["a", "b"]),
        (pd.DataFrame([[1.0, 2.0]]), 2, ["y0", "y1"]),
        (pl.DataFrame({"a": [1.0], "b": [2.0]}), 2, ["a", "b"]),
        (pl.DataFrame({"a": [1.0], "b": [2.0]}).to_arrow(), 2, ["a", "b"]),
        (pl.Series([1.0]), 1, ["y"]),
        (torch.zeros(3), 1, ["y"]),
    ],
)
def test_columns_of_y_have_its_own_names_where_it_has_some(y, count, names):
    assert column_names(y, count) == names


def test_a_class_that_no_weight_counts_is_none():
    labels, codes = labels_of(["a", "b", "c", "a"], np.array([1.0, 2.0, 0.0, 1.0]))
    assert labels.classes.tolist() == ["a", "b"]
    assert codes.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("y", "error", "message"),
    [
        (["a", None, "b", "a"], InputError, r"y: expected a label in each row, got None in row 1"),
        ([0.0, 1.0, np.nan, 1.0], InputError, r"got nan in row 2"),
        (["a", "a", "a", "a"], InputError, r"at least two classes, got one class, a\."),
        ([0.1, 0.2, 0.3, 0.4], ValueError, r"Unknown label type"),
        ([[0, 1], [2, 1], [0, 0], [1, 1]], UnsupportedError, "expected one label per row, or several that are 0"),
        ([[2, 0], [0, 2], [2, 2], [0, 0]], InputError, r"y: expected labels 0 and 1, got 2 in row 0"),
        ([0, 1, 1], InputError, r"y: expected 4 targets, one for each row of X, got 3"),
        (np.array(["a", 1, "b", True], dtype=object), InputTypeError, r"expected labels that can be sorted, got bool"),
    ],
)  # fmt: skip
def test_labels_that_cannot_be_used_are_refused(y, error, message):
    with pytest.raises(error, match=message):
        labels_of(y)


def test_numbers_keep_their_shape():
    assert numbers([1, 2, 3], 3).shape == (3,)
    assert numbers([[1], [2], [3]], 3).shape == (3, 1)
    assert numbers(pd.Series([1.5, 2.5], dtype="Float64"), 2).tolist() == [1.5, 2.5]
    with pytest.raises(InputTypeError, match=r"y: expected real numbers"):
        numbers(["a", "b"], 2)
    with pytest.raises(InputError, match=r"y: expected finite numbers, got inf in row 1\."):
        numbers([1.0, np.inf], 2)
    with pytest.raises(InputError, match=r"y: expected finite numbers, got nan in row 1 of column 'y0'"):
        numbers([[1.0, 2.0], [np.nan, 1.0]], 2)
    with pytest.raises(InputError, match=r"expected 3 targets"):
        numbers([1.0, 2.0], 3)
