"""The page on several models in a real browser: alone, on a phone, in the dark, on paper, without scripts."""

from __future__ import annotations

import pytest

from bayescope import BayesianLogisticRegression
from bayescope.report import document
from bayescope.report.judged import Judged
from bayescope.report.models_page import models_page
from bayescope.report.paired import judged_model
from tests.browser import DESKTOP, PHONE, needs_a_browser
from tests.report.conftest import HOSTILE, HOSTILE_LABEL
from tests.report.test_browser import DRAWN, until

pytest.importorskip("playwright.sync_api", reason="pip install 'bayescope[dev]' brings playwright")
pytestmark = needs_a_browser
NAMES = ("good", HOSTILE, HOSTILE_LABEL)


@pytest.fixture(scope="module")
def found(three_classes, tmp_path_factory):
    """The file and the scores of a good model and two that know less."""
    X, y = three_classes.X, three_classes.y
    models, rows = [], None
    for name, columns in zip(NAMES, (X.columns, ["height"], ["noise"]), strict=True):
        estimator = BayesianLogisticRegression().fit(X[columns], y)
        own = Judged.of(estimator, X[columns], y, 0)
        rows = rows or own
        models.append(judged_model(name, estimator, own, rows.classes, (("file", name),), "held out"))
    page, scores = models_page(models, rows, notes=["noted"], command="bayescope compare", random_state=0)
    path = tmp_path_factory.mktemp("models") / "page.html"
    path.write_text(document(page), encoding="utf-8")
    return path, scores


@pytest.mark.parametrize(("size", "scheme"), [(DESKTOP, "dark"), (PHONE, "light")])
def test_it_loads_alone_and_fits_the_screen(browser, found, size, scheme):
    context, complaints, requests = browser.new_context(viewport=size, color_scheme=scheme), [], []
    page = context.new_page()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(found[0].as_uri())
    until(page, DRAWN)
    assert complaints == []
    assert [url for url in requests if not url.startswith("file:")] == []
    assert page.evaluate("window.broken") is None
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    assert page.locator("#curves figure").count() == 2
    assert page.locator("#scores thead th").first.text_content() == "model"
    shown = page.locator("#scores tbody th").all_text_contents()
    assert {HOSTILE, HOSTILE_LABEL} <= {name.strip() for name in shown}
    page.emulate_media(media="print")
    until(page, "getComputedStyle(document.querySelector('.top')).display === 'none'")
    assert page.locator("#scores table").first.is_visible()
    context.close()


def test_bold_is_where_all_others_are_behind(browser, found):
    path, scores = found
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    bold = page.locator("#scores .scroll strong").count()
    assert bold == sum(score.won for score in scores) > 0
    assert page.locator("#scores .scroll tbody tr").first.locator("strong").count() == bold
    assert "predicts these 100 rows better than" in page.locator("#verdict-heading").text_content()
    assert page.locator("#rows table tbody tr").count() == 15
    context.close()
