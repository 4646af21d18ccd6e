"""Delimited text is read as it is: every record whole, every cell what it says, every complaint at its line."""

import csv
import io
from functools import partial
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayescope.cli import Roles, open_source, read_training_table
from bayescope.cli.source import CELLS, ROWS, all_blocks, place_of
from bayescope.cli.text import TextSource
from bayescope.errors import InputError, MemoryBudgetError
from bayescope.memory import memory_limit
from tests.cli.tables import written
from tests.conditions import calls

GOOD = "width,height,kind\n1,2.5,a\n2,1.5,b\n3,0.5,a\n4,3.5,b\n"
KINDS = {"width": "numeric", "height": "numeric", "kind": "categorical"}


def read(table, kinds=KINDS, rows=100):
    source = table if isinstance(table, TextSource) else open_source(table)
    parts = [block.read(kinds) for block in source.blocks(rows)]
    return {name: np.concatenate([part[name] for part in parts]).tolist() for name in kinds}


def bounded(path, longest_line):
    """A table whose lines may have fewer characters than those of others."""
    return TextSource(str(path), ",", partial(path.open, "rb"), (), once=False, longest_line=longest_line)


def read_all(path):
    source = open_source(path)
    return [block.copied(source.header) for block in source.blocks(4096)]


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (GOOD, "table.csv"),
        (GOOD.replace(",", "\t"), "table.tsv"),
        (GOOD.replace("\n", "\r\n"), "table.csv"),
        (b"\xef\xbb\xbf" + GOOD.encode(), "table.csv"),
        (GOOD, "TABLE.CSV"),
        (GOOD + "\n\n", "table.csv"),
        (GOOD.replace("\n", "\n\n"), "table.csv"),
        (GOOD.replace(",", ", "), "table.csv"),
        (GOOD.replace("a\n", '"a"\n'), "table.csv"),
        (GOOD.rstrip("\n"), "table.csv"),
    ],
    ids=["plain", "tabs", "windows", "mark", "capitals", "blank end", "blank lines", "spaces", "quotes", "no newline"],
)
@pytest.mark.parametrize("rows", [1, 3, 100])
def test_reads_the_habits_of_other_programs(tmp_path, content, name, rows):
    table = read(written(tmp_path / name, content), rows=rows)
    assert table == {"width": [1, 2, 3, 4], "height": [2.5, 1.5, 0.5, 3.5], "kind": ["a", "b", "a", "b"]}


def test_reads_what_is_compressed(tmp_path):
    frame = pd.read_csv(io.StringIO(GOOD))
    assert read(written(tmp_path / "table.csv.gz", frame)) == read(written(tmp_path / "table.csv", GOOD))


@settings(max_examples=50)
@given(
    cells=st.lists(
        st.lists(st.text(st.characters(exclude_characters="\0\r", codec="utf-8"), max_size=6), min_size=2, max_size=2),
        min_size=1,
        max_size=8,
    ),
    rows=st.integers(1, 9),
)
def test_blocks_hold_the_records_of_the_csv_module(tmp_path_factory, cells, rows):
    """Quotes, line breaks and separators in cells: the same cells in the same order, in blocks of the right size."""
    file = io.StringIO()
    csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([["a", "b"], *cells])
    path = written(tmp_path_factory.mktemp("text") / "table.csv", file.getvalue())
    blocks = list(open_source(path).blocks(rows))
    assert [block.rows for block in blocks[:-1]] == [rows] * (len(blocks) - 1)
    assert pd.concat([block.copied(["a", "b"]) for block in blocks]).to_numpy().tolist() == cells


AWKWARD = [
    "",
    '""',
    '" "',
    "1",
    "NA",
    "a",
    '"a,b"',
    '"x\ny"',
    '"\n"',
    "\xa0",
    "\x0c",
    '"\x0c"',
    "\x0b",
    "\u2028",
    "\ufeff",
    '"q""q"',
    " ",
]


