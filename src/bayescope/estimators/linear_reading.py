"""What both linear estimators do: they read tables, and answer from the posterior of their weights."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from bayescope import checks
from bayescope.estimators.coefficients import coefficient_draws, coefficient_lines, coefficient_table
from bayescope.estimators.frames import FrameReader
from bayescope.estimators.inputs import EstimatorTable, InputMap, Origin
from bayescope.estimators.reading import BLOCK_NUMBERS, P, PosteriorHolder, generator_from
from bayescope.posterior import DrawsPosterior
from bayescope.posterior.arviz_groups import NamedDraws
from bayescope.posterior.missing import InputRows
from bayescope.predictive import Predictive
from bayescope.process_state import threads_for
from bayescope.tables.dataset import opened

# A summary has the coefficients of models with up to so many weights: their sds take the inverse of the precision.
MOST_COEFFICIENTS = 2000


class LinearEstimator(PosteriorHolder):
    """A table, a linear model and its posterior."""

    random_state: Any
    fit_intercept: bool
    intercept_prior_precision: float | None
    n_features_in_: int
    _reader: FrameReader
    _inputs: InputMap

    def predict_distribution(
        self,
        X: Any,
        *,
        integral: str | None = None,
        method: str | None = None,
        samples: int | None = None,
        generator: torch.Generator | int | None = None,
    ) -> Predictive:
        """The predictive distribution, with its epistemic and aleatoric parts and its intervals.

        The labels of a classifier are the codes 0…K−1 of ``classes_``.

        Args:
            X: a table of the columns that were fitted, of N rows.
            integral: over the latent f: "quadrature", "mackay", "monte_carlo" or "laplace_bridge"; the default is
                the most accurate one. Where there is a closed form it is used.
            method: "linearized" or "sampled".
            samples: how many draws, where there are any.
            generator: for the draws; ``random_state`` by default.
        """
        check_is_fitted(self)
        source = generator_from(self.random_state) if generator is None else generator
        return self.posterior_.predict(X, integral=integral, method=method, samples=samples, generator=source)

    def transform_inputs(self, X: Any) -> np.ndarray:
        """The inputs of the posterior's model, shape (N, D): X encoded, standardised and mapped to features.

        Without ``intercept_prior_precision`` they are centred in the end, and the posterior's intercept is f at their
        means.
        """
        check_is_fitted(self)
        return self._inputs(self._reader.table(self, X))

    def coefficients(self, *, level: float = 0.95) -> pd.DataFrame:
        """The coefficients, one line each, of several classes one for each of them; the intercept comes last.

        Args:
            level: the probability of the intervals, which are central.

        Returns:
            The columns ``name``, ``class`` (of several), ``mean``, ``sd``, ``low``, ``high`` and ``per``: the change of
            the column, in its own unit, by which f changes by the coefficient: the column's standard deviation where
            it was standardised, else 1. A point has no sd: NaN.
        """
        check_is_fitted(self)
        return coefficient_table(self.posterior_, self._inputs, self._class_names, level)

    def summary(self) -> str:
        """How the posterior was made, with the prior and its units, and the coefficients."""
        told = super().summary()
        if sum(self.posterior_.sizes) > MOST_COEFFICIENTS:
            return told
        return "\n".join([told, *coefficient_lines(self.coefficients())])

    def _named_draws(self, theta: Tensor) -> NamedDraws:
        return coefficient_draws(theta, self.posterior_, self._inputs, self._class_names)

    @property
    @abstractmethod
    def _class_names(self) -> tuple[str, ...]:
        """Of the outputs of f, where there are several."""

    def _origin(self) -> Origin:
        """What the model's inputs are measured from: the default prior of an intercept is about f at their means."""
        if not checks.flag("fit_intercept", self.fit_intercept):
            return "zero"
        return "means" if self.intercept_prior_precision is None else "as_mapped"

    def _read(self, X: Any, read: Callable[[Predictive], np.ndarray]) -> np.ndarray:
        """Predicts rows in blocks that bound the memory, and joins what is read from each."""
        check_is_fitted(self)
        on_disk = opened(X)
        if on_disk is None:
            return self._read_inputs(self._inputs.read(self._reader.table(self, X), linear=True), read)
        blocks = self._reader.blocks(on_disk)
        return np.concatenate([self._read_inputs(self._inputs.read(block, linear=True), read) for block in blocks])

    def _bound(self, posterior: P) -> P:
        """The posterior, which then reads tables as the estimator does."""
        return replace(posterior, reader=EstimatorTable.of(self, self._reader, self._inputs, linear=True))

    def _read_inputs(self, inputs: InputRows, read: Callable[[Predictive], np.ndarray]) -> np.ndarray:
        posterior = self.posterior_
        draws = posterior.draws[..., 0].numel() if isinstance(posterior, DrawsPosterior) else posterior.mean.shape[0]
        rows = max(1, BLOCK_NUMBERS // (draws * max(1, posterior.function.outputs if posterior.function else 1)))
        starts = range(0, max(1, len(inputs)), rows)
        with threads_for(inputs.values.size):
            return np.concatenate([read(posterior.predict(inputs[start : start + rows])) for start in starts])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags
