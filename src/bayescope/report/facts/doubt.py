"""Where the model doubts: the rows that it knows least about, and whether doubt goes with error."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy import stats

from bayescope import metrics
from bayescope.report.facts.judged import Judged
from bayescope.report.facts.predictions import Predictions

LISTED = 15
SHOWN = 250
# Intervals of three classes and more are integrals of their own, and take their time.
SHOWN_OF_MANY = 120


@final
@dataclass(frozen=True, eq=False)
class Doubt:
    """Uncertainty row by row.

    Attributes:
        epistemic: whether ``sd`` is the epistemic part; a point posterior has none, and then it is the whole.
        sd: of the predicted class's probability, or of the mean of y, shape (N,).
        predicted: the predicted class's code, or the mean of y, shape (N,).
        error: 1 where the predicted class is wrong, or ∣y − mean∣, shape (N,).
        listed: places of the rows with the largest sd, largest first.
        shown: places of the rows that can be looked at one by one: those listed, then others at random.
        most: the mean error (for numbers the RMSE) of the tenth of the rows with the largest sd.
        rest: that of all other rows.
        association: P(sd of a wrong row > sd of a right one), or the rank correlation of sd and ∣y − mean∣; NaN where
            it is undefined.
    """

    epistemic: bool
    sd: np.ndarray
    predicted: np.ndarray
    error: np.ndarray
    listed: np.ndarray
    shown: np.ndarray
    most: float
    rest: float
    association: float


def doubt(judged: Judged, told: Predictions, random_state: int) -> Doubt:
    """Ranks the rows by their epistemic uncertainty and compares the errors of the most uncertain with the others'.

    Args:
        judged: the rows.
        told: their predictions.
        random_state: of the rows that are shown beside those listed.
    """
    rows = np.arange(len(judged))
    classes = bool(judged.classes)
    predicted = told.mean.argmax(1) if classes else told.mean[:, 0]
    column = predicted if classes else np.zeros(len(rows), dtype=int)
    sd = told.epistemic[rows, column]
    epistemic = bool((sd > 0).any())
    if not epistemic:
        sd = np.hypot(told.epistemic, told.aleatoric)[rows, column]
    error = (predicted != judged.y).astype(np.float64) if classes else np.abs(judged.y - predicted)
    order = np.argsort(-sd, kind="stable")
    listed = order[:LISTED]
    most = SHOWN if told.mean.shape[1] <= 2 else SHOWN_OF_MANY
    others = np.random.default_rng(random_state).permutation(order[LISTED:])[: most - len(listed)]
    tenth = max(1, len(rows) // 10)
    mean = np.mean if classes else _root_mean_square
    return Doubt(
        epistemic, sd, predicted, error, listed, np.concatenate([listed, np.sort(others)]),
        float(mean(error[order[:tenth]])), float(mean(error[order[tenth:]])), _association(classes, sd, error),
    )  # fmt: skip


def _root_mean_square(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def _association(classes: bool, sd: np.ndarray, error: np.ndarray) -> float:
    if np.ptp(error) == 0 or np.ptp(sd) == 0:
        return math.nan
    if not classes:
        return float(stats.spearmanr(sd, error).statistic)
    return metrics.ood_auroc(sd[error == 0], sd[error == 1])
