"""The network estimators as they come, each posterior by its name, beside scikit-learn's models on the same rows.

No option is set but the posterior and the seed. scikit-learn's models have standardised inputs, and its networks the
same two hidden layers of 50 units; a regression's Gaussian has the residuals' variance on the training rows. Seconds
are of the CPU, so that other work on the machine enters little.

    python -m bench.mlp [--sets breast digits] [--posteriors laplace ensemble] [--quick]
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.datasets import load_diabetes, load_digits
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import bayescope as bs
from bench import record
from bench.papers.additive_sets import load

SETS = ("breast", "german", "digits", "adult, 20,000 rows", "diabetes", "concrete", "energy")
POSTERIORS = ("laplace", "last_layer", "map", "variational", "mc_dropout", "ensemble", "swag", "sgmcmc")
# Rows of adult's that are trained on.
ADULT = 20000


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
        name: of the set.
        who: a posterior, or a class of scikit-learn.
        nll: per test row, in nats and y's own unit.
        score: accuracy, or RMSE.
        calibration: the expected calibration error of classes; of a regression the coverage of the 95 % interval.
        seconds: of the CPU, for the fit.
    """

    name: str
    who: str
    nll: float
    score: float
    calibration: float
    seconds: float


Split = tuple[Any, Any, np.ndarray, np.ndarray, bool]


def split(name: str) -> Split:
    """X_train, X_test, y_train, y_test, and whether y are classes."""
    if name in ("digits", "diabetes"):
        X, y = (load_digits if name == "digits" else load_diabetes)(return_X_y=True)
        classes = name == "digits"
        parts = train_test_split(X, y, test_size=0.3, random_state=0, stratify=y if classes else None)
        return (*parts, classes)
    found = load(name.split(",")[0], 0)
    rows = ADULT if name.startswith("adult") else len(found.y_train)
    return found.X_train[:rows], found.X_test, found.y_train[:rows], found.y_test, found.task == "classification"


def peers(classes: bool) -> Iterator[tuple[str, Callable[[], Any]]]:
    """scikit-learn's models."""
    hidden: dict[str, Any] = {"hidden_layer_sizes": (50, 50), "max_iter": 500, "random_state": 0}
    labels = (OneHotEncoder(handle_unknown="ignore", sparse_output=False), make_column_selector(dtype_exclude="number"))
    made: list[Any] = (
        [LogisticRegression(max_iter=2000), MLPClassifier(**hidden), HistGradientBoostingClassifier(random_state=0)]
        if classes
        else [LinearRegression(), MLPRegressor(**hidden), HistGradientBoostingRegressor(random_state=0)]
    )
    for model in made:
        columns = make_column_transformer(labels, remainder="passthrough")
        yield type(model).__name__, partial(make_pipeline, columns, StandardScaler(), model)


def of_peer(name: str, who: str, make: Callable[[], Any], data: Split) -> Row:
    """A model of scikit-learn."""
    train, test, y_train, y_test, classes = data
    train, test = (table.fillna(train.mean(numeric_only=True)) if hasattr(table, "fillna") else pd.DataFrame(table)
                   for table in (train, test))  # fmt: skip
    began = time.process_time()
    model = make().fit(train, y_train)
    seconds = time.process_time() - began
    if classes:
        probs = model.predict_proba(test)
        return Row(name, who, *_of_classes(probs, y_test), seconds)
    mean, noise = model.predict(test), float(np.mean((model.predict(train) - y_train) ** 2))
    apart = mean - y_test
    nll = float(np.mean(0.5 * apart**2 / noise + 0.5 * np.log(2 * np.pi * noise)))
    covered = float(np.mean(np.abs(apart) <= 1.96 * noise**0.5))
    return Row(name, who, nll, float(np.sqrt(np.mean(apart**2))), covered, seconds)


def of_posterior(name: str, posterior: str, data: Split) -> Row:
    """One of the library's."""
    train, test, y_train, y_test, classes = data
    estimator = bs.BayesianMLPClassifier if classes else bs.BayesianMLPRegressor
    began = time.process_time()
    model = estimator(posterior=posterior, random_state=0).fit(train, y_train)
    seconds = time.process_time() - began
    if classes:
        return Row(name, posterior, *_of_classes(model.predict_proba(test), y_test), seconds)
    predictive = model.predict_distribution(test)
    low, high = predictive.interval(0.95)
    covered = float(np.mean((low[:, 0] <= y_test) & (y_test <= high[:, 0])))
    rmse = float(np.sqrt(np.mean((predictive.mean[:, 0] - y_test) ** 2)))
    return Row(name, posterior, -float(np.mean(predictive.log_prob(y_test))), rmse, covered, seconds)


def _of_classes(probs: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    nll, error = bs.metrics.nll(probs, y), bs.metrics.ece(probs, y)
    return float(nll), float(np.mean(probs.argmax(1) == y)), float(error)


def written(rows: list[Row]) -> list[str]:
    """The tables as Markdown, each under its heading."""
    parts: list[str] = []
    for name in dict.fromkeys(row.name for row in rows):
        some = [row for row in rows if row.name == name]
        data = split(name)
        score, calibration = ("accuracy", "ECE") if data[4] else ("RMSE", "coverage of 95 %")
        cells = [
            [r.who, *(f"{each:.3f}" for each in (r.nll, r.score, r.calibration)), f"{r.seconds:.1f}"] for r in some
        ]
        parts += [
            f"## {name}: {len(data[2]):,} training rows, {len(data[3]):,} test rows",
            record.table(["", "NLL", score, calibration, "fit, CPU s"], cells),
        ]
    return parts


def main() -> None:
    """Runs the table and writes it after each set."""
    parser = record.arguments(__doc__)
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS)
    parser.add_argument("--posteriors", nargs="+", default=list(POSTERIORS), choices=POSTERIORS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    sets, posteriors = options.sets, options.posteriors
    for name in sets[:1] if options.quick else sets:
        data = split(name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows += [of_peer(name, who, make, data) for who, make in peers(data[4])]
            for posterior in posteriors[:2] if options.quick else posteriors:
                rows.append(of_posterior(name, posterior, data))
                print(rows[-1], flush=True)
        origin, said = record.made("bench.mlp"), (__doc__ or "").split("\n\n")[1]
        if name != sets[-1] or (sets, posteriors) != (list(SETS), list(POSTERIORS)):
            origin = record.partly(origin)
        text = record.page("Network estimators on tables, as they come", origin, said, written(rows))
        record.save(record.folder(options), "mlp", {"made": origin, "rows": [asdict(row) for row in rows]}, text)


if __name__ == "__main__":
    main()