@settings(max_examples=300)
@given(data=st.data(), columns=st.integers(1, 3), chunk=st.sampled_from([1, 2, 3, 100]))
def test_as_many_rows_come_out_as_the_csv_module_reads(tmp_path_factory, data, columns, chunk):
    """Also of one column, where a line of spaces is a row; in a wider table it is a row too short."""
    row = st.lists(st.sampled_from(AWKWARD), min_size=columns, max_size=columns).map(",".join)
    lines = data.draw(st.lists(st.one_of(row, row, st.sampled_from(["", " ", "\t ", " \t"])), max_size=12))
    end = data.draw(st.sampled_from(["\n", "\r\n"]))
    text = end.join([",".join("abc"[:columns]), *lines]) + data.draw(st.sampled_from(["", end]))
    path = written_anew(tmp_path_factory, text.encode())
    records = [record for record in csv.reader(io.StringIO(text, newline=None), skipinitialspace=True) if record][1:]
    if any(len(record) != columns for record in records):
        with pytest.raises(InputError, match=rf"line \d+: expected {columns} cells, as in the header, got 1"):
            list(open_source(path).blocks(chunk))
        return
    blocks = [block.copied(list("abc"[:columns])) for block in open_source(path).blocks(chunk)]
    assert all(len(block) == chunk for block in blocks[:-1])
    assert [row for block in blocks for row in block.to_numpy().tolist()] == records


def test_a_line_of_spaces_is_a_missing_value_of_a_table_of_one_column(tmp_path):
    path = written(tmp_path / "t.csv", "a\n1\n  \n\n2\n ")
    for rows in (1, 2, 100):
        np.testing.assert_array_equal(read(path, {"a": "numeric"}, rows)["a"], [1, np.nan, 2, np.nan])


def written_anew(tmp_path_factory, text):
    return written(tmp_path_factory.mktemp("text") / "table.csv", text)


def test_many_columns_are_read_in_a_time_linear_in_their_number(tmp_path):
    """Each block is parsed once, however many columns it has."""
    names = [f"x{place}" for place in range(300)]
    path = written(tmp_path / "t.csv", "\n".join(",".join(row) for row in [names, ["1"] * 299 + ["a"], ["2"] * 300]))
    source = open_source(path)
    assert calls(partial(source.kinds, names), "read_csv") == 1
    assert [name for name, kind in source.kinds(names).items() if kind == "categorical"] == ["x299"]


@pytest.mark.parametrize("columns", [100, 400])
def test_a_table_is_parsed_for_its_kinds_and_its_cells_and_no_column_by_itself(tmp_path, columns):
    names = [f"x{place}" for place in range(columns)]
    rows = [",".join(map(str, np.arange(columns) + row / 2)) for row in range(3)]
    source = open_source(written(tmp_path / "t.csv", "\n".join([",".join(names), *rows])))
    whole = partial(read_training_table, source, Roles("x0"), task="regression")
    assert calls(whole, "read_csv") == 2
    assert calls(whole, "DataFrame.__getitem__") == 0
    table = whole()
    np.testing.assert_array_equal(table.features.to_numpy(), np.arange(1.0, columns) + np.arange(3)[:, None] / 2)


def test_long_tables_are_read_in_blocks(tmp_path):
    rows = ROWS + 12
    lines = ["a,b,c,kind", *(f"{row},{row + 0.5},{row % 2},{'abx'[row % 3]}" for row in range(rows - 1))]
    path = written(tmp_path / "t.csv", "\n".join([*lines, f"{rows - 1},oops,1,a"]))
    source = open_source(path)
    assert [block.rows for block in all_blocks(source, source.header)] == [ROWS, 12]
    table = read_training_table(source, Roles("kind", drop=["b"]))
    assert table.features["a"].tolist() == list(range(rows))
    for row in (0, ROWS - 1, ROWS, rows - 1):
        assert place_of(source, row) == f"line {row + 2}"


