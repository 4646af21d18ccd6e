"""What a comparison measures: its columns for each kind of outcome, and leave-one-out prediction."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias, final

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from bayescope import metrics
from bayescope.comparison.answers import COVERAGE, Answers, ClassAnswers, NumberAnswers
from bayescope.comparison.contenders import FittedContender
from bayescope.comparison.resampling import (
    Statistic,
    bootstrap,
    brier_rows,
    central,
    gap_in_bins,
    mean_auroc,
    mean_of,
    root_mean_of,
)
from bayescope.comparison.split import Kind
from bayescope.density import PARETO_K_LIMIT, pareto_smoothed
from bayescope.errors import UndefinedQuantityError
from bayescope.models import LinearModel
from bayescope.plots import style
from bayescope.posterior import DrawsPosterior, InputRows, MixturePosterior, PointPosterior, Posterior


@final
@dataclass(frozen=True, eq=False)
class ContenderOutcome:
    """One contender's answers.

    Attributes:
        fitted: the contender after its fit to the training rows.
        answers: what it says of the test rows.
        loo: leave-one-out prediction of the training rows, or ``None`` where there is none.
        fit_seconds: wall-clock seconds of the fit.
        predict_seconds: wall-clock seconds of the test rows' predictions.
    """

    fitted: FittedContender
    answers: Answers
    loo: Loo | None
    fit_seconds: float
    predict_seconds: float


# The columns of the table ---------------------------------------------------------------------------------------------
Best = Callable[[pd.Series], Hashable]
LOWEST: Best = pd.Series.idxmin
HIGHEST: Best = pd.Series.idxmax
LOWER_BOUND = "lower bound"
ESTIMATE = "estimate"
EXACT = "exact"
# Digits of the smallest value of a column that has the unit of y.
SIGNIFICANT = 4
# Of the bootstrap: one table has one answer.
SEED = 0

# From what a contender answered, and what the reference did, to a number; NaN where there is none.
Value: TypeAlias = Callable[[ContenderOutcome, ContenderOutcome], float]
Resampled: TypeAlias = Callable[[ContenderOutcome, ContenderOutcome], Statistic]


@final
@dataclass(frozen=True)
class Measure:
    """One measure of a comparison.

    Attributes:
        name: of the table's column.
        label: its heading for readers.
        digits: after the decimal point; ``None`` for as many as the smallest value of the column needs.
        best: the row of the best value; ``None`` where no value is better than another.
        meaning: what it measures, in one line.
        value: what it is of a contender.
        to_reference: whether it is a distance to the reference.
        resampled: the same of weighted test rows, as a statistic; ``None`` if it is not of test rows.
    """

    name: str
    label: str
    digits: int | None
    best: Best | None
    meaning: str
    value: Value
    to_reference: bool = False
    resampled: Resampled | None = None


def columns(kind: Kind, reference: str | None) -> tuple[Measure, ...]:
    """All columns that hold numbers, in order.

    Args:
        kind: what is predicted, "classes" or "numbers".
        reference: the posterior that the others are compared with, or ``None``.
    """
    against = "" if reference is None else style.label(reference)
    measures = (
        *MEASURES[kind](against, reference),
        Measure("sd_error", "sd error", 3, LOWEST, f"max ∣sd/sd_{against} − 1∣ over the weights' marginals",
                lambda outcome, truth: _sd_error(outcome.fitted, truth.fitted), True),
        Measure("log_evidence", "log evidence", 2, None, "log p(training rows) in nats; ≥ marks a lower bound (ELBO)",
                lambda outcome, _: evidence(outcome.fitted.posterior)[0]),
        Measure("loo", "LOO", 2, HIGHEST, "PSIS-LOO, Σ log p(y∣x, all other rows) over the training rows, in nats",
                lambda outcome, _: outcome.loo.elpd if outcome.loo else math.nan),
        Measure("loo_warnings", "k̂ > 0.7", 0, None, "training rows whose PSIS-LOO estimate is unreliable",
                lambda outcome, _: outcome.loo.warnings if outcome.loo else math.nan),
        Measure("fit_seconds", "fit s", 3, None, "wall-clock seconds of the fit",
                lambda outcome, _: outcome.fit_seconds),
        Measure("predict_seconds", "predict s", 3, None, "wall-clock seconds for the means of the test rows",
                lambda outcome, _: outcome.predict_seconds),
    )  # fmt: skip
    return tuple(measure for measure in measures if reference is not None or not measure.to_reference)


def _of_classes(against: str, reference: str | None) -> tuple[Measure, ...]:
    def score(of: Callable[[ClassAnswers], float]) -> Value:
        return lambda outcome, _: of(outcome.answers)  # type: ignore[arg-type]

    def resampled(of: Callable[[ClassAnswers], Statistic]) -> Resampled:
        return lambda outcome, _: of(outcome.answers)  # type: ignore[arg-type]

    return (
        # By the log density and not log(probs): finite where a probability rounds to 0.
        Measure("nll", "NLL", 4, LOWEST, "mean −log p(y∣x) of the test rows, in nats", score(_log_loss),
                resampled=resampled(lambda a: mean_of(-a.log_probs[np.arange(len(a.y)), a.y]))),
        Measure("brier", "Brier", 4, LOWEST, "mean squared error of the test rows' probabilities",
                score(lambda a: metrics.brier(a.probs, a.y)),
                resampled=resampled(lambda a: mean_of(brier_rows(a.probs, a.y)))),
        Measure("ece", "ECE", 4, LOWEST,
                f"expected calibration error of the test rows, {metrics.BINS} bins of confidence",
                score(lambda a: metrics.ece(a.probs, a.y)),
                resampled=resampled(lambda a: gap_in_bins(a.probs, a.y))),
        Measure("auroc", "AUROC", 4, HIGHEST, "of the test rows; for several classes the mean of each against the rest",
                score(lambda a: metrics.auroc(a.probs, a.y)),
                resampled=resampled(lambda a: mean_auroc(a.probs, a.y))),
        Measure("crps", "CRPS", 4, LOWEST,
                "mean Σ_k (P(y' ≤ k∣x) − 1{y ≤ k})² of the test rows, the ranked probability score of ordered classes",
                score(_ranked), resampled=resampled(lambda a: mean_of(_ranked_rows(a)))),
        Measure(f"tv_to_{reference}", f"TV to {against}", 4, LOWEST,
                f"½ Σ∣p − p_{against}∣, averaged over the test rows",
                lambda outcome, truth: total_variation(outcome.answers.probs, truth.answers.probs), True,  # type: ignore[union-attr]
                lambda outcome, truth: mean_of(0.5 * np.abs(outcome.answers.probs - truth.answers.probs).sum(1))),  # type: ignore[union-attr]
    )  # fmt: skip


def _of_numbers(against: str, reference: str | None) -> tuple[Measure, ...]:
    def score(of: Callable[[NumberAnswers], float]) -> Value:
        return lambda outcome, _: of(outcome.answers)  # type: ignore[arg-type]

    def resampled(of: Callable[[NumberAnswers], Statistic]) -> Resampled:
        return lambda outcome, _: of(outcome.answers)  # type: ignore[arg-type]

    percent = f"{100 * COVERAGE:g} %"
    return (
        Measure("nll", "NLL", 4, LOWEST, "mean −log p(y∣x) of the test rows, in nats",
                score(lambda a: -a.log_prob.mean()), resampled=resampled(lambda a: mean_of(-a.log_prob))),
        Measure("crps", "CRPS", None, LOWEST,
                "mean ∫ (F(x) − 1{x ≥ y})² dx of the test rows, F the predictive distribution, in y's unit",
                score(lambda a: a.crps.mean()), resampled=resampled(lambda a: mean_of(a.crps))),
        Measure("rmse", "RMSE", None, LOWEST, "root mean squared error of the predictive mean, in y's unit",
                score(lambda a: math.sqrt(np.square(a.mean - a.y).mean())),
                resampled=resampled(lambda a: root_mean_of(np.square(a.mean - a.y)))),
        Measure("coverage", f"in {percent}", 3, None,
                f"share of the test rows inside their {percent} interval; a count that is its end is inside in part, "
                f"so that right intervals hold {percent}", score(lambda a: a.coverage)),
        Measure("width", "width", None, None,
                f"mean width of the {percent} interval, in y's unit; narrow is good where the coverage is right",
                score(lambda a: (a.high - a.low).mean())),
        Measure(f"w1_to_{reference}", f"W1 to {against}", 4, LOWEST,
                f"∫ ∣F − F_{against}∣ dx in sds of y, averaged over test rows (Wasserstein distance of predictives)",
                lambda outcome, truth: wasserstein(outcome.answers, truth.answers), True,  # type: ignore[arg-type]
                lambda outcome, truth: mean_of(_distances(outcome.answers, truth.answers))),  # type: ignore[arg-type]
    )  # fmt: skip


MEASURES: Mapping[Kind, Callable[[str, str | None], tuple[Measure, ...]]] = {
    "classes": _of_classes,
    "numbers": _of_numbers,
}


def written(table: pd.DataFrame, column: Measure) -> list[str]:
    """A column's cells as text; a blank where the quantity is undefined.

    Args:
        table: of a comparison.
        column: one of its columns.
    """
    values = table[column.name]
    bound = table["evidence_kind"] == LOWER_BOUND if column.name == "log_evidence" else [False] * len(table)
    write = partial(_fixed, digits=_digits(values) if column.digits is None else column.digits)
    return [
        "" if math.isnan(value) else ("≥ " if below else "") + write(value)
        for value, below in zip(values, bound, strict=True)
    ]


def _digits(values: pd.Series) -> int:
    """Digits after the point that show `SIGNIFICANT` ones of the smallest value."""
    smallest = values.abs()[values.abs() > 0].min()
    return 0 if math.isnan(smallest) else max(0, SIGNIFICANT - 1 - math.floor(math.log10(smallest)))


def _fixed(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}" if digits < 10 else f"{value:.{SIGNIFICANT - 1}e}"
    return text.replace("-", "−")


@final
@dataclass(frozen=True)
class Lead:
    """How far the best row of a column is ahead of the row that is least surely behind it.

    Attributes:
        best: the name of the best row.
        rival: that of the other one.
        difference: by how much the best is better; above 0 whatever the column.
        low: the lower end of its 95 % interval, by the bootstrap over test rows, which both rows share.
        high: the upper end.
    """

    best: str
    rival: str
    difference: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether chance does not explain it."""
        return self.low > 0.0


