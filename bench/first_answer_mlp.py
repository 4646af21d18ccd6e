"""Points of the benchmark of first answers: the MLP estimators on textbook data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_diabetes, make_circles, make_friedman1, make_moons
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import bayescope as bs
from bench.first_answer_points import Point

Floats = np.ndarray
Rows = tuple[Floats, Floats]
Split = tuple[Floats, Floats, Floats, Floats]
# Rows that each fitted network is tried on.
UNSEEN = 2000
PEER: dict[str, Any] = {"hidden_layer_sizes": (50, 50), "max_iter": 3000}


def circles(rows: int, seed: int) -> Rows:
    """One circle inside of another."""
    found: Rows = make_circles(rows, noise=0.1, factor=0.5, random_state=seed)
    return found


def moons(rows: int, seed: int) -> Rows:
    """Two half-moons that reach into each other."""
    found: Rows = make_moons(rows, noise=0.2, random_state=seed)
    return found


def quadrants(rows: int, seed: int) -> Rows:
    """Exclusive or: the label is the sign of a product, and the rows are a little off."""
    source = np.random.default_rng(seed)
    points = source.uniform(-1.0, 1.0, (rows, 2))
    return points + 0.05 * source.normal(size=points.shape), (points.prod(1) > 0.0).astype(int)


def spirals(rows: int, seed: int) -> Rows:
    """Two arms, one and a half turns each."""
    source = np.random.default_rng(seed)
    angle = 3.0 * np.pi * np.sqrt(source.uniform(0.05, 1.0, rows))
    labels = source.integers(0, 2, rows)
    arms = (np.where(labels, angle, -angle) / np.pi)[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
    return arms + 0.15 * source.normal(size=arms.shape), labels


def checkerboard(rows: int, seed: int) -> Rows:
    """Four by four fields."""
    points = np.random.default_rng(seed).uniform(0.0, 4.0, (rows, 2))
    return points, (np.floor(points).sum(1) % 2).astype(int)


LABELS: dict[str, Callable[[int, int], Rows]] = {
    "circles": circles, "moons": moons, "exclusive or": quadrants, "spirals": spirals, "checkerboard": checkerboard,
}  # fmt: skip


def accuracies(name: str, rows: int, seed: int) -> tuple[float, float]:
    """Test accuracy of the default and of scikit-learn's network on standardised inputs."""
    X, y = LABELS[name](rows, seed)
    unseen, truth = LABELS[name](UNSEEN, 1000 + seed)
    ours = bs.BayesianMLPClassifier(random_state=seed).fit(X, y)
    theirs = make_pipeline(StandardScaler(), MLPClassifier(**PEER, random_state=seed)).fit(X, y)
    return float(np.mean(ours.predict(unseen) == truth)), float(theirs.score(unseen, truth))


def labels(sizes: Sequence[int], seeds: Sequence[int]) -> dict[str, float]:
    """The smallest accuracy for each set, and how far the default is from scikit-learn's network."""
    least, apart = {}, []
    for name in LABELS:
        found = [accuracies(name, rows, seed) for rows in sizes for seed in seeds]
        least[f"{name}: smallest accuracy"] = min(ours for ours, _ in found)
        apart += [ours - theirs for ours, theirs in found]
    return {**least, "less scikit-learn's, mean": float(np.mean(apart)), "less scikit-learn's, worst": min(apart)}


def curves(seed: int) -> Iterator[Split]:
    """Regressions: a sine, a step and Friedman's first function, 300 rows each, and diabetes."""

    def sine(rows: int, seed: int) -> Rows:
        source = np.random.default_rng(seed)
        x = source.uniform(-3.0, 3.0, (rows, 1))
        return x, np.sin(2.0 * x[:, 0]) + 0.2 * source.normal(size=rows)

    def step(rows: int, seed: int) -> Rows:
        source = np.random.default_rng(seed)
        x = source.uniform(-1.0, 1.0, (rows, 1))
        return x, (x[:, 0] > 0.2) + 0.1 * source.normal(size=rows)

    def friedman(rows: int, seed: int) -> Rows:
        found: Rows = make_friedman1(rows, noise=1.0, random_state=seed)
        return found

    for draw in (sine, step, friedman):
        (X, y), (unseen, truth) = draw(300, seed), draw(UNSEEN, 1000 + seed)
        yield X, unseen, y, truth
    found: Split = tuple(train_test_split(*load_diabetes(return_X_y=True), test_size=0.3, random_state=seed))
    yield found


def errors(seeds: Sequence[int]) -> dict[str, float]:
    """RMSE as a multiple of that of scikit-learn's network, and of that of the better of linear regression and mean."""
    of_network, of_plain = [], []
    for seed in seeds:
        for X, unseen, y, truth in curves(seed):
            ours = bs.BayesianMLPRegressor(random_state=seed).fit(X, y)
            network = make_pipeline(StandardScaler(), MLPRegressor(**PEER, random_state=seed))
            theirs = TransformedTargetRegressor(network, transformer=StandardScaler()).fit(X, y)
            inputs = np.column_stack([np.ones(len(X)), X])
            line = np.column_stack([np.ones(len(unseen)), unseen]) @ np.linalg.lstsq(inputs, y, rcond=None)[0]
            rmse, peer, straight, mean = (
                float(np.sqrt(np.mean((guess - truth) ** 2)))
                for guess in (ours.predict(unseen), theirs.predict(unseen), line, np.full(len(truth), y.mean()))
            )
            of_network.append(rmse / peer)
            of_plain.append(rmse / min(straight, mean))
    return {"RMSE ÷ scikit-learn's, mean": float(np.mean(of_network)), "RMSE ÷ the plainer, worst": max(of_plain)}


def _quietly(measure: Callable[[bool], dict[str, float]]) -> Callable[[bool], dict[str, float]]:
    def measured(quick: bool) -> dict[str, float]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return measure(quick)

    return measured


_APART = {"less scikit-learn's, mean": "≥ -0.02", "less scikit-learn's, worst": "≥ -0.05"}
POINTS: tuple[Point, ...] = (
    Point(
        "Networks", "mlp_labels", "`BayesianMLPClassifier()` on five textbook sets of 500 rows, two seeds each.",
        _quietly(lambda quick: labels([500], [0] if quick else [0, 1])),
        {"circles: smallest accuracy": "≥ 0.97", "moons: smallest accuracy": "≥ 0.95",
         "exclusive or: smallest accuracy": "≥ 0.92", "spirals: smallest accuracy": "≥ 0.97",
         "checkerboard: smallest accuracy": "≥ 0.9", **_APART},
        limit=240.0,
    ),
    Point(
        "Networks", "mlp_few_rows", "`BayesianMLPClassifier()` on five textbook sets of 200 rows, two seeds each.",
        _quietly(lambda quick: labels([200], [0] if quick else [0, 1])),
        {"circles: smallest accuracy": "≥ 0.97", "moons: smallest accuracy": "≥ 0.93",
         "exclusive or: smallest accuracy": "≥ 0.9", "spirals: smallest accuracy": "≥ 0.95",
         "checkerboard: smallest accuracy": "≥ 0.82", **_APART},
        limit=240.0,
    ),
    Point(
        "Networks", "mlp_numbers", "`BayesianMLPRegressor()` on a sine, a step, Friedman's function and diabetes.",
        _quietly(lambda quick: errors([0] if quick else [0, 1])),
        {"RMSE ÷ scikit-learn's, mean": "≤ 1.03", "RMSE ÷ the plainer, worst": "≤ 1.02"},
        limit=240.0,
    ),
)  # fmt: skip
