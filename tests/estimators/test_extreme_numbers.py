"""Numbers whose squares or sums leave floating point: features and targets from 1 to 1e308, to fit or to predict."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import bayescope as bs
from bayescope.errors import BayescopeError

SIZES = (1.0, 1e155, 1e160, 1e308)
ROWS = 40
# Beside a fit to the column in another unit, where the estimator standardises.
NEAR = 1e-6

Predict = Callable[[np.ndarray], tuple[np.ndarray, ...]]
Fit = Callable[[np.ndarray, np.ndarray], Predict]


def table() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, a number and a class for each row; neither is explained without noise."""
    source = np.random.default_rng(0)
    X = source.normal(size=(ROWS, 2))
    y = X @ [1.0, -0.5] + source.normal(size=ROWS)
    return X, y, (y + source.normal(size=ROWS) > 0).astype(int)


def classifier(make: Callable[[], Any]) -> Fit:
    """Of an estimator of classes."""

    def fit(X: np.ndarray, y: np.ndarray) -> Predict:
        fitted = make().fit(X, y)
        return lambda rows: (fitted.predict_proba(rows),)

    return fit


def regressor(make: Callable[[], Any]) -> Fit:
    """Of an estimator of numbers."""

    def fit(X: np.ndarray, y: np.ndarray) -> Predict:
        fitted = make().fit(X, y)

        def predict(rows: np.ndarray) -> tuple[np.ndarray, ...]:
            found = fitted.predict_distribution(rows)
            return found.mean, found.variance

        return predict

    return fit


def network(infer: Callable[..., Any], likelihood: str) -> Fit:
    """Of a function that takes a module and data."""

    def fit(X: np.ndarray, y: np.ndarray) -> Predict:
        source = torch.Generator().manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1)).double()
        with torch.no_grad():
            for weight in module.parameters():
                weight.copy_(torch.randn(weight.shape, generator=source, dtype=weight.dtype))
        posterior = infer(module, (torch.tensor(X), torch.tensor(y)[:, None]), likelihood=likelihood)

        def predict(rows: np.ndarray) -> tuple[np.ndarray, ...]:
            found = posterior.predict(torch.tensor(rows), generator=0)
            if likelihood == "gaussian":
                return found.mean.numpy(), found.variance.numpy()
            return (found.probs.numpy(),)

        return predict

    return fit


class Case(NamedTuple):
    """A way to a prediction.

    Attributes:
        fit: from features and targets to a function that predicts.
        classes: whether y is a class.
        standardizes: whether a column in another unit has to give the same answer; likewise with the other sign, where
            ``mirrors``.
        mirrors: whether no weight is random.
        learns: whether y in another unit has to give the answer in that unit.
    """

    fit: Fit
    classes: bool
    standardizes: bool
    mirrors: bool
    learns: bool


def cases() -> dict[str, Case]:
    """Linear estimators, and Laplace's approximation of a network."""
    found: dict[str, Case] = {}
    for standardize in (True, False):
        logistic = partial(bs.BayesianLogisticRegression, posterior="laplace", standardize=standardize)
        linear = partial(bs.BayesianLinearRegression, standardize=standardize)
        found[f"logistic, standardize={standardize}"] = Case(classifier(logistic), True, standardize, True, True)
        found[f"linear, standardize={standardize}"] = Case(regressor(linear), False, standardize, True, True)
    for likelihood in ("bernoulli", "gaussian"):
        fit = network(partial(bs.laplace, prior_precision=1.0), likelihood)
        found[f"network, {likelihood}"] = Case(fit, likelihood == "bernoulli", False, False, False)
    return found


def valid(parts: tuple[np.ndarray, ...], classes: bool) -> bool:
    """Whether they are probabilities, or finite means and variances of at least 0."""
    if not all(np.isfinite(part).all() for part in parts):
        return False
    if not classes:
        return bool((parts[1] >= 0).all())
    return bool((parts[0] >= 0).all() and (parts[0] <= 1).all() and np.allclose(parts[0].sum(1), 1.0, atol=1e-9))


def outcome(work: Callable[[], bool]) -> str:
    """What came of one try: "right", "refused" in the library's own words, or what is wrong."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return "right" if work() else "not finite, no probabilities, or another answer"
    except BayescopeError:
        return "refused"


def scaled(values: np.ndarray, size: float) -> np.ndarray:
    """Values whose largest is the size in magnitude; a negative size turns all signs."""
    return values / np.abs(values).max() * size


def near(found: np.ndarray, expected: np.ndarray) -> bool:
    """Whether two answers agree."""
    return bool(np.allclose(found, expected, rtol=NEAR, atol=NEAR))


def tries(case: Case) -> Iterator[tuple[str, str, Callable[[], bool]]]:
    """Every attack on one fit: its name, the size, and the work that tells whether the answer is right."""
    X, number, label = table()
    y = label if case.classes else number

    @cache
    def usual() -> tuple[Predict, tuple[np.ndarray, ...]]:
        predict = case.fit(X, y)
        return predict, predict(X)

    def at_predict(rows: np.ndarray) -> bool:
        return valid(usual()[0](rows), case.classes)

    def at_fit(rows: np.ndarray, same: bool) -> bool:
        parts = case.fit(rows, y)(rows)
        return valid(parts, case.classes) and (not same or all(map(near, parts, usual()[1])))

    def in_unit(size: float) -> bool:
        (mean, variance), before = case.fit(X, scaled(y, size))(X), usual()[1]
        unit = abs(size) / np.abs(y).max()
        same = near(mean / unit, np.sign(size) * before[0]) and near(np.sqrt(variance) / unit, np.sqrt(before[1]))
        return valid((mean, variance), False) and (same or not case.learns)

    for size in (sign * size for size in SIZES for sign in (1.0, -1.0)):
        cell, column = X.copy(), X.copy()
        cell[0, 0], column[:, 0] = size, scaled(column[:, 0], size)
        same = case.standardizes and (size > 0 or case.mirrors)
        yield "a cell to predict", f"{size:.0e}", partial(at_predict, cell)
        yield "a column to predict", f"{size:.0e}", partial(at_predict, column)
        yield "a cell to fit", f"{size:.0e}", partial(at_fit, cell, False)
        yield "a column to fit", f"{size:.0e}", partial(at_fit, column, same)
        if not case.classes and (size > 0 or case.mirrors):
            yield "y", f"{size:.0e}", partial(in_unit, size)


@pytest.mark.global_rng  # a layer draws its initial weights from it
@pytest.mark.parametrize("name", cases())
def test_numbers_beyond_floating_point_are_refused_or_answered_right(name: str) -> None:
    outcomes = [(attack, size, outcome(work)) for attack, size, work in tries(cases()[name])]
    assert [each for each in outcomes if each[2] not in ("refused", "right")] == []
    assert {each[2] for each in outcomes} == {"refused", "right"}
