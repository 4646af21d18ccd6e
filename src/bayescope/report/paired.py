"""Several models on the same rows: the scores of each, and paired differences to the best with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal, final

import numpy as np

from bayescope import metrics
from bayescope.comparison.answers import share_inside
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
from bayescope.estimators.base import TableEstimator
from bayescope.plots.numbers import around, count, fixed, percent
from bayescope.report.judged import WIDE, Judged, Predictions, predictions
from bayescope.report.statistics import Score, class_scores, number_scores

# Colours that a reader can tell apart.
MOST_MODELS = 8
Seen = Literal["held out", "fitted", "unknown"]
# What each score is called, in the order of the page; the first that all models have decides.
LABELS = {
    "nll": "NLL, nats per row",
    "crps": "CRPS",
    "brier": "Brier score",
    "ece": f"calibration error, {metrics.BINS} bins",
    "auroc": "AUROC",
    "accuracy": "accuracy",
    "rmse": "RMSE",
    "coverage": "coverage of 95 % intervals",
}
SHARES = ("accuracy", "coverage")


@final
@dataclass(frozen=True, eq=False)
class JudgedModel:
    """A fitted model, and what it says of the rows that all models are judged on.

    Attributes:
        name: a name that no other model has.
        facts: of the model, (what, value), for readers.
        seen: whether the rows were "held out" from its fit or "fitted", or that is "unknown".
        predicted: of the rows; classes in the order of all models.
        outcomes: what its log probabilities are of: "classes", "numbers", "whole numbers", or "numbers above an atom".
    """

    name: str
    facts: tuple[tuple[str, str], ...]
    seen: Seen
    predicted: Predictions
    outcomes: str


def judged_model(
    name: str,
    estimator: TableEstimator,
    own: Judged,
    classes: Sequence[str],
    facts: tuple[tuple[str, str], ...],
    seen: Seen,
) -> JudgedModel:
    """Predicts the rows of one model.

    Args:
        name: of the model.
        estimator: fitted.
        own: the rows as this model reads them.
        classes: in the order of all models; empty for numbers.
        facts: of the model.
        seen: whether the rows were fitted.
    """
    said = predictions(estimator, own)
    if classes:
        order = [own.classes.index(label) for label in classes]
        said = replace(
            said, mean=said.mean[:, order], epistemic=said.epistemic[:, order], aleatoric=said.aleatoric[:, order]
        )
    return JudgedModel(name, facts, seen, said, "classes" if classes else _outcomes(estimator, own))


def _outcomes(estimator: TableEstimator, own: Judged) -> str:
    """What numbers have a probability, and what have a density."""
    likelihood = estimator.predict_distribution(own.rows(np.arange(1))).likelihood
    domain = likelihood.unweighted.domain
    if domain.integer:
        return "whole numbers"
    return "numbers above an atom" if domain.atom else "numbers"


# Scores ---------------------------------------------------------------------------------------------------------------
@final
@dataclass(frozen=True, eq=False)
class PairedScore:
    """One score of M models on the same rows.

    Attributes:
        name: as a `Score` is called.
        scores: of each model.
        best: the place of the model with the best value.
        differences: to the value of the best: value and both ends of the 95 % interval, shape (M, 3); 0 for the best.
    """

    name: str
    scores: tuple[Score, ...]
    best: int
    differences: np.ndarray

    @property
    def label(self) -> str:
        """What it is called."""
        return LABELS[self.name]

    @property
    def behind(self) -> np.ndarray:
        """Which models differ from the best by more than the rows leave open, shape (M,)."""
        apart: np.ndarray = (self.differences[:, 1] > 0) | (self.differences[:, 2] < 0)
        return apart

    @property
    def won(self) -> bool:
        """Whether every other model is behind the best; coverage has no winner, since nearness to 95 % is noise."""
        return self.name != "coverage" and int(self.behind.sum()) == len(self.scores) - 1

    def value(self, place: int) -> tuple[str, str]:
        """The score of a model, and its interval."""
        score = self.scores[place]
        if self.name in SHARES:
            return percent(score.value), f"{fixed(100 * score.low, 1)} to {fixed(100 * score.high, 1)}"
        return around(score.value, score.low, score.high, max(map(abs, (score.value, score.low, score.high))))

    def difference(self, place: int) -> tuple[str, str]:
        """How far a model is from the best, and the interval of that."""
        return _with_interval(self.differences[place], self.name in SHARES, sign=True)


def paired_scores(models: Sequence[JudgedModel], judged: Judged, random_state: int) -> tuple[PairedScore, ...]:
    """The scores of models on the same rows, with a bootstrap of pairs: every resample has the same rows for all.

    The negative log likelihood is left out where some models give probabilities and others densities, or where a model
    gives an outcome the probability 0.

    Args:
        models: at least two.
        judged: the rows, with their truths as codes of the common classes, or as numbers.
        random_state: the seed of the bootstrap.
    """
    classes = bool(judged.classes)
    scored = class_scores if classes else number_scores
    comparable = not nll_left_out(models)
    # Without its log probabilities, which may be infinite, a model has all other scores.
    predicted = [
        model.predicted if comparable else replace(model.predicted, log_prob=np.zeros(len(judged))) for model in models
    ]
    own = [{score.name: score for score in scored(judged, each, random_state)} for each in predicted]
    statistics = [(_of_classes if classes else _of_numbers)(judged, each) for each in predicted]
    names = [name for name in LABELS if name in own[0] and (comparable or name != "nll")]

    def all_of_them(weights: np.ndarray) -> np.ndarray:
        return np.concatenate([each[name](weights) for each in statistics for name in names], axis=1)

    drawn = bootstrap(all_of_them, len(judged), random_state).reshape(-1, len(models), len(names))
    return tuple(_paired(name, [each[name] for each in own], drawn[:, :, place]) for place, name in enumerate(names))


def nll_left_out(models: Sequence[JudgedModel]) -> str:
    """Why the models' log probabilities cannot be compared; empty if they can."""
    kinds = {model.outcomes: model.name for model in models}
    if len(kinds) > 1:
        of = "; ".join(f"{name}: {kind}" for kind, name in kinds.items())
        return f"NLL is left out: probabilities and densities of different outcomes have no common unit ({of})"
    endless = [model.name for model in models if not np.isfinite(model.predicted.log_prob).all()]
    return f"NLL is left out: an outcome has the probability 0 under {', '.join(endless)}" if endless else ""


