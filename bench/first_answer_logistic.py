"""Points of the benchmark of first answers: logistic regression on real tables, beside plain MAP."""

from __future__ import annotations

from bench.first_answer_points import Point

POINTS: tuple[Point, ...] = ()
