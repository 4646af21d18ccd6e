"""Tables on disk: the same columns as in memory, in blocks of any size, from files of any kind."""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as arrow_dataset
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bayescope as bs
from bayescope.errors import InputError, InputTypeError, OptionError
from bayescope.tables import Column, LabelsSeen, Preprocessing, TableSeen, read_table

ROWS = 313


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    source = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "number": source.normal(size=ROWS),
            "whole": source.integers(0, 5, ROWS),
            "text": source.choice(["x", "y", "z"], ROWS),
            "truth": source.random(ROWS) < 0.5,
            "typed": pd.Categorical(source.choice(["p", "q"], ROWS)),
        }
    )
    table.loc[3, "number"], table.loc[[5, 200], "text"] = np.nan, None
    return table


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, frame: pd.DataFrame) -> Path:
    folder = tmp_path_factory.mktemp("table")
    frame[:100].to_parquet(folder / "a.parquet", row_group_size=17)
    frame[100:103].to_parquet(folder / "b.parquet")
    frame[103:].to_parquet(folder / "c.parquet", row_group_size=1000)
    return folder


def assert_same(columns: list[Column], frame: pd.DataFrame) -> None:
    for ours, theirs in zip(columns, read_table(frame), strict=True):
        assert (ours.name, ours.kind, ours.inferred) == (theirs.name, theirs.kind, theirs.inferred)
        assert ours.values.dtype == theirs.values.dtype
        pd.testing.assert_series_equal(pd.Series(ours.values), pd.Series(theirs.values))


@pytest.mark.parametrize("block_rows", [1000, 64, 7])
@pytest.mark.parametrize("parts", [1, 3])
def test_blocks_are_the_table_whatever_the_files(folder: Path, frame: pd.DataFrame, block_rows: int, parts: int):
    table = bs.open_table(folder, block_rows=block_rows)
    assert (table.names, table.rows) == (tuple(frame.columns), ROWS)
    at = 0
    for part in range(parts):
        sizes = []
        for columns in table.blocks(part=(part, parts)):
            sizes.append(len(columns[0].values))
            assert_same(columns, frame[at : at + sizes[-1]])
            at += sizes[-1]
        assert set(sizes[:-1]) <= {block_rows}
        assert abs(sum(sizes) - ROWS / parts) < 1
    assert at == ROWS


def test_columns_come_in_the_order_asked_for(folder: Path):
    table = bs.open_table(folder, columns=["text", "whole", "number"])
    assert table.names == ("text", "whole", "number")
    (columns,) = table.blocks(["number", "text"])
    assert [column.name for column in columns] == ["number", "text"]
    (columns,) = table.blocks(["whole"], categorical=["whole"])
    assert columns[0].kind == "categorical"
    assert set(columns[0].values) == {0, 1, 2, 3, 4}


def test_a_range_of_rows_is_read_across_files(folder: Path, frame: pd.DataFrame):
    table = bs.open_table(folder, block_rows=50)
    assert_same(table.read(None, slice(95, 220)), frame[95:220])
    assert_same(table.read(None, slice(-2, None)), frame[-2:])
    with pytest.raises(InputError, match="one row or more"):
        table.read(None, slice(4, 4))


