"""What a fit reads of a table: kinds, target, weights; and each column that is there by mistake is refused."""

import numpy as np
import pandas as pd
import pytest

from bayescope.cli import Roles, open_source, read_training_table
from bayescope.errors import InputError
from tests.cli.tables import mixed, written

ROWS = range(40)


def read(path, target="kind", task="auto", missing=(), **roles):
    return read_training_table(open_source(path, missing=missing), Roles(target, **roles), task=task)


def many(cell, kind=lambda row: "ab"[row % 2]):
    """40 rows with one column of these cells."""
    return "x,kind\n" + "".join(f"{cell(row)},{kind(row)}\n" for row in ROWS)


@pytest.mark.parametrize("name", ["t.csv", "t.tsv.gz", "t.parquet"])
def test_a_table_reads_alike_in_every_format(tmp_path, name):
    frame = mixed()
    table = read(written(tmp_path / name, frame), "state", drop=["id"])
    assert table.kinds == {"age": "numeric", "dose": "numeric", "colour": "categorical", "cost": "numeric"}
    assert set(table.features["colour"].dropna()) == {"blue", "green", "red"}
    pd.testing.assert_frame_equal(table.features[["age", "dose"]], frame[["age", "dose"]])
    assert table.features["colour"].isna().tolist() == frame["colour"].isna().tolist()
    assert table.target.values.tolist() == frame["state"].tolist()
    assert table.target.task == "classification"


@pytest.mark.parametrize(
    ("cells", "task", "classes"),
    [
        ("no,yes,no", "classification", ["no", "yes"]),
        ("0,1,0", "classification", [0, 1]),
        ("1.0,2.0,1.0", "classification", [1, 2]),
        ("0.5,1.5,0.5", "classification", [0.5, 1.5]),
        ("True,False,True", "classification", ["False", "True"]),
        ("3,1,2", "classification", [1, 2, 3]),
        ("0.5,1.5,2.5", "regression", None),
        (",".join(map(str, range(11))), "regression", None),
    ],
)
def test_the_task_follows_from_the_target(tmp_path, cells, task, classes):
    rows = "".join(f"{row},{label}\n" for row, label in enumerate(cells.split(",")))
    target = read(written(tmp_path / "t.csv", f"x,kind\n{rows}")).target
    assert target.task == task
    assert classes is None or target.classes == classes
    assert bool(target.reason) == (not isinstance(target.values[0], str))


def test_the_task_can_be_named(tmp_path):
    path = written(tmp_path / "t.csv", many(str, kind=lambda row: row % 3))
    assert read(path, task="regression").target.values.tolist() == [row % 3 for row in ROWS]
    path = written(tmp_path / "t.csv", many(str, kind=lambda row: row % 20))
    assert read(path).target.task == "regression"
    assert len(read(path, task="classification").target.classes) == 20


def test_rows_without_a_target_are_left_out_with_their_weights(tmp_path):
    frame = mixed(40)
    frame.loc[[0, 7], "state"] = None
    frame["w"] = np.arange(40.0)
    table = read(written(tmp_path / "t.csv", frame), "state", weight="w", drop=["id,cost"])
    assert (len(table), table.without_target) == (38, 2)
    kept = [row for row in range(40) if row not in (0, 7)]
    assert table.features["age"].tolist() == frame["age"][kept].tolist()
    assert table.weights.tolist() == kept
    assert "w" not in table.features


def test_numbers_that_are_labels(tmp_path):
    path = written(tmp_path / "t.csv", many(lambda row: 7000 + row))
    assert read(path).kinds == {"x": "numeric"}
    table = read(path, categorical=["x"])
    assert table.kinds == {"x": "categorical"}
    assert table.features["x"][0] == "7000"


def test_a_name_with_a_comma_is_one_name(tmp_path):
    path = written(tmp_path / "t.csv", pd.DataFrame({"a,b": [1, 2], "a": [1, 3], "c": [5, 2], "kind": ["x", "y"]}))
    assert list(read(path, drop=["a,b"]).kinds) == ["a", "c"]
    assert list(read(path, drop=["a,c"]).kinds) == ["a,b"]


