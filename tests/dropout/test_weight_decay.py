"""The penalty of training with dropout is the divergence of variational inference, and says what the noise is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayescope.dropout.insertion import insert
from bayescope.dropout.weight_decay import dropout_prior, noise_variance, rates_behind_dropout
from bayescope.errors import UnsupportedError
from bayescope.likelihoods import Gaussian
from bayescope.network.weights import Weights
from bayescope.precision import DensePrecision
from bayescope.priors import Prior
from bayescope.training.objective import NegativeLogJoint
from tests.dropout.networks import Functional, Overwriting
from tests.network.networks import built, numbers

RATE, NOISE, LENGTH = 0.3, 0.4, 0.7  # r, σ² and l²
ROWS = 6


def network() -> nn.Sequential:
    """2-3-1, with dropout before both layers."""
    module = built(lambda: nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)))
    assert isinstance(module, nn.Sequential)
    return module


def masks() -> Iterator[tuple[Tensor, Tensor, float]]:
    """All z of the two inputs and of the three hidden units, with their probability."""
    for kept in itertools.product((0.0, 1.0), repeat=5):
        z = torch.tensor(kept, dtype=torch.float64)
        probability = RATE ** (5 - sum(kept)) * (1 - RATE) ** sum(kept)
        yield z[:2], z[2:], probability


def variational_objective(module: nn.Sequential, x: Tensor, y: Tensor, mean: float) -> Tensor:
    """−E_q log p(y∣x, θ) − E_q log p(θ), exact over all 32 masks: minus the ELBO but for the entropy of the masks.

    θ = (M₁ diag z₁, b₁, M₂ diag z₂, b₂), as Gal and Ghahramani (2016) have it, with W = (1 − r) M.
    """
    first, second = module[0], module[2]
    prior = torch.distributions.Normal(*torch.tensor([mean, LENGTH**-0.5], dtype=torch.float64))
    total = torch.zeros((), dtype=torch.float64)
    for z1, z2, probability in masks():
        w1, w2 = first.weight / (1 - RATE) * z1, second.weight / (1 - RATE) * z2
        f = torch.tanh(x @ w1.mT + first.bias) @ w2.mT + second.bias
        log_likelihood = torch.distributions.Normal(f, torch.tensor(math.sqrt(NOISE), dtype=f.dtype)).log_prob(y).sum()
        log_prior = sum(prior.log_prob(part).sum() for part in (w1, first.bias, w2, second.bias))
        total = total - probability * (log_likelihood + log_prior)
    return total


@pytest.mark.parametrize("mean", [0.0, 0.8])
def test_gradient_of_dropout_is_that_of_the_variational_objective(mean: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gal's Algorithm 1: what minibatch training with dropout follows, on average over its masks."""
    module, x, y = network(), numbers(ROWS, 2), numbers(ROWS, 1, seed=4)
    expected = torch.autograd.grad(variational_objective(module, x, y, mean), list(module.parameters()))
    insert(module, "all", lambda _, kind: kind(RATE))
    weights = Weights.select(module, "all")
    held = dropout_prior(Prior(LENGTH, mean), weights, rates_behind_dropout(module, x))
    objective = NegativeLogJoint(module.train(), weights, ROWS, Gaussian(NOISE), held)
    average = [torch.zeros_like(parameter) for parameter in module.parameters()]
    for z1, z2, probability in masks():
        drawn = iter([z1, z2])
        monkeypatch.setattr(F, "dropout", lambda x, p, *_, drawn=drawn: x * next(drawn) / (1 - p))
        objective.estimate(x, y[:, None])
        pairs = zip(average, module.parameters(), strict=True)
        average = [total + probability * parameter.grad * ROWS for total, parameter in pairs]
    torch.testing.assert_close(average, list(expected), rtol=1e-10, atol=1e-10)


@pytest.mark.global_rng
def test_rates_are_found_behind_what_keeps_zeros_and_nothing_else() -> None:
    layers = [nn.Dropout(0.2), nn.Linear(3, 4), nn.Dropout(0.3), nn.ReLU(), nn.Linear(4, 4), nn.Dropout(0.4)]
    module = nn.Sequential(*layers, nn.Sigmoid(), nn.Linear(4, 2), nn.Linear(2, 1))
    assert rates_behind_dropout(module, torch.zeros(2, 3)) == {"1.weight": 0.2, "4.weight": 0.3}
    convolution = nn.Sequential(nn.Dropout2d(0.1), nn.Conv2d(1, 2, 3), nn.Dropout(0.2), nn.Flatten(), nn.Linear(18, 1))
    assert rates_behind_dropout(convolution, torch.zeros(2, 1, 5, 5)) == {"1.weight": 0.1, "4.weight": 0.2}
    alpha = nn.Sequential(nn.AlphaDropout(0.1), nn.Linear(3, 1))
    assert rates_behind_dropout(alpha, torch.zeros(2, 3)) == {}  # what it drops to is not 0
    assert rates_behind_dropout(built(Functional), numbers(2, 3)) == {}  # half of its input is not dropped
    assert rates_behind_dropout(built(Overwriting), numbers(2, 3)) == {"second.weight": 0.4}


@pytest.mark.global_rng
def test_a_weight_that_is_used_without_dropout_too_counts_as_that() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(F.dropout(self.linear(x), 0.2))

    assert rates_behind_dropout(Twice(), torch.zeros(2, 3)) == {}


def test_noise_is_the_formula_of_the_paper() -> None:
    """λ = (1 − r) l²/(2 N τ), solved for τ⁻¹."""
    r, tau, rows = 0.05, 7.0, 455
    weight_decay = (1 - r) * LENGTH / (2 * rows * tau)
    assert noise_variance(weight_decay, LENGTH, [r, r], rows) == pytest.approx(1 / tau)
    for rates in ([0.1, 0.2], [], [1.0]):
        with pytest.raises(UnsupportedError, match="one rate below 1"):
            noise_variance(weight_decay, LENGTH, rates, rows)


def test_what_the_penalty_cannot_be_is_refused() -> None:
    weights = Weights.select(network(), "all")
    matrix = Prior(DensePrecision(torch.eye(weights.dim, dtype=torch.float64)))
    with pytest.raises(UnsupportedError, match="got a matrix"):
        dropout_prior(matrix, weights, {})
    with pytest.raises(UnsupportedError, match="rates below 1"):
        dropout_prior(Prior(1.0), weights, {"0.weight": 1.0})
