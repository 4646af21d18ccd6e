"""Effects: what the model says of one feature or of two, with bands, over a grid in the features' own units.

All numbers are NumPy arrays in the unit of the linear predictor: the logit of a classifier, y's unit in a regression.
Effects are centred: their mean over the data is 0. Of a softmax, which sees differences of outputs alone, the mean over
the classes is taken out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, final

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from bayescope import checks, notebook
from bayescope.additive.additive import Additive
from bayescope.additive.contributions import (
    Jacobians,
    at_draws,
    contrasted,
    covariance,
    interval,
    position_of,
    read,
    together,
    variance,
)
from bayescope.additive.families import has_values, values_of
from bayescope.additive.seen import Values, anywhere
from bayescope.additive.terms import EncodedRows, feature_position, feature_term
from bayescope.errors import InputError, InputTypeError, UnsupportedError
from bayescope.likelihoods import Likelihood, Ordinal
from bayescope.tables.cells import column_of_cells
from bayescope.tables.encoding import NO_LEVEL, CategoricalEncoding, Feature, NumericEncoding

# Steps from the range of a column down to a float's last bit, and the digits that numbers are mostly written with.
BISECTIONS, DIGITS = 80, 12
# A feature with at most this many whole or recurring numbers is drawn as steps.
MOST_STEPS = 30

# Values of the column, how many of them, or the usual ones.
Grid = int | Sequence[Any] | np.ndarray | None


@final
@dataclass(frozen=True, eq=False)
class Axis:
    """Values of one feature.

    Attributes:
        feature: its position in the table.
        described: its encoding.
        values: in the column's unit, or labels as objects, shape (n,).
        numbers: as the model takes them, shape (n,).
        levels: as the model takes them, shape (n,).
    """

    feature: int
    described: Feature
    values: np.ndarray
    numbers: Tensor
    levels: Tensor

    @classmethod
    def of(cls, additive: Additive, feature: int | str, grid: Grid, points: int) -> Axis:
        """Reads a grid.

        Args:
            additive: a fitted model.
            feature: by name or position.
            grid: values of the column, NaN or ``None`` for a missing one; or how many numbers, evenly from the smallest
                to the largest seen, of a feature whose values have effects of their own or are steps those seen that
                are nearest; or ``None``: ``points`` numbers, or the labels that were seen.
            points: of numbers.

        Raises:
            OptionError: if there is no feature of this name.
            InputError: if the position is outside the table, or a value cannot be computed with.
            InputTypeError: if the grid holds labels where numbers belong, or the reverse.
        """
        place = feature_position("feature", feature, additive.encoding.names)
        described = additive.encoding.features[place]
        if isinstance(described, CategoricalEncoding):
            values = _labels(described, grid)
        else:
            values = _numbers(described, points if grid is None else grid, _values_seen(additive, place))
        numbers, levels = described.encode(values)
        return cls(place, described, values, torch.from_numpy(numbers), torch.from_numpy(levels))

    @property
    def categorical(self) -> bool:
        """Whether the values are labels."""
        return isinstance(self.described, CategoricalEncoding)

    def missing(self) -> Axis:
        """The axis whose one value is a missing one."""
        values = np.array([None] if self.categorical else [np.nan])
        numbers, levels = self.described.encode(values)
        return Axis(self.feature, self.described, values, torch.from_numpy(numbers), torch.from_numpy(levels))

    def nearest(self, seen: Values) -> np.ndarray:
        """The position on the axis that is nearest to each point of the data, in the model's numbers; −1 where none is.

        A label is nearest to itself alone, and a missing value to one that is missing.
        """
        numbers, levels = (part.numpy() for part in seen.of(self.feature))
        found = np.full(len(levels), -1)
        levels_here = self.levels.numpy()
        for position in np.flatnonzero(levels_here != NO_LEVEL):
            found[levels == levels_here[position]] = position
        positions = np.flatnonzero(levels_here == NO_LEVEL)
        if positions.size:
            order = positions[np.argsort(self.numbers.numpy()[positions], kind="stable")]
            along = self.numbers.numpy()[order]
            cells = np.searchsorted(0.5 * (along[1:] + along[:-1]), numbers)
            found = np.where(levels == NO_LEVEL, order[cells], found)
        return found


def rows_over(additive: Additive, axes: Sequence[Axis]) -> EncodedRows:
    """Rows at all combinations of the axes' values, the last running fastest; the other features are anywhere."""
    shape = [len(axis.values) for axis in axes]
    rows = anywhere(additive.encoding, int(np.prod(shape)))
    for place, axis in enumerate(axes):
        along = [1] * len(axes)
        along[place] = shape[place]
        rows.values[:, axis.feature] = axis.numbers.reshape(along).expand(shape).flatten()
        rows.levels[:, axis.feature] = axis.levels.reshape(along).expand(shape).flatten()
    return rows


