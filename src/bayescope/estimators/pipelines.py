"""Estimators inside scikit-learn's objects: one place that says what comes before an estimator, and after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection._search import BaseSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.utils.validation import check_is_fitted

from bayescope.errors import InputTypeError, UnsupportedError
from bayescope.estimators.base import Generator
from bayescope.estimators.frames import dense
from bayescope.latent import DrawsLatent, GaussianLatent
from bayescope.likelihoods import Gaussian, IntegralName, LogNormal
from bayescope.predictive import Predictive
from bayescope.storage import save as write
from bayescope.tables.frames import library_of

WRAPPING = (Pipeline, BaseSearchCV, TransformedTargetRegressor, FrozenEstimator)
WRAPPERS = "a Pipeline, a search such as GridSearchCV, a TransformedTargetRegressor or a FrozenEstimator"


@final
@dataclass(frozen=True, eq=False)
class Wrapped:
    """An estimator of the library, and what scikit-learn's objects around it do to its table.

    Attributes:
        estimator: of the library.
        steps: the transformers of X, in order.
        target: the object that transforms y, or ``None``.
    """

    estimator: Any
    steps: tuple[Any, ...] = ()
    target: TransformedTargetRegressor | None = None

    @classmethod
    def of(cls, model: object) -> Wrapped:
        """The estimator in a model, however many of scikit-learn's objects are around it.

        Raises:
            InputTypeError: if there is none of the library, or the best model of a search is not known.
        """
        steps: tuple[Any, ...] = ()
        target, inner = None, model
        while not (hasattr(inner, "predict_distribution") and hasattr(inner, "get_params")):
            if isinstance(inner, Pipeline):
                steps, inner = (*steps, *(step for _, step in inner.steps[:-1] if step is not None)), inner.steps[-1][1]
            elif isinstance(inner, BaseSearchCV) and hasattr(inner, "best_estimator_"):
                inner = inner.best_estimator_
            elif isinstance(inner, TransformedTargetRegressor) and target is None:
                target, inner = inner, getattr(inner, "regressor_", inner.regressor)
            elif isinstance(inner, FrozenEstimator):
                inner = inner.estimator
            else:
                fit = " Fit the search first, with refit=True." if isinstance(inner, BaseSearchCV) else ""
                raise InputTypeError(
                    f"estimator: expected a fitted estimator of bayescope, or {WRAPPERS} around one, got "
                    f"{type(inner).__name__}.{fit or ' Fit one, such as BayesianLogisticRegression.'}"
                )
        return cls(inner, steps, target)

    def table(self, X: object) -> Any:
        """The table that the estimator reads, of a table that the model reads."""
        for step in self._transformers:
            X = step.transform(X)
        return dense(X)

    def refitted(self, X: object, others: object, y: object) -> tuple[Any, Any]:
        """Two tables after the steps, which are copied and fitted to the first one."""
        fitted = clone(make_pipeline(*self.steps))
        first = fitted.fit_transform(X, y)
        steps = Wrapped(self.estimator, tuple(step for _, step in fitted.steps))
        return steps._named(first), steps._named(steps.table(others))

    def targets(self, y: Any) -> Any:
        """The outcomes that the estimator was fitted to, of outcomes that the model predicts."""
        if self.target is None:
            return y
        rows = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
        func = self.target.func
        with np.errstate(divide="ignore", invalid="ignore"):  # whoever reads y next names the row that is not finite
            values = self.target.transformer_.transform(rows) if func is None else func(rows)
        flat = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
        return pd.Series(flat, name=f"{getattr(y, 'name', None) or 'y'}, transformed") if flat.ndim == 1 else flat

    def of_outcome(self, predictive: Predictive[np.ndarray]) -> Predictive[np.ndarray]:
        """The predictive of y, of that of the transformed outcome: of log y = f + noise it is log-normal.

        Raises:
            UnsupportedError: for another transformation than the logarithm, or another predictive than one of a
                Gaussian likelihood.
        """
        if self.target is None:
            return predictive
        pair, latent = (self.target.func, self.target.inverse_func), predictive.latent
        known = isinstance(predictive.likelihood, Gaussian) and isinstance(latent, GaussianLatent | DrawsLatent)
        if pair != (np.log, np.exp) or not known:
            raise UnsupportedError(
                "model: expected a TransformedTargetRegressor with func=np.log and inverse_func=np.exp around a "
                "regression with Gaussian noise, got another one. The estimators need no scaling of y; for another "
                "function ask .regressor_, whose quantiles its inverse carries back."
            )
        if isinstance(latent, GaussianLatent):
            latent = replace(latent, integral="quadrature")
        noise = predictive.likelihood.known("noise_variance")
        return replace(predictive, latent=latent, likelihood=LogNormal(noise.sqrt()))

    def notes(self) -> tuple[tuple[str, str], ...]:
        """What a reader has to know of the columns and the outcome."""
        steps = ", ".join(type(step).__name__ for step in self._transformers)
        names = getattr(self.estimator, "feature_names_in_", None) is None and self._names()
        which = ", ".join(f"x{place} is {name}" for place, name in enumerate(names or ()))
        said = [("columns", f"those that {steps} of the pipeline make of the table{which and ': '}{which}")]
        said = said if steps else []
        return (*said, *([("outcome", "y as TransformedTargetRegressor transforms it")] if self.target else []))

    @property
    def _transformers(self) -> tuple[Any, ...]:
        return tuple(step for step in self.steps if not isinstance(step, str))  # "passthrough"

    def _named(self, table: Any) -> pd.DataFrame:
        """What the steps made, as a frame."""
        if isinstance(table, pd.DataFrame):
            return table
        array = np.asarray(dense(table))
        return pd.DataFrame(array, columns=self._names() or [f"x{place}" for place in range(array.shape[1])])

    def _names(self) -> list[str] | None:
        """The names that the steps give their columns, if all can."""
        names = None
        for step in self._transformers:
            try:
                names = step.get_feature_names_out(names)
            except (AttributeError, ValueError):  # a step that does not say what its columns are
                return None
        return None if names is None else list(map(str, names))


def predict_distribution(
    model: Any,
    X: object,
    *,
    integral: IntegralName | None = None,
    method: Literal["linearized", "sampled"] | None = None,
    samples: int | None = None,
    generator: Generator = None,
) -> Predictive[np.ndarray]:
    """p(y∣x, data) for N rows, of a fitted estimator or of one inside scikit-learn's objects.

    A pipeline's steps transform X first, and of a search the best model predicts.

    Args:
        model: a fitted estimator of the library, or a ``Pipeline``, ``GridSearchCV`` or another search, or
            ``FrozenEstimator`` around one, in one another too.
        X: N rows of the columns that the model was fitted to.
        integral: over the latent f, as for the estimator's ``predict_distribution``.
        method: "linearized" or "sampled".
        samples: how many draws, where there are any.
        generator: for the draws.

    Raises:
        InputTypeError: if no estimator of the library is in the model.
        NotFittedError: if the estimator is not fitted.
        UnsupportedError: inside a ``TransformedTargetRegressor`` other than with ``func=np.log, inverse_func=np.exp``
            around Gaussian noise, for which y is log-normal: mean, intervals and densities are those of y.

    Examples:
        >>> from sklearn.pipeline import make_pipeline
        >>> from sklearn.preprocessing import StandardScaler
        >>> from bayescope import BayesianLinearRegression
        >>> model = make_pipeline(StandardScaler(), BayesianLinearRegression())
        >>> model = model.fit([[0.0], [1.0], [2.0]], [0.1, 0.9, 2.1])
        >>> predict_distribution(model, [[1.5], [3.0]]).mean.shape
        (2, 1)
    """
    wrapped = Wrapped.of(model)
    check_is_fitted(wrapped.estimator)
    options: dict[str, Any] = {"integral": integral, "method": method, "samples": samples, "generator": generator}
    found: Predictive[np.ndarray] = wrapped.estimator.predict_distribution(wrapped.table(X), **options)
    return replace(wrapped.of_outcome(found), frame=library_of(X))


def save(model: Any, path: str | Path, *, metadata: Mapping[str, Any] | None = None) -> Path:
    """Writes a fitted estimator, or scikit-learn's pipeline around one, into one file, which `bayescope.load` reads.

    The file has no code, and none is run. A pipeline's steps may be scikit-learn's own transformers
    (docs/how_to/save_and_load.md lists them). Of a search the best model is saved.

    Args:
        model: fitted: as for `predict_distribution`.
        path: the file, by custom with the suffix ".bayes".
        metadata: what is to stand beside it: text, numbers, truth values, ``None``, lists and mappings of these.

    Raises:
        InputTypeError: if no estimator of the library is in the model.
        NotFittedError: if the estimator is not fitted.
        UnsupportedError: if a part is not one that a file holds, such as a transformer of the caller's; the message has
            the path to it.
        InputError: if the file cannot be written.
    """
    wrapped = Wrapped.of(model)
    check_is_fitted(wrapped.estimator)
    while isinstance(model, BaseSearchCV | FrozenEstimator):
        model = model.best_estimator_ if isinstance(model, BaseSearchCV) else model.estimator
    return write(model, path, summary=wrapped.estimator.summary(), metadata=metadata)
