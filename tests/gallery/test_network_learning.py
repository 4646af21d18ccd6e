"""Training rows alone choose architectures and hyperparameters, and variational training has one end."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import nn

from bayescope.gallery import network_learning as pictures
from bayescope.gallery import networks


@pytest.fixture(scope="module")
def rows():
    return pictures.noisy_curve()


@pytest.fixture(scope="module")
def found(rows):
    return pictures.architectures(rows)


@pytest.fixture(scope="module")
def by_name(found):
    return {(each.activation, each.hidden): each for each in found}


def test_linear_is_the_marginal_gaussian(rows, by_name):
    """Without a hidden layer Laplace is exact: y ~ N(0, x xᵀ/δ + 1/δ + σ²)."""
    design = torch.cat([rows.x, torch.ones_like(rows.x)], 1)
    covariance = design @ design.T / pictures.PRIOR_PRECISION + pictures.NOISE_SD**2 * torch.eye(
        len(rows.x), dtype=torch.float64
    )
    marginal = torch.distributions.MultivariateNormal(torch.zeros(len(rows.x), dtype=torch.float64), covariance)
    assert by_name["linear", ()].log_evidence == pytest.approx(float(marginal.log_prob(rows.y[:, 0])), abs=1e-6)


def test_the_evidence_punishes_what_overfits_and_what_underfits(by_name):
    linear, tanh, wiggly = by_name["linear", ()], by_name["tanh", (8,)], by_name["sin 8x", (4, 4)]
    assert wiggly.training_nll < tanh.training_nll < linear.training_nll
    assert tanh.log_evidence > linear.log_evidence + 20
    assert tanh.log_evidence > wiggly.log_evidence + 20
    assert tanh.test_nll < min(linear.test_nll, wiggly.test_nll)


def test_rank_correlations(found):
    assert pictures.rank_correlation(found, "log_evidence") < -0.7
    assert pictures.rank_correlation(found, "training_nll") < 0.3


def test_sine_is_elementwise():
    assert torch.equal(pictures.Sine(2.0)(torch.tensor([0.0, math.pi / 4])), torch.tensor([0.0, math.pi / 2]).sin())
    assert not list(nn.Sequential(pictures.Sine(2.0)).parameters())


def test_evidence_is_drawn(readable, found):
    readable(functools.partial(pictures.draw_evidence, found))


@pytest.fixture(scope="module")
def shown():
    return pictures.problems()


@pytest.fixture
def regression(shown):
    return shown[0]


def test_the_evidence_is_raised_and_the_best_kept(regression):
    evidence = regression.learnt.trace["log_evidence"]
    assert max(evidence) > evidence[0] + 50
    assert float(regression.learnt.log_evidence()) == pytest.approx(max(evidence), abs=1e-6)


def test_the_noise_is_found(regression):
    assert regression.learnt.trace["noise_variance"][-1] == pytest.approx(networks.NOISE_SD**2, rel=0.4)


@pytest.mark.parametrize("which", [0, 1], ids=["curve", "classes"])
def test_new_rows_are_predicted_better(shown, which):
    learning = shown[which]
    assert networks.test_loss(learning.learnt, learning.rows) < networks.test_loss(learning.fixed, learning.rows) - 0.02


def test_learning_is_drawn(readable, shown):
    readable(functools.partial(pictures.draw_online, shown))


@pytest.fixture(scope="module")
def trainings():
    return pictures.trainings()


def test_all_starts_lead_to_the_same_bound(trainings):
    bounds = [float(q.elbo) for q in trainings.values()]
    assert max(bounds) - min(bounds) < 8.0


def test_laplace_s_sds_are_ahead(trainings):
    _, warm, laplace = (pictures.reached(each, -110.0) for each in trainings.values())
    assert 2 * laplace < warm


def test_the_mean_of_a_window():
    assert pictures.means([1.0, 2.0, 3.0, 4.0, 5.0, 11.0]).tolist() == pytest.approx([3.0, 5.0])


def test_training_is_drawn(readable, trainings):
    readable(functools.partial(pictures.draw_training, trainings))
