"""What a picture of the gallery is: a name, what it teaches, and the function that draws it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from matplotlib.figure import Figure


@final
@dataclass(frozen=True)
class Picture:
    """One textbook picture.

    Attributes:
        name: the file's name without its suffix, and what ``only`` selects.
        title: the subject in a few words, for the index.
        caption: one sentence that says what the picture teaches.
        source: the book or paper where the idea of the figure is from.
        draw: computes the numbers and returns the figure.
    """

    name: str
    title: str
    caption: str
    source: str
    draw: Callable[[], Figure]
