"""The noise that makes rows most probable under the passes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from bayescope.dropout.network import DropoutPasses, best_noise, squared_residuals
from bayescope.errors import ConvergenceError, InputError
from bayescope.likelihoods import Gaussian
from bayescope.network import reading
from bayescope.training import Minibatches
from tests.dropout.networks import case, perceptron
from tests.network.networks import built, generator, numbers


@pytest.mark.parametrize("outputs", [1, 3])
def test_the_best_noise_is_stationary_and_the_largest(outputs: int) -> None:
    """At the maximum σ² is the mean square under the passes' weights given the row, as in expectation-maximisation."""
    squares = numbers(50, 40).square() * outputs
    noise, log_prob = best_noise(squares, outputs)
    weights = torch.softmax(-0.5 * squares / noise, 0)
    assert noise == pytest.approx(float((weights * squares).sum(0).mean()) / outputs, rel=1e-6)

    def loss(log_variance: float) -> float:
        variance = torch.tensor(math.exp(float(log_variance)), dtype=torch.float64)
        each = -0.5 * squares / variance - 0.5 * outputs * torch.log(2 * math.pi * variance)
        return -float((torch.logsumexp(each, 0) - math.log(50)).mean())

    best = min(np.linspace(-12.0, 4.0, 4001), key=loss)
    assert abs(math.log(noise) - best) <= 0.004
    assert log_prob == pytest.approx(-loss(math.log(noise)))


def test_one_pass_has_the_mean_square() -> None:
    squares = numbers(1, 30).square()
    assert best_noise(squares, 1)[0] == pytest.approx(float(squares.mean()))


def test_no_residuals_are_refused() -> None:
    with pytest.raises(ConvergenceError, match="expected residuals"):
        best_noise(torch.zeros(3, 5, dtype=torch.float64), 1)


def test_residuals_are_of_the_same_passes_for_all_rows() -> None:
    module = built(perceptron)
    x, y = numbers(1500, 3), numbers(1500, 2, seed=6)  # more than are read at once
    rows = Minibatches((x, y), module, Gaussian(), 100, generator())
    squares = squared_residuals(DropoutPasses(module), rows, 8, generator(3))
    f = DropoutPasses(module)(x, 8, generator(3))
    torch.testing.assert_close(squares, (f - y).square().sum(-1))


def test_no_dropout_is_refused_and_named() -> None:
    module, x = case("perceptron")
    del module[3]
    with pytest.raises(InputError, match="calls dropout in eval mode"):
        DropoutPasses(module)(x, 2, generator())
    with reading(module), pytest.raises(InputError, match="could not be run on inputs of shape"):
        DropoutPasses(module)(x[:, :2], 2, generator())
