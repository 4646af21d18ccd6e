"""Tables of every library give the same columns; what is no table is refused by name."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse

from bayescope.errors import BayescopeError, InputError, InputTypeError, OptionError
from bayescope.tables import Column, TableEncoding, read_table
from tests.conditions import calls

# One table of every kind of column, row by row.
TITLES = ["age", "visits", "smoker", "ward", "dose"]
ROWS: list[list[Any]] = [
    [61.5, 3, True, "surgery", Decimal("0.25")],
    [None, 1, False, None, Decimal("1.5")],
    [47.0, None, None, "medicine", None],
    [33.25, 7, True, "surgery", Decimal(-2)],
]


def as_pandas() -> pd.DataFrame:
    return pd.DataFrame({title: [row[j] for row in ROWS] for j, title in enumerate(TITLES)})


def as_pandas_nullable() -> pd.DataFrame:
    return as_pandas().astype({"age": "Float64", "visits": "Int64", "smoker": "boolean", "ward": "string"})


def as_pandas_of_objects() -> pd.DataFrame:
    return as_pandas().astype(object)


def as_pandas_categorical() -> pd.DataFrame:
    return as_pandas().astype({"ward": "category"})


def as_polars() -> Any:
    polars = pytest.importorskip("polars")
    return polars.DataFrame({title: [row[j] for row in ROWS] for j, title in enumerate(TITLES)})


def as_polars_categorical() -> Any:
    polars = pytest.importorskip("polars")
    return as_polars().with_columns(polars.col("ward").cast(polars.Categorical))


def as_polars_enum() -> Any:
    polars = pytest.importorskip("polars")
    return as_polars().with_columns(polars.col("ward").cast(polars.Enum(["medicine", "surgery"])))


def as_arrow() -> Any:
    pytest.importorskip("pyarrow")
    return as_polars().to_arrow()


def as_arrow_dictionary() -> Any:
    pyarrow = pytest.importorskip("pyarrow")
    table = as_arrow()
    place = table.schema.names.index("ward")
    return table.set_column(place, "ward", table["ward"].cast(pyarrow.string()).dictionary_encode())


class Interchange:
    """A frame of a library nobody knows, which speaks the interchange protocol."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame

    def __dataframe__(self, **options: Any) -> Any:
        return self._frame.__dataframe__(**options)


