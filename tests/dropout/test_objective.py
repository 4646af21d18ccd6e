"""Learnt rates add their divergence to the objective, in value and gradient."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from bayescope.dropout.concrete import ConcreteDropout
from bayescope.dropout.mc_dropout import LearntRate
from bayescope.dropout.network import insert
from bayescope.likelihoods import Gaussian
from bayescope.network import Weights
from bayescope.priors import Prior
from bayescope.training import NegativeLogJoint
from tests.network.networks import built, numbers

NOISE, LENGTH = 0.4, 0.7  # σ² and l²
ROWS = 6


def test_divergence_of_learnt_rates_is_the_definition() -> None:
    """½ l² E‖W z/(1−r)‖² minus the entropy of the masks, summed over all of them, in value and gradient."""
    weight = numbers(3, 2).requires_grad_()
    dropout = ConcreteDropout(nn.Dropout, 2, weight)
    with torch.no_grad():
        dropout.logit.fill_(-0.4)
    r = torch.sigmoid(dropout.logit)
    total = torch.zeros((), dtype=torch.float64)
    for kept in itertools.product((0.0, 1.0), repeat=2):
        z = torch.tensor(kept, dtype=torch.float64)
        probability = r ** (2 - sum(kept)) * (1 - r) ** sum(kept)
        total = total + probability * (0.5 * LENGTH * (weight / (1 - r) * z).square().sum() + probability.log())
    rate = LearntRate(dropout, weight, torch.full_like(weight, LENGTH).detach())
    found = rate.penalty() + 0.5 * LENGTH * weight.square().sum()
    torch.testing.assert_close(found, total, rtol=1e-12, atol=1e-12)
    wanted = torch.autograd.grad(total, [weight, dropout.logit], retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(found, [weight, dropout.logit]), wanted, rtol=1e-10, atol=1e-10)


def test_objective_adds_the_divergence_of_learnt_rates() -> None:
    module = built(lambda: nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)))
    made = insert(module, "all", lambda layer, kind: ConcreteDropout(kind, layer.in_features, layer.weight))
    module.eval()  # no masks: what is left is exact
    x, y = numbers(ROWS, 2), numbers(ROWS, 1, seed=4)
    weights = Weights.select(module, ["*.weight", "*.bias"])
    rates = [LearntRate(made[name], module.get_submodule(name).weight, torch.tensor(LENGTH)) for name in made]
    objective = NegativeLogJoint(
        module, weights, ROWS, Gaussian(NOISE), Prior(LENGTH), extra=lambda: sum(rate.penalty() for rate in rates)
    )
    objective.begin_epoch(0, 1)
    nll = float(objective.estimate(x, y[:, None])) * ROWS
    gradients = [parameter.grad.clone() * ROWS for parameter in module.parameters()]
    expected = -Gaussian(NOISE).log_prob(module(x), y).sum() + sum(rate.penalty() for rate in rates)
    expected = expected + 0.5 * LENGTH * sum(module.get_parameter(name).square().sum() for name in weights.names)
    wanted = torch.autograd.grad(expected, list(module.parameters()))
    torch.testing.assert_close(gradients, list(wanted), rtol=1e-10, atol=1e-10)
    terms = objective.finish_epoch(nll)
    assert terms["loss"] == pytest.approx(float(expected.detach()))
    assert float(objective.per_row_penalty()) * ROWS == pytest.approx(terms["penalty"])
