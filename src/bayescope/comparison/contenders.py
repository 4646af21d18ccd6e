"""What is compared: a split of the table, and the posteriors of one template with a baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import numpy as np
import pandas as pd
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn.base import clone
from sklearn.model_selection import StratifiedKFold, train_test_split

from bayescope import checks
from bayescope.errors import InputError, InputTypeError, UnsupportedError
from bayescope.estimators import BayesianLogisticRegression
from bayescope.estimators.linear_posteriors import OBJECTIVES, SAMPLERS
from bayescope.posterior import Posterior
from bayescope.tables import read_table

# The split ------------------------------------------------------------------------------------------------------------
# The temperature baseline fits on folds of the training rows, each of which needs every class.
LEAST_TRAINING_ROWS = 2


@final
@dataclass(frozen=True)
class TrainTestSplit:
    """Training and test rows of one table, labels as codes 0…K−1.

    Attributes:
        X_train: the training rows.
        X_test: the test rows.
        y_train: their classes, shape (N_train,).
        y_test: their classes, shape (N_test,).
        labels: the K labels as given, sorted.
        classes: the K labels for readers: with the name of y where it has one, as in "malignant = 1".
    """

    X_train: pd.DataFrame
    X_test: pd.DataFrame
    y_train: np.ndarray
    y_test: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]


def split(X: object, y: object, *, test_size: float, random_state: int) -> TrainTestSplit:
    """Splits a table into training and test rows with the classes in proportion.

    Args:
        X: features, shape (N, D): a DataFrame, whose columns may be numbers or labels with gaps, an array or a tensor.
        y: N class labels of any sortable type.
        test_size: the share of the rows to test on, in (0, 1).
        random_state: the seed of the split.

    Raises:
        InputError: if X is no table or has infinite numbers, y has not one label a row, or a class has too few rows for
            both parts.
        InputTypeError: if a column holds what is neither a number nor a label, such as dates.
    """
    table = X if isinstance(X, pd.DataFrame) else _named(checks.float64("X", X).numpy())
    read_table(table)
    labels = np.asarray(y)
    if labels.ndim != 1 or len(labels) != len(table):
        raise InputError(f"y: expected one label for each of the {len(table)} rows of X, got shape {labels.shape}.")
    if pd.isna(labels).any():
        raise InputError(
            f"y: expected a label in every row, got none in row {int(np.argmax(pd.isna(labels)))}. Drop it."
        )
    try:
        classes, codes = np.unique(labels, return_inverse=True)
    except TypeError as error:
        raise InputTypeError(f"y: expected labels of one type, so that they can be sorted, got {error}.") from None
    if len(classes) < 2:
        raise InputError(f"y: expected at least two classes, got {len(classes)} ({_named_classes(classes)}).")
    train, test = _split_rows(codes, classes, checks.fraction("test_size", test_size), random_state)
    name = getattr(y, "name", None)  # of a pandas Series
    names = tuple(str(label) if name is None else f"{name} = {label}" for label in classes)
    return TrainTestSplit(table.iloc[train], table.iloc[test], codes[train], codes[test], classes, names)


def _named(table: np.ndarray) -> pd.DataFrame:
    if table.ndim != 2:
        raise InputError(f"X: expected shape (N, D), got {table.shape}.")
    return pd.DataFrame(table, columns=[f"x{column}" for column in range(table.shape[1])])


def _split_rows(
    codes: np.ndarray, classes: np.ndarray, test_size: float, random_state: int
) -> tuple[np.ndarray, np.ndarray]:
    """Row indices of both parts, once it is sure that each part has each class."""
    counts = np.bincount(codes)
    tested, rows, rarest = int(np.ceil(test_size * len(codes))), len(codes), int(counts.argmin())
    advice = "Add rows of it, merge it with another class, or change the test size."
    if min(tested, rows - tested) >= len(classes) and counts.min() >= LEAST_TRAINING_ROWS + 1:
        train, test = train_test_split(np.arange(rows), test_size=test_size, stratify=codes, random_state=random_state)
        least_train = np.bincount(codes[train], minlength=len(classes)).min()
        least_test = np.bincount(codes[test], minlength=len(classes)).min()
        if least_train >= LEAST_TRAINING_ROWS and least_test >= 1:
            return np.sort(train), np.sort(test)
    raise InputError(
        f"split: expected at least {LEAST_TRAINING_ROWS} training rows and 1 test row of each class, got {rows} rows "
        f"with {counts.min()} of class {classes[rarest]} for a test size of {test_size:g}. {advice}"
    )


def _named_classes(classes: np.ndarray) -> str:
    return ", ".join(map(str, classes)) or "no rows"


# The template ---------------------------------------------------------------------------------------------------------
def default_names(estimator: object, classes: int) -> list[str]:
    """The rows that a template is compared in unless names are given, in order, the baseline among them.

    Raises:
        InputTypeError: if the estimator cannot be compared.
        UnsupportedError: if the link does not go with the number of classes.
    """
    if not isinstance(estimator, BayesianLogisticRegression):
        raise InputTypeError(f"estimator: expected a BayesianLogisticRegression to copy and fit, got {estimator!r}.")
    if classes > 2 and estimator.link == "probit":
        raise UnsupportedError(f"link='probit': expected two classes, got {classes}. For more use link='logit'.")
    return ["map", "map_temperature", "laplace", "mean_field", "variational", *(["ep"] if classes == 2 else [])]


def variant(template: BayesianLogisticRegression, posterior: str, random_state: int) -> BayesianLogisticRegression:
    """A copy of the template with a posterior and a seed; the samplers' options stay with the samplers alone.

    Args:
        template: whose other options hold.
        posterior: the name of the copy's.
        random_state: the copy's.
    """
    no_chains: dict[str, None] = {} if posterior in SAMPLERS else {"draws": None, "tune": None, "chains": None}
    copy: BayesianLogisticRegression = clone(template)
    return copy.set_params(posterior=posterior, random_state=random_state, **no_chains)


def with_one_prior(
    template: BayesianLogisticRegression, X: pd.DataFrame, y: np.ndarray, random_state: int
) -> tuple[BayesianLogisticRegression, tuple[str, ...]]:
    """The template with the prior precision that posterior="auto" learns, if it is to be learnt, and a footnote on it.

    The precision is learnt once and held for every posterior: otherwise each would have a different prior, and a
    difference from the reference would be a difference of priors as much as of approximations.

    Args:
        template: with a ``prior_precision`` option.
        X: the training rows.
        y: their classes.
        random_state: of the contenders' fits, so that the prior is learnt on the features that they have.
    """
    if not isinstance(template.prior_precision, str):
        return template, ()
    fitted = variant(template, "auto", random_state).fit(X, y)
    learnt = fitted.prior_precision_
    objective = OBJECTIVES[fitted.posterior_.record.method]
    note = f"Prior precision: {learnt:.4g} for every posterior, learnt from the training rows by {objective}."
    return clone(template).set_params(prior_precision=learnt), (note,)


# The contenders -------------------------------------------------------------------------------------------------------
FOLDS = 5
# Beyond these the held-out rows say only "as far as you can": they are perfectly separated, or carry no signal.
TEMPERATURES = (0.02, 50.0)


@final
@dataclass(frozen=True)
class FittedContender:
    """A contender after its fit.

    Attributes:
        log_probs: from a table (N, D) to log class probabilities (N, K), classes sorted.
        probs: from a table to class probabilities, the quicker way where many rows are asked for.
        posterior: over the weights, or ``None`` for a baseline, which has none.
        inputs: from a table to the inputs of the posterior's model.
        weight_names: of the P weights, in the posterior's order.
        note: what the fit found that a reader of the table should know.
    """

    log_probs: Callable[[pd.DataFrame], np.ndarray]
    probs: Callable[[pd.DataFrame], np.ndarray]
    posterior: Posterior | None
    inputs: Callable[[pd.DataFrame], np.ndarray]
    weight_names: tuple[str, ...]
    note: str = ""


Contender = Callable[[BayesianLogisticRegression, pd.DataFrame, np.ndarray, int], FittedContender]


def contender(name: str) -> Contender:
    """The function that fits what a name stands for: a baseline of that name, else the posterior of that name.

    Args:
        name: in the table's first column.

    Returns:
        A function of (template, X, y, random_state).
    """
    return BASELINES.get(name, partial(_fit_posterior, name))


def _fit_posterior(
    name: str, template: BayesianLogisticRegression, X: pd.DataFrame, y: np.ndarray, random_state: int
) -> FittedContender:
    estimator = variant(template, name, random_state).fit(X, y)
    return FittedContender(
        partial(_log_probs, estimator),
        estimator.predict_proba,
        estimator.posterior_,
        estimator.transform_inputs,
        tuple(estimator.weight_names_),
    )


def _log_probs(estimator: BayesianLogisticRegression, X: pd.DataFrame) -> np.ndarray:
    """The classes' log probabilities, exact where a probability rounds to 0 or 1.

    Of more than 32 classes each rare one is integrated separately, and their sum can differ from 1 by the errors of the
    integrals. A log score is proper only for probabilities that sum to 1, so they are divided by their sum.
    """
    return log_softmax(estimator.predict_log_proba(X), axis=1)


def temperature_scaled_map(
    template: BayesianLogisticRegression, X: pd.DataFrame, y: np.ndarray, random_state: int
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
        held_out[test] = fit(X.iloc[train], y[train]).log_probs(X.iloc[test])
    temperature = fit_temperature(held_out, codes)
    point = fit(X, y)
    note = f"temperature {temperature:.3f}, fitted on {folds.n_splits} folds of the training rows"
    if temperature in TEMPERATURES:
        note += "; it lies at the end of the range searched, since the held-out rows do not bound it"

    def log_probs(table: pd.DataFrame) -> np.ndarray:
        return log_softmax(point.log_probs(table) / temperature, axis=1)

    return replace(point, log_probs=log_probs, probs=lambda table: np.exp(log_probs(table)), posterior=None, note=note)


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


BASELINES: Mapping[str, Contender] = {"map_temperature": temperature_scaled_map}
