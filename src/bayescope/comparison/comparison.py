"""Every posterior of one model on one table: the fits, one table of measures, its footnotes, and the pictures."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from bayescope import checks, metrics, plots
from bayescope.comparison.contenders import (
    BASELINES,
    FittedContender,
    TrainTestSplit,
    contender,
    default_names,
    split,
    with_one_prior,
)
from bayescope.comparison.measures import (
    ESTIMATE,
    LOWER_BOUND,
    Loo,
    best_cells,
    columns,
    is_point,
    psis_loo,
    sd_error,
    total_variation,
    written,
)
from bayescope.errors import InputError, InputTypeError, UnsupportedError, recorded_warnings
from bayescope.estimators import BayesianLogisticRegression
from bayescope.estimators.linear_posteriors import POSTERIORS
from bayescope.files import staged
from bayescope.plots import style
from bayescope.posterior import DrawsPosterior, Posterior
from bayescope.progress import progress_bar
from bayescope.tables import read_table


@final
@dataclass(frozen=True, eq=False)
class ContenderOutcome:
    """One contender's answers.

    Attributes:
        fitted: the contender after its fit to the training rows.
        log_probs: log class probabilities of the test rows, shape (N_test, K).
        loo: leave-one-out prediction of the training rows, or ``None`` for a point or a baseline.
    """

    fitted: FittedContender
    log_probs: np.ndarray
    loo: Loo | None

    @property
    def probs(self) -> np.ndarray:
        """Class probabilities of the test rows, shape (N_test, K)."""
        return np.exp(self.log_probs)


# What a comparison may write, so that a folder can be checked before the fits.
FILES = (
    "comparison.csv",
    "comparison.md",
    "reliability.png",
    "agreement.png",
    "marginals.png",
    "decision_surface.png",
)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Every posterior of one model on one table.

    Attributes:
        table: one row a posterior. Columns: ``nll``, ``brier``, ``ece`` and ``auroc`` of the test rows;
            ``tv_to_REFERENCE``, the mean total variation between the predictives; ``sd_error``, the largest relative
            error of a marginal standard deviation; ``log_evidence`` in nats, with ``evidence_kind`` "estimate" or
            "lower bound"; ``loo``, the PSIS-LOO log predictive density summed over the training rows, and
            ``loo_warnings``, the rows whose k̂ is above 0.7; ``fit_seconds`` and ``predict_seconds``. NaN where a
            quantity is undefined; `footnotes` says why.
        reference: the name of the row that the others are compared with.
        footnotes: what a reader of the table has to know, one line each.
        outcomes: the fitted contenders and their predictions, by name.
        split: the training and test rows.
    """

    table: pd.DataFrame
    reference: str
    footnotes: tuple[str, ...]
    outcomes: Mapping[str, ContenderOutcome]
    split: TrainTestSplit

    @property
    def title(self) -> str:
        """What was compared on what, in one line."""
        rows, tested, features = len(self.split.X_train), len(self.split.X_test), self.split.X_train.shape[1]
        return f"{len(self.table)} posteriors, {rows} training rows, {tested} test rows, {features} features"

    def to_markdown(self) -> str:
        """The table with its best values in bold, and the footnotes, in Markdown."""
        measures = columns(self.reference)
        rows = [[style.label(str(name))] for name in self.table.index]
        for column in measures:
            best = best_cells(self.table, column, self.reference)
            for row, cell, bold in zip(rows, written(self.table, column), best, strict=True):
                row.append(f"**{cell}**" if bold else cell)
        lines = [["posterior", *(column.label for column in measures)], ["---", *(["---:"] * len(measures))], *rows]
        text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        notes = "\n".join(f"- {note}" for note in self.footnotes)
        return f"# {self.title}\n\n{text}\n\n{notes}\n"

    def figures(self) -> dict[str, Figure]:
        """The pictures by name: reliability, agreement, marginals, and for two features of numbers decision_surface."""
        split, log_probs = self.split, {name: outcome.log_probs for name, outcome in self.outcomes.items()}
        probs = {name: outcome.probs for name, outcome in self.outcomes.items()}
        drawn = {"reliability": plots.reliability_curves(probs, split.y_test)}
        if len(self.outcomes) > 1:
            drawn["agreement"] = plots.agreement(log_probs, reference=self.reference, classes=split.classes)
            drawn["marginals"] = self._marginals()
        if split.X_train.shape[1] == 2 and _complete_numbers(split.X_train):
            drawn["decision_surface"] = plots.decision_surfaces(
                {name: partial(self._surface, outcome.fitted) for name, outcome in self.outcomes.items()},
                split.X_train.to_numpy(dtype=np.float64),
                split.y_train,
                names=[str(name) for name in split.X_train.columns],
                classes=split.classes,
            )
        return drawn

    def save(self, directory: str | Path) -> list[Path]:
        """Writes comparison.csv, comparison.md and a PNG a picture; all of them or, if one fails, none.

        Args:
            directory: where to; it is made if it is missing, and files of these names in it are replaced.

        Returns:
            The files' paths.

        Raises:
            InputError: if the directory cannot be written to, or has a folder of one of these names.
        """
        with staged(directory) as stage:
            self.table.to_csv(stage / "comparison.csv")
            (stage / "comparison.md").write_text(self.to_markdown(), encoding="utf-8")
            for name, figure in self.figures().items():
                style.save(figure, stage / f"{name}.png")
            names = sorted(file.name for file in stage.iterdir())
        return [Path(directory) / name for name in names]

    def __repr__(self) -> str:
        return self.to_markdown()

    def _marginals(self) -> Figure:
        fitted = {name: outcome.fitted for name, outcome in self.outcomes.items()}
        posteriors = {name: each.posterior for name, each in fitted.items() if each.posterior is not None}
        return plots.marginals(
            posteriors,
            reference=self.reference,
            names=fitted[self.reference].weight_names,
            chosen=plots.most_disputed(posteriors, self.reference),
        )

    def _surface(self, fitted: FittedContender, at: np.ndarray) -> np.ndarray:
        return fitted.probs(pd.DataFrame(at, columns=self.split.X_train.columns))


