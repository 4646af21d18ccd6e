"""Rows that a model is judged on, since it has not seen them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from bayescope.cli.target import Target
from bayescope.errors import InputError
from bayescope.report.judged import Judged, predictions
from bayescope.report.statistics import Score, class_scores, number_scores

# Of a class, so that one can be held out and one learnt from; and of the rows of a regression.
LEAST = 2


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


def held_out_rows(target: Target, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws the rows that are held out; of classes in proportion.

    Args:
        target: of all rows.
        share: how many of them, from 0 to below 1.
        seed: of the draw: the same rows at every call.

    Returns:
        The positions of the rows to learn from and of those to judge by, ascending.

    Raises:
        InputError: if the share is none, or too few rows are left on either side.
    """
    rows = len(target.values)
    every = np.arange(rows)
    if not 0 <= share < 1:
        raise InputError(f"--test-size: expected a number from 0 to below 1, got {share:g}. 0 holds nothing out.")
    if share == 0:
        return every, every[:0]
    labels = target.values if target.task == "classification" else None
    if labels is not None:
        classes, counts = np.unique(labels, return_counts=True)
        _check(rows, share, len(classes))
        if counts.min() < LEAST:
            raise InputError(
                f"--test-size: expected at least {LEAST} rows of each class, one to learn from and one to judge by, "
                f"got {counts.min()} of {classes[counts.argmin()]}. Hold nothing out with --test-size 0, or merge "
                "classes."
            )
    else:
        _check(rows, share, LEAST)
    train, test = train_test_split(every, test_size=share, stratify=labels, random_state=seed)
    return np.sort(train), np.sort(test)


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


def _check(rows: int, share: float, least: int) -> None:
    tested = int(np.ceil(share * rows))
    if min(tested, rows - tested) < least:
        raise InputError(
            f"--test-size: expected at least {least} rows on either side, got {tested} of {rows} to judge by. Change "
            "the share, or hold nothing out with --test-size 0."
        )
