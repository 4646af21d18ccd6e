"""Everything that a report says, gathered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from bayescope.progress import progress_bar
from bayescope.report.facts.calibration import (
    ClassCalibration,
    NumberCalibration,
    class_calibration,
    number_calibration,
)
from bayescope.report.facts.doubt import Doubt, doubt
from bayescope.report.facts.explanations import Explanations, explanations
from bayescope.report.facts.fitted import Fitted, fitted
from bayescope.report.facts.influence import Influence, influence
from bayescope.report.facts.judged import Judged
from bayescope.report.facts.predictions import Predictions, predictions
from bayescope.report.facts.reference import Reference, compared
from bayescope.report.facts.scores import Score, class_scores, number_scores

STEPS = ("predictions", "scores", "calibration", "effects", "single rows", "other posteriors")


@final
@dataclass(frozen=True, eq=False)
class Facts:
    """What a report is made of.

    Attributes:
        judged: the rows and what happened in them.
        told: what the model says of them.
        fitted: the model.
        scores: the headline figures.
        calibration: whether its uncertainty holds.
        doubt: the rows that it knows least about.
        influence: what moves its predictions.
        explanations: of the rows that can be looked at one by one.
        reference: the other posteriors.
        held_out: whether the rows were kept from the fit, as the caller says; ``None`` where nobody said.
        random_state: of everything that was drawn.
    """

    judged: Judged
    told: Predictions
    fitted: Fitted
    scores: tuple[Score, ...]
    calibration: ClassCalibration | NumberCalibration
    doubt: Doubt
    influence: Influence
    explanations: Explanations
    reference: Reference
    held_out: bool | None
    random_state: int


def gathered(
    estimator: Any, judged: Judged, *, reference: str | None, random_state: int, held_out: bool | None
) -> Facts:
    """Computes everything, with a bar for whoever waits.

    Args:
        estimator: fitted.
        judged: the rows.
        reference: whether to compare the posteriors, as `report` takes it.
        random_state: the seed of bootstrap, simulations, choices of rows, and the comparison.
        held_out: whether the rows were kept from the fit.
    """
    classes = bool(judged.classes)
    with progress_bar("computing") as report:
        report(0, len(STEPS), STEPS[0])
        told = predictions(estimator, judged)
        report(1, len(STEPS), STEPS[1])
        scores = (class_scores if classes else number_scores)(judged, told, random_state)
        report(2, len(STEPS), STEPS[2])
        calibration = (class_calibration if classes else number_calibration)(judged, told, random_state)
        doubts = doubt(judged, told, random_state)
        report(3, len(STEPS), STEPS[3])
        moved = influence(estimator, judged, random_state)
        report(4, len(STEPS), STEPS[4])
        explained = explanations(estimator, judged, doubts.shown)
        report(5, len(STEPS), STEPS[5])
        against = compared(estimator, judged, reference, random_state)
    return Facts(
        judged, told, fitted(estimator), scores, calibration, doubts, moved, explained, against, held_out, random_state
    )
