"""Numbers of different kinds together: each part answers as it does alone, and what they share is integrated."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import bayescope as bs
from bayescope.errors import InputError, OptionError, UnsupportedError
from bayescope.latent import DrawsLatent, GaussianLatent, Latent, MixtureLatent
from bayescope.likelihoods import Likelihood

# First weights of layers are drawn globally.
pytestmark = pytest.mark.global_rng

ALIKE: dict[str, tuple[Likelihood, Likelihood]] = {
    "poisson": (bs.Joint([bs.Poisson(), bs.Poisson(), bs.Poisson()]), bs.Poisson()),
    "gaussian": (
        bs.Joint([bs.Gaussian(0.5), bs.Gaussian(3.0), bs.Gaussian(0.1)]),
        bs.Gaussian([0.5, 3.0, 0.1]),
    ),
    "student_t": (
        bs.Joint([bs.StudentT(0.8, 9.0), bs.StudentT(2.0, 30.0), bs.StudentT(0.5, 9.0)]),
        bs.StudentT([0.8, 2.0, 0.5], [9.0, 30.0, 9.0]),
    ),
}


def _numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def _latent(form: str, likelihood: Likelihood) -> Latent:
    """Four rows of three outputs."""
    root = _numbers(4, 3, 3)
    cov = 0.03 * root @ root.mT
    first = GaussianLatent(0.5 * _numbers(4, 3), cov, likelihood.integral(None, 3))
    match form:
        case "correlated":
            return first
        case "independent":
            return GaussianLatent(first.mean, torch.diag_embed(first.variance), first.integral)
        case "draws":
            return DrawsLatent(0.5 * _numbers(5, 4, 3))
        case _:
            weights = torch.tensor([0.3, 0.7]).double().log()
            return MixtureLatent(weights, [first, GaussianLatent(first.mean + 0.4, 0.5 * cov, first.integral)])


QUESTIONS: dict[str, Callable[[Latent, Likelihood, Tensor], Tensor]] = {
    "log_prob": lambda latent, like, y: latent.log_prob(like, y),
    "mean": lambda latent, like, y: latent.moments(like).mean,
    "aleatoric": lambda latent, like, y: latent.moments(like).aleatoric,
    "epistemic": lambda latent, like, y: latent.moments(like).epistemic,
    "expected": lambda latent, like, y: latent.expected(like),
    "quantile": lambda latent, like, y: latent.outcome_quantile(like, 0.9),
    "cdf": lambda latent, like, y: latent.outcome_cdf(like, y),
    "crps": lambda latent, like, y: latent.crps(like, y),
    "entropy": lambda latent, like, y: latent.entropy(like),
    "information": lambda latent, like, y: latent.mutual_information(like),
    "quantile of the mean": lambda latent, like, y: latent.expected_quantile(like, 0.1),
    "error": lambda latent, like, y: latent.integration_error(like),
    "slope": lambda latent, like, y: like.gradient(latent.mean, y),
    "hessian": lambda latent, like, y: like.hessian(latent.mean, y),
    "root": lambda latent, like, y: like.ggn_sqrt(latent.mean, y).abs(),
    "fisher": lambda latent, like, y: like.fisher_sqrt(latent.mean).abs(),
    "constant": lambda latent, like, y: like.constant(y),
}


@pytest.mark.parametrize(
    ("name", "form"),
    [*product(("poisson", "gaussian"), ("correlated", "independent", "draws", "mixture")), ("student_t", "correlated")],
)
def test_parts_of_one_kind_are_the_likelihood_of_several_outputs(name: str, form: str) -> None:
    joint, alone = ALIKE[name]
    y = torch.tensor([[0.0, 2.0, 1.0], [3.0, 1.0, 0.0], [1.0, 0.0, 5.0], [2.0, 2.0, 2.0]], dtype=torch.float64)
    for question, ask in QUESTIONS.items():
        found, truth = ask(_latent(form, joint), joint, y), ask(_latent(form, alone), alone, y)
        most = 1e-8 if question == "crps" else 1e-10  # its panels are those of the widest number
        torch.testing.assert_close(found, truth, rtol=most, atol=most, msg=lambda m, q=question: f"{q}: {m}")


@pytest.mark.parametrize("correlation", [0.0, 0.7, -0.95])
def test_a_number_and_a_count_have_the_log_density_of_a_grid(correlation: float) -> None:
    mean = torch.tensor([[0.3, 1.0]], dtype=torch.float64)
    sds = torch.tensor([1.2, 0.8], dtype=torch.float64)
    cov = (sds[:, None] * torch.tensor([[1.0, correlation], [correlation, 1.0]]) * sds)[None]
    y = torch.tensor([[1.5, 4.0]], dtype=torch.float64)
    joint = bs.Joint([bs.Gaussian(0.2), "poisson"])
    z = torch.linspace(-9.0, 9.0, 1201, dtype=torch.float64)
    grid = torch.cartesian_prod(z, z)
    f = mean + grid @ torch.linalg.cholesky(cov[0]).mT
    terms = joint.log_prob(f[:, None], y)[:, 0] - 0.5 * grid.square().sum(-1)
    truth = terms.logsumexp(0) + 2.0 * (z[1] - z[0]).log() - np.log(2.0 * np.pi)
    found = joint.predictive_log_prob(mean, cov, y, "quadrature")[0]
    assert float(found) == pytest.approx(float(truth), abs=1e-8)


def test_hyperparameters_are_named_by_their_part_and_learnt_there() -> None:
    joint = bs.Joint(["gaussian", "poisson", "negative_binomial", bs.Gamma(2.0)])
    assert joint.learnable == ("noise_variance_0", "dispersion_2")
    assert bs.Joint(*joint.parts).parts == joint.parts
    generator = torch.Generator().manual_seed(0)
    truth = bs.Joint([bs.Gaussian(0.3), "poisson", bs.NegativeBinomial(0.6), bs.Gamma(2.0)])
    f = _numbers(2000, 4)
    y = truth.sample(f, generator)
    found = joint.starting(y).fitted(joint.learnable, f, y)
    assert float(found.known("noise_variance_0")) == pytest.approx(float((y - f)[:, 0].square().mean()))
    alone = bs.NegativeBinomial(1.0).fitted(("dispersion",), f[:, 2:3], y[:, 2:3])
    assert float(found.known("dispersion_2")) == pytest.approx(float(alone.known("dispersion")), rel=1e-4)
    together = found.fitted(joint.learnable, f[None], y, marginal=True)
    names = joint.learnable
    torch.testing.assert_close(together.unconstrained(names), found.unconstrained(names), rtol=0, atol=1e-3)
    u = found.unconstrained(names)
    torch.testing.assert_close(found.at_unconstrained(names, u + 1.0).unconstrained(names), u + 1.0)


def table(rows: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Inputs, and an amount, a count and a yes or no."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, 2))
    amount = X @ [1.0, -0.5] + 0.5 * rng.standard_normal(rows)
    return X, np.c_[amount, rng.poisson(np.exp(1.0 + X @ [0.5, 0.3])), rng.logistic(size=rows) < X @ [1.0, 1.0]]


PARTS: list[Any] = ["gaussian", "poisson", bs.Binomial(1)]
GIVEN = bs.Joint([bs.Gaussian(0.25), "poisson", bs.Binomial(1)])


def test_a_linear_model_is_the_models_of_its_columns() -> None:
    X, Y = table()
    options: dict[str, Any] = {"posterior": "laplace", "prior_precision": 2.0, "intercept_prior_precision": 0.1}
    model = bs.BayesianGeneralizedLinearModel(likelihood=bs.Joint(PARTS), **options).fit(X, Y)
    each = [bs.BayesianGeneralizedLinearModel(likelihood=p, **options).fit(X, Y[:, d]) for d, p in enumerate(PARTS)]
    np.testing.assert_allclose(model.coef_, [one.coef_ for one in each], rtol=1e-5, atol=1e-7)
    assert model.log_evidence_ == pytest.approx(sum(one.log_evidence_ for one in each), abs=1e-6)
    noise = each[0].hyperparameters_["noise_variance"]
    assert model.hyperparameters_["noise_variance_0"] == pytest.approx(noise, rel=1e-4)
    p = model.predict_distribution(X)
    for d, one in enumerate(each):
        alone = one.predict_distribution(X)
        np.testing.assert_allclose(p.interval(0.9)[1][:, d], alone.interval(0.9)[1][:, 0], rtol=1e-4)
        np.testing.assert_allclose(p.mean[:, d], alone.mean[:, 0], rtol=1e-4)


@pytest.mark.filterwarnings("ignore:nuts. the chains have not mixed well")
@pytest.mark.parametrize("posterior", ["variational", "mean_field", "nuts"])
def test_other_posteriors_of_a_linear_model_are_near_laplaces(posterior: str) -> None:
    X, Y = table()
    chains = {"draws": 100, "tune": 100, "chains": 1} if posterior == "nuts" else {}
    fits = [
        bs.BayesianGeneralizedLinearModel(likelihood=bs.Joint(PARTS), posterior=name, random_state=0, **more).fit(X, Y)
        for name, more in (("laplace", {}), (posterior, chains))
    ]
    np.testing.assert_allclose(fits[1].coef_, fits[0].coef_, atol=0.1)


def _fitted(door: str, x: Tensor, y: Tensor) -> Any:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(2, 3), *[nn.Dropout(0.02), nn.Linear(3, 3)][: 2 * (door == "mc_dropout")]
    ).double()
    options: dict[str, Any] = {"generator": 0, "progress": False}
    newton: dict[str, Any] = {"epochs": 20, "optimizer": "lbfgs", **options}
    match door:
        case "full" | "kfac" | "diagonal":
            start = bs.fit_map(network, (x, y), likelihood=GIVEN, **newton).model
            return bs.laplace(start, (x, y), likelihood=bs.Joint(PARTS), structure=door)
        case "fit_evidence":
            return bs.fit_evidence(network, (x, y), likelihood=bs.Joint(PARTS), burn_in=5, **newton)
        case "variational" | "mc_dropout":
            return getattr(bs, door)(network, (x, y), likelihood=bs.Joint(PARTS), epochs=60, lr=0.1, **options)
        case "ensemble":
            return bs.ensemble(lambda: copy.deepcopy(network), (x, y), likelihood=GIVEN, members=2, **newton)
        case _:
            start = bs.fit_map(network, (x, y), likelihood=GIVEN, **newton).model
            return bs.nuts(start, (x, y), likelihood=GIVEN, draws=20, tune=60, chains=1, **options)


@pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")
@pytest.mark.parametrize(
    "door", ["full", "kfac", "diagonal", "fit_evidence", "variational", "mc_dropout", "ensemble", "nuts"]
)
def test_every_posterior_of_a_network_takes_it(door: str) -> None:
    x, y = (torch.from_numpy(each.astype(np.float64)) for each in table())
    q = _fitted(door, x, y)
    assert float(q.likelihood.known("noise_variance_0")) == pytest.approx(0.25, rel=0.5)
    p = q.predict(x)
    assert p.log_prob(y).mean() > -4.5
    low, high = p.interval(0.9)
    inside = ((low <= y) & (y <= high)).double().mean(0)
    assert (inside > 0.8).all()
    assert (low[:, 1:] == low[:, 1:].round()).all()
    draws = p.sample(2, generator=0)
    assert (draws[..., 2] * (1.0 - draws[..., 2]) == 0.0).all()


def test_a_multilayer_perceptron_begins_each_output_where_its_part_does(tmp_path: Path) -> None:
    X, Y = table()
    Y[:, 0] = 1e4 + 100.0 * Y[:, 0]
    options: dict[str, Any] = {"hidden": (4,), "random_state": 0, "epochs": 15, "posterior": "laplace"}
    model = bs.BayesianMLPRegressor(likelihood=bs.Joint(PARTS), **options).fit(X, Y)
    p = model.predict_distribution(X)
    inside = ((p.interval(0.9)[0] <= Y) & (p.interval(0.9)[1] >= Y)).mean(0)
    assert (inside > 0.8).all()
    assert np.corrcoef(p.mean[:, 0], Y[:, 0])[0, 1] > 0.8
    model.save(tmp_path / "model.bayes")
    np.testing.assert_array_equal(bs.load(tmp_path / "model.bayes").predict(X), model.predict(X))


def test_bad_input_names_the_column() -> None:
    X, Y = table()
    frame = pd.DataFrame(Y, columns=["amount", "visits", "bought"])
    frame.loc[3, "visits"] = -1.0
    for estimator in (bs.BayesianGeneralizedLinearModel, bs.BayesianMLPRegressor):
        with pytest.raises(InputError, match="of at least 0, got -1 in row 3 of column 'visits'"):
            estimator(likelihood=bs.Joint(PARTS)).fit(X, frame)
    network = nn.Linear(2, 3).double()
    with pytest.raises(InputError, match="of at least 0, got -1 in row 3, column 1"):
        bs.fit_map(network, (X, frame.to_numpy()), likelihood=GIVEN, epochs=1)
    with pytest.raises(InputError, match="outputs: expected 3, one for each of gaussian, poisson, binomial, got 2"):
        bs.BayesianGeneralizedLinearModel(likelihood=bs.Joint(PARTS)).fit(X, Y[:, :2])
    with pytest.raises(InputError, match="noise_variance_0: expected a number, got 'evidence'"):
        bs.fit_map(network, (X, Y), likelihood=bs.Joint(PARTS), epochs=1)
    with pytest.raises(UnsupportedError, match="expected one for all columns of y, got a joint one"):
        bs.NeuralAdditiveRegressor(likelihood=bs.Joint(PARTS)).fit(X, Y)


@pytest.mark.parametrize(
    ("parts", "error", "message"),
    [
        ([], InputError, "parts: expected a likelihood for each column of y"),
        ("poisson", InputError, "parts: expected a likelihood for each column of y, got 'poisson'. Write bs.Joint"),
        (bs.Poisson(), InputError, r"parts: expected a likelihood for each column of y, got Poisson\(\)"),
        (["poison"], OptionError, "Did you mean 'poisson'"),
        (["poisson", "ordinal"], UnsupportedError, "one number with one output, got 'ordinal'"),
        (["heteroscedastic_gaussian"], UnsupportedError, "got 'heteroscedastic_gaussian'.*fit a model of its own to"),
    ],
)
def test_what_is_no_part_is_refused(parts: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        bs.Joint(parts)