@given(every=st.integers(2, ROWS), parts=st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_a_split_has_each_row_once(folder: Path, frame: pd.DataFrame, every: int, parts: int):
    rest, apart = bs.open_table(folder, block_rows=90).split(every)
    last = np.arange(ROWS) % every == every - 1
    for table, expected in ((rest, frame["number"][~last]), (apart, frame["number"][last])):
        found = [block[0].values for part in range(parts) for block in table.blocks(["number"], part=(part, parts))]
        assert table.rows == len(expected)
        np.testing.assert_array_equal(np.concatenate(found), expected)
    assert rest.fingerprint() != apart.fingerprint()


@given(gone=st.sets(st.integers(0, ROWS - 1), max_size=ROWS - 1), every=st.integers(2, 9), parts=st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_a_table_without_rows_has_the_others(folder: Path, frame: pd.DataFrame, gone: set[int], every: int, parts: int):
    whole = bs.open_table(folder, block_rows=70)
    table = whole.without(np.array(sorted(gone, reverse=True), dtype=int))
    kept = frame["number"].drop(index=list(gone)).to_numpy()
    tables = [(table, kept)]
    if len(kept) > every:
        last = np.arange(len(kept)) % every == every - 1
        tables += list(zip(table.split(every), (kept[~last], kept[last]), strict=True))
    for some, expected in tables:
        found = [block[0].values for part in range(parts) for block in some.blocks(["number"], part=(part, parts))]
        assert some.rows == len(expected)
        np.testing.assert_array_equal(np.concatenate(found), expected)
    assert (table.fingerprint() == whole.fingerprint()) == (not gone)


def test_rows_that_are_not_there_cannot_be_left_out(folder: Path):
    table = bs.open_table(folder)
    for rows in ([-1], [ROWS], range(ROWS)):
        with pytest.raises(InputError, match="rows: expected numbers from 0 to 312, and not all of them"):
            table.without(np.array(rows))


def test_other_formats_read_alike(tmp_path: Path, frame: pd.DataFrame):
    feather.write_feather(frame, tmp_path / "t.feather")
    assert_same(bs.open_table(tmp_path, block_rows=64).read(None, slice(50, 200)), frame[50:200])
    assert_same(bs.open_table(arrow_dataset.dataset(pa.Table.from_pandas(frame))).read(None, slice(0, ROWS)), frame)
    assert bs.open_table(tmp_path / "t.feather").name == str(tmp_path / "t.feather")


@pytest.fixture(scope="module")
def text() -> str:
    """A table of text with columns of every kind, whose first rows do not tell what stands further down."""
    source = np.random.default_rng(1)
    table = pd.DataFrame(
        {
            "number": source.normal(size=ROWS),
            "half": [*range(ROWS - 1), 0.5],
            "whole": source.integers(0, 5, ROWS),
            "id": 2**53 + source.integers(0, 9, ROWS),
            "text": source.choice(["x", "y", "", "NA", "None", "<NA>", '"quoted, too"'], ROWS),
            "truth": source.choice(["true", "false"], ROWS),
            "gaps": source.choice(["True", "False", "null"], ROWS),
            "mostly": [*source.choice(["true", "false"], ROWS - 1), "perhaps"],
            "late": [*[""] * (ROWS - 1), "7.5"],
            "empty": [""] * ROWS,
            "y": source.choice(["no", "yes"], ROWS),
        }
    )
    table.loc[9, "number"] = np.nan
    lines = [",".join(table.columns), *(",".join(map(str, row)) for row in table.itertuples(index=False))]
    return "\n".join(lines).replace("nan", "")


@pytest.mark.parametrize("cuts", [(), (100, 103)], ids=["one file", "a directory"])
def test_text_is_encoded_as_in_memory(tmp_path: Path, text: str, cuts: tuple[int, ...]) -> None:
    header, *lines = text.split("\n")
    for part, (start, stop) in enumerate(pairwise((0, *cuts, ROWS))):
        (tmp_path / f"{part}.csv").write_text("\n".join([header, *lines[start:stop]]) + "\n")
    table = bs.open_table(tmp_path if cuts else tmp_path / "0.csv", block_rows=64)
    given = pd.read_csv(io.StringIO(text))
    labels = ["id", "whole"]
    held = read_table(given, categorical=labels)
    for ours, theirs in zip(table.read(None, slice(None), categorical=labels), held, strict=True):
        assert (ours.name, ours.kind) == (theirs.name, theirs.kind)
        pd.testing.assert_series_equal(pd.Series(ours.values), pd.Series(theirs.values))
    for encoding in ("one_hot", "ordinal"):
        kinds = {column.name: column.kind for column in held}
        streamed = TableSeen(kinds, scaling="standard", encoding=encoding)
        start = 0
        for block in table.blocks(categorical=labels):
            count = len(block[0].values)
            streamed.add(block, np.ones(count), np.arange(start, start + count))
            start += count
        ours = streamed.preprocessing()
        theirs, numbers = Preprocessing.fit(held, None, scaling="standard", encoding=encoding)
        assert ours.names == theirs.names
        np.testing.assert_allclose(ours(held), numbers, rtol=1e-9, atol=1e-12)


def test_what_stands_beyond_the_first_rows_of_text_counts(tmp_path: Path) -> None:
    """pyarrow tells the types of a column by the first MiB."""
    rows = [f"{2**53 + row % 3},{row},true,\n" for row in range(60_000)]
    (tmp_path / "t.csv").write_text("".join(["id,half,truth,late\n", *rows, "1,0.5,perhaps,7.5\n"]))
    assert (tmp_path / "t.csv").stat().st_size > 2**20
    table = bs.open_table(tmp_path)
    identity, half, truth, late = table.read(None, slice(59_990, None), categorical=["id"])
    assert set(identity.values) == {1, 2**53, 2**53 + 1, 2**53 + 2}
    assert (half.values[-1], truth.values[-1], late.values[-1]) == (0.5, "perhaps", 7.5)
    assert np.isnan(late.values[0])


def test_types_of_all_files_count(tmp_path: Path) -> None:
    """Whole numbers in the first file and halves in the second are numbers; text with a dictionary is text."""
    first, second = tmp_path / "a.parquet", tmp_path / "b.parquet"
    pd.DataFrame({"x": [1, 2], "c": pd.Categorical(["p", "q"])}).to_parquet(first)
    pd.DataFrame({"x": [1.5], "c": ["r"]}).to_parquet(second)
    table = bs.open_table(tmp_path)
    (batch, last) = table.batches(["x", "c"], 10)
    assert pa.Table.from_batches([batch, last]).to_pydict() == {"x": [1.0, 2.0, 1.5], "c": ["p", "q", "r"]}
    assert table.read(["c"], slice(None))[0].categories is None
    pd.DataFrame({"x": [1.5], "c": [True]}).to_parquet(second)
    with pytest.raises(InputError, match=r"b\.parquet: column 'c': expected string, as in other files, got bool"):
        bs.open_table(tmp_path)


def test_record_batches_are_of_the_rows_that_are_left(tmp_path: Path) -> None:
    for name, start in (("a", 0), ("b", 11)):
        pd.DataFrame({"x": np.arange(start, start + 11)}).to_parquet(tmp_path / f"{name}.parquet")
    table = bs.open_table(tmp_path)
    rest, fourths = table.split(4)
    assert fourths.read(["x"], slice(None))[0].values.tolist() == [3, 7, 11, 15, 19]
    for some in (table, rest, fourths, rest.without(np.array([0, 5, 6]))):
        batches = list(some.batches(["x"], 3))
        left = pa.Table.from_batches(batches).column("x").to_pylist()
        assert left == some.read(["x"], slice(None))[0].values.tolist()
        assert max(batch.num_rows for batch in batches) <= 3


def test_declared_labels_keep_their_order(tmp_path: Path) -> None:
    """Those of all files: a block that spans two, a file whose dictionary is longer than its rows."""
    parts = [["lo", "hi", "mid", "top"], ["lo", "hi", "mid", "end"]]
    for part, order in enumerate(parts):
        pd.DataFrame({"s": pd.Categorical(["mid", "lo"], order)}).to_parquet(tmp_path / f"{part}.parquet")
    assert bs.open_table(tmp_path).read(["s"], slice(None))[0].categories == ("lo", "hi", "mid", "top", "end")
    seen = LabelsSeen("s")
    for rows in (slice(0, 2), slice(2, 4)):
        (column,) = bs.open_table(tmp_path).read(None, rows)
        seen.add(column, np.ones(2))
    assert seen.encoding().categories == ("lo", "hi", "mid", "top", "end")
    assert LabelsSeen("s").joined(seen).encoding().counts.tolist() == [2, 0, 2, 0, 0]


def test_a_filter_is_kept(folder: Path, frame: pd.DataFrame):
    dataset = arrow_dataset.dataset(folder).filter(arrow_dataset.field("whole") < 2)
    table = bs.open_table(dataset, block_rows=20)
    assert table.rows == (frame["whole"] < 2).sum()
    found = np.concatenate([block[0].values for block in table.blocks(["number"])])
    np.testing.assert_array_equal(found, frame["number"][frame["whole"] < 2])


def test_folders_that_name_values_are_columns(tmp_path: Path, frame: pd.DataFrame):
    for year, part in ((2020, frame[:10]), (2021, frame[10:30])):
        (tmp_path / f"year={year}").mkdir()
        part.to_parquet(tmp_path / f"year={year}" / "rows.parquet")
    folders = [tmp_path / "year=2020", tmp_path / "year=2021"]
    for source in (tmp_path, tmp_path / "*" / "rows.parquet", folders):
        table = bs.open_table(source)
        assert table.names[-1] == "year"
        assert table.read(["year", "whole"], slice(8, 12))[0].values.tolist() == [2020, 2020, 2021, 2021]


def test_a_column_without_values_in_one_file_has_the_type_of_the_others(tmp_path: Path):
    pd.DataFrame({"x": [1.0, 2.0], "label": [None, None]}).to_parquet(tmp_path / "a.parquet")
    pd.DataFrame({"x": [3.0], "label": ["red"]}).to_parquet(tmp_path / "b.parquet")
    label = bs.open_table(tmp_path).read(["label"], slice(0, 3))[0]
    assert (label.kind, label.values.tolist()) == ("categorical", [None, None, "red"])


def test_a_fingerprint_tells_tables_apart(tmp_path: Path, frame: pd.DataFrame):
    frame.to_parquet(tmp_path / "t.parquet")
    first = bs.open_table(tmp_path).fingerprint()
    assert first == bs.open_table(tmp_path / "t.parquet").fingerprint()
    assert first != bs.open_table(tmp_path, columns=["number"]).fingerprint()
    frame.assign(number=frame["number"] + 1.0).to_parquet(tmp_path / "t.parquet")
    assert bs.open_table(tmp_path).fingerprint() != first


def test_a_pass_that_is_left_early_ends(folder: Path):
    blocks = iter(bs.open_table(folder, block_rows=5).blocks())
    next(blocks)
    blocks.close()  # type: ignore[attr-defined]


def test_sources_that_cannot_be_opened_are_told(tmp_path: Path, frame: pd.DataFrame):
    with pytest.raises(InputError, match="got none of that name"):
        bs.open_table(tmp_path / "missing")
    with pytest.raises(InputError, match="some file fits"):
        bs.open_table(tmp_path / "*.parquet")
    with pytest.raises(InputError, match="got none in it"):
        bs.open_table(tmp_path)
    with pytest.raises(InputTypeError, match="source: expected a path"):
        bs.open_table(3)
    for nothing in ("", []):
        with pytest.raises(InputTypeError, match="source: expected a path"):
            bs.open_table(nothing)
    frame.to_parquet(tmp_path / "t.parquet")
    with pytest.raises(OptionError, match="Did you mean 'number'"):
        bs.open_table(tmp_path, columns=["nummber"])
    with pytest.raises(InputError, match=r"columns: .*Write \['number'\]"):
        bs.open_table(tmp_path, columns="number")
    frame.drop(columns="typed").to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(InputError, match=r"t\.csv: expected files of one format, got .*t\.parquet"):
        bs.open_table(tmp_path)
    frame[:0].to_parquet(tmp_path / "empty.parquet")
    with pytest.raises(InputError, match="expected rows, got none in 1 files"):
        bs.open_table(tmp_path / "empty.parquet")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda frame: frame.drop(columns="text"), "no column 'text'"),
        (lambda frame: frame.assign(more=1.0), "the unknown column 'more'"),
        (lambda frame: frame.assign(number="a"), "column 'number': expected double"),
    ],
)
def test_files_of_other_columns_are_told(tmp_path: Path, frame: pd.DataFrame, change, said: str):
    frame.to_parquet(tmp_path / "a.parquet")
    change(frame).to_parquet(tmp_path / "b.parquet")
    with pytest.raises(InputError, match=rf"b\.parquet.*{said}"):
        bs.open_table(tmp_path)
    assert bs.open_table(tmp_path, columns=["whole"]).rows == 2 * ROWS


def test_what_stands_in_the_files_is_told(tmp_path: Path, frame: pd.DataFrame):
    path = tmp_path / "t.parquet"
    frame.assign(when=pd.Timestamp("2020-01-01"), nested=[[1]] * ROWS).to_parquet(path)
    table = bs.open_table(path)
    with pytest.raises(InputTypeError, match=r"'when' \(timestamp.*'nested' \(list"):
        table.blocks()
    assert len(next(iter(table.blocks(["number"])))) == 1
    with pytest.raises(OptionError, match="column: expected one of"):
        table.blocks(["nobody"])
    frame.assign(number=[0.0] * 250 + [np.inf] * 63).to_parquet(path)
    with pytest.raises(InputError, match="got inf in row 250"):
        list(bs.open_table(path, block_rows=100).blocks())
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"t\.parquet: expected a table that can be read"):
        bs.open_table(path)


def test_damaged_files_are_told(tmp_path: Path) -> None:
    text = pa.StringArray.from_buffers(2, pa.py_buffer(np.array([0, 1, 2], dtype=np.int32)), pa.py_buffer(b"\xff\xfe"))
    pq.write_table(pa.table({"c": text}), tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"t\.parquet: column 'c': expected text in UTF-8, got the byte 0xff"):
        bs.open_table(tmp_path).read(["c"], slice(None))
    numbers = pa.table({"x": np.arange(4000.0)})
    pq.write_table(numbers, tmp_path / "t.parquet", write_page_checksum=True, compression=None, use_dictionary=False)
    damaged = bytearray((tmp_path / "t.parquet").read_bytes())
    damaged[16_000] ^= 1
    (tmp_path / "t.parquet").write_bytes(damaged)
    with pytest.raises(InputError, match=r"t\.parquet: expected a table that can be read.*(?i:crc|checksum)"):
        bs.open_table(tmp_path).read(["x"], slice(None))


