"""The comparison itself: one split, every contender fitted and timed, and its row in the table."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from bayescope import checks, metrics
from bayescope.comparison.agreement import is_point, sd_error, total_variation
from bayescope.comparison.columns import ESTIMATE, LOWER_BOUND, columns
from bayescope.comparison.comparison import Comparison
from bayescope.comparison.contenders import BASELINES, Fitted, contender
from bayescope.comparison.footnotes import footnotes
from bayescope.comparison.loo import Loo, psis_loo
from bayescope.comparison.outcome import Outcome
from bayescope.comparison.split import Split, split
from bayescope.comparison.templates import Menu, menu, with_one_prior
from bayescope.errors import InputError, InputTypeError, UnsupportedError, recorded_warnings
from bayescope.plots import style
from bayescope.posterior import Posterior
from bayescope.progress import progress_bar

Row = dict[str, Any]

MOST_SEED = 2**32 - 1  # of NumPy's legacy generator, which scikit-learn draws the split and the folds from

# The optional packages behind a row: a sampler, ArviZ for its diagnosis, and ArviZ for the smoothing in PSIS-LOO,
# which every row has but those of a point.
PACKAGES = {"nuts": ("nutpie", "arviz"), "map": (), "map_temperature": ()}
PACKAGES_OF_OTHERS = ("arviz",)


def compare(
    estimator: Any,
    X: Any,
    y: Any,
    *,
    posteriors: Sequence[str] | None = None,
    reference: str = "nuts",
    test_size: float = 0.25,
    random_state: int = 0,
    progress: bool = False,
) -> Comparison:
    """Fits every posterior of one model to the same rows and judges each on the same others, beside a reference.

    Args:
        estimator: a classifier with a ``posterior`` option, not fitted, such as ``BayesianLogisticRegression()``. It is
            a template: its other options hold for every row of the table, its own ``posterior`` and ``random_state`` do
            not matter.
        X: features, shape (N, D): a DataFrame, whose columns may be numbers or labels with gaps, an array or a tensor.
        y: N class labels.
        posteriors: names to compare, among them the baseline "map_temperature": MAP with its logits divided by a
            temperature that is fitted on held-out folds of the training rows. The default is all that the number of
            classes allows.
        reference: the posterior that the others are compared with; it is fitted also if it is not among the names.
        test_size: the share of the rows to test on, with the classes in proportion.
        random_state: the seed of the split, the folds and every random fit, an int from 0 to 2³² − 1.
        progress: whether to show a progress bar on the error stream.

    Returns:
        The table, its footnotes and the pictures.

    Raises:
        InputError: if the table or an option cannot be used.
        InputTypeError: if the estimator is none that can be compared, or the random state is no int.
        UnsupportedError: if the link or a posterior does not go with the number of classes.
        MissingDependencyError: if a row needs a package that is not installed.
    """
    random_state = _seed(random_state)
    data = split(X, y, test_size=test_size, random_state=random_state)
    names = _names(menu(estimator, len(data.classes)), posteriors, reference)
    _check_packages(names)
    with recorded_warnings(passed_on=True) as prior_warned:
        template, prior = with_one_prior(estimator, data.X_train, data.y_train, random_state)
    rows: dict[str, Row] = {}
    outcomes: dict[str, Outcome] = {}
    warned: dict[str, list[str]] = {}
    with progress_bar("fitting", shown=progress) as report:
        for done, name in enumerate(names):
            report(done, len(names), style.label(name))
            with recorded_warnings(passed_on=True) as warned[name]:
                outcomes[name], rows[name] = _judge(name, template, data, random_state)
    _add_agreement(rows, outcomes, reference)
    order = [column.name for column in columns(reference)]
    order.insert(order.index("log_evidence") + 1, "evidence_kind")
    table = pd.DataFrame.from_dict(rows, orient="index")[order].rename_axis("posterior")
    notes = (
        *footnotes(table, outcomes, warned, reference),
        *prior,
        *(f"Prior precision, warning: {text}" for text in prior_warned),
    )
    return Comparison(table, reference, notes, outcomes, data)


def _seed(random_state: Any) -> int:
    """The seed, if it is one: a generator in its place would give every fit other features and other folds."""
    if isinstance(random_state, bool) or not isinstance(random_state, int | np.integer):
        kind = type(random_state).__name__
        raise InputTypeError(f"random_state: expected an int from 0 to {MOST_SEED}, got {kind}. Give a seed.")
    if not 0 <= random_state <= MOST_SEED:
        raise InputError(f"random_state: expected an int from 0 to {MOST_SEED}, got {random_state}.")
    return int(random_state)


def _names(choice: Menu, posteriors: Sequence[str] | None, reference: str) -> list[str]:
    """The rows in order, each once, the reference last unless it was named earlier."""
    if isinstance(posteriors, str):
        raise InputTypeError(f"posteriors: expected a list of names, got the text {posteriors!r}. Put it in a list.")
    if posteriors is not None and len(posteriors) == 0:
        raise InputError("posteriors: expected at least one name, got none. Leave it out for all of them.")
    known = [*choice.supported, *BASELINES]
    named = choice.default if posteriors is None else posteriors
    checks.choice("reference", reference, choice.supported)
    names = list(dict.fromkeys([*(checks.choice("posteriors", name, known) for name in named), reference]))
    for name in names:
        if name in choice.refused:
            raise UnsupportedError(choice.refused[name])
    return names


def _check_packages(names: Sequence[str]) -> None:
    """Misses a package now, and not after the fits before the one that needs it."""
    for name in names:
        for package in PACKAGES.get(name, PACKAGES_OF_OTHERS):
            checks.optional_package(package, extra="nuts")


def _judge(name: str, template: Any, data: Split, random_state: int) -> tuple[Outcome, Row]:
    """Fits one contender and fills its row, but for the columns that need the reference."""
    begun = time.perf_counter()
    fitted = contender(name)(template, data.X_train, data.labels[data.y_train], random_state)
    fit_seconds = time.perf_counter() - begun
    begun = time.perf_counter()
    log_probs = fitted.log_probs(data.X_test)
    predict_seconds = time.perf_counter() - begun
    outcome = Outcome(fitted, log_probs, _loo(fitted, data, random_state))
    probs = outcome.probs
    evidence, kind = _evidence(fitted.posterior)
    return outcome, {
        # By the log density and not log(probs): finite where a probability rounds to 0.
        "nll": -float(log_probs[np.arange(len(log_probs)), data.y_test].mean()),
        "brier": float(metrics.brier(probs, data.y_test)),
        "ece": float(metrics.ece(probs, data.y_test)),
        "auroc": float(metrics.auroc(probs, data.y_test)),
        "log_evidence": evidence,
        "evidence_kind": kind,
        "loo": outcome.loo.elpd if outcome.loo else math.nan,
        "loo_warnings": outcome.loo.warnings if outcome.loo else math.nan,
        "fit_seconds": fit_seconds,
        "predict_seconds": predict_seconds,
    }


def _evidence(posterior: Posterior | None) -> tuple[float, str]:
    """The log evidence or its lower bound, and which of the two it is."""
    record = posterior.record if posterior is not None else None
    if record is not None and record.evidence is not None:
        return float(record.evidence), ESTIMATE
    if record is not None and record.elbo_terms is not None:
        return float(record.elbo()), LOWER_BOUND
    return math.nan, ""


def _loo(fitted: Fitted, data: Split, seed: int) -> Loo | None:
    if fitted.posterior is None or is_point(fitted.posterior):
        return None
    return psis_loo(fitted.posterior, fitted.inputs(data.X_train), data.y_train, seed=seed)


def _add_agreement(rows: dict[str, Row], outcomes: dict[str, Outcome], reference: str) -> None:
    """Fills in how far each row is from the reference's."""
    truth = outcomes[reference]
    for name, outcome in outcomes.items():
        distance = total_variation(outcome.probs, truth.probs)
        own, theirs = outcome.fitted.posterior, truth.fitted.posterior
        error = math.nan if own is None or theirs is None else sd_error(own, theirs)
        rows[name] |= {f"tv_to_{reference}": distance, "sd_error": error}
