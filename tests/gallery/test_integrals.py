"""Laplace's evidence is too small, about right and too large where the picture says so."""

from __future__ import annotations

import math

import pytest
from scipy import integrate, stats
from scipy.special import expit

from bayescope.gallery.integrals import MODELS, draw_integrals

SMALL, RIGHT, LARGE = MODELS


def test_verdicts():
    ratios = [model.laplace_evidence / model.evidence for model in MODELS]
    assert ratios[0] < 0.7
    assert ratios[1] == pytest.approx(1.0, abs=0.02)
    assert ratios[2] > 1.8


def test_evidence_of_the_counts_is_the_gammas():
    # ∫ θ⁹ e^{−3.2 θ} dθ = Γ(10)/3.2¹⁰, over 5 · 4! 2! 3!
    assert RIGHT.evidence == pytest.approx(math.gamma(10) / 3.2**10 / (5 * 24 * 2 * 6), rel=1e-8)


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
    assert model.evidence == pytest.approx(value, rel=1e-7)


def test_drawn(readable):
    readable(draw_integrals)
