"""f as a sum over columns, on grids: means and roots of the covariance, from which a page computes any prediction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any, cast, final

import numpy as np
import torch
from torch import Tensor

from bayescope.additive.contributions import intercept, position_of, read
from bayescope.additive.effects import Axis, numbers_seen, recurring, rows_over
from bayescope.errors import UnsupportedError
from bayescope.estimators import BayesianLinearRegression, BayesianLogisticRegression
from bayescope.estimators.additive_reading import AdditiveEstimator
from bayescope.estimators.base import TableEstimator
from bayescope.models import LinearModel
from bayescope.posterior import GaussianPosterior, PointPosterior, Posterior
from bayescope.precision import BlockPrecision, Precision
from bayescope.report.judged import Judged
from bayescope.tables import Column
from bayescope.tables.encoding import CategoricalEncoding

# Points of a column of many numbers, and of each feature of a pair: between them the page interpolates.
POINTS, PAIR_POINTS = 80, 20
# Whole numbers of at most this many different values are chosen one by one.
MOST_STOPS = 100
# Directions of the weights along which no variance on a grid is more than this share of the largest are left out.
NEGLIGIBLE = 1e-7

LinearEstimator = BayesianLogisticRegression | BayesianLinearRegression


@final
@dataclass(frozen=True, eq=False)
class Choice:
    """The values that a column can be given.

    Attributes:
        column: of the judged rows.
        values: numbers, ascending, or labels as objects, ``None`` for a missing one, shape (m,).
        stops: whether these are all; else any number between the first and the last.
        usual: the label that occurs most, or the number of the judged rows that is nearest to their median.
    """

    column: Column
    values: np.ndarray
    stops: bool
    usual: object

    @classmethod
    def of(cls, column: Column, values: np.ndarray, *, stops: bool) -> Choice:
        """With the usual value of the judged rows."""
        if column.kind == "categorical":
            [(label, _)] = Counter(column.values.tolist()).most_common(1)
            return cls(column, values, True, label if label in values.tolist() else values[0])
        there = column.values[~np.isnan(column.values)]
        middle = np.median(there) if there.size else values[len(values) // 2]
        known = values if stops or not there.size else there
        return cls(column, values, stops, float(known[np.argmin(np.abs(known - middle))]))

    @property
    def labels(self) -> bool:
        """Whether the values are labels."""
        return self.column.kind == "categorical"

    def positions(self, values: np.ndarray) -> np.ndarray:
        """Labels as positions among the values, numbers as they are; NaN for what cannot be chosen."""
        if not self.labels:
            low, high = self.values[0], self.values[-1]
            inside = (values >= low) & (values <= high)
            return np.where(inside & (np.isin(values, self.values) | (not self.stops)), values, np.nan)
        known = {label: float(place) for place, label in enumerate(self.values.tolist())}
        return np.array([known.get(value, np.nan) for value in values.tolist()])


@final
@dataclass(frozen=True, eq=False)
class Summand:
    """One summand of f on the grid of its columns: the constant has none, a pair has two.

    Attributes:
        name: of the term.
        columns: the positions of its columns.
        grids: their values, ascending; labels as their positions.
        mean: shape (m, C) with m the product of the grids' lengths, the last running fastest.
        jacobians: ∂(value)/∂(weights) by block of weights, shape (m, C, P_b); blocks are independent of each other.
    """

    name: str
    columns: tuple[int, ...]
    grids: tuple[np.ndarray, ...]
    mean: np.ndarray
    jacobians: Mapping[int, Tensor]


@final
@dataclass(frozen=True, eq=False)
class Sum:
    """f(x) = Σ of summands.

    Attributes:
        choices: the values of each column.
        summands: the constant first.
        roots: R of each summand, shape (m, C, K), with Cov(f) = (Σ R)(Σ R)ᵀ over the summands of a group, and groups
            independent.
        groups: of each summand.
    """

    choices: tuple[Choice, ...]
    summands: tuple[Summand, ...]
    roots: tuple[np.ndarray, ...]
    groups: tuple[int, ...]

    def positions(self, judged: Judged, places: np.ndarray) -> np.ndarray:
        """Rows as values of the choices, shape (M, D): labels as positions, NaN for what cannot be chosen."""
        return np.stack([choice.positions(choice.column.values[places]) for choice in self.choices], axis=1)

    def at(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The mean (M, C) and covariance (M, C, C) of f at rows of positions, as the page computes them."""
        mean, moved = 0.0, dict[int, Any]()
        for summand, root, group in zip(self.summands, self.roots, self.groups, strict=True):
            weights = _interpolation(summand, rows)
            mean = mean + weights @ summand.mean
            moved[group] = moved.get(group, 0.0) + np.tensordot(weights, root, 1)
        covariance = sum(part @ part.swapaxes(1, 2) for part in moved.values())
        return np.asarray(mean), np.asarray(covariance)


