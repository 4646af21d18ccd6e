"""Every posterior of one model on one table: the fits, one table of measures, its footnotes, and the pictures."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import stats

from bayescope import checks, notebook, plots
from bayescope.comparison.answers import (
    COVERAGE,
    LEVELS,
    READERS,
    ClassAnswers,
    NumberAnswers,
    by_blocks,
    class_log_probs,
    spreads,
)
from bayescope.comparison.contenders import PLAIN, SCALED, FittedContender, contender, kind_of, names_of, with_one_prior
from bayescope.comparison.measures import (
    ContenderOutcome,
    Lead,
    Loo,
    Measure,
    best_cells,
    columns,
    evidence,
    has_coefficients,
    is_point,
    lead_of,
    psis_loo,
    written,
)
from bayescope.comparison.split import Kind, TrainTestSplit, split
from bayescope.errors import (
    BayescopeError,
    InputError,
    InputTypeError,
    UndefinedQuantityError,
    UnsupportedError,
    recorded_warnings,
)
from bayescope.estimators.base import TableEstimator, of_ordered_classes
from bayescope.estimators.pipelines import WRAPPING, Wrapped
from bayescope.files import staged
from bayescope.network.model import NetworkModel
from bayescope.plots import style
from bayescope.plots.numbers import count
from bayescope.posterior import DrawsPosterior, GaussianPosterior, ImplicitPosterior, Posterior
from bayescope.progress import progress_bar
from bayescope.tables import read_table

# What a comparison may write, so that a folder can be checked before the fits.
FILES = (
    "comparison.csv",
    "comparison.md",
    "reliability.png",
    "calibration.png",
    "agreement.png",
    "marginals.png",
    "decision_surface.png",
)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Every posterior of one model on one table.

    Attributes:
        table: one row a posterior or baseline. Of classes the columns ``nll``, ``brier``, ``ece`` and ``auroc`` judge
            the test rows, and ``crps`` where the classes are ordered; of numbers ``nll``, ``crps``, ``rmse``, and
            ``coverage`` and ``width`` of the 95 % intervals.
            ``tv_to_REFERENCE`` is the mean total variation between the predictives of classes, ``w1_to_REFERENCE`` the
            mean Wasserstein distance between those of numbers, in standard deviations of y; ``sd_error`` the largest
            relative error of a weight's standard deviation, for linear models. Then ``log_evidence`` in nats, with
            ``evidence_kind`` "exact", "estimate" or "lower bound"; ``loo``, the PSIS-LOO log predictive density summed
            over the training rows, and ``loo_warnings``, the rows whose k̂ is above 0.7; ``fit_seconds`` and
            ``predict_seconds``. NaN where a quantity is undefined; `footnotes` says why. A column without any number is
            left out.
        reference: the name of the row that the others are compared with; ``None`` if there is none.
        footnotes: what a reader of the table has to know, one line each.
        outcomes: the fitted contenders and their predictions, by name.
        split: the training and test rows.
        leads: by column, how far its best row is ahead, with the interval of the paired difference.
    """

    table: pd.DataFrame
    reference: str | None
    footnotes: tuple[str, ...]
    outcomes: Mapping[str, ContenderOutcome]
    split: TrainTestSplit
    leads: Mapping[str, Lead] = field(default_factory=dict)

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The columns of the table that hold numbers, in order."""
        return tuple(each for each in columns(self.split.kind, self.reference) if each.name in self.table)

    @property
    def others(self) -> list[str]:
        """The rows that are compared with the reference: its posteriors, or the baselines if there is no other."""
        names = [name for name in self.outcomes if self.reference is not None and name != self.reference]
        return [name for name in names if name not in PLAIN] or names

    @property
    def title(self) -> str:
        """What was compared on what, in one line."""
        rows, tested, features = len(self.split.X_train), len(self.split.X_test), self.split.X_train.shape[1]
        baselines = sum(outcome.fitted.posterior is None for outcome in self.outcomes.values())
        what = count(len(self.table) - baselines, "posterior") + (f", {count(baselines, 'baseline')}" * bool(baselines))
        return f"{what}, {rows} training rows, {tested} test rows, {features} features"

    def _written(self) -> tuple[list[list[str]], list[list[bool]]]:
        """The table's cells as text, row by row, and which of them are the best of their column."""
        cells = [written(self.table, column) for column in self.measures]
        best = [best_cells(self.table, self.leads.get(column.name)) for column in self.measures]
        return [list(row) for row in zip(*cells, strict=True)], [list(row) for row in zip(*best, strict=True)]

    def to_markdown(self) -> str:
        """The table with its best values in bold, and the footnotes, in Markdown."""
        measures = self.measures
        rows = [[style.label(str(name))] for name in self.table.index]
        for row, cells, best in zip(rows, *self._written(), strict=True):
            row += [f"**{cell}**" if bold else cell for cell, bold in zip(cells, best, strict=True)]
        lines = [["posterior", *(column.label for column in measures)], ["---", *(["---:"] * len(measures))], *rows]
        text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        notes = "\n".join(f"- {note}" for note in self.footnotes)
        return f"# {self.title}\n\n{text}\n\n{notes}\n"

    def figures(self) -> dict[str, Figure]:
        """The pictures by name.

        Of classes reliability, and decision_surface for two features of numbers; of numbers calibration. Where there is
        a reference to compare with, agreement, and for linear models marginals.
        """
        drawn = {"classes": self._figures_of_classes, "numbers": self._figures_of_numbers}[self.split.kind]()
        weights = {name: q for name, q in self._posteriors().items() if has_coefficients(q)}
        if self.reference in weights and len(weights) > 1:
            drawn["marginals"] = plots.marginals(
                weights,
                reference=self.reference,
                names=self.outcomes[self.reference].fitted.weight_names,
                chosen=plots.most_disputed(weights, self.reference),
            )
        return drawn

    def _figures_of_classes(self) -> dict[str, Figure]:
        data = self.split
        answers = {name: each.answers for name, each in self.outcomes.items() if isinstance(each.answers, ClassAnswers)}
        drawn: dict[str, Figure] = {
            "reliability": plots.reliability_curves({n: a.probs for n, a in answers.items()}, data.y_test)
        }
        if self.reference is not None and self.others:
            compared = {name: answers[name].log_probs for name in (*self.others, self.reference)}
            drawn["agreement"] = plots.agreement(compared, reference=self.reference, classes=data.classes)
        if data.X_train.shape[1] == 2 and _complete_numbers(data.X_train):
            drawn["decision_surface"] = plots.decision_surfaces(
                {name: partial(self._surface, outcome.fitted) for name, outcome in self.outcomes.items()},
                data.X_train.to_numpy(dtype=np.float64),
                data.y_train,
                names=[str(name) for name in data.X_train.columns],
                classes=data.classes,
            )
        return drawn

    def _figures_of_numbers(self) -> dict[str, Figure]:
        answers = {
            name: each.answers for name, each in self.outcomes.items() if isinstance(each.answers, NumberAnswers)
        }
        shares = {name: each.shares for name, each in answers.items()}
        drawn: dict[str, Figure] = {"calibration": plots.calibration_curves(shares, LEVELS, len(self.split.y_test))}
        if self.reference is not None and self.others:
            sds = spreads(answers)
            moments = {name: (answers[name].mean, sds[name]) for name in (*self.others, self.reference)}
            drawn["agreement"] = plots.moment_agreement(moments, reference=self.reference, target=self.split.target)
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

    @notebook.shows
    def _repr_html_(self) -> str:
        cells, best = self._written()
        names = pd.Index([style.label(str(name)) for name in self.table.index], name="posterior")
        frame = pd.DataFrame(cells, index=names, columns=[column.label for column in self.measures])
        table = notebook.table(frame, bold=best, most=len(frame))
        return notebook.card(self.title, table, notebook.folded("What the columns and blanks mean", self.footnotes))

    def _posteriors(self) -> dict[str, Posterior]:
        fitted = {name: outcome.fitted.posterior for name, outcome in self.outcomes.items()}
        return {name: posterior for name, posterior in fitted.items() if posterior is not None}

    def _surface(self, fitted: FittedContender, at: np.ndarray) -> np.ndarray:
        table = pd.DataFrame(at, columns=self.split.X_train.columns)
        return np.exp(class_log_probs(fitted.predict, table, len(self.split.labels)))


