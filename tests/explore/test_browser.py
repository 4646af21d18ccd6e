"""The page in a real browser, headless Chromium: points are added, dragged, relabelled and deleted, and it follows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest

from bayescope.explore import serving, surfaces, tables
from tests.browser import DESKTOP, PHONE, needs_a_browser

sync_api = pytest.importorskip("playwright.sync_api", reason="pip install 'bayescope[dev]' brings playwright")
pytestmark = needs_a_browser

POINTS = ".point[tabindex]"


class Visit(NamedTuple):
    """The page, what it complained of and what it asked for."""

    page: sync_api.Page
    complaints: list[str]
    requests: list[str]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch, serving() as server:
        patch.setattr(surfaces, "MANY", np.logspace(-3, 3, 4))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.url
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def visit(browser, url):
    """Opens the page, once for each way of opening it, and shows a linear model of 20 points without NUTS."""
    open_ones: dict[tuple[object, ...], Visit] = {}

    def go(size=DESKTOP, scheme="light", **options) -> Visit:
        way = (size["width"], scheme)
        if way not in open_ones:
            context = browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce", **options)
            open_ones[way] = visited = Visit(context.new_page(), [], [])
            visited.page.on("console", lambda message: visited.complaints.append(message.text))
            visited.page.on("pageerror", lambda error: visited.complaints.append(str(error)))
            visited.page.on("request", lambda request: visited.requests.append(request.url))
            visited.page.goto(url)
            until(visited.page, "document.body.dataset.drawn > 0")
        page = open_ones[way].page
        page.locator("#reference").uncheck(force=True)
        page.locator("[data-kind=classes]").click()
        answered(page, lambda: page.locator("#preset").select_option("blobs"))
        page.evaluate("window.scrollTo(0, 0)")
        return open_ones[way]

    yield go
    for visited in open_ones.values():
        visited.page.context.close()


def until(page, expression):
    """Waits for something to be true. Playwright's own way of waiting is refused by the page's policy."""
    for _ in range(600):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never true: {expression}; status: {page.locator('#status').text_content()}")


def answered(page, act):
    """Acts, and waits for the whole answer to that."""
    before = page.evaluate("Number(document.body.dataset.answered || 0)")
    act()
    until(page, f"Number(document.body.dataset.answered || 0) > {before}")


def surface(page):
    return page.locator("#scene image").get_attribute("href")


def middle(locator):
    box = locator.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_it_asks_its_own_server_alone_and_complains_of_nothing(visit, url):
    visited = visit()
    assert visited.complaints == []
    assert visited.requests
    assert all(request.startswith((url, "data:image/png")) for request in visited.requests)
    assert visited.page.evaluate("document.documentElement.scrollWidth") <= DESKTOP["width"]
    assert visited.page.locator(POINTS).count() == 20


def test_dragging_a_point_changes_the_surface(visit):
    page = visit().page
    places = "[...document.querySelectorAll('.point[tabindex]')].map(point => point.getAttribute('aria-label'))"
    before, labels = surface(page), page.evaluate(places)
    x, y = middle(page.locator(POINTS).nth(3))
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 60, y + 40, steps=4)

    def drop():
        page.mouse.move(x + 150, y + 90, steps=4)
        page.mouse.up()

    answered(page, drop)
    assert surface(page) != before
    assert sum(old != new for old, new in zip(labels, page.evaluate(places), strict=True)) == 1
    answered(page, lambda: page.locator("#undo").click())
    assert page.evaluate(places) == labels
    assert surface(page) == before


def test_a_click_adds_and_a_double_click_relabels(visit):
    page = visit().page
    box = page.locator("#scene").bounding_box()
    page.locator("#labels label", has_text="red").click()
    answered(page, lambda: page.mouse.click(box["x"] + 0.2 * box["width"], box["y"] + 0.2 * box["height"]))
    added = page.locator(POINTS).nth(20)
    assert added.get_attribute("aria-label").startswith("red point 21 of 21")
    before = surface(page)
    x, y = middle(added)
    answered(page, lambda: page.mouse.dblclick(x, y))
    assert page.locator(POINTS).nth(20).get_attribute("aria-label").startswith("blue point 21 of 21")
    assert surface(page) != before


def test_the_keyboard_does_all_that_the_mouse_does(visit):
    page = visit().page
    page.locator(POINTS).nth(2).focus()
    label = "document.activeElement.getAttribute('aria-label')"
    first = page.evaluate(label)
    answered(page, lambda: page.keyboard.press("Shift+ArrowRight"))
    moved = page.evaluate(label)
    assert moved != first
    answered(page, lambda: page.keyboard.press("l"))
    assert page.evaluate(label).split()[0] != moved.split()[0]
    answered(page, lambda: page.keyboard.press("a"))
    assert page.locator(POINTS).count() == 21
    assert "point 21 of 21" in page.evaluate(label)
    answered(page, lambda: page.keyboard.press("Delete"))
    assert page.locator(POINTS).count() == 20


def test_touch_adds_a_point_on_a_phone_that_nothing_overflows(visit):
    visited = visit(PHONE, "dark", has_touch=True)
    page = visited.page
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    box = page.locator("#scene").bounding_box()
    answered(page, lambda: page.touchscreen.tap(box["x"] + 0.8 * box["width"], box["y"] + 0.2 * box["height"]))
    assert page.locator(POINTS).count() == 21
    assert visited.complaints == []


def test_the_theme_changes_the_map(visit):
    page = visit().page
    light = surface(page)
    page.locator("#theme").click()
    assert surface(page) != light
    page.locator("#theme").click()
    assert surface(page) == light


def test_controls_change_the_answer_and_the_code(visit):
    page = visit().page
    before = surface(page)
    answered(page, lambda: page.locator("#model").select_option("polynomial"))
    assert surface(page) != before
    page.locator("#slider-prior_precision").focus()
    answered(page, lambda: page.keyboard.press("End"))
    answered(page, lambda: page.locator("input[value=map]").check(force=True))
    assert "MAP is one point" in page.locator("#epistemic-note").text_content()
    answered(page, lambda: page.locator("#code").click())
    code = page.locator("#code-text").text_content()
    for piece in ("PolynomialFeatures(degree=3", "posterior='map'", "prior_precision=1000"):
        assert piece in code
    page.keyboard.press("Escape")


def test_a_posterior_that_is_not_offered_says_why(visit):
    page = visit().page
    page.locator("#posteriors label", has_text="MC dropout").click(force=True)
    assert tables.NO_UNITS in page.locator("#posterior-note").text_content()
    assert page.locator("input[value=laplace]").is_checked()


def test_the_evidence_is_shown_and_sets_the_prior_precision(visit):
    page = visit().page
    page.locator("#evidence").scroll_into_view_if_needed()
    box = page.locator("#evidence").bounding_box()
    answered(page, lambda: page.mouse.click(box["x"] + 0.7 * box["width"], box["y"] + 0.5 * box["height"]))
    shown = page.locator("label.slider", has_text="Prior precision").locator("output").text_content()
    assert 1 < float(shown) < 100
    assert page.locator("#weights svg").count() == 3


def test_refusals_are_said_and_nothing_is_lost(visit):
    page = visit().page
    answered(page, lambda: page.locator("#clear").click())
    assert "points of both classes" in page.locator("#status").text_content()
    answered(page, lambda: page.locator("#undo").click())
    assert page.locator(POINTS).count() == 20
    assert "20 points" in page.locator("#status").text_content()


def test_regression_and_densities_follow_their_controls(visit):
    page = visit().page
    answered(page, lambda: page.locator("[data-kind=numbers]").click())
    mean = page.locator("#scene .line.mean").get_attribute("d")
    page.locator(POINTS).first.focus()
    answered(page, lambda: page.keyboard.press("Shift+ArrowUp"))
    assert page.locator("#scene .line.mean").get_attribute("d") != mean
    answered(page, lambda: page.locator("[data-kind=density]").click())
    answered(page, lambda: page.locator("#preset").select_option("mixture"))
    assert page.locator("#numbers tbody tr").count() == 4
    laplace = page.locator("#scene .line.laplace").get_attribute("d")
    page.locator(".start").focus()
    answered(page, lambda: [page.keyboard.press("Shift+ArrowRight") for _ in range(8)])
    assert page.locator("#scene .line.laplace").get_attribute("d") != laplace
    answered(page, lambda: page.locator("[data-kind=numbers]").click())
    assert page.locator(POINTS).count() == 40


def test_slow_answers_show_progress_and_end_for_a_newer_question(visit):
    page = visit().page
    # The bar may come and go between two looks at it
    page.evaluate("""() => {
        const bar = document.getElementById("bar");
        window.barWasSeen = !bar.hidden;
        new MutationObserver(() => { window.barWasSeen ||= !bar.hidden; }).observe(bar, { attributes: true });
    }""")
    page.locator("#model").select_option("network")
    page.locator("input[value=variational]").check(force=True)
    until(page, "window.barWasSeen")
    page.locator("#model").select_option("linear")
    page.locator("input[value=map]").check(force=True)
    # The answer for the model alone, which the page has asked for in between, may be drawn first.
    until(page, "document.getElementById('epistemic-note').textContent.includes('MAP is one point')")
