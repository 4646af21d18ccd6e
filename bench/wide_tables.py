"""Wide tables: how long a fit takes, and what it keeps.

Tables have five columns with smooth effects among columns of noise; 2,000 further rows judge. An additive model of more
than 64 features takes them in a few at a time. "at once" fits all terms together and then tries them off one by one,
which is what smaller tables have. Seconds are of a processor, in one thread, so that other programs hardly count.

    python -m bench.wide_tables [--quick]
"""

from __future__ import annotations

import time
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import torch

import bayescope as bs
from bayescope.additive.selection import Begun
from bench import record

FURTHER, INFORMATIVE = 2000, 5
MODELS: dict[str, dict[str, Any]] = {
    "regression": {
        "additive": bs.NeuralAdditiveRegressor,
        "linear": bs.BayesianLinearRegression,
        "mlp": bs.BayesianMLPRegressor,
    },
    "classification": {
        "additive": bs.NeuralAdditiveClassifier,
        "linear": bs.BayesianLogisticRegression,
        "mlp": bs.BayesianMLPClassifier,
    },
}
TASKS = ("regression", "classification")


def table(rows: int, columns: int, task: str) -> tuple[pd.DataFrame, np.ndarray]:
    """A table whose first five columns matter, and its targets."""
    source = np.random.default_rng(0)
    X = source.standard_normal((rows + FURTHER, columns))
    f = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] ** 2 + np.tanh(2 * X[:, 2]) + 0.8 * np.abs(X[:, 3]) + 0.7 * X[:, 4] - 1.14
    noise = 0.5 * source.standard_normal(len(f))
    chosen = source.random(len(f)) < 1.0 / (1.0 + np.exp(-2.0 * f))
    frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(columns)])
    return frame, f + noise if task == "regression" else np.where(chosen, "yes", "no")


def measured(model: str, rows: int, columns: int, task: str, *, at_once: bool = False) -> dict[str, Any]:
    """Seconds of a fit, the log loss of further rows, and the features that are on."""
    X, y = table(rows, columns, task)
    options = {} if model == "linear" else {"random_state": 0}
    start = time.process_time()
    with patch.object(Begun, "wide", lambda *_: False) if at_once else patch.object(Begun, "wide", Begun.wide):
        fitted = MODELS[task][model](**options).fit(X[:rows], y[:rows])
    seconds = time.process_time() - start
    nll = -float(np.mean(fitted.predict_distribution(X[rows:]).log_prob(y[rows:])))
    kept = ""
    if model == "additive":
        on = {name for name, layers in fitted.prior_precision_.items() if _least(layers) < 1e8}
        true = len(on & {f"x{j}" for j in range(INFORMATIVE)})
        kept = f"{true} of {INFORMATIVE}, and {len(on) - true} others"
    how = "at once" if at_once else ""
    return {
        "model": f"{model} {how}".strip(),
        "table": f"{rows} × {columns:,}",
        "task": task,
        "seconds": f"{seconds:.1f}",
        "nll": f"{nll:.3f}",
        "kept": kept,
    }


def _least(layers: float | dict[str, float]) -> float:
    """The least precision of what an effect is linear in."""
    return layers if isinstance(layers, float) else min(value for name, value in layers.items() if name != "inner")


def main() -> None:
    """Measures, prints and saves."""
    options = record.arguments(__doc__).parse_args()
    torch.set_num_threads(1)
    sizes = [("additive", 60, 80)] if options.quick else [
        ("additive", 400, 500), ("additive", 400, 5000), ("additive", 400, 10_000),
        ("linear", 400, 500), ("linear", 400, 5000), ("mlp", 400, 500),
    ]  # fmt: skip
    fits = [measured(*size, task) for size in sizes for task in (TASKS[:1] if options.quick else TASKS)]
    if not options.quick:
        fits += [measured("additive", 200, 70, task, at_once=once) for task in TASKS for once in (True, False)]
    parts = [
        record.table(["model", "table", "task", "seconds", "NLL of further rows", "features that are on"],
                     [list(each.values()) for each in fits]),
    ]  # fmt: skip
    record.publish(options, "bench.wide_tables", "Wide tables", record.method_in(__doc__), parts, {"fits": fits})


if __name__ == "__main__":
    main()
