"""Points of the benchmark of first answers: trainings with default options, beside their own long runs."""

from __future__ import annotations

from bench.first_answer_points import Point

POINTS: tuple[Point, ...] = ()
