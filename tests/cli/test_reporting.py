"""`bayescope report`: which rows judge, and what is said of them."""

import json

import bayescope as bs
from bayescope.cli import Roles, held_out_rows, open_source, read_training_table
from tests.cli.tables import mixed, run, written


def test_of_the_fitted_table_only_held_out_rows_judge(classes, table, tmp_path):
    result = run("report", classes, table, "--out", tmp_path / "r.html", "--title", "Mine", "--seed", "4")
    assert result.exit_code == 0, result.output
    data = read_training_table(open_source(table), Roles("state", drop=["id,cost"]))
    judged = data.taken(held_out_rows(data.target, 0.2, 0)[1])
    options = {"title": "Mine", "held_out": True, "random_state": 4}
    page = bs.report(bs.load(classes), judged.features, judged.target.series(), out=tmp_path / "p.html", **options)
    assert (tmp_path / "r.html").read_text() == page.read_text()
    assert "note: 72 rows were fitted; the 18 others are judged" in result.stdout
    assert f"wrote {tmp_path / 'r.html'}" in result.stdout


def test_rows_that_were_all_fitted_are_called_so(numbers, table, tmp_path):
    page = tmp_path / "r.html"
    facts = json.loads(run("report", numbers, table, "--out", page, "--json").stdout)
    assert (facts["held_out"], facts["rows"]) == (False, 90)
    assert "held_out=False" in page.read_text()
    assert "the page's scores flatter it" in facts["notes"][0]
    shuffled = written(tmp_path / "s.parquet", mixed().sample(frac=1, random_state=0))
    page.unlink()
    run("report", numbers, shuffled, "--out", page, "--held-out")
    assert "held_out=False" in page.read_text()


def test_of_other_rows_only_the_caller_knows(classes, tmp_path):
    frame = mixed(50, seed=1).assign(state=lambda t: t["state"].where(t.index > 2))
    path, page = written(tmp_path / "other.csv", frame), tmp_path / "r.html"
    result = run("report", classes, path, "--out", page, "--reference", "none")
    for said in ("It is unknown whether these rows", "No comparison with NUTS was asked for", "47 rows"):
        assert said in page.read_text()
    assert "3 rows without a target were left out" in result.stdout
    run("report", classes, path, "--out", page, "--held-out")
    assert "held_out=True" in page.read_text()
    assert page.read_text().startswith("<!")
