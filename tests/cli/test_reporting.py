"""`bayescope report`: which rows judge, and what is said of them."""

import json

import pandas as pd
import pytest

import bayescope.cli.reporting as reporting
from bayescope.cli import Roles, held_out_rows, open_source, read_training_table
from tests.cli.tables import mixed, run, written


@pytest.fixture
def asked(monkeypatch):
    """What the library is asked to report."""
    given = {}

    def report(estimator, X, y, *, out, **options):
        given.update(estimator=estimator, X=X, y=y, out=out, **options)
        out.write_text("page")
        return out

    monkeypatch.setattr(reporting, "report", report)
    return given


def test_of_the_fitted_table_only_held_out_rows_judge(classes, table, tmp_path, asked):
    result = run("report", classes, table, "--out", tmp_path / "r.html", "--title", "Mine", "--seed", "4")
    assert result.exit_code == 0, result.output
    data = read_training_table(open_source(table), Roles("state", drop=["id,cost"]))
    split = held_out_rows(data.target, 0.2, 0)
    pd.testing.assert_frame_equal(asked["X"], data.features.iloc[split[1]])
    assert asked["y"].tolist() == data.target.values[split[1]].tolist()
    assert (asked["held_out"], asked["title"], asked["random_state"], asked["reference"]) == (True, "Mine", 4, "auto")
    assert "note: 72 rows were fitted; the 18 others are judged" in result.stdout
    assert f"wrote {tmp_path / 'r.html'}" in result.stdout


def test_rows_that_were_all_fitted_are_called_so(numbers, table, tmp_path, asked):
    facts = json.loads(run("report", numbers, table, "--out", tmp_path / "r.html", "--json").stdout)
    assert (facts["held_out"], facts["rows"], asked["held_out"]) == (False, 90, False)
    assert "the page's scores flatter it" in facts["notes"][0]
    shuffled = written(tmp_path / "s.parquet", mixed().sample(frac=1, random_state=0))
    run("report", numbers, shuffled, "--out", tmp_path / "r.html", "--held-out")
    assert asked["held_out"] is False


def test_of_other_rows_only_the_caller_knows(classes, tmp_path, asked):
    frame = mixed(50, seed=1).assign(state=lambda t: t["state"].where(t.index > 2))
    path = written(tmp_path / "other.csv", frame)
    result = run("report", classes, path, "--out", tmp_path / "r.html", "--reference", "none")
    assert (asked["held_out"], asked["reference"], len(asked["X"])) == (None, None, 47)
    assert "3 rows without a target were left out" in result.stdout
    run("report", classes, path, "--out", tmp_path / "r.html", "--held-out")
    assert asked["held_out"] is True


def test_the_page_is_written(classes, table, tmp_path):
    result = run("report", classes, table, "--out", tmp_path / "r.html")
    assert result.exit_code == 0, (result.output, result.exception)
    assert (tmp_path / "r.html").read_text().startswith("<!")