def _complete_numbers(table: pd.DataFrame) -> bool:
    """Whether all columns are of numbers, without gaps."""
    return all(column.kind == "numeric" and not np.isnan(column.values).any() for column in read_table(table))


# The fits -------------------------------------------------------------------------------------------------------------
MOST_SEED = 2**32 - 1  # of NumPy's legacy generator, which scikit-learn draws the split and the folds from

# The optional packages behind a row: a sampler, ArviZ for its diagnosis, and ArviZ for the smoothing in PSIS-LOO,
# which every row has but those of a point.
PACKAGES: dict[str, tuple[str, ...]] = {"nuts": ("nutpie", "arviz"), **dict.fromkeys(("map", SCALED, *PLAIN), ())}
PACKAGES_OF_OTHERS = ("arviz",)


def compare(
    estimator: Any,
    X: object,
    y: object,
    *,
    posteriors: Sequence[str] | None = None,
    reference: str | None = "nuts",
    test_size: float = 0.25,
    random_state: int = 0,
    progress: bool = False,
) -> Comparison:
    """Fits every posterior of one model to the same rows and judges each on the same other rows, against a reference.

    Plain baselines are fitted to these rows too: a constant prediction and, for a regression or a model that is not
    linear, a linear model by scikit-learn.

    Args:
        estimator: any estimator of the library, not fitted, such as ``BayesianLogisticRegression()``. It is a template:
            its other options hold for every row of the table, its ``posterior`` and ``random_state`` do not matter. Of
            scikit-learn's ``Pipeline`` around one, the steps are fitted once, to the training rows. In a
            ``TransformedTargetRegressor`` with ``func=``, all are fitted to func(y) and judged on it.
        X: features, shape (N, D): a DataFrame, whose columns may be numbers or labels with gaps, an array or a tensor.
        y: N class labels for a classifier, N numbers for a regression.
        posteriors: names to compare: those that the estimator's option ``posterior`` takes ("exact" where it has no
            such option), and the baselines "constant", "logistic" and "map_temperature" for classes, "constant" and
            "ridge" for numbers, "poisson" for counts. "map_temperature" is MAP with its logits divided by a temperature
            that is fitted on held-out folds of the training rows. The default is all but those that take minutes.
        reference: the posterior that the others are compared with; it is fitted also if it is not among the names.
            ``None`` for no comparison. Where NUTS takes minutes to hours (networks) or does not sample the model,
            another posterior stands in for it, and a footnote says so; NUTS is the reference of a network if
            ``posteriors`` names it.
        test_size: the share of the rows to test on, with the classes in proportion.
        random_state: the seed of the split, the folds and every random fit, an int from 0 to 2³² − 1.
        progress: whether to show a progress bar on the error stream.

    Returns:
        The table, its footnotes and the pictures.

    Raises:
        InputError: if the table or an option cannot be used.
        InputTypeError: if the estimator is none that can be compared, or the random state is no int.
        OptionError: if a posterior or the reference is none that the estimator has.
        UnsupportedError: if the link or a posterior does not go with the number of classes, or a
            ``TransformedTargetRegressor`` has a transformer that learns from y.
        MissingDependencyError: if a row needs a package that is not installed.
    """
    random_state = _seed(random_state)
    wrapped = Wrapped.of(estimator) if isinstance(estimator, WRAPPING) else Wrapped(estimator)
    estimator = wrapped.estimator
    kind, ordered = kind_of(estimator), of_ordered_classes(estimator)
    y = _transformed(wrapped, y)
    data = _after_steps(wrapped, split(X, y, kind, test_size=test_size, random_state=random_state, ordered=ordered))
    names, reference, notes = names_of(estimator, data, posteriors, reference)
    notes += [f"{name.capitalize()}: {note}." for name, note in wrapped.notes()]
    _check_packages(names)
    with recorded_warnings(passed_on=True) as prior_warned:
        template, prior = with_one_prior(estimator, data.X_train, data.targets, random_state)
    outcomes: dict[str, ContenderOutcome] = {}
    warned: dict[str, list[str]] = {}
    with progress_bar("fitting", visible=progress) as report:
        for done, name in enumerate(names):
            report(done, len(names), style.label(name))
            try:
                with recorded_warnings(passed_on=True) as warned[name]:
                    outcomes[name] = _judge(name, template, data, random_state)
            except BayescopeError as error:
                if posteriors is not None or name == reference:
                    raise
                notes.append(f"{style.label(name)} was left out, since its fit failed: {error}")
    table = _table(outcomes, data.kind, reference)
    measures = [column for column in columns(data.kind, reference) if column.name in table]
    found = {column.name: lead_of(column, table, outcomes, reference) for column in measures}
    leads = {name: lead for name, lead in found.items() if lead is not None}
    footnotes = (
        *_leading(measures, leads),
        *footnotes_of(table, outcomes, warned, data, reference),
        *notes,
        *prior,
        *(f"Prior precision, warning: {text}" for text in prior_warned),
    )
    return Comparison(table, reference, footnotes, outcomes, data, leads)


