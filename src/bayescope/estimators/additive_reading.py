"""What both neural additive estimators do: they read tables, fit, and say what was learnt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self, TypeVar, cast

import numpy as np
import pandas as pd
import torch
from sklearn.utils.validation import check_is_fitted

from bayescope import checks
from bayescope.additive.additive import Additive, fit_additive
from bayescope.additive.coded import Observed
from bayescope.additive.contributions import intercept_at
from bayescope.additive.effects import Effect, Grid, Surface, effect, effect_draws, level_effects, on_mean, surface
from bayescope.additive.explanation import Explanation, Importance, explain, importance
from bayescope.additive.fit import AdditiveOptions
from bayescope.additive.gaps import with_gaps
from bayescope.additive.observed import RowsInMemory
from bayescope.additive.terms import EncodedRows
from bayescope.errors import InputError
from bayescope.estimators.additive_table import NumericTransform, Outputs, coded
from bayescope.estimators.base import BLOCK_NUMBERS, Generator, MissingAttributeError, TableEstimator
from bayescope.estimators.mapped_rows import Canonical
from bayescope.estimators.table_rows import RowBlock, TableRows, row_offset
from bayescope.likelihoods import IntegralName, Likelihood, Ordinal
from bayescope.posterior import GaussianPosterior, InputRows, NamedDraws, PointPosterior, noted
from bayescope.predictive import Predictive
from bayescope.process_state import threads_for
from bayescope.tables import Column, TableEncoding
from bayescope.tables.preprocessing import Table

# What a summary calls the numbers that a transform makes.
UNITS = {"standard": "in standard deviations", "quantile": "as normal scores"}

# Each round of a fit asks every feature what it would add: with more of them a fit takes too long.
MOST_FEATURES = 10_000

Precisions = float | dict[str, float]


Reported = TypeVar("Reported", Effect, Surface, Explanation, Importance)


@dataclass(kw_only=True, eq=False, repr=False)
class AdditiveEstimator(AdditiveOptions, TableEstimator):
    """A table, an additive model and its posterior."""

    _several_targets: ClassVar[bool] = True

    numeric_transform: NumericTransform = "standard"
    groups: str | int | Sequence[str | int] | None = None

    additive_: Additive = field(init=False)
    posterior_: GaussianPosterior | PointPosterior = field(init=False)
    _offset_columns: int = field(init=False)
    _share_prior: str = field(init=False)
    _output_names: tuple[str, ...] = field(init=False)
    _unit: str = field(init=False)
    _groups: tuple[str, ...] = field(init=False)

    def fit(self, X: object, y: object, sample_weight: object = None, *, offset: object = None) -> Self:
        """Fits the effects, their prior precisions, the noise and the posterior.

        Args:
            X: a table of N rows: a frame of any library that narwhals knows, an array, a tensor, a list of rows, or
                one on disk (`open_table`), which is read in blocks.
            y: N labels or numbers, or N rows of several: labels of 0 and 1, or numbers; or the name of a column.
            sample_weight: how often each row counts, shape (N,) or the name of a column, times ``class_weight``.
            offset: added to f as it is, in logits or in y's unit, shape (N,) for one f, else (N, C), or the name of a
                column; of a table on disk the name of a column, for one f.

        Raises:
            InputError: if an input or an option cannot be used; the message names the column.
            InputTypeError: if a column holds what is neither a number nor a label, such as dates.
            NotPositiveDefiniteError: if the curvature of a term is singular in float64.
        """
        return self._whole(X, y, sample_weight, offset)

    def predict_distribution(
        self,
        X: object,
        *,
        offset: object = None,
        integral: IntegralName | None = None,
        method: Literal["linearized", "sampled"] | None = None,
        samples: int | None = None,
        generator: Generator = None,
    ) -> Predictive[np.ndarray]:
        """The predictive distribution, with its epistemic and aleatoric parts and its intervals.

        It knows the labels of a classifier by name; of several labels a row, each is 0 or 1.

        Args:
            X: a table of the columns that were fitted.
            offset: added to the linear predictor, shape (N,) or (N, C); by default 0, or the column that the model was
                fitted with.
            integral: over the latent f: "quadrature", "mackay", "monte_carlo" or "laplace_bridge"; the default is
                the most accurate one. Where there is a closed form it is used.
            method: "linearized" or "sampled".
            samples: how many draws, where there are any.
            generator: for the draws; ``random_state`` by default.
        """
        source, rows = self._generator() if generator is None else generator, self._rows(X, offset)
        predictive = self._predicted(rows, integral=integral, method=method, samples=samples, generator=source)
        return self._labelled(predictive, X)

    def effects(
        self,
        feature: int | str,
        *,
        grid: Grid = None,
        level: float = 0.95,
        scale: Literal["link", "mean"] = "link",
    ) -> Effect:
        """The effect of one feature with its band, in the unit of the linear predictor: the logit, or y's unit.

        Effects are centred: their mean over the rows that were fitted is 0. What the feature's pairs say of it alone is
        part of it, and `surface` has what they say beyond.

        Args:
            feature: by name or position.
            grid: values of the column, in its own unit, or how many; by default 100, or all labels that were seen, or
                the numbers that were seen where these are two, or at most 30 that are whole or recur.
            level: the probability of the interval at each point.
            scale: "link" for the effect itself, added to the linear predictor, or "mean" for E(y) where all other
                effects are 0: the intercept, held at its posterior mean, and the effect through the link. Of ordered
                classes it is the probability of each, a column a class.

        Returns:
            ``grid``, ``mean``, ``sd``, ``low``, ``high``, the share of the data near each point as ``density``, and the
            effect of a ``missing`` value; the names of the ``outputs`` where there are several, and the ``unit``.
        """
        check_is_fitted(self)
        found = effect(self.additive_, feature, grid=grid, level=level)
        if checks.choice("scale", scale, ("link", "mean")) == "mean":
            ordered = cast(Any, self).classes_.tolist() if isinstance(self.posterior_.likelihood, Ordinal) else ()
            return replace(on_mean(self.additive_, found), outputs=tuple(map(str, ordered)))
        return self._named_outputs(found)

    def surface(
        self,
        a: int | str,
        b: int | str,
        *,
        grid: tuple[Grid, Grid] = (None, None),
        level: float = 0.95,
        whole: bool = False,
    ) -> Surface:
        """The effect of two features together, of which the model has a term.

        Args:
            a: a feature, by name or position.
            b: the other one.
            grid: of each, as for `effects`.
            level: the probability of the interval at each point.
            whole: whether the two features' own effects are added.
        """
        check_is_fitted(self)
        return self._named_outputs(surface(self.additive_, (a, b), grid=grid, level=level, whole=whole))

    def explain(self, X: object, *, offset: object = None, level: float = 0.95) -> Explanation:
        """What each term contributes to the prediction of each row, with intervals; the parts sum to the total.

        Args:
            X: a table of the columns that were fitted.
            offset: added to the linear predictor, as for predictions.
            level: the probability of the intervals.
        """
        added = self._added(offset, None)
        features, given = added.apart(X, self._added_by)
        columns, sums = self._table(features), None if given is None else added.numbers(given)
        explanation = explain(self.additive_, self._encoded(columns, sums), columns=columns, level=level)
        return self._named_outputs(explanation)

    def importance(self, *, level: float = 0.95) -> Importance:
        """How much each term moves the linear predictor over the rows that were fitted, with its uncertainty."""
        check_is_fitted(self)
        return self._named_outputs(importance(self.additive_, level=level))

    def random_effects(self) -> pd.DataFrame:
        """The effects of the levels of the columns in ``groups=``, as deviations from the population.

        Returns:
            The columns ``group``, ``level``, ``output`` (of several), ``mean``, ``sd`` and ``rows``: how many rows of
            the fit have the level, by their weights. "unseen" stands for any other label, with the population's sd.

        Raises:
            MissingAttributeError: if there are no groups.
        """
        check_is_fitted(self)
        if not self._groups:
            raise MissingAttributeError("random_effects: expected a fit with groups=, got one without. Name columns.")
        names = list(self.additive_.encoding.names)
        tables = [level_effects(self.additive_, names.index(name), self._output_names) for name in self._groups]
        return pd.concat(tables, ignore_index=True)

    def _named_draws(self, theta: torch.Tensor) -> NamedDraws:
        outputs = ["output"] if self._output_names else []
        named = {"intercept": (outputs, _one(intercept_at(self.additive_, theta), outputs))}
        coords: dict[str, Sequence[object]] = {"output": list(self._output_names)} if outputs else {}
        for feature, name in enumerate(self.additive_.encoding.names):
            grid, effects = effect_draws(self.additive_, feature, theta.flatten(0, 1))
            coords[f"{name}_value"] = grid.tolist()
            named[name] = [f"{name}_value", *outputs], _one(effects.unflatten(0, theta.shape[:2]), outputs)
        return NamedDraws(named, coords)

    @property
    def prior_precision_(self) -> dict[str, Precisions]:
        """The prior precision of each term by its name: a number, or one for each layer where these may differ.

        They do by ``share_prior="layer"``, and by "net" where the evidence has switched off all layers but the first.
        """
        check_is_fitted(self)
        fitted = self.additive_
        return {
            term.name: _by_layer(self._share_prior, family.layers, values.tolist())
            for family, precisions in zip(fitted.model.families, fitted.precisions, strict=True)
            for term, values in zip(family.terms, precisions, strict=True)
        }

    @property
    def pairs_(self) -> list[tuple[str, str]]:
        """The names of the pairs that have a term."""
        check_is_fitted(self)
        return self._named(self.additive_.pairs)

    @property
    def ranking_(self) -> pd.DataFrame | None:
        """All pairs with their scores, best first; ``None`` where none were ranked."""
        check_is_fitted(self)
        ranking = self.additive_.ranking
        if ranking is None:
            return None
        table = pd.DataFrame(self._named(ranking.pairs), columns=["first", "second"])
        return table.assign(score=ranking.scores)

    @property
    def trace_(self) -> Mapping[str, Sequence[float]]:
        """Log evidence, log joint and noise variance after each epoch, the targets in standard deviations."""
        check_is_fitted(self)
        return self.posterior_.trace

    @property
    def n_iter_(self) -> int:
        """Epochs that the last training took, that with the pairs."""
        return len(self.trace_["log_evidence"])

    @property
    def _group_columns(self) -> Sequence[str | int] | None:
        """The columns that ``groups=`` names."""
        return [self.groups] if isinstance(self.groups, str | int) else self.groups

    def _table(self, X: object) -> list[Column]:
        """A table of the columns that were fitted."""
        check_is_fitted(self)
        return self._reader.columns(self, X)

    def _encoded(self, columns: Sequence[Column], offset: object) -> EncodedRows:
        """Those columns as the model takes them."""
        offsets = row_offset(offset, len(columns[0].values), self._offset_columns)
        encoded = self.additive_.encoding.encode(columns)
        return EncodedRows.of(encoded, _padded(offsets, self.additive_.model.outputs))

    def _inputs_of(self, table: Table, offset: object = None) -> InputRows:
        """A table as the model takes it, and what the data say of values that rows lack."""
        return with_gaps(self.additive_, self._encoded(cast(list[Column], table), offset))

    def _block(self, rows: InputRows) -> tuple[int, int]:
        model = self.additive_.model
        size = max(1, BLOCK_NUMBERS // (model.dim * model.outputs))
        return size, model.dim * min(size, len(rows))

    def _distinct(self, rows: TableRows, outputs: int) -> TableRows:
        """The rows with their offset, shape (n, C); those in memory are merged where they are equal.

        Raises:
            InputError: if there are too many columns.
        """
        count = len(rows.reader.names)
        if count > MOST_FEATURES:
            raise InputError(
                f"X: expected at most {MOST_FEATURES:,} columns for an additive model, got {count:,}. Take a linear "
                "model, which reads more (BayesianLogisticRegression, BayesianLinearRegression; --model linear), or "
                "leave out columns."
            )
        self._offset_columns, self._reader, self._groups = outputs, rows.reader, rows.groups

        def offset(block: RowBlock) -> RowBlock:
            return replace(block, offset=row_offset(block.offset, len(block), outputs))

        return rows.changed(offset).distinct()

    def _learn(
        self, rows: TableRows, values: Canonical, outputs: Outputs, likelihood: Likelihood,
        *, learns: tuple[str, ...] = (), notes: Mapping[str, str] | None = None, origin: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        """Encodes the rows, fits the model and sets the learned attributes."""
        seed, held, about = checks.seed_from(rows.generator(self.random_state)), rows.held, dict(notes or {})
        data: Observed
        if held is None:
            data = coded(rows, values, outputs, self.numeric_transform)
            encoding, count, about = data.encoding, data.codes.rows, {**data.notes(), **about}
        else:
            encoding = TableEncoding.fit(
                held.columns,
                numeric_transform=self.numeric_transform,
                weights=held.weights,
                progress=checks.flag("progress", self.progress),
            )
            data = RowsInMemory(
                rows=EncodedRows.of(encoding.encode(held.columns), _padded(held.offset, len(outputs.scale))),
                targets=values(held.target),
                weights=torch.from_numpy(held.weights),
                scale=torch.from_numpy(outputs.scale),
                shift=torch.from_numpy(outputs.shift),
                log_unit=outputs.log_unit,
            )
            count = len(held)
        with threads_for(count * len(encoding.names)):
            additive = fit_additive(encoding, data, likelihood, self, seed=seed, learns=learns, origin=origin)
        self._share_prior = self.share_prior
        self.posterior_ = noted(additive.posterior, {**self._notes(encoding), **about})
        # The fit of a table on disk holds its files.
        fit = None if held is None else additive.fit
        self.additive_ = replace(additive, posterior=self.posterior_, fit=fit)

    def _notes(self, encoding: TableEncoding) -> dict[str, str]:
        """The inputs' units: the prior has them."""
        by_unit: dict[str, list[str]] = {}
        for feature in encoding.features:
            how = "a level each" if feature.kind == "categorical" else UNITS[feature.transform]
            by_unit.setdefault(how, []).append(feature.name)
        return {"inputs": "; ".join(f"{', '.join(which)}: {how}" for how, which in by_unit.items())}

    def _named_outputs(self, result: Reported) -> Reported:
        """With the names of the outputs and their unit."""
        return replace(result, outputs=self._output_names, unit=self._unit)

    def _named(self, pairs: Iterable[tuple[int, int]]) -> list[tuple[str, str]]:
        names = self.additive_.encoding.names
        return [(names[first], names[second]) for first, second in pairs]


def _by_layer(share_prior: str, layers: Sequence[str], values: Sequence[float]) -> Precisions:
    alike = share_prior == "net" and len(set(values)) == 1
    return values[0] if alike else dict(zip(layers, values, strict=True))


def _one(values: torch.Tensor, outputs: Sequence[str]) -> np.ndarray:
    """As an array, without the last dimension where there is one output."""
    return values.numpy() if outputs else values[..., 0].numpy()


def _padded(offset: np.ndarray | None, outputs: int) -> torch.Tensor | None:
    """An offset for each of C outputs, shape (N, C): 0 for those beyond its columns, such as log variances."""
    return None if offset is None else torch.from_numpy(np.pad(offset, ((0, 0), (0, outputs - offset.shape[1]))))
