"""Latents of rows with missing values have the moments of the law of total covariance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bayescope.likelihoods import Categorical
from bayescope.models import LinearModel
from bayescope.posterior import (
    DrawsPosterior,
    GaussianPosterior,
    InputRows,
    Missing,
    MixturePosterior,
    PointPosterior,
    Posterior,
    Record,
    Spread,
)
from bayescope.precision import DensePrecision

COLUMNS, OUTPUTS = 4, 3
MODEL = LinearModel(COLUMNS, OUTPUTS)


def gaussian(seed: int) -> GaussianPosterior:
    source = torch.Generator().manual_seed(seed)
    root = torch.randn(MODEL.dim, 2 * MODEL.dim, generator=source, dtype=torch.float64)
    mean = torch.randn(MODEL.dim, generator=source, dtype=torch.float64)
    return GaussianPosterior(mean, DensePrecision(root @ root.mT), Record("test"), MODEL, Categorical())


def posteriors() -> dict[str, Posterior]:
    one, two = gaussian(1), gaussian(2)
    half = torch.tensor([0.5, 0.5], dtype=torch.float64).log()
    return {
        "gaussian": one,
        "draws": DrawsPosterior(one.sample(2048, generator=0)[None], Record("test"), MODEL, Categorical()),
        "point": PointPosterior(one.mean, Record("test"), MODEL, Categorical()),
        "mixture": MixturePosterior(half, [one, two], Record("test"), MODEL, Categorical()),
    }


def spread() -> np.ndarray:
    root = np.random.default_rng(0).standard_normal((COLUMNS, COLUMNS))
    return root @ root.T


def rows(*, linear: bool = True, diagonal: bool = False) -> tuple[InputRows, np.ndarray]:
    numbers = np.random.default_rng(1).standard_normal((5, COLUMNS))
    lacking = np.zeros((5, COLUMNS), dtype=bool)
    lacking[1, 2] = lacking[3, 0] = lacking[3, 2] = lacking[4] = True
    at = np.flatnonzero(lacking.any(1))
    told = np.diag(spread()) if diagonal else spread()
    names = tuple("abcd")
    changes = Spread(np.arange(COLUMNS), told, linear)
    missing = Missing(at, lacking[at], names, numbers[at], lambda x: x, changes)
    return InputRows(numbers, missing), lacking


def wanted(theta: Tensor, lacking: np.ndarray, told: np.ndarray) -> np.ndarray:
    """E[W M Wᵀ] over weights θ, shape (S, P), M being the second moments of what each row lacks."""
    weights = MODEL.unflat(theta)[0].numpy()
    masked = told * lacking[:, :, None] * lacking[:, None, :]
    return np.einsum("sci,nij,sdj->ncd", weights, masked, weights) / len(weights)


@pytest.mark.parametrize("form", ["gaussian", "draws", "point", "mixture"])
@pytest.mark.parametrize("linear", [True, False])
def test_the_covariance_of_what_is_missing_is_added(form: str, linear: bool):
    q, (known, lacking) = posteriors()[form], rows(linear=linear)
    with_gaps, without = q.predict(known), q.predict(InputRows(known.values))
    theta = q.flat if isinstance(q, DrawsPosterior) else q.sample(50_000, generator=0)
    added = with_gaps.latent_cov - without.latent_cov
    # The draws of the reference, and of two of the forms, are the only errors.
    tolerance = 0.15 if form in ("draws", "point") else 0.04
    scale = np.abs(wanted(theta, lacking, spread())).max((1, 2), keepdims=True) + 1e-12
    assert np.abs((added - wanted(theta, lacking, spread())) / scale).max() < tolerance
    np.testing.assert_allclose(with_gaps.latent_mean, without.latent_mean, atol=0.15 if tolerance > 0.1 else 1e-9)
    np.testing.assert_allclose(with_gaps.latent_mean[[0, 2]], without.latent_mean[[0, 2]], rtol=1e-12)


@pytest.mark.parametrize("integral", ["monte_carlo", "mackay"])
def test_every_integral_takes_part(integral: str):
    known, _ = rows()
    q = gaussian(1)
    probs = q.predict(known, integral=integral, generator=0).probs
    assert np.isfinite(probs).all()
    plain = q.predict(InputRows(known.values), integral=integral, generator=0).probs
    np.testing.assert_array_equal(probs[[0, 2]], plain[[0, 2]])
    assert np.abs(probs - plain)[[1, 3, 4]].max() > 0.01


def test_a_block_of_rows_has_the_answers_of_all():
    known, _ = rows()
    q: Any = gaussian(1)
    whole = q.predict(known).latent_cov
    parts = np.concatenate([q.predict(known[start : start + 2]).latent_cov for start in (0, 2, 4)])
    np.testing.assert_allclose(parts, whole, rtol=1e-12)
    np.testing.assert_array_equal(known.imputed, [0, 1, 0, 2, 4])
    assert known[0:1].missing is None
    assert "7 values in 3 rows, by column a (2), b (1), c (3), d (1)" in q.predict(known).summary()


def test_variances_alone_are_taken_as_independent():
    (known, lacking), q = rows(diagonal=True), gaussian(1)
    added = q.predict(known).latent_cov - q.predict(InputRows(known.values)).latent_cov
    expected = wanted(q.sample(50_000, generator=0), lacking, np.diag(np.diag(spread())))
    np.testing.assert_allclose(added, expected, atol=0.04 * np.abs(expected).max())


def standard_nodes(directions: int, linear: bool) -> np.ndarray:
    """The changes of independent numbers of variance 1, all of which are missing."""
    every = np.arange(directions)
    return Spread(every, np.ones(directions), linear)(np.ones(directions, dtype=bool))


@pytest.mark.parametrize("linear", [True, False])
@pytest.mark.parametrize("directions", [1, 2, 7, 40, 128])
def test_nodes_have_the_moments_of_a_standard_normal(directions: int, linear: bool):
    nodes = standard_nodes(directions, linear)
    np.testing.assert_allclose(nodes.mean(0), 0.0, atol=1e-12)
    np.testing.assert_allclose(nodes.T @ nodes / len(nodes), np.eye(directions), atol=1e-9)


def test_very_many_directions_have_as_many_nodes_as_many():
    nodes = standard_nodes(1000, True)
    assert nodes.shape == (2 * 128, 1000)
    along = nodes @ np.random.default_rng(0).standard_normal(1000)
    assert along.var() == pytest.approx(1000, rel=0.3)


def test_rows_are_counted_in_any_form_of_inputs():
    table = torch.zeros(7, 2)
    for values in (table, table.numpy(), (table, table), {"a": table, "b": table, "c": table}, [1.0, 2.0] * 3 + [3.0]):
        assert len(InputRows(values)) == 7
