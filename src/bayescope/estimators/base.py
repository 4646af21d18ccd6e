"""What all estimators share: parameters, fits that are whole or not at all, predictions by blocks of rows, files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, Concatenate, Literal, ParamSpec, Self, TypeAlias, TypeVar, cast, overload

import numpy as np
import torch
from scipy.special import logit
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import ClassifierTags, check_random_state
from sklearn.utils.validation import check_is_fitted, column_or_1d
from torch import Tensor

from bayescope import checks
from bayescope.errors import (
    BayescopeWarning,
    InputError,
    InputTypeError,
    UndefinedQuantityError,
    UnsupportedError,
    warn,
)
from bayescope.estimators.exposure import Added, on_disk, refuse_exposure
from bayescope.estimators.frames import FrameReader
from bayescope.estimators.labels import class_codes, decided, numbers_for
from bayescope.likelihoods import IntegralName, Ordinal
from bayescope.likelihoods.censoring import INTERVAL
from bayescope.likelihoods.proportions import TRIALS
from bayescope.logs import logged
from bayescope.memory import refuse_ran_out
from bayescope.posterior import (
    InputRows,
    NamedDraws,
    Posterior,
    inference_data,
)
from bayescope.predictive import Predictive
from bayescope.process_state import outside_inference_mode, threads_for
from bayescope.processes import called
from bayescope.storage import forget, save
from bayescope.tables.dataset import opened
from bayescope.tables.frames import library_of
from bayescope.tables.preprocessing import Table
from bayescope.training.checkpoint import resumable

RandomState: TypeAlias = int | np.random.RandomState | None
Generator: TypeAlias = torch.Generator | int | None
ClassWeight: TypeAlias = Literal["balanced"] | Mapping[Any, float] | None

# Below this a probability of three classes and more may be too small for a float, or rare among very many classes.
TAIL = 1e-8
# Numbers that predicting one block of rows may hold at a time.
BLOCK_NUMBERS = 2**22
# A mean so many times as large as E(y∣f) at the mean of f, whose sd is then 2.6 on a log scale, says little.
FAR = 30.0

_Arguments = ParamSpec("_Arguments")
_Estimator = TypeVar("_Estimator", bound=BaseEstimator)


class MissingAttributeError(UndefinedQuantityError, AttributeError):
    """A learned attribute that this posterior does not define: for ``hasattr`` it is not there."""


def whole_or_not_at_all(
    fit: Callable[Concatenate[_Estimator, _Arguments], _Estimator],
) -> Callable[Concatenate[_Estimator, _Arguments], _Estimator]:
    """Leaves the estimator as it was where its fit fails or is interrupted, and says so where memory has run out."""

    @wraps(fit)
    def safe(self: _Estimator, /, *arguments: _Arguments.args, **options: _Arguments.kwargs) -> _Estimator:
        before = dict(vars(self))
        try:
            return fit(self, *arguments, **options)
        except BaseException as error:
            vars(self).clear()
            vars(self).update(before)
            refuse_ran_out(error)
            raise

    return safe


@dataclass(kw_only=True, eq=False, repr=False)
class TableEstimator(BaseEstimator):  # type: ignore[misc]
    """A table, a model and its posterior.

    The fields with a default are the parameters, as scikit-learn reads them; ``field(init=False)`` is learnt by a fit.
    """

    # Whether y may have several columns.
    _several_targets: ClassVar[bool] = False

    categorical: Sequence[str | int] | None = None
    random_state: RandomState = None

    posterior_: Posterior = field(init=False)
    n_features_in_: int = field(init=False)
    _reader: FrameReader = field(init=False)
    _added_by: tuple[str, str] | None = field(init=False)

    def fit(self, X: object, y: object, sample_weight: object = None) -> Self:
        """Finds the posterior of the model's weights, and what is to be learnt of its prior and its noise.

        Args:
            X: a table of N rows: a frame of any library that narwhals knows, an array, a tensor, a list of rows, or
                one on disk (`open_table`), which is read in blocks.
            y: N labels for a classifier, N numbers for a regression; or the name of their column in a frame or a table
                on disk, all other columns being features. Network classifiers also take N rows of 0 and 1, labels that
                a row may have together, and network regressions N rows of several numbers.
            sample_weight: how often each row counts, shape (N,) or the name of a column: 2 is the same as the row
                twice. It is multiplied by ``class_weight``, where there is one.

        Raises:
            InputError: if an input or an option cannot be used; the message names the column.
            InputTypeError: if a column holds what is neither a number nor a label, such as dates.
            OptionError: if a name is unknown.
            UnsupportedError: if two options do not go together, or the posterior does not go with the classes.
            ConvergenceError: if the inference does not reach its tolerance, or the loss stops being a finite number.

        Warns:
            ConvergenceWarning: if the evidence has no maximum, or a network predicts the same for every row.
            BayescopeWarning: if y is constant and its noise is to be learnt.
        """
        return self._whole(X, y, sample_weight)

    def predict_distribution(
        self,
        X: object,
        *,
        integral: IntegralName | None = None,
        method: Literal["linearized", "sampled"] | None = None,
        samples: int | None = None,
        generator: Generator = None,
    ) -> Predictive[np.ndarray]:
        """The predictive distribution, with its epistemic and aleatoric parts and its intervals.

        It knows the labels of a classifier by name; of several labels a row, each is 0 or 1.

        Args:
            X: a table of the columns that were fitted, of N rows.
            integral: over the latent f: "quadrature", "mackay", "monte_carlo" or "laplace_bridge"; the default is
                the most accurate one. Where there is a closed form it is used.
            method: "linearized" or "sampled".
            samples: how many draws, where there are any; a network's ``draws``, or 200, by default.
            generator: for the draws; by default from ``random_state``, for a network the same at every call.
        """
        source = self._generator() if generator is None else generator
        predictive = self._predicted(self._rows(X), integral=integral, method=method, samples=samples, generator=source)
        return self._labelled(predictive, X)

    def save(self, path: str | Path, *, metadata: Mapping[str, Any] | None = None) -> Path:
        """Writes the fitted estimator into one file, from which `bayescope.load` has it again: answers to the last bit.

        The file has the parameters, what was learnt of the inputs, and the posterior; no row of the table, and no code.
        What an additive model learnt of the inputs are the values that each feature, and each pair with a term, took.

        Args:
            path: the file, by custom with the suffix ".bayes"; one of that name is replaced in a single step.
            metadata: what is to stand beside it: text, numbers, truth values, ``None``, lists and mappings of these.

        Returns:
            The path.

        Raises:
            NotFittedError: if it has not been fitted.
            UnsupportedError: if a part is the caller's own code, such as a transformer of features.
            InputError: if the file cannot be written.
        """
        check_is_fitted(self)
        return save(self, path, summary=self.summary(), metadata=metadata)

    def summary(self) -> str:
        """How the posterior was made, with the prior and its units."""
        check_is_fitted(self)
        return self.posterior_.summary()

    def to_arviz(
        self, *, data: tuple[Any, Any] | None = None, draws: int = 1000, generator: torch.Generator | int | None = None
    ) -> Any:
        """Draws as ArviZ's ``InferenceData``, from its version 1 on a ``DataTree``.

        The group ``posterior`` has, for a linear model, ``weights`` along "feature" and ``intercept``, of several
        classes each along "class" first; for an additive one ``intercept`` and the effect of each feature, by its name,
        along the values of `effects`; for a network all ``weights`` in one row, which have no meaning one by one.
        ``sample_stats`` has what a sampler reports.

        Args:
            data: (X, y), a table and its targets; with it each row's log likelihood stands in ``log_likelihood``, y
                drawn at each draw of the weights in ``posterior_predictive``, and y itself in ``observed_data``, all
                along "row". Labels are the codes 0…K−1 of ``classes_``. f is the one of `predict_distribution`: where
                that linearises a model, it is linear in the weights.
            draws: how many, for posteriors that are not draws themselves.
            generator: a ``torch.Generator`` or an int; ``random_state`` by default.

        Raises:
            MissingDependencyError: if ArviZ is not installed.
            InputError: if the data cannot be used.
            UndefinedQuantityError: if the posterior draws functions and no weights.
        """
        check_is_fitted(self)
        source = generator_from(self.random_state) if generator is None else generator
        if data is not None:
            data = self._rows(data[0]), self._targets(data[1], len(data[0]))
        groups = self.posterior_.groups(data, draws, source)
        named = self._named_draws(torch.from_numpy(groups["posterior"]["theta"]))
        dims = {name: list(along) for name, (along, _) in named.variables.items()}
        coords = dict(named.coords)
        if "observed_data" in groups:
            dims["y"], coords["row"] = ["row"], list(range(len(groups["observed_data"]["y"])))
        variables = {name: values for name, (_, values) in named.variables.items()}
        return inference_data(groups | {"posterior": variables}, dims=dims, coords=coords)

    def _targets(self, y: object, rows: int) -> np.ndarray:
        """The targets of this many rows as the likelihood takes them."""
        classes = None if getattr(self, "_multilabel", False) else getattr(self, "classes_", None)
        if classes is not None:
            return class_codes(y, rows, classes)
        likelihood = self.posterior_.likelihood
        assert likelihood is not None
        return numbers_for(likelihood.unweighted, y, y, rows)

    def _named_draws(self, theta: Tensor) -> NamedDraws:
        """Drawn weights (chains, draws, P) by the names that mean something."""
        return NamedDraws({"weights": (["weight"], theta.numpy())}, {})

    @property
    def log_evidence_(self) -> float:
        """log p(y∣X), exact or as the approximation defines it; by blocks, a lower bound on the full curvature's."""
        check_is_fitted(self)
        return defined(self.posterior_.log_evidence)

    @property
    def elbo_(self) -> float:
        """A lower bound on log p(y∣X)."""
        check_is_fitted(self)
        return defined(lambda: self.posterior_.elbo)

    @abstractmethod
    def _fit(self, X: object, y: object, sample_weight: object, offset: object = None) -> None:
        """Sets the learned attributes."""

    @abstractmethod
    def _inputs_of(self, table: Table, offset: object = None) -> InputRows:
        """The inputs of the posterior's model, of a table as it was read, and what is known of missing values."""

    @abstractmethod
    def _block(self, rows: InputRows) -> tuple[int, int]:
        """How many rows are predicted at once, and how many numbers an operation on these meets."""

    @logged
    @outside_inference_mode
    @whole_or_not_at_all
    @resumable
    def _whole(self, X: object, y: object, sample_weight: object, *added: object) -> Self:
        """A fit, which all processes make together and with the same parameters."""
        offset, exposure = (*added, None, None)[:2]
        with called(type(self).__name__, self.get_params(deep=False)):
            self._added_by = Added.of(offset, exposure).column
            self._fit(X, y, sample_weight, *added)
        forget(self)
        return self

    def _generator(self) -> Generator:
        """The source of the draws of predictions."""
        return generator_from(self.random_state)

    def _table(self, X: object) -> Table:
        """A table like the one that was fitted, as it is read."""
        check_is_fitted(self)
        return self._reader.table(self, X)

    def _added(self, offset: object, exposure: object) -> Added:
        """What is added to f when predicting: by default the column that the model was fitted with."""
        check_is_fitted(self)
        found = Added.of(offset, exposure)
        if found.given is None and self._added_by is not None:
            found = Added(*self._added_by)
        if found.role == "exposure" and found.given is not None:
            likelihood = self.posterior_.likelihood
            assert likelihood is not None
            refuse_exposure(likelihood.unweighted, 1)
        return found

    def _rows(self, X: object, offset: object = None, exposure: object = None) -> InputRows:
        added = self._added(offset, exposure)
        features, given = added.apart(X, self._added_by)
        return self._inputs_of(self._table(features), None if given is None else added.numbers(given))

    def _predicted(self, rows: InputRows, **options: Any) -> Predictive[np.ndarray]:
        return self.posterior_.predict(rows, **options)

    def _labelled(self, predictive: Predictive[np.ndarray], X: object) -> Predictive[np.ndarray]:
        """The predictive of a table, with the names of what it predicts."""
        classes = getattr(self, "classes_", None)
        names = getattr(self, "_output_names", ()) if classes is None else classes.tolist()
        return replace(predictive, names=tuple(names), frame=library_of(X))

    def _read(
        self, X: object, read: Callable[[Predictive], np.ndarray], offset: object = None, exposure: object = None
    ) -> np.ndarray:
        """Predict rows in blocks that bound the memory, and join what is read from each."""
        added, table = self._added(offset, exposure), opened(X)
        if table is None:
            return self._read_rows(self._rows(X, offset, exposure), read)
        parts = []
        for columns in self._reader.blocks(table, on_disk(added)):
            features, others = columns[: len(self._reader.names)], columns[len(self._reader.names) :]
            sums = added.numbers(others[0].values) if others else None
            parts.append(self._read_rows(self._inputs_of(features, sums), read))
        return np.concatenate(parts)

    def _read_rows(self, rows: InputRows, read: Callable[[Predictive], np.ndarray]) -> np.ndarray:
        size, numbers_at_once = self._block(rows)
        starts = range(0, max(1, len(rows)), size)
        with threads_for(numbers_at_once):
            return np.concatenate([read(self._predicted(rows[start : start + size])) for start in starts])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.input_tags.categorical = True
        return tags


