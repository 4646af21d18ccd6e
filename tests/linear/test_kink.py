"""Regression with Laplace noise, whose log density has a kink: each inference beside the integral over a plane."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from bayescope.errors import UnsupportedError
from bayescope.likelihoods import LaplaceNoise, WithOffset
from bayescope.linear import (
    LinearDensity,
    expectation_propagation,
    fixed_point,
    metropolis,
    nuts,
    variational,
    weight_prior,
)
from bayescope.linear.density import OutputCovariance
from bayescope.linear.hyperparameters import expected_slope
from bayescope.linear.sites import evidence_slope
from bayescope.models import LinearModel
from bayescope.posterior import GaussianPosterior

ROWS = 40
FIVE = torch.tensor([1.0, 0.3, 1.0, 2.5, 1.7], dtype=torch.float64)


def density(
    scale: float | str = 0.5, *, weighted: bool = False, rows: int = ROWS, precision: float = 0.8
) -> LinearDensity:
    generator = torch.Generator().manual_seed(5)
    X = torch.randn(rows, 1, dtype=torch.float64, generator=generator)
    y = LaplaceNoise(0.5).sample(0.7 * X - 0.4, generator)
    model = LinearModel(1)
    weights = FIVE.repeat(rows // 5) if weighted else None
    return LinearDensity.of(model, LaplaceNoise(scale), weight_prior(model, precision, None), X, y, weights)


def moments(some: LinearDensity, size: int = 801) -> tuple[Tensor, Tensor, Tensor]:
    """The posterior's mean and sds, and the log evidence, by a sum over a plane."""
    near = variational(some)
    sd = near.covariance.diagonal().sqrt()
    steps = torch.linspace(-9.0, 9.0, size, dtype=torch.float64)
    theta = near.mean + sd * torch.cartesian_prod(steps, steps)
    log_joint = torch.cat([some.log_prob(part) for part in theta.split(20_000)])
    weights = torch.softmax(log_joint, 0)
    mean = weights @ theta
    cell = sd.log().sum() + 2.0 * (steps[1] - steps[0]).log()
    return mean, (weights @ (theta - mean).square()).sqrt(), log_joint.logsumexp(0) + cell


@pytest.mark.parametrize("weighted", [False, True])
def test_moments_and_evidence_are_near_those_of_the_integral(weighted: bool) -> None:
    some = density(weighted=weighted)
    mean, sd, log_evidence = moments(some)
    propagated, bound = expectation_propagation(some), variational(some)
    assert ((propagated.mean - mean).abs() < 0.03 * sd).all()
    assert ((propagated.covariance.diagonal().sqrt() / sd - 1.0).abs() < 0.03).all()
    assert float(propagated.log_evidence()) == pytest.approx(float(log_evidence), abs=0.02)
    assert ((bound.mean - mean).abs() < 0.1 * sd).all()
    assert ((bound.covariance.diagonal().sqrt() / sd - 1.0).abs() < 0.1).all()
    assert float(log_evidence) - 0.1 < float(bound.elbo) < float(log_evidence)


@pytest.mark.parametrize(
    "sample",
    [partial(nuts, draws=1500, chains=2), partial(metropolis, draws=2000, chains=8)],
    ids=["nuts", "metropolis"],
)
def test_draws_have_the_moments_of_the_integral(sample: Callable[..., Any]) -> None:
    some = density()
    mean, sd, _ = moments(some)
    q = sample(some, generator=0)
    assert ((q.mean - mean).abs() / sd * q.effective_draws.sqrt()).max() < 4.5
    assert ((q.covariance.diagonal().sqrt() / sd).log().abs() < 0.1).all()


@pytest.mark.parametrize("weighted", [False, True])
def test_the_slopes_in_the_scale_are_those_of_finite_differences(weighted: bool) -> None:
    def at(u: Tensor) -> LinearDensity:
        some = density(weighted=weighted)
        return some.with_likelihood(some.likelihood.at_unconstrained(("scale",), u))

    u, step = density().likelihood.unconstrained(("scale",)), 1e-4
    ahead, behind = at(u + step), at(u - step)
    slope = evidence_slope(fixed_point(at(u)), ("scale",), u)
    difference = fixed_point(ahead).log_evidence - fixed_point(behind).log_evidence
    assert float(slope) == pytest.approx(float(difference) / (2 * step), abs=1e-5)
    q = variational(at(u))
    _, slope = expected_slope(at(u), q.mean, OutputCovariance.under(at(u).model, q.precision), ("scale",), u)
    difference = variational(ahead).elbo - variational(behind).elbo
    assert float(slope) == pytest.approx(float(difference) / (2 * step), abs=1e-5)


