"""Linear models under sparse priors: variational inference and NUTS, against Gibbs sampling and quadrature."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from bayescope.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, NegativeBinomial, Poisson, StudentT
from bayescope.linear import LinearDensity, variational, weight_prior
from bayescope.linear.scales import MovingScale, OutputUnits, weight_squares
from bayescope.linear.sparse_sampling import SparseDraws, _Scaled, sparse_nuts
from bayescope.models import LinearModel
from bayescope.posterior import GaussianPosterior
from bayescope.sparse_priors import HalfCauchy, Horseshoe, LaplacePrior, RootExponential, ScaleMixture, SparsePrior

INTERCEPT = 0.5
MIXTURES = {
    "horseshoe": ScaleMixture(HalfCauchy(), 0.3, slab=2.0, cut=True),
    "Laplace": ScaleMixture(RootExponential(), 0.3),
    "Laplace of a known scale": ScaleMixture(RootExponential(), 0.3, known=True),
}
LIKELIHOODS: dict[str, Likelihood] = {
    "gaussian": Gaussian(0.8), "bernoulli": Bernoulli(), "classes": Categorical(), "poisson": Poisson(),
}  # fmt: skip


def table(name: str, rows: int = 40, features: int = 4) -> LinearDensity:
    """The first of the features matters, and the second is like it."""
    rng, likelihood = np.random.default_rng(7), LIKELIHOODS[name]
    x = rng.standard_normal((rows, features))
    x[:, 1] = 0.6 * x[:, 0] + 0.8 * x[:, 1]
    f = 0.9 * x[:, 0] + 0.4 * rng.standard_normal(rows)
    y = {
        "gaussian": f[:, None], "bernoulli": (f > 0) * 1, "classes": np.digitize(f, [-0.5, 0.5]),
        "poisson": rng.poisson(np.exp(f)),
    }[name]  # fmt: skip
    outputs = 3 if name == "classes" else 1
    model = LinearModel(features, outputs, True)
    prior = weight_prior(model, 4.0, INTERCEPT)
    return LinearDensity.of(model, likelihood, prior, torch.from_numpy(x), likelihood.targets(y, outputs))


def precisions(density: LinearDensity, mixture: ScaleMixture, posterior: GaussianPosterior) -> Tensor:
    squares = weight_squares(density.model, posterior.mean, posterior.precision)
    return mixture.posterior(squares, density.model.outputs).precision


@pytest.mark.parametrize("family", ["full", "mean_field"])
@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize("prior", MIXTURES)
def test_the_bound_rises_to_a_fixed_point(prior: str, name: str, family: str):
    density, mixture = table(name), MIXTURES[prior]
    found = variational(density, family=family, mixture=mixture)  # type: ignore[arg-type]
    bounds = found.trace["elbo"]
    assert (np.diff(bounds) > -1e-8).all()
    assert float(found.elbo) == pytest.approx(bounds[-1], abs=1e-9)
    # Under the Gaussian prior with these precisions q is the same.
    given = weight_prior(density.model, precisions(density, mixture, found), INTERCEPT)
    again = variational(density.with_prior(given), family=family)  # type: ignore[arg-type]
    assert torch.allclose(again.mean, found.mean, atol=5e-3)
    sds = [each.precision.marginal_variance().sqrt() for each in (again, found)]
    assert torch.allclose(*sds, rtol=2e-2)


@pytest.mark.parametrize("prior", MIXTURES)
def test_the_order_of_columns_does_not_matter(prior: str):
    density, order = table("bernoulli"), torch.tensor([2, 0, 3, 1])
    turned = LinearDensity.of(
        density.model, density.likelihood, density.prior, density.features[:, order], density.targets
    )
    ours, theirs = (variational(each, mixture=MIXTURES[prior]) for each in (density, turned))
    assert torch.allclose(ours.mean[:4][order], theirs.mean[:4], atol=1e-4)
    assert float(ours.elbo) == pytest.approx(float(theirs.elbo), abs=1e-6)


@pytest.mark.filterwarnings("ignore:nuts")  # of short chains
@pytest.mark.parametrize("prior", MIXTURES)
def test_one_weight_is_right_and_its_bound_below_the_evidence(prior: str):
    """One weight and no intercept: the prior's density by quadrature over τ, the posterior by quadrature over w."""
    mixture, rng = MIXTURES[prior], np.random.default_rng(1)
    x = rng.standard_normal((12, 1))
    y = 0.5 * x + rng.standard_normal((12, 1))
    model = LinearModel(1, 1, False)
    density = LinearDensity.of(model, Gaussian(1.0), weight_prior(model, 1.0, None), *map(torch.from_numpy, (x, y)))

    half = np.sinh(np.linspace(0.0, 12.0, 160)[1:]) * 3.0 / math.sinh(12.0)  # dense where the horseshoe has its pole
    of_prior = [float(mixture.posterior(torch.tensor([each**2]), 1).log_prior) for each in half.tolist()]
    w, log_prior = np.concatenate([-half[::-1], half]), np.concatenate([of_prior[::-1], of_prior])
    log_joint = log_prior + norm.logpdf(y, x * w).sum(0)
    total = np.trapezoid(np.exp(log_joint), w)
    log_evidence, mean = math.log(total), np.trapezoid(w * np.exp(log_joint), w) / total
    sd = math.sqrt(np.trapezoid((w - mean) ** 2 * np.exp(log_joint), w) / total)
    found = variational(density, mixture=mixture)
    assert log_evidence - 1.0 < float(found.elbo) < log_evidence
    assert abs(float(found.mean[0]) - mean) < 0.4 * sd
    drawn = draws(density, mixture, found)
    assert abs(float(drawn.posterior.mean[0]) - mean) < 0.15 * sd
    assert float(drawn.posterior.flat.std()) == pytest.approx(sd, rel=0.12)


