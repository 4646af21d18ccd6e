"""Predictions from a Gaussian over a network's weights."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor, nn

from bayescope.curvature import fit_curvature
from bayescope.errors import InputError, UndefinedQuantityError, UnsupportedError
from bayescope.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from bayescope.models import LinearizedModel, LinearModel
from bayescope.network import NetworkModel
from bayescope.posterior import DrawsPosterior, GaussianPosterior, MixturePosterior, PointPosterior, Record
from bayescope.precision import DensePrecision
from bayescope.tape import block_limit
from tests.network.networks import built, generator, jacobian, numbers
from tests.network.test_positions import Segmentation, Tagger

X = numbers(12, 3)
LABELS = torch.randint(4, (12,), generator=generator(0))
NUMBERS = numbers(12, 4, seed=9)


def mlp(width: int = 6) -> nn.Module:
    return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Dropout(0.3), nn.Linear(width, 4))


def posterior(
    make: Callable[[], nn.Module] = mlp,
    data: tuple[Any, Any] = (X, LABELS),
    likelihood: Likelihood | None = None,
    *,
    structure: str = "kfac",
    weights: Any = "all",
    dtype: torch.dtype = torch.float64,
    prior: float = 1.0,
    seed: int = 2,
) -> GaussianPosterior:
    likelihood = Categorical() if likelihood is None else likelihood
    module = built(make, seed).to(dtype)
    curvature = fit_curvature(module, data, likelihood=likelihood, structure=structure, weights=weights)
    function = NetworkModel.of(curvature.network, data[0])
    return GaussianPosterior(
        function.flat, curvature.with_prior(prior), Record("laplace"), function, likelihood
    )  # fmt: skip


def covariance(q: GaussianPosterior) -> Tensor:
    return torch.linalg.inv(q.precision.to_dense())


@pytest.mark.parametrize("structure", ["full", "kfac", "ekfac", "diagonal"])
def test_the_latent_is_the_tangent_s(structure: str) -> None:
    q, x = posterior(structure=structure), numbers(5, 3, seed=4)
    p = q.predict(x)
    j = jacobian(q.function.module, x, q.function.weights.names)
    with torch.no_grad():
        torch.testing.assert_close(p.latent_mean, copy.deepcopy(q.function.module).eval()(x))
    torch.testing.assert_close(p.latent_cov, j @ covariance(q) @ j.mT)


def test_a_linear_network_is_the_linear_model() -> None:
    linear, likelihood = LinearModel(3, 4), Gaussian(0.3)
    q = posterior(lambda: nn.Linear(3, 4), (X, NUMBERS), likelihood, structure="full")
    same = GaussianPosterior(q.location, q.precision, Record("laplace"), linear, likelihood)
    x = numbers(5, 3, seed=4)
    for name in ("mean", "variance", "epistemic", "latent_cov"):
        torch.testing.assert_close(getattr(q.predict(x), name), getattr(same.predict(x), name))
    for theirs, ours in zip(same.predict(x).interval(0.9), q.predict(x).interval(0.9), strict=True):
        torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(
        q.sample_functions(x, 3, generator=0), same.sample_functions(x, 3, generator=0)
    )  # fmt: skip


# Dense outputs


@pytest.mark.parametrize("weights", ["all", "last_layer"])
@pytest.mark.parametrize("name", ["pixels", "tokens"])
def test_dense_outputs_answer_position_by_position(name: str, weights: str) -> None:
    if name == "pixels":
        make, x, classes = (lambda: Segmentation(1)), numbers(3, 2, 4, 5), 3
        y = torch.randint(classes, (3, 4, 5), generator=generator(1))
    else:
        make, classes = Tagger, 5
        x = torch.randint(11, (3, 6), generator=generator(0))
        y = torch.randint(classes, (3, 6), generator=generator(1))
    q = posterior(make, (x, y), weights=weights)
    p = q.predict(x, integral="mackay")
    j = jacobian(q.function.module, x, q.function.weights.names).unflatten(1, (*y.shape[1:], classes))
    assert p.mean.shape == p.variance.shape == (*y.shape, classes)
    torch.testing.assert_close(p.latent_cov, j @ covariance(q) @ j.mT, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(p.log_prob(y), p.probs.gather(-1, y[..., None])[..., 0].log())
    low, high = p.interval(0.9, of="latent")
    sd = p.latent_cov.diagonal(dim1=-2, dim2=-1).sqrt()
    torch.testing.assert_close(high - low, 2 * 1.6448536269514722 * sd)
    assert p.sample(2, generator=0).shape == (2, *y.shape)
    assert len(p) == 3
    assert f"{' x '.join(map(str, y.shape[1:]))} positions" in p.summary()
    sampled = q.predict(x, method="sampled", samples=7, generator=0)
    assert sampled.mean.shape == (*y.shape, classes)
    assert q.sample_functions(x, 2, generator=0).shape == (2, *y.shape, classes)
    with pytest.raises(InputError, match="y: expected shape"):
        p.log_prob(y[:, 1:])


# Inputs


def test_what_went_in_comes_out() -> None:
    q = posterior(dtype=torch.float32)
    tensor, array = q.predict(X).mean, q.predict(X.numpy()).mean
    assert isinstance(tensor, Tensor)
    assert isinstance(array, np.ndarray)
    assert array.dtype == np.float64
    assert np.array_equal(array.astype(np.float32), tensor.numpy())
    assert isinstance(q.predict(X.numpy()).log_prob(LABELS.numpy()), np.ndarray)


@pytest.mark.parametrize(
    ("dtype", "answered"),
    [(torch.float64, torch.float64), (torch.float32, torch.float32), (torch.bfloat16, torch.float32)],
)
def test_tensors_are_answered_in_the_type_of_the_network(dtype: torch.dtype, answered: torch.dtype) -> None:
    """Of half precision in float32; whatever the type of the inputs, arrays are answered in float64."""
    q = posterior().to(dtype=dtype)
    for x in (X, X.float()):
        p = q.predict(x)
        answers = [p.mean, p.sd, p.epistemic, p.entropy, *p.interval(0.9), p.log_prob(LABELS), p[2:4].latent_cov]
        answers += [q.sample_functions(x, 2, generator=0)]
        assert {answer.dtype for answer in answers} == {answered}
        assert p.classes.dtype == torch.int64
        assert p.latent.mean.dtype == torch.float64
    assert q.predict(X.numpy()).mean.dtype == np.float64
    assert q.sample_functions(X.numpy(), 2, generator=0).dtype == torch.float64
    assert q.predict(X).to_frame()["entropy"].dtype == np.float64
    assert q.mean.dtype == q.sd.dtype == torch.float64


@pytest.mark.parametrize("method", ["linearized", "sampled"])
def test_any_number_of_rows_gives_the_same_answers(method: str) -> None:
    q = posterior()
    want = q.predict(X, method=method, generator=0).mean
    for size in (1, 5):
        got = [q.predict(some, method=method, generator=0).mean for some in X.split(size)]
        torch.testing.assert_close(torch.cat(got), want, rtol=1e-10, atol=1e-10)
    with pytest.raises(InputError, match="at least one row"):
        q.predict(X[:0], method=method)


@pytest.mark.parametrize("method", ["linearized", "sampled"])
def test_rows_without_finite_outputs_are_named(method: str) -> None:
    x = X.clone()
    x[[4, 7], 1] = math.nan
    with pytest.raises(InputError, match=r"x: expected inputs with finite outputs.* in 2 of 12 rows, first in row 4"):
        posterior().predict(x, method=method, generator=0)


# Sampled


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sampled_is_the_average_over_networks(dtype: torch.dtype) -> None:
    q = posterior(dtype=dtype)
    p = q.predict(X, method="sampled", samples=20, generator=0)
    probabilities = []
    for theta in q.sample(20, generator=0):
        module = copy.deepcopy(q.function.module).eval()
        nn.utils.vector_to_parameters(theta.to(dtype), module.parameters())
        probabilities.append(module(X.to(dtype)).detach().double().softmax(-1))
    torch.testing.assert_close(p.mean.double(), torch.stack(probabilities).mean(0), rtol=1e-5, atol=1e-6)


def test_draws_are_the_generator_s_however_many_are_there_at_once() -> None:
    q = posterior()
    want = q.predict(X, method="sampled", samples=50, generator=3).mean
    assert torch.equal(q.predict(X, method="sampled", samples=50, generator=generator(3)).mean, want)
    assert not torch.equal(q.predict(X, method="sampled", samples=50, generator=4).mean, want)
    with block_limit(8 * q.precision.dim * 50):  # all draws, but not the activations at them
        torch.testing.assert_close(q.predict(X, method="sampled", samples=50, generator=3).mean, want)
    with block_limit(8 * q.precision.dim * 16):
        few = q.predict(X, method="sampled", samples=50, generator=3).mean
        drawn = q.sample(50, generator=3)
    torch.testing.assert_close(few, q.function.forward(X, drawn).softmax(-1).mean(0))


# Differentiable


ANSWERS: dict[str, Callable[[Any], Tensor]] = {
    "mean": lambda p: p.mean,
    "variance": lambda p: p.variance,
    "epistemic": lambda p: p.epistemic,
    "log_prob": lambda p: p.log_prob(LABELS[:5] if p.likelihood.discrete else NUMBERS[:5]),
}


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("form", ["mackay", "quadrature", "laplace_bridge", "gaussian", "sampled", "linear", "mixture"])
def test_derivatives_in_x_are_finite_differences(form: str, answer: str) -> None:
    options: dict[str, Any] = {"generator": 0}
    data = (X, NUMBERS) if form in ("gaussian", "linear") else (X, LABELS)
    q: Any = posterior(data=data, likelihood=Gaussian(0.3) if form in ("gaussian", "linear") else None)
    if form == "linear":
        q = posterior(lambda: nn.Linear(3, 4), data, Gaussian(0.3), structure="full")
        q = GaussianPosterior(q.location, q.precision, Record("laplace"), LinearModel(3, 4), Gaussian(0.3))
    elif form == "mixture":
        q = MixturePosterior(torch.tensor([0.3, 0.7]).log().double(), [q, posterior(seed=5)], Record("x"), q.function)
        q = MixturePosterior(q.log_weights, q.components, q.record, q.function, Categorical())
    elif form == "sampled":
        options |= {"method": "sampled", "samples": 30}
    elif form != "gaussian":
        options["integral"] = form
    x, way = numbers(5, 3, seed=4), numbers(5, 3, seed=6)
    leaf = x.clone().requires_grad_()
    value = ANSWERS[answer](q.predict(leaf, differentiable=True, **options))
    assert not ANSWERS[answer](q.predict(leaf, **options)).requires_grad
    weight = numbers(*value.shape, seed=8)
    (slope,) = torch.autograd.grad((value * weight).sum(), leaf)
    up, down = ((ANSWERS[answer](q.predict(x + s * way, **options)) * weight).sum() for s in (1e-5, -1e-5))
    torch.testing.assert_close((slope * way).sum(), (up - down) / 2e-5, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("integral", ["quadrature", "monte_carlo"])
def test_outputs_that_are_alike_have_derivatives_too(integral: str) -> None:
    """All eigenvalues of Cov[f] = (1 + xᵀx) I are equal: no eigenvector has a derivative, but integrals do.

    d/dx E[g(f)] = ∂E/∂μ dμ/dx + ½ Σ_c ∂²E[g]/∂μ_c² dσ²/dx, here by differences of the integral over 10⁶ draws.
    """
    model = LinearModel(2, 3)
    q = GaussianPosterior(
        numbers(9), DensePrecision(torch.eye(9, dtype=torch.float64)), Record("x"), model, Categorical()
    )
    x = torch.tensor([[0.4, -0.7]], dtype=torch.float64, requires_grad=True)
    samples = None if integral == "quadrature" else 10**5
    p = q.predict(x, integral=integral, differentiable=True, generator=0, samples=samples)
    (slope,) = torch.autograd.grad(p.mean[0, 0], x)
    noise = numbers(10**6, 3, seed=3)

    def expected(x: Tensor) -> Tensor:
        f = model.forward(x, q.location)[0] + noise * (1 + x.square().sum()).sqrt()
        return f.softmax(-1)[:, 0].mean()

    (want,) = torch.autograd.grad(expected(x), x)
    torch.testing.assert_close(slope, want, rtol=0, atol=0.004)


def test_a_graph_comes_back_on_request_alone() -> None:
    q = posterior()
    leaf = X.clone().requires_grad_()
    for bad in (X, X.numpy()):
        with pytest.raises(InputError, match=r"differentiable: expected x to be a tensor that requires a gradient"):
            q.predict(bad, differentiable=True)
    with torch.no_grad(), pytest.raises(InputError, match=r"leave torch.no_grad\(\)"):
        q.predict(leaf, differentiable=True)
    with torch.enable_grad():
        assert not q.predict(leaf).mean.requires_grad
        prior = torch.ones((), dtype=torch.float64, requires_grad=True)
        learnt = GaussianPosterior(q.location, q.precision.add_diagonal(prior), q.record, q.function, q.likelihood)
        assert not learnt.predict(leaf).variance.requires_grad
        linear = LinearModel(3, 4)
        dense = DensePrecision(prior * torch.eye(16, dtype=torch.float64))
        assert (
            not GaussianPosterior(numbers(16), dense, q.record, linear, q.likelihood).predict(leaf).mean.requires_grad
        )
        assert not q.sample_functions(leaf, 2).requires_grad
    q.predict(leaf, differentiable=True, integral="mackay").mean.sum().backward()
    assert leaf.grad is not None
    assert all(p.grad is None for p in q.function.module.parameters())


# Functions


def likelihood_ratio(draws: Tensor, mean: Tensor, cov: Tensor) -> float:
    """The p-value of draws (n, d) under N(mean, cov), by the likelihood ratio against any Gaussian.

    With W = L⁻¹ (draws − mean), 2 log Λ = n (tr S − log∣S∣ − d) + n w̄ᵀw̄ tends to χ² of d(d+1)/2 + d degrees of freedom
    (Anderson 2003, section 10.9).
    """
    n, d = draws.shape
    white = torch.linalg.solve_triangular(torch.linalg.cholesky(cov), (draws - mean).mT, upper=False).mT
    average = white.mean(0)
    scatter = (white - average).mT @ (white - average) / n
    statistic = n * (scatter.trace() - torch.logdet(scatter) - d + average.square().sum())
    return float(scipy.stats.chi2.sf(float(statistic), d * (d + 1) / 2 + d))


@pytest.mark.parametrize("kind", ["linearized", "draws"])
def test_functions_are_joint_over_the_inputs(kind: str) -> None:
    """20,000 functions at three inputs; a right sampler fails with probability 1e-6 a case."""
    q, x = posterior(), numbers(3, 3, seed=4)
    j = jacobian(q.function.module, x, q.function.weights.names)[:, :2].flatten(0, 1)  # two of the four outputs
    cov = j @ covariance(q) @ j.mT
    mean = q.predict(x).latent_mean[:, :2].flatten()
    if kind == "draws":  # draws of a linearised model
        theta = q.sample(20_000, generator=5)[None]
        tangent = LinearizedModel(q.function, q.location)
        functions = DrawsPosterior(theta, Record("x"), tangent, Categorical()).function.forward(x, theta[0])
    else:
        functions = q.sample_functions(x, 20_000, generator=5)
    assert functions.shape == (20_000, 3, 4)
    draws = functions[..., :2].flatten(1)
    assert likelihood_ratio(draws, mean, cov) > 1e-6
    # One noise for all inputs, and noise of its own for each: right at each input, wrong together.
    blocks = [torch.linalg.cholesky(cov[i : i + 2, i : i + 2]) for i in (0, 2, 4)]
    noise, jitter = numbers(20_000, 2), 1e-3 * numbers(20_000, 6, seed=3)  # else the former are singular
    assert likelihood_ratio(torch.cat([noise @ b.mT for b in blocks], 1) + jitter + mean, mean, cov) < 1e-6
    assert likelihood_ratio(numbers(20_000, 6) @ torch.block_diag(*blocks).mT + mean, mean, cov) < 1e-6


def test_functions_are_the_generator_s() -> None:
    q = posterior()
    want = q.sample_functions(X, 4, generator=3)
    assert torch.equal(q.sample_functions(X, 4, generator=generator(3)), want)
    source = generator(3)
    assert torch.equal(q.sample_functions(X, 4, generator=source), want)
    assert not torch.equal(q.sample_functions(X, 4, generator=source), want)
    torch.testing.assert_close(q.sample_functions(X[2:5], 4, generator=3), want[:, 2:5])


# Copies


@pytest.mark.parametrize("how", ["deepcopy", "save"])
@pytest.mark.parametrize("name", ["mlp", "pixels", "tokens"])
def test_a_copy_predicts_the_same(name: str, how: str) -> None:
    makes: dict[str, tuple[Any, Any, Any]] = {
        "mlp": (mlp, X, LABELS),
        "pixels": (lambda: Segmentation(3), numbers(2, 2, 3, 3), torch.zeros(2, 3, 3)),
        "tokens": (Tagger, torch.randint(11, (3, 6), generator=generator(0)), torch.zeros(3, 6)),
    }
    make, x, y = makes[name]
    q = posterior(make, (x, y))
    want = q.predict(x, integral="mackay").mean
    if how == "deepcopy":
        other = copy.deepcopy(q)
    else:
        buffer = io.BytesIO()
        torch.save(q, buffer)
        buffer.seek(0)
        other = torch.load(buffer, weights_only=False)
    torch.testing.assert_close(other.predict(x, integral="mackay").mean, want, rtol=1e-12, atol=1e-12)
    assert torch.equal(other.sample(2, generator=0), q.sample(2, generator=0))
    with torch.no_grad():
        for parameter in other.function.module.parameters():
            parameter.zero_()
    assert torch.equal(q.predict(x, integral="mackay").mean, want)


def test_the_module_that_is_shown_is_the_user_s() -> None:
    q = posterior()
    want = q.predict(X).mean
    torch.testing.assert_close(q.model.eval()(X), q.predict(X).latent_mean)
    with torch.no_grad():
        for parameter in q.model.parameters():
            parameter.zero_()
    assert torch.equal(q.predict(X).mean, want)


def test_no_question_touches_the_weights_covariance() -> None:
    """P = 235,146: P² numbers would be 442 GB."""
    q = posterior(
        lambda: nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)),
        (numbers(8, 784).float(), LABELS[:8]), structure="diagonal", dtype=torch.float32,
    )  # fmt: skip
    x = numbers(2, 784, seed=3)
    assert torch.equal(q.mean, q.location)
    assert "235146 weights" in q.summary()
    assert q.sample_functions(x, 2, generator=0).shape == (2, 2, 10)
    assert q.predict(x, method="sampled", samples=3, generator=0).mean.shape == (2, 10)


def test_very_many_classes_are_predicted_from_variances_alone() -> None:
    y = torch.randint(1000, (256,), generator=generator(0))
    x = numbers(256, 8).float()
    q = posterior(lambda: nn.Linear(8, 1000), (x, y), weights="last_layer", dtype=torch.float32)
    p = q.predict(x, integral="mackay")  # with covariances it would be 2 GB
    few = q.predict(x[:5], integral="mackay")
    torch.testing.assert_close(p.mean[:5], few.mean, rtol=1e-5, atol=1e-9)
    torch.testing.assert_close(p.epistemic[:5], few.epistemic, rtol=1e-4, atol=1e-9)
    torch.testing.assert_close(p.log_prob(y)[:5], few.log_prob(y[:5]), rtol=1e-5, atol=1e-6)
    with pytest.raises(UnsupportedError, match="latent_cov: expected covariances"):
        _ = p.latent_cov


# Mixtures


def mixture(*components: GaussianPosterior) -> MixturePosterior:
    weights = torch.arange(1.0, len(components) + 1.0, dtype=torch.float64)
    first = components[0]
    return MixturePosterior(
        (weights / weights.sum()).log(), components, Record("mixture"), first.function, first.likelihood
    )


def test_a_mixture_of_one_architecture() -> None:
    parts = posterior(), posterior(seed=5)
    q = mixture(*parts)
    want = (parts[0].predict(X).mean + 2 * parts[1].predict(X).mean) / 3
    torch.testing.assert_close(q.predict(X).mean, want)
    torch.testing.assert_close(q.mean, (parts[0].location + 2 * parts[1].location) / 3)
    assert q.sample(3, generator=0).shape == (3, parts[0].precision.dim)
    assert q.log_prob(q.mean).shape == ()


def test_a_mixture_of_unlike_architectures_predicts() -> None:
    parts = posterior(), posterior(lambda: mlp(9), dtype=torch.float32), posterior(weights="last_layer")
    q = mixture(*parts)
    for method in ("linearized", "sampled"):
        each = [part.predict(X, method=method, generator=0).mean for part in parts]
        want = each[0] + 2 * each[1] + 3 * each[2]
        got = q.predict(X, method=method, generator=0).mean
        torch.testing.assert_close(got, want / 6, rtol=0, atol=1e-8 if method == "linearized" else 0.05)
    functions = q.sample_functions(X, 6000, generator=0)
    assert functions.shape == (6000, 12, 4)
    sd = q.predict(X).latent_cov.diagonal(dim1=1, dim2=2).sqrt()
    error = (functions.mean(0) - q.predict(X).latent_mean).abs() / (sd / 6000**0.5)
    assert error.max() < 6
    assert "52 or 76 or 28 weights" in q.summary()
    for ask in (lambda: q.mean, lambda: q.covariance, lambda: q.sample(2), lambda: q.log_prob(parts[0].location)):
        with pytest.raises(UndefinedQuantityError, match="models with unlike weights"):
            ask()


def test_functions_of_a_mixture_come_in_no_order() -> None:
    """Of 200 functions about 89 pairs of neighbours are of unlike components, sd 7; sorted ones would have 1."""
    near, far = posterior(lambda: nn.Linear(3, 4)), posterior(lambda: nn.Linear(3, 4))
    far = GaussianPosterior(
        far.location + 100.0, far.precision, far.record, far.function.at(far.location + 100.0), far.likelihood
    )
    functions = mixture(near, far).sample_functions(torch.ones(1, 3), 200, generator=0)[:, 0, 0]
    unlike = (functions > 200).diff().sum()
    assert 45 < int(unlike) < 133


def test_points_and_draws_of_a_network() -> None:
    q = posterior()
    point = PointPosterior(q.location, Record("map"), q.function, Categorical())
    with torch.no_grad():
        want = copy.deepcopy(q.function.module).eval()(X)
    torch.testing.assert_close(point.predict(X).mean, want.softmax(-1))
    assert point.predict(X).epistemic.abs().max() < 1e-15
    torch.testing.assert_close(point.sample_functions(X, 2)[1], want)
    theta = q.sample(6, generator=0)
    sampled = DrawsPosterior(theta[None], Record("ensemble"), q.function, Categorical())
    torch.testing.assert_close(sampled.predict(X).mean, q.function.forward(X, theta).softmax(-1).mean(0))
    linearised = DrawsPosterior(theta[None], Record("x"), LinearizedModel(q.function, q.location), Bernoulli())
    j = jacobian(q.function.module, X, q.function.weights.names)
    torch.testing.assert_close(
        linearised.predict(X).latent_mean, want + torch.einsum("ncp,p->nc", j, (theta - q.location).mean(0))
    )
