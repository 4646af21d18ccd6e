"""`bayescope report`: which rows judge, and what is said of them."""

import json
import os
import re
import shlex
import subprocess
from html import unescape

import pytest

import bayescope as bs
from bayescope.cli import Roles, held_out_rows, open_source, read_training_table
from tests.cli import started
from tests.cli.tables import mixed, refused, run, written


def figures(path):
    """What a page measured: the cards, and the numbers of the charts."""
    html = path.read_text()
    return re.findall(r'class="value">([^<]*)<', html), json.loads(
        re.search(r'id="figure-data">(.*?)</script>', html)[1]
    )["reliability"]


def explained(path):
    """The names of the rows, and the shell commands."""
    html = path.read_text()
    rows = json.loads(re.search(r'id="explorer-data">(.*?)</script>', html)[1])["rows"]
    return [row["name"] for row in rows]


def command(page):
    """The shell commands that a page says write it again."""
    return unescape(re.search(r"<code>(cd .*?)</code>", page, re.DOTALL)[1])


def test_of_the_fitted_table_only_held_out_rows_judge(classes, table, tmp_path):
    result = run("report", classes, table, "--out", tmp_path / "r.html", "--title", "Mine", "--seed", "4")
    assert result.exit_code == 0, result.output
    data = read_training_table(open_source(table), Roles("state", drop=["id,cost"]))
    judged = data.taken(held_out_rows(data.target, 0.2, 0)[1])
    options = {"title": "Mine", "held_out": True, "random_state": 4}
    page = bs.report(bs.load(classes), judged.features, judged.target.series(), out=tmp_path / "p.html", **options)
    assert len(figures(page)[0]) == 5
    assert figures(tmp_path / "r.html") == figures(page)
    assert sorted(explained(tmp_path / "r.html")) == sorted(f"id {row}" for row in judged.places)
    assert "note: 72 rows were fitted; the 18 others are judged" in result.stdout
    assert f"wrote {tmp_path / 'r.html'}" in result.stdout


def test_the_command_on_the_page_writes_it_again(classes, table, tmp_path):
    """Pasted in a shell, in another folder: names with spaces and quotes are quoted."""
    out = tmp_path / "a page's.html"
    run(
        "report",
        classes,
        table,
        "--out",
        out,
        "--title",
        'It\'s "mine" & 5 % yours',
        "--reference",
        "none",
        "--seed",
        "3",
    )
    page = out.read_text()
    out.unlink()
    found = written(tmp_path / "bayescope", f'#!/bin/sh\nexec {shlex.join(started.command())} "$@"\n')
    found.chmod(0o755)
    search = os.pathsep.join([str(tmp_path), os.environ["PATH"]])  # a shell that finds the command
    made = subprocess.run(
        ["sh", "-c", command(page)], cwd="/", env={**os.environ, "PATH": search}, capture_output=True, check=False
    )
    assert made.returncode == 0, made.stderr
    assert out.read_text() == page


def test_rows_without_identifiers_are_counted_in_their_file(numbers, tmp_path):
    frame = mixed(50, seed=1).drop(columns="id").assign(cost=lambda t: t["cost"].where(t.index > 2))
    one = written(tmp_path / "one.csv", frame)
    run("report", numbers, one, "--out", tmp_path / "r.html", "--reference", "none")
    assert set(explained(tmp_path / "r.html")) == {f"row {row}" for row in range(4, 51)}
    assert "counted from 1, below the header" in (tmp_path / "r.html").read_text()
    folder = tmp_path / "parts"
    folder.mkdir()
    written(folder / "a.parquet", frame[:20])
    written(folder / "b.parquet", frame[20:])
    run("report", numbers, folder, "--out", tmp_path / "r.html", "--reference", "none")
    names = {f"row {row} of a.parquet" for row in range(4, 21)} | {f"row {row} of b.parquet" for row in range(1, 31)}
    assert set(explained(tmp_path / "r.html")) == names


def test_rows_that_were_all_fitted_are_called_so(numbers, table, tmp_path):
    page = tmp_path / "r.html"
    facts = json.loads(run("report", numbers, table, "--out", page, "--json").stdout)
    assert (facts["held_out"], facts["rows"]) == (False, 90)
    assert "was trained on these rows, as" in page.read_text()
    assert "the model was trained on these rows" in facts["notes"][0]
    shuffled = written(tmp_path / "s.parquet", mixed().sample(frac=1, random_state=0))
    page.unlink()
    run("report", numbers, shuffled, "--out", page, "--held-out")
    assert "was trained on these rows, as" in page.read_text()


def test_of_other_rows_only_the_caller_knows(classes, tmp_path):
    frame = mixed(50, seed=1).assign(state=lambda t: t["state"].where(t.index > 2))
    path, page = written(tmp_path / "other.csv", frame), tmp_path / "r.html"
    result = run("report", classes, path, "--out", page, "--reference", "none")
    for said in (
        "It is unknown whether these rows",
        "not compared with a reference, since the caller asked for none",
        "47 rows",
    ):
        assert said in page.read_text()
    assert "3 rows without a target were left out" in result.stdout
    run("report", classes, path, "--out", page, "--held-out")
    assert "These rows were held out" in page.read_text()
    assert page.read_text().startswith("<!")


def test_the_fitted_rows_may_be_in_another_table(classes, table, tmp_path):
    """They are known by their content; the command on the page names their table, too."""
    pytest.importorskip("nutpie", reason="the reference is NUTS")
    other, page = written(tmp_path / "other.csv", mixed(30, seed=1)), tmp_path / "r.html"
    refused(run("report", classes, other, "--out", page, "--training", other), "--training", "table.csv", "72 rows")
    assert not page.exists()
    result = run("report", classes, other, "--out", page, "--training", table)
    assert result.exit_code == 0, result.output
    assert "for the same 72 training rows, model and prior" in page.read_text()
    assert f"--training {table}" in command(page.read_text())
