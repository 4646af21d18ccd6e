"""Points of the benchmark of first answers: neural additive models."""

from __future__ import annotations

import numpy as np

import bayescope as bs
from bench.first_answer_points import Point

SEEDS = 12


def table(seed: int, steep: float) -> tuple[np.ndarray, np.ndarray]:
    """400 rows of b and a feature of noise, y = 1 with probability σ(steep · b); b is uniform or normal in turn."""
    random = np.random.default_rng(seed)
    x = random.uniform(-2, 2, size=(400, 2)) if seed % 2 else random.normal(size=(400, 2))
    p = 1 / (1 + np.exp(-np.clip(steep * x[:, 0], -50, 50)))
    return x, (random.random(400) < p).astype(int)


def falls(steep: float, *, quick: bool) -> dict[str, float]:
    """By how much P(y = 1) falls below what it had reached along b, over b's range; and P at the upper end."""
    found, ends = [], []
    for seed in range(3 if quick else SEEDS):
        x, y = table(seed, steep)
        model = bs.NeuralAdditiveClassifier(random_state=seed).fit(x, y)
        grid = np.tile(np.median(x, 0), (81, 1))
        grid[:, 0] = np.linspace(x[:, 0].min(), x[:, 0].max(), 81)
        p = model.predict_proba(grid)[:, 1]
        found.append((np.maximum.accumulate(p) - p).max())
        ends.append(p[-1])
    return {"largest fall of P": float(max(found)), "least P at the largest b": float(min(ends))}


POINTS: tuple[Point, ...] = (
    Point(
        section="Neural additive models",
        name="additive-step",
        about=f"`NeuralAdditiveClassifier().fit(X, y)`, 400 rows, y = (b > 0), a feature of noise; {SEEDS} seeds.",
        measure=lambda quick: falls(1e9, quick=quick),
        wanted={"largest fall of P": "≤ 0.01", "least P at the largest b": "≥ 0.95"},
    ),
    Point(
        section="Neural additive models",
        name="additive-slope",
        about=f"`NeuralAdditiveClassifier().fit(X, y)`, 400 rows, y ~ Bernoulli(σ(4 b)); {SEEDS} seeds.",
        measure=lambda quick: falls(4.0, quick=quick),
        wanted={"largest fall of P": "≤ 0.01", "least P at the largest b": "≥ 0.95"},
    ),
)