def _interpolation(summand: Summand, rows: np.ndarray) -> np.ndarray:
    """Weights of the grid's points at each row, shape (M, m): linear in each column between two points."""
    weights = np.ones((len(rows), 1))
    for column, grid in zip(summand.columns, summand.grids, strict=True):
        along = np.stack([np.interp(rows[:, column], grid, unit) for unit in np.eye(len(grid))], axis=1)
        weights = (weights[:, :, None] * along[:, None, :]).reshape(len(rows), -1)
    return weights


def as_sum(estimator: TableEstimator, judged: Judged, places: np.ndarray) -> Sum:
    """Reads f of a fitted estimator as a sum over columns.

    Args:
        estimator: a linear or an additive model.
        judged: the rows.
        places: of the rows that are to be values of the choices.

    Raises:
        UnsupportedError: if its f is no such sum, or its posterior no Gaussian.
    """
    if estimator._added_by is not None:
        raise UnsupportedError("each row has an offset or an exposure of its own")
    choices, summands = _summands(estimator, judged, places)
    return Sum(tuple(choices), tuple(summands), *_rooted(summands, _gaussian(estimator.posterior_)))


def _gaussian(posterior: Posterior) -> GaussianPosterior | PointPosterior:
    if isinstance(posterior, PointPosterior) or (isinstance(posterior, GaussianPosterior) and not posterior.transform):
        return posterior
    raise UnsupportedError("its posterior consists of draws of the weights, without a covariance")


@singledispatch
def _summands(
    estimator: TableEstimator,
    judged: Judged,  # noqa: ARG001
    places: np.ndarray,  # noqa: ARG001
) -> tuple[list[Choice], list[Summand]]:
    raise UnsupportedError(f"a {type(estimator).__name__} is not a sum over columns, as linear and additive models are")


# Additive models ------------------------------------------------------------------------------------------------------
@_summands.register
def _(estimator: AdditiveEstimator, judged: Judged, places: np.ndarray) -> tuple[list[Choice], list[Summand]]:
    additive = estimator.additive_
    choices = []
    for feature, column in enumerate(judged.columns):
        encoding = additive.encoding.features[feature]
        if isinstance(encoding, CategoricalEncoding):
            choices.append(Choice.of(column, _labels_of(encoding), stops=True))
        else:
            stops = True if recurring(additive, feature) else None
            choices.append(_numbers(column, numbers_seen(additive, feature), places, stops))
    constant, jacobian = intercept(additive, 1)
    summands = [Summand("mean over the data", (), (), constant[None].numpy(), jacobian)]
    for term in additive.model.terms:
        grids = [_coarse(choices[feature], len(term.features)) for feature in term.features]
        axes = [
            Axis.of(additive, feature, values, POINTS)
            for feature, (values, _) in zip(term.features, grids, strict=True)
        ]
        place = position_of(additive, term.features)
        blocks = list(read(additive, rows_over(additive, axes), [place]))
        mean = torch.cat([block.means[:, 0] for block in blocks]).numpy()
        jacobians = {by: torch.cat([block.jacobians[0][by] for block in blocks]) for by in blocks[0].jacobians[0]}
        summands.append(Summand(term.name, term.features, tuple(at for _, at in grids), mean, jacobians))
    return choices, summands


