"""Small posteriors and estimators of every kind, and all that they answer."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import Nystroem
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import SplineTransformer, StandardScaler
from torch import nn

import bayescope as bs

FLOATS = (torch.float32, torch.float64)
STRUCTURES = ("full", "block", "diagonal", "kfac", "ekfac", "low_rank", "samples")


class Residual(nn.Module):
    """A network whose code no file has."""

    def __init__(self, outputs: int = 2) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, outputs)
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(x + torch.tanh(self.first(x)) + self.shift)


def plain(outputs: int = 2, dtype: torch.dtype = torch.float32) -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs))).to(dtype)


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make()


def data(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    return x, (x[:, 0] + x[:, 1].square() > 0.5).long()


def numbers(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    x, _ = data(dtype)
    return x, x[:, :1] * 2 + x[:, 1:2].square()


def laplace(structure: str, dtype: torch.dtype = torch.float32, **options: Any) -> bs.Posterior:
    rank = {"rank": 4} if structure == "low_rank" else {}
    return bs.laplace(plain(dtype=dtype), data(dtype), likelihood="categorical", structure=structure, **rank, **options)


def regression(likelihood: Any, outputs: int = 1, **options: Any) -> bs.Posterior:
    return bs.laplace(plain(outputs), numbers(), likelihood=likelihood, **options)


NETWORK: dict[str, Any] = {"likelihood": "categorical", "progress": False}
POSTERIORS: dict[str, Callable[[], bs.Posterior]] = {
    **{
        f"laplace, {structure}, {str(dtype)[-7:]}": functools.partial(laplace, structure, dtype)
        for structure in STRUCTURES
        for dtype in FLOATS
    },
    "last layer": lambda: laplace("kfac", weights="last_layer"),
    "subset": lambda: laplace("full", weights=bs.largest_magnitude(9)),
    "a prior by layer": lambda: laplace("kfac", prior_precision={"0": 1.0, "2": 3.0}),
    "a bias of its own": lambda: laplace("kfac", prior_precision={"*.weight": 1.0, "*.bias": 3.0}),
    "tempered": lambda: laplace("kfac", temperature=0.5),
    "by the evidence": lambda: regression("gaussian", prior_precision="evidence"),
    "heteroscedastic": lambda: regression(bs.HeteroscedasticGaussian(), 2),
    "a noise that is known": lambda: regression(bs.Gaussian(noise_variance=0.1)),
    "custom network": lambda: bs.laplace(seeded(Residual), data(), likelihood="categorical"),
    "map": lambda: bs.fit_map(plain(), data(), epochs=1, **NETWORK),
    "variational": lambda: bs.variational(plain(), data(), epochs=1, **NETWORK),
    "dropout": lambda: bs.mc_dropout(plain(), data(), rate=0.2, epochs=1, **NETWORK),
    "ensemble": lambda: bs.ensemble(plain, data(), members=2, epochs=1, **NETWORK),
    "swag": lambda: bs.swag(plain(), data(), rank=2, epochs=6, **NETWORK),
    "sgmcmc": lambda: bs.sgmcmc(plain(), data(), draws=6, burn_in=2, chains=2, generator=0, **NETWORK),
    "function space": lambda: bs.function_space(plain(), data(), likelihood="categorical"),
    "function space, subset": lambda: functional("subset"),
    "function space, nystrom": lambda: functional("nystrom"),
    "function space, inducing": lambda: functional("inducing"),
}


def functional(approximation: str) -> bs.Posterior:
    return bs.function_space(plain(), data(), likelihood="categorical", approximation=approximation, points=8)


@functools.cache
def posterior(name: str) -> bs.Posterior:
    """The posterior of this name; the fits warn of what so little training leaves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return POSTERIORS[name]()


def answers(q: bs.Posterior, *, dtype: torch.dtype = torch.float32) -> list[Any]:
    """What a posterior says, as arrays that can be compared bit by bit."""
    x = data(dtype)[0][:5]
    p = q.predict(x, generator=1)
    functions = q.sample_functions(x, 2, generator=1)
    found = [p.mean, p.variance, p.epistemic, functions]
    return [np.asarray(each) for each in found] + [q.summary(), q.sizes, str(q.trace), q.record.method]


# Estimators ------------------------------------------------------------------------------------------------------


def table(rows: int = 60) -> pd.DataFrame:
    source = np.random.default_rng(0)
    frame = pd.DataFrame({"age": source.normal(50, 10, rows).round(), "dose": source.uniform(0, 1, rows)})
    frame["kind"] = source.choice(["red", "green", "blue"], rows)
    frame.loc[::9, "age"] = np.nan
    return frame


def signal(frame: pd.DataFrame) -> np.ndarray:
    numbers = np.sin(frame["age"].fillna(50) / 8) + 2 * frame["dose"] * (frame["kind"] == "red")
    return numbers.to_numpy()


def plain_table() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(60, 2))


