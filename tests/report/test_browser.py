"""Reports in a real browser, headless Chromium: they load whole and alone, and answer to mouse and keyboard.

Debian's package has the browser; `.ci/run` installs it, so that these tests are never skipped there.
"""

from __future__ import annotations

import pytest

from bayescope.report import comparing, document
from tests.browser import DESKTOP, PHONE, needs_a_browser
from tests.report.conftest import DRAWN, HOSTILE_LABEL, until

pytest.importorskip("playwright.sync_api", reason="pip install 'bayescope[dev]' brings playwright")
pytestmark = needs_a_browser


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("additive_classes", DESKTOP),
        ("additive_classes", PHONE),
        ("additive_numbers", DESKTOP),
        ("three_classes", DESKTOP),
        ("linear", DESKTOP),
    ],
)
def test_it_loads_alone_without_complaint_and_fits_the_screen(visit, name, size):
    told = visit(name, size=size)
    assert told.complaints == []
    assert [url for url in told.requests if not url.startswith("file:")] == []
    assert told.page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    assert told.page.evaluate("window.broken") is None
    beyond = told.page.evaluate(
        "[...document.querySelectorAll('.chart')].map(c => c.querySelector('.main-svg').clientWidth - c.clientWidth)"
    )
    assert max(beyond) <= 1


def test_labels_do_not_overlap(visit):
    page = visit("additive_classes").page
    clashes = page.evaluate(
        """[...document.querySelectorAll('.chart')].flatMap(chart => {
            const boxes = [...chart.querySelectorAll('.xtick text, .x2tick text')].map(t => t.getBoundingClientRect());
            const straight = chart.querySelectorAll('.xtick text[transform*="rotate(-"]').length === 0;
            return boxes.slice(1).filter((box, n) => straight && box.left < boxes[n].right).map(() => chart.id);
        })"""
    )
    assert clashes == []


def test_hover_tells_the_point(visit):
    page = visit("additive_classes").page
    chart = page.locator("#chart-rows")
    chart.scroll_into_view_if_needed()
    points = chart.locator(".scatterlayer .trace").first.locator(".point")
    points.nth(3).hover(force=True)
    tooltip = chart.locator(".hoverlayer .hovertext")
    tooltip.first.wait_for()
    assert "truth" in tooltip.first.text_content()


def test_hostile_names_are_shown_as_they_are(visit):
    page = visit("additive_numbers").page
    shown = page.locator("#effects figure h3").all_text_contents()
    assert any("{{ 7 * 7 }} & %{x}" in title for title in shown)
    ticks = page.locator("#effects .ytick text").all_text_contents()
    assert any(tick.startswith(HOSTILE_LABEL[:8]) for tick in ticks)


def test_a_click_on_a_row_or_a_point_explains_it(visit):
    told = visit("additive_classes")
    page = told.page
    heading, body = page.locator("#explanation-heading"), page.locator("#explanation-body")
    first = heading.text_content()
    row = page.locator("tr[data-place='4']")
    row.locator("td").nth(1).click()
    number = row.locator("button").text_content()
    assert heading.text_content() == f"Row {number} and its reasons" != first
    assert row.get_attribute("aria-current") == "true"
    assert "Contributions to the prediction" in body.text_content()
    assert "age = " in body.text_content()
    page.locator("#chart-rows .scatterlayer .trace").nth(0).locator(".point").nth(5).click(force=True)
    assert heading.text_content() not in (first, f"Row {number} and its reasons")
    assert told.complaints == []


def test_parts_shown_sum_to_the_last_line(visit):
    page = visit("additive_numbers").page
    cells = page.locator("#explanation-body table").last.locator("tr td.number")
    values = [float(text.split(" ")[0].replace("−", "-")) for text in cells.all_text_contents()]
    assert sum(values[:-1]) == pytest.approx(values[-1], abs=0.02 * max(map(abs, values)))


