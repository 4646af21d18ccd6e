"""Numbers and levels of encoded tables, on new tables too."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler

from bayescope.errors import InputError, InputTypeError, OptionError, UnsupportedError
from bayescope.tables import CategoricalEncoding, NumericEncoding, TableEncoding, read_table

FRAME = pd.DataFrame(
    {
        "age": [61.5, np.nan, 47.0, 33.25],
        "smoker": [True, False, True, True],
        "ward": ["surgery", None, "medicine", "surgery"],
        "visits": [3, 1, 4, 1],
    }
)
LABELS = st.one_of(st.sampled_from(["a", "b", "c", "d"]), st.none())


def fitted(table: Any, **options: Any) -> TableEncoding:
    return TableEncoding.fit(read_table(table), **options)


def only(values: list[Any], **options: Any) -> Any:
    """The encoding of a table of one column."""
    return fitted(pd.DataFrame({"a": values}), **options).features[0]


def test_each_value_is_a_number_or_a_level() -> None:
    columns = read_table(FRAME)
    encoding = TableEncoding.fit(columns)
    encoded = encoding.encode(columns)
    assert encoding.names == tuple(FRAME.columns)
    assert encoded.values.shape == encoded.levels.shape == FRAME.shape
    assert (encoded.values.dtype, encoded.levels.dtype) == (np.float64, np.int64)
    expected = StandardScaler().fit_transform(FRAME[["age", "visits"]])
    np.testing.assert_allclose(encoded.values[:, [0, 3]], np.where(np.isnan(expected), 0.0, expected))
    np.testing.assert_array_equal(encoded.values[:, [1, 2]], 0.0)
    np.testing.assert_array_equal(
        encoded.levels, np.array([[-1, 0, -1, -1], [1, 0, 1, 1], [1, 2, 0, 1], [-1, -1, -1, -1]]).T
    )


def test_what_is_remembered() -> None:
    age, smoker, ward, visits = fitted(FRAME).features
    assert (age.kind, age.transform, age.minimum, age.maximum, age.missing) == ("numeric", "standard", 33.25, 61.5, 1)
    assert age.levels == ("missing",)
    assert (smoker.categories, smoker.counts.tolist(), smoker.missing) == ((False, True), [1, 3], 0)
    assert smoker.levels == (False, True, "missing", "unseen")
    assert (ward.categories, ward.counts.tolist(), ward.missing) == (("medicine", "surgery"), [1, 2], 1)
    assert (visits.minimum, visits.maximum, visits.missing) == (1.0, 4.0, 0)


def test_what_is_remembered_can_be_written_out() -> None:
    def plain(value: Any) -> Any:
        return value.tolist() if isinstance(value, np.ndarray) else dataclasses.asdict(value)

    mixed = FRAME.assign(zip=[np.int64(8001), np.int64(3012), None, np.int64(8001)])
    columns = read_table(mixed, categorical=["zip"])
    for feature in TableEncoding.fit(columns, numeric_transform={"age": "quantile"}).features:
        fields = {field.name: getattr(feature, field.name) for field in dataclasses.fields(feature)}
        assert json.loads(json.dumps(fields, default=plain))["name"] == feature.name


@given(st.lists(LABELS, min_size=1), st.lists(LABELS))
def test_levels_lead_back_to_the_labels(seen: list[Any], new: list[Any]) -> None:
    encoding = CategoricalEncoding.fit(read_table([[label] for label in seen], categorical=[0])[0])
    assert encoding.counts.sum() + encoding.missing == len(seen)
    zeros, levels = encoding.encode(np.array([*seen, *new], dtype=object))
    assert not zeros.any()
    for label, level in zip([*seen, *new], levels, strict=True):
        if label is None:
            assert encoding.levels[level] == "missing"
        else:
            assert encoding.levels[level] == (label if label in seen else "unseen")


def test_categories_are_as_declared_else_sorted_else_in_order_of_appearance() -> None:
    assert only(["b", "c", "a"]).categories == ("a", "b", "c")
    declared = only(pd.Categorical(["b", "a"], categories=["b", "z", "a"]))  # type: ignore[arg-type]
    assert declared.categories == ("b", "z", "a")
    assert declared.counts.tolist() == [1, 0, 1]
    numbers = read_table([[10], [9], [10]], categorical=[0])
    assert CategoricalEncoding.fit(numbers[0]).categories == (9, 10)
    both = read_table([["b"], [2], ["a"]], categorical=[0])
    assert CategoricalEncoding.fit(both[0]).categories == ("b", 2, "a")


def test_labels_compare_by_value() -> None:
    encoding = fitted_labels([8001, 3012])
    for new in ([8001, 3012], [8001.0, 3012.0], [np.nan, 3012.0]):
        levels = encoding.encode(read_table(pd.DataFrame({"zip": new}), categorical=["zip"])).levels[:, 0]
        assert levels.tolist() == [2 if np.isnan(new[0]) else 1, 0]
    mixed = TableEncoding.fit(read_table([[1], [True], [1.0], ["1"]], categorical=[0]))
    (feature,) = mixed.features
    assert feature.counts.tolist() == [3, 1]  # type: ignore[union-attr]


def fitted_labels(zips: list[Any]) -> TableEncoding:
    return TableEncoding.fit(read_table(pd.DataFrame({"zip": zips}), categorical=["zip"]))


@pytest.mark.parametrize(
    ("seen", "new", "message"),
    [
        ([8001, 3012], ["8001"], "expected labels such as 3012, got '8001'"),
        (["8001", "3012"], [8001], "expected labels such as '3012', got 8001"),
    ],
)
def test_labels_of_the_other_type_are_refused(seen: list[Any], new: list[Any], message: str) -> None:
    encoding = fitted_labels(seen)
    with pytest.raises(InputTypeError, match=f"column 'zip': {message}"):
        encoding.encode(read_table(pd.DataFrame({"zip": new}), categorical=["zip"]))


def test_an_unseen_label_is_a_level_and_not_an_error() -> None:
    new = FRAME.assign(ward=["psychiatry", "surgery", None, "psychiatry"])
    assert fitted(FRAME).encode(read_table(new)).levels[:, 2].tolist() == [3, 1, 2, 3]


# --- tables that do not fit -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("new", "error", "message"),
    [
        (FRAME.drop(columns="ward"), InputError, "got no column 'ward'"),
        (FRAME.assign(height=1.8), InputError, "the unknown column 'height'"),
        (FRAME.rename(columns={"age": "years"}), InputError, "no column 'age', the unknown column 'years'"),
        (
            FRAME.assign(age="old"),
            InputTypeError,
            "column 'age': expected numbers, as fitted, got labels such as 'old'",
        ),
        (
            FRAME.assign(ward=3.5),
            InputTypeError,
            "column 'ward': expected labels, as fitted, got numbers such as .*3.5",
        ),
        (FRAME.assign(smoker=1), InputTypeError, "column 'smoker': expected labels"),
        (FRAME.assign(age=1e300), InputError, r"column 'age': .* 33.25 to 61.5, got 1e\+300.*unit"),
        (FRAME.assign(age=[1.0, np.nan, -1e17, 3.0]), InputError, r"column 'age': .*got -1e\+17"),
    ],
)
def test_another_table_is_refused_by_column(new: pd.DataFrame, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fitted(FRAME).encode(read_table(new))


def test_columns_are_found_by_name() -> None:
    encoding = fitted(FRAME)
    turned = encoding.encode(read_table(FRAME[FRAME.columns[::-1]]))
    np.testing.assert_array_equal(turned.values, encoding.encode(read_table(FRAME)).values)


@pytest.mark.parametrize("nothing", [None, np.nan, pd.NA])
def test_a_column_without_a_value_is_of_either_kind(nothing: Any) -> None:
    row = pd.DataFrame({name: pd.Series([nothing], dtype=object) for name in FRAME.columns})
    encoded = fitted(FRAME).encode(read_table(row))
    assert encoded.levels.tolist() == [[0, 2, 2, 0]]
    assert encoded.values.tolist() == [[0.0, 0.0, 0.0, 0.0]]


def test_a_column_fitted_without_a_value() -> None:
    polars = pytest.importorskip("polars")
    for empty in (
        pd.DataFrame({"a": [None, None]}),
        polars.DataFrame({"a": [None, None]}, schema={"a": polars.String}),
    ):
        encoding = fitted(empty)
        (feature,) = encoding.features
        assert isinstance(feature, NumericEncoding)
        assert feature.missing == 2
        assert feature.grid(5).shape == (0,)
        assert feature.histogram[1].sum() == 0
        assert encoding.encode(read_table(empty)).levels.tolist() == [[0], [0]]


def test_no_rows() -> None:
    empty = read_table(FRAME.iloc[:0])
    with pytest.raises(InputError, match=r"0 sample\(s\) \(shape=\(0, 4\)\) while a minimum of 1 is required"):
        TableEncoding.fit(empty)
    assert fitted(FRAME).encode(empty).values.shape == (0, 4)


@pytest.mark.parametrize("transform", ["standard", "quantile"])
@pytest.mark.parametrize("large", [1e300, -1e200, 1e308])
def test_numbers_too_large_to_standardise(transform: str, large: float) -> None:
    with pytest.raises(InputError, match=r"column 'a': expected numbers whose squares are floats, got one of"):
        only([0.0, large, large, 1.0], numeric_transform=transform)


@pytest.mark.parametrize(
    ("transform", "error", "message"),
    [
        ("robust", OptionError, "numeric_transform: expected one of 'standard', 'quantile', got 'robust'"),
        ({"age": "robust"}, OptionError, r"numeric_transform\['age'\]"),
        ({"agee": "quantile"}, OptionError, "got 'agee'. Did you mean 'age'"),
        ({"ward": "quantile"}, UnsupportedError, "'ward', which holds labels"),
        (None, OptionError, "got None"),
    ],
)
def test_transforms_are_checked(transform: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fitted(FRAME, numeric_transform=transform)


def test_a_transform_for_each_column() -> None:
    encoding = fitted(FRAME, numeric_transform={"visits": "quantile"})
    assert [feature.transform for feature in encoding.features if isinstance(feature, NumericEncoding)] == [
        "standard",
        "quantile",
    ]


# --- numbers --------------------------------------------------------------------------------------------------------


@given(st.lists(st.one_of(st.floats(-1e9, 1e9), st.none()), min_size=1), st.sampled_from(["standard", "quantile"]))
def test_laws_of_numeric_columns(numbers: list[float | None], transform: Any) -> None:
    (column,) = read_table([[number] for number in numbers])
    encoding = NumericEncoding.fit(column, transform)
    values, levels = encoding.encode(column.values)
    there = ~np.isnan(column.values)
    assert np.isfinite(values).all()
    np.testing.assert_array_equal(levels, np.where(there, -1, 0))
    np.testing.assert_array_equal(values[there], encoding.forward(column.values[there]))
    assert not values[~there].any()
    edges, counts = encoding.histogram
    assert counts.sum() == there.sum() == len(numbers) - encoding.missing
    if there.any():
        assert encoding.minimum == column.values[there].min()
        assert encoding.maximum == column.values[there].max()
        assert (edges[0] <= encoding.minimum) & (encoding.maximum <= edges[-1])
        grid = encoding.grid(7)
        assert (grid[0], grid[-1]) == (encoding.minimum, encoding.maximum)
        assert encoding.forward(grid).shape == (7,)


@pytest.mark.parametrize("numbers", [np.linspace(-3, 5, 1_001), [0.1, 0.1, 7.0], [1e17, 1e17 + 64], [0.0, 5e-324]])
def test_the_histogram_counts_its_bins(numbers: Any) -> None:
    edges, counts = only(list(numbers)).histogram
    assert (edges.shape, counts.shape) == ((31,), (30,))
    assert (np.diff(edges) >= 0).all()
    assert edges[-1] > edges[0]
    assert counts.sum() == len(numbers)
    if len(numbers) > 1_000:
        np.testing.assert_allclose(counts, np.histogram(numbers, edges)[0], atol=1)


@pytest.mark.parametrize("value", [0.0, 3.0, 1e17, -1e-5])
def test_a_constant_column(value: float) -> None:
    encoding = only([value] * 5)
    np.testing.assert_array_equal(encoding.grid(3), [value] * 3)
    np.testing.assert_array_equal(encoding.forward(np.array([value])), [0.0])
    assert encoding.histogram[1].sum() == 5


def test_encoding_leaves_the_column_as_it_was() -> None:
    (column,) = read_table([[1.0], [None], [3.0]])
    before = column.values.copy()
    NumericEncoding.fit(column).encode(column.values)
    np.testing.assert_array_equal(column.values, before)


# --- a real table ---------------------------------------------------------------------------------------------------


def test_adult_is_read_and_encoded_in_no_time(reference_data: Path) -> None:
    adult = pd.read_csv(
        reference_data / "tabular" / "adult-train.csv", header=None, skipinitialspace=True, na_values="?"
    ).iloc[:, :14]
    adult.columns = [f"column {j}" for j in adult.columns]
    start = time.process_time()  # others may keep the machine busy
    columns = read_table(adult)
    encoding = TableEncoding.fit(columns, numeric_transform={"column 10": "quantile"})
    encoded = encoding.encode(columns)
    seconds = time.process_time() - start
    assert encoded.values.shape == (32_561, 14)
    assert sum(isinstance(feature, CategoricalEncoding) for feature in encoding.features) == 8
    assert [feature.missing for feature in encoding.features] == adult.isna().sum().tolist()
    gain = encoded.values[:, 10]
    assert np.unique(gain).size == adult["column 10"].nunique()
    assert seconds < 5.0  # 0.15 on a quiet machine


def test_a_weight_is_so_many_rows() -> None:
    weights = np.array([2.0, 1.0, 3.0, 1.0])
    columns = read_table(FRAME)
    weighted = TableEncoding.fit(columns, weights=weights)
    repeated = TableEncoding.fit(read_table(FRAME.loc[FRAME.index.repeat([2, 1, 3, 1])]))
    for found, expected in zip(weighted.features, repeated.features, strict=True):
        np.testing.assert_array_equal(found.counts, expected.counts)
        assert found.missing == expected.missing
    np.testing.assert_allclose(weighted.encode(columns).values, repeated.encode(columns).values, rtol=1e-12)