FEATURES: dict[str, Any] = {
    "none": None,
    "rbf": "rbf",
    "polynomial": "polynomial",
    "pipeline": make_pipeline(SimpleImputer(), StandardScaler(), SplineTransformer(n_knots=3)),
    "nystroem": Nystroem(n_components=4, random_state=0),
}
SMALL: dict[str, Any] = {"epochs": 12, "burn_in": 4, "hidden": 4, "pair_hidden": 4, "random_state": 0}


def linear(features: str) -> Any:
    x = plain_table()
    return bs.BayesianLinearRegression(features=FEATURES[features], standardize=True).fit(x, x[:, 0] + x[:, 1] ** 2)


def logistic(features: str, **options: Any) -> Any:
    x = plain_table()
    return bs.BayesianLogisticRegression(features=FEATURES[features], **options).fit(x, np.where(x[:, 0] > 0, "b", "a"))


def additive(kind: str, **options: Any) -> Any:
    frame = table()
    f = signal(frame)
    if kind == "numbers":
        return bs.NeuralAdditiveRegressor(**SMALL, **options).fit(frame, f)
    labels = np.where(f > 0.5, "yes", "no") if kind == "labels" else np.digitize(f, [0.0, 0.8])
    return bs.NeuralAdditiveClassifier(**SMALL, **options).fit(frame, labels)


def mixed(make: Any, *, labels: bool = False, **options: Any) -> Any:
    frame = table()
    f = signal(frame)
    return make(**options).fit(frame, np.where(f > 0.5, "yes", "no") if labels else f)


MLP: dict[str, Any] = {"hidden": (4,), "epochs": 2, "prior_precision": 1.0, "random_state": 0}
ESTIMATORS: dict[str, Callable[[], Any]] = {
    **{f"linear, {name}": functools.partial(linear, name) for name in FEATURES},
    **{f"logistic, {name}": functools.partial(logistic, name) for name in FEATURES},
    **{
        f"logistic, {posterior}": functools.partial(logistic, "none", posterior=posterior)
        for posterior in ("map", "variational", "mean_field", "ep", "metropolis")
    },
    "logistic, probit": lambda: logistic("none", link="probit"),
    "logistic, a prior": lambda: logistic("none", prior_precision=bs.Prior(2.0), random_state=np.random.RandomState(1)),
    "linear, mixed columns": lambda: mixed(bs.BayesianLinearRegression, encoding="target"),
    "logistic, mixed columns": lambda: mixed(bs.BayesianLogisticRegression, labels=True),
    "mlp, laplace": lambda: mixed(bs.BayesianMLPClassifier, labels=True, **MLP),
    "mlp, dropout": lambda: mixed(bs.BayesianMLPRegressor, posterior="mc_dropout", scaling="quantile", **MLP),
    "mlp, ensemble": lambda: mixed(bs.BayesianMLPRegressor, posterior="ensemble", members=2, **MLP),
    "additive, numbers": lambda: additive("numbers", interactions=[("age", "dose")]),
    "additive, labels": lambda: additive("labels", structure="full", interactions=1, numeric_transform="quantile"),
    "additive, classes": lambda: additive("classes", interactions=[("dose", "kind")], posterior="map"),
}


@functools.cache
def estimator(name: str) -> Any:
    """The fitted estimator of this name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ESTIMATORS[name]()


def told(fitted: Any) -> list[Any]:
    """What an estimator says of a few rows and of itself."""
    rows = table().iloc[:7] if hasattr(fitted, "feature_names_in_") else plain_table()[:7]
    found = [fitted.predict(rows), fitted.summary(), fitted.predict_distribution(rows, generator=1).variance]
    if hasattr(fitted, "classes_"):
        found += [fitted.predict_proba(rows), fitted.predict_log_proba(rows), fitted.classes_]
    else:
        found += list(fitted.predict(rows, return_std=True))
    if hasattr(fitted, "effects"):
        return [*found, *_shown(fitted, rows)]
    return [*found, fitted.coef_, fitted.weight_names_] if hasattr(fitted, "coef_") else found


def _shown(fitted: Any, rows: pd.DataFrame) -> list[Any]:
    """What only an additive model says."""
    found: list[Any] = []
    for feature in ("age", "kind"):
        shown = fitted.effects(feature)
        found += [shown.grid, shown.mean, shown.sd, shown.density, shown.missing is None]
    surface, row, most = fitted.surface(*fitted.pairs_[0]), fitted.explain(rows), fitted.importance()
    found += [surface.mean, surface.sd, surface.density, row.contributions, row.sds, row.total_sd]
    found += [most.mean, most.sd, most.at_mean, fitted.prior_precision_, fitted.pairs_, dict(fitted.trace_)]
    return [*found, fitted.n_iter_, str(fitted.ranking_)]


def same(first: Any, second: Any) -> bool:
    """Whether two answers are one, bit by bit."""
    if isinstance(first, np.ndarray):
        equal_nan = first.dtype.kind == "f"
        return first.dtype == second.dtype and np.array_equal(first, second, equal_nan=equal_nan)
    return bool(first == second)
