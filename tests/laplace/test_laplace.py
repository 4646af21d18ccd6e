"""Laplace's approximation of networks: closed forms, identities between curvatures, and what it leaves alone."""

from __future__ import annotations

import copy
import io
import warnings
from typing import Any, final

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from bayescope.errors import ConvergenceWarning, InputError, InputTypeError, OptionError, UnsupportedError
from bayescope.estimators import BayesianLinearRegression, BayesianLogisticRegression
from bayescope.laplace.laplace import laplace
from bayescope.laplace.tuning import tune_prior
from bayescope.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from bayescope.network.model import NetworkModel
from bayescope.network.weights import largest_magnitude, largest_variance
from bayescope.posterior import GaussianPosterior, Posterior
from bayescope.precision import DensePrecision
from bayescope.priors import Prior
from tests.laplace.problems import (
    closed_form,
    flat,
    mlp,
    normal,
    nothing_written,
    penalty,
    seeded,
    set_flat,
    train,
    with_ones,
)

# Where an untrained network is what a test needs, the warning about it is not.
untrained = pytest.mark.filterwarnings("ignore:.*expected weights:bayescope.errors.ConvergenceWarning")
EXACT: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}
STRUCTURES: dict[str, dict[str, Any]] = {
    "full": {},
    "block": {},
    "diagonal": {},
    "kfac": {},
    "ekfac": {},
    "low_rank": {"rank": 5},
}


def at(module: nn.Module, theta: Tensor) -> nn.Module:
    moved = copy.deepcopy(module)
    set_flat(moved, theta)
    return moved


def gaussian(q: Posterior) -> GaussianPosterior:
    assert isinstance(q, GaussianPosterior)
    return q


# --- linear-Gaussian models: all is exact -----------------------------------------------------------------------------


@pytest.mark.parametrize("structure", STRUCTURES)
def test_linear_gaussian_is_the_closed_form(structure: str) -> None:
    """In every structure that contains XᵀX/σ²: the diagonal does for orthogonal columns."""
    x, y = normal(14, 4, seed=1), normal(14, seed=2)
    if structure == "diagonal":
        x = torch.linalg.qr(x - x.mean(0))[0]  # the column of ones is orthogonal to it too
    prior, noise = torch.full((5,), 0.8, dtype=torch.float64), 0.6
    closed = closed_form(with_ones(x), y, prior, noise)
    net = at(seeded(lambda: nn.Linear(4, 1)), closed.mean)
    q = gaussian(
        laplace(
            net, (x, y), likelihood=Gaussian(noise), structure=structure, prior_precision=0.8, **STRUCTURES[structure]
        )
    )
    torch.testing.assert_close(q.mean, closed.mean, **EXACT)
    torch.testing.assert_close(q.precision.to_dense(), closed.precision, **EXACT)
    torch.testing.assert_close(q.log_evidence(), closed.log_evidence, **EXACT)
    new = normal(6, 4, seed=3)
    answer, design = q.predict(new), with_ones(new)
    variance = (design * torch.linalg.solve(closed.precision, design.mT).mT).sum(1)
    torch.testing.assert_close(answer.mean[:, 0], design @ closed.mean, **EXACT)
    torch.testing.assert_close(answer.epistemic[:, 0], variance, **EXACT)
    torch.testing.assert_close(answer.variance[:, 0], variance + noise, **EXACT)


@pytest.mark.parametrize("structure", ["full", "block", "kfac"])
@pytest.mark.parametrize("prior", ["dict", "vector", "Prior"])
def test_linear_gaussian_with_a_precision_for_the_bias_and_a_prior_mean(structure: str, prior: str) -> None:
    x, y = normal(14, 3, seed=1), normal(14, seed=2)
    diagonal = torch.tensor([0.8, 0.8, 0.8, 0.05], dtype=torch.float64)
    centre = 0.4 if prior == "Prior" else 0.0
    closed = closed_form(with_ones(x), y, diagonal, 0.6, centre)
    given = {"dict": {"weight": 0.8, "bias": 0.05}, "vector": diagonal, "Prior": Prior(diagonal, centre)}[prior]
    net = at(seeded(lambda: nn.Linear(3, 1)), closed.mean)
    q = gaussian(laplace(net, (x, y), likelihood=Gaussian(0.6), structure=structure, prior_precision=given))
    torch.testing.assert_close(q.precision.to_dense(), closed.precision, **EXACT)
    torch.testing.assert_close(q.log_evidence(), closed.log_evidence, **EXACT)