def shares(seen: Values, places: np.ndarray, count: int) -> np.ndarray:
    """The share of the data at each place, shape (count,); points with the place −1 count nowhere."""
    weights, inside = seen.weights.numpy(), places >= 0
    return np.bincount(places[inside], weights[inside], minlength=count) / weights.sum()


def _numbers(described: NumericEncoding, grid: int | Sequence[Any] | np.ndarray, seen: np.ndarray | None) -> np.ndarray:
    if isinstance(grid, int | np.integer):
        even = np.unique(described.grid(checks.count("grid", grid)))
        if seen is None:
            return even
        return seen if len(seen) <= grid else np.unique(seen[np.abs(seen - even[:, None]).argmin(1)])
    try:
        values: np.ndarray = np.asarray(grid, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputTypeError(f"grid: expected numbers of column {described.name!r}, got {grid!r}.") from None
    if values.ndim != 1:
        raise InputError(f"grid: expected values of column {described.name!r} of shape (n,), got shape {values.shape}.")
    return values


def _values_seen(additive: Additive, feature: int) -> np.ndarray | None:
    """The values of a feature in the column's unit, where they have effects of their own or are steps."""
    own = recurring(additive, feature) or stepped(additive, feature)
    return numbers_seen(additive, feature) if own else None


def stepped(additive: Additive, feature: int) -> bool:
    """Whether a feature takes two numbers, or a few that are whole or recur: what is between them means nothing."""
    rows = additive.seen.features[feature].rows(additive.encoding)
    count = len(values_of(feature_term(additive.encoding, feature), rows))
    if count > MOST_STEPS or count <= 2:
        return count <= 2
    numbers = numbers_seen(additive, feature)
    return bool((numbers == np.round(numbers)).all()) or recurring(additive, feature)


def recurring(additive: Additive, feature: int) -> bool:
    """Whether the values of a feature are few enough to have effects of their own."""
    seen, term = additive.seen.features[feature], feature_term(additive.encoding, feature)
    return has_values(term, seen.rows(additive.encoding), float(seen.weights.sum()))


def numbers_seen(additive: Additive, feature: int) -> np.ndarray:
    """The different numbers of a feature that were fitted, in the column's unit, ascending."""
    described = additive.encoding.features[feature]
    assert isinstance(described, NumericEncoding)
    rows = additive.seen.features[feature].rows(additive.encoding)
    numbers = values_of(feature_term(additive.encoding, feature), rows).numpy()
    low, high = np.full(len(numbers), described.minimum), np.full(len(numbers), described.maximum)
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        below = described.forward(middle) < numbers
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    # The model knows a value by its number to the last bit, which short decimals mostly give.
    largest = max(abs(described.minimum), abs(described.maximum)) or 1.0
    short = np.round(high, DIGITS - 1 - int(np.floor(np.log10(largest))))
    return np.where(described.forward(short) == numbers, short, high)


def _labels(described: CategoricalEncoding, grid: Grid) -> np.ndarray:
    if grid is None:
        values = np.empty(int((described.counts > 0).sum()), dtype=object)
        values[:] = [label for label, count in zip(described.categories, described.counts, strict=True) if count > 0]
        return values
    if isinstance(grid, int | np.integer | str):
        raise InputTypeError(f"grid: expected a list of labels of column {described.name!r}, got {grid!r}.")
    cells = np.empty(len(grid), dtype=object)
    cells[:] = list(grid)
    return column_of_cells("grid", described.name, cells, labels=True).values


POINTS = 100
SURFACE_POINTS = 30
# The unit of effects, unless another is given.
UNIT = "linear predictor"


@final
@dataclass(frozen=True, eq=False)
class MissingEffect:
    """The effect of a missing value: scalars where there is one output, (C,) where there are several.

    Attributes:
        mean: of the effect.
        sd: its standard deviation under the posterior; 0 for a point.
        low: the lower end of its interval.
        high: its upper end.
        density: the share of the data that has no value.
    """

    mean: np.ndarray
    sd: np.ndarray
    low: np.ndarray
    high: np.ndarray
    density: float


@final
@dataclass(frozen=True, eq=False)
class Effect:
    """The effect of one feature: of shape (n,) where there is one output, (n, C) where there are several.

    Attributes:
        feature: its name.
        grid: numbers in the column's unit, or labels, shape (n,).
        mean: of the effect.
        sd: its standard deviation under the posterior; 0 for a point.
        low: the lower end of the pointwise interval.
        high: its upper end.
        density: the share of the data that is nearer to a point than to the others, or has its label, shape (n,).
        level: the interval's probability.
        categorical: whether the grid has labels.
        missing: where the feature has no value; ``None`` if it has one in all rows of the data.
        outputs: names of the outputs where there are several, such as the classes, if they are known.
        unit: what the effect is measured in.
        centred: whether its mean over the data is 0: not on the scale of the mean.
        steps: whether the grid holds some of a few values that the feature takes, such as 0 and 1 or whole numbers.
    """

    feature: str
    grid: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    low: np.ndarray
    high: np.ndarray
    density: np.ndarray
    level: float
    categorical: bool
    missing: MissingEffect | None
    outputs: tuple[str, ...] = ()
    unit: str = UNIT
    centred: bool = True
    steps: bool = False

    @notebook.shows
    def _repr_html_(self) -> str:
        what = f"{len(self.grid)} {'labels' if self.categorical else 'values'}, {100 * self.level:g} % band"
        picture = notebook.picture(notebook.plots().effect(self), f"The effect of {self.feature} on {self.unit}.")
        return notebook.card(f"Effect of {self.feature}: {what}", picture)


@final
@dataclass(frozen=True, eq=False)
class Surface:
    """The effect of two features: (n_a, n_b) where there is one output, (n_a, n_b, C) where there are several.

    Attributes:
        features: the two names.
        grid_a: numbers in the column's unit, or labels, shape (n_a,).
        grid_b: of the other feature, shape (n_b,).
        mean: of the effect.
        sd: its standard deviation under the posterior; 0 for a point.
        low: the lower end of the pointwise interval.
        high: its upper end.
        density: the share of the data that is nearest to each point, shape (n_a, n_b).
        level: the interval's probability.
        whole: whether the two features' own effects are part of it.
        outputs: names of the outputs where there are several, such as the classes, if they are known.
        unit: what the effect is measured in.
    """

    features: tuple[str, str]
    grid_a: np.ndarray
    grid_b: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    low: np.ndarray
    high: np.ndarray
    density: np.ndarray
    level: float
    whole: bool
    outputs: tuple[str, ...] = ()
    unit: str = UNIT

    @notebook.shows
    def _repr_html_(self) -> str:
        names, outputs = " and ".join(self.features), 1 if self.mean.ndim == 2 else self.mean.shape[2]
        picture = notebook.picture(notebook.plots().effect_surface(self), f"The effect of {names} on {self.unit}.")
        others = [
            notebook.note(f"The first of {outputs} outputs. plots.effect_surface(surface, output=1) draws another.")
        ]
        return notebook.card(f"Effect of {names}", picture, *others * (outputs > 1))


def effect(additive: Additive, feature: int | str, *, grid: Grid = None, level: float = 0.95) -> Effect:
    """The effect of a feature, with what the pairs that it is in say of it alone.

    Args:
        additive: a fitted model.
        feature: by name or position.
        grid: values of the column, NaN or ``None`` for a missing one, or how many numbers, evenly from the smallest to
            the largest seen. By default 100 numbers, or the labels that were seen, or the numbers that were seen where
            these are two, or at most 30 that are whole or recur.
        level: the probability of the interval at each point.

    Raises:
        OptionError: if there is no such feature.
        InputError: if a value of the grid cannot be computed with, or the level is not between 0 and 1.
        InputTypeError: if the grid holds labels where numbers belong, or the reverse.
    """
    axis = Axis.of(additive, feature, grid, POINTS)
    moments = _moments(additive, [axis], [(axis.feature,)], level)
    seen = additive.seen.features[axis.feature]
    density = shares(seen, axis.nearest(seen), len(axis.values))
    missing = _missing(additive, axis, level)
    steps = (
        not axis.categorical
        and stepped(additive, axis.feature)
        and bool(np.isin(axis.values, numbers_seen(additive, axis.feature)).all())
    )
    return Effect(axis.described.name, axis.values, *moments, density, level, axis.categorical, missing, steps=steps)


def surface(
    additive: Additive,
    pair: Sequence[int | str],
    *,
    grid: tuple[Grid, Grid] = (None, None),
    level: float = 0.95,
    whole: bool = False,
) -> Surface:
    """The effect of two features together, beyond their own effects or with them.

    Args:
        additive: a fitted model.
        pair: two features, by name or position, that the model has a term for.
        grid: of each, as for `effect`; 30 numbers by default.
        level: the probability of the interval at each point.
        whole: whether the features' own effects are added; else it is what no sum of effects of one feature tells.

    Raises:
        OptionError: if there is no such feature, or the model has no term for the pair.
        InputError: if these are not two features, a value of a grid cannot be computed with, or the level is not
            between 0 and 1.
        InputTypeError: if a grid holds labels where numbers belong, or the reverse.
    """
    if isinstance(pair, str) or len(pair) != 2:
        raise InputError(f"pair: expected two features, by name or position, got {pair!r}.")
    whole = checks.flag("whole", whole)
    a, b = (Axis.of(additive, *each, SURFACE_POINTS) for each in zip(pair, grid, strict=True))
    shape = (len(a.values), len(b.values))
    if a.feature == b.feature:
        raise InputError(f"pair: expected two different features, got {a.described.name!r} twice. Ask for its effect.")
    features = [(a.feature, b.feature), *([(a.feature,), (b.feature,)] if whole else [])]
    mean, sd, low, high = (
        moment.reshape(*shape, *moment.shape[1:]) for moment in _moments(additive, [a, b], features, level)
    )
    seen = additive.seen.values((a.feature, b.feature))
    near_a, near_b = a.nearest(seen), b.nearest(seen)
    places = np.where((near_a < 0) | (near_b < 0), -1, near_a * shape[1] + near_b)
    density = shares(seen, places, shape[0] * shape[1]).reshape(shape)
    names = (a.described.name, b.described.name)
    return Surface(names, a.values, b.values, mean, sd, low, high, density, level, whole)


def effect_covariance(
    additive: Additive, features: Sequence[int | str], *, grids: Sequence[Grid] | None = None
) -> np.ndarray:
    """The joint covariance of several effects at M points in all, those of one feature after those of another.

    By blocks, different features are independent; the full structure knows what they share.

    Args:
        additive: a fitted model.
        features: by name or position.
        grids: of each, as for `effect`.

    Returns:
        Shape (M, M) where there is one output, (M, C, M, C) where there are several; 0 for a point posterior.

    Raises:
        OptionError: if there is no such feature.
        InputError: if there is not one grid for each feature, or a value cannot be computed with.
        InputTypeError: if a grid holds labels where numbers belong, or the reverse.
    """
    grids = [None] * len(features) if grids is None else grids
    if len(features) == 0 or len(grids) != len(features):
        raise InputError(f"grids: expected one for each of at least one feature, got {len(grids)} for {len(features)}.")
    of_features: list[Jacobians] = []
    for feature, grid in zip(features, grids, strict=True):
        axis = Axis.of(additive, feature, grid, POINTS)
        read_once = read(additive, rows_over(additive, [axis]), [position_of(additive, (axis.feature,))])
        of_features += [block.jacobians[0] for block in read_once]
    # As one row with as many outputs as there are numbers in all, so that its covariance is the joint one.
    total = sum(_count(jacobians) for jacobians in of_features)
    placed, start = [], 0
    for jacobians in of_features:
        stop = start + _count(jacobians)
        placed.append({term: _placed(jacobian, start, total) for term, jacobian in jacobians.items()})
        start = stop
    joint, outputs = covariance(additive, together(placed))[0].numpy(), additive.model.outputs
    return joint if outputs == 1 else joint.reshape(total // outputs, outputs, total // outputs, outputs)


def level_effects(additive: Additive, feature: int, outputs: Sequence[str] = ()) -> pd.DataFrame:
    """The effects of a column's labels as deviations from the population, N(0, 1/δ) before the data.

    Returns:
        The columns ``group``, ``level``, ``output`` (of several), ``mean``, ``sd`` and ``rows``: how many rows of the
        fit have the level, by their weights. "unseen" stands for any other label, with the population's sd.
    """
    described = additive.encoding.features[feature]
    assert isinstance(described, CategoricalEncoding)
    model, term = additive.model, position_of(additive, (feature,))
    # θ is (levels, outputs) row-major; the last levels of a family fill up.
    weights = torch.diag(model.scale.repeat(len(model.indices[term]) // model.outputs)).unflatten(
        0, (-1, model.outputs)
    )
    jacobian = contrasted(additive, weights[: len(described.levels)], 1)
    sd = variance(additive, {term: jacobian}).sqrt()
    mean = jacobian @ additive.posterior.location[model.indices[term]]
    rows = np.array([*described.counts, described.missing, 0])
    seen = (rows > 0) | (np.array(described.levels) == "unseen")
    parts = {"mean": as_array(mean)[seen], "sd": as_array(sd)[seen]}
    rows = np.repeat(rows[seen], 1 if model.outputs == 1 else model.outputs)
    keys = {"group": described.name, "level": np.array(described.levels, dtype=object)[seen]}
    return long_frame(keys, parts, outputs).assign(rows=rows)


def effect_draws(additive: Additive, feature: int, theta: Tensor) -> tuple[np.ndarray, Tensor]:
    """The values of a feature that `effect` has by default, shape (n,), and its effects at S draws, shape (S, n, C)."""
    axis = Axis.of(additive, feature, None, POINTS)
    moves, term = (theta - additive.posterior.location).mT, position_of(additive, (axis.feature,))
    found = [at_draws(additive, block, 0, moves) for block in read(additive, rows_over(additive, [axis]), [term])]
    none = moves.new_empty(0, additive.model.outputs, moves.shape[1])
    return axis.values, torch.cat([none, *found]).movedim(-1, 0)


def long_frame(keys: Mapping[str, object], parts: Mapping[str, np.ndarray], outputs: Sequence[object]) -> pd.DataFrame:
    """One line for each of n keys and, where parts are (n, C) and not (n,), for each output."""
    rows, *several = next(iter(parts.values())).shape
    frame = pd.DataFrame(dict(keys), index=range(rows))
    for count in several:
        names = np.array(outputs or range(count), dtype=object)
        frame = frame.loc[frame.index.repeat(count)].assign(output=np.tile(names, rows))
    return frame.assign(**{name: part.ravel() for name, part in parts.items()}).reset_index(drop=True)


def as_array(values: Tensor) -> np.ndarray:
    """As an array, without the last axis where there is one output."""
    array = values.numpy()
    return array[..., 0] if array.shape[-1] == 1 else array


def _moments(
    additive: Additive, axes: Sequence[Axis], features: Sequence[tuple[int, ...]], level: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Mean, sd and interval of the sum of the terms of some features over a grid, shape (n[, C]) each."""
    checks.fraction("level", level)
    terms = [position_of(additive, some) for some in features]
    found = [torch.empty(4, 0, additive.model.outputs, dtype=torch.float64)]
    for block in read(additive, rows_over(additive, axes), terms):
        jacobians, mean = together(block.jacobians), block.means.sum(1)
        sd = variance(additive, jacobians).sqrt()
        found.append(torch.stack([mean, sd, *interval(additive, mean, sd, jacobians, level)]))
    mean, sd, low, high = torch.cat(found, 1)
    return as_array(mean), as_array(sd), as_array(low), as_array(high)


def _count(jacobians: Jacobians) -> int:
    """How many numbers f has, N K."""
    rows, outputs, _ = next(iter(jacobians.values())).shape
    return rows * outputs


def _placed(jacobian: Tensor, start: int, total: int) -> Tensor:
    """The numbers of a Jacobian (N, K, P) among those of one row, shape (1, total, P)."""
    row = jacobian.new_zeros(1, total, jacobian.shape[2])
    row[0, start : start + jacobian.shape[0] * jacobian.shape[1]] = jacobian.flatten(0, 1)
    return row


def _missing(additive: Additive, axis: Axis, level: float) -> MissingEffect | None:
    seen, nowhere = additive.seen.features[axis.feature], axis.missing()
    gone = float(shares(seen, nowhere.nearest(seen), 1)[0])
    if gone == 0:
        return None
    mean, sd, low, high = (moment[0] for moment in _moments(additive, [nowhere], [(axis.feature,)], level))
    return MissingEffect(mean, sd, low, high, gone)


Part = TypeVar("Part", Effect, MissingEffect)


def on_mean(additive: Additive, found: Effect) -> Effect:
    """An effect as E(y) where all other effects are 0, its band through the link.

    Of ordered classes it is the probability of each, (n, K), with all that it may be where f is inside its band.

    Raises:
        UnsupportedError: if E(y) is no function of one output, as of several classes.
    """
    likelihood, centre = additive.posterior.likelihood, additive.model.shift
    ordered = isinstance(likelihood, Ordinal)
    if likelihood is None or additive.model.outputs > 1 or not (ordered or likelihood.domain.elementwise):
        raise UnsupportedError(
            "scale: expected 'link' for several outputs, each of whose means depends on all of them, got 'mean'."
        )
    intercept = additive.posterior.location[-1] * additive.model.scale + centre
    through = partial(_through, likelihood, float(intercept[0]))
    missing = None if found.missing is None else through(found.missing)
    unit = "probability" if ordered else "y"
    return replace(through(found), missing=missing, unit=unit, outputs=(), centred=False)


def _through(likelihood: Likelihood, intercept: float, found: Part) -> Part:
    """The mean, sd and band of E(y∣f) for f ~ N(intercept + mean, sd²), of which the ends are those of f."""
    mean, sd, low, high = (torch.from_numpy(np.atleast_1d(v)) for v in (found.mean, found.sd, found.low, found.high))
    integral = likelihood.integral(None, 1)
    moments = likelihood.predictive((intercept + mean)[:, None], sd.square()[:, None, None], integral)
    at = _over_band(likelihood, intercept + low, intercept + high)
    values = torch.stack([moments.mean, moments.epistemic.sqrt(), at.amin(0), at.amax(0)])
    if not isinstance(likelihood, Ordinal):
        values = values[..., -1]
    mean_, sd_, low_, high_ = values.reshape(4, *found.mean.shape, *values.shape[2:]).numpy()
    return replace(found, mean=mean_, sd=sd_, low=low_, high=high_)


def _over_band(likelihood: Likelihood, low: Tensor, high: Tensor) -> Tensor:
    """E(y∣f) where it may be least and most for f between two ends, shape (n,), shape (S, n, K)."""
    places = [low, high]
    if isinstance(likelihood, Ordinal):  # a class between two others is most probable at the middle of its cutpoints
        cutpoints = likelihood.known("cutpoints")
        middles = 0.5 * (cutpoints[1:] + cutpoints[:-1])
        places += [torch.full_like(low, middle).clamp(low, high) for middle in middles.tolist()]
    return torch.stack([likelihood.conditional(f[:, None])[0] for f in places])
