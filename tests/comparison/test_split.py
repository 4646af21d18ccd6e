"""The split keeps the classes in proportion, and refuses what it cannot split."""

import numpy as np
import pandas as pd
import pytest
import torch

import bayescope as bs
from bayescope.comparison.split import split
from bayescope.errors import InputError, InputTypeError, UnsupportedError

X = np.arange(80.0).reshape(40, 2)
LABELS = np.repeat(["a", "b"], [30, 10])


def test_every_row_is_in_one_part_and_the_classes_are_in_proportion():
    data = split(X, LABELS, "classes", test_size=0.2, random_state=0)
    together = np.concatenate([data.X_train.to_numpy(), data.X_test.to_numpy()])
    assert sorted(map(tuple, together)) == sorted(map(tuple, X))
    assert np.bincount(data.y_train).tolist() == [24, 8]
    assert np.bincount(data.y_test).tolist() == [6, 2]


def test_labels_stay_with_their_rows():
    data = split(X, LABELS, "classes", test_size=0.2, random_state=0)
    for part, codes in ((data.X_train, data.y_train), (data.X_test, data.y_test)):
        np.testing.assert_array_equal(codes, (part.to_numpy()[:, 0] >= X[30, 0]).astype(int))


def test_the_seed_decides():
    rows = [split(X, LABELS, "classes", test_size=0.2, random_state=seed).X_test.index.tolist() for seed in (0, 0, 1)]
    assert rows[0] == rows[1] != rows[2]


@pytest.mark.parametrize("table", [X, X.tolist(), torch.from_numpy(X), pd.DataFrame(X, columns=["u", "v"])])
def test_takes_arrays_tensors_and_tables(table):
    data = split(table, LABELS, "classes", test_size=0.2, random_state=0)
    assert list(data.X_train.columns) == (["u", "v"] if isinstance(table, pd.DataFrame) else ["x0", "x1"])


def test_class_names_carry_the_name_of_the_target():
    assert split(X, LABELS, "classes", test_size=0.2, random_state=0).classes == ("a", "b")
    assert split(X, pd.Series(LABELS, name="kind"), "classes", test_size=0.2, random_state=0).classes == (
        "kind = a",
        "kind = b",
    )


@pytest.mark.parametrize(
    ("table", "labels", "test_size", "message"),
    [
        (X, LABELS[:39], 0.2, "y: expected one label for each of the 40 rows"),
        (X, np.full(40, "a"), 0.2, "y: expected at least two classes, got 1"),
        (X[:0], LABELS[:0], 0.2, "y: expected at least two classes, got 0"),
        (X, np.where(LABELS == "a", np.nan, 1.0), 0.2, "y: expected a label in every row, got none in row 0"),
        (X, LABELS, 1.0, "test_size: expected a number strictly between 0 and 1"),
        (X, np.repeat(["a", "b"], [38, 2]), 0.2, "got 40 rows with 2 of class b"),
        (X, np.repeat(["a", "b"], [37, 3]), 0.05, "split: expected at least 2 training rows and 1 test row"),
        (X, LABELS, 0.99, "split: expected at least 2 training rows"),
        (X[:, 0], LABELS, 0.2, r"X: expected shape \(N, D\)"),
        (np.where(X == 7, np.nan, X), LABELS, 0.2, "X: expected finite numbers"),
    ],
)
def test_refuses(table, labels, test_size, message):
    with pytest.raises(InputError, match=message):
        split(table, labels, "classes", test_size=test_size, random_state=0)


def test_refuses_labels_of_several_types():
    with pytest.raises(InputTypeError, match="y: expected labels of one type"):
        split(X, pd.Series([1, "a"] * 20, dtype=object), "classes", test_size=0.2, random_state=0)


def test_takes_labels_and_gaps():
    table = pd.DataFrame({"x": ["red", "blue", None, "red"] * 10, "z": [1.0, np.nan] * 20})
    assert len(split(table, LABELS, "classes", test_size=0.25, random_state=0).X_test) == 10


def test_refuses_dates():
    with pytest.raises(InputTypeError, match="X: expected numbers or labels in column 'x'"):
        split(
            pd.DataFrame({"x": pd.date_range("2024-01-01", periods=40)}),
            LABELS,
            "classes",
            test_size=0.2,
            random_state=0,
        )


def test_what_is_not_one_number_a_row_is_refused_with_what_to_do():
    y = np.arange(1.0, 41.0)
    with pytest.raises(UnsupportedError, match=r"expected exact numbers, .* got times that may be censored"):
        split(X, bs.Censored(y, y < 9), "numbers", test_size=0.5, random_state=0)
    with pytest.raises(InputError, match=r"got shape \(40, 2\). Compare each column by itself"):
        split(X, np.c_[y, y], "numbers", test_size=0.5, random_state=0)
