"""The aleatoric map follows the blurred borders, the epistemic one the stain that no training image had."""

from __future__ import annotations

import numpy as np
import pytest

from bayescope.gallery.network_segmentation import SIDE, draw_segmentation, fit, new, seen

SQUARE = (slice(3, 9), slice(15, 21))


@pytest.fixture(scope="module")
def predictive():
    return fit(seen()).predict(new().images)


def test_each_pixel_has_an_answer(predictive):
    assert predictive.mean.shape == (2, SIDE, SIDE, 2)


def test_the_new_stain_is_where_the_posterior_is_ignorant(predictive):
    without, square = (predictive.epistemic[row, ..., 1].numpy() for row in (0, 1))
    assert square[SQUARE].mean() > 20 * without[SQUARE].mean()
    assert square[SQUARE].mean() > 10 * np.median(square)


def test_the_noise_of_the_annotator_is_aleatoric(predictive):
    amounts = new().images[0, 0].clamp(0, 1).numpy()
    truth = (amounts * (1 - amounts)).ravel()
    assert np.corrcoef(truth, predictive.aleatoric[0, ..., 1].numpy().ravel())[0, 1] > 0.8
    assert predictive.aleatoric[0, ..., 1].mean() > 5 * predictive.epistemic[0, ..., 1].mean()


def test_drawn(readable):
    readable(draw_segmentation)
