"""What is compared: the posteriors that a template can have, and plain baselines fitted to the same rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final, get_args, get_type_hints

import numpy as np
import pandas as pd
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn.base import clone, is_classifier
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, PoissonRegressor, RidgeCV
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from bayescope import checks
from bayescope.comparison.answers import Predict, class_log_probs
from bayescope.comparison.split import Kind, TrainTestSplit
from bayescope.errors import InputError, InputTypeError, UnsupportedError
from bayescope.estimators.base import TableEstimator, of_ordered_classes
from bayescope.estimators.linear import BayesianLinearRegression
from bayescope.estimators.linear_posteriors import OBJECTIVES
from bayescope.estimators.linear_reading import LinearEstimator
from bayescope.estimators.priors import sparse_prior
from bayescope.latent import DrawsLatent, GaussianLatent
from bayescope.likelihoods import Categorical, Gaussian, Poisson, resolve
from bayescope.plots import style
from bayescope.posterior import InputRows, Posterior
from bayescope.predictive import Predictive
from bayescope.tables import read_table

# The template ---------------------------------------------------------------------------------------------------------
# The one posterior of an estimator that has no such option: it is exact.
EXACT = "exact"
# Left out unless they are named: a choice among the others, samplers, and Laplace once more.
ON_REQUEST = ("auto", "nuts", "metropolis", "function_space")
# Those that are made of chains, and their options.
CHAINS = ("nuts", "metropolis", "sgmcmc")
CHAIN_OPTIONS = ("draws", "tune", "chains")
# What the others are compared with where NUTS is not fitted, the first that the estimator has.
STAND_INS = (EXACT, "ensemble", "laplace")


def kind_of(template: object) -> Kind:
    """What the template predicts.

    Raises:
        InputTypeError: if it is no estimator of this library.
    """
    if not isinstance(template, TableEstimator):
        raise InputTypeError(
            "estimator: expected an estimator of this library to copy and fit, such as BayesianLogisticRegression(), "
            f"got {template!r}. Compare posteriors of a network by the log_prob of their predictions of new rows."
        )
    return "classes" if is_classifier(template) else "numbers"


def posteriors_of(template: TableEstimator) -> tuple[str, ...]:
    """The names that the template's option ``posterior`` takes; `EXACT` where a Gaussian prior leaves no choice."""
    if isinstance(template, BayesianLinearRegression):
        return (EXACT,)
    option = get_type_hints(type(template)).get("posterior")
    return tuple(get_args(option)) or (EXACT,)


def names_of(
    template: TableEstimator, data: TrainTestSplit, posteriors: Sequence[str] | None, reference: str | None
) -> tuple[list[str], str | None, list[str]]:
    """The rows in order, each once, the reference last unless it was named earlier; the reference; and a note on it.

    Raises:
        InputError: if no posterior is named.
        InputTypeError: if posteriors are no list.
        OptionError: if a name is unknown.
        UnsupportedError: if a posterior or the link does not go with the number of classes.
    """
    if isinstance(posteriors, str):
        raise InputTypeError(f"posteriors: expected a list of names, got the text {posteriors!r}. Put it in a list.")
    if posteriors is not None and len(posteriors) == 0:
        raise InputError("posteriors: expected at least one name, got none. Leave it out for all of them.")
    available, baselines, several = posteriors_of(template), BASELINES[data.kind], len(data.classes) > 2
    if several and getattr(template, "link", None) == "probit":
        raise UnsupportedError(
            f"link='probit': expected two classes, got {len(data.classes)}. For more use link='logit'."
        )
    known = [*(name for name in available if name != "auto"), *(each for each in baselines if each != SCALED)]
    known += [SCALED] if "map" in known and data.kind == "classes" else []
    if posteriors is None:
        names = [name for name in known if name not in ON_REQUEST and not (name == "ep" and several)]
        names = _usual_order(names, template)
    else:
        names = [checks.choice("posteriors", name, known) for name in posteriors]
    compared_with, notes = _reference(template, reference, available, names)
    names = list(dict.fromkeys([*names, *([] if compared_with is None else [compared_with])]))
    if "ep" in names and several:
        raise UnsupportedError(f"posterior='ep': expected two classes, got {len(data.classes)}. Leave it out.")
    return names, compared_with, notes