def lead_of(
    column: Measure, table: pd.DataFrame, outcomes: Mapping[str, ContenderOutcome], reference: str | None
) -> Lead | None:
    """Which row leads a column, and how surely; ``None`` where no value is better, or nothing is known of the rows.

    Args:
        column: of the table.
        table: of a comparison.
        outcomes: the contenders' answers by name.
        reference: the name of the reference's row, which takes no part in distances to itself.
    """
    if column.best is None or column.resampled is None:
        return None
    competing = table[column.name].dropna()
    competing = competing.drop(reference) if column.to_reference else competing
    if column.name == "ece":  # the shares of the classes are calibrated, and say nothing
        competing = competing.drop("constant", errors="ignore")
    if len(competing) < 2:
        return None
    names, best = [str(name) for name in competing.index], str(column.best(competing))
    truth = {name: outcomes[name if reference is None else reference] for name in names}
    of_each = [column.resampled(outcomes[name], truth[name]) for name in names]
    answers = outcomes[best].answers
    rows = len(answers.quantiles) if column.name.startswith("w1_") else len(answers.y)  # type: ignore[union-attr]
    drawn = bootstrap(lambda weights: np.concatenate([of(weights) for of in of_each], axis=1), rows, SEED)
    sign = 1.0 if column.best is LOWEST else -1.0
    behind = {
        name: (
            sign * (competing[name] - competing[best]),
            *central(sign * (drawn[:, at] - drawn[:, names.index(best)])),
        )
        for at, name in enumerate(names)
        if name != best
    }
    rival = min(behind, key=lambda name: behind[name][1])
    return Lead(best, rival, *map(float, behind[rival]))


