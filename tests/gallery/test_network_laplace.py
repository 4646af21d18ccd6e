"""Laplace of a network: unsure away from the data, right by its tangent, and what each structure keeps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bayescope.gallery import network_laplace as pictures
from bayescope.gallery import networks


@pytest.fixture(scope="module")
def banana():
    rows = networks.banana()
    q = pictures.fit_banana(rows)
    return rows, q, pictures.banana_maps(q, size=24)


def test_both_variances_make_up_a_labels(banana):
    _, _, found = banana
    assert np.allclose(found["aleatoric"] + found["epistemic"], found["mean"] * (1 - found["mean"]), atol=1e-7)


def test_the_average_is_never_surer_than_the_mode(banana):
    _, _, found = banana
    assert (np.abs(found["mean"] - 0.5) <= np.abs(found["point"] - 0.5) + 1e-6).all()


def test_epistemic_variance_is_away_from_the_data(banana):
    rows, _, found = banana
    at = pictures.plane(24)
    nearest = (at[:, None] - rows.x).square().sum(-1).sqrt().amin(1).reshape(24, 24).numpy()
    assert found["epistemic"][nearest > 2].mean() > 4 * found["epistemic"][nearest < 0.5].mean()
    assert found["aleatoric"][nearest < 0.5].mean() > 2 * found["aleatoric"][nearest > 2].mean()


def test_averaging_predicts_new_rows_better(banana):
    rows, q, _ = banana
    assert networks.test_loss(q, rows) < networks.test_loss(networks.at_mode(q), rows)


@pytest.fixture(scope="module")
def gap():
    rows = networks.gap()
    return pictures.fit_gap(rows), rows


def test_drawn_networks_lose_what_the_tangent_keeps(gap):
    found = pictures.losses(*gap)
    assert found.sampled > found.linearized + 2.0
    assert found.linearized < found.point + 0.02


def test_both_ways_begin_at_the_mode_and_part(gap):
    tangent, network = pictures.along_draws(*gap, torch.linspace(0, 1, 5, dtype=torch.float64))
    assert np.allclose(tangent[:, 0], network[:, 0], atol=1e-10)
    assert np.median(network[:, -1]) > 50
    # On the tangent a draw costs ½ γ nats over all rows on average, and γ is a few of 151 weights.
    assert np.mean(tangent[:, -1] - tangent[:, 0]) < 0.15


def test_a_strong_prior_closes_the_gap(gap):
    weak, strong = (
        pictures.losses(pictures.fit_gap(gap[1], precision, hidden=20), gap[1]) for precision in (1.0, 10.0)
    )
    assert strong.sampled - strong.linearized < weak.sampled - weak.linearized


@pytest.fixture(scope="module")
def matrices():
    return pictures.matrices()


@pytest.fixture(scope="module")
def blocks():
    """Which entries lie within a layer."""
    sizes = pictures.layer_sizes(pictures.trained()[0])
    layer = np.repeat(np.arange(len(sizes)), sizes)
    return layer[:, None] == layer


def test_a_column_for_each_structure(matrices):
    assert all(tuple(found) == tuple(pictures.STRUCTURES) for found in matrices.values())
    assert all(np.allclose(each, each.T, atol=1e-9) for each in matrices["covariance"].values())


def test_blocks_are_those_of_the_full_matrix(matrices, blocks):
    full = matrices["curvature"]["full"]
    assert np.allclose(matrices["curvature"]["block"], np.where(blocks, full, 0), atol=1e-9 * np.abs(full).max())
    for found in matrices.values():
        for name in ("block", "kfac", "ekfac"):
            assert (found[name][~blocks] == 0).all()


def test_the_diagonal_is_that_of_the_full_matrix(matrices):
    found = matrices["curvature"]
    assert np.allclose(found["diagonal"], np.diag(np.diag(found["full"])))


def test_the_low_rank_is_the_best_of_its_rank(matrices):
    found = matrices["curvature"]
    values = np.linalg.eigvalsh(found["full"])
    best = np.linalg.norm(values[: -pictures.RANK]) / np.linalg.norm(values)
    assert pictures.relative_distance(found["low_rank"], found["full"]) == pytest.approx(best, rel=1e-3)


def test_corrected_factors_are_closer_than_factors(matrices):
    found = matrices["curvature"]
    ekfac, kfac = (pictures.relative_distance(found[name], found["block"]) for name in ("ekfac", "kfac"))
    assert ekfac < kfac


SQUARE = (slice(3, 9), slice(15, 21))


@pytest.fixture(scope="module")
def segmentation():
    return pictures.fit_segmentation()


@pytest.fixture(scope="module")
def predictive(segmentation):
    return segmentation.predict(pictures.new_images()[0])


def test_each_pixel_has_an_answer(predictive):
    assert predictive.mean.shape == (2, pictures.SIDE, pictures.SIDE, 2)


def test_the_new_stain_is_where_the_posterior_is_ignorant(predictive):
    without, square = (predictive.epistemic[row, ..., 1].numpy() for row in (0, 1))
    assert square[SQUARE].mean() > 20 * without[SQUARE].mean()
    assert square[SQUARE].mean() > 10 * np.median(square)


def test_the_noise_of_the_annotator_is_aleatoric(predictive):
    amounts = pictures.new_images()[0][0, 0].clamp(0, 1).numpy()
    truth = (amounts * (1 - amounts)).ravel()
    assert np.corrcoef(truth, predictive.aleatoric[0, ..., 1].numpy().ravel())[0, 1] > 0.8
    assert predictive.aleatoric[0, ..., 1].mean() > 5 * predictive.epistemic[0, ..., 1].mean()


@pytest.mark.parametrize("draw", [pictures.draw_underfitting, pictures.draw_structures])
def test_pictures_are_drawn(draw, readable):
    readable(draw)


def test_pictures_of_a_posterior_are_drawn(readable, banana, segmentation):
    readable(lambda: pictures.draw_banana(banana[1]))
    readable(lambda: pictures.draw_segmentation(segmentation))
