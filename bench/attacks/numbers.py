"""Numbers whose squares or sums leave floating point: features and targets from 1 to 1e308, to fit or to predict."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch

import bayescope as bs
from bayescope.errors import BayescopeError
from bench.attacks import Outcome

SIZES = (1.0, 1e50, 1e100, 1e150, 1e155, 1e160, 1e200, 1e250, 1e300, 1e308)
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
        quick: whether it is fast.
    """

    fit: Fit
    classes: bool
    standardizes: bool
    mirrors: bool
    learns: bool
    quick: bool


def cases() -> dict[str, Case]:
    """Every estimator with its posteriors, and ways of inference for a network."""
    logistic, linear = bs.BayesianLogisticRegression, bs.BayesianLinearRegression
    found: dict[str, Case] = {}
    for posterior in ("auto", "laplace", "map", "variational", "ep"):
        for standardize in (True, False):
            fit = classifier(partial(logistic, posterior=posterior, standardize=standardize))
            quick = posterior == "laplace"
            found[f"logistic, {posterior}, standardize={standardize}"] = Case(fit, True, standardize, True, True, quick)
    for standardize in (True, False):
        fit = regressor(partial(linear, standardize=standardize))
        found[f"linear, standardize={standardize}"] = Case(fit, False, standardize, True, True, True)
    mlp = {"hidden": (4,), "random_state": 0, "posterior": "laplace"}
    found["MLP classifier"] = Case(classifier(partial(bs.BayesianMLPClassifier, **mlp)), True, True, False, True, False)
    found["MLP regressor"] = Case(regressor(partial(bs.BayesianMLPRegressor, **mlp)), False, True, False, True, False)
    additive = partial(bs.NeuralAdditiveClassifier, random_state=0), partial(bs.NeuralAdditiveRegressor, random_state=0)
    found["additive classifier"] = Case(classifier(additive[0]), True, True, False, True, False)
    found["additive regressor"] = Case(regressor(additive[1]), False, True, False, True, False)
    short = {"epochs": 3, "generator": 0}
    ways: dict[str, Callable[..., Any]] = {
        "laplace": partial(bs.laplace, prior_precision=1.0),
        "variational": partial(bs.variational, **short),
        "mc_dropout": partial(bs.mc_dropout, rate=0.1, **short),
        "swag": partial(bs.swag, rank=2, epochs=4, generator=0),
        "fit_map": partial(bs.fit_map, **short),
    }
    for name, infer in ways.items():
        for likelihood in ("bernoulli", "gaussian"):
            fit, classes = network(infer, likelihood), likelihood == "bernoulli"
            found[f"network, {name}, {likelihood}"] = Case(fit, classes, False, False, False, name == "laplace")
    return found


def valid(parts: tuple[np.ndarray, ...], classes: bool) -> bool:
    """Whether they are probabilities, or finite means and variances of at least 0."""
    if not all(np.isfinite(part).all() for part in parts):
        return False
    if not classes:
        return bool((parts[1] >= 0).all())
    return bool((parts[0] >= 0).all() and (parts[0] <= 1).all() and np.allclose(parts[0].sum(1), 1.0, atol=1e-9))


def judge(work: Callable[[], bool]) -> tuple[int, int, int, str]:
    """(refused, right, wrong, what was said) of one try."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            right = work()
    except BayescopeError as error:
        return 1, 0, 0, str(error)[:160]
    except Exception as error:  # noqa: BLE001  # counted and shown
        return 0, 0, 1, f"{type(error).__name__}: {error}"[:160]
    return (0, 1, 0, "") if right else (0, 0, 1, "not finite, no probabilities, or another answer")


def scaled(values: np.ndarray, size: float) -> np.ndarray:
    """Values whose largest is the size in magnitude; a negative size turns all signs."""
    return values / np.abs(values).max() * size


def near(found: np.ndarray, expected: np.ndarray) -> bool:
    """Whether two answers agree."""
    return bool(np.allclose(found, expected, rtol=NEAR, atol=NEAR))


def tries(case: Case, sizes: Sequence[float]) -> Iterator[tuple[str, str, Callable[[], bool]]]:
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

    for size in (sign * size for size in sizes for sign in (1.0, -1.0)):
        cell, column = X.copy(), X.copy()
        cell[0, 0], column[:, 0] = size, scaled(column[:, 0], size)
        same = case.standardizes and (size > 0 or case.mirrors)
        yield "a cell to predict", f"{size:.0e}", partial(at_predict, cell)
        yield "a column to predict", f"{size:.0e}", partial(at_predict, column)
        yield "a cell to fit", f"{size:.0e}", partial(at_fit, cell, False)
        yield "a column to fit", f"{size:.0e}", partial(at_fit, column, same)
        if not case.classes and (size > 0 or case.mirrors):
            yield "y", f"{size:.0e}", partial(in_unit, size)


def attacks(quick: bool) -> Iterator[Outcome]:
    """Of every estimator and of inference for networks."""
    for name, case in cases().items():
        if quick and not case.quick:
            continue
        counts: dict[str, list[Any]] = {}
        for attack, size, work in tries(case, SIZES[::5] if quick else SIZES):
            refused, right, wrong, said = judge(work)
            count = counts.setdefault(attack, [0, 0, 0, ""])
            count[:3] = [a + b for a, b in zip(count[:3], (refused, right, wrong), strict=True)]
            if said and (wrong or not count[2]):
                count[3] = f"{size}: {said}"
        for attack, count in counts.items():
            yield Outcome(f"{name}: {attack}", *count)