def best_cells(table: pd.DataFrame, lead: Lead | None) -> list[bool]:
    """Which cells of a column stand out: the best one, if chance does not explain its lead over any other.

    Args:
        table: of a comparison.
        lead: of the column.
    """
    return [lead is not None and lead.clear and name == lead.best for name in table.index]


# The values -----------------------------------------------------------------------------------------------------------
def _log_loss(answers: ClassAnswers) -> float:
    return -float(answers.log_probs[np.arange(len(answers.y)), answers.y].mean())


def _ranked(answers: ClassAnswers) -> float:
    """NaN for classes without an order."""
    if not answers.ordered:
        return math.nan
    return float(_ranked_rows(answers).mean())


def _ranked_rows(answers: ClassAnswers) -> np.ndarray:
    below, reached = answers.probs.cumsum(1), answers.y[:, None] <= np.arange(answers.probs.shape[1])
    rows: np.ndarray = np.square(below - reached).sum(1)
    return rows


def total_variation(probs: np.ndarray, reference: np.ndarray) -> float:
    """The mean over N rows of ½ Σ_k ∣p_k − r_k∣, in [0, 1].

    Args:
        probs: class probabilities, shape (N, K).
        reference: the reference's for the same rows.
    """
    return float(0.5 * np.abs(probs - reference).sum(axis=1).mean())


