"""What a contender says of the test rows, read from its predictive in blocks of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self, final

import numpy as np
import pandas as pd
from scipy.special import log_softmax

from bayescope.comparison.resampling import evenly
from bayescope.comparison.split import TrainTestSplit
from bayescope.estimators.base import log_probabilities
from bayescope.predictive import Predictive

ROWS = 1024  # predicted at a time
COVERAGE = 0.95
# The levels of the quantiles that two predictives are compared by, symmetric around ½.
LEVELS = (np.arange(32) + 0.5) / 32
MOST_ROWS = 500  # whose quantiles are compared

Predict = Callable[[pd.DataFrame], Predictive]


@final
@dataclass(frozen=True, eq=False)
class ClassAnswers:
    """Class probabilities.

    Attributes:
        log_probs: log class probabilities of the test rows, shape (N, K).
        y: their classes, 0…K−1.
        ordered: whether the classes are in an order.
    """

    log_probs: np.ndarray
    y: np.ndarray
    ordered: bool = False

    @classmethod
    def read(cls, predict: Predict, data: TrainTestSplit) -> Self:
        return cls(class_log_probs(predict, data.X_test, len(data.labels)), data.y_test, data.ordered)

    @property
    def probs(self) -> np.ndarray:
        """Class probabilities of the test rows, shape (N, K)."""
        return np.exp(self.log_probs)


@final
@dataclass(frozen=True, eq=False)
class NumberAnswers:
    """Distributions of one number a row. Arrays of shape (N,) for the test rows, in the unit of y.

    Attributes:
        log_prob: log densities, or log probabilities, of the outcomes.
        crps: the scores of the outcomes.
        mean: of the predictive.
        sd: of the predictive.
        low: where the central interval of probability `COVERAGE` begins.
        high: where it ends.
        quantiles: of at most `MOST_ROWS` rows at `LEVELS`, shape (M, L).
        pit_ends: of the outcomes, as `pit_ends` has them, shape (N, 2).
        y: the outcomes.
        unit: the sd of y over the training rows.
    """

    log_prob: np.ndarray
    crps: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    low: np.ndarray
    high: np.ndarray
    quantiles: np.ndarray
    pit_ends: np.ndarray
    y: np.ndarray
    unit: float

    @classmethod
    def read(cls, predict: Predict, data: TrainTestSplit) -> Self:
        def moments(p: Predictive, rows: slice) -> np.ndarray:
            y = data.y_test[rows]
            ends = [end[:, 0] for end in p.interval(COVERAGE, of="outcome")]
            sd = np.sqrt(p.variance)[:, 0]
            return np.stack([p.log_prob(y), p.crps(y), p.mean[:, 0], sd, *ends, *pit_ends(p, y).T], axis=1)

        count = len(data.y_test)
        some = evenly(count, MOST_ROWS)
        log_prob, crps, mean, sd, low, high, *ends = by_blocks(predict, data.X_test, moments).T
        levels = by_blocks(predict, data.X_test.iloc[some], lambda p, _: _quantiles(p))
        unit = float(data.y_train.std(ddof=1))
        return cls(log_prob, crps, mean, sd, low, high, levels, np.stack(ends, axis=1), data.y_test, unit)

    @property
    def shares(self) -> np.ndarray:
        """The shares of the outcomes below their quantiles at `LEVELS`, shape (L,)."""
        return share_below(self.pit_ends, LEVELS).mean(0)

    @property
    def coverage(self) -> float:
        """The share of the outcomes inside their central intervals of probability `COVERAGE`."""
        return float(share_inside(self.pit_ends, np.array([COVERAGE])).mean())


def _quantiles(p: Predictive) -> np.ndarray:
    """Quantiles at `LEVELS`, shape (M, L)."""
    ends = [p.interval(1.0 - 2.0 * level, of="outcome") for level in LEVELS[: len(LEVELS) // 2]]
    below, above = (np.concatenate(side, axis=1) for side in zip(*ends, strict=True))
    return np.concatenate([below, above[:, ::-1]], axis=1)


# Where outcomes lie in their distributions ----------------------------------------------------------------------------
def pit_ends(p: Predictive, y: np.ndarray) -> np.ndarray:
    """P(y' < y) and P(y' ≤ y) of N numbers, shape (N, 2): they differ where y has a probability, such as a count.

    Args:
        p: for N rows with one number each.
        y: the numbers, shape (N,).
    """
    domain, reached = p.likelihood.domain, np.asarray(p.cdf(y))[:, 0]
    before = reached
    if domain.integer:
        before = np.asarray(p.cdf(np.maximum(y - 1.0, domain.low)))[:, 0]
    if domain.integer or domain.atom:
        before = np.where(y > domain.low, before, 0.0)
    return np.stack([before, reached], axis=1)


def share_below(ends: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """The share of each outcome below the quantiles of its distribution F, shape (N, L): their mean is u if F is right.

    An outcome y is below the quantile of level u by the share (u − P(y' < y))/P(y' = y), between 0 and 1, and of a
    density by 0 or 1 (Czado, Gneiting & Held 2009, "Predictive model assessment for count data", equation 2). The
    variance of a mean of N shares is at most the binomial's, u(1 − u)/N.

    Args:
        ends: `pit_ends` of N outcomes, shape (N, 2).
        levels: u, strictly between 0 and 1, shape (L,).
    """
    probability = np.maximum(ends[:, 1] - ends[:, 0], np.finfo(float).tiny)
    share: np.ndarray = ((levels - ends[:, :1]) / probability[:, None]).clip(0.0, 1.0)
    return share


def share_inside(ends: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """The share of each outcome inside its central intervals, shape (N, L): their mean is the level if F is right.

    Of a density that is whether y lies in the interval. A number that has a probability and is the end of an interval
    counts by the part of its probability that the interval needs, since all of it would make the interval too probable.

    Args:
        ends: `pit_ends` of N outcomes, shape (N, 2).
        levels: probabilities of the intervals, strictly between 0 and 1, shape (L,).
    """
    return share_below(ends, 0.5 + 0.5 * levels) - share_below(ends, 0.5 - 0.5 * levels)


def spreads(answers: Mapping[str, NumberAnswers]) -> dict[str, np.ndarray]:
    """The sds of all contenders, shape (N,) each, or a quarter of the intervals' widths where an sd is infinite."""
    finite = all(np.isfinite(each.sd).all() for each in answers.values())
    return {name: each.sd if finite else 0.25 * (each.high - each.low) for name, each in answers.items()}


Answers = ClassAnswers | NumberAnswers
READERS: dict[str, Callable[[Predict, TrainTestSplit], Answers]] = {
    "classes": ClassAnswers.read,
    "numbers": NumberAnswers.read,
}


def class_log_probs(predict: Predict, X: pd.DataFrame, classes: int) -> np.ndarray:
    """The classes' log probabilities, shape (N, K), exact where a probability rounds to 0 or 1.

    Of more than 32 classes each rare one is integrated separately, and their sum can differ from 1 by the errors of the
    integrals. A log score is proper only for probabilities that sum to 1, so they are divided by their sum.

    Args:
        predict: from a table to its predictive.
        X: N rows.
        classes: K.
    """
    return log_softmax(by_blocks(predict, X, lambda p, _: log_probabilities(p, classes)), axis=1)


def by_blocks(predict: Predict, X: pd.DataFrame, read: Callable[[Predictive, slice], np.ndarray]) -> np.ndarray:
    """What is read from the predictives of some rows at a time, joined.

    Args:
        predict: from a table to its predictive.
        X: N rows.
        read: from the predictive of a block and its rows to an array with a row for each.
    """
    blocks = [slice(start, start + ROWS) for start in range(0, len(X), ROWS)]
    return np.concatenate([read(predict(X.iloc[rows]), rows) for rows in blocks])