@pytest.mark.parametrize("prior", MIXTURES)
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_samplers_gradient_is_that_of_its_value(name: str, prior: str):
    density, mixture = table(name), MIXTURES[prior]
    near = variational(density, mixture=mixture)
    scaled = _Scaled.near(density, mixture, near, precisions(density, mixture, near))
    u = torch.randn(scaled.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gradient, h = scaled.value_and_gradient(u)[1], 1e-5
    steps = h * torch.eye(scaled.dim, dtype=torch.float64)
    numeric = (scaled.log_prob(u + steps) - scaled.log_prob(u - steps)) / (2 * h)
    assert torch.allclose(gradient, numeric, rtol=1e-6, atol=1e-6 * float(gradient.abs().max()))


def draws(density: LinearDensity, mixture: ScaleMixture, near: GaussianPosterior) -> SparseDraws:
    precision = precisions(density, mixture, near)
    return sparse_nuts(density, mixture, near, precision, draws=300, tune=300, chains=2, generator=3, progress=False)


@cache
def gibbs(sweeps: int = 8_000) -> tuple[np.ndarray, np.ndarray]:
    """Draws of the weights and of κ under the horseshoe and Gaussian noise, by conditional draws.

    λ as in Makalic & Schmidt (2016), A simple sampler for the horseshoe estimator; τ on a grid.
    """
    density, mixture, rng = table("gaussian"), MIXTURES["horseshoe"], np.random.default_rng(5)
    x = np.column_stack([density.features.numpy(), np.ones(40)])
    gram, projected = x.T @ x / 0.8, x.T @ density.targets[:, 0].numpy() / 0.8
    local, tau, mixing = np.ones(4), 0.1, np.ones(4)
    log_tau = np.linspace(math.log(1e-6), math.log(0.3), 600)
    fixed = -np.log1p(np.exp(2 * log_tau) / 0.09) + log_tau - 4 * (mixture.log_normaliser(log_tau, 1)[0] + log_tau)
    kept, shrunk = np.empty((sweeps, 5)), np.empty((sweeps, 4))
    for sweep in range(sweeps):
        prior = 1.0 / (tau * tau * local) + 0.25
        root = np.linalg.cholesky(gram + np.diag([*prior, INTERCEPT]))
        half = np.linalg.solve(root, projected)
        theta = np.linalg.solve(root.T, half + rng.standard_normal(5))
        squares = theta[:4] ** 2
        local = (1.0 / mixing + 0.5 * squares / tau**2) / rng.standard_exponential(4)
        mixing = (1.0 + 1.0 / local) / rng.standard_exponential(4)
        log_density = fixed - 0.5 * (squares / local).sum() * np.exp(-2 * log_tau)
        weights = np.exp(log_density - log_density.max()).cumsum()
        tau = math.exp(log_tau[np.searchsorted(weights, rng.random() * weights[-1])])
        kept[sweep], shrunk[sweep] = theta, prior / (prior + gram.diagonal()[:4])
    return kept[1000:], shrunk[1000:]


@pytest.mark.filterwarnings("ignore:nuts")  # of short chains
def test_nuts_draws_as_gibbs_sampling_does():
    density, mixture = table("gaussian"), MIXTURES["horseshoe"]
    found = draws(density, mixture, variational(density, mixture=mixture))
    exact, shrunk = gibbs()
    drawn, sd = found.posterior.flat.numpy(), exact.std(0)
    assert (np.abs(drawn.mean(0) - exact.mean(0)) < 0.2 * sd).all()
    np.testing.assert_allclose(drawn.std(0), sd, rtol=0.2)
    np.testing.assert_allclose(found.shrinkage.numpy(), shrunk.mean(0), atol=0.06)


def test_variational_inference_is_near_gibbs_sampling():
    """Means within half a sd; sds between .6 and 1.05 of the exact ones, narrower where κ is not settled."""
    density, mixture = table("gaussian"), MIXTURES["horseshoe"]
    found = variational(density, mixture=mixture)
    exact, _ = gibbs()
    assert (np.abs(found.mean.numpy() - exact.mean(0)) < 0.5 * exact.std(0)).all()
    ratio = found.precision.marginal_variance().sqrt().numpy() / exact.std(0)
    assert (ratio > 0.6).all()
    assert (ratio < 1.05).all()


UNITS = {
    "numbers": (Gaussian(3.0), [101.0, 102.0, 106.0], np.std([1.0, 2.0, 6.0]), math.sqrt(3.0)),
    "odds": (Bernoulli(), [0, 0, 0, 1], 1.0 / math.sqrt(0.25 * 0.75), 1.0 / math.sqrt(0.25 * 0.75)),
    "counts": (Poisson(), [100, 200, 600], np.std([100, 200, 600]) / 300.0, 1.0 / math.sqrt(300.0)),
    "dispersed counts": (
        NegativeBinomial(0.5),
        [100, 200, 600],
        np.std([100, 200, 600]) / 300.0,
        math.sqrt(1.0 / 300.0 + 0.5),
    ),
}


@pytest.mark.parametrize("name", UNITS)
def test_the_units_are_how_far_outputs_vary_and_how_far_off_a_row_is(name: str):
    """How far outputs vary depends on y alone, whatever the noise or the dispersion."""
    likelihood, y, spread, width = UNITS[name]
    model = LinearModel(1, 1, True)
    x, targets = torch.zeros(len(y), 1, dtype=torch.float64), likelihood.targets(np.array(y), 1)
    density = LinearDensity.of(model, likelihood, weight_prior(model, 1.0, None), x, targets)
    found = OutputUnits.of(density)
    assert (found.spread, found.width) == (pytest.approx(spread, rel=1e-3), pytest.approx(width, rel=1e-3))


LEARNT = {"gaussian": (Gaussian("evidence"), 0), "counts": (NegativeBinomial("evidence"), 1), "tails": (StudentT(), 2)}


@pytest.mark.parametrize(
    ("name", "columns", "prior"),
    [
        ("gaussian", 4, Horseshoe()), ("gaussian", 4, LaplacePrior()), ("gaussian", 4, Horseshoe(scale=0.1, slab=2.0)),
        ("gaussian", 50, Horseshoe()), ("counts", 50, Horseshoe()), ("tails", 4, Horseshoe()),
    ],
    ids=str,
)  # fmt: skip
def test_hyperparameters_are_where_the_bound_is_stationary(name: str, columns: int, prior: SparsePrior):
    """The bound of fits with the hyperparameters given falls on both sides, for more columns than rows as for fewer."""
    rng, (unknown, seed) = np.random.default_rng(11), LEARNT[name]
    x = torch.from_numpy(rng.standard_normal((40, columns)))
    f = 1.5 * x[:, 0].numpy()
    y = [f + 0.7 * rng.standard_normal(40), rng.negative_binomial(2.0, 2.0 / (2.0 + np.exp(1.0 + f))),
         f + 0.5 * rng.standard_t(3.0, 40)][seed]  # fmt: skip
    model, targets = LinearModel(columns, 1, True), unknown.targets(y, 1)
    names, likelihood = unknown.learnable, unknown.starting(targets)
    density = LinearDensity.of(model, likelihood, weight_prior(model, 10.0, INTERCEPT), x, targets)
    units = OutputUnits.of(density)
    moving = MovingScale(prior.mixture(units.spread, units.width, 40, columns), density, names, units.constant)
    found = variational(density, mixture=moving.mixture, learnt=names)
    assert found.likelihood is not None
    best = found.likelihood.unconstrained(names)

    def bound(u: Tensor) -> float:
        some = density.with_likelihood(likelihood.at_unconstrained(names, u))
        return float(variational(some, mixture=moving.at(u)[0]).elbo)

    here, step = bound(best), 0.1 * torch.eye(len(names), dtype=torch.float64)
    assert here == pytest.approx(float(found.elbo), abs=1e-3)
    for each in step:
        assert max(bound(best + each), bound(best - each)) < here + 1e-4
