"""Points of the benchmark of first answers: linear regression in any unit and from any origin."""

from __future__ import annotations

from bench.first_answer_points import Point

POINTS: tuple[Point, ...] = ()
