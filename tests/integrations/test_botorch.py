"""A posterior as a model of BoTorch: its moments, their gradients, and what BoTorch does with them."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayescope as bs
from bayescope.errors import InputError, InputTypeError, UnsupportedError
from bayescope.layers import Pairwise
from bayescope.models import LinearModel
from bayescope.posterior import GaussianPosterior, Record
from bayescope.precision import DensePrecision
from tests.network.networks import built, numbers

pytest.importorskip("botorch", reason="pip install 'bayescope[dev]' brings botorch")
pytestmark = [
    pytest.mark.filterwarnings("ignore::bayescope.errors.BayescopeWarning"),  # nothing is trained to its mode
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # of BoTorch and GPyTorch: scaling
    pytest.mark.filterwarnings("ignore:.*known numerical issues"),
    pytest.mark.filterwarnings("ignore:A not p.d., added jitter"),  # more points than weights
]

X = torch.linspace(0, 1, 9, dtype=torch.float64)[:, None]


@functools.cache
def network(outputs: int = 1, structure: str = "full") -> Any:
    module = built(lambda: nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, outputs)))
    y = torch.cat([torch.sin(5 * X) + k for k in range(outputs)], 1)
    q = bs.fit_map(module, (X, y), likelihood=bs.Gaussian(0.01), prior_precision=0.5, epochs=60, progress=False)
    return bs.laplace(q, (X, y), likelihood=bs.Gaussian(0.01), structure=structure, prior_precision=0.5)


def linear() -> GaussianPosterior:
    matrix = numbers(6, 6, seed=1)
    precision = DensePrecision(matrix @ matrix.mT + torch.eye(6, dtype=torch.float64))
    return GaussianPosterior(numbers(6), precision, Record("laplace"), LinearModel(2, 2), bs.Gaussian([0.3, 0.7]))


def preferences() -> Any:
    layer = Pairwise(built(lambda: nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))))
    pairs = numbers(20, 2, 1, seed=3)
    y = (pairs[:, 1, 0] > pairs[:, 0, 0]).long()
    return bs.item_rewards(bs.laplace(layer, (pairs, y), likelihood="bradley_terry", prior_precision=1.0))


CASES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "network": (network, (3, 4, 1)),
    "two outputs": (lambda: network(2, "kfac"), (3, 2, 1)),
    "linear": (linear, (2, 3, 2)),
    "preferences": (preferences, (3, 2, 1)),
    "function space": (
        lambda: bs.function_space(network().model, (X, torch.sin(5 * X)), likelihood=bs.Gaussian(0.01)), (2, 3, 1)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_moments_are_those_of_the_posterior_in_each_batch(name: str) -> None:
    make, shape = CASES[name]
    q = make()
    model, points = bs.integrations.botorch_model(q), numbers(*shape, seed=5)
    found = model.posterior(points)
    assert found.mean.shape == (*shape[:-1], model.num_outputs)
    for batch, mean, covariance in zip(points, found.mean, found.distribution.covariance_matrix, strict=True):
        joint = q.joint_latent(batch)
        torch.testing.assert_close(mean, joint.mean)
        torch.testing.assert_close(covariance, joint.covariance)
    variances = torch.stack([q.joint_latent(batch).covariance.diagonal() for batch in points])
    torch.testing.assert_close(found.variance, variances.reshape(found.mean.shape))
    alone = model.posterior(points[0])
    torch.testing.assert_close(alone.mean, found.mean[0])
    assert not found.mean.requires_grad
    deep = model.posterior(points[None, :, :1])  # two axes of batches
    torch.testing.assert_close(deep.mean[0], model.posterior(points[:, :1]).mean)


@pytest.mark.parametrize("name", ["network", "two outputs", "linear", "preferences"])
def test_its_gradients_are_finite_differences(name: str) -> None:
    make, shape = CASES[name]
    model, points, way = bs.integrations.botorch_model(make()), numbers(*shape, seed=5), numbers(*shape, seed=6)
    leaf = points.clone().requires_grad_()
    weights = numbers(*shape[:-1], model.num_outputs, seed=7)

    def value(x: Tensor) -> Tensor:
        found = model.posterior(x)
        return (found.mean * weights).sum() + (found.distribution.covariance_matrix.sin()).sum()

    (slope,) = torch.autograd.grad(value(leaf), leaf)
    up, down = (value(points + s * way) for s in (1e-5, -1e-5))
    torch.testing.assert_close((slope * way).sum(), (up - down) / 2e-5, rtol=1e-5, atol=1e-7)


def test_outputs_are_chosen_and_noise_is_added() -> None:
    from botorch.acquisition.objective import ScalarizedPosteriorTransform

    q, points = linear(), numbers(3, 2, seed=5)
    model = bs.integrations.botorch_model(q)
    plain, noisy = model.posterior(points), model.posterior(points, observation_noise=True)
    torch.testing.assert_close(noisy.variance - plain.variance, torch.tensor([[0.3, 0.7]]).double().expand(3, 2))
    given = model.posterior(points, observation_noise=torch.full((3, 2), 0.2))
    torch.testing.assert_close(given.variance - plain.variance, torch.full((3, 2), 0.2).double())
    for wrong in ([2], [0, -3], []):
        with pytest.raises(InputError, match=r"output_indices: .* from -2 to 1, for 2 outputs, got \["):
            model.posterior(points, output_indices=wrong)
    last = model.posterior(points, output_indices=[-1])
    torch.testing.assert_close(last.mean[:, 0], plain.mean[:, 1])
    second = model.posterior(points, output_indices=[1])
    torch.testing.assert_close(second.mean[:, 0], plain.mean[:, 1])
    torch.testing.assert_close(second.distribution.covariance_matrix, q.joint_latent(points).covariance[1::2, 1::2])
    weights = torch.tensor([1.0, -2.0], dtype=torch.float64)
    summed = model.posterior(points, posterior_transform=ScalarizedPosteriorTransform(weights))
    torch.testing.assert_close(summed.mean[:, 0], plain.mean @ weights)
    c = q.joint_latent(points).covariance.reshape(3, 2, 3, 2)
    torch.testing.assert_close(summed.distribution.covariance_matrix, torch.einsum("i,aibj,j->ab", weights, c, weights))


def test_expected_improvement_is_the_closed_form_and_is_climbed() -> None:
    """E max(f − best, 0) = s (φ(z) + z Φ(z)), z = (μ − best)/s; its maximum over a grid is what the optimiser finds."""
    from botorch.acquisition import qExpectedImprovement
    from botorch.optim import optimize_acqf
    from botorch.sampling import SobolQMCNormalSampler

    q = network()
    model = bs.integrations.botorch_model(q)
    grid = torch.linspace(0, 1, 201, dtype=torch.float64)[:, None]
    joint = q.joint_latent(grid, blocks=201)
    best = float(joint.mean.max())
    acquisition = qExpectedImprovement(model, best, sampler=SobolQMCNormalSampler(torch.Size([4096]), seed=0))
    s = joint.covariance[:, 0, 0].sqrt()
    z = (joint.mean[:, 0] - best) / s
    normal = torch.distributions.Normal(0.0, 1.0)
    want = s * (normal.log_prob(z).exp() + z * normal.cdf(z))
    torch.testing.assert_close(acquisition(grid[:, None]), want, rtol=0.02, atol=0.01 * float(want.max()))
    few = qExpectedImprovement(model, best, sampler=SobolQMCNormalSampler(torch.Size([64]), seed=0))
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        point, value = optimize_acqf(few, bounds, q=1, num_restarts=2, raw_samples=16, options={"maxiter": 30})
        pair, both = optimize_acqf(few, bounds, q=2, num_restarts=2, raw_samples=16, options={"maxiter": 15})
    on_grid = few(grid[:, None])
    assert value >= 0.98 * on_grid.max()
    assert bounds[0] <= point <= bounds[1]
    assert pair.shape == (2, 1)
    assert both >= 0.98 * value  # two candidates improve at least as much as one


def test_thompson_sampling_climbs_a_drawn_function() -> None:
    from botorch.generation import MaxPosteriorSampling

    q = network()
    grid = torch.linspace(0, 1, 101, dtype=torch.float64)[:, None]
    draws = q.sample_functions(grid, 64, generator=0)[..., 0]
    best = grid[draws.argmax(1), 0]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        chosen = MaxPosteriorSampling(bs.integrations.botorch_model(q), replacement=True)(grid, num_samples=64)[:, 0]
    assert abs(float(best.mean() - chosen.mean())) < 4 * math.sqrt(2 * float(best.var() + chosen.var()) / 2 / 64) + 0.02
    x = torch.tensor([[0.4]], dtype=torch.float64, requires_grad=True)
    f = q.sample_functions(x, 1, generator=3, differentiable=True)[0, 0, 0]
    (slope,) = torch.autograd.grad(f, x)
    further = q.sample_functions(x.detach() + 1e-4 * slope.sign(), 1, generator=3)[0, 0, 0]
    assert further > f


def test_more_observations_make_another_model() -> None:
    q = bs.laplace(
        built(lambda: nn.Linear(1, 1)), (X, 2 * X), likelihood=bs.Gaussian(0.1), structure="full", prior_precision=1.0
    )
    model = bs.integrations.botorch_model(q)
    x, y = torch.tensor([[0.5], [0.55]], dtype=torch.float64), torch.tensor([[0.7], [0.6]], dtype=torch.float64)
    after = model.condition_on_observations(x, y)
    want = q.condition((x, y)).joint_latent(X)
    torch.testing.assert_close(after.posterior(X).mean, want.mean)
    torch.testing.assert_close(after.posterior(X).distribution.covariance_matrix, want.covariance)
    assert (after.posterior(x).variance < model.posterior(x).variance).all()
    with pytest.raises(UnsupportedError, match=r"X: expected observations of shape \(n, d\), got \(1, 2, 1\)"):
        model.condition_on_observations(x[None], y[None])


def test_what_is_no_gaussian_is_refused() -> None:
    q = network()
    with pytest.raises(InputTypeError, match="q: expected a posterior, got Sequential"):
        bs.integrations.botorch_model(q.model)
    draws = bs.mc_dropout(q.model, likelihood=bs.Gaussian(0.1), rate=0.1)
    for bad in (draws, dataclasses.replace(q, method="sampled"), dataclasses.replace(q, function=None)):
        with pytest.raises(UnsupportedError, match=r"q: expected a Gaussian posterior of a linearised model"):
            bs.integrations.botorch_model(bad)
    table = bs.BayesianLinearRegression().fit(X.numpy(), X[:, 0].numpy())
    with pytest.raises(UnsupportedError, match=r"got an estimator's.*reader=None"):
        bs.integrations.botorch_model(table.posterior_)
    model = bs.integrations.botorch_model(q)
    with pytest.raises(InputError, match=r"X: expected points of shape \(\*batch, q, d\), got \(1,\)"):
        model.posterior(X[0])
    with pytest.raises(InputError, match=r"blocks: expected a divisor of the 9 inputs, got 2"):
        q.joint_latent(X, blocks=2)
    with pytest.raises(UnsupportedError, match=r"observation_noise: expected False"):
        bs.integrations.botorch_model(preferences()).posterior(X, observation_noise=True)
