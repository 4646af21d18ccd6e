"""Points of the benchmark of first answers: the MLP estimators on textbook data."""

from __future__ import annotations

from bench.first_answer_points import Point

POINTS: tuple[Point, ...] = ()