@pytest.mark.parametrize("structure", ["full", "kfac", "ekfac"])
def test_several_outputs_are_as_many_regressions(structure: str) -> None:
    x, y, noise = normal(14, 3, seed=1), normal(14, 2, seed=2), [0.6, 0.3]
    prior = torch.full((4,), 0.8, dtype=torch.float64)
    each = [closed_form(with_ones(x), y[:, d], prior, noise[d]) for d in range(2)]
    theta = torch.cat([torch.stack([c.mean[:3] for c in each]).flatten(), torch.stack([c.mean[3] for c in each])])
    net = at(seeded(lambda: nn.Linear(3, 2)), theta)
    q = laplace(net, (x, y), likelihood=Gaussian(noise), structure=structure, prior_precision=0.8)
    torch.testing.assert_close(q.log_evidence(), each[0].log_evidence + each[1].log_evidence, **EXACT)
    design = with_ones(normal(5, 3, seed=3))
    variance = torch.stack([(design * torch.linalg.solve(c.precision, design.mT).mT).sum(1) for c in each], 1)
    torch.testing.assert_close(q.predict(design[:, :3]).epistemic, variance, **EXACT)


def test_temperature_is_noise_in_the_posterior_and_a_power_in_the_evidence() -> None:
    x, y, prior = normal(14, 3, seed=1), normal(14, seed=2), torch.full((4,), 0.8, dtype=torch.float64)
    hot = closed_form(with_ones(x), y, prior, 0.6 * 2.5)
    net = at(seeded(lambda: nn.Linear(3, 1)), hot.mean)
    q = gaussian(laplace(net, (x, y), likelihood=Gaussian(0.6), structure="full", prior_precision=0.8, temperature=2.5))
    torch.testing.assert_close(q.precision.to_dense(), hot.precision, **EXACT)
    # p(y∣f)^{1/T} is N(y; f, T σ²) up to (2π)^{½ − 1/(2T)} (T σ²)^½ σ^{−1/T} for each row
    noise = torch.tensor(0.6, dtype=torch.float64)
    factor = 0.5 * (2 * torch.pi * 2.5 * noise).log() - 0.5 * (2 * torch.pi * noise).log() / 2.5
    torch.testing.assert_close(q.log_evidence(), hot.log_evidence + 14 * factor, **EXACT)
    assert "temperature" in q.summary()


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("inf"), True, "hot", [0.5, 0.5]])
def test_temperatures_that_are_none(temperature: Any) -> None:
    with pytest.raises(InputError, match="temperature: expected a positive number"):
        laplace(mlp(), (normal(4, 2, seed=1), normal(4, seed=2)), likelihood="gaussian", temperature=temperature)


