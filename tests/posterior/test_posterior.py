"""What every form of a posterior owes its caller."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from bayescope import transforms
from bayescope.errors import InputError, OptionError, UndefinedQuantityError
from bayescope.likelihoods import Bernoulli, Gaussian
from bayescope.models import LinearModel
from bayescope.posterior import DrawsPosterior, GaussianPosterior, MixturePosterior, PointPosterior, Record
from bayescope.precision import DensePrecision, DiagonalPrecision

MODEL = LinearModel(2, 1, True)
MEAN = torch.tensor([1.0, -0.5, 0.2], dtype=torch.float64)
PRECISION = DensePrecision(torch.tensor([[2.0, 0.4, 0.1], [0.4, 1.5, 0.0], [0.1, 0.0, 3.0]]))
X = np.array([[0.0, 1.0], [2.0, -1.0], [0.3, 0.3], [5.0, 5.0]])


def gaussian(likelihood=None, shift: float = 0.0) -> GaussianPosterior:
    return GaussianPosterior(MEAN + shift, PRECISION, Record("laplace"), MODEL, likelihood or Bernoulli())


def forms(likelihood=None):
    one = gaussian(likelihood)
    weights = torch.tensor([0.4, 0.6], dtype=torch.float64).log()
    parts = [one, gaussian(likelihood, 1.0)]
    draws = one.sample(4000, generator=5).reshape(4, 1000, 3)
    return {
        "gaussian": one,
        "mixture": MixturePosterior(weights, parts, Record("laplace"), MODEL, one.likelihood),
        "draws": DrawsPosterior(draws, Record("nuts"), MODEL, one.likelihood),
        "point": PointPosterior(MEAN, Record("map"), MODEL, one.likelihood),
    }


FORMS = list(forms())


@pytest.mark.parametrize("form", FORMS)
def test_samples_repeat_by_seed_and_have_the_moments(form):
    q = forms()[form]
    assert torch.equal(q.sample(7, generator=3), q.sample(7, generator=3))
    assert torch.equal(q.sample(7, generator=3), q.sample(7, generator=torch.Generator().manual_seed(3)))
    draws = q.sample(50_000, generator=0)
    sd = q.covariance.diagonal().sqrt()
    torch.testing.assert_close(q.sd, sd)
    assert ((draws.mean(0) - q.mean).abs() <= 6 * sd / math.sqrt(50_000) + 1e-9).all()
    torch.testing.assert_close(torch.cov(draws.mT), q.covariance, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("form", FORMS)
def test_a_query_changes_nothing(form):
    q = forms()[form]
    before, state = q.mean.clone(), torch.get_rng_state()
    q.predict(X), q.summary(), q.sample(3)
    assert torch.equal(q.mean, before)
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(dataclasses.FrozenInstanceError):
        q.record = None


@pytest.mark.parametrize("form", FORMS)
def test_predictions_do_not_depend_on_the_batch(form):
    q = forms()[form]
    whole = q.predict(X).probs
    rows = np.concatenate([q.predict(X[i : i + 1]).probs for i in range(len(X))])
    np.testing.assert_allclose(whole, rows, rtol=1e-9)  # the rule is chosen for the batch, to 1e-10
    assert q.predict(X[:0]).probs.shape == (0, 2)


@pytest.mark.parametrize("form", FORMS)
def test_a_regression_splits_its_variance(form):
    p = forms(Gaussian(noise_variance=0.7))[form].predict(X)
    np.testing.assert_allclose(p.aleatoric, 0.7)
    np.testing.assert_allclose(p.variance, p.epistemic + p.aleatoric)
    if form == "point":
        assert (p.epistemic == 0).all()


def test_a_linear_gaussian_latent_is_exact():
    design = np.column_stack([X, np.ones(len(X))])
    p = gaussian().predict(X)
    np.testing.assert_allclose(p.latent_mean[:, 0], design @ MEAN.numpy())
    sigma = np.linalg.inv(PRECISION.to_dense().numpy())
    np.testing.assert_allclose(p.latent_cov[:, 0, 0], np.einsum("ni,ij,nj->n", design, sigma, design))


def test_sampled_and_linearized_agree_for_a_linear_model():
    """A probability's Monte Carlo error is at most ½/√100000."""
    linearized = gaussian().predict(X).probs
    for options in ({"method": "sampled"}, {"integral": "monte_carlo"}):
        p = gaussian().predict(X, samples=100_000, generator=1, **options)
        np.testing.assert_allclose(p.probs, linearized, atol=6 * 0.5 / math.sqrt(100_000))
        np.testing.assert_array_equal(p.probs, p.probs)


def test_functions_are_joint_over_the_inputs():
    functions = gaussian().sample_functions(X, 60_000, generator=0)[..., 0]
    design = torch.cat([torch.from_numpy(X), torch.ones(len(X), 1, dtype=torch.float64)], 1)
    expected = design @ PRECISION.solve(design.mT)
    torch.testing.assert_close(torch.cov(functions.mT), expected, rtol=0.05, atol=0.05)


def test_the_density_is_the_gaussian_s_and_the_mixture_s():
    theta = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    reference = torch.distributions.MultivariateNormal(MEAN, precision_matrix=PRECISION.to_dense())
    torch.testing.assert_close(gaussian().log_prob(theta), reference.log_prob(theta))
    parts = torch.stack([reference.log_prob(theta) + math.log(0.4), reference.log_prob(theta - 1.0) + math.log(0.6)])
    torch.testing.assert_close(forms()["mixture"].log_prob(theta), torch.logsumexp(parts, 0))


