"""Samplers for networks whose outputs are several numbers, or several parameters of one, find their posterior."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bayescope as bs

# First weights of layers are drawn globally.
pytestmark = pytest.mark.global_rng
ROWS = 60
NOISE = torch.tensor([[1.0, 1.2], [1.2, 4.0]], dtype=torch.float64)


def mean_and_log_variance(f: Tensor, y: Tensor) -> Tensor:
    error = y[..., 0] - f[..., 0]
    return -0.5 * (error.square() * (-f[..., 1]).exp() + f[..., 1] + math.log(2.0 * math.pi))


def table() -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, two numbers with correlated noise, and a count."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, 2))
    y = x @ [[1.0, 0.5], [-0.5, 2.0]] + rng.multivariate_normal([0, 0], NOISE.numpy(), ROWS)
    count = rng.poisson(np.exp(0.5 + 0.4 * x[:, :1])).astype(float)
    return torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(count)


def case(name: str) -> tuple[Any, Tensor]:
    _, y, count = table()
    match name:
        case "joint":
            return bs.Joint([bs.Gaussian(1.0), "poisson"]), torch.cat([y[:, :1], count], 1)
        case "multivariate":
            return bs.MultivariateGaussian(NOISE), y
        case _:
            return bs.likelihood(mean_and_log_variance, outputs=2), y[:, :1]


@pytest.mark.filterwarnings("ignore:(nuts|sgmcmc)", "ignore::bayescope.errors.ConvergenceWarning")
@pytest.mark.parametrize("door", ["nuts", "sgmcmc"])
@pytest.mark.parametrize("name", ["joint", "multivariate", "own"])
def test_draws_are_those_of_the_posterior(door: str, name: str) -> None:
    (x, _, _), (likelihood, y) = table(), case(name)
    torch.manual_seed(0)
    options: dict[str, Any] = {"likelihood": likelihood, "prior_precision": 1.0, "generator": 0, "progress": False}
    start = bs.fit_map(nn.Linear(2, 2).double(), (x, y), epochs=40, optimizer="lbfgs", **options).model
    laplace = bs.laplace(
        start, (x, y), likelihood=likelihood, prior_precision=1.0, structure="full", curvature="hessian"
    )
    if door == "nuts":
        q = bs.nuts(start, (x, y), draws=100, tune=150, chains=1, **options)
    else:
        q = bs.sgmcmc(start, (x, y), draws=60, burn_in=200, chains=1, **options)
    sd = laplace.precision.marginal_variance().sqrt()
    # The posterior of a log variance is skewed: its mean is up to half a standard deviation from its mode
    assert ((q.mean - laplace.mean).abs() < (1.0 if name == "own" else 0.5) * sd).all()
    np.testing.assert_allclose(q.flat.std(0) / sd, 1.0, atol=0.4)
    p = q.predict(x)
    torch.testing.assert_close(p.log_prob(y).mean(), laplace.predict(x).log_prob(y).mean(), rtol=0, atol=0.02)
    low, high = p.interval(0.9)
    assert 0.75 < ((low <= y) & (y <= high)).double().mean() < 1.0
    assert p.sample(2, generator=0).shape == (2, *y.shape)