def wasserstein(answers: NumberAnswers, reference: NumberAnswers) -> float:
    """The mean over rows of ∫ ∣F(x) − R(x)∣ dx, in standard deviations of y.

    It is the mean of ∣F⁻¹(u) − R⁻¹(u)∣ over u, here over the levels of the quantiles: for Gaussians of one sd the
    distance of their means, and for Gaussians of one mean 0.8 times the difference of their sds.

    Args:
        answers: of a contender.
        reference: the reference's for the same rows.
    """
    return float(_distances(answers, reference).mean())


def _distances(answers: NumberAnswers, reference: NumberAnswers) -> np.ndarray:
    rows: np.ndarray = np.abs(answers.quantiles - reference.quantiles).mean(1) / answers.unit
    return rows


def _sd_error(fitted: FittedContender, reference: FittedContender) -> float:
    one, other = fitted.posterior, reference.posterior
    return sd_error(one, other) if has_coefficients(one) and has_coefficients(other) else math.nan


def has_coefficients(posterior: Posterior | None) -> bool:
    """Whether it is a posterior whose weights mean something one by one: those of a linear model."""
    return posterior is not None and isinstance(posterior.function, LinearModel)


def sd_error(posterior: Posterior | None, reference: Posterior | None) -> float:
    """The largest relative error of a marginal standard deviation, max_j ∣sd_j/sd_ref,j − 1∣.

    NaN where either is a point, which has no standard deviations to be wrong.

    Args:
        posterior: over P weights.
        reference: over the same weights.
    """
    if posterior is None or reference is None or is_point(posterior) or is_point(reference):
        return math.nan
    sd, truth = (q.covariance.diagonal().sqrt() for q in (posterior, reference))
    return float((sd / truth - 1).abs().max())


def is_point(posterior: Posterior) -> bool:
    """Whether all mass lies on one value of the weights."""
    return isinstance(posterior, PointPosterior)


def evidence(posterior: Posterior | None) -> tuple[float, str]:
    """The log evidence or its lower bound, and which of the two it is."""
    record = posterior.record if posterior is not None else None
    if record is not None and record.evidence is not None:
        return float(record.evidence), EXACT if record.method == "conjugate" else ESTIMATE
    if record is not None and record.elbo_terms is not None:
        return float(record.elbo()), LOWER_BOUND
    return math.nan, ""


