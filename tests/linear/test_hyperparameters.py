"""Hyperparameters of a likelihood by evidence: the gradient, and where the search ends."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from bayescope.likelihoods import Gaussian, Likelihood, MultivariateGaussian, NegativeBinomial, Ordinal, WithOffset
from bayescope.linear import LinearDensity, LinearMode, find_mode, maximise_evidence, weight_prior
from bayescope.linear.hyperparameters import LearntUncertainty, evidence_slope, learn_hyperparameters
from bayescope.models import LinearModel


def counts(outputs: int = 1, rows: int = 60) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    X = torch.randn(rows, 3, dtype=torch.float64, generator=generator)
    f = X @ torch.tensor([[0.6, 0.2], [-0.4, 0.1], [0.0, 0.5]], dtype=torch.float64)[:, :outputs] + 1.2
    return X, NegativeBinomial(0.7).sample(f, generator)


def density(likelihood: Likelihood, outputs: int = 1, weights: Tensor | None = None) -> LinearDensity:
    X, y = counts(outputs)
    model = LinearModel(3, outputs)
    return LinearDensity.of(model, likelihood, weight_prior(model, 2.0, None), X, y, weights)


def tuned(some: LinearDensity) -> LinearMode:
    return maximise_evidence(some, intercept_prior_precision=None).mode


def log_evidence(mode: LinearMode) -> float:
    return float(mode.log_joint - 0.5 * mode.precision.logdet())


@pytest.mark.parametrize("fit", [find_mode, tuned], ids=["prior given", "prior learnt"])
@pytest.mark.parametrize(
    ("likelihood", "outputs"),
    [
        (NegativeBinomial(0.4), 1),
        (NegativeBinomial([0.4, 1.5]), 2),
        (Gaussian(3.0), 1),
        (Gaussian([3.0, 2.0]), 2),
        (MultivariateGaussian([[3.0, -1.0], [-1.0, 2.0]]), 2),
    ],
    ids=lambda each: getattr(each, "name", each),
)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_slope_is_that_of_finite_differences(likelihood: Likelihood, outputs: int, weighted: bool, fit):
    weights = torch.linspace(0.5, 3.0, 60, dtype=torch.float64) if weighted else None
    here = density(likelihood, outputs, weights)
    names = tuple(likelihood.hyperparameters)
    u = likelihood.unconstrained(names)
    slope = evidence_slope(fit(here), names, u)
    for k in range(len(u)):
        step = 1e-4 * torch.eye(len(u), dtype=torch.float64)[k]
        moved = [likelihood.at_unconstrained(names, u + side * step) for side in (1.0, -1.0)]
        ends = [log_evidence(fit(here.with_likelihood(each))) for each in moved]
        assert float(slope[k]) == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=1e-5, abs=1e-5)


def test_the_answer_is_a_maximum():
    here = density(NegativeBinomial())
    learnt = learn_hyperparameters(here, tuned)
    names, mode = ("dispersion",), tuned(here.with_likelihood(learnt))
    assert float(evidence_slope(mode, names, learnt.unconstrained(names))) == pytest.approx(0.0, abs=1e-3)
    for factor in (0.8, 1.25):
        other = learnt.with_hyperparameters(dispersion=learnt.dispersion * factor)
        assert log_evidence(tuned(here.with_likelihood(other))) < log_evidence(mode)


def test_counts_without_excess_variance_have_next_to_no_dispersion():
    X, _ = counts()
    y = torch.floor(torch.exp(X[:, :1] + 1.2))  # less variance than a Poisson's
    model = LinearModel(3)
    here = LinearDensity.of(model, NegativeBinomial(), weight_prior(model, 1.0, None), X, y)
    dispersion = learn_hyperparameters(here, find_mode).dispersion
    assert isinstance(dispersion, Tensor)
    assert math.isfinite(float(dispersion))
    assert 0.0 < float(dispersion) < 1e-6


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["negative_binomial", "several", "ordinal", "offset"])
def test_the_uncertainty_is_that_of_laplace_for_weights_and_hyperparameters_together(name: str, weighted: bool):
    likelihood = {"several": NegativeBinomial([0.4, 1.5]), "ordinal": Ordinal("probit", [0.5, 1.5, 3.0])}.get(
        name, NegativeBinomial(0.4)
    )
    outputs = 2 if name == "several" else 1
    X, y = counts(outputs)
    y = y[:, 0].clamp(max=3.0).long() if name == "ordinal" else y
    if name == "offset":
        likelihood, y = WithOffset(likelihood), WithOffset.join(y, X[:, 0])
    weights = torch.linspace(0.5, 3.0, 60, dtype=torch.float64) if weighted else None
    model = LinearModel(3, outputs, bias=name != "ordinal")
    mode = find_mode(LinearDensity.of(model, likelihood, weight_prior(model, 2.0, None), X, y, weights))
    names = tuple(likelihood.hyperparameters)
    u = likelihood.unconstrained(names)

    def log_joint(point: Tensor) -> Tensor:
        some = mode.density.with_likelihood(likelihood.at_unconstrained(names, point[mode.density.dim :]))
        prior = -0.005 * some.likelihood.known("cutpoints").square().sum() if name == "ordinal" else 0.0
        return some.log_prob(point[: mode.density.dim]) + prior

    hessian = -torch.autograd.functional.hessian(log_joint, torch.cat([mode.theta, u]))
    truth = torch.linalg.inv(hessian)
    learnt, dim = LearntUncertainty.at(mode, names), mode.density.dim
    widened = torch.linalg.inv(learnt.widened(mode.precision).to_dense())
    torch.testing.assert_close(widened, truth[:dim, :dim], rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(learnt.root @ learnt.root.mT, truth[dim:, dim:], rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(learnt.moves.mT @ learnt.root @ learnt.root.mT, truth[:dim, dim:], rtol=1e-8, atol=1e-12)