def _paired(name: str, scores: Sequence[Score], drawn: np.ndarray) -> PairedScore:
    """From the draws of one score, shape (draws, M)."""
    values = np.array([score.value for score in scores])
    loss = {"coverage": np.abs(values - WIDE), "accuracy": -values, "auroc": -values}.get(name, values)
    best = int(np.argmin(loss))
    apart = values - values[best]
    differences = drawn - drawn[:, [best]]
    if name == "ece":  # gaps of resampled bins are noisier, and wider for the better model: moved back by that bias
        differences = differences - differences.mean(0) + apart
    return PairedScore(name, tuple(scores), best, np.column_stack([apart, *central(differences)]))


def _of_classes(judged: Judged, predicted: Predictions) -> Mapping[str, Statistic]:
    probs, y = predicted.mean, judged.y
    return {
        "nll": mean_of(-predicted.log_prob),
        "brier": mean_of(brier_rows(probs, y)),
        "accuracy": mean_of((probs.argmax(1) == y).astype(np.float64)),
        "ece": gap_in_bins(probs, y),
        "auroc": mean_auroc(probs, y),
    }


def _of_numbers(judged: Judged, predicted: Predictions) -> Mapping[str, Statistic]:
    return {
        "nll": mean_of(-predicted.log_prob),
        "crps": mean_of(predicted.crps),
        "rmse": root_mean_of((judged.y - predicted.mean[:, 0]) ** 2),
        "coverage": mean_of(share_inside(predicted.pit_ends, np.array([WIDE]))[:, 0]),
    }


# In words -------------------------------------------------------------------------------------------------------------
def said(score: PairedScore, names: Sequence[str]) -> str:
    """Which model is best by a score and by how much, or that the rows do not show it."""
    others = [place for place in range(len(names)) if place != score.best]
    before = [f"{names[place]} by {_by(score, place)}" for place in others if score.behind[place]]
    level = [f"{names[place]} (difference {_by(score, place)})" for place in others if not score.behind[place]]
    best = names[score.best]
    if score.name == "coverage":
        values = [f"{percent(each.value)} by {name}" for each, name in zip(score.scores, names, strict=True)]
        return f"Coverage of 95 % intervals: {_listed(values)}."
    label = f"{score.label[0].upper()}{score.label[1:]}"
    if not before:
        return f"{label}: these rows show no clear difference between {best} and {_listed(level)}."
    open_ones = f"; these rows show no clear difference from {_listed(level)}" if level else ""
    return f"{label}: {best} is better than {_listed(before)}{open_ones}."


def headline(score: PairedScore, names: Sequence[str], rows: int) -> str:
    """The answer in a few words, by the score that decides."""
    these = f"these {count(rows, 'row')}"
    if score.won:
        others = [name for place, name in enumerate(names) if place != score.best]
        return f"{names[score.best]} predicts {these} better than {_listed(others)}"
    if score.behind.any():
        level = [name for place, name in enumerate(names) if place != score.best and not score.behind[place]]
        return f"{names[score.best]} is ahead, but {these} show no clear difference from {_listed(level)}"
    return f"T{these[1:]} do not show which model predicts better"


def _by(score: PairedScore, place: int) -> str:
    """The size of a difference, without its sign where its interval has none either."""
    value, low, high = score.differences[place]
    turned = (-value, -high, -low) if score.name in ("accuracy", "auroc") else (value, low, high)
    text, interval = _with_interval(np.array(turned), score.name in SHARES)
    return f"{text}, 95 % interval {interval}"


def _with_interval(ends: np.ndarray, share: bool, *, sign: bool = False) -> tuple[str, str]:
    """A value and its interval with as many digits as the interval has use for; shares in percentage points."""
    value, low, high = (ends * (100.0 if share else 1.0)).tolist()
    text, interval = around(value, low, high, max(abs(low), abs(high), abs(value)), sign=sign)
    return f"{text} points" if share else text, interval


def _listed(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


# Rows -----------------------------------------------------------------------------------------------------------------
def apart(models: Sequence[JudgedModel], judged: Judged) -> np.ndarray:
    """How far models are from each other in each row, shape (N,): the largest distance of two of them.

    Of classes that is the total variation ½ Σ_k ∣p_k − r_k∣ of their probabilities, of numbers the distance of their
    means, in the unit of the target.
    """
    distances = []
    for one, other in combinations([model.predicted.mean for model in models], 2):
        distances.append(0.5 * np.abs(one - other).sum(1) if judged.classes else np.abs(one - other)[:, 0])
    largest: np.ndarray = np.max(distances, axis=0)
    return largest