def evidence_of(posterior: GaussianPosterior) -> float:
    record = posterior.record
    return float(posterior.elbo) if record.evidence is None else float(record.evidence)


@pytest.mark.parametrize("infer", [expectation_propagation, variational], ids=lambda each: each.__name__)
def test_the_learnt_scale_and_precision_are_a_maximum(infer: Callable[..., GaussianPosterior]) -> None:
    learnt = infer(density("evidence"), tuned=torch.tensor([True, False]))
    assert learnt.likelihood is not None
    scale, precision = float(learnt.likelihood.known("scale")), learnt.trace["prior_precision"][-1]
    best = evidence_of(infer(density(scale, precision=precision)))
    assert best == pytest.approx(evidence_of(learnt), abs=1e-8)
    for factor in (0.95, 1.05):
        assert evidence_of(infer(density(scale * factor, precision=precision))) < best
        assert evidence_of(infer(density(scale, precision=precision * factor))) < best
    many = infer(density("evidence", rows=3000))
    assert float(many.likelihood.known("scale")) == pytest.approx(0.5, abs=4 * 0.5 / 3000**0.5)  # type: ignore[union-attr]


def test_a_row_that_counts_twice_is_two_rows() -> None:
    some = density()
    twice = LinearDensity.of(
        some.model,
        some.likelihood,
        some.prior,
        some.features,
        some.targets,
        torch.full((ROWS,), 2.0, dtype=torch.float64),
    )
    both = LinearDensity.of(
        some.model, some.likelihood, some.prior, some.features.repeat(2, 1), some.targets.repeat(2, 1)
    )
    for infer in (expectation_propagation, variational):
        one, other = infer(twice), infer(both)
        torch.testing.assert_close(one.mean, other.mean, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(one.covariance, other.covariance, rtol=1e-6, atol=1e-8)
        assert evidence_of(one) == pytest.approx(evidence_of(other), abs=1e-6)


def test_an_offset_moves_the_outcome() -> None:
    some = density("evidence")
    away = torch.linspace(-5.0, 5.0, ROWS, dtype=torch.float64)
    y = WithOffset.join(some.targets + away[:, None], away)
    moved = LinearDensity.of(some.model, WithOffset(some.likelihood), some.prior, some.features, y)
    for infer in (expectation_propagation, variational):
        one, other = infer(some), infer(moved)
        torch.testing.assert_close(one.mean, other.mean, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(one.covariance, other.covariance, rtol=1e-4, atol=1e-8)


def test_censored_rows_have_the_bound_and_draws_and_no_sites() -> None:
    some = density()
    time, inf = some.targets, torch.full((ROWS, 1), torch.inf, dtype=torch.float64)
    y = torch.cat([time, torch.where(time > 0.2, inf, time), -inf, inf], 1)
    censored = LinearDensity.of(some.model, some.likelihood, some.prior, some.features, y)
    mean, sd, log_evidence = moments(censored, 201)
    bound = variational(censored)
    assert ((bound.mean - mean).abs() < 0.15 * sd).all()
    assert ((bound.covariance.diagonal().sqrt() / sd - 1.0).abs() < 0.15).all()
    assert float(log_evidence) - 0.2 < float(bound.elbo) < float(log_evidence)
    draws = metropolis(censored, draws=2000, generator=0)
    assert ((draws.mean - mean).abs() / sd * draws.effective_draws.sqrt()).max() < 4.5
    with pytest.raises(UnsupportedError, match="without censored rows, got laplace_noise"):
        expectation_propagation(censored)


@pytest.mark.parametrize("scale", [1e-3, 0.03, 30.0, 3e3])
def test_a_scale_that_is_far_off_is_no_obstacle(scale: float) -> None:
    propagated, bound = expectation_propagation(density(scale)), variational(density(scale))
    sd = propagated.covariance.diagonal().sqrt()
    assert ((propagated.mean - bound.mean).abs() < 0.3 * sd).all()


def test_several_outputs_have_no_sites() -> None:
    model = LinearModel(1, 2)
    X = torch.linspace(-1.0, 1.0, 10, dtype=torch.float64)[:, None]
    some = LinearDensity.of(model, LaplaceNoise(0.5), weight_prior(model, 1.0, None), X, X.repeat(1, 2))
    with pytest.raises(UnsupportedError, match="got laplace_noise with 2"):
        expectation_propagation(some)
    one = LinearDensity.of(LinearModel(1), LaplaceNoise(0.5), weight_prior(LinearModel(1), 1.0, None), X, X)
    torch.testing.assert_close(variational(some).mean[0], variational(one).mean[0], rtol=1e-6, atol=1e-8)