def _transformed(wrapped: Wrapped, y: object) -> Any:
    """The outcomes that the contenders are fitted to and judged on."""
    if wrapped.target is not None and wrapped.target.func is None:
        raise UnsupportedError(
            "estimator: expected a TransformedTargetRegressor with func=, got one with a transformer that learns from "
            "y. Transform y first, and compare the regressor in it."
        )
    return wrapped.targets(y)


def _after_steps(wrapped: Wrapped, data: TrainTestSplit) -> TrainTestSplit:
    """The rows after a pipeline's steps, which are fitted to the training rows alone."""
    if not wrapped.steps:
        return data
    train, test = wrapped.refitted(data.X_train, data.X_test, data.targets)
    return replace(data, X_train=train, X_test=test)


def _table(outcomes: Mapping[str, ContenderOutcome], kind: Kind, reference: str | None) -> pd.DataFrame:
    truths = {name: outcome if reference is None else outcomes[reference] for name, outcome in outcomes.items()}
    table = pd.DataFrame(
        {
            measure.name: {name: float(measure.value(each, truths[name])) for name, each in outcomes.items()}
            for measure in columns(kind, reference)
        }
    )
    kinds = [evidence(outcome.fitted.posterior)[1] for outcome in outcomes.values()]
    table.insert(table.columns.tolist().index("log_evidence") + 1, "evidence_kind", kinds)
    empty = [name for name in table if table[name].isin(["", math.nan]).all()]
    return table.drop(columns=empty).rename_axis("posterior")


