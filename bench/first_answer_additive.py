"""Points of the benchmark of first answers: additive effects of monotone truths."""

from __future__ import annotations

from bench.first_answer_points import Point

POINTS: tuple[Point, ...] = ()
