"""Draws the gallery's pictures that docs/images lacks: `python docs/_site/pictures.py`, or the named ones anew.

Drawing all of them takes minutes, so they lie in the repository, in 256 colours at a third of their size.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from bayescope.gallery import PICTURES, draw_all

IMAGES = Path(__file__).parents[1] / "images"
# Of a palette, and the rounds that move its colours to the means of the pixels that they stand for.
COLOURS, ROUNDS = 256, 3


def missing() -> list[str]:
    """Names of the pictures that have no file."""
    return [name for name in PICTURES if not (IMAGES / f"{name}.png").exists()]


def draw(names: Sequence[str]) -> None:
    """Draws the named pictures and keeps them with as many colours as a palette has."""
    with tempfile.TemporaryDirectory() as folder:
        for path in draw_all(folder, only=names):
            with Image.open(path) as picture:
                small = picture.convert("RGB").quantize(
                    COLOURS, Image.Quantize.MAXCOVERAGE, kmeans=ROUNDS, dither=Image.Dither.NONE
                )
            small.save(IMAGES / path.name, optimize=True)


if __name__ == "__main__":
    draw(sys.argv[1:] or missing())
