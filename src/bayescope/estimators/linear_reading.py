"""What both linear estimators do: they read tables, answer from the posterior of their weights, and report these."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, TypeAlias

import numpy as np
import pandas as pd
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from bayescope import checks
from bayescope.errors import UnsupportedError
from bayescope.estimators.base import BLOCK_NUMBERS, MissingAttributeError, TableEstimator, whole_or_not_at_all
from bayescope.estimators.features import Features
from bayescope.estimators.frames import columns_by_name
from bayescope.estimators.inputs import EstimatorTable, InputMap, Origin
from bayescope.estimators.mapped_rows import MappedRows
from bayescope.estimators.priors import NOTHING, group_notes, of_weights, sparse_prior, weight_groups
from bayescope.estimators.table_rows import TableRows, row_offset, row_weights
from bayescope.estimators.targets import weight_notes
from bayescope.likelihoods import Likelihood
from bayescope.linear.groups import WeightGroups
from bayescope.linear.row_space import require_room
from bayescope.linear.table import RowTable
from bayescope.logs import logged
from bayescope.models import LinearModel
from bayescope.posterior import (
    DrawsPosterior,
    GaussianPosterior,
    InputRows,
    NamedDraws,
    PointPosterior,
    Posterior,
    noted,
    with_names,
)
from bayescope.priors import Prior
from bayescope.process_state import outside_inference_mode
from bayescope.sparse_priors import SparsePrior
from bayescope.storage import forget
from bayescope.tables.preprocessing import EncodingName, Table

# A summary has the coefficients of models with up to this many weights: their sds take the inverse of the precision.
MOST_COEFFICIENTS = 2000
# A summary shows this many coefficients, those furthest from 0 in standard deviations.
SHOWN = 10
# Draws that stand for a posterior that is neither Gaussian nor draws.
DRAWS = 4000

# Matrices of P×P numbers that a search for the precisions of groups has at once.
GROUP_MATRICES = 16

WeightPrecision: TypeAlias = (
    float
    | Sequence[float]
    | np.ndarray
    | Tensor
    | Prior
    | SparsePrior
    | Literal["evidence", "ard", "horseshoe", "laplace"]
)


@dataclass(kw_only=True, eq=False, repr=False)
class LinearEstimator(TableEstimator):
    """A table, a linear model and its posterior."""

    prior_precision: WeightPrecision = "evidence"
    groups: str | int | Sequence[str | int] | None = None
    intercept_prior_precision: float | None = None
    features: Features = None
    fit_intercept: bool = True
    standardize: bool = True
    encoding: EncodingName = "one_hot"

    coef_: np.ndarray = field(init=False)
    intercept_: float | np.ndarray = field(init=False)
    prior_precision_: float | np.ndarray = field(init=False)
    group_precision_: dict[str, float | np.ndarray] = field(init=False)
    weight_names_: tuple[str, ...] = field(init=False)
    _inputs: InputMap = field(init=False)
    _precisions: np.ndarray = field(init=False)
    _shrinkage: np.ndarray | None = field(init=False)
    _effective_parameters: float | None = field(init=False)

    def partial_fit(self, X: object, y: object, sample_weight: object = None) -> Self:
        """Learns from more rows: the posterior becomes the prior, p(w∣y₁, y₂) ∝ p(y₂∣w) p(w∣y₁) (Bishop 2006, 3.3.1).

        The first call is `fit`. The units of the inputs, their encoding, the prior precision and what was learnt of the
        likelihood (such as the noise variance) stay as the first rows have them.

        For `BayesianLinearRegression`, whose posterior is Gaussian, it is exact: with a given prior precision and noise
        variance and ``standardize=False`` the posterior and the log evidence are those of one fit to all rows. Else the
        Gaussian approximation of each part is the prior of the next one, and the log evidence is summed over the parts.

        Args:
            X: a table of the columns that were fitted, in memory.
            y: as for `fit`.
            sample_weight: as for `fit`.

        Raises:
            InputError: if the rows cannot be used, or a label is none of the first call's.
            UndefinedQuantityError: if the posterior is no single Gaussian, such as "nuts" or "map".
            UnsupportedError: under a sparse prior, for ordered classes, and with an offset or exposure.
        """
        if not hasattr(self, "posterior_"):
            return self._whole(X, y, sample_weight)
        return self._continued(X, y, sample_weight)

    @logged
    @outside_inference_mode
    @whole_or_not_at_all
    def _continued(self, X: object, y: object, sample_weight: object) -> Self:
        if self._shrinkage is not None or getattr(self, "_cutpoints", None) is not None or self._added_by is not None:
            raise UnsupportedError(
                "partial_fit: expected a Gaussian prior and no ordered classes, offset or exposure, got one of these. "
                "Fit all rows together."
            )
        table, targets, weights = columns_by_name(X, y=y, sample_weight=sample_weight)
        before, rows = self.posterior_, self._rows(table)
        counts = row_weights(weights, len(rows))
        after: Any = before.condition((table, self._targets(targets, len(rows)), counts))
        both = before.record.evidence, after.record.evidence
        evidence = None if both[0] is None or both[1] is None else both[0] + both[1]
        notes = {**before.record.notes, **after.record.notes, "rows added": "the posterior before them was their prior"}
        after = replace(after, record=replace(after.record, evidence=evidence, elbo_terms=None, notes=notes))
        self.posterior_ = after
        found, intercepts = self._means()
        self.coef_ = found if self.coef_.ndim == 2 else found[0]
        self.intercept_ = intercepts if np.ndim(self.intercept_) else float(intercepts[0])
        self._effective_parameters = float(self._determined().sum())
        if "well-determined weights" in notes:
            notes["well-determined weights"] = f"{self._effective_parameters:.2f} of {self._determined().size}"
        forget(self)
        return self

    def transform_inputs(self, X: object) -> np.ndarray:
        """The inputs of the posterior's model, shape (N, D): X encoded, standardised and mapped to features.

        Without ``intercept_prior_precision`` they are centred in the end, and the posterior's intercept is f at their
        means.
        """
        return self._inputs(self._table(X))

    def coefficients(self, *, level: float = 0.95) -> pd.DataFrame:
        """The coefficients, one line each, of several classes one for each of them; the intercept comes last.

        Features that the evidence switched off have none, and `random_effects` has those of groups.

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
        at = np.arange(count)
        fixed = np.tile((at < inputs.of_features) | (at >= model.features), (model.outputs, 1))
        fixed[:, : model.features] &= np.isfinite(self._precisions_kept())
        table = table[fixed.ravel()].reset_index(drop=True)
        return table if model.outputs > 1 else table.drop(columns="class")

    def relevance(self) -> pd.DataFrame:
        """How far the prior lets each feature of the table matter, one line each, with the most determined first.

        Returns:
            The columns ``feature``, ``class`` (of several outcomes, whose weights have prior precisions of their own);
            ``inputs``: how many inputs of the model are made of it; ``precision``: the prior precision of their
            weights, infinite for a feature that the evidence switches off; ``determined``: the share of the weights
            that the data determine, the mean of 1 − α_i Σ_ii (MacKay 1992), NaN under a point; and ``switched_off``.
            Under a sparse prior ``determined`` is 1 − E[κ], where κ is the share by which a weight is
            shrunk to 0, and a feature is switched off if that is below ½ for all of its inputs (Carvalho, Polson &
            Scott 2010, The horseshoe estimator for sparse signals).
        """
        check_is_fitted(self)
        owners, names = self._inputs.owners
        precisions = np.atleast_2d(self._precisions)
        if self._shrinkage is None:
            share, off = self._determined(), np.isinf(precisions)
            share = self._each_input(share, 0.0).reshape(len(precisions), -1, len(owners)).mean(1)
        else:
            share, off = 1.0 - self._shrinkage[None], self._shrinkage[None] > 0.5
        classes, features = self._class_names or [""], len(names) - len(self._inputs.groups)
        counts, least = np.bincount(owners, minlength=len(names)), np.full((len(share), len(names)), np.inf)
        np.minimum.at(least.T, owners, precisions.T)
        determined, stay = (
            np.stack([np.bincount(owners, row, minlength=len(names)) for row in part])[:, :features]
            for part in (share, ~off)
        )
        table = pd.DataFrame(
            {
                "feature": np.tile(np.array(names[:features], dtype=object), len(share)),
                "class": np.repeat(np.array(classes[: len(share)], dtype=object), features),
                "inputs": np.tile(counts[:features], len(share)),
                "precision": least[:, :features].flatten(),
                "determined": (determined / np.maximum(counts[:features], 1)).flatten(),
                "switched_off": (stay == 0).flatten(),
            }
        )
        table = table if len(share) > 1 else table.drop(columns="class")
        return table.sort_values(["determined", "precision"], ascending=[False, True], kind="stable", ignore_index=True)

    def random_effects(self) -> pd.DataFrame:
        """The effects of the levels of the columns in ``groups=``, as deviations from the population.

        Returns:
            The columns ``group``, ``level``, ``class`` (of several), ``mean``, ``sd`` and ``rows``: how many rows of
            the fit have the level, by their weights. "unseen" stands for any other label, with the population's sd.

        Raises:
            MissingAttributeError: if there are no groups.
        """
        check_is_fitted(self)
        inputs, outputs = self._inputs, self._model.outputs
        if not inputs.groups:
            raise MissingAttributeError("random_effects: expected a fit with groups=, got one without. Name columns.")
        mean, sd = self._each_input(self._weights(), 0.0), np.sqrt(self._each_input(self._variances(), 0.0))
        levels = [(each.name, level) for each in inputs.groups for level in each.levels]
        rows = np.concatenate([[*each.counts, each.missing, 0] for each in inputs.groups])
        group, level = (np.array(part, dtype=object) for part in zip(*levels, strict=True))
        count = len(levels)
        table = pd.DataFrame(
            {
                "group": np.tile(group, outputs), "level": np.tile(level, outputs),
                "class": np.repeat(np.array(self._class_names or range(outputs), dtype=object), count),
                "mean": mean[:, -count:].ravel(), "sd": sd[:, -count:].ravel(), "rows": np.tile(rows, outputs),
            }
        )  # fmt: skip
        table = table[(table["rows"] > 0) | (table["level"] == "unseen")].reset_index(drop=True)
        return table if outputs > 1 else table.drop(columns="class")

    def _weights(self) -> np.ndarray:
        """The mean of the weights of the model's inputs, shape (C, D)."""
        return self._model.unflat(self.posterior_.mean)[0].numpy()

    def _variances(self) -> np.ndarray:
        """The variances of the same; NaN under a point."""
        posterior = self.posterior_
        if isinstance(posterior, GaussianPosterior):
            variances = posterior.precision.marginal_variance()
        elif isinstance(posterior, DrawsPosterior):
            variances = posterior.flat.var(0)
        else:
            variances = torch.full_like(posterior.mean, torch.nan)
        return self._model.unflat(variances)[0].numpy()

    def _determined(self) -> np.ndarray:
        """The shares 1 − α_i Σ_ii of the weights of the model's inputs that the data determine, shape (C, D)."""
        known = self._precisions_kept()
        return np.where(np.isinf(known), 0.0, 1.0 - np.minimum(known, NOTHING) * self._variances())

    def _precisions_kept(self) -> np.ndarray:
        """The prior precisions of the model's inputs, shape (D,) or (C, D)."""
        return self._precisions if self._inputs.kept is None else self._precisions[..., self._inputs.kept]

    def _each_input(self, values: np.ndarray, absent: float) -> np.ndarray:
        """Values (C, D) of the model's inputs for all inputs, those included that were switched off."""
        kept = self._inputs.kept
        if kept is None:
            return values
        every = np.full((len(values), len(self._inputs.made)), absent)
        every[:, kept] = values
        return every

    def summary(self) -> str:
        """How the posterior was made, with the prior and its units, and the coefficients."""
        summary = TableEstimator.summary(self)
        if sum(self.posterior_.sizes) > MOST_COEFFICIENTS:
            return summary
        return "\n".join([summary, *coefficient_lines(self.coefficients(), self._constants)])

    def _named_draws(self, theta: Tensor) -> NamedDraws:
        """Drawn flat weights, shape (chains, draws, P), as "weights" and "intercept", and a sparse prior's scales."""
        model, classes = self._model, self._class_names
        values = _at_zero(theta, model, self._inputs.centre).unflatten(-1, (model.outputs, -1)).numpy()
        values = values if classes else values[..., 0, :]
        outputs = ["class"] if classes else []
        named = {"weights": ([*outputs, "feature"], values[..., : model.features])}
        if model.bias:
            named["intercept"] = (outputs, values[..., -1])
        for name, scales in getattr(self.posterior_, "scales", {}).items():
            named[name] = (["feature"][: scales.ndim - 2], scales.numpy())
        coords: dict[str, Sequence[Any]] = {"feature": list(self._inputs.names)}
        return NamedDraws(named, coords | ({"class": list(classes)} if classes else {}))

    @property
    def _model(self) -> LinearModel:
        model = self.posterior_.function
        assert isinstance(model, LinearModel)
        return model

    @property
    def _constants(self) -> tuple[str, ...]:
        """The names of the last lines of `coefficients`, which are those of no input."""
        return ("intercept",)

    @property
    @abstractmethod
    def _class_names(self) -> tuple[str, ...]:
        """Of the outputs of f, where there are several."""

    @property
    def _output_names(self) -> tuple[str, ...]:
        """What predictions of several columns of y are called."""
        return self._class_names

    def _origin(self, likelihood: Likelihood) -> Origin:
        """What the model's inputs are measured from: the default prior of an intercept is about f at their means.

        Cutpoints that are learnt are about f at the means, too, and take the place of the intercept.
        """
        if "cutpoints" in likelihood.learnable:
            return "means"
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
            origin=self._origin(likelihood),
        )
        self._reader, self._inputs = rows.reader, mapped.inputs
        data = mapped.table(lambda y: likelihood.targets(y, outputs), spread=spread)
        return data, {**mapped.notes(data.count), **(weight_notes(data.total, data.count) if rows.weighted else {})}

    def _inputs_of(self, table: Table, offset: object = None) -> InputRows:
        rows = self._inputs.read(table, linear=True)
        return replace(rows, offset=row_offset(offset, len(rows), 1))

    def _block(self, rows: InputRows) -> tuple[int, int]:
        posterior = self.posterior_
        draws = posterior.draws[..., 0].numel() if isinstance(posterior, DrawsPosterior) else posterior.mean.shape[0]
        precision = posterior.precision if isinstance(posterior, GaussianPosterior) else None
        apart = precision is not None and self._model.blocks_of_outputs(precision) is not None
        return max(1, BLOCK_NUMBERS // (draws * (1 if apart else self._model.outputs))), rows.values.size

    def _learn_groups(
        self,
        model: LinearModel,
        data: RowTable,
        given: Tensor | None,
        learn: Callable[[WeightGroups, WeightGroups], Tensor],
    ) -> tuple[LinearModel, RowTable, Tensor | None]:
        """Learns a precision for each group of weights, if there are several, and leaves out what is switched off.

        Args:
            model: of all inputs.
            data: the rows.
            given: the precision of the features' weights, if it is known.
            learn: finds the precision of each input, from the groups under which noise is learnt, and the groups: with
                a precision for each feature many features would explain the noise, and all of it if they outnumber
                the rows.

        Returns:
            The model, the rows and the precisions of the inputs that stay, shape (D,), or (C, D) of outputs that stand
            apart; what was given, without several groups.

        Raises:
            MemoryBudgetError: if memory does not hold what the search takes.
        """
        groups = weight_groups(self._inputs, given, relevance=self._by_relevance)
        if groups is None:
            return model, data, given
        require_room(model, GROUP_MATRICES)
        first = groups.sharing(self._inputs.of_features) if self._by_relevance else groups
        if self._outputs_apart(model):
            first, groups = first.apart(model.outputs), groups.apart(model.outputs)
        each = learn(first, groups)
        self._precisions = each.clone().numpy()
        if not model.bias and bool(each.isinf().all()):
            each[..., 0] = NOTHING  # a model has some weight
        kept = ~each.isinf().reshape(-1, model.features).all(0)
        each = each[..., kept].clamp(max=NOTHING)
        if bool(kept.all()):
            return model, data, each
        self._inputs = self._inputs.narrowed(np.flatnonzero(kept.numpy()))
        return replace(model, features=int(kept.sum())), data.narrowed(kept), each

    def _outputs_apart(self, model: LinearModel) -> bool:
        """Whether each output has prior precisions of its own: outcomes have units, classes have none."""
        return False

    @property
    def _by_relevance(self) -> bool:
        """Whether each feature has a precision of its own, which is learnt."""
        return isinstance(self.prior_precision, str) and self.prior_precision == "ard"

    @property
    def _sparse(self) -> SparsePrior | None:
        """The prior of the weights, where it is sparse.

        Raises:
            UnsupportedError: if there are random effects as well.
        """
        found = sparse_prior(self.prior_precision)
        if found is not None and self.groups is not None:
            raise UnsupportedError(
                "groups: expected None with a sparse prior, got columns with random effects. Use "
                "prior_precision='evidence' or 'ard'."
            )
        return found

    @property
    def _group_columns(self) -> Sequence[str | int] | None:
        """The columns that ``groups=`` names."""
        return [self.groups] if isinstance(self.groups, str | int) else self.groups

    def _remember(
        self,
        model: LinearModel,
        posterior: GaussianPosterior | PointPosterior | DrawsPosterior,
        prior: Prior,
        notes: dict[str, str],
        given: Tensor | None,
        shrinkage: Tensor | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Sets what both estimators learn, and returns the weights (C, D) and the intercepts (C,) at inputs 0.

        Args:
            model: of the weights.
            posterior: of them.
            prior: of them.
            notes: lines for the summary.
            given: the prior precision that was not learnt.
            shrinkage: E[κ] of the weights of each input under a sparse prior, shape (D,).
        """
        self._shrinkage = None if shrinkage is None else shrinkage.numpy().copy()
        owners, features = self._inputs.owners
        if not (self._by_relevance or self._inputs.groups):
            each = of_weights(prior, model).numpy()
            each = np.where(each < NOTHING, each, np.inf)
            self._precisions = each if self._outputs_apart(model) and given is None and shrinkage is None else each[0]
        of_features = self._precisions[..., owners < len(features) - len(self._inputs.groups)]
        shared = not self._by_relevance and shrinkage is None and (given is None or given.ndim == 0)
        axis = -1 if given is None else None
        self.prior_precision_ = _plain(of_features.min(axis, initial=np.inf)) if shared else of_features
        self.group_precision_ = {
            each.name: _plain(self._precisions[..., owners == at][..., 0])
            for at, each in enumerate(self._inputs.groups, len(features) - len(self._inputs.groups))
        }
        notes = notes | group_notes(self._inputs, self._precisions, relevance=self._by_relevance)
        if shrinkage is not None:
            notes["switched off by the prior"] = (
                f"{int(self.relevance()['switched_off'].sum())} of {len(features)} features"
            )
        classes = [f"{label}: " for label in self._class_names] or [""]
        names = [label + name for label in classes for name in self._inputs.names]
        self.weight_names_ = (*names, *(label + "intercept" for label in classes * model.bias))
        reader = EstimatorTable.of(self, self._reader, self._inputs, linear=True)
        self.posterior_ = replace(with_names(noted(posterior, notes), self.weight_names_), reader=reader)
        return self._means()

    def _means(self) -> tuple[np.ndarray, np.ndarray]:
        """The posterior means of the weights (C, D) and of the intercepts (C,) at inputs 0."""
        parts = self._model.unflat(self.posterior_.mean)
        weights, bias = (None if each is None else each.numpy().copy() for each in parts)
        assert weights is not None
        weights[:, :] = np.where(np.isinf(self._precisions_kept()), 0.0, weights)
        intercepts = self._inputs.intercept_at_zero(weights, np.zeros(len(weights)) if bias is None else bias)
        return self._each_input(weights, 0.0), intercepts


def _plain(values: np.ndarray) -> float | np.ndarray:
    """One number as such."""
    return values if values.ndim else float(values)


def coefficient_lines(table: pd.DataFrame, constants: Sequence[str]) -> list[str]:
    """The table for a summary: the coefficients furthest from 0 in standard deviations, then the intercepts."""
    # A column may be called "intercept", too: the intercept is the last row of its output.
    behind = table.iloc[::-1].groupby(table.get("class", pd.Series(0, table.index)).iloc[::-1], sort=False).cumcount()
    last = (behind < len(constants)) & table["name"].isin(constants)
    intercepts, inputs = table[last], table[~last]
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