def _usual_order(names: list[str], template: TableEstimator) -> list[str]:
    """Plain baselines first, where the template is not one itself, and the temperature after the MAP that it scales."""
    plain = [name for name in names if name in PLAIN and name != ("ridge" if _of_counts(template) else "poisson")]
    if isinstance(template, LinearEstimator) and is_classifier(template) and not of_ordered_classes(template):
        plain = []
    order = [*plain, *(name for name in names if name not in PLAIN and name != SCALED)]
    if SCALED in names:
        order.insert(order.index("map") + 1, SCALED)
    return order


def _of_counts(template: TableEstimator) -> bool:
    likelihood = getattr(template, "likelihood", None)
    return likelihood is not None and resolve(likelihood).domain.integer


def _reference(
    template: TableEstimator, asked: str | None, available: Sequence[str], names: Sequence[str]
) -> tuple[str | None, list[str]]:
    """NUTS where it is asked for and takes seconds or is named; else another one, and a note that says why."""
    if asked is None:
        return None, []
    quick = "nuts" in available and isinstance(template, LinearEstimator)
    if asked != "nuts" or quick or "nuts" in names:
        return checks.choice("reference", asked, [name for name in available if name != "auto"]), []
    instead = next(name for name in STAND_INS if name in available)
    if instead == EXACT:
        return instead, ["Exact: the posterior of the weights is known in closed form, and is the reference."]
    why = "takes minutes to hours for a network" if "nuts" in available else "does not sample this model"
    advice = ' Name "nuts" among the posteriors to have it.' if "nuts" in available else ""
    return instead, [
        f"NUTS {why}, so that {style.label(instead)}, an approximation too, is the reference: distances say how much "
        f"the posteriors differ, and not how wrong they are.{advice}"
    ]


def variant(template: TableEstimator, posterior: str, random_state: int) -> TableEstimator:
    """A copy of the template with a posterior and a seed; options of another posterior are left out.

    Args:
        template: whose other options hold.
        posterior: the name of the copy's.
        random_state: the copy's.
    """
    copy: TableEstimator = clone(template)
    known = copy.get_params(deep=False)
    options: dict[str, Any] = {"random_state": random_state, "progress": False, "checkpoint": None}
    if posterior != EXACT:
        options["posterior"] = posterior
    if posterior not in CHAINS:
        options |= dict.fromkeys(CHAIN_OPTIONS)
    if posterior != known.get("posterior"):
        options["posterior_options"] = None
    return copy.set_params(**{name: value for name, value in options.items() if name in known})


def with_one_prior(
    template: TableEstimator, X: pd.DataFrame, y: np.ndarray, random_state: int
) -> tuple[TableEstimator, tuple[str, ...]]:
    """The template with the prior precision that posterior="auto" learns, if it is to be learnt, and a footnote on it.

    The precision is learnt once and held for every posterior: otherwise each would have a different prior, and a
    difference from the reference would be a difference of priors as much as of approximations. Where there is no
    "auto", every posterior learns the same precisions by the same search.

    Args:
        template: with a ``prior_precision`` option.
        X: the training rows.
        y: their outcomes.
        random_state: of the contenders' fits, so that the prior is learnt on the features that they have.
    """
    asked: Any = template.get_params(deep=False).get("prior_precision")
    if sparse_prior(asked) is not None:
        raise UnsupportedError(
            f"prior_precision: expected a Gaussian prior, under which every posterior can be compared, got {asked!r}. "
            "Use 'evidence' or 'ard'."
        )
    if "auto" not in posteriors_of(template) or not isinstance(asked, str):
        return template, ()
    if asked == "ard" or template.get_params(deep=False).get("groups") is not None:
        note = f"Prior precisions: by feature or group, learnt from the training rows by {OBJECTIVES['laplace']}."
        return template, (note,)  # whatever the posterior, which has no part in it
    fitted: Any = variant(template, "auto", random_state).fit(X, y)
    learnt = fitted.prior_precision_
    objective = OBJECTIVES.get(fitted.posterior_.record.method, "the evidence")
    size = "one for each feature" if np.ndim(learnt) else f"{learnt:.4g}"
    note = f"Prior precision: {size} for every posterior, learnt from the training rows by {objective}."
    return clone(template).set_params(prior_precision=learnt), (note,)


