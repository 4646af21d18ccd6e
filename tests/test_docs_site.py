"""The documentation site: it builds without a warning, has every public name, and asks nothing of the network."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import bayescope
from bayescope.gallery import PICTURES
from tests.browser import DESKTOP, PHONE, needs_a_browser

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
# Modules that users are told to import from by name, because `bs.` does not lead to them.
BY_NAME = ("tables",)


def public(module: ModuleType, shown: str) -> Iterator[str]:
    """The public names of a module as users write them, those of its public modules too."""
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.ismodule(thing):
            yield from public(thing, f"{shown}.{name}")
        else:
            yield f"{shown}.{name}"


NAMES = [
    *public(bayescope, "bs"),
    *(name for part in BY_NAME for name in public(importlib.import_module(f"bayescope.{part}"), f"bayescope.{part}")),
]


class Page(HTMLParser):
    """What a built page holds: its anchors, its links, its pictures' texts, and what a browser loads with it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        # For each picture its source and its text; None for one in a link that screen readers pass by.
        self.pictures: list[tuple[str, str | None]] = []
        self.decorative = False
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Keeps what the tag tells."""
        told = {name: value for name, value in attributes if value}
        if tag == "a":
            self.decorative = told.get("aria-hidden") == "true"
        if tag == "img":
            self.pictures.append((told.get("src", ""), None if self.decorative else told.get("alt", "")))
        self.anchors |= {told[name] for name in ("id", "name") if name in told}
        if tag == "a" and "href" in told:
            self.links.append(told["href"])
        if tag in ("link", "script", "img", "iframe", "source"):
            self.loads += [told[name] for name in ("href", "src", "srcset") if name in told]

    def handle_endtag(self, tag: str) -> None:
        """Leaves a link."""
        self.decorative = self.decorative and tag != "a"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: a link that leads nowhere is an error. `make test` names the one that it has built."""
    if "BAYESCOPE_SITE" in os.environ:
        return ROOT / os.environ["BAYESCOPE_SITE"]
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    """All pages of the site by their files."""
    return {path: Page(path) for path in sorted(site.glob("**/*.html"))}


def test_every_public_name_has_its_entry(site: Path, pages: dict[Path, Page]) -> None:
    entries = set().union(*(page.anchors for path, page in pages.items() if path.parent == site / "reference"))
    assert [name for name in NAMES if name not in entries] == []


def test_every_entry_is_named_on_the_first_page_of_the_reference(site: Path, pages: dict[Path, Page]) -> None:
    written = "\n".join(page.read_text(encoding="utf-8") for page in DOCS.glob("reference/*.md"))
    entries = set(re.findall(r"^::: (\S+)$", written, flags=re.MULTILINE))
    named = {link.partition("#")[2] for link in pages[site / "reference" / "index.html"].links}
    assert sorted(entries - named) == []


@needs_a_browser
def test_the_names_fit_two_screens(site: Path, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 1200, "height": 1000})
    page.goto((site / "reference" / "index.html").as_uri())
    bottom = page.evaluate("document.querySelector('.names').getBoundingClientRect().bottom + window.scrollY")
    assert 0 < bottom <= 2000
    page.close()


def test_no_name_has_two_entries() -> None:
    written = "\n".join(page.read_text(encoding="utf-8") for page in DOCS.glob("reference/*.md"))
    entries = re.findall(r"^::: (\S+)$", written, flags=re.MULTILINE)
    assert sorted(entries) == sorted(set(entries))


def test_an_entry_tells_what_the_docstring_tells(site: Path) -> None:
    page = (site / "reference" / "networks.html").read_text(encoding="utf-8")
    entry = page[page.index('id="bs.laplace"') : page.index('id="bs.tune_prior"')]
    assert all(told in entry for told in ("Parameters", "Returns", "Raises", "Daxberger", "prior_precision", "Source"))


def test_every_picture_has_its_page_with_its_code(site: Path) -> None:
    for name, picture in PICTURES.items():
        page = (site / "gallery" / f"{name}.html").read_text(encoding="utf-8")
        assert f'src="../images/{name}.png"' in page
        assert picture.draw.__name__ in page
        assert (site / "images" / f"{name}.png").exists()


def test_pages_load_nothing_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    assert [(path, url) for path, page in pages.items() for url in page.loads if re.match(r"(\w+:)?//", url)] == []
    styles = "".join(path.read_text(encoding="utf-8") for path in site.glob("**/*.css"))
    assert re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//[^)]*", styles) == []


