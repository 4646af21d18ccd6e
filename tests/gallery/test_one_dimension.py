"""What the pictures of one-dimensional Laplace fits, their evidence and their errors claim."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from scipy.special import betaln, expit

from bayescope.gallery import one_dimension as pictures

GAMMA, BETA, STUDENT, SKEWED = pictures.CASES
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
        own, transformed = (abs(case.ratio(case.laplace(t)) - 1) for t in (None, case.transform))
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
    assert STUDENT.ratio(STUDENT.laplace()) - 1 == pytest.approx(expected, abs=1e-6)
    assert expected < -0.2


def test_four_panels_print_true_figures():
    four = pictures.FOUR
    q = four.laplace()
    assert four.exact.log_normaliser == pytest.approx(math.log(6), abs=1e-7)
    assert float(q.mean[0]) == pytest.approx(3.0, abs=1e-8)
    assert float(q.covariance[0, 0]) == pytest.approx(3.0, abs=1e-8)
    touching = float(four.log_f(q.mean)) - float(q.log_prob(q.mean)) - float(q.log_evidence())
    assert touching == pytest.approx(0.0, abs=1e-10)
    assert torch.isfinite(q.log_evidence())


ALL = [pictures.draw_fits, pictures.draw_four_panels, pictures.draw_integrals, pictures.draw_rates]


@pytest.mark.parametrize("draw", ALL)
def test_pictures_are_drawn(draw, readable):
    readable(draw)


SMALL, RIGHT, LARGE = pictures.MODELS


def test_verdicts():
    ratios = [model.ratio(model.laplace()) for model in pictures.MODELS]
    assert ratios[0] < 0.7
    assert ratios[1] == pytest.approx(1.0, abs=0.02)
    assert ratios[2] > 1.8


def test_evidence_of_the_counts_is_the_gammas():
    # ∫ θ⁹ e^{−3.2 θ} dθ = Γ(10)/3.2¹⁰, over 5 · 4! 2! 3!
    assert math.exp(RIGHT.exact.log_normaliser) == pytest.approx(math.gamma(10) / 3.2**10 / (5 * 24 * 2 * 6), rel=1e-8)


@pytest.mark.parametrize(
    ("model", "likelihood"),
    [
        (SMALL, lambda theta: stats.cauchy(theta).pdf(1.0)),
        (LARGE, lambda theta: expit(5 * (1 - theta)) * expit(5 * (theta + 1))),
    ],
    ids=["Cauchy", "threshold"],
)
def test_evidence_of_the_others_is_the_integral_of_the_joint(model, likelihood):
    joint = lambda theta: likelihood(theta) * stats.norm(0, 10).pdf(theta)  # noqa: E731
    value, _ = integrate.quad(joint, -90, 90, points=[-1, 0, 1], limit=400)
    assert math.exp(model.exact.log_normaliser) == pytest.approx(value, rel=1e-7)


@pytest.mark.parametrize("transform", pictures.COORDINATES.values(), ids=pictures.COORDINATES)
def test_errors_fall_as_one_over_n(transform):
    counts = (100, 200, 500, 1000, 2000, 5000)
    for errors in pictures.errors(transform, counts):
        assert pictures.slope(counts, errors) == pytest.approx(-1.0, abs=0.02)


def test_mean_error_is_that_of_the_mode():
    # Without a transform Laplace's mean is the mode s/N, and the exact mean (1 + s)/(2 + N).
    counts = np.array([10, 100])
    _, of_mean = pictures.errors(None, (10, 100))
    successes = 0.3 * counts
    np.testing.assert_allclose(of_mean, (1 + successes) / (2 + counts) - successes / counts, rtol=1e-6)
