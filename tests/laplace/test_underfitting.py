"""Why networks drawn from a GGN posterior underfit and their tangents do not (Immer, Korzepa & Bauer 2021).

The GGN is the curvature of the tangent's loss. Along directions that leave the tangent's outputs on the data as they
are the posterior is as wide as the prior, and the network itself, drawn there, does not fit.
"""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import nn

from bayescope import fit_map, laplace
from bayescope.likelihoods import Gaussian
from bayescope.models import LinearizedModel
from bayescope.posterior import GaussianPosterior, PointPosterior, Record

PRIOR_PRECISION = 1.0
NOISE_SD = 0.15


def network(*widths):
    """A tanh network in float64 with weights from a seed of its own."""
    source = torch.Generator().manual_seed(0)
    layers = []
    for into, out in itertools.pairwise(widths):
        layer = nn.utils.skip_init(nn.Linear, into, out, dtype=torch.float64)
        for parameter in layer.parameters():
            nn.init.normal_(parameter, 0.0, into**-0.5, generator=source)
        layers += [layer, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def regression(rows, seed):
    source = torch.Generator().manual_seed(seed)
    x = 4 * torch.rand(rows, 1, dtype=torch.float64, generator=source) - 2
    noise = torch.randn(rows, 1, dtype=torch.float64, generator=source)
    return x, torch.sin(2 * x) + 0.3 * x + NOISE_SD * noise


def classification(rows, seed):
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 2, dtype=torch.float64, generator=source)
    return x, (x.square().sum(1) + 0.3 * torch.randn(rows, dtype=torch.float64, generator=source) > 1.4).long()


CASES = {
    "regression": (network(1, 30, 1), regression, Gaussian(NOISE_SD**2), 1.0),
    "classification": (network(2, 20, 2), classification, "categorical", 0.15),
}


@pytest.fixture(scope="module", params=CASES)
def scene(request):
    """A posterior at a mode, training rows, test rows, and by how many nats sampling must be worse."""
    start, rows, likelihood, gap = CASES[request.param]
    train, test = rows(80, 0), rows(1000, 1)
    mode = fit_map(
        copy.deepcopy(start), train, likelihood=likelihood, prior_precision=PRIOR_PRECISION, optimizer="lbfgs",
        epochs=25, progress=False,
    )  # fmt: skip
    q = laplace(mode.model, train, likelihood=likelihood, prior_precision=PRIOR_PRECISION, structure="full")
    return q, train, test, gap


def loss(q, rows, **options):
    return -float(q.predict(rows[0], **options).log_prob(rows[1]).mean())


def test_sampled_is_far_worse_than_linearized(scene):
    q, _, test, gap = scene
    sampled, linearized = loss(q, test, method="sampled", samples=200, generator=0), loss(q, test)
    assert sampled > linearized + gap
    assert linearized < loss(PointPosterior(q.mean, Record("map"), q.function, q.likelihood), test) + 0.05


def test_sampled_underfits_its_own_training_rows(scene):
    q, train, _, gap = scene
    assert loss(q, train, method="sampled", samples=200, generator=0) > loss(q, train) + gap


def test_it_is_the_tangent_that_makes_the_difference(scene):
    """The same draws of the weights: put into the tangent they fit, put into the network they do not."""
    q, (x, y), _, gap = scene
    theta = q.sample(200, generator=0)

    def average_loss(function):
        targets = q.likelihood.targets(y, function.outputs)
        return -float(q.likelihood.log_prob(function.forward(x, theta), targets).mean())

    assert average_loss(q.function) > average_loss(LinearizedModel(q.function, q.mean)) + gap


def test_close_to_the_mode_both_agree(scene):
    """A posterior a million times as narrow stays where the network is its own tangent."""
    q, _, test, _ = scene
    cold = GaussianPosterior(q.mean, q.precision.scaled(1e6), Record("laplace"), q.function, q.likelihood)
    assert loss(cold, test, method="sampled", samples=200, generator=0) == pytest.approx(loss(cold, test), abs=2e-2)