def _labels_of(encoding: CategoricalEncoding) -> np.ndarray:
    """The labels that were fitted, with ``None`` where missing ones were among them."""
    found = [label for label, count in zip(encoding.categories, encoding.counts, strict=True) if count > 0]
    labels = np.empty(len(found) + bool(encoding.missing), dtype=object)
    labels[: len(found)] = found
    return labels


def _numbers(column: Column, seen: np.ndarray, places: np.ndarray, stops: bool | None) -> Choice:
    """Numbers one by one, where they are few and whole or have effects of their own, else a range."""
    given = column.values[places]
    seen = np.unique(np.concatenate([seen, given[~np.isnan(given)]]))
    if len(seen) == 0:
        seen = np.zeros(1)
    whole = bool((seen == np.round(seen)).all()) and len(seen) <= MOST_STOPS
    few = len(seen) <= 2 or whole if stops is None else stops
    return Choice.of(column, seen if few else np.linspace(seen[0], seen[-1], POINTS), stops=few)


def _coarse(choice: Choice, features: int) -> tuple[np.ndarray, np.ndarray]:
    """The values of a term's grid, and where they are among the page's: fewer numbers for a pair."""
    values = choice.values
    if choice.labels:
        return values, np.arange(len(values), dtype=np.float64)
    if features > 1 and len(values) > PAIR_POINTS:
        values = np.linspace(values[0], values[-1], PAIR_POINTS)
    return values, values.astype(np.float64)


# Linear models --------------------------------------------------------------------------------------------------------
@_summands.register(BayesianLogisticRegression)
@_summands.register(BayesianLinearRegression)
def _(estimator: LinearEstimator, judged: Judged, places: np.ndarray) -> tuple[list[Choice], list[Summand]]:
    """Contributions are w_j (x_j − x̄_j) with x̄ over the judged rows, as single rows are explained."""
    encodings = {each.name: each for each in (*estimator._inputs.preprocessing.labels, *estimator._inputs.groups)}
    choices = []
    for column in judged.columns:
        if column.name in encodings:
            choices.append(Choice.of(column, _labels_of(encodings[column.name]), stops=True))
            continue
        there = column.values[~np.isnan(column.values)]
        choices.append(_numbers(column, np.unique(there), places, None))
    usual = [replace(choice.column, values=np.array([choice.usual], dtype=choice.values.dtype)) for choice in choices]
    base = estimator._inputs(usual)[0]
    centre = estimator.transform_inputs(judged.X).mean(axis=0)
    taken = np.zeros(len(base), dtype=bool)
    posterior = _gaussian(estimator.posterior_)
    model, theta = cast(LinearModel, posterior.function), posterior.location
    nothing = torch.zeros(1, len(base), dtype=torch.float64)
    summands = []
    for place, choice in enumerate(choices):
        values = choice.values
        table = [replace(each, values=np.repeat(each.values, len(values))) for each in usual]
        table[place] = replace(choice.column, values=values)
        inputs = estimator._inputs(table)
        own = (inputs != base).any(axis=0)
        if (taken & own).any():
            raise UnsupportedError("its inputs mix columns")
        taken |= own
        grid = np.arange(len(values), dtype=np.float64) if choice.labels else values.astype(np.float64)
        if not choice.labels and len(grid) > 2:
            inputs, grid = _straight(inputs, grid)
        moved = torch.from_numpy(np.where(own, inputs - centre, 0.0))
        mean = model.forward(moved, theta) - model.forward(nothing, theta)
        jacobian = model.jacobian(moved, theta) - model.jacobian(nothing, theta)
        summands.append(_contrasted(choice.column.name, (place,), (grid,), mean, jacobian))
    rest = torch.from_numpy(np.where(taken, centre, base))[None]
    constant = _contrasted("mean over the data", (), (), model.forward(rest, theta), model.jacobian(rest, theta))
    return choices, [constant, *summands]


