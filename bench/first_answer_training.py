"""Points of the benchmark of first answers: trainings with default options, beside NUTS and their own long runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_iris,
    load_wine,
    make_circles,
    make_classification,
    make_friedman1,
    make_moons,
    make_regression,
)
from torch import Tensor, nn

import bayescope as bs
from bayescope.errors import BayescopeError
from bench.first_answer_points import Point

SECTION = "Training"


def network(seed: int = 0) -> nn.Module:
    """The 2-20-20-1 network of the textbooks' moons."""
    torch.manual_seed(seed)  # noqa: TID251
    return nn.Sequential(nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 1))


def moons(quick: bool) -> dict[str, float]:
    """Test NLL a row of 60 rows of two moons, by each method's defaults."""
    x, y = make_moons(60, noise=0.3, random_state=0)
    test_x, test_y = make_moons(2000, noise=0.3, random_state=1)
    data: Any = (x.astype("f4"), y)
    common: dict[str, Any] = {"likelihood": "bernoulli", "generator": 0, "progress": False}
    found: dict[str, Any] = {"fit_map": bs.fit_map(network(), data, **common)}
    if not quick:
        found["ensemble"] = bs.ensemble([network(seed) for seed in range(5)], data, **common)
        found["variational"] = bs.variational(network(), data, **common)
        found["mc_dropout"] = bs.mc_dropout(network(), data, rate=0.1, **common)
    drawn = {"variational", "mc_dropout"}
    inputs = test_x.astype("f4")
    predictions = {name: q.predict(inputs, **({"generator": 0} if name in drawn else {})) for name, q in found.items()}
    return {name: -float(np.mean(np.asarray(p.log_prob(test_y)))) for name, p in predictions.items()}


def three_weights(quick: bool) -> dict[str, float]:  # noqa: ARG001
    """How far the means of a full covariance over three weights are from the best Gaussian's, in its sds."""
    source = torch.Generator().manual_seed(0)
    x = torch.randn(40, 2, generator=source)
    y = (torch.rand(40, generator=source) < torch.sigmoid(x @ torch.tensor([1.5, -1.0]) + 0.5)).long()
    design = torch.cat([x, torch.ones(40, 1)], 1).double()

    def log_joint(theta: Tensor) -> Tensor:
        return nn.functional.logsigmoid((2 * y - 1).double() * (design @ theta)).sum() - 0.5 * theta @ theta

    best = bs.density.variational(log_joint, 3)
    torch.manual_seed(0)  # noqa: TID251
    q = bs.variational(
        nn.Linear(2, 1), (x, y), likelihood="bernoulli", family="full", generator=0, progress=False,
    )  # fmt: skip
    return {"sds off": float(((q.mean.double() - best.mean) / best.covariance.diagonal().sqrt()).abs().max())}


def growth_curves(quick: bool) -> dict[str, float]:
    """Of the families of a normal growth model that is not centred, how many fit: 30 rats, 5 weighings, made up."""
    rats, source = (6 if quick else 30), torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source, dtype=torch.float64)

    days = torch.tensor([-14.0, -7.0, 0.0, 7.0, 14.0], dtype=torch.float64)
    y = 242 + 14 * normal(rats, 1) + (6.2 + 0.5 * normal(rats, 1)) * days + 6 * normal(rats, 5)

    def log_joint(u: Tensor) -> Tensor:
        sds, z = u[2:5].exp(), u[5:].reshape(2, rats)
        fitted = (u[0] + sds[0] * z[0])[:, None] + (u[1] + sds[1] * z[1])[:, None] * days
        prior = (u[:2] / 1000).square().sum() + (sds / 100).square().sum() + z.square().sum()
        return -0.5 * (((y - fitted) / sds[2]).square().sum() + prior) - y.numel() * u[4] + u[2:5].sum()

    fits = 0.0
    for family in ("full", "mean_field"):
        try:
            q = bs.density.variational(log_joint, 5 + 2 * rats, family=family)
        except (BayescopeError, ValueError):
            continue
        fits += float(abs(q.mean[0] - y.mean()) < 0.5 * 14 / rats**0.5)
    return {"families": fits}


