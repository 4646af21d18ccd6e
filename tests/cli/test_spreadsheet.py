"""Sheets of spreadsheets are tables like those of text."""

import datetime

import numpy as np
import pandas as pd
import pytest

from bayescope.cli import open_source
from bayescope.cli.text_format import TextFormat
from bayescope.errors import InputError
from tests.cli.tables import mixed, refused, run, written

openpyxl = pytest.importorskip("openpyxl", reason="reads and writes spreadsheets; it comes with the extra excel")


def book(path, **sheets):
    """A file with these sheets, each a list of rows."""
    made = openpyxl.Workbook()
    made.remove(made.active)
    for name, rows in sheets.items():
        sheet = made.create_sheet(name)
        for row in rows:
            sheet.append(row)
    made.save(path)
    return path


def rows_of(frame):
    return [list(frame.columns), *frame.astype(object).where(frame.notna(), None).values.tolist()]


def test_a_sheet_is_the_table_that_its_text_is(tmp_path):
    frame = mixed(40)
    text, sheet = (
        open_source(written(tmp_path / "t.csv", frame)),
        open_source(book(tmp_path / "t.xlsx", a=rows_of(frame))),
    )
    assert sheet.header == text.header
    kinds = text.kinds(text.header)
    assert sheet.kinds(sheet.header) == kinds
    ((one,), (other,)) = (list(each.blocks(99)) for each in (text, sheet))
    for name, values in one.read(kinds).items():
        np.testing.assert_array_equal(other.read(kinds)[name], values, strict=True)
    assert sheet.notes == ()


def test_the_sheet_is_named_or_the_first(tmp_path):
    path = book(tmp_path / "t.xlsx", first=[["a", "b"], [1, 2]], second=[["c"], [3]])
    assert open_source(path).header == ("a", "b")
    assert "the sheet 'first' is read, the first of 2" in open_source(path).notes[0]
    for name in ("second", "2"):
        opened = open_source(path, form=TextFormat(sheet=name))
        assert (opened.header, opened.notes) == (("c",), ())
    with pytest.raises(
        InputError, match=r"--sheet: expected a sheet of .*, or its number from 1 to 2, got 'secnd'.*'second'"
    ):
        open_source(path, form=TextFormat(sheet="secnd"))
    with pytest.raises(InputError, match="--sep: expected none for"):
        open_source(path, form=TextFormat(sep=";"))


def test_cells_of_every_type_and_what_surrounds_them(tmp_path):
    when = datetime.datetime(2024, 5, 1)
    rows = [
        [None, None, None, None, None],
        ["day", "time", "yes", 'text, with "all"\nin it', None],
        [when, when + datetime.timedelta(hours=10.5), True, "x\ny", None],
        [None, None, None, None, None],
        [None, 3.0, False, None, None],
    ]
    source = open_source(book(tmp_path / "t.xlsx", a=rows))
    (block,) = source.blocks(9)
    copied = block.copied(source.header)
    assert copied.values.tolist() == [["2024-05-01", "2024-05-01 10:30:00", "True", "x\ny"], ["", "3", "False", ""]]


def test_messages_name_the_row_of_the_sheet(tmp_path):
    """Whatever line breaks cells above have."""
    rows = [["a\nb", "c"], ["x\r\ny\nz", 1], [None, None], ["x", 2], ["u\nv", 3]]
    (block,) = open_source(book(tmp_path / "t.xlsx", a=rows)).blocks(9)
    assert [block.place(row) for row in range(block.rows)] == ["row 2", "row 4", "row 5"]


def test_a_formula_without_a_value_is_no_missing_value(tmp_path):
    path = book(tmp_path / "t.xlsx", a=[["x", "y"], [1, 2], [2, "=A2+1"]])
    with pytest.raises(
        InputError, match="sheet 'a', cell B3: expected a value, got a formula that was never calculated"
    ):
        open_source(path)


def test_a_damaged_file_is_bad_input(tmp_path):
    path = book(tmp_path / "t.xlsx", a=[["x"], [1]])
    cut = written(tmp_path / "cut.xlsx", path.read_bytes()[:-40])
    for bad in (cut, written(tmp_path / "no.xlsx", "x\n1\n")):
        assert refused(run("check", bad), "expected a spreadsheet that can be read, got: ")


def test_a_model_of_a_sheet_predicts_text(tmp_path):
    frame = mixed(60).drop(columns=["id", "state"])
    sheet, model = book(tmp_path / "t.xlsx", data=rows_of(frame)), tmp_path / "m.bayes"
    assert run("fit", sheet, "--target", "cost", "--model", "linear", "--out", model).exit_code == 0
    outs = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for path, out in zip((sheet, written(tmp_path / "t.csv", frame)), outs, strict=True):
        assert run("predict", model, path, "--out", out).exit_code == 0
    pd.testing.assert_frame_equal(*map(pd.read_csv, outs))