def _straight(inputs: np.ndarray, grid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The two ends of a grid, where the inputs between them are on a line."""
    share = ((grid - grid[0]) / (grid[-1] - grid[0]))[:, None]
    line = inputs[0] + share * (inputs[-1] - inputs[0])
    if np.allclose(line, inputs, rtol=0.0, atol=1e-9 * max(1.0, float(np.abs(inputs).max()))):
        return inputs[[0, -1]], grid[[0, -1]]
    return inputs, grid


def _contrasted(
    name: str, columns: tuple[int, ...], grids: tuple[np.ndarray, ...], mean: Tensor, jacobian: Tensor
) -> Summand:
    """Of a softmax, which sees differences alone, less the mean over the classes."""
    if mean.shape[1] > 1:
        mean, jacobian = mean - mean.mean(1, keepdim=True), jacobian - jacobian.mean(1, keepdim=True)
    return Summand(name, columns, grids, mean.detach().numpy(), {0: jacobian})


# Roots of the covariance ----------------------------------------------------------------------------------------------
def _rooted(
    summands: Sequence[Summand], posterior: GaussianPosterior | PointPosterior
) -> tuple[tuple[np.ndarray, ...], tuple[int, ...]]:
    """R of each summand and its group; summands that share a block of weights are in one group."""
    if isinstance(posterior, PointPosterior):
        return tuple(np.zeros((*summand.mean.shape, 0)) for summand in summands), (0,) * len(summands)
    precision = posterior.precision
    blocks: Mapping[int, Precision]
    if isinstance(precision, BlockPrecision) and len(summands) > 1:
        blocks = dict(enumerate(precision.blocks))
        rooted = [{by: _whitened(blocks[by], part) for by, part in each.jacobians.items()} for each in summands]
    else:
        rooted = [{0: _whitened(precision, _over_all(each, posterior))} for each in summands]
    groups = _groups(rooted)
    roots: list[np.ndarray] = [np.empty(0)] * len(summands)
    for group in set(groups):
        members = [place for place, of in enumerate(groups) if of == group]
        for place, root in zip(members, _compressed([rooted[place] for place in members]), strict=True):
            roots[place] = root.reshape(*summands[place].mean.shape, -1)
    return tuple(roots), tuple(groups)


def _over_all(summand: Summand, posterior: GaussianPosterior) -> Tensor:
    """A Jacobian over all weights."""
    parts, model = summand.jacobians, posterior.function
    if isinstance(model, LinearModel):
        return parts[0]
    whole = next(iter(parts.values())).new_zeros(*summand.mean.shape, posterior.precision.dim)
    for by, part in parts.items():
        whole[..., cast(Any, model).indices[by]] = part
    return whole


def _whitened(precision: Precision, jacobian: Tensor) -> np.ndarray:
    """J A^(−½), shape (m C, P)."""
    factor = torch.linalg.cholesky(precision.to_dense())
    rows = jacobian.flatten(0, 1).to(factor)
    found: np.ndarray = torch.linalg.solve_triangular(factor, rows.mT, upper=False).mT.numpy()
    return found


def _groups(rooted: Sequence[Mapping[int, np.ndarray]]) -> list[int]:
    """The smallest numbering in which summands that share a block have one number."""
    groups = list(range(len(rooted)))
    for place, blocks in enumerate(rooted):
        for other in range(place):
            if set(blocks) & set(rooted[other]):
                groups = [groups[other] if group == groups[place] else group for group in groups]
    return groups


def _compressed(rooted: Sequence[Mapping[int, np.ndarray]]) -> list[np.ndarray]:
    """The same covariance in as few columns as it has directions."""
    widths = {by: part.shape[1] for each in rooted for by, part in each.items()}
    sizes = [len(next(iter(each.values()))) for each in rooted]
    stacked = np.vstack(
        [
            np.hstack([each.get(by, np.zeros((size, width))) for by, width in widths.items()])
            for each, size in zip(rooted, sizes, strict=True)
        ]
    )
    left, values, _ = np.linalg.svd(stacked, full_matrices=False)
    scores = left * values
    # What is left out at each point, if the first k directions are kept.
    rest = np.cumsum(np.square(scores)[:, ::-1], axis=1)[:, ::-1]
    kept = int((rest.max(axis=0) > NEGLIGIBLE * max(float(rest[:, 0].max()), 1e-300)).sum())
    return np.split(scores[:, :kept], np.cumsum(sizes)[:-1])