def test_links_within_the_site_lead_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    dead = []
    for path, page in pages.items():
        for link in page.links:
            target, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:|//", link) or path.name == "404.html":
                continue
            to = (path.parent / target).resolve() if target else path
            if not to.exists() or (anchor and to.suffix == ".html" and anchor not in pages[to].anchors):
                dead.append((path.relative_to(site).as_posix(), link))
    assert dead == []


def test_every_picture_says_what_it_shows(site: Path, pages: dict[Path, Page]) -> None:
    mute = [
        (path.relative_to(site).as_posix(), picture, text)
        for path, page in pages.items()
        for picture, text in page.pictures
        if text is not None and len(text.split()) < 4
    ]
    assert mute == []


# Pages of the site that are written elsewhere.
PROJECT = {"CHANGELOG.md": "changelog.html", "CONTRIBUTING.md": "contributing.html"}


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"])
def test_links_of_files_outside_the_site_lead_somewhere(pages: dict[Path, Page], site: Path, name: str) -> None:
    anchors = {path.relative_to(site).as_posix(): page.anchors for path, page in pages.items()}
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", (ROOT / name).read_text(encoding="utf-8")):
        target, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link) or (not target and name not in PROJECT):
            continue
        page = PROJECT[name] if not target else re.sub(r"^docs/(.*)\.md$", r"\1.html", target)
        # The pages of the gallery are made with the site.
        there = page in anchors or (ROOT / target).exists()
        if not there or (anchor and page in anchors and anchor not in anchors[page]):
            dead.append(link)
    assert dead == []


def test_the_navigation_reaches_every_page(site: Path, pages: dict[Path, Page]) -> None:
    home = {(site / link).resolve() for link in pages[site / "index.html"].links}
    written = {site / page.relative_to(DOCS).with_suffix(".html") for page in DOCS.glob("**/*.md")}
    assert sorted(written - home) == []


