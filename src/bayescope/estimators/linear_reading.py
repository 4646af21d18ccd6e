"""What both linear estimators do: they read tables, answer from the posterior of their weights, and report these."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from bayescope import checks
from bayescope.estimators.base import BLOCK_NUMBERS, TableEstimator
from bayescope.estimators.features import Features
from bayescope.estimators.inputs import EstimatorTable, InputMap, Origin
from bayescope.estimators.mapped_rows import MappedRows
from bayescope.estimators.priors import per_feature
from bayescope.estimators.table_rows import TableRows
from bayescope.estimators.targets import weight_notes
from bayescope.likelihoods import Likelihood
from bayescope.linear.table import RowTable
from bayescope.models import LinearModel
from bayescope.posterior import (
    DrawsPosterior,
    GaussianPosterior,
    InputRows,
    NamedDraws,
    PointPosterior,
    Posterior,
    noted,
)
from bayescope.priors import Prior
from bayescope.tables.preprocessing import EncodingName, Table

# A summary has the coefficients of models with up to this many weights: their sds take the inverse of the precision.
MOST_COEFFICIENTS = 2000
# A summary shows this many coefficients, those furthest from 0 in standard deviations.
SHOWN = 10
# Draws that stand for a posterior that is neither Gaussian nor draws.
DRAWS = 4000

WeightPrecision: TypeAlias = float | Sequence[float] | np.ndarray | Tensor | Prior | Literal["evidence"]


@dataclass(kw_only=True, eq=False, repr=False)
class LinearEstimator(TableEstimator):
    """A table, a linear model and its posterior."""

    prior_precision: WeightPrecision = "evidence"
    intercept_prior_precision: float | None = None
    features: Features = None
    fit_intercept: bool = True
    standardize: bool = True
    encoding: EncodingName = "one_hot"

    coef_: np.ndarray = field(init=False)
    intercept_: float | np.ndarray = field(init=False)
    prior_precision_: float | np.ndarray = field(init=False)
    weight_names_: tuple[str, ...] = field(init=False)
    _inputs: InputMap = field(init=False)

    def transform_inputs(self, X: object) -> np.ndarray:
        """The inputs of the posterior's model, shape (N, D): X encoded, standardised and mapped to features.

        Without ``intercept_prior_precision`` they are centred in the end, and the posterior's intercept is f at their
        means.
        """
        return self._inputs(self._table(X))

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
        model, inputs = self._model, self._inputs
        tail = 0.5 * (1.0 - checks.fraction("level", level))
        mean, sd, low, high = _moments(self.posterior_, model, inputs.centre, tail)
        count = len(mean) // model.outputs
        table = pd.DataFrame(
            {
                "name": np.tile(np.array([*inputs.names, *["intercept"] * model.bias], dtype=object), model.outputs),
                "class": np.repeat(np.array(self._class_names or range(model.outputs), dtype=object), count),
                "mean": mean, "sd": sd, "low": low, "high": high,
                "per": np.tile(np.append(inputs.units, np.ones(int(model.bias))), model.outputs),
            }
        )  # fmt: skip
        return table if model.outputs > 1 else table.drop(columns="class")

    def summary(self) -> str:
        """How the posterior was made, with the prior and its units, and the coefficients."""
        summary = TableEstimator.summary(self)
        if sum(self.posterior_.sizes) > MOST_COEFFICIENTS:
            return summary
        return "\n".join([summary, *coefficient_lines(self.coefficients())])

    def _named_draws(self, theta: Tensor) -> NamedDraws:
        """Drawn flat weights, shape (chains, draws, P), as "weights" and "intercept"."""
        model, classes = self._model, self._class_names
        values = _at_zero(theta, model, self._inputs.centre).unflatten(-1, (model.outputs, -1)).numpy()
        values = values if classes else values[..., 0, :]
        outputs = ["class"] if classes else []
        named = {"weights": ([*outputs, "feature"], values[..., : model.features])}
        if model.bias:
            named["intercept"] = (outputs, values[..., -1])
        coords: dict[str, Sequence[Any]] = {"feature": list(self._inputs.names)}
        return NamedDraws(named, coords | ({"class": list(classes)} if classes else {}))

    @property
    def _model(self) -> LinearModel:
        model = self.posterior_.function
        assert isinstance(model, LinearModel)
        return model

    @property
    @abstractmethod
    def _class_names(self) -> tuple[str, ...]:
        """Of the outputs of f, where there are several."""

    def _origin(self) -> Origin:
        """What the model's inputs are measured from: the default prior of an intercept is about f at their means."""
        if not checks.flag("fit_intercept", self.fit_intercept):
            return "zero"
        return "means" if self.intercept_prior_precision is None else "as_mapped"

    def _table_of(
        self, rows: TableRows, likelihood: Likelihood, outputs: int, *, spread: bool = True
    ) -> tuple[RowTable, dict[str, str]]:
        """Learn the inputs, and return the rows as the linear model takes them and what a summary says of these.

        Args:
            rows: with codes or numbers for targets.
            likelihood: p(y∣f).
            outputs: C.
            spread: whether rows in memory are spread over the processes.
        """
        mapped = MappedRows.fit(
            rows,
            scaling="standard" if checks.flag("standardize", self.standardize) else None,
            encoding=self.encoding,
            features=self.features,
            random_state=self.random_state,
            origin=self._origin(),
        )
        self._reader, self._inputs = rows.reader, mapped.inputs
        data = mapped.table(lambda y: likelihood.targets(y, outputs), spread=spread)
        return data, {**mapped.notes(data.count), **(weight_notes(data.total, data.count) if rows.weighted else {})}

    def _inputs_of(self, table: Table, offset: object = None) -> InputRows:
        return self._inputs.read(table, linear=True)

    def _block(self, rows: InputRows) -> tuple[int, int]:
        posterior = self.posterior_
        draws = posterior.draws[..., 0].numel() if isinstance(posterior, DrawsPosterior) else posterior.mean.shape[0]
        return max(1, BLOCK_NUMBERS // (draws * self._model.outputs)), rows.values.size

    def _remember(
        self,
        model: LinearModel,
        posterior: GaussianPosterior | PointPosterior | DrawsPosterior,
        prior: Prior,
        notes: dict[str, str],
        given: Tensor | None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Sets what both estimators learn, and returns the weights (C, D) and the intercepts (C,) at inputs 0.

        Args:
            model: of the weights.
            posterior: of them.
            prior: of them.
            notes: lines for the summary.
            given: the prior precision that was not learnt.
        """
        learnt = per_feature(prior, model)
        shared = given is None or given.ndim == 0
        self.prior_precision_ = float(learnt[0]) if shared else learnt.numpy().copy()
        classes = [f"{label}: " for label in self._class_names] or [""]
        names = [label + name for label in classes for name in self._inputs.names]
        self.weight_names_ = (*names, *(label + "intercept" for label in classes * model.bias))
        reader = EstimatorTable.of(self, self._reader, self._inputs, linear=True)
        self.posterior_ = replace(noted(posterior, notes), reader=reader)
        weights, bias = (None if each is None else each.numpy().copy() for each in model.unflat(posterior.mean))
        assert weights is not None
        return weights, np.zeros(len(weights)) if bias is None else self._inputs.intercept_at_zero(weights, bias)


def coefficient_lines(table: pd.DataFrame) -> list[str]:
    """The table for a summary: the coefficients furthest from 0 in standard deviations, then the intercepts."""
    # A column may be called "intercept", too: the intercept is the last row of its output.
    last = ~table.get("class", pd.Series(0, table.index)).duplicated(keep="last")
    intercepts, inputs = (table[(last & (table["name"] == "intercept")) == which] for which in (True, False))
    distance = (inputs["mean"] / inputs["sd"]).abs() if inputs["sd"].notna().all() else inputs["mean"].abs()
    # Columns that are the same but for rounding, such as one of 0 and 1 and its square, keep their order.
    rounded = distance.map(lambda x: float(f"{x:.6g}"))
    first = rounded.sort_values(ascending=False, kind="stable").index[:SHOWN]
    furthest = pd.concat([inputs.loc[first], intercepts.head(SHOWN)])
    which = f", the {SHOWN} of {len(inputs)} furthest from 0 in sds" if len(inputs) > SHOWN else ""
    heading = f"  coefficients{which}, with 95 % intervals; per: the change of the column that each is for"
    text = furthest.to_string(index=False, float_format=lambda x: f"{x:.4g}").splitlines()
    return [heading, *(f"    {line}" for line in text)]


def _at_zero(theta: Tensor, model: LinearModel, centre: np.ndarray | None) -> Tensor:
    """Flat weights (..., P) with the weights of each output together, its intercept last: f where the inputs are 0."""
    weights, bias = model.unflat(theta)
    if bias is None:
        return weights.flatten(-2)
    at_zero = bias if centre is None else bias - weights @ torch.from_numpy(centre)
    return torch.cat([weights, at_zero[..., None]], -1).flatten(-2)


def _moments(
    posterior: Posterior, model: LinearModel, centre: np.ndarray | None, tail: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Mean, sd and the ends of the central intervals, each of shape (C (D + 1),)."""
    mean = _at_zero(posterior.mean, model, centre).numpy()
    if isinstance(posterior, PointPosterior):
        unknown = np.full(mean.shape, np.nan)
        return mean, unknown, unknown, unknown
    if isinstance(posterior, GaussianPosterior):
        variance = _at_zero(posterior.precision.marginal_variance(), model, None)
        if model.bias:
            at = torch.zeros(1, model.features) if centre is None else -torch.from_numpy(centre)[None]
            intercepts = model.variance(at.to(torch.float64), posterior.mean, posterior.precision)[0]
            variance = torch.cat([variance.unflatten(0, (model.outputs, -1))[:, :-1], intercepts[:, None]], 1).flatten()
        sd = variance.sqrt().numpy()
        half = -float(torch.special.ndtri(torch.tensor(tail, dtype=torch.float64))) * sd
        return mean, sd, mean - half, mean + half
    draws = posterior.flat if isinstance(posterior, DrawsPosterior) else posterior.sample(DRAWS, generator=0)
    at_zero = _at_zero(draws, model, centre).numpy()
    low, high = np.quantile(at_zero, [tail, 1.0 - tail], axis=0)
    return mean, at_zero.std(0, ddof=1), low, high
