"""The penalty of training with dropout is the divergence of variational inference, and says what the noise is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayescope.dropout.network import insert
from bayescope.dropout.weight_decay import dropout_prior, noise_variance, rates_behind_dropout
from bayescope.errors import UnsupportedError
from bayescope.likelihoods import Gaussian
from bayescope.network import Weights
from bayescope.precision import DensePrecision
from bayescope.priors import Prior
from bayescope.training import NegativeLogJoint
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


class Masked(nn.Dropout):
    """Dropout whose masks are given; it draws them where none is left."""

    def __init__(self, masks: list[Tensor]) -> None:
        super().__init__(RATE)
        self.masks = masks

    def forward(self, x: Tensor) -> Tensor:
        return x * self.masks.pop(0) / (1 - self.p) if self.masks else super().forward(x)


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
def test_gradient_of_dropout_is_that_of_the_variational_objective(mean: float) -> None:
    """Gal's Algorithm 1: what minibatch training with dropout follows, on average over its masks."""
    module, x, y = network(), numbers(ROWS, 2), numbers(ROWS, 1, seed=4)
    expected = torch.autograd.grad(variational_objective(module, x, y, mean), list(module.parameters()))
    drawn: list[Tensor] = []
    insert(module, "all", lambda *_: Masked(drawn))
    weights = Weights.select(module, "all")
    held = dropout_prior(Prior(LENGTH, mean), weights, rates_behind_dropout(module, x))
    objective = NegativeLogJoint(module.train(), weights, ROWS, Gaussian(NOISE), held)
    average = [torch.zeros_like(parameter) for parameter in module.parameters()]
    for z1, z2, probability in masks():
        drawn[:] = z1, z2
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


ZERO_AT_ZERO = [
    nn.ELU(), nn.SELU(), nn.CELU(), nn.ReLU6(), nn.PReLU(), nn.LeakyReLU(), nn.Mish(), nn.Hardswish(), nn.Softsign(),
    nn.Tanhshrink(), nn.Hardtanh(), nn.Hardshrink(), nn.Softshrink(), nn.GELU(), nn.SiLU(), nn.ReLU(inplace=True),
    nn.Identity(), nn.Unflatten(1, (5, 2)),
]  # fmt: skip
NOT_ZERO_AT_ZERO = [
    nn.Sigmoid(), nn.Softplus(), nn.LayerNorm(10), nn.BatchNorm1d(10), nn.Hardsigmoid(), nn.Softmax(1), nn.Softmin(1),
    nn.AvgPool1d(2), nn.MaxPool1d(2), nn.LPPool1d(2, 2),
]  # fmt: skip


@pytest.mark.global_rng
@pytest.mark.parametrize("layer", [*ZERO_AT_ZERO, *NOT_ZERO_AT_ZERO], ids=lambda layer: type(layer).__name__)
def test_what_keeps_zeros_is_seen_by_trying_it(layer: nn.Module) -> None:
    """Of a norm whose bias is still zero, and of a pool that would need two zeros, no rate is claimed."""
    width = 2 if isinstance(layer, nn.Unflatten) else 10 if layer not in NOT_ZERO_AT_ZERO[-3:] else 5
    module = nn.Sequential(nn.Dropout(0.3), layer, nn.Linear(width, 1)).eval()
    expected = {"2.weight": 0.3} if layer in ZERO_AT_ZERO else {}
    assert rates_behind_dropout(module, numbers(3, 10).float()) == expected


@pytest.mark.global_rng
def test_channels_stay_dropped_in_pools_and_units_do_not() -> None:
    x = numbers(3, 2, 4, 4).float()
    for pool in (nn.MaxPool2d(2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(2), nn.ZeroPad2d(1)):
        channels = nn.Sequential(nn.Dropout2d(0.5), pool, nn.Conv2d(2, 1, 2))
        assert rates_behind_dropout(channels, x) == {"2.weight": 0.5}
        units = nn.Sequential(nn.Dropout(0.5), pool, nn.Conv2d(2, 1, 2))
        assert rates_behind_dropout(units, x) == ({"2.weight": 0.5} if isinstance(pool, nn.ZeroPad2d) else {})


@pytest.mark.global_rng
def test_dropouts_in_a_row_keep_what_both_keep() -> None:
    module = nn.Sequential(nn.Dropout(0.3), nn.ReLU(), nn.Dropout(0.4), nn.Linear(3, 1))
    assert rates_behind_dropout(module, numbers(2, 3).float()) == {"3.weight": pytest.approx(0.58)}
    mixed = nn.Sequential(nn.Dropout2d(0.3), nn.Dropout(0.4), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 1))
    assert rates_behind_dropout(mixed, numbers(2, 2, 4, 4).float()) == {}  # a window is zero with its channel, or more


class Called(nn.Module):
    """A product of what a function makes of a row."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function, self.linear = function, nn.Linear(4, 4)
        self.shift = nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def while_training(net: Any, x: Tensor) -> Tensor:
    return net.linear(F.dropout(x, 0.5) if net.training else x)


FUNCTIONS: dict[str, tuple[Any, float]] = {
    "in train mode alone": (while_training, 0.5),
    "by keyword": (lambda net, x: net.linear(input=F.dropout(x, 0.5)), 0.5),
    "of two the least": (lambda net, x: net.linear(torch.cat([F.dropout(x[:, :2]), F.dropout(x[:, 2:], 0.2)], 1)), 0.2),
    "of a part": (lambda net, x: net.linear(torch.cat([F.dropout(x[:, :2], 0.5), x[:, 2:]], 1)), 0.0),
    "a gate": (lambda net, x: net.linear(F.dropout(x, 0.5) * torch.sigmoid(x)), 0.5),
    "a gate of two": (lambda net, x: net.linear(F.dropout(x, 0.5) * F.dropout(x, 0.5)), 0.0),
    "a shift at zero": (lambda net, x: net.linear(F.dropout(x, 0.5) + net.shift), 0.0),
    "a shift at zero in place": (lambda net, x: net.linear(F.dropout(x, 0.5).add_(net.shift)), 0.0),
    "a residual": (lambda net, x: net.linear(x + F.dropout(x, 0.5)), 0.0),
    "written over": (lambda net, x: net.linear(overwritten(F.dropout(x, 0.5))), 0.0),
    "clamped above": (lambda net, x: net.linear(F.dropout(x, 0.5).clamp(max=0.5)), 0.5),
    "clamped away from zero": (lambda net, x: net.linear(F.dropout(x, 0.5).clamp(min=0.5)), 0.0),
    "used otherwise too": (lambda net, x: net.linear(F.dropout(x, 0.5)) + net.linear.weight.sum(), 0.0),
    "off": (lambda net, x: net.linear(F.dropout(x, 0.5, training=False)), 0.0),
}  # fmt: skip


def overwritten(x: Tensor) -> Tensor:
    x[:, 0] = 1.0
    return x


@pytest.mark.global_rng
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_rate_is_claimed_where_it_holds_and_nowhere_else(name: str) -> None:
    function, rate = FUNCTIONS[name]
    expected = {"linear.weight": rate} if rate else {}
    assert rates_behind_dropout(Called(function), numbers(3, 4).float()) == expected


@pytest.mark.global_rng
@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_attention_is_behind_the_dropout_of_its_inputs(rate: float) -> None:
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, dropout=rate, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            hidden = F.dropout(x, 0.5, training=self.training)
            return self.attention(hidden, hidden, hidden)[0].mean(1)

    assert rates_behind_dropout(Attending(), numbers(3, 5, 8).float()) == {"attention.in_proj_weight": 0.5}


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