def test_a_file_that_goes_away_is_told(tmp_path: Path, frame: pd.DataFrame):
    frame.to_parquet(tmp_path / "t.parquet")
    table = bs.open_table(tmp_path)
    (tmp_path / "t.parquet").unlink()
    with pytest.raises(InputError, match="expected a table that can be read"):
        list(table.blocks())


def test_one_row_group_of_all_rows_is_not_decoded_at_once(tmp_path: Path):
    """What Arrow has allocated at the most while 400,000 rows pass is a small part of the 32 MB that they take."""
    rows, columns = 400_000, 10
    table = pa.table({f"x{j}": np.random.default_rng(j).normal(size=rows) for j in range(columns)})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=rows, use_dictionary=False, data_page_size=2**16)
    del table
    pool = pa.default_memory_pool()
    before, most = pool.bytes_allocated(), 0
    for _ in bs.open_table(tmp_path, block_rows=10_000).blocks():
        most = max(most, pool.bytes_allocated() - before)
    assert most < 0.4 * rows * columns * 8


def test_a_file_without_a_row_group_adds_no_rows(tmp_path: Path) -> None:
    rows = pa.table({"x": [1.0, 2.0]})
    pq.write_table(rows, tmp_path / "b.parquet")
    pq.ParquetWriter(tmp_path / "a.parquet", rows.schema).close()
    empty = next(part for part in bs.open_table(str(tmp_path))._parts if part.rows == 0)
    assert list(empty.batches(["x"], 0, 0, 10)) == []
