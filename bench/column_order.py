"""The order of columns: by how much predictions move when a table's columns are reversed.

Tables have 60 rows and 8 columns, five of which have smooth effects; 2,000 further rows are predicted by a fit of the
columns as they stand and by a fit of the columns in reverse order. Differences are the largest over these rows, of the
means and of the variances, as a share of the largest mean and of the largest variance.

    python -m bench.column_order [--quick]
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from bench import record
from bench.wide_tables import FURTHER, MODELS, TASKS, table

ROWS, COLUMNS = 60, 8


def moved(model: str, task: str) -> dict[str, Any]:
    """The largest difference of means and variances after the columns were reversed, as a share of the largest one."""
    X, y = table(ROWS, COLUMNS, task)
    options = {} if model == "linear" else {"random_state": 0}
    answers = []
    for each in (X, X[[*reversed(X.columns)]]):
        p = MODELS[task][model](**options).fit(each[:ROWS], y[:ROWS]).predict_distribution(each[ROWS:])
        answers.append(np.stack([np.asarray(part).reshape(FURTHER, -1) for part in (p.mean, p.variance)]))
    difference = np.abs(answers[1] - answers[0]).max((1, 2)) / np.abs(answers[0]).max((1, 2))
    return {"model": model, "task": task, "mean": f"{difference[0]:.0e}", "variance": f"{difference[1]:.0e}"}


def main() -> None:
    """Measures, prints and saves."""
    options = record.arguments(__doc__).parse_args()
    torch.set_num_threads(1)
    orders = [moved(model, task) for model in (["linear"] if options.quick else MODELS[TASKS[0]]) for task in TASKS]
    parts = [record.table(["model", "task", "means", "variances"], [list(each.values()) for each in orders])]
    record.publish(
        options, "bench.column_order", "Columns in reverse order", record.method_in(__doc__), parts, {"orders": orders}
    )


if __name__ == "__main__":
    main()
