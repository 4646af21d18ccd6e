"""Everything that a report says, gathered: the model, what it predicts, how good that is, and other posteriors."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, final

import numpy as np

from bayescope.errors import UndefinedQuantityError
from bayescope.estimators.base import TableEstimator
from bayescope.plots import style
from bayescope.posterior import Posterior
from bayescope.progress import progress_bar
from bayescope.report.diagnostics import Diagnostics, diagnostics
from bayescope.report.judged import Judged, Predictions, predictions
from bayescope.report.reasons import Explanations, Influence, explanations, influence
from bayescope.report.reference import Standing, TrainingRows, standing
from bayescope.report.statistics import (
    ClassCalibration,
    Doubt,
    NumberCalibration,
    Score,
    class_calibration,
    class_scores,
    doubt,
    number_calibration,
    number_scores,
)
from bayescope.report.whatif import what_if

# What approximations are called where the pictures' short name says too little.
NAMES = {"conjugate": "exact (conjugate)"}
PACKAGES = ("bayescope", "torch", "numpy", "scikit-learn")
STEPS = ("predictions", "scores", "calibration", "effects", "single rows", "the posterior")
# A prior precision as estimators have it: of all weights, of each, of each term, or of each layer of a term.
Precisions = float | np.ndarray | Mapping[str, "Precisions"]


@final
@dataclass(frozen=True)
class FittedModel:
    """An estimator after its fit.

    Attributes:
        model: the estimator's class.
        posterior: what the approximation is called.
        method: its name among the options.
        weights: how many weights the posterior is over.
        parameters: of the estimator, (name, value, whether it is not the default).
        notes: of the posterior's summary: inputs, priors, what was learnt.
        priors: prior precisions, (of what, value).
        log_evidence: log p(y∣X) in nats, or ``None``.
        bound: whether it is a lower bound, the ELBO.
        noise: the noise variance of a regression, where the model has one.
        versions: of the packages that the figures come from.
    """

    model: str
    posterior: str
    method: str
    weights: int
    parameters: tuple[tuple[str, str, bool], ...]
    notes: tuple[tuple[str, str], ...]
    priors: tuple[tuple[str, str], ...]
    log_evidence: float | None
    bound: bool
    noise: float | None
    versions: tuple[tuple[str, str], ...]


def fitted(estimator: TableEstimator) -> FittedModel:
    """Reads the posterior, the options and the priors of a fitted estimator."""
    posterior = estimator.posterior_
    defaults = type(estimator)().get_params(deep=False)
    given = estimator.get_params(deep=False)
    parameters = tuple((name, _written(value), repr(value) != repr(defaults[name])) for name, value in given.items())
    evidence, bound = _evidence(posterior)
    method = posterior.record.method
    noise = getattr(estimator, "noise_variance_", None)
    return FittedModel(
        type(estimator).__name__,
        NAMES.get(method, style.label(method)),
        method,
        int(sum(posterior.sizes)) if hasattr(posterior, "sizes") else 0,
        parameters,
        tuple((str(name), str(value)) for name, value in posterior.record.notes.items()),
        (
            *_priors(getattr(estimator, "prior_precision_", None)),
            *_priors(getattr(estimator, "group_precision_", None)),
        ),
        evidence,
        bound,
        float(noise) if isinstance(noise, float | int) else None,
        (*((name, version(name)) for name in PACKAGES), ("Python", platform.python_version())),
    )


def _written(value: object) -> str:
    """An option as it would be typed, text in double quotes."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _evidence(posterior: Posterior) -> tuple[float | None, bool]:
    for name, bound in (("log_evidence", False), ("elbo", True)):
        try:
            quantity = getattr(posterior, name)
            return float(quantity() if callable(quantity) else quantity), bound
        except (UndefinedQuantityError, AttributeError):
            continue
    return None, False


def _priors(precision: Precisions | None) -> tuple[tuple[str, str], ...]:
    """Prior precisions line by line: of all weights, of each term, or of each layer of a term."""
    if precision is None:
        return ()
    if not isinstance(precision, Mapping):
        values = np.ravel(precision)
        text = f"{values[0]:.4g}" if len(values) == 1 else f"{values.min():.4g} to {values.max():.4g}, one per input"
        return (("all weights", text),)
    return tuple((str(term), _precision(value)) for term, value in precision.items())


def _precision(value: Precisions) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{layer} {_precision(number)}" for layer, number in value.items())
    return f"{float(np.asarray(value)):.4g}"


@final
@dataclass(frozen=True, eq=False)
class Facts:
    """What a report is made of.

    Attributes:
        judged: the rows and what happened in them.
        predicted: what the model says of them.
        fitted: the model.
        scores: the headline figures.
        calibration: whether its uncertainty holds.
        doubt: the rows that it knows least about.
        influence: what moves its predictions.
        explanations: of the rows that can be looked at one by one.
        what_if: what the page predicts other rows from, or why it does not.
        diagnostics: of a sampled posterior, or why there are none; ``None`` where no chains were drawn.
        standing: how wrong the posterior is.
        held_out: whether the rows were kept from the fit, as the caller says; ``None`` if unknown.
        random_state: of everything that was drawn.
        command: the shell commands that write the page again; empty for a call from Python.
    """

    judged: Judged
    predicted: Predictions
    fitted: FittedModel
    scores: tuple[Score, ...]
    calibration: ClassCalibration | NumberCalibration
    doubt: Doubt
    influence: Influence
    explanations: Explanations
    what_if: Mapping[str, Any] | str
    diagnostics: Diagnostics | str | None
    standing: Standing
    held_out: bool | None
    random_state: int
    command: str = ""


def gathered(
    estimator: TableEstimator,
    judged: Judged,
    *,
    reference: str | None,
    random_state: int,
    held_out: bool | None,
    training: TrainingRows | None = None,
) -> Facts:
    """Computes everything, with a bar for whoever waits.

    Args:
        estimator: fitted.
        judged: the rows.
        reference: what the posterior is held against, as `report` takes it.
        random_state: the seed of bootstrap, simulations, choices of rows, and the reference.
        held_out: whether the rows were kept from the fit.
        training: the rows that the model was fitted to.
    """
    classes = bool(judged.classes)
    with progress_bar("computing") as report:
        report(0, len(STEPS), STEPS[0])
        predicted = predictions(estimator, judged)
        report(1, len(STEPS), STEPS[1])
        scores = (class_scores if classes else number_scores)(judged, predicted, random_state)
        report(2, len(STEPS), STEPS[2])
        calibration = (class_calibration if classes else number_calibration)(judged, predicted, random_state)
        doubts = doubt(judged, predicted, random_state)
        report(3, len(STEPS), STEPS[3])
        moved = influence(estimator, judged, random_state)
        report(4, len(STEPS), STEPS[4])
        explained = explanations(estimator, judged, doubts.explorable)
        other_rows = what_if(estimator, judged, explained)
        report(5, len(STEPS), STEPS[5])
        stands = standing(estimator, judged, training, reference, random_state)
    return Facts(
        judged,
        predicted,
        fitted(estimator),
        scores,
        calibration,
        doubts,
        moved,
        explained,
        other_rows,
        diagnostics(estimator),
        stands,
        held_out,
        random_state,
    )