def _complete_numbers(table: pd.DataFrame) -> bool:
    """Whether all columns are of numbers, without gaps."""
    return all(column.kind == "numeric" and not np.isnan(column.values).any() for column in read_table(table))


# The fits -------------------------------------------------------------------------------------------------------------
Row = dict[str, Any]

MOST_SEED = 2**32 - 1  # of NumPy's legacy generator, which scikit-learn draws the split and the folds from

# The optional packages behind a row: a sampler, ArviZ for its diagnosis, and ArviZ for the smoothing in PSIS-LOO,
# which every row has but those of a point.
PACKAGES = {"nuts": ("nutpie", "arviz"), "map": (), "map_temperature": ()}
PACKAGES_OF_OTHERS = ("arviz",)


def compare(
    estimator: BayesianLogisticRegression,
    X: object,
    y: object,
    *,
    posteriors: Sequence[str] | None = None,
    reference: str = "nuts",
    test_size: float = 0.25,
    random_state: int = 0,
    progress: bool = False,
) -> Comparison:
    """Fits every posterior of one model to the same rows and judges each on the same other rows, against a reference.

    Args:
        estimator: a classifier with a ``posterior`` option, not fitted, such as ``BayesianLogisticRegression()``. It is
            a template: its other options hold for every row of the table, its ``posterior`` and ``random_state`` do not
            matter.
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
    classes = len(data.classes)
    names = _names(default_names(estimator, classes), posteriors, reference, classes)
    _check_packages(names)
    with recorded_warnings(passed_on=True) as prior_warned:
        template, prior = with_one_prior(estimator, data.X_train, data.y_train, random_state)
    rows: dict[str, Row] = {}
    outcomes: dict[str, ContenderOutcome] = {}
    warned: dict[str, list[str]] = {}
    with progress_bar("fitting", visible=progress) as report:
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


def _seed(random_state: object) -> int:
    """The seed, if it is one: a generator in its place would give every fit other features and other folds."""
    if isinstance(random_state, bool) or not isinstance(random_state, int | np.integer):
        kind = type(random_state).__name__
        raise InputTypeError(f"random_state: expected an int from 0 to {MOST_SEED}, got {kind}. Give a seed.")
    if not 0 <= random_state <= MOST_SEED:
        raise InputError(f"random_state: expected an int from 0 to {MOST_SEED}, got {random_state}.")
    return int(random_state)


def _names(default: Sequence[str], posteriors: Sequence[str] | None, reference: str, classes: int) -> list[str]:
    """The rows in order, each once, the reference last unless it was named earlier."""
    if isinstance(posteriors, str):
        raise InputTypeError(f"posteriors: expected a list of names, got the text {posteriors!r}. Put it in a list.")
    if posteriors is not None and len(posteriors) == 0:
        raise InputError("posteriors: expected at least one name, got none. Leave it out for all of them.")
    known = [*POSTERIORS, *BASELINES]
    named = default if posteriors is None else posteriors
    checks.choice("reference", reference, POSTERIORS)
    names = list(dict.fromkeys([*(checks.choice("posteriors", name, known) for name in named), reference]))
    if "ep" in names and classes > 2:
        raise UnsupportedError(f"posterior='ep': expected two classes, got {classes}. Leave it out.")
    return names


def _check_packages(names: Sequence[str]) -> None:
    """Misses a package now, and not after the fits before the one that needs it."""
    for name in names:
        for package in PACKAGES.get(name, PACKAGES_OF_OTHERS):
            checks.optional_package(package, extra="nuts")


def _judge(
    name: str, template: BayesianLogisticRegression, data: TrainTestSplit, random_state: int
) -> tuple[ContenderOutcome, Row]:
    """Fits one contender and fills its row, but for the columns that need the reference."""
    begun = time.perf_counter()
    fitted = contender(name)(template, data.X_train, data.labels[data.y_train], random_state)
    fit_seconds = time.perf_counter() - begun
    begun = time.perf_counter()
    log_probs = fitted.log_probs(data.X_test)
    predict_seconds = time.perf_counter() - begun
    outcome = ContenderOutcome(fitted, log_probs, _loo(fitted, data, random_state))
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


def _loo(fitted: FittedContender, data: TrainTestSplit, seed: int) -> Loo | None:
    if fitted.posterior is None or is_point(fitted.posterior):
        return None
    return psis_loo(fitted.posterior, fitted.inputs(data.X_train), data.y_train, seed=seed)


def _add_agreement(rows: dict[str, Row], outcomes: dict[str, ContenderOutcome], reference: str) -> None:
    """Fills in how far each row is from the reference's."""
    truth = outcomes[reference]
    for name, outcome in outcomes.items():
        distance = total_variation(outcome.probs, truth.probs)
        one, other = outcome.fitted.posterior, truth.fitted.posterior
        error = math.nan if one is None or other is None else sd_error(one, other)
        rows[name] |= {f"tv_to_{reference}": distance, "sd_error": error}


