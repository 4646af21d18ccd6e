"""Chains are judged by what they predict: where hidden units lie tells nothing."""

import pytest
import torch
from torch import nn

from bayescope.density import diagnosed
from bayescope.errors import ConvergenceWarning, DivergenceWarning
from bayescope.likelihoods import resolve
from bayescope.models import LinearModel
from bayescope.network import NetworkModel, Weights
from bayescope.posterior import Record
from bayescope.sampling import DIAGNOSED_ROWS, diagnosed_rows, prediction_diagnosis
from tests.density.test_convergence import autoregression, by_arviz
from tests.network.networks import built, numbers
from tests.sampling.networks import Pixels

X = numbers(12, 2)


def two_hidden_units():
    """f = W₂ tanh(W₁ x), and the permutation of its weights that exchanges the hidden units."""
    module = built(lambda: nn.Sequential(nn.Linear(2, 2, bias=False), nn.Tanh(), nn.Linear(2, 1, bias=False)))
    return NetworkModel(module, Weights.select(module, "all"), 1), torch.tensor([2, 3, 0, 1, 5, 4])


def chains(function, spread=0.1):
    return function.flat + spread * autoregression(0.0, chains=2, draws=300, columns=function.dim)


def quietly(draws, function, **options):
    likelihood = resolve("bernoulli")
    found = prediction_diagnosis(function, draws, X, likelihood)
    return diagnosed(
        draws, Record("nuts"), model=function, likelihood=likelihood, predictions=found, advice="Wait.", **options
    )


def test_hidden_units_that_changed_places():
    function, exchange = two_hidden_units()
    draws = chains(function)
    draws[1] = draws[1][:, exchange]
    q = quietly(draws, function)
    assert float(q.r_hat.max()) > 1.5
    assert float(q.prediction_r_hat.max()) < 1.01
    assert float(q.prediction_effective_draws.min()) > 400
    assert q.prediction_r_hat.shape == q.prediction_effective_draws.shape == (12, 2)
    assert "R-hat of predictions" in q.summary()


def test_the_definition():
    """R-hat of E(y∣f), not of f."""
    model, draws = LinearModel(2, 1), autoregression(0.5, columns=3)
    likelihood = resolve("bernoulli")
    found = prediction_diagnosis(model, draws, X, likelihood)
    p = torch.sigmoid(model.forward(X, draws)[..., 0])
    r_hat, effective = by_arviz(p)
    torch.testing.assert_close(found.r_hat[:, 1], r_hat, rtol=1e-10, atol=0.0)
    torch.testing.assert_close(found.effective_draws[:, 1], effective, rtol=0.03, atol=0.0)


def test_chains_that_disagree():
    function, _ = two_hidden_units()
    draws = chains(function)
    draws[1] += 1.0
    with pytest.warns(ConvergenceWarning, match=r"12 of 12 predictions .* Wait\."):
        q = quietly(draws, function)
    assert float(q.prediction_r_hat.max()) > 1.5


def test_limits_are_the_callers():
    function, _ = two_hidden_units()
    draws = chains(function)[:, :60]
    with pytest.warns(ConvergenceWarning, match="limit 400"):
        q = quietly(draws, function)
    quietly(draws, function, limits=(1.2, 20))
    assert q.prediction_effective_draws.min() < 400


def test_divergences():
    function, _ = two_hidden_units()
    with pytest.warns(DivergenceWarning, match="3 of 600"):
        quietly(chains(function), function, statistics={"diverging": torch.arange(600).reshape(2, 300) < 3})


def test_a_prediction_that_is_certain_is_settled():
    model, draws, far = LinearModel(2, 1), 1.0 + 0.1 * autoregression(0.0, columns=3), X.abs() + 1e6
    found = prediction_diagnosis(model, draws, far, resolve("bernoulli"))
    assert (found.r_hat == 1.0).all()
    assert (found.effective_draws == 4000).all()
    draws[0] *= -1.0  # chains that are each sure of another class do not agree
    assert not (prediction_diagnosis(model, draws, far, resolve("bernoulli")).r_hat <= 1.01).any()


def test_few_rows_stand_for_many():
    x = torch.arange(1001.0)[:, None]
    some = diagnosed_rows(x)
    assert len(some) == DIAGNOSED_ROWS
    assert some[0] == 0
    assert some[-1] == 1000
    named = diagnosed_rows({"a": x, "b": -x})
    assert torch.equal(named["a"], -named["b"])
    assert diagnosed_rows(X) is X


def test_positions_count_as_rows():
    module = built(Pixels)
    function = NetworkModel(module, Weights.select(module, "all"), 2)
    draws = autoregression(0.0, chains=2, draws=50, columns=function.dim)
    x, likelihood = numbers(50, 1, 2, 3), resolve("categorical")
    assert prediction_diagnosis(function, draws, x[:3], likelihood).r_hat.shape == (18, 2)
    assert prediction_diagnosis(function, draws, x, likelihood).r_hat.shape == (33 * 6, 2)
    assert prediction_diagnosis(function, draws, x, likelihood, numbers=100 * 12 * 4).r_hat.shape == (24, 2)
    assert prediction_diagnosis(function, draws, x, likelihood, numbers=1).r_hat.shape == (6, 2)
