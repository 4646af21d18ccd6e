"""Points of the benchmark of first answers: class probabilities of wide posteriors, and densities far from Gaussian."""

from __future__ import annotations

from bench.first_answer_points import Point

POINTS: tuple[Point, ...] = ()
