"""Rows that a model is judged on, since it has not seen them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import pandas as pd

from bayescope.report.judged import Judged, predictions
from bayescope.report.statistics import Score, class_scores, number_scores


@final
@dataclass(frozen=True)
class HeldOut:
    """What held-out rows say of a model.

    Attributes:
        rows: how many they are.
        scores: with their intervals.
    """

    rows: int
    scores: tuple[Score, ...]

    def finite(self) -> list[list[Any]]:
        """Name, value, low and high of each score that is finite, for the model's file."""
        scores = [each for each in self.scores if np.isfinite([each.value, each.low, each.high]).all()]
        return [[each.name, each.value, each.low, each.high] for each in scores]


def score(model: Any, features: pd.DataFrame, target: pd.Series, seed: int) -> HeldOut:
    """Scores of a model on rows with their target.

    Args:
        model: fitted to others.
        features: of the rows.
        target: theirs, under its name.
        seed: of the scores' intervals.
    """
    judged = Judged.of(model, features, target, seed)
    scored = class_scores if judged.classes else number_scores
    return HeldOut(len(features), scored(judged, predictions(model, judged), seed))
