"""The public functions: what is written, what is refused, and that nothing is written where something fails."""

from __future__ import annotations

import json
import os
import re
import sys
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

import bayescope as bs
from bayescope.errors import InputError, InputTypeError, MissingDependencyError, OptionError, UnsupportedError
from bayescope.report import document, facts, judged, page_of, write_comparison
from bayescope.report.reference import TrainingRows, standing


def test_report_writes_one_file(logistic, tmp_path):
    out = tmp_path / "new" / "r.html"
    path = bs.report(logistic.estimator, logistic.X, logistic.y, out=out, reference=None, random_state=7)
    assert [file.name for file in path.parent.iterdir()] == ["r.html"]
    html = path.read_text(encoding="utf-8")
    assert "How well is kind predicted?" in html
    assert "· seed 7" in html
    assert "It is unknown whether these rows were used in training" in html


def test_a_report_is_a_path_that_a_notebook_shows_in_a_frame(logistic, tmp_path):
    out = tmp_path / "r.html"
    written = bs.report(logistic.estimator, logistic.X, logistic.y, out=out, reference=None, title="A <title>")
    assert (written, str(written), os.fspath(written)) == (out, str(out), str(out))
    assert type(written.path) is type(out)
    frame = ElementTree.fromstring(written._repr_html_())
    assert frame.get("srcdoc").split() == out.read_text(encoding="utf-8").split()
    assert frame.get("sandbox") == "allow-scripts"
    out.unlink()
    assert written._repr_html_() is None


def test_one_seed_gives_one_page(logistic, tmp_path):
    pages = [
        bs.report(logistic.estimator, logistic.X, logistic.y, out=tmp_path / f"{n}.html", reference=None).read_text()
        for n in range(2)
    ]
    assert pages[0] == pages[1]


@pytest.mark.parametrize("held_out", [True, False])
def test_what_the_caller_says_of_the_rows_is_said(linear, tmp_path, held_out):
    path = bs.report(
        linear.estimator, linear.X, linear.y, out=tmp_path / "r.html", held_out=held_out, title="A <title>"
    )
    html = path.read_text(encoding="utf-8")
    assert ("These rows were held out" in html) == held_out
    assert ("was trained on these rows, as" in html) != held_out
    assert "<h1>A &lt;title&gt;</h1>" in html
    assert f"held_out={held_out}" in html


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"out": "r.txt"}, InputError, r"out: expected a file that ends in .html"),
        ({"reference": "laplace"}, OptionError, r"reference: expected one of 'auto', 'nuts'"),
        ({"held_out": "yes"}, InputTypeError, r"held_out: expected True or False"),
        ({"random_state": -1}, InputError, r"random_state: expected a whole number"),
        ({"estimator": "model"}, InputTypeError, r"estimator: expected a fitted estimator"),
        ({"y": ["a"] * 3}, InputError, r"y: expected one value for each of the 100 rows"),
        ({"y": ["z"] * 100}, InputError, r"y: expected the classes that were fitted, 'a', 'b', got 'z' in row 0"),
        ({"y": [None] + ["a"] * 99}, InputError, r"y: expected a label in every row, got none in row 0"),
        ({"y": np.zeros((100, 2))}, UnsupportedError, r"y: expected one label or number per row, got shape"),
    ],
)
def test_what_cannot_be_reported_is_refused_and_nothing_is_written(logistic, tmp_path, change, error, said):
    given = {"estimator": logistic.estimator, "X": logistic.X, "y": logistic.y, "out": "r.html", **change}
    with pytest.raises(error, match=said):
        bs.report(given.pop("estimator"), given.pop("X"), given.pop("y"), out=tmp_path / given.pop("out"), **given)
    assert list(tmp_path.iterdir()) == []


def test_a_page_that_cannot_be_written_leaves_nothing_behind(logistic, tmp_path):
    """A lone surrogate has no UTF-8: writing the file fails after everything was computed."""
    with pytest.raises(UnicodeEncodeError):
        bs.report(logistic.estimator, logistic.X, logistic.y, out=tmp_path / "r.html", reference=None, title="\ud800")
    assert list(tmp_path.iterdir()) == []