class Arraylike:
    """What has nothing but ``__array__``."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self._array, dtype=dtype)


MAKERS: list[Callable[[], Any]] = [
    as_pandas,
    as_pandas_nullable,
    as_pandas_of_objects,
    as_pandas_categorical,
    as_polars,
    as_polars_categorical,
    as_polars_enum,
    as_arrow,
    as_arrow_dictionary,
    lambda: ROWS,
    lambda: [tuple(row) for row in ROWS],
    lambda: np.array(ROWS, dtype=object),
    lambda: Arraylike(np.array(ROWS, dtype=object)),
]


def equal(left: Column, right: Column) -> bool:
    same = np.array_equal(left.values, right.values, equal_nan=left.kind == "numeric")
    return left.kind == right.kind and left.values.dtype == right.values.dtype and same


@pytest.mark.parametrize("make", MAKERS)
def test_every_library_gives_the_same_columns(make: Callable[[], Any]) -> None:
    columns = read_table(make(), names=TITLES)
    assert [column.name for column in columns] == TITLES
    assert [column.kind for column in columns] == ["numeric", "numeric", "categorical", "categorical", "numeric"]
    np.testing.assert_array_equal(columns[0].values, [61.5, np.nan, 47.0, 33.25])
    np.testing.assert_array_equal(columns[1].values, [3.0, 1.0, np.nan, 7.0])
    assert columns[2].values.tolist() == [True, False, None, True]
    assert columns[3].values.tolist() == ["surgery", None, "medicine", "surgery"]
    np.testing.assert_array_equal(columns[4].values, [0.25, 1.5, np.nan, -2.0])
    assert [column.values.dtype for column in columns] == [float, float, object, object, float]


@pytest.mark.parametrize("make", MAKERS)
def test_every_library_gives_the_same_encoded_table(make: Callable[[], Any]) -> None:
    columns, expected = read_table(make(), names=TITLES), read_table(as_pandas())
    encoded = TableEncoding.fit(columns).encode(columns)
    wanted = TableEncoding.fit(expected).encode(expected)
    np.testing.assert_array_equal(encoded.values, wanted.values)
    np.testing.assert_array_equal(encoded.levels, wanted.levels)


def test_a_frame_that_only_speaks_the_interchange_protocol() -> None:
    frame = as_pandas()[["age", "ward"]]
    for got, wanted in zip(read_table(Interchange(frame)), read_table(frame), strict=True):
        assert equal(got, wanted)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble, np.int8, np.int64, np.uint64])
@pytest.mark.parametrize("order", ["C", "F"])
def test_numeric_arrays(dtype: Any, order: Any) -> None:
    array = np.arange(12).reshape(4, 3).astype(dtype, order=order)
    columns = read_table(array)
    assert [column.name for column in columns] == ["x0", "x1", "x2"]
    for column, values in zip(columns, array.T, strict=True):
        assert column.kind == "numeric"
        assert column.values.dtype == np.float64
        np.testing.assert_array_equal(column.values, values)


def test_an_array_longer_than_the_blocks_that_are_transposed() -> None:
    array = np.random.default_rng(0).normal(size=(2_000, 3))
    for column, values in zip(read_table(array), array.T, strict=True):
        np.testing.assert_array_equal(column.values, values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32])
def test_tensors(dtype: torch.dtype) -> None:
    tensor = torch.arange(6).reshape(3, 2).to(dtype)
    columns = read_table(tensor.requires_grad_() if dtype.is_floating_point else tensor)
    np.testing.assert_array_equal(np.stack([column.values for column in columns], 1), np.arange(6).reshape(3, 2))


@pytest.mark.parametrize(
    "table", [np.eye(2, dtype=bool), torch.eye(2, dtype=torch.bool), [[True, False], [False, True]]]
)
def test_truth_values_are_labels(table: Any) -> None:
    for column in read_table(table):
        assert column.kind == "categorical"
        assert column.categories == (False, True)
        assert {type(value) for value in column.values} == {bool}


def test_arrays_of_text_are_labels() -> None:
    (column,) = read_table(np.array([["b"], ["a"]]))
    assert column.kind == "categorical"
    assert [type(value) for value in column.values] == [str, str]


def test_a_list_keeps_its_numbers_beside_text() -> None:
    number, text = read_table([[1, "a"], [2.5, "b"]])
    assert (number.kind, text.kind) == ("numeric", "categorical")


def test_numbers_of_every_type_may_stand_in_one_column() -> None:
    cells = [1, 2.5, Decimal("0.5"), Fraction(1, 4), np.float32(3), np.int8(4), None, pd.NA, np.nan]
    (column,) = read_table(pd.DataFrame({"a": pd.Series(cells, dtype=object)}))
    np.testing.assert_array_equal(column.values, [1, 2.5, 0.5, 0.25, 3, 4, np.nan, np.nan, np.nan])


@pytest.mark.parametrize("make", [lambda frame: frame, pd.DataFrame.to_numpy, lambda frame: frame.to_numpy().tolist()])
def test_columns_without_a_value(make: Callable[[pd.DataFrame], Any]) -> None:
    for column in read_table(make(pd.DataFrame({"a": [None, None], "b": [np.nan, np.nan]}))):
        assert column.kind == "numeric"
        assert column.empty
        assert np.isnan(column.values).all()


def test_the_type_of_a_column_without_a_value_tells_its_kind() -> None:
    polars = pytest.importorskip("polars")
    empty = {"text": polars.String, "truth": polars.Boolean, "number": polars.Int8, "nothing": polars.Null}
    columns = read_table(polars.DataFrame({name: [None, None] for name in empty}, schema=empty))
    assert [column.kind for column in columns] == ["numeric", "categorical", "numeric", "numeric"]
    assert all(column.empty for column in columns)
    assert columns[1].categories == (False, True)


@pytest.mark.parametrize("ordered", [True, False])
def test_the_order_of_a_pandas_categorical_is_kept(ordered: bool) -> None:
    sizes = pd.Categorical(["small", "large"], categories=["small", "medium", "large"], ordered=ordered)
    (column,) = read_table(pd.DataFrame({"size": sizes}))
    assert column.categories == ("small", "medium", "large")


def test_the_order_of_a_polars_enum_is_kept_and_that_of_appearance_is_none() -> None:
    polars = pytest.importorskip("polars")
    sizes = polars.Series("size", ["small", "large"])
    (enum,) = read_table(polars.DataFrame(sizes.cast(polars.Enum(["small", "medium", "large"]))))
    (appearance,) = read_table(polars.DataFrame(sizes.cast(polars.Categorical)))
    assert enum.categories == ("small", "medium", "large")
    assert appearance.categories is None


def test_no_rows_are_a_table() -> None:
    for table in (np.empty((0, 2)), pd.DataFrame({"a": [1.0], "b": ["x"]}).iloc[:0]):
        assert [len(column.values) for column in read_table(table)] == [0, 0]


def test_names_that_are_numbers() -> None:
    table = np.ones((2, 2))
    assert [column.name for column in read_table(pd.DataFrame(table))] == ["x0", "x1"]
    assert [column.name for column in read_table(pd.DataFrame(table, columns=[2020, 2021]))] == ["2020", "2021"]


def test_numeric_columns_of_a_frame_are_not_copied() -> None:
    frame = pd.DataFrame({"a": np.arange(5.0)})
    assert np.shares_memory(read_table(frame)[0].values, frame["a"].to_numpy())
    array = np.ones((5, 2), order="F")
    assert np.shares_memory(read_table(array)[0].values, array)


def test_reading_leaves_the_table_as_it_was() -> None:
    frame = as_pandas_of_objects()
    before = frame.copy(deep=True)
    columns = read_table(frame)
    TableEncoding.fit(columns).encode(columns)
    pd.testing.assert_frame_equal(frame, before)


# --- numbers that are labels ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("categorical", [["zip"], [0], [np.int64(0)]])
@pytest.mark.parametrize(
    "zips", [[8001, 3012, None], [8001.0, 3012.0, np.nan], [Decimal(8001), 3012, pd.NA], ["8001", "3012", None]]
)
def test_numbers_that_are_named_are_labels(categorical: list[Any], zips: list[Any]) -> None:
    text = isinstance(zips[0], str)
    for table in (pd.DataFrame({"zip": zips}), [[value] for value in zips]):
        (column,) = read_table(table, categorical=categorical, names=["zip"])
        assert column.kind == "categorical"
        assert column.values.tolist() == (zips if text else [8001, 3012, None])
        assert {type(value) for value in column.values[:2]} == {str if text else int}


def test_long_whole_numbers_are_different_labels() -> None:
    ids = [2**53, 2**53 + 1]  # equal as floats
    for table in (np.array([ids]).T, pd.DataFrame({"x0": ids})):
        (column,) = read_table(table, categorical=["x0"])
        assert column.values.tolist() == ids


def test_labels_of_both_kinds_where_they_are_named() -> None:
    (column,) = read_table([[1], ["a"], [1.5], [True], ["1"]], categorical=[0])
    assert column.values.tolist() == [1, "a", 1.5, True, "1"]


def test_a_categorical_of_numbers_is_one_of_labels() -> None:
    (column,) = read_table(pd.DataFrame({"grade": pd.Categorical([3, 1, 3])}))
    assert column.values.tolist() == [3, 1, 3]
    assert column.categories == (1, 3)


@pytest.mark.parametrize(
    ("categorical", "error", "message"),
    [
        (["zap"], OptionError, "categorical: expected one of 'zip', 'age', got 'zap'. Did you mean 'zip'?"),
        ("zip", InputTypeError, r"Write \['zip'\]"),
        ([2], InputError, "positions 0…1, got 2"),
        ([-1], InputError, "positions 0…1, got -1"),
        ([True], InputError, "got True"),
        ([None], InputError, "got None"),
    ],
)
def test_categorical_names_columns_that_are_there(categorical: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read_table(pd.DataFrame({"zip": [1], "age": [2]}), categorical=categorical)


# --- what is refused ------------------------------------------------------------------------------------------------

DAY = datetime.date(2024, 2, 29)


def frame_of(values: list[Any], dtype: Any = object) -> pd.DataFrame:
    return pd.DataFrame({"fine": np.zeros(len(values)), "bad": pd.Series(values, dtype=dtype)})


COLUMNS: dict[str, tuple[Any, type[BayescopeError], str]] = {
    "numbers and text": (frame_of([1, "a", None]), InputTypeError, "got 1 and 'a'.*categorical="),
    "numbers and truth values": (frame_of([1, True]), InputTypeError, "got 1 and True"),
    "text and truth values": (frame_of(["a", True]), InputTypeError, "got 'a' and True"),
    "datetimes": (frame_of(["2024-02-29"], "datetime64[ns]"), InputTypeError, "got dates. Turn.*days since a date"),
    "durations": (frame_of([1], "timedelta64[ns]"), InputTypeError, "got lengths of time. Turn.*days since a date"),
    "dates, none of them there": (frame_of([None], "datetime64[ns]"), InputTypeError, "days since a date"),
    "periods": (pd.DataFrame({"bad": pd.period_range("2024", periods=2)}), InputTypeError, "days since a date"),
    "dates as objects": (frame_of([DAY]), InputTypeError, r"datetime.date\(2024, 2, 29\).*days since a date"),
    "times as objects": (frame_of([datetime.time(1)]), InputTypeError, "month"),
    "durations as objects": (frame_of([datetime.timedelta(1)]), InputTypeError, "days since"),
    "numpy's durations as objects": (frame_of([np.timedelta64(1, "D"), 1.5]), InputTypeError, "days since"),
    "lists": (frame_of([[1, 2], [3]]), InputTypeError, r"\[1, 2\] \(list\) in row 0"),
    "dicts": (frame_of([1, {"a": 1}]), InputTypeError, "row 1.*argument must be a string or a number"),
    "bytes": (frame_of([b"a"]), InputTypeError, "bytes"),
    "complex numbers": (frame_of([1j], complex), InputError, "Complex data not supported.*Split"),
    "complex objects": (frame_of([1, 1j]), InputError, "Complex data not supported.*row 1"),
    "infinity": (frame_of([0.0, np.inf], float), InputError, "got inf in row 1.*NaN"),
    "minus infinity as an object": (frame_of([None, 3, -np.inf]), InputError, "got -inf in row 2"),
    "too large a number": (frame_of([10**400]), InputError, "1.8e308"),
    "too large a decimal": (frame_of([Decimal("1e400")]), InputError, "inf in row 0"),
    "intervals": (pd.DataFrame({"bad": pd.cut([1, 2], 2)}), InputTypeError, "Interval"),
    "declared dates": (
        pd.DataFrame({"bad": pd.Categorical([None], categories=pd.to_datetime(["2024-02-29"]))}),
        InputTypeError,
        "days since a date",
    ),
    "arbitrary objects": (frame_of([object()]), InputTypeError, "Turn it into numbers or text"),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_a_bad_column_is_refused_by_name(case: str) -> None:
    table, error, message = COLUMNS[case]
    with pytest.raises(error, match=message) as raised:
        read_table(table, name="table")
    assert "column 'bad'" in str(raised.value)
    assert str(raised.value).startswith("table")


def test_infinite_labels_are_refused() -> None:
    with pytest.raises(InputError, match="column 'x0', got inf in row 1"):
        read_table([[1.0], [np.inf]], categorical=[0])


@pytest.mark.parametrize("dtype", ["Date", "Datetime", "Time", "Duration", "Binary", "List", "Struct", "Object"])
def test_bad_columns_of_polars_and_arrow(dtype: str) -> None:
    polars = pytest.importorskip("polars")
    value = {
        "Date": DAY,
        "Datetime": datetime.datetime(2024, 2, 29),
        "Time": datetime.time(1),
        "Duration": datetime.timedelta(1),
        "Binary": b"a",
        "List": [1],
        "Struct": {"a": 1},
        "Object": object(),
    }[dtype]
    frame = polars.DataFrame(
        {"fine": [1.0], "bad": polars.Series([value], dtype=getattr(polars, dtype) if dtype == "Object" else None)}
    )
    for table in [frame] if dtype == "Object" else [frame, frame.to_arrow()]:
        with pytest.raises(InputTypeError, match=r"'bad'.*(days since|Turn it into)"):
            read_table(table)


def twice() -> pd.DataFrame:
    return pd.DataFrame(np.ones((2, 2)), columns=["a", "a"])


TABLES: dict[str, tuple[Any, type[BayescopeError], str]] = {
    "one dimension": (np.ones(3), InputError, "Expected 2D array, got 1D array instead. Reshape your data"),
    "a series": (pd.Series([1.0, 2.0]), InputError, "Reshape your data"),
    "a list of numbers": ([1.0, 2.0], InputError, "Reshape your data"),
    "a list of text": (["ab", "cd"], InputError, "Reshape your data"),
    "an empty list": ([], InputError, "Reshape your data"),
    "three dimensions": (np.ones((2, 2, 2)), InputError, r"shape \(2, 2, 2\)"),
    "a number": (3.0, InputTypeError, "got float"),
    "nothing": (None, InputTypeError, "got NoneType"),
    "text": ("table.csv", InputTypeError, "got str"),
    "a dict": ({"a": [1]}, InputTypeError, "DataFrame.*got dict"),
    "ragged rows": ([[1], [1, 2]], InputError, "rows of one length"),
    "no columns": (np.empty((5, 0)), InputError, r"0 feature\(s\) \(shape=\(5, 0\)\) while a minimum of 1 is required"),
    "a frame without columns": (pd.DataFrame(index=range(2)), InputError, r"0 feature\(s\) \(shape=\(2, 0\)\)"),
    "complex": (np.ones((2, 2), complex), InputError, "Complex data not supported"),
    "dates": (np.array([["2024-02-29"]], dtype="datetime64[D]"), InputTypeError, "'x0', got dates.*days since a date"),
    "bytes": (np.array([[b"a"]]), InputTypeError, r"dtype \|S1"),
    "records": (np.ones((1, 2), dtype=[("a", float)]), InputTypeError, "DataFrame"),
    "a masked array": (np.ma.ones((2, 2)), InputTypeError, r"filled\(numpy.nan\)"),
    "sparse": (sparse.csr_array(np.eye(2)), InputError, "Sparse.*toarray"),
    "a sparse matrix": (sparse.coo_matrix(np.eye(2)), InputError, "Sparse"),
    "a sparse tensor": (torch.eye(2).to_sparse(), InputError, "Sparse.*to_dense"),
    "two columns of one name": (twice(), InputError, "'a' 2 times.*Rename"),
    "two columns of one text": (pd.DataFrame([[1, 2]], columns=["1", 1]), InputError, "got '1' at positions 0 and 1"),
    "an infinite number": (np.array([[1.0, 2.0], [np.inf, 0.0]]), InputError, "'x0', got inf in row 1"),
}


@pytest.mark.parametrize("case", TABLES)
def test_what_is_no_table_is_refused(case: str) -> None:
    table, error, message = TABLES[case]
    with pytest.raises(error, match=message) as raised:
        read_table(table, name="table")
    assert str(raised.value).startswith("table")


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
def test_a_compressed_tensor_is_sparse_too() -> None:
    with pytest.raises(InputError, match="Sparse"):
        read_table(torch.eye(2).to_sparse_csr())


def test_arrow_names_twice() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    with pytest.raises(InputError, match="'a' 2 times"):
        read_table(pyarrow.table([[1], [2]], names=["a", "a"]))


def test_a_query_that_has_not_run_is_refused() -> None:
    polars = pytest.importorskip("polars")
    with pytest.raises(InputTypeError, match=r"X.collect\(\)"):
        read_table(polars.LazyFrame({"a": [1]}))


def test_an_array_of_another_width_than_the_names() -> None:
    with pytest.raises(InputError, match="X has 1 features, but bayescope is expecting 2 features as input: 'a', 'b'"):
        read_table(np.ones((3, 1)), names=["a", "b"])


def test_the_names_of_a_frame_are_not_listed_for_each_column() -> None:
    """That would take a time quadratic in the columns."""
    for width in (5, 50):
        frame = pd.DataFrame(np.ones((2, width)), columns=[f"c{k}" for k in range(width)])
        assert [column.name for column in read_table(frame)] == [f"c{k}" for k in range(width)]
        assert 0 < calls(partial(read_table, frame), pd.Index.tolist.__qualname__) < 5


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_a_table_with_more_columns_than_rows_has_the_columns_of_its_arrays(library: str) -> None:
    package = pytest.importorskip(library)
    arrays = {
        "float": np.array([0.5, np.nan, 3.0]),
        "small": np.array([0.1, 2.0, 3.0], dtype=np.float32),
        "whole": np.array([2**40 + 1, -1, 0]),
        "byte": np.array([200, 0, 7], dtype=np.uint8),
        "code": np.array([3, 1, 3]),
    }
    make = {"pandas": "DataFrame", "polars": "DataFrame", "pyarrow": "table"}[library]
    columns = read_table(getattr(package, make)(arrays), categorical=["code"])
    for column, (name, expected) in zip(columns, arrays.items(), strict=True):
        assert (column.name, column.kind) == (name, "categorical" if name == "code" else "numeric")
        np.testing.assert_array_equal(column.values.astype(np.float64), expected.astype(np.float64))
    with pytest.raises(InputError, match=r"expected finite numbers in column 'float', got inf in row 1"):
        read_table(getattr(package, make)({**arrays, "float": np.array([0.5, np.inf, 3.0])}))


def test_a_wide_table_of_nullable_numbers_keeps_its_gaps() -> None:
    frame = pd.DataFrame({"a": [1, None], "b": [0.5, 2.0], "c": [None, 2]}).astype({"a": "Int64", "c": "Int64"})
    first, _, last = read_table(frame)
    np.testing.assert_array_equal(first.values, [1.0, np.nan])
    np.testing.assert_array_equal(last.values, [np.nan, 2.0])