def test_wide_tables_are_read_fewer_rows_at_a_time():
    source = Mock(header=range(4 * CELLS // ROWS), share=None)
    source.blocks.return_value = iter([])
    assert list(all_blocks(source, ["a"])) == []
    source.blocks.assert_called_once_with(ROWS // 4, ["a"])


def test_a_line_without_an_end_is_refused(tmp_path):
    path = written(tmp_path / "t.csv", "a,b\n" + "1,2\n" * 30)
    assert read(bounded(path, 50), {"a": "numeric"})["a"] == [1.0] * 30
    for content in ("1" * 60, "a,b\n1,2\n" + "1" * 60, "a,b\n" + '"x' + "1" * 60):
        with pytest.raises(InputError, match="expected a table of text, got a line of more than 50 characters"):
            read(bounded(written(tmp_path / "t.csv", content), 50), {"a": "numeric"})


def test_a_block_of_more_text_than_memory_holds_is_refused(tmp_path):
    source = bounded(written(tmp_path / "t.csv", "a,b\n" + f"{'x' * 200},2\n" * 400), 1000)
    with memory_limit(20_000):
        with pytest.raises(MemoryBudgetError, match=r"a block of rows with more than [\d,]+ characters"):
            read(source, {"b": "numeric"})
        assert read(source, {"b": "numeric"}, rows=4)["b"] == [2.0] * 400


def test_blank_lines_do_not_fill_the_memory(tmp_path):
    path = written(tmp_path / "t.csv", "a,b\n1,2\n" + "\n" * 1_000_001 + "3,4\n")
    with pytest.raises(InputError, match="from line 3: expected rows, got more than 1,000,000 blank lines"):
        read(path, {"a": "numeric"}, rows=1)


def test_lines_are_those_of_the_file(tmp_path):
    path = written(tmp_path / "t.csv", 'a,b\n\n1,"x\ny"\n2,z\n\n\n3,"q"\n')
    for rows in (1, 2, 9):
        places = [block.place(row) for block in open_source(path).blocks(rows) for row in range(block.rows)]
        assert places == ["line 4", "line 5", "line 8"]


def test_kinds_are_those_of_the_whole_column(tmp_path):
    content = "n,late,truth,empty,hex,big,gaps\n" + "1,1,True,,1,99999999999999999999999,\n" * 3
    content += "1e3,x,False,,0x1F,1, 2\n-.5,2,,NA,2,nan,NULL\n"
    kinds = open_source(written(tmp_path / "t.csv", content)).kinds(
        ["n", "late", "truth", "empty", "hex", "big", "gaps"]
    )
    labels = {name for name, kind in kinds.items() if kind == "categorical"}
    assert labels == {"late", "truth", "hex"}


def test_further_spellings_of_missing(tmp_path):
    path = written(tmp_path / "t.csv", "a,b\n1,x\n?,y\n-999,?\n")
    source = open_source(path, missing=["?", "-999"])
    assert source.kinds(["a"]) == {"a": "numeric"}
    (block,) = source.blocks(9)
    columns = block.read({"a": "numeric", "b": "categorical"})
    np.testing.assert_array_equal(columns["a"], [1, np.nan, np.nan])
    assert columns["b"].tolist() == ["x", "y", None]


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_spelling_of_missing_may_be_of_one_column(tmp_path, name):
    frame = pd.DataFrame({"a": [0.0, 1.0, -9.0], "b": [0.0, -9.0, 2.0], "c=d": ["x", "0", "y"]})
    source = open_source(written(tmp_path / name, frame), missing=["a=0", "c=d=y", "-9"])
    (block,) = source.blocks(9)
    columns = block.read({"a": "numeric", "b": "numeric", "c=d": "categorical"})
    np.testing.assert_array_equal(columns["a"], [np.nan, 1, np.nan])
    np.testing.assert_array_equal(columns["b"], [0, np.nan, 2])
    assert columns["c=d"].tolist() == ["x", "0", None]


def test_whole_numbers_that_took_a_detour_are_the_same_labels(tmp_path):
    path = written(tmp_path / "t.csv", "code\n1\n1.0\n01\n1.5\n\n2.00\n")
    assert read(path, {"code": "categorical"})["code"] == ["1", "1", "01", "1.5", "2"]


def test_cells_are_copied_as_they_stand(tmp_path):
    path = written(tmp_path / "t.csv", "id,x\n007,1\nNA,2\n,3\n1.50,4\n")
    (block,) = open_source(path).blocks(9)
    assert block.copied(["id"])["id"].tolist() == ["007", "NA", "", "1.50"]


BAD = {
    "zero bytes": ("", "expected a header and rows, got an empty file"),
    "blank lines": ("\n\n", "expected a header and rows, got an empty file"),
    "spaces above the header": (" \na,b\n1,2\n", "expected a name for every column, got none for column 1"),
    "spaces at the end": ("a,b\n1,2\n  \n", "line 3: expected 2 cells, as in the header, got 1"),
    "spaces after quotes": ('a,b\n"1",2\n  \n3,4\n', "line 3: expected 2 cells, as in the header, got 1"),
    "binary": (b"PK\x03\x04\x00\x00\x14", "line 1: expected text, got binary data"),
    "zero byte far down": (GOOD * 2000 + "1,\0,a\n", "line 10001: expected text, got binary data"),
    "utf-16": (GOOD.encode("utf-16-le"), "expected text"),
    "a slip in the header": (
        "größe,\xf6\n1,a\n".encode()[:-6] + b"\xf6\n1,a\n",
        "line 1: expected text in UTF-8, got the byte",
    ),
    "a slip in a cell": ("ä,kind\n1,a\n2,".encode() + b"\xf6\n", "line 3: expected text in UTF-8, got the byte 0xf6"),
    "latin-1 far below": (
        b"a,kind\n" + b"1,a\n" * 2**16 + b"2,\xf6\n",
        "line 65538: expected text in UTF-8, got the byte 0xf6",
    ),
    "longer row": ("a,kind\n1,x\n2,y,3,4\n5,x\n", "line 3: expected 2 cells, as in the header, got 4"),
    "shorter row": ("a,b,kind\n1,2,x\n\n3,4\n", "line 4: expected 3 cells, as in the header, got 2"),
    "longer and shorter": ("a,b,c\n1,2\n1,2,3,4\n", "line 2: expected 3 cells, as in the header, got 2"),
    "shorter after quotes": ('a,b\n"1\n2",3\n"4"\n', "line 4: expected 2 cells, as in the header, got 1"),
    "open quote": ('a,b\n1,"x\n2,y\n', "line 2 or below: expected a quoted cell to end"),
    "endless quote": ('a,b\n1,"x\n' + "2,y\n" * 40_000, "line 2 or below: expected a quoted cell to end"),
    "a slip in each row": (
        "a;b;kind\n1;2\n1\n",
        "line 2: expected 3 cells, as in the header, got 2; other numbers of cells are also in line 3. Correct",
    ),
    "no header": ("6,148,72,1\n1,85,66,0\n", "the first row looks like data. Put a line of names above it"),
    "unnamed column": (",a,kind\n0,1,x\n", "got none for column 1. Name it, or drop it if it is a row index"),
    "same name twice": ("a,a,kind\n1,2,x\n", "expected each column name once, got 'a' more than once"),
}


@pytest.mark.parametrize(("content", "message"), BAD.values(), ids=BAD.keys())
def test_refuses(tmp_path, content, message):
    path = written(tmp_path / "table.csv", content)
    with pytest.raises(InputError) as refusal:
        read_all(path)
    text = str(refusal.value)
    assert text.startswith(f"{path}: ")
    assert message in text


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("abc", "expected a number, got 'abc'"),
        ("True", "expected a number, got 'True'"),
        ("1,5", "expected a number, got '1,5'"),
        ("0x1F", "expected a number, got '0x1F'"),
        ("-inf", "expected a finite number, got -inf"),
        ("1e999", "expected a finite number, got inf"),
    ],
)
def test_cells_that_are_no_numbers_are_named_with_their_place(tmp_path, cell, message):
    content = 'a,b\n1,"two\nlines"\n\n' + "2,x\n" * 7 + f'"{cell}",x\n3,x\n'
    path = written(tmp_path / "t.csv", content)
    for rows in (1, 4, 100):
        with pytest.raises(InputError) as refusal:
            read(path, {"a": "numeric"}, rows)
        assert str(refusal.value).startswith(f"{path}: line 12, column 'a': {message}")


def test_running_numbers_are_names(tmp_path):
    source = open_source(written(tmp_path / "t.csv", "0,1,2,kind\n1,5,2,a\n"))
    assert source.header == ("0", "1", "2", "kind")


def test_a_compressed_file_that_ends_early(tmp_path):
    path = written(tmp_path / "whole.csv.gz", pd.DataFrame({"a": np.arange(5000.0), "b": 1}))
    cut = written(tmp_path / "cut.csv.gz", path.read_bytes()[:-900])
    with pytest.raises(InputError, match=r"cut\.csv\.gz: expected a file that can be read to its end"):
        read(cut, {"a": "numeric"})