class TableClassifier(ClassifierMixin):  # type: ignore[misc]
    """The predictions of a classifier."""

    classes_: np.ndarray
    _several_targets: ClassVar[bool]
    _multilabel: bool
    _read: Callable[..., np.ndarray]

    def predict(self, X: object, *, abstain: float | None = None) -> np.ndarray:
        """The most probable class of each row, shape (N,); of several labels those that are probable, 0/1, (N, C).

        Args:
            X: a table of the columns that were fitted.
            abstain: a probability between 0 and 1: ``None`` stands for a class, or for one of several labels, that is
                less probable than that, in an array of objects.
        """
        return self._decided(self.predict_proba(X), abstain)

    def predict_proba(self, X: object) -> np.ndarray:
        """p(y = k∣x, data), averaged over the posterior, shape (N, K), columns as in ``classes_``.

        Two classes of a linear model are integrated to 1e-8; the rows are taken in blocks, so that memory stays
        bounded.
        """
        return self._read(X, probabilities)

    def predict_log_proba(self, X: object) -> np.ndarray:
        """log p(y = k∣x, data), shape (N, K), without underflow where a row has one label.

        For three classes and more it is the logarithm of `predict_proba`, but for probabilities below 1e-8, which are
        integrated anew where their own mass lies.
        """
        return self._read(X, self._logs)

    def decision_function(self, X: object) -> np.ndarray:
        """How far each row is from being undecided: its largest value, or its sign, agrees with `predict`.

        log p(y = 1∣x, data)/p(y = 0∣x, data) of two classes, shape (N,), and of several labels a row, shape (N, C);
        of K classes log p(y = k∣x, data), shape (N, K).
        """
        check_is_fitted(self)
        if self._multilabel:
            return logit(self.predict_proba(X))
        logs = self.predict_log_proba(X)
        return logs[:, 1] - logs[:, 0] if logs.shape[1] == 2 else logs

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = self._several_targets
        return tags

    def _decided(self, probs: np.ndarray, abstain: float | None) -> np.ndarray:
        return decided(probs, None if self._multilabel else self.classes_, abstain)

    def _logs(self, predictive: Predictive) -> np.ndarray:
        if self._multilabel:
            return np.log(probabilities(predictive))
        return log_probabilities(predictive, len(self.classes_))


