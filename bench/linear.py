"""The speed and memory of logistic regression on a million rows, beside scikit-learn's point estimate.

Both fit the same table in one process, in turn; the ratio is what counts. Memory is measured in a
process of its own: the highest resident size during our fit, which the kernel notes, less what was resident before it.

    python -m bench.linear [--rows 1000000] [--columns 50] [--turns 5] [--quick]
"""

from __future__ import annotations

import json
import subprocess
import sys
from statistics import median

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from bayescope.estimators import BayesianLogisticRegression
from bench import record, turns
from bench.memory import peak_growth
from bench.turns import Machine, Work, in_turns, ratios, speed_table

LBFGS = "scikit-learn, lbfgs"


def table(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Correlated normal inputs, and labels from a logistic model with about half of its information in ten inputs."""
    rng = np.random.default_rng(0)
    mixing = np.eye(columns) + 0.5 * rng.standard_normal((columns, columns)) / np.sqrt(columns)
    X = rng.standard_normal((rows, columns))
    for start in range(0, rows, 10_000):
        X[start : start + 10_000] = X[start : start + 10_000] @ mixing
    logits = X @ (0.3 * rng.standard_normal(columns)) + 0.3
    return X, (rng.random(rows) < 1.0 / (1.0 + np.exp(-logits))).astype(np.int64)


def measure_memory(rows: int, columns: int) -> dict[str, float]:
    """Our fit's memory beside the data's, in this process, after a small fit has loaded the libraries' own."""
    X, y = table(rows, columns)
    BayesianLogisticRegression(prior_precision="evidence").fit(X[:5000], y[:5000])
    grown = peak_growth(lambda: BayesianLogisticRegression(prior_precision="evidence").fit(X, y))
    return {"data_mb": X.nbytes / 1e6, "peak_growth_mb": grown / 1e6, "total_over_data": 1.0 + grown / X.nbytes}


def works(rows: int, columns: int) -> list[Work]:
    """Both fits of one table, and our whole posterior's at a fixed prior.

    A posterior's Hessian alone asks for N D² operations, and the table has to be read once.
    """
    X, y = table(rows, columns)
    evidence = lambda: BayesianLogisticRegression(prior_precision="evidence").fit(X, y)  # noqa: E731
    fixed = lambda: BayesianLogisticRegression(prior_precision=1.0).fit(X, y)  # noqa: E731
    least = {"flops": float(rows) * columns**2, "bytes": float(X.nbytes)}
    return [
        Work(LBFGS, lambda: LogisticRegression(solver="lbfgs").fit(X, y), LBFGS, rows=rows),
        Work("posterior, prior by evidence", evidence, LBFGS, rows=rows, budget=1.0, goal=0.5, **least),
        Work("posterior, prior given", fixed, LBFGS, rows=rows, **least),
    ]


def main() -> None:
    """Measures, prints and saves."""
    parser = turns.arguments(__doc__)
    parser.add_argument("--rows", type=int, help="1,000,000; 20,000 of a quick run")
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--memory", action="store_true", help="measure the memory alone, in this process")
    options = turns.chosen(parser)
    rows = options.rows or (20_000 if options.quick else 1_000_000)
    if options.memory:
        print(json.dumps(measure_memory(rows, options.columns)))
        return
    command = [sys.executable, "-m", "bench.linear", "--memory", "--rows", str(rows), "--columns", str(options.columns)]
    memory = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    compared = works(rows, options.columns)
    in_turns(compared, options.turns)
    found = ratios(compared, Machine.measured(dtype=torch.float64))
    seconds = {work.name: median(work.seconds) for work in compared}
    medians = ", ".join(f"{name} {value:.2f} s" for name, value in seconds.items())
    origin = record.made("bench.linear")
    how = (
        f"{rows:,} rows, {options.columns} columns, float64; {LBFGS} is scikit-learn's point estimate. Ratios in the "
        "same turn of one process: the median, and the least and greatest. Medians: " + medians + "."
    )
    held = (
        f"The table takes {memory['data_mb']:.0f} MB, and the fit {memory['peak_growth_mb']:.0f} MB more at its "
        f"highest: {memory['total_over_data']:.2f} times the table in all."
    )
    text = record.page("Logistic regression: speed and memory", origin, how, [speed_table(found), held])
    results = {"made": origin, "rows": rows, "columns": options.columns, "ratios": found, "memory": memory}
    record.save(record.folder(options), "linear", {**results, "seconds": seconds}, text)


if __name__ == "__main__":
    main()
