"""Points of the benchmark of first answers: gaps, unseen labels and raw tables at prediction."""

from __future__ import annotations

from bench.first_answer_points import Point

POINTS: tuple[Point, ...] = ()
