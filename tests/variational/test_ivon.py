"""IVON's steps are those of its algorithm, and lead to mean field."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from bayescope.errors import UnsupportedError
from bayescope.network import Weights
from bayescope.precision import DensePrecision
from bayescope.priors import Prior
from bayescope.variational import variational
from bayescope.variational.families import MeanField
from bayescope.variational.ivon import (
    CURVATURE_DECAY,
    MOMENTUM,
    CurvatureScale,
    Ivon,
    IvonGradients,
    require_independent,
)
from tests.training.toys import line, perceptron, seeded
from tests.variational.toys import GAUSSIAN, network, regression, seeded_draws

SHARE = 1.0 / 12.0
PRIOR = Prior([1.0, 2.0, 3.0], [0.1, 0.0, -0.2])


def test_three_steps_are_those_of_the_algorithm() -> None:
    problem, module = regression(), network()
    weights = Weights.select(module, "all")
    scale = CurvatureScale(weights, weights.parameters(module), torch.tensor([0.5, 1.0, 2.0]).double(), PRIOR, SHARE)
    family, lr, samples = MeanField(weights, scale), 0.2, 2
    gradients = IvonGradients(module, weights, family, scale, samples)
    gradients.begin_epoch(PRIOR, SHARE)
    optimizer = Ivon(list(module.parameters()), scale, lr)

    def loss(f: torch.Tensor) -> torch.Tensor:
        return -GAUSSIAN.log_prob(f, problem.y).sum() / (f.shape[0] * f.shape[1])

    m = weights.flat(module).clone()
    h, g = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    delta, centre = SHARE * PRIOR.diagonal(3), PRIOR.centre(3)
    for step in (1, 2, 3):
        sigma = (SHARE / (h + delta)).sqrt()
        torch.testing.assert_close(family.variance(), sigma.square())
        with seeded_draws(step):
            noise = family.noise(samples)
        with seeded_draws(step):
            optimizer.step(partial(gradients.accumulate, problem.x, loss))
        # ∇ of the mean of ½ (y − Xθ)²/noise over the rows.
        slope = -(problem.y[:, 0] - (m + noise) @ problem.design.mT) @ problem.design / 0.09 / 12
        g_hat, h_hat = slope.mean(0), (slope * noise / sigma.square()).mean(0)
        g = MOMENTUM * g + (1 - MOMENTUM) * g_hat
        bend = 0.5 * (1 - CURVATURE_DECAY) ** 2 * (h - h_hat).square() / (h + delta)
        h = CURVATURE_DECAY * h + (1 - CURVATURE_DECAY) * h_hat + bend
        m = m - lr * (g / (1 - MOMENTUM**step) + delta * (m - centre)) / (h + delta)
        torch.testing.assert_close(weights.flat(module), m)
        torch.testing.assert_close(torch.cat([part.detach().flatten() for part in scale.curvature]), h)


def test_curvatures_stay_positive_whatever_is_drawn() -> None:
    """h + δ ← (h + δ) ((1 − x)² + 1)/2 + … > 0 with x = (1−β₂)(h − ĥ)/(h + δ): however negative ĥ is."""
    module = network()
    weights = Weights.select(module, "all")
    scale = CurvatureScale(weights, weights.parameters(module), torch.full((3,), 0.5).double(), PRIOR, SHARE)
    optimizer = Ivon(list(module.parameters()), scale, 0.1)
    for slope in (-1e3, -1e5, -1e7, 0.0):
        for mean, curvature in zip(module.parameters(), scale.curvature, strict=True):
            mean.grad, curvature.grad = torch.zeros_like(mean), torch.full_like(curvature, slope)
        optimizer.step()
        assert all(bool((sd > 0).all()) and bool(sd.isfinite().all()) for sd in scale.sds().values())


def test_curvatures_stay_above_a_prior_that_falls() -> None:
    """h may be negative down to −δ: where a learnt prior lowers δ, q keeps its precision in units of the prior's."""
    module = network()
    weights = Weights.select(module, "all")
    scale = CurvatureScale(weights, weights.parameters(module), torch.zeros(3).double(), PRIOR, SHARE)
    with torch.no_grad():
        scale.curvature[0].copy_(torch.tensor([[-0.9, 0.5]], dtype=torch.float64) * SHARE)
        scale.curvature[1].copy_(torch.tensor([-1.5], dtype=torch.float64) * SHARE)
    scale.move(Prior([0.01, 0.01, 6.0]), SHARE)
    h = torch.cat([part.detach().flatten() for part in scale.curvature]) / SHARE
    torch.testing.assert_close(h, torch.tensor([-0.009, 0.5, -1.5], dtype=torch.float64))
    sds = torch.cat([sd.flatten() for sd in scale.sds().values()])
    torch.testing.assert_close(sds, torch.tensor([0.001, 0.51, 4.5], dtype=torch.float64).rsqrt())


def test_only_random_weights_with_independent_priors() -> None:
    module = perceptron()
    with pytest.raises(UnsupportedError, match=r"'ivon' steps on random weights alone, got 0\.weight, 0\.bias"):
        require_independent(module, Weights.select(module, "2"))
    module[0].requires_grad_(False)
    require_independent(module, Weights.select(module, "2"))
    line = network()
    weights = Weights.select(line, "all")
    with pytest.raises(UnsupportedError, match="'ivon' expects a prior of independent weights"):
        CurvatureScale(
            weights, weights.parameters(line), torch.ones(3).double(), Prior(DensePrecision(torch.eye(3))), SHARE
        )


def test_weights_that_the_data_say_nothing_of_and_more_data() -> None:
    """A dead unit's Laplace sd is its prior's; natural gradients go on from a posterior as from any other prior."""
    x, y = line(20)
    module = seeded(0, (nn.Linear, (2, 4)), (nn.ReLU, ()), (nn.Linear, (4, 1))).double()
    with torch.no_grad():
        module[0].bias[1] = -100.0
    given: dict[str, Any] = {"likelihood": GAUSSIAN, "prior_precision": 3.0, "generator": 0, "progress": False}
    q = variational(module, (x, y), optimizer="ivon", initial_sd="laplace", epochs=0, **given)
    dead = q.function.weights.unflat(q.precision.diagonal())["0.weight"][1]
    torch.testing.assert_close(dead, torch.full((2,), 3.0, dtype=torch.float64))
    first = variational(network(), (x, y), optimizer="ivon", epochs=5, **given)
    second = first.condition((x, y))
    assert second.precision.diagonal().sum() > first.precision.diagonal().sum()
