"""Takes the pictures of pages that docs/ shows: `python docs/_site/screenshots.py`, with Chromium and Playwright."""

from __future__ import annotations

import threading
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from bayescope.explore import serving
from tests.browser import CHROMIUM

IMAGES = Path(__file__).parents[1] / "images"
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


def main() -> None:
    """Takes all pictures, in 256 colours."""
    with serving() as server, sync_playwright() as playwright:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE, reduced_motion="reduce")
        for name, (kind, preset) in PICTURES.items():
            with Image.open(BytesIO(take(page, server.url, kind, preset))) as picture:
                small = picture.convert("RGB").quantize(COLOURS, Image.Quantize.MEDIANCUT)
            small.save(IMAGES / f"{name}.png", optimize=True)
        browser.close()
        server.shutdown()


if __name__ == "__main__":
    main()