# The footnotes --------------------------------------------------------------------------------------------------------
def footnotes(
    table: pd.DataFrame, outcomes: Mapping[str, ContenderOutcome], warned: Mapping[str, Sequence[str]], reference: str
) -> tuple[str, ...]:
    """The columns' meanings, why cells are blank, and what the fits found or warned of.

    Args:
        table: of the comparison.
        outcomes: the contenders' answers by name.
        warned: the warnings of each one's fit.
        reference: the name of the row that the others are compared with.
    """
    meanings = [f"{column.label}: {column.meaning}." for column in columns(reference)]
    notes = {name: outcome.fitted.note for name, outcome in outcomes.items()}
    found = [f"{style.label(name)}: {note}." for name, note in notes.items() if note]
    warnings = [f"{style.label(name)}, warning: {text}" for name, texts in warned.items() for text in texts]
    notes_on_values = (*_precision(outcomes, reference), *_harmless(outcomes), *_blanks(table, outcomes, reference))
    return (*meanings, *notes_on_values, *found, *warnings)


def _precision(outcomes: Mapping[str, ContenderOutcome], reference: str) -> list[str]:
    """How well a reference of draws knows a standard deviation, by the spread between its chains.

    The effective draws of the means would promise too much: a chain that swings from side to side knows the means
    better than independent draws, and the widths worse.
    """
    posterior = outcomes[reference].fitted.posterior
    if not isinstance(posterior, DrawsPosterior) or posterior.draws.shape[0] < 2:
        return []
    by_chain = posterior.draws.std(dim=1)
    errors = by_chain.std(dim=0) / by_chain.mean(dim=0) / math.sqrt(len(by_chain))
    typical = 100 * float(errors.square().mean().sqrt())
    return [
        f"{style.label(reference)} is a sample: it knows a weight's sd to ±{typical:.1f} %, so sd errors hold noise."
    ]


def _harmless(outcomes: Mapping[str, ContenderOutcome]) -> list[str]:
    """How many of the rows above k̂ = 0.7 do no harm, by posterior."""
    each = [
        f"{outcome.loo.harmless} for {style.label(name)}"
        for name, outcome in outcomes.items()
        if outcome.loo is not None and outcome.loo.harmless
    ]
    if not each:
        return []
    return [f"Of the rows with k̂ > 0.7, those that weigh all draws nearly alike are safe: {', '.join(each)}."]


def _blanks(table: pd.DataFrame, outcomes: Mapping[str, ContenderOutcome], reference: str) -> list[str]:
    """Why cells are blank, in one line."""
    measures = [column for column in columns(reference) if table[column.name].isna().any()]
    reasons = []
    for name, outcome in outcomes.items():
        empty = [column.label for column in measures if table[column.name].isna()[name]]
        posterior = outcome.fitted.posterior
        if posterior is None:
            reasons.append(f"{style.label(name)} rescales predictions and has no posterior of its own")
        elif is_point(posterior):
            reasons.append(f"{style.label(name)} is a point")
        elif empty:
            reasons.append(f"{style.label(name)} has no {' or '.join(empty)}")
    return [f"Blank cells: {'; '.join(reasons)}."] if reasons else []
