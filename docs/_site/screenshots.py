"""Writes the sample report and pictures of pages, by Playwright: `PYTHONPATH=. python docs/_site/screenshots.py`."""

from __future__ import annotations

import threading
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

import bayescope as bs
from bayescope.explore import serving
from tests.browser import CHROMIUM

DOCS = Path(__file__).parents[1]
IMAGES = DOCS / "images"
SAMPLE = DOCS / "sample_report.html"
COLOURS = 256
SIZE = {"width": 1180, "height": 760}
# For each picture the tab and what it begins with.
PICTURES = {"explore": ("classes", "moons"), "explore-density": ("density", "mixture")}


def take(page: Any, url: str, kind: str, preset: str) -> bytes:
    """The page after it was opened anew, once all of its answer is there."""
    page.goto(url)
    for act in (lambda: page.locator(f"[data-kind={kind}]").click(), lambda: page.select_option("#preset", preset)):
        _settle(page)
        act()
    _settle(page)
    taken: bytes = page.screenshot()
    return taken


def _settle(page: Any) -> None:
    """Waits until an answer has come to its end and no other follows."""
    quiet, last = 0, None
    while quiet < 10:
        page.wait_for_timeout(100)
        now = page.evaluate("[document.body.dataset.answered, document.getElementById('status').textContent]")
        quiet = quiet + 1 if now == last and now[0] and "first answer" in now[1] else 0
        last = now


def write_sample() -> None:
    """A report on an additive model of ten measurements of cells, judged on rows that it was not fitted to."""
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    X, y = X.filter(like="mean"), y.map({0: "malignant", 1: "benign"}).rename("diagnosis")
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.4, stratify=y, random_state=0)
    model = bs.NeuralAdditiveClassifier(random_state=0).fit(X_train, y_train)
    title = "Is a tumour malignant, from ten measurements of its cells?"
    bs.report(model, X_test, y_test, training=(X_train, y_train), held_out=True, title=title, out=SAMPLE)


def save(name: str, taken: bytes) -> None:
    """Writes a picture in few colours."""
    with Image.open(BytesIO(taken)) as picture:
        small = picture.convert("RGB").quantize(COLOURS, Image.Quantize.MEDIANCUT)
    small.save(IMAGES / f"{name}.png", optimize=True)


def main() -> None:
    """Writes the sample report, and takes all pictures."""
    write_sample()
    with serving() as server, sync_playwright() as playwright:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE, reduced_motion="reduce")
        for name, (kind, preset) in PICTURES.items():
            save(name, take(page, server.url, kind, preset))
        page.goto(SAMPLE.as_uri())
        page.wait_for_timeout(2000)
        save("report", page.screenshot())
        page.locator("#whatif").scroll_into_view_if_needed()
        page.evaluate("document.getElementById('whatif').scrollIntoView()")
        page.wait_for_timeout(1000)
        save("report-what-if", page.screenshot())
        browser.close()
        server.shutdown()


if __name__ == "__main__":
    main()
