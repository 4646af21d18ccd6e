"""Tables that can be used are read as they are; each that cannot is refused in one line that says what to do."""

import os

import numpy as np
import pytest

from bayescope.cli.table import read_table
from bayescope.errors import InputError

GOOD = "width,height,kind\n1,2.5,a\n2,1.5,b\n3,0.5,a\n4,3.5,b\n"


def written(tmp_path, content, name="table.csv"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_reads_features_and_labels(tmp_path):
    table = read_table(written(tmp_path, GOOD), "kind")
    assert table.features.columns.tolist() == ["width", "height"]
    np.testing.assert_array_equal(table.features, [[1, 2.5], [2, 1.5], [3, 0.5], [4, 3.5]])
    assert table.target.tolist() == ["a", "b", "a", "b"]
    assert table.target.name == "kind"


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (GOOD.replace(",", "\t"), "table.tsv"),
        (GOOD.replace("\n", "\r\n"), "table.csv"),
        (b"\xef\xbb\xbf" + GOOD.encode(), "table.csv"),
        (GOOD, "TABLE.CSV"),
        (GOOD + "\n\n", "table.csv"),
    ],
    ids=["tabs", "windows lines", "byte-order mark", "capitals", "blank lines"],
)
def test_reads_other_habits(tmp_path, content, name):
    assert read_table(written(tmp_path, content, name), "kind").features["height"].tolist() == [2.5, 1.5, 0.5, 3.5]


def test_running_numbers_are_names(tmp_path):
    table = read_table(written(tmp_path, "0,1,2,kind\n1,5,2,a\n2,6,4,b\n3,9,9,a\n"), "kind")
    assert table.features.columns.tolist() == ["0", "1", "2"]


def test_true_and_false_are_numbers(tmp_path):
    table = read_table(written(tmp_path, "flag,size,kind\nTrue,1,a\nFalse,2,b\nTrue,3,a\n"), "kind")
    assert table.features["flag"].tolist() == [1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    "kind", ["0,1,0,1", "1.0,2.0,1.0,2.0", "0.5,1.5,0.5,1.5", "no,yes,no,yes", "True,False,True,False"]
)
def test_any_two_labels_are_classes(tmp_path, kind):
    rows = "".join(f"{row},{label}\n" for row, label in enumerate(kind.split(",")))
    assert read_table(written(tmp_path, f"x,kind\n{rows}"), "kind").target.nunique() == 2


def many(count, label=str):
    return "x,kind\n" + "".join(f"{row},{label(row)}\n" for row in range(count))


BAD = {
    "zero bytes": ("", "expected a header and rows, got an empty file"),
    "header only": ("width,kind\n", "expected rows below the header, got none"),
    "binary": (b"PK\x03\x04\x00\x00\x14", "expected text, got binary data"),
    "latin-1": ("größe,kind\n1,a\n".encode("latin-1"), "expected text in UTF-8"),
    "ragged row": ("a,kind\n1,x\n2,y,3,4\n5,x\n", "expected a table that can be read"),
    "every row longer": ("a,kind\n1,x,9\n2,y,9\n", "expected as many values in a row as in the header, got more"),
    "other separator": ("a;b;kind\n1;2;x\n", "expected columns separated by ',', got one column whose name holds ';'"),
    "unknown target": (
        "a,kin\n1,x\n2,y\n",
        "expected a target column 'kind', got the columns 'a', 'kin'. Did you mean 'kin'?",
    ),
    "target in other case": ("a,Kind\n1,x\n2,y\n", "Did you mean 'Kind'?"),
    "no features": ("kind\nx\ny\n", "expected features beside the target"),
    "no header": (
        "6,148,72,1\n1,85,66,0\n",
        "expected a header of column names, got numbers such as '6', '148', '72', '1': the first row looks like data",
    ),
    "unnamed column": (",a,kind\n0,1,x\n1,2,y\n", "got none for column 1. Name it, or drop it if it is a row index"),
    "same name twice": ("a,a,kind\n1,2,x\n2,3,y\n", "expected each column name once, got 'a' more than once"),
    "equal columns": ("a,b,c,kind\n1,1,1,x\n2,2,2,y\n3,5,3,x\n", "got 'a' and 'c' equal in every row. Drop one"),
    "one class": ("a,kind\n1,x\n2,x\n", "target 'kind': expected at least two classes, got only x"),
    "target missing": (
        "a,kind\n1,x\n2,\n3,y\n",
        "target 'kind': expected a label in every row, got 1 of 3 values missing, the first in data row 2",
    ),
    "continuous target": (
        "a,kind\n1,0.5\n2,1.5\n3,2.5\n",
        "got a number with 3 distinct values, from 0.5 to 2.5. Cut it into classes; regression",
    ),
    "counts as target": (many(60), "target 'kind': expected classes, got a number with 60 distinct values"),
    "names as target": (many(60, "row{}".format), "expected at most 50 classes, got 60, such as 'row0'"),
    "missing feature": (
        "a,kind\n1,x\n,y\n,x\n",
        "column 'a': expected a number in every row, got 2 of 3 values missing, the first in data row 2",
    ),
    "text feature": (
        "a,kind\nred,x\nblue,y\n",
        "column 'a': expected numbers, got text in 2 of 2 rows, first 'red' in data row 1. Encode it as numbers",
    ),
    "code for missing": (
        "a,kind\n1,x\n?,y\n3,x\n",
        "column 'a': expected numbers, got text in 1 of 3 rows, first '?' in data row 2. Replace or drop",
    ),
    "infinite feature": ("a,kind\n1,x\n-inf,y\n3,x\n", "column 'a': expected finite numbers, got -inf in data row 2"),
    "too large to square": (
        "a,kind\n1,x\n-1e200,y\n3,x\n",
        "column 'a': expected numbers of at most 1e+75 in magnitude, whose squares can be summed, got -1e+200 in",
    ),
    "too close to divide by": (
        "a,kind\n1e-200,x\n2e-200,y\n3e-200,x\n",
        "column 'a': expected a standard deviation of at least 1e-75",
    ),
    "constant column": (
        "a,b,kind\n1,7,x\n2,7,y\n",
        "column 'b': expected more than one value, got 7 in every row. Drop the column",
    ),
}


@pytest.mark.parametrize(("content", "message"), BAD.values(), ids=BAD.keys())
def test_refuses(tmp_path, content, message):
    path = written(tmp_path, content)
    with pytest.raises(InputError) as refusal:
        read_table(path, "kind")
    text = str(refusal.value)
    assert message in text
    assert text.startswith(str(path))
    assert "\n" not in text


def test_refuses_what_is_no_table(tmp_path):
    for path, message in [
        (tmp_path / "tabel.csv", "expected a file, got nothing there. Did you mean 'table.csv'?"),
        (tmp_path / "no" / "table.csv", "expected a file, got nothing there."),
        (tmp_path, "expected a file, got a folder"),
        (written(tmp_path, GOOD, "table.xlsx"), "expected a file name that ends in .csv or .tsv, got '.xlsx'"),
    ]:
        written(tmp_path, GOOD)
        with pytest.raises(InputError, match="expected") as refusal:
            read_table(path, "kind")
        assert message in str(refusal.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_refuses_a_file_that_may_not_be_read(tmp_path):
    path = written(tmp_path, GOOD)
    path.chmod(0)
    with pytest.raises(InputError, match="expected a file that can be read"):
        read_table(path, "kind")
