"""What the one-dimensional Laplace fits claim, and that they are drawn."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import integrate, stats
from scipy.special import betaln, expit

from bayescope.gallery.densities import CASES, FOUR, draw_fits, draw_four_panels

GAMMA, BETA, STUDENT, SKEWED = CASES
SKEWED_NORMALISER, _ = integrate.quad(lambda x: math.exp(-0.5 * x * x) * expit(20 * x + 4), -12, 12, points=[-0.2, 0])


@pytest.mark.parametrize(
    ("case", "log_normaliser"),
    [
        (GAMMA, math.lgamma(2.5)),
        (BETA, betaln(2, 5)),
        (STUDENT, -stats.t(3).logpdf(0.0)),
        (SKEWED, math.log(SKEWED_NORMALISER)),
    ],
    ids=["Gamma", "Beta", "Student-t", "skewed"],
)
def test_true_normalisers(case, log_normaliser):
    assert case.exact.log_normaliser == pytest.approx(log_normaliser, abs=2e-7)


def test_better_coordinates_bring_the_evidence_closer():
    for case in (GAMMA, BETA):
        own, transformed = (abs(case.evidence_error(case.laplace(t))) for t in (None, case.transform))
        assert transformed < 0.7 * own


def test_better_coordinates_bring_the_density_closer():
    for case in (GAMMA, BETA):
        exact = case.exact
        inside = exact.points[1:-1]
        distances = [
            float((case.laplace(t).log_prob(inside).exp() - exact.log_p[1:-1].exp()).abs().sum())
            for t in (None, case.transform)
        ]
        assert distances[1] < distances[0]


def test_student_tails_are_left_out():
    # Laplace of a Student-t with ν degrees has precision (ν + 1)/ν: its Z is f(0) √(2π · 3/4).
    expected = math.sqrt(2 * math.pi * 0.75) * stats.t(3).pdf(0.0) - 1
    assert STUDENT.evidence_error(STUDENT.laplace()) == pytest.approx(expected, abs=1e-6)
    assert expected < -0.2


def test_four_panels_print_true_figures():
    q = FOUR.laplace()
    assert FOUR.exact.log_normaliser == pytest.approx(math.log(6), abs=1e-7)
    assert float(q.mean[0]) == pytest.approx(3.0, abs=1e-8)
    assert float(q.covariance[0, 0]) == pytest.approx(3.0, abs=1e-8)
    touching = float(FOUR.log_f(q.mean)) - float(q.log_prob(q.mean)) - float(q.log_evidence())
    assert touching == pytest.approx(0.0, abs=1e-10)
    assert torch.isfinite(q.log_evidence())


@pytest.mark.parametrize("draw", [draw_fits, draw_four_panels])
def test_drawn(draw, readable):
    readable(draw)
