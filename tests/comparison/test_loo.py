"""PSIS-LOO against refits without each row, and against ArviZ on the same draws."""

import numpy as np
import pytest
import torch

from bayescope.comparison import measures
from bayescope.errors import UndefinedQuantityError
from bayescope.likelihoods import Bernoulli
from bayescope.linear import compile_density, laplace
from bayescope.models import LinearModel
from bayescope.posterior import DrawsPosterior, GaussianPosterior, Record
from bayescope.precision import DiagonalPrecision
from bayescope.priors import Prior

MODEL, LIKELIHOOD, PRIOR = LinearModel(2), Bernoulli(), Prior(1.0)


def data(rows=60):
    source = np.random.default_rng(0)
    X = source.normal(size=(rows, 2))
    return X, (X @ [1.0, -0.5] + source.logistic(size=rows) > 0).astype(int)


def test_equals_the_prediction_of_each_row_by_a_fit_without_it():
    X, y = data()
    exact = 0.0
    for row in range(len(y)):
        rest = np.arange(len(y)) != row
        left_out = laplace(compile_density(MODEL, LIKELIHOOD, PRIOR, X[rest], y[rest]))
        exact += float(left_out.predict(X[[row]]).log_prob(y[[row]])[0])
    found = measures.psis_loo(laplace(compile_density(MODEL, LIKELIHOOD, PRIOR, X, y)), X, y, seed=0)
    assert found.elpd == pytest.approx(exact, abs=0.1)
    assert found.warnings == 0


def test_equals_arviz_on_the_same_draws():
    arviz = pytest.importorskip("arviz")
    X, y = data()
    theta = laplace(compile_density(MODEL, LIKELIHOOD, PRIOR, X, y)).sample(2000, generator=1).reshape(4, 500, 3)
    draws = DrawsPosterior(theta, Record("nuts"), MODEL, LIKELIHOOD)
    expected = arviz.loo(draws.to_arviz(data=(X, y)), reff=1.0)
    elpd = expected.elpd if hasattr(expected, "elpd") else expected.elpd_loo  # by ArviZ 1, by older ones
    assert measures.psis_loo(draws, X, y, seed=0).elpd == pytest.approx(elpd, abs=1e-8)


def along_one_weight(mean, sd):
    """N(mean, sd²) over the weight of the only feature."""
    precision = DiagonalPrecision(torch.tensor([sd**-2], dtype=torch.float64))
    location = torch.tensor([mean], dtype=torch.float64)
    return GaussianPosterior(location, precision, Record("laplace"), LinearModel(1, bias=False), LIKELIHOOD)


def test_a_row_that_the_posterior_contradicts_is_warned_of():
    found = measures.psis_loo(along_one_weight(2.0, 1.0), np.array([[1.0], [8.0]]), np.array([1, 0]), seed=0)
    assert (found.warnings, found.harmless) == (1, 0)


def test_rows_predicted_with_near_certainty_are_harmless():
    # 1/σ(a) is 1 + a lognormal: its tail is long, and what it adds to 1 is nothing.
    found = measures.psis_loo(along_one_weight(24.0, 4.0), np.ones((5, 1)), np.ones(5, dtype=int), seed=0)
    assert found.warnings == found.harmless == 5
    assert found.elpd == pytest.approx(0.0, abs=1e-4)


def test_blocks_of_rows_change_nothing():
    X, y = data()
    posterior = laplace(compile_density(MODEL, LIKELIHOOD, PRIOR, X, y))
    whole = measures.psis_loo(posterior, X, y, seed=0)
    assert measures.psis_loo(posterior, X, y, seed=0, held=7 * 4000).elpd == pytest.approx(whole.elpd, abs=1e-10)


def test_a_log_density_has_no_rows():
    bare = GaussianPosterior(torch.zeros(1).double(), DiagonalPrecision(torch.ones(1)), Record("laplace"))
    with pytest.raises(UndefinedQuantityError, match="log density"):
        measures.psis_loo(bare, np.ones((1, 1)), np.ones(1), seed=0)
