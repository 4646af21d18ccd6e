"""Points of the benchmark of first answers: Laplace by default, beside the network's own probabilities."""

from __future__ import annotations

from bench.first_answer_points import Point

POINTS: tuple[Point, ...] = ()