def test_the_keyboard_reaches_a_row_and_chooses_it(visit):
    page = visit("additive_classes").page
    target = page.locator("button.row").nth(2)
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.className") == "row":
            break
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert target.evaluate("button => button === document.activeElement")
    assert target.evaluate("button => getComputedStyle(button).outlineStyle") != "none"
    page.keyboard.press("Enter")
    assert page.locator("#explanation-heading").text_content() == f"Row {target.text_content()} and its reasons"
    page.locator("#next").focus()
    page.keyboard.press("Enter")
    following = page.locator("button.row").nth(3).text_content()
    assert page.locator("#explanation-heading").text_content() == f"Row {following} and its reasons"


def test_reasons_of_another_class_can_be_chosen(visit):
    page = visit("three_classes").page
    table = page.locator("#explanation-body table").last
    before = table.text_content()
    select = page.locator("#output")
    other = next(value for value in ("0", "1", "2") if value != select.input_value())
    select.select_option(other)
    assert page.locator("#explanation-body table").last.text_content() != before


def test_light_and_dark_and_paper(visit):
    page = visit("additive_classes", scheme="dark").page
    ink = "getComputedStyle(document.querySelector('#chart-reliability .ytick text')).fill"
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = (page.evaluate(ink), page.evaluate(paper))
    page.locator("#theme").click()
    until(page, f"{ink} !== '{dark[0]}'")
    light = (page.evaluate(ink), page.evaluate(paper))
    assert light[1] != dark[1]
    page.locator("#theme").click()
    until(page, f"{ink} === '{dark[0]}'")
    page.emulate_media(media="print", color_scheme="dark")
    until(page, f"{ink} === '{light[0]}'")
    assert page.evaluate(paper) == "rgb(255, 255, 255)"
    assert page.locator(".top").evaluate("bar => getComputedStyle(bar).display") == "none"


def test_it_prints(visit):
    page = visit("linear").page
    page.emulate_media(media="print")
    until(page, "document.querySelector('#chart-coverage .main-svg').clientWidth < 300")
    assert page.pdf(format="A4").startswith(b"%PDF")
    page.emulate_media(media="screen")
    until(page, "document.querySelector('#chart-coverage .main-svg').clientWidth > 400")


def test_text_can_be_read_on_its_ground(visit):
    """The contrast of WCAG 2.1 AA, 4.5 to 1, for each text colour on each ground that it stands on."""
    page = visit("linear").page
    names = ["paper", "card", "ink", "muted", "accent", "bad", "good", "caution", "unknown"]
    names += ["good-tint", "caution-tint", "bad-tint", "unknown-tint", "faint"]
    style = "getComputedStyle(document.documentElement).getPropertyValue('--{}').trim()"
    pairs = [(text, ground) for text in ("ink", "muted") for ground in names if ground.endswith("-tint")]
    pairs += [(text, ground) for text in ("ink", "muted", "accent", "bad") for ground in ("paper", "card", "faint")]
    pairs += [(tone, f"{tone}-tint") for tone in ("good", "caution", "bad", "unknown")]
    for theme in ("light", "dark"):
        page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        colours = {name: _luminance(page.evaluate(style.format(name))) for name in names}
        for text, ground in pairs:
            lighter, darker = sorted((colours[text], colours[ground]), reverse=True)
            assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (theme, text, ground)


def _luminance(colour: str) -> float:
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_text_stands_without_scripts(visit):
    page = visit("linear", scripts=False).page
    text = page.locator("main").inner_text()
    assert "JavaScript, which is off here" in text
    assert "Headline figures" in text
    assert page.locator("tr[data-place]").count() == 15


def test_a_comparison_loads_too(browser, tmp_path, logistic):
    from bayescope import compare

    told = compare(logistic.estimator, logistic.X, logistic.y, posteriors=["map"], reference="laplace")
    path = tmp_path / "comparison.html"
    path.write_text(document(comparing.comparison_page(told, "Posteriors")), encoding="utf-8")
    page, complaints = browser.new_page(viewport=PHONE), []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(path.as_uri())
    until(page, DRAWN)
    assert complaints == []
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    page.close()
