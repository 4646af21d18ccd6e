"""Several numbers with correlated noise: exact log densities, a covariance that is learnt, and every way to fit it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

import bayescope as bs
from bayescope.errors import InputError
from bayescope.latent import DrawsLatent, GaussianLatent
from bayescope.likelihoods import Likelihood
from bayescope.transforms import coordinates_of, parameter_at

NOISE = np.array([[1.0, 1.6], [1.6, 4.0]])
# First weights of layers are drawn globally.
pytestmark = pytest.mark.global_rng


def table(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, 2))
    return X, X @ [[1.0, 0.5], [-0.5, 2.0]] + rng.multivariate_normal([0.5, -1.0], NOISE, rows)


def network(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(2, 2), nn.Dropout(dropout)][: 1 + (dropout > 0)], nn.Linear(2, 2)).double()


def _numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def _correlated(rows: int, outputs: int) -> Tensor:
    root = _numbers(rows, outputs, outputs)
    return root @ root.mT + 0.1 * torch.eye(outputs)


def test_densities_are_those_of_a_multivariate_normal() -> None:
    f, y, noise = _numbers(7, 3), 2.0 * _numbers(7, 3).flip(0), _correlated(1, 3)[0]
    likelihood, cov = bs.MultivariateGaussian(noise), _correlated(7, 3)
    torch.testing.assert_close(likelihood.log_prob(f, y), MultivariateNormal(f, noise).log_prob(y))
    joint = likelihood.predictive_log_prob(f, cov, y, "exact")
    torch.testing.assert_close(joint, MultivariateNormal(f, cov + noise).log_prob(y))


@pytest.mark.parametrize("form", ["gaussian", "draws"])
def test_without_correlations_it_is_the_gaussian(form: str) -> None:
    f, y, cov = _numbers(5, 2), _numbers(5, 2).flip(0), _correlated(5, 2)
    latent = GaussianLatent(f, cov, "exact") if form == "gaussian" else DrawsLatent(_numbers(6, 5, 2))
    pair: list[Likelihood] = [bs.MultivariateGaussian([[0.5, 0.0], [0.0, 3.0]]), bs.Gaussian([0.5, 3.0])]
    for ask in (
        lambda like: latent.log_prob(like, y),
        lambda like: latent.moments(like).aleatoric,
        latent.mutual_information,
        lambda like: latent.outcome_quantile(like, 0.9),
        lambda like: latent.outcome_cdf(like, y),
        latent.entropy,
        lambda like: latent.crps(like, y),
        lambda like: like.gradient(f, y),
        lambda like: like.hessian(f, y),
        lambda like: like.in_unit(torch.tensor([2.0, 7.0]).double()).log_prob(f, y),
    ):
        one, other = (ask(like) for like in pair)
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_coordinates_of_a_covariance_go_both_ways_and_have_no_unit(size: int) -> None:
    covariance, units = _correlated(1, size)[0], torch.logspace(-3, 5, size, dtype=torch.float64)
    u = coordinates_of("covariance", covariance)
    torch.testing.assert_close(parameter_at("covariance", u, covariance.shape), covariance)
    rescaled = coordinates_of("covariance", units[:, None] * covariance * units)
    torch.testing.assert_close(rescaled[:size] - u[:size], units.log())
    torch.testing.assert_close(rescaled[size:], u[size:], rtol=1e-9, atol=1e-9)


def test_the_covariance_of_residuals_in_closed_form_is_that_of_a_search() -> None:
    f, y = _numbers(3, 200, 2), _numbers(200, 2) @ torch.linalg.cholesky(torch.from_numpy(NOISE)).mT
    start = bs.MultivariateGaussian(np.eye(2))
    found = start.fitted(("covariance",), f, y).known("covariance")
    residual = (y - f).flatten(0, 1)
    torch.testing.assert_close(found, residual.mT @ residual / 600.0)
    searched = start.fitted(("covariance",), f[:1], y, marginal=True).known("covariance")
    torch.testing.assert_close(searched, start.fitted(("covariance",), f[:1], y).known("covariance"), rtol=1e-3, atol=0)


def dense_evidence(X: np.ndarray, Y: np.ndarray, noise: Tensor, precision: float, intercept: float) -> Tensor:
    """log N(y; 0, K) of all N D numbers, K = (XXᵀ/α + 11ᵀ/β) ⊗ I + I ⊗ Σ."""
    x = torch.from_numpy(X)
    kernel = torch.kron(x @ x.mT / precision + 1.0 / intercept, torch.eye(2, dtype=torch.float64))
    whole = kernel + torch.kron(torch.eye(len(X), dtype=torch.float64), noise)
    return MultivariateNormal(torch.zeros(len(whole), dtype=torch.float64), whole).log_prob(torch.from_numpy(Y).ravel())


def test_the_evidence_of_a_linear_model_is_exact_and_the_learnt_covariance_maximises_it() -> None:
    X, Y = table(60)
    model = bs.BayesianGeneralizedLinearModel(
        likelihood=bs.MultivariateGaussian(),
        posterior="laplace",
        prior_precision=2.0,
        intercept_prior_precision=3.0,
        standardize=False,
    )
    model.fit(X, Y)
    noise = torch.from_numpy(model.hyperparameters_["covariance"]).requires_grad_()
    exact = dense_evidence(X, Y, noise, 2.0, 3.0)
    assert model.log_evidence_ == pytest.approx(exact.item(), abs=1e-8)
    (slope,) = torch.autograd.grad(exact, noise)
    curvature = 60 / 2.0 / float(noise.detach().diagonal().min()) ** 2
    assert slope.abs().max() < 1e-4 * curvature


@pytest.mark.parametrize("door", ["linear", "network"])
def test_correlated_noise_is_recovered_and_predicts_better_than_independent_noise(door: str) -> None:
    (X, Y), (new, outcomes) = table(400), table(400, seed=1)
    found = []
    options: dict[str, Any] = {"epochs": 15, "burn_in": 5, "optimizer": "lbfgs", "generator": 0, "progress": False}
    for likelihood in (bs.MultivariateGaussian(), bs.Gaussian([1.0, 4.0])):
        if door == "linear":
            model = bs.BayesianGeneralizedLinearModel(likelihood=likelihood).fit(X, Y)
            p, likelihood_ = model.predict_distribution(new), model.likelihood_
        else:
            q = bs.fit_evidence(network(), (X, Y), likelihood=likelihood, **options)
            p, likelihood_ = q.predict(new), q.likelihood
        found.append((np.mean(p.log_prob(outcomes)), likelihood_))
    covariance = found[0][1].covariance.numpy()
    np.testing.assert_allclose(covariance, NOISE, rtol=0.15)
    # What the two errors tell of each other is −½ log(1 − ρ²) = 0.51 nats
    assert found[0][0] - found[1][0] > 0.4


def _fitted(door: str, x: Tensor, y: Tensor) -> Any:
    learnt, known = bs.MultivariateGaussian(), bs.MultivariateGaussian(NOISE)
    options: dict[str, Any] = {"generator": 0, "progress": False}
    match door:
        case "full" | "kfac" | "diagonal":
            start = bs.fit_map(network(), (x, y), likelihood=known, epochs=40, optimizer="lbfgs", **options).model
            return bs.laplace(start, (x, y), likelihood=learnt, structure=door)
        case "variational" | "mc_dropout":
            module = network(0.05 if door == "mc_dropout" else 0.0)
            return getattr(bs, door)(module, (x, y), likelihood=learnt, epochs=150, lr=0.03, **options)
        case "ensemble":
            return bs.ensemble(network, (x, y), likelihood=known, members=2, epochs=40, optimizer="lbfgs", **options)
        case _:
            return bs.nuts(network(), (x, y), likelihood=known, draws=10, tune=15, chains=1, **options)


@pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")
@pytest.mark.parametrize("door", ["full", "kfac", "diagonal", "variational", "mc_dropout", "ensemble", "nuts"])
def test_every_posterior_of_a_network_takes_it(door: str) -> None:
    x, y = (torch.from_numpy(each) for each in table(120))
    q = _fitted(door, x, y)
    np.testing.assert_allclose(q.likelihood.covariance, NOISE, rtol=0.5)
    p = q.predict(x)
    assert p.log_prob(y).mean() > -4.0
    correlation = torch.corrcoef((y - p.sample(1, generator=0)[0]).mT)[0, 1]
    assert correlation > 0.5
    low, high = p.interval(0.9)
    assert 0.8 < float(((y > low) & (y < high)).double().mean()) < 0.99


def test_a_fitted_covariance_is_saved_and_shown(tmp_path: Path) -> None:
    X, Y = table(50)
    model = bs.BayesianGeneralizedLinearModel(likelihood=bs.MultivariateGaussian()).fit(X, Y)
    model.save(tmp_path / "model.bayes")
    again = bs.load(tmp_path / "model.bayes")
    np.testing.assert_array_equal(again.hyperparameters_["covariance"], model.hyperparameters_["covariance"])
    assert "covariance: " in model.posterior_.summary()


@pytest.mark.parametrize(
    ("covariance", "message"),
    [
        ([1.0, 2.0], r"covariance: expected a square matrix of shape \(D, D\), got \(2,\)"),
        ([[1.0, 0.5], [0.2, 1.0]], r"symmetric matrix, got 0.5 in row 0, column 1 and 0.2 across. Give \(S \+ S.T\)"),
        ([[1.0, 2.0], [2.0, 4.0]], "positive definite matrix, got the smallest eigenvalue .*leave it out"),
    ],
)
def test_what_is_no_covariance_is_refused(covariance: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        bs.MultivariateGaussian(covariance)


def test_a_covariance_of_another_number_of_outputs_is_refused() -> None:
    f = torch.zeros(4, 3, dtype=torch.float64)
    with pytest.raises(InputError, match=r"covariance: expected shape \(3, 3\) for 3 output\(s\), got \(2, 2\)"):
        bs.MultivariateGaussian(NOISE).log_prob(f, f)


def test_columns_that_follow_from_each_other_are_refused() -> None:
    X, Y = table(30)
    for estimator in (bs.BayesianGeneralizedLinearModel, bs.BayesianMLPRegressor):
        with pytest.raises(InputError, match=r"y: expected columns of which none follows .* 30 rows of 3 columns"):
            estimator(likelihood=bs.MultivariateGaussian()).fit(X, np.c_[Y, Y[:, 0] - 2.0 * Y[:, 1]])
