"""The columns of a comparison: what each measures, how it is written, and which of its values is best."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import final

import pandas as pd

from bayescope.plots import style

Best = Callable[[pd.Series], Hashable]
LOWEST: Best = pd.Series.idxmin
HIGHEST: Best = pd.Series.idxmax
LOWER_BOUND = "lower bound"
ESTIMATE = "estimate"


@final
@dataclass(frozen=True)
class Column:
    """One measure of a comparison.

    Attributes:
        name: of the table's column.
        label: its heading for readers.
        digits: after the decimal point.
        best: the row of the best value; ``None`` where no value is better than another.
        meaning: what it measures, in one line.
    """

    name: str
    label: str
    digits: int
    best: Best | None
    meaning: str


def columns(reference: str) -> tuple[Column, ...]:
    """All columns that hold numbers, in order.

    Args:
        reference: the posterior that the others are compared with.
    """
    against = style.label(reference)
    return (
        Column("nll", "NLL", 4, LOWEST, "mean −log p(y∣x) of the test rows, in nats"),
        Column("brier", "Brier", 4, LOWEST, "mean squared error of the test rows' probabilities"),
        Column("ece", "ECE", 4, LOWEST, "expected calibration error of the test rows"),
        Column(
            "auroc",
            "AUROC",
            4,
            HIGHEST,
            "of the test rows; for three classes and more the mean of each against the rest",
        ),
        Column(
            f"tv_to_{reference}", f"TV to {against}", 4, LOWEST, f"½ Σ∣p − p_{against}∣, averaged over the test rows"
        ),
        Column("sd_error", "sd error", 3, LOWEST, f"max ∣sd/sd_{against} − 1∣ over the weights' marginals"),
        Column("log_evidence", "log evidence", 2, None, "log p(training labels) in nats; ≥ marks a lower bound (ELBO)"),
        Column("loo", "LOO", 2, HIGHEST, "PSIS-LOO, Σ log p(y∣x, all other rows) over the training rows, in nats"),
        Column("loo_warnings", "k̂ > 0.7", 0, None, "training rows whose PSIS-LOO estimate is unreliable"),
        Column("fit_seconds", "fit s", 3, None, "wall-clock seconds of the fit"),
        Column("predict_seconds", "predict s", 3, None, "wall-clock seconds for the test rows"),
    )


def written(table: pd.DataFrame, column: Column) -> list[str]:
    """A column's cells as text; a blank where the quantity is undefined.

    Args:
        table: of a comparison.
        column: one of its columns.
    """
    bound = table["evidence_kind"] == LOWER_BOUND if column.name == "log_evidence" else [False] * len(table)
    return [
        "" if math.isnan(value) else ("≥ " if below else "") + f"{value:.{column.digits}f}".replace("-", "−")
        for value, below in zip(table[column.name], bound, strict=True)
    ]


def best_cells(table: pd.DataFrame, column: Column, reference: str) -> list[bool]:
    """Which cells equal the best one as written. The reference does not compete in its distance to itself.

    Args:
        table: of a comparison.
        column: one of its columns.
        reference: the name of the reference's row.
    """
    distance = column.name in {f"tv_to_{reference}", "sd_error"}
    competing = table[column.name].drop(reference) if distance else table[column.name]
    if column.best is None or competing.notna().sum() < 2:
        return [False] * len(table)
    cells = dict(zip(table.index, written(table, column), strict=True))
    winner = cells[column.best(competing)]
    return [cell == winner and name in competing.index for name, cell in cells.items()]
