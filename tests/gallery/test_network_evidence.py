"""The evidence orders architectures much as new rows do; the training loss does not."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import nn

from bayescope.gallery.network_evidence import (
    NOISE_SD,
    PRIOR_PRECISION,
    Sine,
    curve,
    draw_evidence,
    judged,
    rank_correlation,
)


@pytest.fixture(scope="module")
def rows():
    return curve()


@pytest.fixture(scope="module")
def found(rows):
    return judged(rows)


@pytest.fixture(scope="module")
def by_name(found):
    return {(each.activation, each.hidden): each for each in found}


def test_linear_is_the_marginal_gaussian(rows, by_name):
    """Without a hidden layer Laplace is exact: y ~ N(0, x xᵀ/δ + 1/δ + σ²)."""
    design = torch.cat([rows.x, torch.ones_like(rows.x)], 1)
    covariance = design @ design.T / PRIOR_PRECISION + NOISE_SD**2 * torch.eye(len(rows.x), dtype=torch.float64)
    marginal = torch.distributions.MultivariateNormal(torch.zeros(len(rows.x), dtype=torch.float64), covariance)
    assert by_name["linear", ()].log_evidence == pytest.approx(float(marginal.log_prob(rows.y[:, 0])), abs=1e-6)


def test_the_evidence_punishes_what_overfits_and_what_underfits(by_name):
    linear, tanh, wiggly = by_name["linear", ()], by_name["tanh", (8,)], by_name["sin 8x", (4, 4)]
    assert wiggly.training_nll < tanh.training_nll < linear.training_nll
    assert tanh.log_evidence > linear.log_evidence + 20
    assert tanh.log_evidence > wiggly.log_evidence + 20
    assert tanh.test_nll < min(linear.test_nll, wiggly.test_nll)


def test_rank_correlations(found):
    assert rank_correlation(found, "log_evidence") < -0.7
    assert rank_correlation(found, "training_nll") < 0.3


def test_sine_is_elementwise():
    assert torch.equal(Sine(2.0)(torch.tensor([0.0, math.pi / 4])), torch.tensor([0.0, math.pi / 2]).sin())
    assert not list(nn.Sequential(Sine(2.0)).parameters())


def test_drawn(readable, found):
    readable(functools.partial(draw_evidence, found))