# The contenders -------------------------------------------------------------------------------------------------------
FOLDS = 5
# Beyond these the held-out rows say only "as far as you can": they are perfectly separated, or carry no signal.
TEMPERATURES = (0.02, 50.0)
RIDGES = np.logspace(-3.0, 6.0, 19)


@final
@dataclass(frozen=True)
class FittedContender:
    """A contender after its fit.

    Attributes:
        predict: from a table to its predictive; labels are codes 0…K−1.
        posterior: over the weights, or ``None`` for a baseline, which has none.
        rows: from a table to the inputs of the posterior's model; ``None`` for a baseline.
        weight_names: of the P weights of a linear model, in the posterior's order; else empty.
        note: what the fit found that a reader of the table should know.
    """

    predict: Predict
    posterior: Posterior | None
    rows: Callable[[pd.DataFrame], InputRows] | None = None
    weight_names: tuple[str, ...] = ()
    note: str = ""


Contender = Callable[[TableEstimator, pd.DataFrame, np.ndarray, int], FittedContender]


def contender(name: str, kind: Kind = "classes") -> Contender:
    """The function that fits what a name stands for: a baseline of that name, else the posterior of that name.

    Args:
        name: in the table's first column.
        kind: what the template predicts.

    Returns:
        A function of (template, X, y, random_state).
    """
    return BASELINES[kind].get(name, partial(_fit_posterior, name))


def _fit_posterior(
    name: str, template: TableEstimator, X: pd.DataFrame, y: np.ndarray, random_state: int
) -> FittedContender:
    estimator = variant(template, name, random_state).fit(X, y)
    weights = tuple(getattr(estimator, "weight_names_", ()))
    return FittedContender(estimator.predict_distribution, estimator.posterior_, estimator._rows, weights)


def temperature_scaled_map(
    template: TableEstimator, X: pd.DataFrame, y: np.ndarray, random_state: int
) -> FittedContender:
    """MAP with its logits divided by one temperature: softmax(log p / T), p the class probabilities of MAP.

    T minimises the negative log likelihood of training rows that a fold's fit has not seen (Guo et al. 2017, fitted
    on five folds in place of a validation set). For the logit link log p/T and logits/T have the same softmax.
    """
    fit = partial(_fit_posterior, "map", template, random_state=random_state)
    _, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
    folds = StratifiedKFold(min(FOLDS, int(counts.min())), shuffle=True, random_state=random_state)
    held_out = np.empty((len(y), len(counts)))
    for train, test in folds.split(X, y):
        held_out[test] = class_log_probs(fit(X.iloc[train], y[train]).predict, X.iloc[test], len(counts))
    temperature = fit_temperature(held_out, codes)
    point = fit(X, y)
    note = f"temperature {temperature:.3f}, fitted on {folds.n_splits} folds of the training rows"
    if temperature in TEMPERATURES:
        note += "; it lies at the end of the range searched, since the held-out rows do not bound it"

    def predict(table: pd.DataFrame) -> Predictive:
        return _of_logits(class_log_probs(point.predict, table, len(counts)) / temperature)

    return replace(point, predict=predict, posterior=None, rows=None, note=note)


def fit_temperature(log_probs: np.ndarray, y: np.ndarray) -> float:
    """The T that minimises −Σ log softmax(log p / T)_y, convex in 1/T, over `TEMPERATURES`.

    Args:
        log_probs: log class probabilities of rows that the model was not fitted to, shape (N, K).
        y: their classes, 0…K−1.
    """
    rows = np.arange(len(y))

    def loss(inverse: float) -> float:
        return -float(log_softmax(inverse * log_probs, axis=1)[rows, y].sum())

    low, high = (1.0 / end for end in reversed(TEMPERATURES))
    # In log(1/T), where the bracket is even; a convex function of 1/T has one minimum there too.
    found = minimize_scalar(lambda s: loss(np.exp(s)), bounds=(np.log(low), np.log(high)), options={"xatol": 1e-8})
    best = min((low, float(np.exp(found.x)), high), key=loss)
    return 1.0 / best


