"""Distances to the reference, by hand."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from bayescope.comparison import measures
from bayescope.posterior import DrawsPosterior, GaussianPosterior, PointPosterior, Record
from bayescope.precision import DensePrecision, DiagonalPrecision


def gaussian(*sds):
    return GaussianPosterior(
        torch.zeros(len(sds), dtype=torch.float64),
        DiagonalPrecision(torch.tensor(sds, dtype=torch.float64) ** -2),
        Record("laplace"),
    )


POINT = PointPosterior(torch.ones(3, dtype=torch.float64), Record("map"))


def test_total_variation_by_hand():
    p = np.array([[0.2, 0.5, 0.3], [1.0, 0.0, 0.0]])
    r = np.array([[0.4, 0.4, 0.2], [0.0, 1.0, 0.0]])
    assert measures.total_variation(p, r) == pytest.approx((0.2 + 1.0) / 2)


def test_total_variation_is_the_largest_difference_of_an_events_probability():
    p, r = (stats.dirichlet.rvs(np.ones(4), size=1, random_state=seed) for seed in (0, 1))
    events = np.array([[bit >> k & 1 for k in range(4)] for bit in range(16)])
    assert measures.total_variation(p, r) == pytest.approx(np.abs(events @ (p - r)[0]).max())


def test_sd_error_is_the_worst_over_the_weights_in_both_directions():
    assert measures.sd_error(gaussian(1.0, 1.0, 1.0), gaussian(1.0, 0.8, 1.0)) == pytest.approx(0.25)
    assert measures.sd_error(gaussian(1.0, 0.4, 1.0), gaussian(1.0, 0.8, 1.1)) == pytest.approx(0.5)


def test_sd_error_is_of_marginals_and_not_of_conditionals():
    correlated = torch.tensor([[1.0, 0.9], [0.9, 1.0]], dtype=torch.float64)
    dense = GaussianPosterior(
        torch.zeros(2, dtype=torch.float64), DensePrecision(torch.linalg.inv(correlated)), Record("")
    )
    assert measures.sd_error(dense, gaussian(1.0, 1.0)) == pytest.approx(0.0, abs=1e-12)


def test_a_point_has_no_sds_to_be_wrong():
    assert measures.is_point(POINT)
    assert not measures.is_point(gaussian(1.0, 2.0, 3.0))
    assert math.isnan(measures.sd_error(POINT, gaussian(1.0, 2.0, 3.0)))
    assert math.isnan(measures.sd_error(gaussian(1.0, 2.0, 3.0), POINT))


def test_draws_have_their_sample_sd():
    draws = torch.randn(2, 500, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = abs(1.0 / float(draws.flatten().std()) - 1.0)
    assert measures.sd_error(gaussian(1.0), DrawsPosterior(draws, Record("nuts"))) == pytest.approx(expected)