# Leave-one-out prediction ---------------------------------------------------------------------------------------------
DRAWS = 4000
LEAST_DRAWS = 100  # of a posterior that is made of draws, which are weighed anew for each row
EVEN = 0.9  # the share of effective draws above which weights differ too little for k̂ to matter
BLOCK_NUMBERS = 2**20  # outputs held at a time


class Loo(NamedTuple):
    """The expected log predictive density of left-out rows.

    Attributes:
        elpd: Σ_n log p(y_n∣D_{−n}) over the training rows, in nats.
        warnings: how many rows have a Pareto k̂ above 0.7.
        harmless: how many of these weigh all draws nearly alike, with over 90 % of them effective: the tail of their
            weights is long and holds next to nothing, as in rows that are predicted with near certainty.
    """

    elpd: float
    warnings: int
    harmless: int


def psis_loo(posterior: Posterior, X: object, y: np.ndarray, *, seed: int, held: int = BLOCK_NUMBERS) -> Loo:
    """PSIS-LOO of a posterior q over the weights (Vehtari, Gelman & Gabry 2017, equations 3 and 10).

    Row n is left out by the importance weights 1/p(y_n∣θ_s) of draws θ_s ~ q, Pareto-smoothed; so an approximate q
    is judged by its own leave-one-out predictions, and k̂ shows where a single row moves q too far for that.

    Args:
        posterior: with its model and likelihood.
        X: the N rows that it was fitted to, as its model takes them.
        y: their outcomes, labels as codes.
        seed: of the draws from a posterior that is not draws itself.
        held: outputs held at a time.

    Raises:
        UndefinedQuantityError: if the posterior is of a bare log density, which has no rows, or of few draws.
    """
    model, likelihood = posterior.function, posterior.likelihood
    if model is None or likelihood is None:
        raise UndefinedQuantityError("psis_loo: expected a posterior with a model, got one of a log density.")
    count = _count(posterior)
    if count < LEAST_DRAWS:
        raise UndefinedQuantityError(f"psis_loo: expected at least {LEAST_DRAWS} draws, got {count}.")
    rows = X if isinstance(X, InputRows) else InputRows(X)
    targets, efficiency = likelihood.targets(y, model.outputs), _efficiency(posterior)
    elpd, unreliable, harmless = 0.0, 0, 0
    size = max(held // (count * model.outputs), 1)
    for start in range(0, len(y), size):
        f = _functions(posterior, rows[start : start + size], seed)
        log_lik = likelihood.log_prob(f, targets[start : start + size]).mT
        log_weights, k_hat = pareto_smoothed(-log_lik, efficiency=efficiency)
        elpd += float(torch.logsumexp(log_weights + log_lik, 1).sum())
        warned = k_hat > PARETO_K_LIMIT
        even = (2.0 * log_weights).exp().sum(1) * log_lik.shape[1] < 1.0 / EVEN  # 1/Σ w² effective draws
        unreliable += int(warned.sum())
        harmless += int((warned & even).sum())
    return Loo(elpd, unreliable, harmless)


def _count(posterior: Posterior) -> int:
    """How many different draws of the weights there can be, at most `DRAWS` of a density."""
    if isinstance(posterior, DrawsPosterior):
        return len(posterior.flat)
    if isinstance(posterior, MixturePosterior):
        return sum(map(_count, posterior.components))
    return 1 if is_point(posterior) else DRAWS


def _functions(posterior: Posterior, rows: InputRows, seed: int) -> Tensor:
    """f at some rows, shape (S, n, C): at the draws that there are, else at draws that are the same for all rows."""
    if isinstance(posterior, DrawsPosterior) and posterior.function is not None:
        f = posterior.function.forward(posterior.function.inputs(rows.values), posterior.flat)
        shift = rows.shift(f)
        return f if shift is None else f + shift
    return posterior.sample_functions(rows, DRAWS, generator=seed)


def _efficiency(posterior: Posterior) -> float:
    """Of the draws, relative to independent ones."""
    effective = posterior.effective_draws if isinstance(posterior, DrawsPosterior) else None
    return 1.0 if effective is None else min(float(effective.mean()) / _count(posterior), 1.0)