@pytest.mark.parametrize("temperature", [np.float32(0.5), np.array(0.5), torch.tensor(0.5)])
def test_temperatures_of_any_scalar_type(temperature: Any) -> None:
    data = normal(14, 2, seed=1), normal(14, 1, seed=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = laplace(mlp(1), data, likelihood="gaussian", temperature=temperature)
        expected = laplace(mlp(1), data, likelihood="gaussian", temperature=0.5)
    assert torch.equal(found.log_evidence(), expected.log_evidence())


def test_gradients_of_the_caller_are_not_kept() -> None:
    module, data = mlp(1), (normal(14, 2, seed=1), normal(14, 1, seed=2))
    module(data[0]).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        q = laplace(module, data, likelihood="gaussian")
    assert isinstance(q.function, NetworkModel)
    assert all(parameter.grad is None for parameter in q.function.module.parameters())
    assert all(parameter.grad is not None for parameter in module.parameters())


# --- a linear classifier is the logistic regression of a table --------------------------------------------------------


def classification(classes: int) -> tuple[Tensor, Tensor]:
    x = normal(40, 3, seed=1)
    scores = x @ normal(3, classes, seed=2) + normal(40, classes, seed=3)
    return x, scores.argmax(1)


@pytest.mark.parametrize("link", ["logit", "probit", "softmax"])
@pytest.mark.parametrize("curvature", ["ggn", "hessian"])
def test_a_linear_network_is_the_logistic_regression(link: str, curvature: str) -> None:
    classes = 3 if link == "softmax" else 2
    x, y = classification(classes)
    options = {} if link == "softmax" else {"link": link}
    table = BayesianLogisticRegression(prior_precision=0.7, intercept_prior_precision=0.05, **options)
    table.fit(x.numpy(), y.numpy())
    truth = table.posterior_
    outputs = 3 if link == "softmax" else 1
    likelihood: Likelihood = Categorical() if link == "softmax" else Bernoulli(link=link)
    net = at(seeded(lambda: nn.Linear(3, outputs)), truth.mean)
    given = {"weight": 0.7, "bias": 0.05}
    q = laplace(net, (x, y), likelihood=likelihood, structure="full", curvature=curvature, prior_precision=given)
    close = {"rtol": 1e-6, "atol": 1e-6}
    torch.testing.assert_close(q.mean, truth.mean, **close)
    torch.testing.assert_close(q.covariance, truth.covariance, **close)
    torch.testing.assert_close(q.log_evidence(), truth.log_evidence(), **close)
    new = normal(9, 3, seed=5)
    np.testing.assert_allclose(q.predict(new.numpy()).probs, table.predict_proba(new.numpy()), rtol=1e-6, atol=1e-6)


# --- where curvatures are one -----------------------------------------------------------------------------------------


def dense(net: nn.Module, data: Any, likelihood: Likelihood, curvature: str, **options: Any) -> Tensor:
    q = laplace(net, data, likelihood=likelihood, structure="full", curvature=curvature, **options)
    return gaussian(q).precision.to_dense()


@untrained
@pytest.mark.parametrize(
    ("likelihood", "outputs"), [(Categorical(), 3), (Bernoulli(), 1), (Bernoulli(link="probit"), 1), (Gaussian(0.4), 2)]
)
def test_ggn_is_the_hessian_of_a_network_that_is_linear_in_its_weights(likelihood: Likelihood, outputs: int) -> None:
    net = seeded(lambda: nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, outputs)))
    x = normal(9, 2, seed=1)
    y = torch.arange(9) % max(2, outputs) if likelihood.discrete else normal(9, outputs, seed=2)
    ggn = dense(net, (x, y), likelihood, "ggn", weights="last_layer")
    hessian = dense(net, (x, y), likelihood, "hessian", weights="last_layer")
    torch.testing.assert_close(ggn, hessian, rtol=1e-10, atol=1e-10)
    apart = dense(net, (x, y), likelihood, "ggn") - dense(net, (x, y), likelihood, "hessian", prior_precision=100.0)
    assert (apart + 99.0 * torch.eye(len(apart), dtype=torch.float64)).abs().max() > 1e-2  # not in all its weights


@untrained
def test_ggn_is_the_hessian_where_residuals_are_zero() -> None:
    net, x = mlp(2), normal(9, 2, seed=1)
    y = net(x).detach()
    ggn, hessian = (dense(net, (x, y), Gaussian(0.4), kind) for kind in ("ggn", "hessian"))
    torch.testing.assert_close(ggn, hessian, rtol=1e-10, atol=1e-10)
    off = dense(net, (x, y + 1.0), Gaussian(0.4), "hessian", prior_precision=100.0)
    assert (off - 99.0 * torch.eye(22, dtype=torch.float64) - ggn).abs().max() > 1e-2


@untrained
@pytest.mark.parametrize(("likelihood", "outputs"), [(Categorical(), 3), (Bernoulli(), 1), (Gaussian(0.4), 2)])
def test_fisher_is_the_ggn_in_expectation(likelihood: Likelihood, outputs: int) -> None:
    net, x = mlp(outputs), normal(9, 2, seed=1)
    y = torch.arange(9) % max(2, outputs) if likelihood.discrete else normal(9, outputs, seed=2)
    ggn = dense(net, (x, y), likelihood, "ggn")
    draws = torch.stack([dense(net, (x, y), likelihood, "fisher", generator=seed) for seed in range(60)])
    error = draws.std(0) / 60**0.5 + 1e-9
    assert ((draws.mean(0) - ggn) / error).abs().max() < 5.0
    empirical = dense(net, (x, y), likelihood, "empirical_fisher")  # the gradients at the labels of the data: another
    assert ((empirical - ggn) / error).abs().max() > 5.0


# --- which weights are random -----------------------------------------------------------------------------------------


