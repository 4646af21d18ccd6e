"""What the estimator says of the judged rows: means, both kinds of uncertainty, densities, quantiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from bayescope.predictive import Predictive
from bayescope.report.facts.judged import Judged, take

BLOCK = 2000
# Central intervals whose ends are the quantiles 0.05, 0.10, …, 0.95: the edges of twenty bins of equal probability.
LEVELS = tuple(round(0.1 * step, 1) for step in range(9, 0, -1))
MIDDLE = 1e-6
WIDE = 0.95


@final
@dataclass(frozen=True, eq=False)
class Predictions:
    """Of N rows.

    Attributes:
        mean: E[y∣x], for classes their probabilities, shape (N, K).
        epistemic: standard deviations of E(y∣f) under the posterior, shape (N, K).
        aleatoric: standard deviations of the noise, √E Var(y∣f), shape (N, K).
        log_prob: log p(y∣x) of what happened, shape (N,).
        quantiles: of y at 0.05, 0.10, …, 0.95, shape (N, 19); of classes there are none, shape (N, 0).
        interval: the central 95 % of y, shape (N, 2); of classes (N, 0).
    """

    mean: np.ndarray
    epistemic: np.ndarray
    aleatoric: np.ndarray
    log_prob: np.ndarray
    quantiles: np.ndarray
    interval: np.ndarray


def predictions(estimator: Any, judged: Judged) -> Predictions:
    """Asks for all rows, in blocks that bound the memory.

    Args:
        estimator: fitted.
        judged: the rows.
    """
    parts: list[tuple[np.ndarray, ...]] = []
    for start in range(0, len(judged), BLOCK):
        some = np.arange(start, min(start + BLOCK, len(judged)))
        told = estimator.predict_distribution(take(judged.X, some))
        quantiles, interval = (np.empty((len(some), 0)),) * 2 if judged.classes else _quantiles(told)
        parts.append(
            (
                np.asarray(told.mean),
                np.sqrt(np.asarray(told.epistemic)),
                np.sqrt(np.asarray(told.aleatoric)),
                np.asarray(told.log_prob(judged.y[some])),
                quantiles,
                interval,
            )
        )
    return Predictions(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _quantiles(told: Predictive) -> tuple[np.ndarray, np.ndarray]:
    ends = [told.interval(level, of="outcome") for level in (*LEVELS, MIDDLE)]
    low, high = (np.stack([np.asarray(end[side])[:, 0] for end in ends], axis=1) for side in (0, 1))
    wide = np.stack([np.asarray(end)[:, 0] for end in told.interval(WIDE, of="outcome")], axis=1)
    return np.concatenate([low, high[:, -2::-1]], axis=1), wide