def _seed(random_state: object) -> int:
    """The seed, if it is one: a generator in its place would give every fit other features and other folds."""
    if isinstance(random_state, bool) or not isinstance(random_state, int | np.integer):
        kind = type(random_state).__name__
        raise InputTypeError(f"random_state: expected an int from 0 to {MOST_SEED}, got {kind}. Give a seed.")
    if not 0 <= random_state <= MOST_SEED:
        raise InputError(f"random_state: expected an int from 0 to {MOST_SEED}, got {random_state}.")
    return int(random_state)


def _check_packages(names: Sequence[str]) -> None:
    """Misses a package now, and not after the fits before the one that needs it."""
    for name in names:
        for package in PACKAGES.get(name, PACKAGES_OF_OTHERS):
            checks.optional_package(package, extra="nuts")


def _judge(name: str, template: TableEstimator, data: TrainTestSplit, random_state: int) -> ContenderOutcome:
    """Fits one contender and asks what there is to judge."""
    begun = time.perf_counter()
    fitted = contender(name, data.kind)(template, data.X_train, data.targets, random_state)
    fit_seconds = time.perf_counter() - begun
    begun = time.perf_counter()
    by_blocks(fitted.predict, data.X_test, lambda p, _: np.asarray(p.mean))
    predict_seconds = time.perf_counter() - begun
    answers = READERS[data.kind](fitted.predict, data)
    return ContenderOutcome(fitted, answers, _loo(fitted, data, random_state), fit_seconds, predict_seconds)


def _loo(fitted: FittedContender, data: TrainTestSplit, seed: int) -> Loo | None:
    posterior = fitted.posterior
    if posterior is None or fitted.rows is None:
        return None
    if isinstance(posterior, GaussianPosterior | ImplicitPosterior) and isinstance(posterior.function, NetworkModel):
        return None  # a network was trained on all rows: draws around its weights leave none of them out
    with suppress(UndefinedQuantityError):
        return psis_loo(posterior, fitted.rows(data.X_train), data.y_train, seed=seed)
    return None