def test_the_last_layer_conditions_on_the_features() -> None:
    net, x, y = mlp(1), normal(14, 2, seed=1), normal(14, seed=2)
    design = with_ones(torch.tanh(net[0](x))).detach()
    closed = closed_form(design, y, torch.full((5,), 0.8, dtype=torch.float64), 0.6)
    set_flat(net[2], closed.mean)
    q = gaussian(
        laplace(net, (x, y), likelihood=Gaussian(0.6), weights="last_layer", structure="full", prior_precision=0.8)
    )
    torch.testing.assert_close(q.precision.to_dense(), closed.precision, **EXACT)
    torch.testing.assert_close(q.log_evidence(), closed.log_evidence, **EXACT)


@pytest.mark.parametrize("choice", ["glob", "mask", "dict of masks"])
def test_a_subset_conditions_on_the_weights_that_stay(choice: str) -> None:
    """What fixed weights add to f is known: the others regress on what is left."""
    x, y = normal(14, 4, seed=1), normal(14, seed=2)
    net = seeded(lambda: nn.Linear(4, 1))
    mask = torch.tensor([True, True, True, True, False] if choice == "glob" else [True, False, True, False, False])
    masked: dict[str, Any] = {"glob": "*weight", "mask": mask, "dict of masks": {"weight": mask[:4].reshape(1, 4)}}
    design = with_ones(x)
    left = y - design[:, ~mask] @ flat(net)[~mask]
    closed = closed_form(design[:, mask], left, torch.full((int(mask.sum()),), 0.8, dtype=torch.float64), 0.6)
    theta = flat(net)
    theta[mask] = closed.mean
    q = gaussian(
        laplace(at(net, theta), (x, y), likelihood=Gaussian(0.6), weights=masked[choice], structure="full",
                prior_precision=0.8)
    )  # fmt: skip
    torch.testing.assert_close(q.mean, closed.mean, **EXACT)
    torch.testing.assert_close(q.precision.to_dense(), closed.precision, **EXACT)
    torch.testing.assert_close(q.log_evidence(), closed.log_evidence, **EXACT)
    new = normal(3, 4, seed=3)
    torch.testing.assert_close(q.predict(new).mean[:, 0], with_ones(new) @ theta, **EXACT)


@untrained
@pytest.mark.parametrize("structure", ["full", "diagonal", "kfac"])
def test_weights_alone_are_random_and_biases_points(structure: str) -> None:
    net, data = mlp(2), (normal(9, 2, seed=1), torch.arange(9) % 2)
    q = gaussian(laplace(net, data, likelihood="categorical", weights="*.weight", structure=structure))
    assert q.function is not None
    assert q.precision.dim == 16
    whole = gaussian(laplace(net, data, likelihood="categorical", structure=structure))
    kept = torch.cat([torch.arange(8), torch.arange(12, 20)])
    if structure != "kfac":  # whose factors over the inputs lose the column of ones
        torch.testing.assert_close(q.precision.to_dense(), whole.precision.to_dense()[kept][:, kept])
    draws = q.sample(3, generator=0)
    x = normal(4, 2, seed=3)
    moved = copy.deepcopy(net)
    for draw, f in zip(draws, q.function.forward(x, draws), strict=True):
        moved[0].weight.data, moved[2].weight.data = draw[:8].reshape(4, 2), draw[8:].reshape(2, 4)
        torch.testing.assert_close(f, moved(x).detach())


@untrained
def test_weights_of_largest_variance_and_magnitude() -> None:
    net, data = mlp(2), (normal(9, 2, seed=1), torch.arange(9) % 2)
    diagonal = gaussian(laplace(net, data, likelihood="categorical", structure="diagonal"))
    chosen = diagonal.precision.marginal_variance().argsort(descending=True)[:6].sort().values
    by_variance = gaussian(laplace(net, data, likelihood="categorical", weights=largest_variance(6), structure="full"))
    torch.testing.assert_close(by_variance.mean, flat(net)[chosen])
    by_size = laplace(net, data, likelihood="categorical", weights=largest_magnitude(0.25), structure="diagonal")
    expected = flat(net).abs().argsort(descending=True)[:6].sort().values
    torch.testing.assert_close(by_size.mean, flat(net)[expected])


# --- how far a mode is ------------------------------------------------------------------------------------------------


