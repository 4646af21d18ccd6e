"""min KL(q‖p) seeks a mode, min KL(p‖q) covers both."""

from __future__ import annotations

import pytest
import torch

from bayescope.gallery.divergences import ONE, TWO, draw_directions

BOTH = pytest.mark.parametrize("directions", [ONE, TWO], ids=["one dimension", "two dimensions"])


@BOTH
def test_mode_seeking_settles_in_the_mode_where_it_starts(directions):
    for q, part in zip(directions.seeking, directions.p.components, strict=True):
        spread = part.covariance.diagonal().sqrt()
        assert ((q.mean - part.mean).abs() < 0.35 * spread).all()
        assert ((q.covariance.diagonal().sqrt() / spread - 1).abs() < 0.25).all()


@BOTH
def test_mass_covering_has_the_moments_of_p(directions):
    draws = directions.p.sample(200_000, generator=0)
    torch.testing.assert_close(directions.covering.mean, draws.mean(0), atol=0.03, rtol=0)
    torch.testing.assert_close(directions.covering.covariance, torch.atleast_2d(draws.mT.cov()), atol=0.06, rtol=0)


@BOTH
def test_each_optimum_wins_in_its_own_direction(directions):
    covering = directions.divergences(directions.covering)
    seeking = [directions.divergences(q) for q in directions.seeking]
    assert min(to_p for to_p, _ in seeking) < covering[0]
    assert all(from_p > covering[1] for _, from_p in seeking)


@BOTH
def test_the_density_that_is_fitted_is_the_one_that_is_drawn(directions):
    points = directions.p.sample(50, generator=1)
    torch.testing.assert_close(directions.log_p(points), directions.p.log_prob(points))


def test_drawn(readable):
    readable(draw_directions)
