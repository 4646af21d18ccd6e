"""The speed of Poisson regression on a million rows, beside scikit-learn's and statsmodels' point estimates.

All fit one table in one process, in turn; the ratios are what counts. Our logistic posterior of the same inputs takes
its turn too: a likelihood that is not its own costs no more. Additive models of counts stand beside additive models of
Gaussian numbers with the same effects; each fits three tables of 20,000 rows, because the number of epochs varies.

    python -m bench.counts [--rows 1000000] [--columns 50] [--turns 5] [--no-peers] [--quick]
"""

from __future__ import annotations

from statistics import median
from typing import Literal

import numpy as np
import torch
from sklearn.linear_model import PoissonRegressor

from bayescope.estimators import BayesianGeneralizedLinearModel, BayesianLogisticRegression, NeuralAdditiveRegressor
from bench import linear, record, turns
from bench.turns import Machine, Work, in_turns, ratios, speed_table

LOGISTIC = "logistic posterior, prior by evidence"
ADDITIVE = "additive, Gaussian"


def works(rows: int, columns: int, peers: bool) -> list[Work]:
    """Our posterior of counts, our logistic one, and the peers' points.

    scikit-learn's default penalty shrinks the weights much more than the evidence does and ends sooner: its other
    one, 1/N, is that of its logistic regression.
    """
    X, labels = linear.table(rows, columns)
    rng = np.random.default_rng(1)
    y = rng.poisson(np.exp(np.clip(0.15 * (X @ rng.standard_normal(columns)), -5.0, 5.0)))
    least = {"flops": float(rows) * columns**2, "bytes": float(X.nbytes)}
    ours = BayesianGeneralizedLinearModel(likelihood="poisson")
    found = [
        Work(LOGISTIC, lambda: BayesianLogisticRegression().fit(X, labels), LOGISTIC, rows=rows),
        Work("Poisson posterior, prior by evidence", lambda: ours.fit(X, y), LOGISTIC, rows=rows, budget=1.3, **least),
        Work("scikit-learn, penalty 1/N", lambda: PoissonRegressor(alpha=1.0 / rows).fit(X, y), LOGISTIC, rows=rows),
        Work("scikit-learn, default penalty", lambda: PoissonRegressor().fit(X, y), LOGISTIC, rows=rows),
    ]
    if peers:
        from statsmodels import api  # a peer, which the environment of the benchmarks has

        point = lambda: api.GLM(y, api.add_constant(X), family=api.families.Poisson()).fit()  # noqa: E731
        found.append(Work("statsmodels, GLM", point, LOGISTIC, rows=rows))
    return found


def additive_works(rows: int, tables: int = 3) -> list[Work]:
    """Additive models of Gaussian numbers and of counts, of eight inputs of which three matter."""
    outcomes = []
    for seed in range(tables):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((rows, 8)).round(1)
        f = np.sin(X[:, 0]) + 0.15 * X[:, 1] ** 2 + 0.3 * X[:, 2]
        outcomes.append((X, {"gaussian": f + rng.standard_normal(rows), "poisson": rng.poisson(np.exp(f))}))

    def fit(name: Literal["gaussian", "poisson"]) -> None:
        for X, y in outcomes:
            NeuralAdditiveRegressor(likelihood=name, random_state=0).fit(X, y[name])

    return [
        Work(ADDITIVE, lambda: fit("gaussian"), ADDITIVE, rows=rows * tables),
        Work("additive, Poisson", lambda: fit("poisson"), ADDITIVE, rows=rows * tables, budget=1.3),
    ]


def main() -> None:
    """Measures, prints and saves."""
    parser = turns.arguments(__doc__)
    parser.add_argument("--rows", type=int, help="1,000,000; 20,000 of a quick run")
    parser.add_argument("--columns", type=int, default=50)
    options = turns.chosen(parser)
    rows = options.rows or (20_000 if options.quick else 1_000_000)
    compared = works(rows, options.columns, options.peers) + additive_works(1_000 if options.quick else 20_000)
    in_turns(compared, options.turns)
    found = ratios(compared, Machine.measured(dtype=torch.float64))
    seconds = {work.name: median(work.seconds) for work in compared}
    medians = ", ".join(f"{name} {value:.2f} s" for name, value in seconds.items())
    origin = record.made("bench.counts")
    how = (
        f"{rows:,} rows, {options.columns} columns, float64. Ratios in the same turn of one process: the median, and "
        f"the least and greatest. Medians: {medians}."
    )
    text = record.page("Poisson regression: speed", origin, how, [speed_table(found)])
    results = {"made": origin, "rows": rows, "columns": options.columns, "ratios": found, "seconds": seconds}
    record.save(record.folder(options), "counts", results, text)


if __name__ == "__main__":
    main()
