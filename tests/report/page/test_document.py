"""The page as HTML: whole, self-contained, and deaf to what a table's names and values would tell a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest

from bayescope.report import document, page_of
from tests.report.conftest import HOSTILE, HOSTILE_LABEL

MOST_BYTES = 4 * 2**20
SECTIONS = ["figures", "calibration", "doubt", "effects", "whatif", "data", "posteriors", "model", "reproduce"]
ADDRESS = re.compile(r"^\s*(https?:)?//|^\s*(ftp|file|javascript):", re.IGNORECASE)


class Reader(HTMLParser):
    """What a page has: elements with their attributes, and the text of each script."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.text += data

    def named(self, tag: str) -> Iterator[dict[str, str | None]]:
        return (attributes for name, attributes in self.elements if name == tag)


@pytest.fixture(scope="module")
def pages(facts_of, request) -> dict[str, str]:
    names = ("additive_classes", "additive_numbers", "logistic", "three_classes", "linear")
    return {name: document(page_of(facts_of(request.getfixturevalue(name)))) for name in names}


def test_every_page_is_whole_and_self_contained(pages):
    for html in pages.values():
        read = Reader(html)
        assert len(html.encode()) < MOST_BYTES
        for _, attributes in read.elements:
            for name in ("src", "href", "srcset", "poster", "data", "action"):
                assert not ADDRESS.search(attributes.get(name) or ""), attributes
        assert not list(read.named("link"))
        css = re.search(r"<style>(.*?)</style>", html, re.DOTALL)
        assert css is not None
        assert "url(" not in css[1]
        assert "@import" not in css[1]
        ids = [attributes["id"] for _, attributes in read.elements if "id" in attributes]
        assert len(ids) == len(set(ids))
        assert [name for name in SECTIONS if name not in ids] == []
        assert [attributes["lang"] for attributes in read.named("html")] == ["en"]
        assert "NaN" not in html.split('id="figure-data"')[1].split("</script>")[0]


def test_every_chart_has_a_name_a_description_and_its_numbers(pages):
    for html in pages.values():
        read = Reader(html)
        charts = [attributes for attributes in read.named("div") if attributes.get("role") == "img"]
        assert len(charts) == len(list(read.named("figure")))
        assert all(len(chart["aria-label"] or "") > 20 for chart in charts)
        figures = re.findall(r"<figure.*?</figure>", html, re.DOTALL)
        assert all("<h3" in figure and "<table>" in figure and "<caption>" in figure for figure in figures)
        assert all(attributes.get("scope") in ("col", "row") for attributes in read.named("th"))
        assert all(
            attributes.get("aria-label") for attributes in read.named("button") if attributes.get("class") == "row"
        )


def test_only_the_packages_own_scripts_run(pages):
    html = pages["additive_classes"]
    read = Reader(html)
    policy = next(a["content"] for a in read.named("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline'; img-src" in policy  # styles alone
    scripts = list(read.named("script"))
    runs = [text for text, attributes in zip(read.scripts, scripts, strict=True) if "type" not in attributes]
    hashes = {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in runs}
    assert hashes == set(re.findall(r"'sha256-([^']+)'", policy))


def test_hostile_names_and_values_are_text(pages):
    for name in ("additive_classes", "additive_numbers"):
        html, read = pages[name], Reader(pages[name])
        assert HOSTILE not in html
        assert not list(read.named("img"))
        assert HOSTILE in read.text
        assert HOSTILE_LABEL[:12] in read.text
        assert "{{ 7 * 7 }}" in read.text
        assert len(read.scripts) == (9 if name == "additive_classes" else 7)
        told = json.loads(next(text for text in read.scripts if '"rows":[{' in text[:40]))
        assert any(HOSTILE[:10] in part[0] for part in told["rows"][0]["parts"][0])


def test_figures_are_json_with_text_that_plotly_takes_as_it_is(pages):
    read = Reader(pages["additive_classes"])
    figures = json.loads(read.scripts[1])
    assert {"reliability", "separation", "rows", "effect-0"} <= set(figures)
    shown = json.dumps(figures)
    assert "<script" not in shown
    assert "<img" not in shown
    assert "&lt;img" in shown
    for figure in figures.values():
        for trace in figure["data"]:
            assert trace["type"] in ("scatter", "bar")
            assert "hovertemplate" not in trace  # would read %{x} in a name
            assert trace.get("hoverinfo") in ("text", "skip")


def test_the_text_is_there_without_scripts(pages):
    text = Reader(pages["logistic"]).text
    for said in ("Accuracy", "Where the model doubts", "Prior precisions", "import bayescope as bs", "is off here"):
        assert said in text


def test_plotly_is_the_version_that_is_written_down():
    assets = files("bayescope.report") / "assets"
    plotly, told = (assets / "plotly-basic.min.js").read_bytes(), (assets / "README.md").read_text(encoding="utf-8")
    assert hashlib.sha256(plotly).hexdigest() in told
    version = re.search(rb"plotly.js \(basic - minified\) v([\d.]+)", plotly[:200])
    assert version is not None
    assert f"| {version[1].decode()} |" in told
    assert "MIT" in (assets / "plotly-LICENSE.txt").read_text(encoding="utf-8")
    assert Path(str(assets / "report.css")).stat().st_size < 40_000
