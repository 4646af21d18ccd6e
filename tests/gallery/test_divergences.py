"""Both KL optima, one observation, log p(D) = ELBO + KL, and the integrals over a link: what the pictures claim."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from scipy.special import expit

from bayescope.gallery import divergences as pictures

BOTH = pytest.mark.parametrize("p", [pictures.LINE, pictures.PLANE], ids=["one dimension", "two dimensions"])


@BOTH
def test_mode_seeking_settles_in_the_mode_where_it_starts(p):
    for q, part in zip(pictures.optima(p)[:2], p.components, strict=True):
        spread = part.covariance.diagonal().sqrt()
        assert ((q.mean - part.mean).abs() < 0.35 * spread).all()
        assert ((q.covariance.diagonal().sqrt() / spread - 1).abs() < 0.25).all()


@BOTH
def test_mass_covering_has_the_moments_of_p(p):
    draws, covering = p.sample(200_000, generator=0), pictures.optima(p)[2]
    torch.testing.assert_close(covering.mean, draws.mean(0), atol=0.03, rtol=0)
    torch.testing.assert_close(covering.covariance, torch.atleast_2d(draws.mT.cov()), atol=0.06, rtol=0)


@BOTH
def test_each_optimum_wins_in_its_direction(p):
    *seeking, covering = (pictures.divergences(q, p) for q in pictures.optima(p))
    assert min(to_p for to_p, _ in seeking) < covering[0]
    assert all(from_p > covering[1] for _, from_p in seeking)


@BOTH
def test_the_density_that_is_fitted_is_the_one_that_is_drawn(p):
    points = p.sample(50, generator=1)
    torch.testing.assert_close(pictures.log_mixture(p, points), p.log_prob(points))


def moments(q):
    return float(q.mean[0]), float(q.covariance[0, 0].sqrt())


def test_laplace_is_nearly_the_prior():
    mean, sd = moments(pictures.one_observation()[1]["laplace"])
    assert mean == pytest.approx(pictures.PRIOR_MEAN, abs=0.002)
    assert sd == pytest.approx(1.0, rel=0.002)


def test_the_posterior_is_far_from_the_prior():
    exact, _ = pictures.one_observation()
    assert float(exact.mean[0]) > pictures.PRIOR_MEAN + 0.45
    assert float(exact.covariance[0, 0].sqrt()) < 0.75


def test_each_optimum_is_one():
    exact, fits = pictures.one_observation()
    divergence = {"variational": exact.kl_from, "ep": exact.kl_to}
    for name, kl in divergence.items():
        mean, sd = moments(fits[name])
        values = [
            kl(torch.distributions.Normal(mean + a, sd * b).log_prob(exact.points[:, 0]))
            for a, b in ((0.0, 1.0), (0.03, 1.0), (-0.03, 1.0), (0.0, 1.04), (0.0, 0.96))
        ]
        assert min(values) == values[0]


def test_predictives_are_the_integrals():
    found = pictures.predictions_of_one(np.array([0.0, pictures.INPUT]))
    for name, values in found.items():
        assert values[0] == pytest.approx(0.5, abs=1e-9), name
    mean, sd = moments(pictures.one_observation()[1]["laplace"])
    expected, _ = integrate.quad(
        lambda w: expit(pictures.INPUT * w) * stats.norm(mean, sd).pdf(w), -9, 10, points=[0, 0.5]
    )
    assert found["laplace"][1] == pytest.approx(expected, abs=1e-7)


def test_laplace_doubts_what_was_seen():
    at = {name: values[0] for name, values in pictures.predictions_of_one(np.array([pictures.INPUT])).items()}
    assert at["laplace"] < 0.7
    assert at["exact"] > 0.97
    assert at["laplace"] < at["ep"] < at["variational"]


@pytest.mark.parametrize("name", ["mean_field", "laplace", "ep", "variational"])
def test_the_parts_make_up_the_log_evidence(name):
    exact, fits = pictures.four_rows()
    elbo, kl = pictures.elbo_and_kl(fits[name])
    assert elbo + kl == pytest.approx(exact.log_normaliser, abs=1e-6)


@pytest.mark.parametrize("name", ["variational", "mean_field"])
def test_the_fits_bound_is_the_one_drawn(name):
    q = pictures.four_rows()[1][name]
    assert float(q.elbo) == pytest.approx(pictures.elbo_and_kl(q)[0], abs=5e-3)


def test_full_variational_has_the_highest_bound():
    bounds = {name: pictures.elbo_and_kl(q)[0] for name, q in pictures.four_rows()[1].items()}
    assert max(bounds, key=bounds.get) == "variational"
    assert list(bounds.values()) == sorted(bounds.values()), "the rows run from the loosest to the tightest"


def test_kappa_is_never_off_by_more_than_the_gap_between_the_links():
    error = pictures.kappa_error(np.linspace(-80, 80, 161), np.array([0.0, 0.5, 1.0, 3.0, 10.0, 30.0]))
    logistic, probit = pictures.links(np.linspace(-10, 10, 2001))
    largest = np.abs(logistic - probit).max()
    assert np.abs(error).max() < largest < 0.018
    # For an sd of 30 the sigmoid is nearly a step, and the error nearly that gap.
    assert np.abs(error[-1]).max() > 0.98 * largest


def test_kappa_error_is_odd_and_vanishes_without_variance():
    error = pictures.kappa_error(np.linspace(-12, 12, 49), np.array([0.0, 1.0, 4.0]))
    np.testing.assert_allclose(error, -error[:, ::-1], atol=1e-12)
    np.testing.assert_allclose(error[0], 0.0, atol=1e-12)
    assert np.abs(error[2]).max() > 0.01


def test_kappa_is_too_cautious_for_wide_latents():
    assert (pictures.kappa_error(np.linspace(4, 20, 33), np.array([2.0, 4.0, 8.0])) < 0).all()


def test_sigmoids_share_value_and_slope_at_zero():
    for link in pictures.links(np.array([-1e-4, 0.0, 1e-4])):
        assert link[1] == 0.5
        assert (link[2] - link[0]) / 2e-4 == pytest.approx(0.25, abs=1e-6)


def test_sigmoids_differ_by_less_than_a_fiftieth():
    logistic, probit = pictures.links(np.linspace(-30, 30, 60_001))
    assert 0.0176 < np.abs(logistic - probit).max() < 0.0178


ALL = [getattr(pictures, f"draw_{name}") for name in ("directions", "one_observation", "bound", "kappa", "sigmoid")]


@pytest.mark.parametrize("draw", ALL)
def test_pictures_are_drawn(draw, readable):
    readable(draw)