def _constant_classes(_: TableEstimator, X: pd.DataFrame, y: np.ndarray, random_state: int) -> FittedContender:  # noqa: ARG001
    counts = np.unique(y, return_counts=True)[1]
    logs = np.log(counts / counts.sum())
    note = "the shares of the classes among the training rows, whatever the features"
    return FittedContender(lambda table: _of_logits(np.tile(logs, (len(table), 1))), None, note=note)


def _logistic(_: TableEstimator, X: pd.DataFrame, y: np.ndarray, random_state: int) -> FittedContender:
    model = make_pipeline(_plain_inputs(X), LogisticRegression(max_iter=1000, random_state=random_state))
    model.fit(_plain(X), y)
    note = "scikit-learn's LogisticRegression of the standardised columns"
    return FittedContender(lambda table: _of_logits(model.predict_log_proba(_plain(table))), None, note=note)


def _constant_number(_: TableEstimator, X: pd.DataFrame, y: np.ndarray, random_state: int) -> FittedContender:  # noqa: ARG001
    mean, variance = float(y.mean()), float(y.var(ddof=1))
    note = "the Gaussian with the mean and the variance of the training rows, whatever the features"
    return FittedContender(lambda table: _gaussian(np.full(len(table), mean), variance), None, note=note)


def _ridge(_: TableEstimator, X: pd.DataFrame, y: np.ndarray, random_state: int) -> FittedContender:
    model = make_pipeline(_plain_inputs(X), RidgeCV(alphas=RIDGES))
    folds = KFold(min(FOLDS, len(y)), shuffle=True, random_state=random_state)
    variance = float(np.square(y - cross_val_predict(model, _plain(X), y, cv=folds)).mean())
    model.fit(_plain(X), y)
    note = (
        f"scikit-learn's RidgeCV of the standardised columns; its variance is that of errors on {folds.n_splits} folds"
    )
    return FittedContender(lambda table: _gaussian(model.predict(_plain(table)), variance), None, note=note)


def _poisson(_: TableEstimator, X: pd.DataFrame, y: np.ndarray, random_state: int) -> FittedContender:  # noqa: ARG001
    model = make_pipeline(_plain_inputs(X), PoissonRegressor(alpha=1e-3, max_iter=1000)).fit(_plain(X), y)

    def predict(table: pd.DataFrame) -> Predictive:
        f = torch.from_numpy(np.log(model.predict(_plain(table))))[None, :, None]
        return Predictive(DrawsLatent(f), Poisson(), arrays=True)

    return FittedContender(predict, None, note="scikit-learn's PoissonRegressor of the standardised columns")


def _plain(X: pd.DataFrame) -> pd.DataFrame:
    """The table with labels as text, one of which stands for a missing one."""
    columns = {
        name: X[name].astype(object).where(X[name].notna(), "missing").astype(str)
        if column.kind == "categorical"
        else pd.Series(column.values, index=X.index)
        for name, column in zip(X.columns, read_table(X), strict=True)
    }
    return pd.DataFrame(columns)


def _plain_inputs(X: pd.DataFrame) -> Any:
    kinds = {name: column.kind for name, column in zip(X.columns, read_table(X), strict=True)}
    numbers = make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler())
    return make_column_transformer(
        (numbers, [name for name, kind in kinds.items() if kind == "numeric"]),
        (OneHotEncoder(handle_unknown="ignore"), [name for name, kind in kinds.items() if kind != "numeric"]),
    )


def _of_logits(logits: np.ndarray) -> Predictive:
    return Predictive(DrawsLatent(torch.from_numpy(logits)[None]), Categorical(), arrays=True)


def _gaussian(mean: np.ndarray, variance: float) -> Predictive:
    centre = torch.from_numpy(mean)[:, None]
    return Predictive(
        GaussianLatent(centre, torch.zeros_like(centre)[..., None], "exact"), Gaussian(variance), arrays=True
    )


SCALED = "map_temperature"
PLAIN = ("constant", "logistic", "ridge", "poisson")
BASELINES: Mapping[Kind, Mapping[str, Contender]] = {
    "classes": {"constant": _constant_classes, "logistic": _logistic, SCALED: temperature_scaled_map},
    "numbers": {"constant": _constant_number, "ridge": _ridge, "poisson": _poisson},
}