# The footnotes --------------------------------------------------------------------------------------------------------
def footnotes_of(
    table: pd.DataFrame,
    outcomes: Mapping[str, ContenderOutcome],
    warned: Mapping[str, Sequence[str]],
    data: TrainTestSplit,
    reference: str | None,
) -> tuple[str, ...]:
    """The columns' meanings, why cells are blank, and what the fits found or warned of.

    Args:
        table: of the comparison.
        outcomes: the contenders' answers by name.
        warned: the warnings of each one's fit.
        data: the rows.
        reference: the name of the row that the others are compared with.
    """
    measures = [column for column in columns(data.kind, reference) if column.name in table]
    meanings = [f"{column.label}: {column.meaning}." for column in measures]
    notes = {name: outcome.fitted.note for name, outcome in outcomes.items()}
    found = [f"{style.label(name)}: {note}." for name, note in notes.items() if note]
    warnings = [f"{style.label(name)}, warning: {text}" for name, texts in warned.items() for text in texts]
    notes_on_values = (
        *(_coverage(len(data.y_test)) if data.kind == "numbers" else ()),
        *_precision(outcomes, reference),
        *_harmless(outcomes),
        *_blanks(table, outcomes, measures),
    )
    return (*meanings, *notes_on_values, *found, *warnings)


def _leading(measures: Sequence[Measure], leads: Mapping[str, Lead]) -> list[str]:
    """What bold means, and the lead of each column with its interval."""
    said = [
        f"{column.label}: {style.label(lead.best)} before {style.label(lead.rival)} by {lead.difference:.3g} "
        f"({lead.low:.3g} to {lead.high:.3g})".replace("-", "−")
        for column in measures
        if (lead := leads.get(column.name)) is not None
    ]
    if not said:
        return []
    meaning = "Bold: the best of a column, if its 95 % interval of the paired difference to each other row excludes 0"
    return [f"{meaning} (bootstrap over the test rows). The closest rival of each best: {'; '.join(said)}."]


def _coverage(rows: int) -> list[str]:
    """What chance does to the share of rows inside intervals that are right."""
    low, high = (stats.binom.ppf(tail, rows, COVERAGE) / rows for tail in (0.025, 0.975))
    return [
        f"Of intervals that are right, {low:.3f} to {high:.3f} hold their outcome in 95 of 100 tables of {rows} rows."
    ]


def _precision(outcomes: Mapping[str, ContenderOutcome], reference: str | None) -> list[str]:
    """How well a reference of draws knows a standard deviation, by the spread between its chains.

    The effective draws of the means would promise too much: a chain that swings from side to side knows the means
    better than independent draws, and the widths worse.
    """
    posterior = None if reference is None else outcomes[reference].fitted.posterior
    if not isinstance(posterior, DrawsPosterior) or posterior.draws.shape[0] < 2 or not has_coefficients(posterior):
        return []
    by_chain = posterior.draws.std(dim=1)
    errors = by_chain.std(dim=0) / by_chain.mean(dim=0) / math.sqrt(len(by_chain))
    typical, name = 100 * float(errors.square().mean().sqrt()), style.label(str(reference))
    return [f"{name} is a sample: it knows a weight's sd to ±{typical:.1f} %, so sd errors hold noise."]


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


def _blanks(table: pd.DataFrame, outcomes: Mapping[str, ContenderOutcome], measures: Sequence[Measure]) -> list[str]:
    """Why cells are blank, in one line."""
    reasons: dict[str, list[str]] = {}
    for name, outcome in outcomes.items():
        empty = [column.label for column in measures if math.isnan(table[column.name][name])]
        if outcome.fitted.posterior is None:
            reason = "a baseline has no posterior"
        elif is_point(outcome.fitted.posterior):
            reason = "a point has no spread"
        else:
            reason = f"no {' or '.join(empty)}"
        if empty:
            reasons.setdefault(reason, []).append(style.label(name))
    said = [f"{reason} ({', '.join(names)})" for reason, names in reasons.items()]
    networks = any(
        outcome.fitted.posterior and isinstance(outcome.fitted.posterior.function, NetworkModel)
        for outcome in outcomes.values()
    )
    if networks and reasons:
        said.append("of a network, which was trained on all rows, samplers alone leave rows out")
    return [f"Blank cells: {'; '.join(said)}."] if said else []
