"""What a report says of a model, beside what it said before: intervals, bins, rows, and how wrong the posterior is.

Heart (Statlog) and Pima, with every fifth row held out. "Before" is computed from the same predictions by the rule that
reports had: percentiles of a bootstrap over rows for AUROC, ten bins in the picture beside an error of fifteen, rows
numbered among the held-out ones. The posterior is held against the exact one of its own training rows, by NUTS.

    python -m bench.reports [--quick]
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pandas as pd

import bayescope as bs
from bayescope.comparison.resampling import TAILS
from bayescope.report.judged import Judged, predictions
from bayescope.report.reference import TrainingRows, standing
from bayescope.report.statistics import class_scores, newcombe
from bench import record
from bench.first_answer_laplace import FOLDER

DRAWS = 1000
BINS_BEFORE = 10
DOUBTED = 4


def tables() -> dict[str, tuple[pd.DataFrame, pd.Series]]:
    """The features and the classes of each table."""
    heart = pd.read_csv(FOLDER / "tabular" / "heart" / "statlog_heart.dat", sep=r"\s+")
    pima = pd.read_csv(FOLDER / "tabular" / "pima-indians-diabetes.csv", header=None).add_prefix("x")
    return {"heart": (heart.iloc[:, :-1], heart.iloc[:, -1]), "Pima": (pima.iloc[:, :-1], pima.iloc[:, -1])}


def percentiles(probs: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """The ends of AUROC's interval by the bootstrap over rows."""
    source = np.random.default_rng(0)
    found: list[float] = []
    while len(found) < DRAWS:
        rows = source.integers(len(y), size=len(y))
        if 0 < y[rows].sum() < len(y):
            found.append(bs.metrics.auroc(probs[rows], y[rows]))
    low, high = np.quantile(found, TAILS)
    return float(low), float(high)


def between(low: float, high: float) -> str:
    """An interval in a cell."""
    return f"{low:.3f} to {high:.3f}"


def judge(name: str, model: Any, X: pd.DataFrame, y: pd.Series) -> tuple[dict[str, Any], dict[str, Any]]:
    """The row of each of the two tables of the page."""
    held_out = np.arange(len(X)) % 5 == 4
    training = TrainingRows(X[~held_out], y[~held_out])
    model.fit(X[~held_out], y[~held_out])
    judged = Judged.of(model, X[held_out], y[held_out], 0)
    predicted = predictions(model, judged)
    scores = {score.name: score for score in class_scores(judged, predicted, 0)}
    probs, codes = predicted.mean[:, 1], judged.y
    doubted = np.argsort(-predicted.epistemic.reshape(len(codes), -1).max(1), kind="stable")[:DOUBTED]
    # The bins of a reliability diagram that hold rows.
    confidence = np.maximum(probs, 1.0 - probs)
    filled = [
        len(set(np.minimum((confidence * bins).astype(int), bins - 1))) for bins in (BINS_BEFORE, bs.metrics.BINS)
    ]
    begun = time.perf_counter()
    found = standing(model, judged, training, "auto", 0)
    seconds = time.perf_counter() - begun
    said = {
        "model": name,
        "AUROC": f"{scores['auroc'].value:.3f}",
        "before": between(*percentiles(probs, codes)),
        "after": between(scores["auroc"].low, scores["auroc"].high),
        "bins with rows, before": f"{filled[0]} of {BINS_BEFORE}, beside an ECE of {bs.metrics.BINS}",
        "bins with rows, after": f"{filled[1]} of {bs.metrics.BINS}",
        "most doubted, before": ", ".join(map(str, doubted)),
        "most doubted, after": ", ".join(str(judged.row_names.values[row]) for row in doubted),
    }
    wrong: dict[str, Any] = {"model": name, "before": "nothing", "held against": found.method or found.reason}
    if found.mean is not None and found.spread is not None:
        wrong |= {
            "directions": found.directions,
            "probabilities off, mean": f"{found.mean.typical:.3f}",
            "probabilities off, largest": f"{found.mean.largest:.3f}",
            "sds off, mean": f"{found.spread.typical:.0%}",
            "sds off, largest": f"{found.spread.largest:.0%}",
            "Pareto k": "" if found.pareto_k is None else f"{found.pareto_k:.2f}",
        }
    return said, wrong | {"seconds": f"{seconds:.1f}"}


def main() -> None:
    """Measures, prints and saves."""
    options = record.arguments(__doc__).parse_args()
    makers = {"linear": bs.BayesianLogisticRegression, "additive": lambda: bs.NeuralAdditiveClassifier(random_state=0)}
    rows = [
        judge(f"{table}, {name}", make(), X, y)
        for table, (X, y) in (list(tables().items())[:1] if options.quick else tables().items())
        for name, make in makers.items()
    ]
    said, wrong = [row[0] for row in rows], [row[1] for row in rows]
    certain = np.repeat([0, 1], [24, 30])
    area = bs.metrics.auroc(certain.astype(float), certain)
    perfect = (
        f"If 24 rows of one class and 30 of the other are ranked without an error, AUROC is {area:.0f}. The interval "
        f"was {between(*percentiles(certain.astype(float), certain))} and is {between(*newcombe(area, certain == 1))}."
    )
    parts = [
        "## What the page says", record.table_of(said, "g"), perfect,
        "## How wrong the posterior is", record.table_of(wrong, "g"),
    ]  # fmt: skip
    title = "Reports: what they say of their own model"
    record.publish(options, "bench.reports", title, record.method_in(__doc__), parts, {"said": said, "wrong": wrong})


if __name__ == "__main__":
    main()
