"""The speed and memory of logistic regression on a million rows, beside scikit-learn's point estimate.

Both fit the same table in one process, in turn; the ratio of the medians is what counts. Memory is measured in a
process of its own: the highest resident size during our fit, sampled, less what was resident before it.

    python -m bench.linear [--rows 1000000] [--columns 50] [--repeats 3]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from sklearn.linear_model import LogisticRegression

from bayescope.estimators import BayesianLogisticRegression

RESULTS = Path(__file__).parent / "results" / "linear.json"


def table(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Correlated normal inputs, and labels from a logistic model with about half of its information in ten inputs."""
    rng = np.random.default_rng(0)
    mixing = np.eye(columns) + 0.5 * rng.standard_normal((columns, columns)) / np.sqrt(columns)
    X = rng.standard_normal((rows, columns))
    for start in range(0, rows, 10_000):
        X[start : start + 10_000] = X[start : start + 10_000] @ mixing
    logits = X @ (0.3 * rng.standard_normal(columns)) + 0.3
    return X, (rng.random(rows) < 1.0 / (1.0 + np.exp(-logits))).astype(np.int64)


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def resident() -> int:
    """Bytes of this process in memory."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def peak_growth(work: Callable[[], object]) -> int:
    """The highest resident size during a call less that before it, sampled every millisecond."""
    before, peak, done = resident(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.001):
            peak[0] = max(peak[0], resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    work()
    done.set()
    watcher.join()
    return max(peak[0], resident()) - before


def measure_memory(rows: int, columns: int) -> dict[str, float]:
    """Our fit's memory beside the data's, in this process, after a small fit has loaded the libraries' own."""
    X, y = table(rows, columns)
    BayesianLogisticRegression(prior_precision="evidence").fit(X[:5000], y[:5000])
    grown = peak_growth(lambda: BayesianLogisticRegression(prior_precision="evidence").fit(X, y))
    return {"data_mb": X.nbytes / 1e6, "peak_growth_mb": grown / 1e6, "total_over_data": 1.0 + grown / X.nbytes}


def measure_time(rows: int, columns: int, repeats: int) -> dict[str, object]:
    """Seconds of both fits, in turn."""
    X, y = table(rows, columns)
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(repeats):
        ours.append(seconds(lambda: BayesianLogisticRegression(prior_precision="evidence").fit(X, y)))
        theirs.append(seconds(lambda: LogisticRegression(solver="lbfgs").fit(X, y)))
    return {
        "bayescope_seconds": ours,
        "scikit_learn_seconds": theirs,
        "ratio_of_medians": median(ours) / median(theirs),
        "load_average": os.getloadavg(),
        "cores": os.cpu_count(),
    }


def main() -> None:
    """Measures, prints and saves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory", action="store_true", help="measure the memory alone, in this process")
    options = parser.parse_args()
    if options.memory:
        print(json.dumps(measure_memory(options.rows, options.columns)))
        return
    size = ["--rows", str(options.rows), "--columns", str(options.columns)]
    command = [sys.executable, "-m", "bench.linear", "--memory", *size]
    memory = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    results = {
        "rows": options.rows,
        "columns": options.columns,
        "time": measure_time(options.rows, options.columns, options.repeats),
        "memory": memory,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