def ten_tables() -> Iterator[tuple[Any, Any, Any, tuple[int, int]]]:
    """The likelihood, the training rows, the test rows, and the inputs and outputs of each table, standardised."""
    source = np.random.default_rng(0)
    wave = source.uniform(-3, 3, (660, 1))
    regressions = [
        (*make_friedman1(1080, noise=1.0, random_state=0), 80), (*load_diabetes(return_X_y=True), 100),
        (wave, np.sin(2 * wave[:, 0]) + 0.2 * source.normal(size=660), 60),
        (*make_regression(560, 5, noise=30.0, random_state=0), 60),
    ]  # fmt: skip
    classes = [
        (*make_moons(1060, noise=0.3, random_state=0), 60), (*load_wine(return_X_y=True), 89),
        (*make_circles(1200, noise=0.15, factor=0.5, random_state=0), 200), (*load_iris(return_X_y=True), 75),
        (*make_classification(1300, 10, n_informative=5, n_classes=3, random_state=0), 300),
        (*load_breast_cancer(return_X_y=True), 150),
    ]  # fmt: skip
    for place, (features, y, rows) in enumerate([*classes, *regressions]):
        order = np.random.default_rng(0).permutation(len(y))
        continuous, train, test = place >= len(classes), order[:rows], order[rows:]
        x = ((features - features[train].mean(0)) / features[train].std(0)).astype("f4")
        answers = ((y - y[train].mean()) / y[train].std()).astype("f4")[:, None] if continuous else y
        outputs = 1 if continuous or y.max() == 1 else 3
        likelihood: Any = bs.Gaussian(0.2) if continuous else "bernoulli" if outputs == 1 else "categorical"
        yield likelihood, (x[train], answers[train]), (x[test], answers[test]), (x.shape[1], outputs)


def beside_long_runs(*names: str, tables: int = 10) -> dict[str, float]:
    """By how much a default's test NLL a row is above that of the method's own long run, at most over the tables."""
    methods: dict[str, Callable[..., Any]] = {
        "fit_map": lambda make, data, **options: bs.fit_map(make(0), data, **options),
        "ensemble": lambda make, data, **options: bs.ensemble([make(seed) for seed in range(5)], data, **options),
        "variational": lambda make, data, **options: bs.variational(make(0), data, **options),
        "mc_dropout": lambda make, data, **options: bs.mc_dropout(make(0), data, rate=0.1, **options),
    }
    worst = dict.fromkeys(names, -math.inf)
    for likelihood, train, (x, y), (inputs, outputs) in islice(ten_tables(), tables):
        options: dict[str, Any] = {"likelihood": likelihood, "generator": 0, "progress": False}

        def make(seed: int, inputs: int = inputs, outputs: int = outputs) -> nn.Module:
            torch.manual_seed(seed)  # noqa: TID251
            return nn.Sequential(nn.Linear(inputs, 30), nn.Tanh(), nn.Linear(30, outputs))

        for name in names:
            drawn: dict[str, Any] = {"generator": 0, "samples": 1000} if name in ("variational", "mc_dropout") else {}
            long = {"epochs": math.ceil(4000 / math.ceil(len(train[0]) / 128)), "schedule": "cosine", "lr": 0.01}
            runs = methods[name](make, train, **options), methods[name](make, train, **options, **long)
            nlls = [-float(np.mean(np.asarray(q.predict(x, **drawn).log_prob(y)))) for q in runs]
            worst[name] = max(worst[name], nlls[0] - nlls[1])
    return worst


POINTS: tuple[Point, ...] = (
    Point(
        SECTION, "moons-60", "60 rows of two moons, a 2-20-20-1 tanh network, defaults; NUTS has 0.314.", moons,
        {"fit_map": "≤ 0.4", "ensemble": "≤ 0.4", "variational": "≤ 0.5", "mc_dropout": "≤ 0.4"},
    ),
    Point(
        SECTION, "ten-tables", "Ten small tables, 30 tanh units: most test NLL above the method's own long run.",
        lambda quick: beside_long_runs("fit_map", "mc_dropout", tables=2 if quick else 10),
        {"fit_map": "≤ 0.03", "mc_dropout": "≤ 0.03"}, limit=300.0,
    ),
    Point(
        SECTION, "three-tables", "The first three of the ten tables, the slower methods.",
        lambda quick: beside_long_runs("ensemble", "variational", tables=1 if quick else 3),
        {"ensemble": "≤ 0.03", "variational": "≤ 0.03"}, limit=300.0,
    ),
    Point(
        SECTION, "full-vi-3", "A full covariance over three weights, 40 rows, defaults.", three_weights,
        {"sds off": "≤ 0.05"},
    ),
    Point(
        SECTION, "growth-curves", "A normal growth model, not centred, by `bs.density.variational`, two families.",
        growth_curves, {"families": "≥ 2"},
    ),
)  # fmt: skip