def trained(activation: type[nn.Module], prior: float, steps: int = 60) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    net = seeded(lambda: nn.Sequential(nn.Linear(2, 12), activation(), nn.Linear(12, 2)), scale=1.0)
    x = normal(80, 2, seed=1)
    y = (x[:, 0] * x[:, 1] + 0.3 * normal(80, seed=2) > 0).long()
    train(net, lambda: F.cross_entropy(net(x), y, reduction="sum") + penalty(net, prior), steps)
    return net, (x, y)


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
@pytest.mark.parametrize("structure", ["full", "kfac", "diagonal"])
def test_a_trained_network_does_not_warn(activation: type[nn.Module], structure: str) -> None:
    net, data = trained(activation, 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        laplace(net, data, likelihood="categorical", structure=structure)


@pytest.mark.parametrize("structure", ["full", "kfac", "diagonal"])
def test_another_prior_or_a_training_cut_short_warns(structure: str) -> None:
    net, data = trained(nn.Tanh, 1.0)
    with pytest.warns(ConvergenceWarning, match=r"Newton decrement of \d.*nats"):
        laplace(net, data, likelihood="categorical", structure=structure, prior_precision=100.0)
    net, data = trained(nn.Tanh, 1.0, steps=1)
    with pytest.warns(ConvergenceWarning, match="Newton decrement"):
        laplace(net, data, likelihood="categorical", structure=structure)


# --- nothing is written, and nothing is left to chance ----------------------------------------------------------------


def noisy_network() -> nn.Sequential:
    net = seeded(
        lambda: nn.Sequential(
            nn.Conv1d(1, 3, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(12, 3)
        )
    ).float()
    net.train()
    net[0].weight.grad = torch.ones_like(net[0].weight)
    return net


@untrained
@pytest.mark.parametrize("structure", STRUCTURES)
def test_fits_and_queries_write_nothing(structure: str) -> None:
    net, x, y = noisy_network(), normal(10, 1, 6, seed=1).float(), torch.arange(10) % 3
    with nothing_written(net):
        q = laplace(net, (x, y), likelihood="categorical", structure=structure, generator=0, **STRUCTURES[structure])
        gaussian(q)
    kept = copy.deepcopy(q)
    inner = q.function.module  # type: ignore[union-attr]
    mode, evidence = q.mean, q.log_evidence()
    with nothing_written(inner), nothing_written(net):
        q.predict(x).summary()
        q.predict(x, method="sampled", samples=3, generator=1).interval(0.9)
        q.predict(x, integral="monte_carlo", samples=3, generator=1).interval(0.9)
        q.sample_functions(x, 2, generator=0)
        q.sample(2, generator=0)
        q.log_evidence(prior_precision=3.0)
        q.summary()
        q.model(x)
    assert torch.equal(q.mean, mode)
    assert torch.equal(q.log_evidence(), evidence)
    assert torch.equal(kept.predict(x).probs, q.predict(x).probs)


@untrained
def test_the_posterior_does_not_follow_the_callers_network() -> None:
    net, x, y = mlp(2), normal(10, 2, seed=1), torch.arange(10) % 2
    q = laplace(net, (x, y), likelihood="categorical")
    before = q.predict(x).probs
    set_flat(net, torch.zeros(22, dtype=torch.float64))
    set_flat(q.model, torch.zeros(22, dtype=torch.float64))  # the user's own as well
    assert torch.equal(q.predict(x).probs, before)
    assert torch.equal(copy.deepcopy(q).predict(x).probs, before)


@untrained
@pytest.mark.parametrize("around", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("structure", ["kfac", "ekfac", "full"])
def test_gradients_may_be_switched_off_around(around: Any, structure: str) -> None:
    x, y = normal(10, 2, seed=1), torch.arange(10) % 2
    plain = laplace(mlp(2), (x, y), likelihood="categorical", structure=structure)
    net = mlp(2)
    with around():
        q = laplace(net, (x, y), likelihood="categorical", structure=structure)
        assert torch.equal(q.predict(x).probs, plain.predict(x).probs)
        assert q.fit.effective_parameters() == plain.fit.effective_parameters()  # type: ignore[union-attr]
        if structure != "ekfac":
            assert torch.equal(q.condition((x, y)).mean, plain.condition((x, y)).mean)
    prior = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    q.log_evidence(prior_precision=prior).backward()  # of use outside, too
    assert prior.grad != 0


@untrained
def test_a_network_that_writes_over_its_inputs_leaves_the_data() -> None:
    net = seeded(lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(2, 4), nn.ReLU(inplace=True), nn.Linear(4, 2)))
    x, y = normal(10, 2, seed=1), torch.arange(10) % 2
    kept = x.clone()
    q = laplace(net, (x, y), likelihood="categorical")
    q.condition((x, y))
    q.predict(x)
    q.predict(x, method="sampled", samples=2, generator=0)
    q.sample_functions(x, 2, generator=0)
    assert torch.equal(x, kept)


@untrained
@pytest.mark.parametrize("curvature", ["ggn", "fisher", "empirical_fisher"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_same_generator_gives_the_same_numbers(curvature: str, structure: str) -> None:
    x, y = normal(10, 2, seed=1), torch.arange(10) % 3

    def answers(seed: int) -> list[Any]:
        q = laplace(
            mlp(3), (x, y), likelihood="categorical", curvature=curvature, structure=structure,
            generator=torch.Generator().manual_seed(seed), **STRUCTURES[structure],
        )  # fmt: skip
        sampled = q.predict(x, method="sampled", samples=4, generator=seed)
        return [q.log_evidence(), q.sample(2, generator=seed), sampled.probs, q.sample_functions(x, 2, generator=seed)]

    assert all(torch.equal(one, other) for one, other in zip(answers(3), answers(3), strict=True))
    if curvature == "fisher":
        assert not torch.equal(answers(3)[0], answers(4)[0])


@untrained
@pytest.mark.parametrize("structure", STRUCTURES)
def test_copies_and_files(structure: str) -> None:
    x, y = normal(10, 2, seed=1), torch.arange(10) % 2
    q = laplace(mlp(2), (x, y), likelihood="categorical", structure=structure, generator=0, **STRUCTURES[structure])
    file = io.BytesIO()
    torch.save(q, file)
    file.seek(0)
    for twin in (copy.deepcopy(q), torch.load(file, weights_only=False)):
        assert torch.equal(twin.predict(x).probs, q.predict(x).probs)
        assert torch.equal(twin.log_evidence(prior_precision=2.0), q.log_evidence(prior_precision=2.0))
        assert torch.equal(twin.sample(2, generator=0), q.sample(2, generator=0))


@untrained
@pytest.mark.parametrize("structure", STRUCTURES)
def test_single_precision_is_close_to_double(structure: str) -> None:
    x, y = normal(10, 2, seed=1), torch.arange(10) % 2
    options = {"likelihood": "categorical", "structure": structure, "generator": 0, **STRUCTURES[structure]}
    double, single = laplace(mlp(2), (x, y), **options), laplace(mlp(2).float(), (x, y), **options)
    assert single.log_evidence().dtype == single.mean.dtype == torch.float64
    torch.testing.assert_close(single.log_evidence(), double.log_evidence(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(single.predict(x).probs, double.predict(x).probs, rtol=1e-4, atol=1e-4)


# --- data -------------------------------------------------------------------------------------------------------------


@final
class Augmented(Dataset[Any]):
    """Rows with fresh noise at each reading."""

    def __init__(self, x: Tensor, y: Tensor, scale: float) -> None:
        self.x, self.y, self.scale, self.generator = x, y, scale, torch.Generator().manual_seed(0)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        noise = torch.randn(self.x.shape[1:], generator=self.generator, dtype=self.x.dtype)
        return self.x[i] + self.scale * noise, self.y[i]


@untrained
@pytest.mark.parametrize("structure", ["full", "kfac", "ekfac"])
@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_random_augmentation_is_refused(structure: str, scale: float) -> None:
    data = Augmented(normal(30, 2, seed=1), torch.arange(30) % 2, scale)
    with pytest.raises(InputError, match="Take out random augmentation"):
        laplace(mlp(2), data, likelihood="categorical", structure=structure)
    data.scale = 0.0
    laplace(mlp(2), data, likelihood="categorical", structure=structure)


@untrained
@pytest.mark.global_rng
@pytest.mark.parametrize("structure", ["full", "kfac", "ekfac"])
def test_a_shuffled_loader_is_the_same_data(structure: str) -> None:
    x, y = normal(30, 2, seed=1), torch.arange(30) % 2
    loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    shuffled = laplace(mlp(2), loader, likelihood="categorical", structure=structure)
    plain = laplace(mlp(2), (x, y), likelihood="categorical", structure=structure)
    torch.testing.assert_close(shuffled.log_evidence(), plain.log_evidence())
    assert shuffled.fit.fingerprint == plain.fit.fingerprint  # type: ignore[union-attr]


@untrained
def test_dense_outputs() -> None:
    class Pixels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 2, 1))

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x).movedim(1, -1)

    net, x, y = seeded(Pixels), normal(4, 1, 3, 5, seed=1), torch.arange(60).reshape(4, 3, 5) % 2
    q = laplace(net, (x, y), likelihood="categorical")
    assert q.fit.observations == 60  # type: ignore[union-attr]
    assert q.predict(x).probs.shape == (4, 3, 5, 2)
    assert q.sample_functions(x, 2, generator=0).shape == (2, 4, 3, 5, 2)


# --- what cannot be asked ---------------------------------------------------------------------------------------------


REFUSED: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (OptionError, "structure", {"structure": "kron"}),
    (OptionError, "curvature", {"curvature": "gnn"}),
    (OptionError, "likelihood", {"likelihood": "classification"}),
    (OptionError, "weights", {"weights": "first"}),
    (OptionError, "mixture", {"mixture": "best"}),
    (OptionError, "prior_precision: expected one of 'evidence'", {"prior_precision": "evidenc"}),
    (InputError, "positive", {"prior_precision": -1.0}),
    (UnsupportedError, "Supported", {"curvature": "hessian", "structure": "kfac"}),
    (UnsupportedError, "rank", {"rank": 3}),
    (UnsupportedError, "samples: expected with", {"samples": 3}),
    (UnsupportedError, "goes with prior_precision='evidence'", {"likelihood": Gaussian("evidence")}),
]


@pytest.mark.parametrize(("error", "message", "options"), REFUSED)
def test_what_cannot_be_asked(error: type[Exception], message: str, options: dict[str, Any]) -> None:
    with pytest.raises(error, match=message):
        laplace(mlp(2), (normal(4, 2, seed=1), torch.arange(4) % 2), **{"likelihood": "categorical", **options})


def test_a_module_that_cannot_be_copied() -> None:
    net = mlp(2)
    net.last = net(normal(4, 2, seed=1))  # type: ignore[assignment]
    with pytest.raises(InputError, match="no results of a forward pass"):
        laplace(net, (normal(4, 2, seed=1), torch.arange(4) % 2), likelihood="categorical")


def test_what_is_no_module() -> None:
    with pytest.raises(InputTypeError, match=r"torch\.nn\.Module or a list"):
        laplace(lambda x: x, (normal(4, 2, seed=1), torch.arange(4) % 2), likelihood="categorical")  # type: ignore[arg-type]


# --- hyperparameters by name ------------------------------------------------------------------------------------------


@untrained
@pytest.mark.parametrize("likelihood", [Gaussian("evidence"), Gaussian(0.5)])
def test_prior_precision_by_evidence_is_tune_prior(likelihood: Gaussian) -> None:
    x, y = normal(30, 2, seed=1), normal(30, seed=2)
    net = mlp(1)
    q = laplace(net, (x, y), likelihood=likelihood, prior_precision="evidence")
    start = laplace(net, (x, y), likelihood=Gaussian(0.5))
    tuned = tune_prior(start)
    torch.testing.assert_close(q.log_evidence(), tuned.log_evidence(), rtol=1e-6, atol=1e-6)
    assert q.log_evidence() > start.log_evidence()


def test_prior_precision_by_evidence_finds_the_optimum_of_a_linear_model() -> None:
    x = normal(60, 3, seed=1)
    y = x @ torch.tensor([1.0, -0.5, 0.2], dtype=torch.float64) + 0.5 * normal(60, seed=2)
    table = BayesianLinearRegression(fit_intercept=False).fit(x.numpy(), y.numpy())
    net = at(seeded(lambda: nn.Linear(3, 1, bias=False)), table.posterior_.mean)
    q = laplace(net, (x, y), likelihood=Gaussian("evidence"), structure="full", prior_precision="evidence")
    # at the mode under the tuned hyperparameters both are MacKay's, at the same place
    assert float(q.log_evidence()) == pytest.approx(table.log_evidence_, abs=1e-6)
    assert float(q.fit.prior.precision.mean()) == pytest.approx(table.prior_precision_, rel=1e-3)  # type: ignore[union-attr]


# --- what a reader is told --------------------------------------------------------------------------------------------


@untrained
def test_a_structure_in_another_case_or_by_another_name_is_recognised() -> None:
    data = (normal(6, 2, seed=1), torch.arange(6) % 2)
    for given, meant in [("KFAC", "kfac"), ("kron", "kfac"), ("sample", "samples"), ("diag", "diagonal")]:
        with pytest.raises(OptionError, match=f"'low_rank', 'samples', got '{given}'. Did you mean '{meant}'"):
            laplace(mlp(2), data, likelihood="categorical", structure=given)
    with pytest.raises(InputError, match=r"either rank= or tolerance=, got neither. Say how many .*rank=50"):
        laplace(mlp(2), data, likelihood="categorical", structure="low_rank")
    with pytest.raises(InputError, match="either rank= or tolerance=, got both"):
        laplace(mlp(2), data, likelihood="categorical", structure="low_rank", rank=2, tolerance=0.1)


@untrained
def test_what_is_no_module_that_runs_is_told_what_to_give() -> None:
    data = (normal(6, 2, seed=1), torch.arange(6) % 2)
    with pytest.raises(InputTypeError, match=r"got a ModuleList, which cannot. .* plain list of modules"):
        laplace(nn.ModuleList([mlp(2), mlp(2)]), data, likelihood="categorical")
    q = laplace(mlp(2), data, likelihood="categorical")
    with pytest.raises(InputTypeError, match=r"got GaussianPosterior. Pass its \.model"):
        laplace(q, data, likelihood="categorical")  # type: ignore[arg-type]


@untrained
def test_the_summary_has_the_hyperparameters() -> None:
    data = (normal(6, 2, seed=1), normal(6, 1, seed=2))
    given: dict[str, Any] = {
        "0.7": 0.7,
        "0: 0.7, 2: 2": {"0": 0.7, "2": 2.0},
        "0.weight: 0.7, 0.bias: 1, 2.weight: 0.7, 2.bias: 1": {"*.weight": 0.7, "*.bias": 1.0},
        "one per weight, from 1 to 17": torch.arange(1.0, 18.0),
        "a matrix, such as that of an earlier posterior": Prior(DensePrecision(torch.eye(17, dtype=torch.float64))),
    }
    for told, prior in given.items():
        q = laplace(mlp(1), data, likelihood=Gaussian(0.3), structure="full", prior_precision=prior)
        for line in (f"prior precision: {told}", "likelihood: gaussian", "noise variance: 0.3"):
            assert f"\n  {line}\n" in q.summary()
    several = laplace(mlp(2), (data[0], data[1].expand(-1, 2)), likelihood=Gaussian([0.3, 0.5]))
    assert several.record.notes["noise variance"] == "0.3, 0.5"
    assert "noise variance" not in laplace(mlp(2), (data[0], torch.arange(6) % 2), likelihood="categorical").summary()


@untrained
def test_a_noise_that_is_known_is_held() -> None:
    data = (normal(16, 2, seed=1), normal(16, 1, seed=2))
    learnt = laplace(mlp(1), data, likelihood=Gaussian(0.3), prior_precision="evidence")
    held = laplace(mlp(1), data, likelihood=Gaussian(0.3), prior_precision="evidence", noise=False)
    assert float(held.likelihood.noise_variance) == 0.3  # type: ignore[union-attr]
    assert float(learnt.likelihood.noise_variance) != 0.3  # type: ignore[union-attr]
    assert held.log_evidence() < learnt.log_evidence()
    with pytest.raises(UnsupportedError, match=r"noise_variance: 'evidence' goes with .*noise=True"):
        laplace(mlp(1), data, likelihood=Gaussian("evidence"), prior_precision="evidence", noise=False)
    with pytest.raises(InputTypeError, match="noise: expected True or False"):
        laplace(mlp(1), data, likelihood="gaussian", noise="no")  # type: ignore[arg-type]


@untrained
def test_the_reason_for_another_structure_is_the_true_one() -> None:
    net, data = mlp(2), (normal(6, 2, seed=1), torch.arange(6) % 2)
    some = torch.ones(22, dtype=torch.bool)
    some[:3] = False
    told = laplace(net, data, likelihood="categorical", weights=some).record.notes["read in another structure"]
    assert told == "0: full: some of '0.weight' is fixed"
    beside = laplace(net, data, likelihood="categorical", weights="0.bias").record.notes["read in another structure"]
    assert beside == "0: full: '0.weight', the matrix beside it, is fixed"