BAD = {
    "unknown target": (
        many(str),
        {"target": "kin"},
        "expected a target column 'kin', but its columns are 'x', 'kind'. Did",
    ),
    "target in other case": (many(str), {"target": "Kind"}, "Did you mean 'kind'?"),
    "unknown drop": (many(str), {"drop": ["y"]}, "--drop: expected a column of"),
    "unknown categorical": (many(str), {"categorical": ["xx"]}, "--categorical: expected a column of"),
    "unknown weight": (many(str), {"weight": "w"}, "--weight: expected a column of"),
    "target dropped": (many(str), {"drop": ["kind"]}, "--drop: expected a column with no other role, got 'kind'"),
    "weight is the target": (many(str), {"weight": "kind"}, "--weight: expected a column with no other role"),
    "no features": (many(str), {"drop": ["x"]}, "expected features beside the target, got none"),
    "header only": ("x,kind\n", {}, "expected rows below the header, got none"),
    "one class": (many(str, lambda _: "a"), {}, "target 'kind': expected at least two classes, got one, 'a'"),
    "constant number": (many(str, lambda _: 3), {"task": "regression"}, "expected more than one value, got 3 in every"),
    "no targets": (many(str, lambda _: ""), {}, "column 'kind': expected a target in some rows, got none in 40 rows"),
    "text regression": (many(str), {"task": "regression"}, "for a regression, got 'a' in line 2"),
    "unknown task": (many(str), {"task": "clasify"}, "--task: expected one of 'auto', 'classification', 'regression'"),
    "continuous classes": (many(str, lambda r: r + 0.5), {"task": "classification"}, "from 0.5 to 39.5. Cut it into"),
    "names as target": (
        "x,kind\n" + "".join(f"{row},row{row}\n" for row in range(60)),
        {},
        "target 'kind': expected at most 50 classes, got 60, such as 'row0'",
    ),
    "dates": (
        many(lambda row: f"2024-01-{row % 28 + 1:02}"),
        {},
        "column 'x': expected numbers or labels, got dates such as '2024-01-01' in line 2. Turn it into its parts",
    ),
    "times": (many(lambda row: f"{row % 24}:15"), {}, "got dates such as '0:15' in line 2"),
    "code for missing": (
        many(lambda row: "?" if row == 20 else row),
        {},
        "column 'x': expected numbers, got '?' in line 22 (1 of 40 distinct values is not a number). Fix it; if it "
        "stands for a missing value: --missing '?'; if all are labels: --categorical x.",
    ),
    "decimal commas": (
        many(lambda row: f'"{row},5"'),
        {},
        "expected numbers with a decimal point, got '0,5' in line 2",
    ),
    "names": (many(lambda row: f"name{row}"), {}, "got 40 different ones in 40 rows, such as 'name0'"),
    "no values": (many(lambda _: ""), {}, "column 'x': expected values, got none in 40 rows. Leave it out: --drop x"),
    "infinite": (many(lambda row: "inf" if row == 3 else row), {}, "line 5, column 'x': expected a finite number"),
}


@pytest.mark.parametrize(("content", "options", "message"), BAD.values(), ids=BAD.keys())
def test_refuses(tmp_path, content, options, message):
    path = written(tmp_path / "t.csv", content)
    with pytest.raises(InputError) as refusal:
        read(path, **options)
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("2,1,-1,1", "line 4, column 'w': expected a weight of at least 0, got a negative one"),
        ("2,,1,1", "line 3, column 'w': expected a weight of at least 0, got no value"),
        ("0,0,0,0", "column 'w': expected some weights above 0, got none"),
        ("1,2,three,4", "line 4, column 'w': expected a number, got 'three'"),
    ],
)
def test_refuses_weights(tmp_path, weights, message):
    rows = "".join(f"{row},{weight},{'ab'[row % 2]}\n" for row, weight in enumerate(weights.split(",")))
    path = written(tmp_path / "t.csv", f"x,w,kind\n{rows}")
    with pytest.raises(InputError) as refusal:
        read(path, weight="w")
    assert message in str(refusal.value)


def test_a_column_that_was_named_as_labels_is_meant(tmp_path):
    path = written(tmp_path / "t.csv", many(lambda row: f"2024-01-{row % 28 + 1:02}"))
    assert read(path, categorical=["x"]).kinds == {"x": "categorical"}


def test_dates_of_parquet(tmp_path):
    frame = mixed(40)
    frame["day"] = pd.date_range("2024-01-01", periods=40)
    path = written(tmp_path / "t.parquet", frame)
    with pytest.raises(InputError, match=r"column 'day': expected numbers or labels, got dates or times"):
        read(path, "state")
    assert "day" not in read(path, "state", drop=["day"]).kinds
