"""Results as a notebook shows them: self-contained HTML, with names as they are, that is made in no time and at all."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from html import escape, unescape
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
import torch

import bayescope as bs
from bayescope import notebook
from bayescope.additive import effect, explain, importance, surface
from bayescope.latent import GaussianLatent
from bayescope.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, Ordinal, Poisson
from bayescope.plots import style
from bayescope.posterior import GaussianPosterior, PointPosterior, Record
from bayescope.precision import DensePrecision
from bayescope.predictive import Predictive
from bayescope.top_classes import TopClasses
from tests.additive.fitted import encoded, fitted, frame

HOSTILE = "<script>alert('x')</script>&\""
VOID = {"img", "br"}


class Page(HTMLParser):
    """The rows, the text and the attributes of a page; it fails where a tag is not closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


def predictive(likelihood: Likelihood, outputs: int = 1, rows: int = 6, **more) -> Predictive:
    source = torch.Generator().manual_seed(0)
    mean = torch.randn(rows, outputs, dtype=torch.float64, generator=source)
    latent = GaussianLatent(mean, torch.eye(outputs).double().expand(rows, -1, -1), likelihood.integral(None, outputs))
    return Predictive(latent, likelihood, True, **more)


def gaussian(record: Record) -> GaussianPosterior:
    return GaussianPosterior(torch.zeros(2).double(), DensePrecision(torch.eye(2).double()), record)


@functools.cache
def compared() -> bs.Comparison:
    source = np.random.default_rng(0)
    X = pd.DataFrame(source.normal(size=(80, 2)), columns=[HOSTILE, "b"])
    y = np.where(X["b"] + source.normal(size=80) > 0, HOSTILE, "no")
    return bs.compare(bs.BayesianLogisticRegression(), X, y, posteriors=["map", "laplace"], reference="laplace")


def network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))


DATA = (torch.linspace(-1, 1, 33).reshape(11, 3), torch.arange(11) % 2)

RESULTS: dict[str, Callable[[], object]] = {
    "posterior": lambda: gaussian(Record("laplace", torch.tensor(-3.5), notes={HOSTILE: HOSTILE})),
    "posterior of a density": lambda: bs.density.laplace(lambda theta: -theta.square().sum(), [0.5, 0.5]),
    "point": lambda: PointPosterior(torch.zeros(3).double(), Record("map")),
    "two classes": lambda: predictive(Bernoulli(), names=(HOSTILE, "b")),
    "three classes": lambda: predictive(Categorical(), 3, names=("a", HOSTILE, "c")),
    "many classes": lambda: predictive(Categorical(), 40, names=(HOSTILE, *range(39))),
    "ordered classes": lambda: predictive(Ordinal(cutpoints=[-1.0, 1.0])),
    "labels": lambda: predictive(Bernoulli(), 2, names=(HOSTILE, "b")),
    "numbers": lambda: predictive(Gaussian(1.0), 2, names=(HOSTILE, "b")),
    "counts": lambda: predictive(Poisson()),
    "dense": lambda: predictive(Categorical(), 3, shape=(2, 3)),
    "top classes": lambda: replace(p := predictive(Categorical(), 4), top=TopClasses.of(p.latent.mean, 2)),
    "no rows": lambda: predictive(Gaussian(1.0))[:0],
    "comparison": compared,
    "effect": lambda: replace(effect(fitted(), "age"), feature=HOSTILE),
    "surface": lambda: replace(surface(fitted(), ("age", "dose")), features=(HOSTILE, "dose")),
    "surfaces of classes": lambda: surface(fitted("categorical"), ("age", "dose")),
    "explanation": lambda: explain(fitted(), encoded(frame(3))),
    "no explanation": lambda: explain(fitted(), encoded(frame(0))),
    "importance": lambda: importance(fitted()),
    "plan": lambda: bs.plan(network(), DATA, likelihood="categorical"),
    "selection": lambda: bs.select({HOSTILE: network(), "b": network()}, DATA, likelihood="categorical"),
}


