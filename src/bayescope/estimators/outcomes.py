"""Regressions whose mean has an offset or an exposure in each row."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, Self, overload

import numpy as np
from sklearn.utils.metaestimators import available_if

from bayescope.estimators.base import (
    Generator,
    Prediction,
    TableRegressor,
    moments,
    of_ordered_classes,
    probabilities,
)
from bayescope.estimators.labels import numbers_for
from bayescope.estimators.table_rows import TableRows, TargetReader
from bayescope.estimators.targets import ordered_rows
from bayescope.likelihoods import IntegralName, Likelihood
from bayescope.posterior import InputRows
from bayescope.predictive import Predictive


class OutcomeRegressor(TableRegressor):
    """Fits and predictions of a regression of any outcome, with what is added to f in each row."""

    _whole: Callable[..., Self]
    _rows: Callable[..., InputRows]
    _generator: Callable[[], Generator]
    _predicted: Callable[..., Predictive[np.ndarray]]

    def fit(
        self, X: object, y: object, sample_weight: object = None, *, offset: object = None, exposure: object = None
    ) -> Self:
        """Finds the posterior of the model's weights, and what is to be learnt of its prior and its likelihood.

        Args:
            X: a table of N rows: a frame of any library that narwhals knows, an array, a tensor, a list of rows, or
                one on disk (`open_table`), which is read in blocks.
            y: N numbers, or N rows of several; or the name of their column in a frame or a table on disk, all other
                columns being features. Lifetimes that may be censored are `bs.Censored(time, event)`. Ordered classes
                are numbers or an ordered categorical; those that occur count.
            sample_weight: how often each row counts, shape (N,) or the name of a column: 2 is the same as the row
                twice.
            offset: added to f as it is, shape (N,), or the name of a column.
            exposure: how long, or how much, each row was watched: E[y] = exposure · eᶠ, for likelihoods with a log
                link; positive, shape (N,), or the name of a column. It is the offset log(exposure).

        Raises:
            InputError: if an input or an option cannot be used; the message names the column.
            InputTypeError: if a column holds what is neither a number nor a label, such as dates.
            OptionError: if a name is unknown.
            UnsupportedError: if two options do not go together, or an exposure is given without a log link.
            ConvergenceError: if the inference does not reach its tolerance, or the loss stops being a finite number.
            NotPositiveDefiniteError: if the curvature is singular in float64.

        Warns:
            ConvergenceWarning: if the evidence has no maximum, or a network predicts the same for every row.
            BayescopeWarning: if y is constant and its noise is to be learnt.
        """
        return self._whole(X, y, sample_weight, offset, exposure)

    @overload
    def predict(
        self, X: object, return_std: Literal[False] = False, *, offset: object = None, exposure: object = None
    ) -> np.ndarray: ...
    @overload
    def predict(
        self, X: object, return_std: Literal[True], *, offset: object = None, exposure: object = None
    ) -> tuple[np.ndarray, np.ndarray]: ...
    def predict(
        self, X: object, return_std: bool = False, *, offset: object = None, exposure: object = None
    ) -> Prediction:
        """E[y∣x, data] of each row, shape (N,) or (N, D), and on request the sd of y, noise included.

        Of ordered classes it is the most probable one.

        Args:
            X: a table of the columns that were fitted.
            return_std: whether the sd is returned, too.
            offset: as for `fit`; 0 by default. A fit with a named column reads that column of X by default.
            exposure: as for `fit`; 1 by default. A fit with a named column reads that column of X by default.
        """
        return self._moments(self._read(X, moments, offset, exposure), return_std)

    def _rows_of(
        self, likelihood: Likelihood, y: object, read: Callable[[TargetReader], TableRows]
    ) -> tuple[Likelihood, TableRows]:
        """The rows, and the likelihood, that of as many ordered classes as there are, which are set.

        Args:
            likelihood: p(y∣f).
            y: as the caller gave it: values, or the name of their column.
            read: the rows, by the reader of the targets in memory.
        """
        if hasattr(self, "classes_"):
            del self.classes_
        if likelihood.domain.kind != "ordered":
            return likelihood, read(partial(numbers_for, likelihood, y))
        self.classes_, likelihood, rows = ordered_rows(likelihood, y, read)
        return likelihood, rows

    @available_if(of_ordered_classes)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: object, *, offset: object = None) -> np.ndarray:
        """p(y = k∣x, data) of ordered classes, shape (N, K), columns as in ``classes_``.

        Args:
            X: a table of the columns that were fitted.
            offset: as for `predict`.
        """
        return self._read(X, probabilities, offset)

    def score(
        self, X: object, y: object, sample_weight: object = None, *, offset: object = None, exposure: object = None
    ) -> float:
        """R² of the predicted means, scikit-learn's score of regressions; of ordered classes the accuracy.

        Args:
            X: a table of the columns that were fitted.
            y: N numbers, or N rows of several.
            sample_weight: how often each row counts, shape (N,).
            offset: as for `predict`.
            exposure: as for `predict`.

        Raises:
            InputError: if times are censored: they have no R².
        """
        return self._scored(y, self.predict(X, offset=offset, exposure=exposure), sample_weight)

    def predict_distribution(
        self,
        X: object,
        *,
        offset: object = None,
        exposure: object = None,
        integral: IntegralName | None = None,
        method: Literal["linearized", "sampled"] | None = None,
        samples: int | None = None,
        generator: Generator = None,
    ) -> Predictive[np.ndarray]:
        """The predictive distribution, with its epistemic and aleatoric parts, its intervals and its quantiles.

        Args:
            X: a table of the columns that were fitted, of N rows.
            offset: as for `predict`.
            exposure: as for `predict`.
            integral: over the latent f; the default is the most accurate one.
            method: "linearized" or "sampled".
            samples: how many draws, where there are any.
            generator: for the draws; by default from ``random_state``, for a network the same at every call.
        """
        options: dict[str, Any] = {"integral": integral, "method": method, "samples": samples}
        source = self._generator() if generator is None else generator
        predictive = self._predicted(self._rows(X, offset, exposure), **options, generator=source)
        return self._labelled(predictive, X)
