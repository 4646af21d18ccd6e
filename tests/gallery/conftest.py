"""What makes a page readable: every text on the page, none over another."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from bayescope.gallery import page
from bayescope.plots import style

# Boxes have the height of a line with ascenders and descenders, and glyphs rarely fill it.
SLACK = 3.0  # pixels


def shrunk(text: Text) -> tuple[float, float, float, float]:
    """A text's box in pixels, without its slack."""
    box = text.get_window_extent()
    return box.x0 + SLACK, box.y0 + SLACK, box.x1 - SLACK, box.y1 - SLACK


def shown(figure: Figure) -> list[Text]:
    """The texts that are drawn: neither empty ones, nor tick labels beyond the range of their axis."""
    hidden = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]:
                if not (axes.axison and low - 1e-9 <= tick.get_loc() <= high + 1e-9):
                    hidden |= {tick.label1, tick.label2}
    return [
        text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip() and text not in hidden
    ]


@pytest.fixture(scope="session")
def readable() -> Callable[[Callable[[], Figure]], None]:
    """Draws a page and asserts that it has the gallery's width, that its texts lie on it, and that no two overlap."""

    def check(draw: Callable[[], Figure]) -> None:
        with style.house(mathematics=True):
            figure = draw()
            figure.draw_without_rendering()
        width, height = (figure.get_size_inches() * figure.dpi).tolist()
        assert width == page.WIDTH * style.DPI
        boxes = [(text.get_text(), shrunk(text)) for text in shown(figure)]
        for text, (x0, y0, x1, y1) in boxes:
            assert min(x0, y0, width - x1, height - y1) >= 0, f"off the page: {text!r}"
        for (first, a), (second, b) in itertools.combinations(boxes, 2):
            apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
            assert apart, f"{first!r} over {second!r}"

    return check
