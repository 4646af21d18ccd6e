"""A table: three estimators, their predictions, intervals, effects and scores."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

import bayescope as bs


def patients(rows: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """A table of two columns, and who fell ill."""
    source = np.random.default_rng(seed)
    table = pd.DataFrame({"age": source.normal(50.0, 10.0, rows), "dose": source.normal(size=rows)})
    chance = 1.0 / (1.0 + np.exp(-0.1 * (table["age"].to_numpy() - 50.0)))
    return table, (source.uniform(size=rows) < chance).astype(int)


def undecided(p: bs.Predictive, width: float) -> list[int]:
    """The rows whose interval is wide."""
    low, high = p.interval(0.9)
    return [row for row in range(len(p)) if float((high - low)[row].max()) > width]


def main() -> None:
    X, y = patients(60, 0)
    X_new, y_new = patients(20, 1)
    model = bs.BayesianLogisticRegression(prior_precision="evidence").fit(X, y)
    p = model.predict_distribution(X_new)
    probs: np.ndarray = p.probs
    nll: float = bs.metrics.nll(probs, y_new)
    print(model.summary(), model.log_evidence_, nll, undecided(p, 0.5))
    print(p[:3].epistemic.sum(axis=1), p.log_prob(y_new).mean(), model.predict_proba(X_new).argmax(axis=1))
    with TemporaryDirectory() as folder:
        again: bs.BayesianLogisticRegression = bs.load(model.save(Path(folder) / "model.bayes"))
    print(np.abs(again.predict_proba(X_new) - probs).max())
    additive = bs.NeuralAdditiveClassifier(random_state=0, interactions=0).fit(X, y)
    age = additive.effects("age")
    print(age.grid[:2], age.mean[:2], age.low[:2], age.high[:2], additive.importance().as_frame().to_string())
    linear = bs.BayesianLinearRegression().fit(X[["age"]], X["dose"])
    lowest: np.ndarray = linear.predict_distribution(X_new[["age"]]).interval(0.95, of="outcome")[0]
    print(lowest.min(), linear.coefficients().to_string(), linear.posterior_.mean.tolist())


if __name__ == "__main__":
    main()
