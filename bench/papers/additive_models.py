"""The models that are compared on tables: each is fitted to one fold, and what it says of the test rows is scored.

Peers are run as they come. Those for a number y predict no distribution: theirs is Gaussian, with the mean squared
residual on 15 % of the training rows for its variance, from a first fit to the others. The second fit is to all
training rows; it gives the means, and it alone is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import bayescope as bs
from bench.papers.additive_sets import Split
from bench.papers.common import Record, timed, warned

Floats = NDArray[np.float64]
Model = Callable[[Split], Record]

THREADS = 2
HELD_OUT = 0.15


# --- scores -----------------------------------------------------------------------------------------------------------


def regression_scores(log_prob: Floats, mean: Floats, interval: tuple[Floats, Floats], y: Floats) -> Record:
    """NLL, root mean squared error, and how much of the 95 % intervals is kept and how wide they are."""
    low, high = interval
    return {
        "nll": float(-log_prob.mean()),
        "rmse": float(np.sqrt(((mean - y) ** 2).mean())),
        "coverage": bs.metrics.coverage(low, high, y),
        "width": float((high - low).mean()),
    }


def gaussian_scores(mean: Floats, variance: float, y: Floats) -> Record:
    """Those of a Gaussian with one variance for all rows."""
    log_prob = -0.5 * (np.log(2 * np.pi * variance) + (y - mean) ** 2 / variance)
    half = ndtri(0.975) * np.sqrt(variance)
    return regression_scores(log_prob, mean, (mean - half, mean + half), y)


def classification_scores(probs: Floats, y: NDArray[np.int64]) -> Record:
    """NLL, areas under the two curves, and the calibration error, from probabilities (N, 2)."""
    return {
        "nll": bs.metrics.nll(probs, y),
        "auroc": bs.metrics.auroc(probs[:, 1], y),
        "auprc": float(average_precision_score(y, probs[:, 1])),
        "ece": bs.metrics.ece(probs, y),
    }


# --- peers ------------------------------------------------------------------------------------------------------------


def peer(split: Split, *, regressor: Callable[[], Any], classifier: Callable[[], Any]) -> Record:
    """A model of scikit-learn's kind."""
    record: Record = {"fit": {}}
    if split.task == "classification":
        model = classifier()
        with warned(record["fit"]), timed(record["fit"]):
            model.fit(split.X_train, split.y_train)
        return record | classification_scores(model.predict_proba(split.X_test), split.y_test)
    x, x_held_out, y, y_held_out = train_test_split(split.X_train, split.y_train, test_size=HELD_OUT, random_state=0)
    noise_variance = float(((regressor().fit(x, y).predict(x_held_out) - y_held_out) ** 2).mean())
    model = regressor()
    with warned(record["fit"]), timed(record["fit"]):
        model.fit(split.X_train, split.y_train)
    return record | gaussian_scores(model.predict(split.X_test), noise_variance, split.y_test)


def linear(last: Any) -> Any:
    """A linear model of labels as 0/1 and of standardised numbers; one that is missing is the median, and marked."""
    numbers = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    labels = OneHotEncoder(handle_unknown="ignore")
    inputs = make_column_transformer(
        (numbers, make_column_selector(dtype_include=np.number)),
        (labels, make_column_selector(dtype_exclude=np.number)),
    )
    return make_pipeline(inputs, last)


def boosting_machine(kind: str, **options: Any) -> Any:
    """An explainable boosting machine, ``"Regressor"`` or ``"Classifier"``."""
    # Imported here, and not above, so that committed results are shown where there is no such package.
    return getattr(import_module("interpret.glassbox"), f"ExplainableBoosting{kind}")(
        n_jobs=THREADS, random_state=0, **options
    )


PEERS: dict[str, Model] = {
    "linear": partial(
        peer,
        regressor=lambda: linear(LinearRegression()),
        classifier=lambda: linear(LogisticRegression(max_iter=1000)),
    ),
    "boosting": partial(
        peer,
        regressor=lambda: HistGradientBoostingRegressor(random_state=0),
        classifier=lambda: HistGradientBoostingClassifier(random_state=0),
    ),
    "ebm_no_pairs": partial(
        peer,
        regressor=lambda: boosting_machine("Regressor", interactions=0),
        classifier=lambda: boosting_machine("Classifier", interactions=0),
    ),
    "ebm": partial(
        peer,
        regressor=lambda: boosting_machine("Regressor"),
        classifier=lambda: boosting_machine("Classifier"),
    ),
}


# --- ours -------------------------------------------------------------------------------------------------------------


def additive(split: Split, **options: Any) -> Record:
    """Our neural additive model, with the options of its estimator."""
    record: Record = {"fit": {}}
    regression = split.task == "regression"
    # Looked up here, and not above, so that the peers run where there is no such estimator yet.
    estimator = bs.NeuralAdditiveRegressor if regression else bs.NeuralAdditiveClassifier
    model = estimator(random_state=0, **options)
    with warned(record["fit"]), timed(record["fit"]):
        model.fit(split.X_train, split.y_train)
    if not regression:
        return record | classification_scores(model.predict_proba(split.X_test), split.y_test)
    answer = model.predict_distribution(split.X_test)
    log_prob, mean, *interval = map(
        np.ravel, (answer.log_prob(split.y_test), answer.mean, *answer.interval(0.95, of="outcome"))
    )
    return record | regression_scores(log_prob, mean, (interval[0], interval[1]), split.y_test)


OURS: dict[str, Model] = {
    "nam_map": partial(additive, posterior="map"),
    "la_nam": additive,
    "la_nam_pairs": partial(additive, interactions="auto"),
    "la_nam_published_pairs": partial(additive, interactions=10, ranking="mutual_information"),
}

MODELS = PEERS | OURS
TITLES = {
    "linear": "linear or logistic model",
    "boosting": "gradient boosting (scikit-learn, histograms)",
    "ebm_no_pairs": "EBM without pairs",
    "ebm": "EBM",
    "nam_map": "neural additive, MAP",
    "la_nam": "neural additive, Laplace",
    "la_nam_pairs": "neural additive, Laplace, pairs while the evidence rises",
    "la_nam_published_pairs": "neural additive, Laplace, 10 pairs by the published ranking",
}