Prediction: TypeAlias = np.ndarray | tuple[np.ndarray, np.ndarray]


def of_ordered_classes(estimator: object) -> bool:
    likelihood = getattr(estimator, "likelihood", None)
    return isinstance(likelihood, Ordinal) or likelihood in ("ordinal", "ordinal_probit")


class TableRegressor(RegressorMixin):  # type: ignore[misc]
    """The predictions of a regression: of ordered classes those of a classifier, for scikit-learn's tools too."""

    classes_: np.ndarray
    _several_targets: ClassVar[bool]
    _flat: bool
    _read: Callable[..., np.ndarray]

    @overload
    def predict(self, X: object, return_std: Literal[False] = False) -> np.ndarray: ...
    @overload
    def predict(self, X: object, return_std: Literal[True]) -> tuple[np.ndarray, np.ndarray]: ...
    def predict(self, X: object, return_std: bool = False) -> Prediction:
        """E[y∣x, data] of each row, shape (N,) or (N, D), and on request the sd of y, noise included.

        Of ordered classes it is the most probable one.
        """
        return self._moments(self._read(X, moments), return_std)

    def score(self, X: object, y: object, sample_weight: object = None) -> float:
        """R² of the predicted means, scikit-learn's score of regressions; of ordered classes the accuracy.

        Args:
            X: a table of the columns that were fitted.
            y: N numbers, or N rows of several.
            sample_weight: how often each row counts, shape (N,).

        Raises:
            InputError: if times are censored: they have no R².
        """
        return self._scored(y, self.predict(X), sample_weight)

    def _scored(self, y: object, predicted: np.ndarray, sample_weight: object) -> float:
        return (accuracy if of_ordered_classes(self) else explained)(y, predicted, sample_weight)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = self._several_targets
        if of_ordered_classes(self):
            tags.estimator_type, tags.classifier_tags, tags.regressor_tags = "classifier", ClassifierTags(), None
            tags.target_tags.multi_output = False
        return tags

    def _moments(self, read: np.ndarray, return_std: bool) -> Prediction:
        if of_ordered_classes(self):
            if return_std:
                raise UnsupportedError(
                    "return_std: expected False for ordered classes, which have no sd, got True. Ask predict_proba."
                )
            return decided(read[:, 0], self.classes_, None)
        far = np.flatnonzero((read[:, 0] > FAR * np.abs(read[:, 2])).any(1))
        if len(far):
            warn(
                f"predict: {len(far)} of {len(read)} rows, the first of them row {far[0]}, have means of y more than "
                f"{FAR:g} times as large as at the mean of f, of which little is known there. Take "
                "predict_distribution(X).quantile(0.5), the median.",
                BayescopeWarning,
            )
        mean, sd = read[:, 0], np.sqrt(read[:, 1])
        mean, sd = (mean[:, 0], sd[:, 0]) if self._flat else (mean, sd)
        return (mean, sd) if return_std else mean