def test_nuts_is_refused_where_it_cannot_be(logistic, tmp_path, monkeypatch):
    asked = {"out": tmp_path / "r.html", "reference": "nuts"}
    with pytest.raises(
        UnsupportedError, match=r"A reference needs the rows that the model was trained on: give training=\(X, y\)"
    ):
        bs.report(logistic.estimator, logistic.X, logistic.y, **asked)
    with pytest.raises(InputError, match=r"training: expected \(X, y\) or \(X, y, sample_weight\), got DataFrame"):
        bs.report(logistic.estimator, logistic.X, logistic.y, training=logistic.X, **asked)
    training = (logistic.X, logistic.y)
    monkeypatch.setitem(sys.modules, "nutpie", None)  # which is imported no more
    with pytest.raises(MissingDependencyError):
        bs.report(logistic.estimator, logistic.X, logistic.y, training=training, **asked)
    found = standing(logistic.estimator, logistic.judged(), TrainingRows(*training), "auto", 0)
    assert "pip install" in found.reason


def test_long_tables_are_judged_in_part_and_it_is_said(logistic):
    part = judged.Judged.of(logistic.estimator, logistic.X, logistic.y, 0, most=60)
    found = facts.gathered(logistic.estimator, part, reference=None, random_state=0, held_out=None)
    html = document(page_of(found))
    assert "100 rows and 3 columns" in html
    assert "60 rows drawn from them at random" in html
    rows = json.loads(re.search(r'id="explorer-data">(.*?)</script>', html)[1])["rows"]
    assert len(rows) == 60
    assert {row["name"] for row in rows} <= {f"row {label}" for label in logistic.X.index}


def explained(path):
    """What a page calls its rows: in the list, in the chart's explanations, and how they are to be read."""
    html = path.read_text(encoding="utf-8")
    rows = json.loads(re.search(r'id="explorer-data">(.*?)</script>', html)[1])["rows"]
    return [row["name"] for row in rows], re.findall(r'aria-label="Explain ([^"]*)"', html), html


def test_rows_are_called_what_the_table_calls_them(logistic, tmp_path):
    """The list, the explanations and the points have the labels of the frame's index, whatever part is judged."""
    shuffled = np.random.default_rng(0).permutation(len(logistic.X))
    X, y = logistic.X.iloc[shuffled], logistic.y.iloc[shuffled]
    options = {"out": tmp_path / "r.html", "reference": None}
    doubts = np.sqrt(logistic.estimator.predict_distribution(X).epistemic[:, 0])
    first = int(np.argmax(doubts))
    names, listed, html = explained(bs.report(logistic.estimator, X, y, **options))
    assert names[0] == f"row {X.index[first]}"
    assert listed[0] == f"row {X.index[first]}"
    assert sorted(names) == sorted(f"row {label}" for label in X.index)
    assert "rows are named by the table&#39;s index" in html
    patients = X.set_index(pd.Index([f"P-{label}" for label in X.index], name="patient <b>"))
    names, listed, html = explained(bs.report(logistic.estimator, patients, y, **options))
    assert names[0] == f"patient <b> P-{X.index[first]}"
    assert "<b>" not in html.split('id="explorer-data"')[0]


def test_rows_of_a_table_without_labels_are_numbered_by_position(linear, tmp_path):
    names, _, html = explained(bs.report(linear.estimator, linear.X, linear.y, out=tmp_path / "r.html"))
    assert set(names) == {f"row {row}" for row in range(len(linear.X))}
    assert "numbered by position, from 0" in html


@pytest.fixture(scope="module")
def comparison(logistic):
    template = bs.BayesianLogisticRegression(standardize=True, draws=150, tune=150, chains=2)
    y = pd.Series([{"a": "no", "b": "yes <sure>"}[label] for label in logistic.y], name="answer")
    with pytest.warns():
        return bs.compare(template, logistic.X, y, posteriors=["map", "laplace"])


def test_a_comparison_is_a_page_of_its_own(comparison, tmp_path):
    html = write_comparison(comparison, tmp_path / "c.html").read_text(encoding="utf-8")
    for said in ("Laplace", "NUTS", "TV to NUTS", "3 posteriors"):
        assert said in html
    assert "<sure>" not in html
    figures = json.loads(re.search(r'id="figure-data">(.*?)</script>', html)[1])
    assert set(figures) == {"agreement", "curves"}
    assert figures["agreement"]["layout"]["yaxis"]["title"]["text"] == "log odds of answer = yes &lt;sure&gt;"
    best, lead = f"<strong>{comparison.table['nll'].min():.4f}</strong>", comparison.leads["nll"]
    assert (best in html) == lead.clear
    assert "95\u00a0% interval of the paired difference" in html
