"""Gaussians projected onto weights of at least 0, against closed forms, all faces in turn, and simulations."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from bayescope.errors import UndefinedQuantityError
from bayescope.likelihoods import Gaussian
from bayescope.models import LinearModel
from bayescope.posterior import GaussianPosterior, Record, onto_cone
from bayescope.posterior.cone import projected
from bayescope.precision import DensePrecision

DOUBLE = torch.float64


def precision_of(dim: int, seed: int = 0) -> Tensor:
    root = torch.from_numpy(np.random.default_rng(seed).standard_normal((dim, dim + 2)))
    return root @ root.mT


def nearest(point: Tensor, metric: Tensor) -> Tensor:
    """The nearest point of the cone, among the minima over all faces."""
    found = []
    for free in product([True, False], repeat=len(point)):
        some = torch.tensor(free)
        v = torch.zeros_like(point)
        if any(free):
            v[some] = torch.linalg.solve(metric[some][:, some], (metric @ point)[some])
        if bool((v >= 0).all()):
            found.append(v)
    return min(found, key=lambda v: float((v - point) @ metric @ (v - point)))


@pytest.mark.parametrize("dim", [1, 2, 4])
def test_a_projection_is_the_nearest_point_among_all_faces(dim: int) -> None:
    metric = precision_of(dim, seed=dim)
    points = 2.0 * torch.from_numpy(np.random.default_rng(1).standard_normal((30, dim)))
    expected = torch.stack([nearest(point, metric) for point in points])
    torch.testing.assert_close(projected(points, metric), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mean", [-1.5, 0.0, 0.4, 3.0])
def test_of_one_weight_the_moments_are_those_of_a_rectified_gaussian(mean: float) -> None:
    sd = 0.7
    z, density = mean / sd, sd * norm.pdf(mean / sd)
    expected = mean * norm.cdf(z) + density
    square = (mean**2 + sd**2) * norm.cdf(z) + mean * density
    only = torch.zeros(1, dtype=torch.int64)
    location, precision, _ = onto_cone(
        torch.tensor([mean], dtype=DOUBLE), torch.tensor([[sd**-2]]).double(), only, only
    )
    assert float(location) == pytest.approx(expected, abs=0.003)
    assert float(precision) ** -0.5 == pytest.approx((square - expected**2) ** 0.5, abs=0.01)


def test_a_bound_that_is_far_away_changes_nothing() -> None:
    location, precision = torch.tensor([40.0, -3.0, 50.0], dtype=DOUBLE), precision_of(3)
    moved, restricted, cone = onto_cone(location, precision, torch.tensor([0, 2]), torch.arange(3))
    torch.testing.assert_close(moved, location, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(restricted, precision, rtol=1e-5, atol=1e-5)
    draws = location + torch.from_numpy(np.random.default_rng(0).standard_normal((20, 3)))
    torch.testing.assert_close(cone.forward(draws), draws, rtol=0.0, atol=1e-6)


def posterior() -> tuple[GaussianPosterior, Tensor, Tensor]:
    """Weights 0 and 2 of four are bounded, one is mostly below 0; with the Gaussian before it was projected."""
    location, precision = torch.tensor([0.3, 1.0, -0.5, -2.0], dtype=DOUBLE), precision_of(4, seed=3)
    moved, restricted, cone = onto_cone(location, precision, torch.tensor([0, 2]), torch.arange(4))
    q = GaussianPosterior(
        moved, DensePrecision(restricted), Record("test"), LinearModel(4, bias=False), Gaussian(0.5), cones=(cone,)
    )
    return q, location, precision


def test_draws_have_the_moments_of_projected_draws_of_all_weights() -> None:
    q, location, precision = posterior()
    root = torch.linalg.cholesky(torch.linalg.inv(precision))
    u = location + torch.from_numpy(np.random.default_rng(5).standard_normal((40_000, 4))) @ root.mT
    # In the metric of all weights: the bounded ones on each face in turn, the others free.
    expected, best = u.clone(), torch.full((len(u),), torch.inf, dtype=DOUBLE)
    for zeros in ([], [0], [2], [0, 2]):
        v = u.clone()
        if zeros:
            covariance = torch.linalg.inv(precision)
            v -= u[:, zeros] @ torch.linalg.solve(covariance[zeros][:, zeros], covariance[zeros])
            v[:, zeros] = 0.0
        far = ((v - u) @ precision * (v - u)).sum(1)
        better = (v[:, [0, 2]] >= 0).all(1) & (far < best)
        expected[better], best[better] = v[better], far[better]
    sd = expected.std(0)
    draws = q.sample(4000, generator=0)
    assert bool((draws[:, [0, 2]] >= 0).all())
    for mean, covariance in ((q.mean, q.covariance), (draws.mean(0), torch.cov(draws.mT))):
        assert float(((mean - expected.mean(0)) / sd).abs().max()) < 0.08
        torch.testing.assert_close(
            covariance / torch.outer(sd, sd), torch.cov(expected.mT) / torch.outer(sd, sd), rtol=0.0, atol=0.12
        )


def test_free_weights_follow_the_bounded_ones_by_their_regression() -> None:
    q, _, precision = posterior()
    draws = q.mean + torch.from_numpy(np.random.default_rng(6).standard_normal((30, 4)))
    carried, free, bounded = q.cones[0].forward(draws), [1, 3], [0, 2]
    regression = torch.linalg.solve(precision[free][:, free], precision[free][:, bounded])
    left, expected = (some[:, free] + some[:, bounded] @ regression.mT for some in (carried, draws))
    torch.testing.assert_close(left, expected)
    assert not torch.equal(carried[:, bounded], draws[:, bounded])


def test_predictions_by_draws_agree_with_those_by_moments() -> None:
    q, _, _ = posterior()
    x = np.random.default_rng(2).standard_normal((5, 4))
    linearized, sampled = q.predict(x), q.predict(x, method="sampled", samples=4000, generator=1)
    np.testing.assert_allclose(sampled.mean, linearized.mean, atol=0.1)
    np.testing.assert_allclose(sampled.epistemic, linearized.epistemic, rtol=0.15)


def test_bounded_weights_have_no_density() -> None:
    q, location, _ = posterior()
    with pytest.raises(UndefinedQuantityError, match="log_prob: expected weights with a density"):
        q.log_prob(location)
