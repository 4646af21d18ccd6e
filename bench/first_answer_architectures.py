"""Points of the benchmark of first answers: networks of others, and copies of them."""

from __future__ import annotations

from bench.first_answer_points import Point

POINTS: tuple[Point, ...] = ()
