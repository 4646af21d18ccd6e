"""Classes that one feature separates: the more it says, the surer the prediction."""

from __future__ import annotations

import numpy as np
import pytest

import bayescope as bs


def _table(seed: int, *, steep: float) -> tuple[np.ndarray, np.ndarray]:
    """400 rows, y = 1 with probability σ(steep · x₀), and up to two features of noise."""
    random = np.random.default_rng(seed)
    shape = (400, 1 + seed % 3)
    x = random.normal(size=shape) if seed % 2 else random.uniform(-2, 2, size=shape)
    return x, (random.random(400) < 1 / (1 + np.exp(-np.clip(steep * x[:, 0], -50, 50)))).astype(int)


def _along(x: np.ndarray) -> np.ndarray:
    """Rows that differ in the first feature alone, over its range."""
    grid = np.tile(np.median(x, 0), (81, 1))
    grid[:, 0] = np.linspace(x[:, 0].min(), x[:, 0].max(), 81)
    return grid


def _fall(values: np.ndarray) -> float:
    """By how much a sequence falls below what it had reached."""
    return float((np.maximum.accumulate(values) - values).max())


@pytest.mark.parametrize("steep", [1e9, 4.0], ids=["a step", "a slope"])
def test_a_probability_does_not_fall_back_where_the_data_say_more(steep: float) -> None:
    """8 tables each. With the curvature at the mode, probabilities of the step fell from .98 to .83."""
    for seed in range(8):
        x, y = _table(seed, steep=steep)
        model = bs.NeuralAdditiveClassifier(random_state=seed).fit(x, y)
        grid = _along(x)
        p = model.predict_proba(grid)[:, 1]
        latent = np.ravel(model.predict_distribution(grid).latent_mean)
        assert _fall(latent) < 1e-3 * np.ptp(latent), seed
        assert _fall(p) < 0.01, seed
        assert p[0] < 0.05, seed
        assert p[-1] > 0.95, seed


def test_three_separated_classes_stay_sure_to_the_ends() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(300, 2))
    y = np.digitize(x[:, 0], [-0.5, 0.5])
    model = bs.NeuralAdditiveClassifier(random_state=0).fit(x, y)
    p = model.predict_proba(_along(x))
    assert _fall(p[:, 2]) < 0.05
    assert _fall(p[::-1, 0]) < 0.05
    assert p[0, 0] > 0.95
    assert p[-1, 2] > 0.95
