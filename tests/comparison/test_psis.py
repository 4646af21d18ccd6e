"""Pareto-smoothed importance sampling: against known tails, ArviZ, and ratios that differ in their last digits."""

import numpy as np
import pytest
from scipy.special import logsumexp

from bayescope.comparison.psis import fit_generalised_pareto, pareto_smooth

arviz = pytest.importorskip("arviz")


def ratios(rows=20, draws=4000, seed=0):
    source = np.random.default_rng(seed)
    return source.normal(size=(rows, draws)) * np.linspace(0.1, 3.0, rows)[:, None]


@pytest.mark.parametrize("efficiency", [1.0, 0.4])
def test_equals_arviz(efficiency):
    log_weights, k_hat = arviz.psislw(ratios(), efficiency)
    smoothed = pareto_smooth(ratios(), efficiency=efficiency)
    np.testing.assert_allclose(smoothed.k_hat, k_hat, atol=1e-10)
    np.testing.assert_allclose(smoothed.log_weights, log_weights, atol=1e-10)


def test_weights_are_normalised_and_keep_the_order_of_the_ratios():
    log_ratios = ratios()
    weights = pareto_smooth(log_ratios).log_weights
    np.testing.assert_allclose(logsumexp(weights, axis=1), 0.0, atol=1e-12)
    order = np.argsort(log_ratios, axis=1)
    assert (np.diff(np.take_along_axis(weights, order, axis=1), axis=1) >= -1e-12).all()


@pytest.mark.parametrize("shape", [-0.3, 0.2, 0.5, 0.9])
def test_finds_the_shape_and_scale_of_a_generalised_pareto(shape):
    uniform = np.random.default_rng(1).uniform(size=(200, 800))
    excess = np.sort(2.0 * ((1 - uniform) ** -shape - 1) / shape, axis=1)
    k, scale = fit_generalised_pareto(excess)
    assert abs(k.mean() - shape) < 0.02
    assert abs(scale.mean() - 2.0) < 0.05


def test_the_shape_does_not_depend_on_the_ratios_unit():
    np.testing.assert_allclose(pareto_smooth(ratios() + 700.0).k_hat, pareto_smooth(ratios()).k_hat, atol=1e-8)


def test_ratios_equal_to_fourteen_digits_keep_their_tail():
    tiny = np.exp(ratios()[:4]) * 1e-14
    larger = np.exp(ratios()[:4]) * 1e-6
    np.testing.assert_allclose(pareto_smooth(tiny).k_hat, pareto_smooth(larger).k_hat, atol=1e-4)


def test_equal_ratios_have_no_tail():
    smoothed = pareto_smooth(np.zeros((2, 100)))
    assert (smoothed.k_hat == -np.inf).all()
    np.testing.assert_allclose(smoothed.log_weights, -np.log(100))


def test_too_few_draws_for_a_tail_are_told():
    assert (pareto_smooth(ratios(draws=15)).k_hat == np.inf).all()