def explained(y: object, predicted: np.ndarray, sample_weight: object) -> float:
    """R² of predicted means; of successes and trials that of their shares, which count by the trials.

    Raises:
        InputError: if y is what `Censored` returns.
    """
    if predicted.ndim == 1 and np.shape(cast(Any, y))[1:] == (TRIALS,):
        successes, trials = np.asarray(y, dtype=np.float64).T
        sample_weight = trials if sample_weight is None else trials * np.asarray(sample_weight)
        y = successes / np.maximum(trials, 1.0)
    if predicted.ndim == 1 and np.shape(cast(Any, y))[1:] == (INTERVAL,):
        raise InputError(
            "y: expected exact numbers for R², got times that may be censored. Take "
            "predict_distribution(X).log_prob(y).mean() for them."
        )
    return float(r2_score(y, predicted, sample_weight=sample_weight))


def accuracy(y: object, predicted: np.ndarray, sample_weight: object) -> float:
    """The share of rows whose class is predicted, of classes that may be any numbers."""
    hits = column_or_1d(np.asarray(y)) == predicted
    return float(np.average(hits, weights=cast(Any, sample_weight)))


def moments(predictive: Predictive) -> np.ndarray:
    """The means and the variances of the targets, and for positive ones E(y∣f) at the mean of f, shape (N, 3, D)."""
    mean, likelihood = predictive.mean, predictive.likelihood
    positive = likelihood.domain.low == 0
    centre = likelihood.conditional(predictive.latent.mean)[0].cpu().numpy() if positive else mean
    if likelihood.domain.integer:  # less than one count is no mean to be warned of
        centre = np.maximum(centre, 1.0 / FAR)
    return np.stack([mean, predictive.variance, centre], axis=1)