@pytest.mark.global_rng  # layers of networks
@pytest.mark.filterwarnings("ignore::bayescope.errors.BayescopeWarning")
@pytest.mark.parametrize("name", RESULTS)
def test_results_show_themselves(name: str) -> None:
    result = RESULTS[name]()
    html = result._repr_html_()
    assert "could not be made" not in html
    page = Page(html)
    assert page.tags <= {"div", "table", "tr", "td", "th", "pre", "img", "details", "summary", "ul", "li"}
    assert {name for name, _ in page.attributes} <= {"style", "alt", "src"}
    assert all(value.startswith("data:image/png;base64,") for name, value in page.attributes if name == "src")
    assert "url(" not in html
    hostile = HOSTILE in unescape(html)
    assert hostile == (escape(HOSTILE) in html)


@pytest.mark.parametrize("name", ["two classes", "three classes", "labels", "numbers", "posterior"])
def test_names_are_shown_as_they_are(name: str) -> None:
    assert HOSTILE in Page(RESULTS[name]()._repr_html_()).text


@pytest.mark.parametrize(("likelihood", "outputs", "level"), [(Gaussian(1.0), 2, 0.95), (Categorical(), 3, None)])
def test_the_first_rows_are_those_of_the_table_and_no_other_row_is_integrated(
    likelihood, outputs, level, monkeypatch
) -> None:
    p = predictive(likelihood, outputs, 100_000)
    seen, integrate = [], GaussianLatent.moments

    def watched(latent, likelihood):
        seen.append(len(latent.mean))
        return integrate(latent, likelihood)

    monkeypatch.setattr(GaussianLatent, "moments", watched)
    page = Page(p._repr_html_())
    assert set(seen) == {10}
    table = p[:10].to_frame(level=level)
    expected = [[str(row), *map(notebook.cell, values)] for row, values in enumerate(table.to_numpy(dtype=object))]
    assert page.rows[-11:] == [["", *table.columns], *expected]
    assert "10 of 100,000 rows are shown." in page.text
    assert ("to_frame() has them" in page.text) == (level is None)


def test_very_many_classes_show_the_most_probable_one() -> None:
    p = predictive(Categorical(), 400, 3)
    rows = Page(p._repr_html_()).rows[-4:]
    assert rows[0] == ["", "predicted", "probability", "entropy"]
    assert [row[1] for row in rows[1:]] == [str(k) for k in p.probs.argmax(1)]


def test_a_result_that_cannot_be_computed_shows_its_text_and_the_reason(monkeypatch) -> None:
    def fails(latent, likelihood):  # noqa: ARG001  as the method that it replaces
        raise ZeroDivisionError("<no>")

    monkeypatch.setattr(GaussianLatent, "moments", fails)
    page = Page(predictive(Gaussian(1.0))._repr_html_())
    assert "Predictive for 6 rows, 1 latent output, gaussian likelihood" in page.text
    assert "The table could not be made: ZeroDivisionError: <no>" in page.text
    monkeypatch.setattr(Predictive, "summary", lambda p: 1 / 0)
    assert "Predictive object" in Page(predictive(Gaussian(1.0))._repr_html_()).text


def test_a_posterior_of_many_layers_shows_some_lines() -> None:
    page = Page(gaussian(Record("laplace", notes={f"layer {k}": "1" for k in range(100)}))._repr_html_())
    assert len(page.rows) == notebook.FACTS
    assert f"{100 - notebook.FACTS} more lines are in the summary." in page.text


def test_a_comparison_shows_all_its_rows_its_best_cells_and_footnotes() -> None:
    comparison = compared()
    html = comparison._repr_html_()
    best = re.findall(r"\*\*(.*?)\*\*", comparison.to_markdown())
    assert re.findall(r'<td style="[^"]*font-weight: 600;">(.*?)</td>', html) == best
    page = Page(html)
    assert [row[0] for row in page.rows] == ["posterior", *map(style.label, comparison.table.index)]
    assert all(note in page.text for note in comparison.footnotes)


def test_wide_and_long_tables_say_what_they_leave_out() -> None:
    wide = pd.DataFrame(np.zeros((12, 30)), columns=[f"c{k}" for k in range(30)])
    page = Page(notebook.table(wide))
    assert [len(page.rows), len(page.rows[0])] == [1 + notebook.ROWS, 1 + notebook.COLUMNS]
    assert "10 of 12 rows and 20 of 30 columns are shown." in page.text


def test_cells_are_short() -> None:
    assert [notebook.cell(value) for value in (1 / 3, 7, None, float("nan"), True)] == ["0.3333", "7", "", "", "True"]
    assert notebook.cell("a" * 1000) == "a" * 200 + "…"