@needs_a_browser
@pytest.mark.parametrize(("size", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")], ids=["desktop", "phone"])
def test_pages_open_as_files_without_a_complaint(site: Path, browser: Any, size: dict[str, int], scheme: str) -> None:
    context = browser.new_context(viewport=size, color_scheme=scheme)
    page, complaints, asked = context.new_page(), [], []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    opened = (
        "index",
        "start/network",
        "how_to/which_posterior",
        "course/index",
        "cases/credit_risk",
        "coming_from/laplace_torch",
        "understand/laplace",
        "gallery",
        "reference/index",
        "reference/networks",
    )
    for name in opened:
        page.goto((site / f"{name}.html").as_uri())
        page.wait_for_function("document.querySelectorAll('.arithmatex:not(:has(.katex))').length === 0")
        too_wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert (name, too_wide) == (name, 0)
    assert complaints == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    context.close()


# What people type, and the page that answers it. Synonyms come from docs/_site/search.py.
SEARCHES = {
    "csv": "how_to/any_table",
    "excel": "how_to/any_table",
    "xlsx": "how_to/any_table",
    "missing values": "how_to/missing_values",
    "categorical": "how_to/any_table",
    "install": "start/install",
    "pip install": "start/install",
    "getting started": "start/table",
    "sklearn": "start/table",
    "mcmc": "start/density",
    "overfitting": "evidence/how_wrong",
    "calibration": "how_to/calibration",
    "reliability diagram": "how_to/calibration",
    "prediction interval": "how_to/regression_intervals",
    "credible interval": "how_to/regression_intervals",
    "confidence interval": "how_to/regression_intervals",
    "error bars": "how_to/regression_intervals",
    "active learning": "how_to/active_learning",
    "out of distribution": "how_to/out_of_distribution",
    "ood": "how_to/out_of_distribution",
    "hugging face": "how_to/fine_tuned_transformer",
    "lora": "how_to/fine_tuned_transformer",
    "lightning": "how_to/trainers",
    "confidence": "how_to/decisions",
    "uncertainty": "how_to/decisions",
    "conformal": "how_to/guarantee",
    "outlier": "how_to/outcomes",
    "poisson": "how_to/outcomes",
    "counts": "how_to/outcomes",
    "survival": "how_to/outcomes",
    "nan": "how_to/missing_values",
    "imputation": "how_to/missing_values",
    "deploy": "how_to/serve",
    "rest api": "how_to/serve",
    "save": "how_to/save_and_load",
    "load": "how_to/save_and_load",
    "pickle": "how_to/save_and_load",
    "gpu": "how_to/gpu",
    "several gpus": "how_to/several_gpus",
    "onnx": "how_to/export",
    "jupyter": "how_to/notebooks",
    "shap": "how_to/additive",
    "random effects": "how_to/which_posterior",
    "laplace-torch": "coming_from/laplace_torch",
    "mapie": "coming_from/mapie",
    "pymc": "coming_from/pymc_and_bambi",
    "numpyro": "coming_from/pyro_and_numpyro",
    "ngboost": "coming_from/ngboost",
    "interpretml": "coming_from/interpretml",
    "course": "course/index",
    "lecture": "course/index",
    "case study": "cases/index",
    "credit": "cases/credit_risk",
    "bayesian optimization": "how_to/bayesian_optimisation",
    "cross-validation": "how_to/pipelines",
    "command line": "how_to/command_line",
    "tune_prior": "reference/networks",
    "bs.tune_prior": "reference/networks",
    "BayesianLogisticRegression": "reference/estimators",
    "changelog": "changelog",
    "formulas": "understand/index",
    "elbo": "understand/variational_inference",
    "marginal likelihood": "understand/evidence",
    "model comparison": "understand/evidence",
    "moment matching": "understand/expectation_propagation",
    "effective sample size": "understand/mcmc",
    "quadrature": "understand/predictions",
}
# The site's own worker ranks the pages, as it does when somebody types: without the pauses of the page around it.
RANK = """async ([index, queries]) => {
  await new Promise((loaded, failed) => document.head.append(
    Object.assign(document.createElement("script"), { src: index, onload: loaded, onerror: failed })));
  const { search } = JSON.parse(document.getElementById("__config").textContent);
  const worker = new Worker(new URL(search, location.href).href);
  const ask = message => new Promise(answered => {
    worker.onmessage = answer => answered(answer.data);
    worker.postMessage(message);
  });
  await ask({ type: 0, data: { ...__index, options: { suggest: false } } });
  const first = {};
  for (const query of queries)
    first[query] = (await ask({ type: 2, data: query })).data.items[0]?.[0].location.split("#")[0];
  return first;
}"""


@needs_a_browser
def test_search_leads_to_the_page_that_answers(site: Path, browser: Any) -> None:
    page = browser.new_page()
    page.goto((site / "index.html").as_uri())
    first = page.evaluate(RANK, [(site / "search" / "search_index.js").as_uri(), list(SEARCHES)])
    assert first == {query: f"{name}.html" for query, name in SEARCHES.items()}
    page.close()


COPIED = [page for page in sorted(DOCS.glob("**/*.md")) if "```console" in page.read_text(encoding="utf-8")]


@needs_a_browser
@pytest.mark.parametrize("source", COPIED, ids=lambda source: source.relative_to(DOCS).as_posix())
def test_commands_are_copied_without_their_prompt(site: Path, browser: Any, source: Path) -> None:
    blocks = re.findall(r"^```console\n(.*?)^```$", source.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    page = browser.new_page(viewport=DESKTOP)
    page.goto((site / source.relative_to(DOCS).with_suffix(".html")).as_uri())
    page.evaluate("document.addEventListener('copy', () => { window.copied = document.activeElement.value; })")
    buttons = page.locator(".language-console .md-code__button")
    buttons.first.wait_for()
    copied = [(button.click(), page.evaluate("window.copied"))[1] for button in buttons.all()]
    assert copied == [re.sub(r"^\$ ", "", block, flags=re.MULTILINE).rstrip() for block in blocks]
    assert page.locator(".gp").first.evaluate("prompt => getComputedStyle(prompt).userSelect") == "none"
    page.close()


@needs_a_browser
def test_output_is_set_apart_from_code(site: Path, browser: Any) -> None:
    page = browser.new_page(viewport=DESKTOP)
    page.goto((site / "how_to/any_table.html").as_uri())
    page.locator(".language-console .md-code__button").first.wait_for()
    output = page.locator(".language-console + .output-label + .output")
    assert output.count() >= 1
    assert page.locator(".output .md-code__button").count() == 0
    assert page.get_by_text("Output", exact=True).count() == page.locator(".output").count()
    page.close()


@needs_a_browser
@needs_a_browser
def test_search_finds_a_name(site: Path, browser: Any) -> None:
    page = browser.new_page(viewport=DESKTOP)
    page.goto((site / "index.html").as_uri())
    page.locator("input.md-search__input").click()
    page.keyboard.type("tune_prior")
    found = page.locator(".md-search-result__link").first
    found.wait_for()
    assert "reference/networks.html" in (found.get_attribute("href") or "")
    page.close()