def generator_from(random_state: RandomState) -> torch.Generator:
    """A generator for scikit-learn's ``random_state``: an int, a RandomState, which is advanced, or ``None``.

    Raises:
        InputTypeError: if it is something else.
    """
    if random_state is None:
        return checks.generator(None)
    if isinstance(random_state, int | np.integer):
        return checks.generator(int(random_state))
    try:
        source = check_random_state(random_state)
    except ValueError:
        raise InputTypeError(
            f"random_state: expected an int, a numpy.random.RandomState or None, got {random_state!r}."
        ) from None
    return checks.generator(int(source.randint(2**31 - 1)))


def as_tensor(table: np.ndarray) -> Tensor:
    """The table as a tensor on the same memory; one that is read-only or has negative strides is copied."""
    return torch.from_numpy(table if table.flags.writeable and min(table.strides) >= 0 else table.copy())


def probabilities(predictive: Predictive) -> np.ndarray:
    """p(y = k∣x, data), shape (N, K): those of `Predictive.probs`, without the variances that it integrates too."""
    return predictive.latent.expected(predictive.likelihood).detach().cpu().numpy()


def log_probabilities(predictive: Predictive, classes: int) -> np.ndarray:
    """log p(y = k∣x, data), shape (N, K), without underflow: those of `Predictive.log_prob`."""
    if classes == 2:
        return np.stack([predictive.log_prob(np.full(len(predictive), k)) for k in range(2)], axis=1)
    probs = probabilities(predictive)
    logs = np.log(np.maximum(probs, TAIL))
    for k in np.flatnonzero((probs < TAIL).any(0)):
        tails = predictive.log_prob(np.full(len(predictive), k))
        logs[:, k] = np.where(probs[:, k] < TAIL, tails, logs[:, k])
    return logs


def defined(quantity: Callable[[], Tensor]) -> float:
    """A quantity of the posterior as a number.

    Raises:
        MissingAttributeError: if the approximation does not define it.
    """
    try:
        return float(quantity())
    except UndefinedQuantityError as error:
        raise MissingAttributeError(str(error)) from None
