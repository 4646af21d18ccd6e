"""What one contender has to say: its fit, its predictions of the test rows, its leave-one-out predictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from bayescope.comparison.contenders import Fitted
from bayescope.comparison.loo import Loo


@final
@dataclass(frozen=True, eq=False)
class Outcome:
    """One contender's answers.

    Attributes:
        fitted: the contender after its fit to the training rows.
        log_probs: log class probabilities of the test rows, shape (N_test, K).
        loo: leave-one-out prediction of the training rows, or ``None`` for a point or a baseline.
    """

    fitted: Fitted
    log_probs: np.ndarray
    loo: Loo | None

    @property
    def probs(self) -> np.ndarray:
        """Class probabilities of the test rows, shape (N_test, K)."""
        return np.exp(self.log_probs)
