"""How far figures would move with other rows: Efron's bootstrap, as weights on the rows at hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

DRAWS, LEAST_DRAWS = 1000, 200
# Weights held at a time, and drawn in all.
BLOCK_NUMBERS, MOST_NUMBERS = 2**22, 2**25
TAILS = (0.025, 0.975)

# From weights (B, N), each row of them summing to N, to statistics (B, S).
Statistic = Callable[[np.ndarray], np.ndarray]


def bootstrap(statistic: Statistic, rows: int, random_state: int) -> np.ndarray:
    """The statistics of resampled rows, shape (draws, S).

    Args:
        statistic: of weighted rows, for many weightings at once.
        rows: N.
        random_state: the seed; one seed draws the same rows for every statistic.
    """
    generator = np.random.default_rng(random_state)
    draws = int(np.clip(MOST_NUMBERS // rows, LEAST_DRAWS, DRAWS))
    size = max(1, BLOCK_NUMBERS // rows)
    answers = []
    for start in range(0, draws, size):
        count = min(size, draws - start)
        picked = generator.integers(rows, size=(count, rows)) + rows * np.arange(count)[:, None]
        weights = np.bincount(picked.ravel(), minlength=count * rows).reshape(count, rows).astype(np.float64)
        answers.append(statistic(weights))
    return np.concatenate(answers)


def central(draws: np.ndarray) -> np.ndarray:
    """The ends of the central 95 % of each statistic, shape (2, S); NaN draws, undefined statistics, do not count."""
    ends: np.ndarray = np.nanquantile(draws, TAILS, axis=0)
    return ends
