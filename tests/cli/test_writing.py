"""What is written for others is harmless to look at: in a spreadsheet and in a terminal."""

import io
import json

import numpy as np
import pandas as pd
import pytest

import bayescope as bs
from bayescope.cli.writing import write_text
from tests.cli.tables import run, written

HARMFUL = ["=HYPERLINK(1)", "+1+cmd", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "-" + "x", "=\n1"]
HARMLESS = ["a", "-", "+", "", "-1", "+2.5", "-1e-3", "-.5", "'", "a=b", " =1"]


def lines(frame, **options):
    file = io.StringIO()
    write_text(frame, file, formulas=False, **options)
    return pd.read_csv(io.StringIO(file.getvalue()), dtype=str, keep_default_na=False)


@pytest.mark.parametrize("cell", HARMFUL)
def test_text_that_spreadsheets_compute_stands_behind_an_apostrophe(cell):
    frame = pd.DataFrame({"a": [cell, "b"], cell: [-1.0, 2.0]})
    found = lines(frame)
    assert not any(map(begins_a_formula, [*found["a"], *found.columns]))
    assert [name[1:] for name in found.columns[1:]] == [cell]
    assert found.iloc[:, 1].tolist() == ["-1.0", "2.0"]


def begins_a_formula(cell):
    return cell[:1] in tuple("=+-@\t\r") and not cell.startswith("'")


@pytest.mark.parametrize("cell", HARMLESS)
def test_numbers_and_other_text_stay_as_they_are(cell):
    assert lines(pd.DataFrame({"a": [cell, "b"]}))["a"].tolist() == [cell, "b"]


def test_missing_cells_stay_missing():
    found = lines(pd.DataFrame({"a": pd.Series([None, "=1"], dtype=object), "b": [np.nan, -1.0]}))
    assert found.to_numpy().tolist() == [["", ""], ["'=1", "-1.0"]]


# Two classes that overlap: the posterior of others is sampled, which takes seconds.
ABOVE = np.linspace(-1, 1, 40) * np.where(np.arange(40) % 8 == 3, -1, 1) > 0


def test_predictions_are_guarded_unless_asked_for_as_they_are(tmp_path):
    X = pd.DataFrame({"x": np.linspace(-1, 1, 40)})
    model = bs.BayesianLogisticRegression().fit(X, np.where(ABOVE, "=1+1", "no"))
    model.save(tmp_path / "m.bayes")
    path = written(tmp_path / "t.csv", X.assign(name="@name"))
    for options, label, name in (([], "'=1+1", "'@name"), (["--formulas"], "=1+1", "@name")):
        run("predict", tmp_path / "m.bayes", path, "--out", tmp_path / "p.csv", "--keep", "name", *options)
        found = pd.read_csv(tmp_path / "p.csv")
        assert set(found["predicted"]) == {label, "no"}
        assert set(found["name"]) == {name}


CONTROLS = "\x1b[2J\x1b]0;title\x07 \x9b31m \u202e \ud800"


def test_no_name_in_a_file_steers_the_terminal(tmp_path):
    X = pd.DataFrame({"a[red]\x1b[2J\u202e": np.linspace(-1, 1, 40)})
    bs.BayesianLogisticRegression().fit(X, ABOVE).save(tmp_path / "m.bayes")
    shown = run("info", tmp_path / "m.bayes")
    asked = run("info", tmp_path / "m.bayes", "--json")
    unread = run("predict", tmp_path / f"{CONTROLS}.bayes".replace("\ud800", ""), "t.csv", "--out", "p.csv")
    for text in (shown.output, asked.output, unread.output):
        assert text.isprintable() or not set("\x1b\x07\x9b\u202e") & set(text)
    assert "a[red]" in shown.output
    assert json.loads(asked.output)["kind"] == "BayesianLogisticRegression"