def test_points_of_another_dimension_are_refused():
    for form in ("gaussian", "mixture"):
        with pytest.raises(InputError, match=r"theta: expected shape \(\.\.\., 3\), got \(2,\)"):
            forms()[form].log_prob([0.0, 1.0])


def test_a_density_can_be_differentiated():
    point = torch.tensor([0.3, -0.2, 1.0], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(gaussian().log_prob(point), point)
    torch.testing.assert_close(gradient, -PRECISION.multiply(point.detach() - MEAN))


def test_a_transform_carries_the_samples_and_the_density():
    q = GaussianPosterior(
        torch.tensor([0.3], dtype=torch.float64),
        DiagonalPrecision(torch.tensor([4.0])),
        Record("laplace"),
        transform=transforms.resolve("positive", 1),
    )
    reference = torch.distributions.LogNormal(torch.tensor(0.3).double(), 0.5)
    torch.testing.assert_close(q.mean[0], reference.mean)
    torch.testing.assert_close(q.covariance[0, 0], reference.variance)
    torch.testing.assert_close(q.sd[0], reference.stddev)
    point = torch.tensor([[0.2], [3.0]], dtype=torch.float64)
    torch.testing.assert_close(q.log_prob(point), reference.log_prob(point[:, 0]))
    draws = q.sample(50_000, generator=0)
    assert (draws > 0).all()
    assert abs(draws.mean() - reference.mean) < 6 * reference.stddev / math.sqrt(50_000)


@pytest.mark.parametrize("form", FORMS)
def test_undefined_quantities_say_so(form):
    q = forms()[form]
    with pytest.raises(UndefinedQuantityError, match="log_evidence"):
        q.log_evidence()
    with pytest.raises(UndefinedQuantityError, match="elbo"):
        _ = q.elbo


def test_evidence_and_bound_come_from_the_record():
    terms = {"expected log likelihood": torch.tensor(-3.0), "entropy": torch.tensor(1.0)}
    q = dataclasses.replace(gaussian(), record=Record("variational", elbo_terms=terms))
    assert float(q.elbo) == -2.0
    assert "evidence lower bound: -2.0000" in q.summary()
    with pytest.raises(UndefinedQuantityError, match="lower bound"):
        q.log_evidence()
    assert float(dataclasses.replace(q, record=Record("laplace", torch.tensor(-4.0))).log_evidence()) == -4.0


@pytest.mark.parametrize("form", ["draws", "point"])
@pytest.mark.parametrize("options", [{"method": "linearized"}, {"integral": "mackay"}])
def test_options_that_a_form_cannot_honour_are_refused(form, options):
    with pytest.raises(InputError, match="Leave both out"):
        forms()[form].predict(X, **options)


def test_a_number_of_samples_is_refused_where_nothing_is_drawn():
    for q in (gaussian(), forms()["mixture"], forms()["point"]):
        with pytest.raises(InputError, match="samples: expected None"):
            q.predict(X, samples=7)
    assert forms()["draws"].predict(X, samples=7, generator=0).latent.values.shape[0] == 7


def test_writing_to_an_answer_does_not_reach_the_posterior():
    for q in forms().values():
        before = q.predict(X).probs
        q.mean.zero_()
        q.covariance.zero_()
        np.testing.assert_array_equal(q.predict(X).probs, before)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_samples_functions_and_only_a_gaussian_becomes_a_prior(form):
    q = forms()[form]
    assert q.sample_functions(X, 3, generator=0).shape == (3, 4, 1)
    with pytest.raises(UndefinedQuantityError, match="condition"):
        q.condition((X, np.array([0, 1, 0, 1])))


def test_bad_options_are_refused():
    q = gaussian()
    with pytest.raises(OptionError):
        q.predict(X, method="guess")
    with pytest.raises(OptionError):
        q.predict(X, integral="guess")
    with pytest.raises(InputError):
        q.predict(X, samples=0)
    with pytest.raises(InputError):
        q.predict(X, method="sampled", integral="mackay")
    with pytest.raises(InputError, match=r"expected shape \(N, 2\)"):
        q.predict(X[:, :1])


def test_a_bare_log_density_predicts_nothing():
    q = GaussianPosterior(MEAN, PRECISION, Record("laplace"))
    with pytest.raises(UndefinedQuantityError, match="no model"):
        q.predict(X)
    with pytest.raises(UndefinedQuantityError):
        q.condition((X, X[:, 0]))


@pytest.mark.parametrize("form", FORMS)
def test_arviz_gets_draws_and_log_likelihoods(form):
    q = forms()[form]
    y = np.array([0, 1, 1, 0])
    data = q.to_arviz(data=(X, y), draws=50, generator=0)
    draws = data.posterior["theta"].values
    assert draws.shape[-1] == 3
    chain, draw = 0, 7
    f = np.column_stack([X, np.ones(4)]) @ draws[chain, draw]
    expected = np.where(y == 1, -np.log1p(np.exp(-f)), -np.log1p(np.exp(f)))
    np.testing.assert_allclose(data.log_likelihood["y"].values[chain, draw], expected, rtol=1e-9)


def test_the_log_density_of_a_gaussian_has_gradients_in_its_place() -> None:
    location = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64, requires_grad=True)
    precision = DensePrecision(2.0 * torch.eye(3, dtype=torch.float64))
    q = GaussianPosterior(location, precision, Record("laplace"))
    (slope,) = torch.autograd.grad(q.log_prob(torch.ones(3, dtype=torch.float64)), location)
    torch.testing.assert_close(slope, 2.0 * (1.0 - location.detach()))
