"""Each structure's matrix is what its name says, and what it drops is zero."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from bayescope.gallery.network_structures import RANK, STRUCTURES, distance, draw_structures, kept, trained


@pytest.fixture(scope="module")
def found():
    return kept()


@pytest.fixture(scope="module")
def blocks():
    """Which entries lie within a layer."""
    sizes = [sum(p.numel() for p in layer.parameters()) for layer in trained()[0] if isinstance(layer, nn.Linear)]
    layer = np.repeat(np.arange(len(sizes)), sizes)
    return layer[:, None] == layer


def test_a_column_for_each_structure(found):
    assert tuple(found) == tuple(STRUCTURES)
    assert all(np.allclose(each.covariance, each.covariance.T, atol=1e-9) for each in found.values())


def test_blocks_are_those_of_the_full_matrix(found, blocks):
    full = found["full"].curvature
    assert np.allclose(found["block"].curvature, np.where(blocks, full, 0), atol=1e-9 * np.abs(full).max())
    for name in ("block", "kfac", "ekfac"):
        assert (found[name].curvature[~blocks] == 0).all()
        assert (found[name].covariance[~blocks] == 0).all()


def test_the_diagonal_is_that_of_the_full_matrix(found):
    assert np.allclose(found["diagonal"].curvature, np.diag(np.diag(found["full"].curvature)))


def test_the_low_rank_is_the_best_of_its_rank(found):
    values = np.linalg.eigvalsh(found["full"].curvature)
    best = np.linalg.norm(values[:-RANK]) / np.linalg.norm(values)
    assert distance(found["low_rank"].curvature, found["full"].curvature) == pytest.approx(best, rel=1e-3)


def test_corrected_factors_are_closer_than_factors(found):
    block = found["block"].curvature
    assert distance(found["ekfac"].curvature, block) < distance(found["kfac"].curvature, block)


def test_drawn(readable):
    readable(draw_structures)
