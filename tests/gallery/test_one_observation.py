"""One observation: Laplace is nearly the prior, the KL optima are not, and their predictives differ."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from scipy.special import expit

from bayescope.gallery.one_observation import INPUT, PRIOR_MEAN, OneObservation, draw_one_observation


@pytest.fixture(scope="module")
def model():
    return OneObservation()


def moments(q):
    return float(q.mean[0]), float(q.covariance[0, 0].sqrt())


def test_laplace_is_nearly_the_prior(model):
    mean, sd = moments(model.fits["laplace"])
    assert mean == pytest.approx(PRIOR_MEAN, abs=0.002)
    assert sd == pytest.approx(1.0, rel=0.002)


def test_the_posterior_is_far_from_the_prior(model):
    assert float(model.exact.mean[0]) > PRIOR_MEAN + 0.45
    assert float(model.exact.covariance[0, 0].sqrt()) < 0.75


def test_each_optimum_is_one(model):
    exact = model.exact
    divergence = {"variational": exact.kl_from, "ep": exact.kl_to}
    for name, kl in divergence.items():
        mean, sd = moments(model.fits[name])
        values = [
            kl(torch.distributions.Normal(mean + a, sd * b).log_prob(exact.points[:, 0]))
            for a, b in ((0.0, 1.0), (0.03, 1.0), (-0.03, 1.0), (0.0, 1.04), (0.0, 0.96))
        ]
        assert min(values) == values[0]


def test_predictives_are_the_integrals(model):
    found = model.predictive(np.array([0.0, INPUT]))
    for name, values in found.items():
        assert values[0] == pytest.approx(0.5, abs=1e-9), name
    mean, sd = moments(model.fits["laplace"])
    expected, _ = integrate.quad(lambda w: expit(INPUT * w) * stats.norm(mean, sd).pdf(w), -9, 10, points=[0, 0.5])
    assert found["laplace"][1] == pytest.approx(expected, abs=1e-7)


def test_laplace_doubts_what_was_seen(model):
    at = {name: values[0] for name, values in model.predictive(np.array([INPUT])).items()}
    assert at["laplace"] < 0.7
    assert at["exact"] > 0.97
    assert at["laplace"] < at["ep"] < at["variational"]


def test_drawn(readable):
    readable(draw_one_observation)
