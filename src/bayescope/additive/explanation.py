"""Explanations: what each term contributes to the prediction of a row, with intervals; they sum to the prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import pandas as pd
import torch

from bayescope import checks, notebook
from bayescope.additive.additive import Additive
from bayescope.additive.contributions import (
    at_draws,
    contrasted,
    intercept,
    interval,
    read,
    together,
    variance,
    width_of,
)
from bayescope.additive.effects import UNIT, as_array, long_frame
from bayescope.additive.terms import EncodedRows
from bayescope.errors import InputError
from bayescope.progress import PATIENCE_SECONDS, progress_bar
from bayescope.tables.columns import Column

# How the constant parts are called beside the terms.
INTERCEPT, OFFSET = "(intercept)", "(offset)"


@final
@dataclass(frozen=True, eq=False)
class Explanation:
    """N predictions as sums over T terms, in the unit of the linear predictor; [, C] where there are several outputs.

    Of a softmax, which sees differences of outputs alone, the mean over the classes is taken out of every part.

    Attributes:
        names: of the terms.
        values: what each term read, shape (N, T), tuples where it is a pair; ``None`` where no columns were given.
        contributions: shape (N, T[, C]), each with mean 0 over the data that were fitted.
        sds: their standard deviations under the posterior, (N, T[, C]); 0 for a point.
        low: the lower ends of their intervals.
        high: the upper ends.
        intercept: a number, or shape (C,): the mean prediction over the data.
        intercept_sd: its standard deviation.
        offset: given with the rows, shape (N[, C]).
        total: contributions, intercept and offset together, shape (N[, C]).
        total_sd: its standard deviation: parts may move against each other.
        total_low: the lower end of its interval.
        total_high: the upper end.
        level: the intervals' probability.
        outputs: names of the outputs where there are several, such as the classes, if they are known.
        unit: what all parts are measured in.
    """

    names: tuple[str, ...]
    values: np.ndarray | None
    contributions: np.ndarray
    sds: np.ndarray
    low: np.ndarray
    high: np.ndarray
    intercept: np.ndarray
    intercept_sd: np.ndarray
    offset: np.ndarray
    total: np.ndarray
    total_sd: np.ndarray
    total_low: np.ndarray
    total_high: np.ndarray
    level: float
    outputs: tuple[str, ...] = ()
    unit: str = UNIT

    def __len__(self) -> int:
        return len(self.total)

    @notebook.shows
    def _repr_html_(self) -> str:
        title = f"Explanation of {len(self):,} predictions" if len(self) != 1 else "Explanation of a prediction"
        if not len(self):
            return notebook.card(title)
        picture = notebook.picture(
            notebook.plots().explanation(self), "The terms of one prediction, the largest first."
        )
        several = notebook.note(
            "The first row. plots.explanation(explanation, row=1) draws another; as_frame() has all."
        )
        return notebook.card(title, picture, several * (len(self) > 1))

    def as_frame(self, outputs: Sequence[str] | None = None) -> pd.DataFrame:
        """One line for each row, part and, where there are several, output: contributions of a row sum to its total.

        Args:
            outputs: their names; by default those of the explanation, or 0, 1, ….

        Returns:
            Columns row, term, value, output (where there are several), contribution, sd, low, high. The intercept and,
            where there is one, the offset stand beside the terms.

        Raises:
            InputError: if there are not as many names as outputs.
        """
        count = 1 if self.contributions.ndim == 2 else self.contributions.shape[2]
        names = list(self.outputs if outputs is None else outputs) or [str(place) for place in range(count)]
        if len(names) != count:
            raise InputError(f"outputs: expected {count} names, got {len(names)}.")
        labels = [*self.names, INTERCEPT, *([OFFSET] if self.offset.any() else [])]
        rows, terms = len(self), len(labels)
        parts, sds = np.zeros((2, rows, len(self.names) + 2, *self.contributions.shape[2:]))
        parts[:, :-2], parts[:, -2], parts[:, -1] = self.contributions, self.intercept, self.offset
        sds[:, :-2], sds[:, -2] = self.sds, self.intercept_sd
        values = np.full((rows, terms), None, dtype=object)
        if self.values is not None:
            values[:, : len(self.names)] = self.values
        keys = {
            "row": np.repeat(np.arange(rows), terms),
            "term": np.tile(np.array(labels, dtype=object), rows),
            "value": values.ravel(),
        }
        half = width_of(self.level) * sds
        low, high = parts - half, parts + half
        low[:, :-2], high[:, :-2] = self.low, self.high
        columns = {"contribution": parts, "sd": sds, "low": low, "high": high}
        flat = {name: part[:, :terms].reshape(rows * terms, *part.shape[2:]) for name, part in columns.items()}
        return long_frame(keys, flat, names)


def explain(
    additive: Additive, rows: EncodedRows, *, columns: Sequence[Column] | None = None, level: float = 0.95
) -> Explanation:
    """The contribution of each term to the prediction of each row, by the linearised posterior.

    A missing value contributes the effect of a gap; what the value may be is part of the prediction's variance alone.

    Args:
        additive: a fitted model.
        rows: N encoded ones.
        columns: those that the rows were encoded from, so that the explanation can tell the features' own values.
        level: the probability of the intervals.

    Raises:
        InputError: if the level is not between 0 and 1.
    """
    model, wide = additive.model, width_of(level)
    terms, outputs = len(model.terms), model.outputs
    means = torch.empty(len(rows), terms, outputs, dtype=torch.float64)
    sds, spread = torch.empty_like(means), means.new_empty(len(rows), outputs)
    low, high = torch.empty_like(means), torch.empty_like(means)
    constant, of_constant = intercept(additive, 1)
    for block in read(additive, rows, range(terms)):
        means[block.rows] = block.means
        for term, jacobians in enumerate(block.jacobians):
            mean, sd = block.means[:, term], variance(additive, jacobians).sqrt()
            sds[block.rows, term] = sd
            low[block.rows, term], high[block.rows, term] = interval(additive, mean, sd, jacobians, level)
        constants = intercept(additive, len(block.means))[1]
        spread[block.rows] = variance(additive, together([*block.jacobians, constants]))
    constant_sd = variance(additive, of_constant)[0].sqrt()
    offset = means.new_zeros(len(rows), outputs) if rows.offset is None else contrasted(additive, rows.offset, -1)
    total_sd = as_array(spread.sqrt())
    total = as_array(means.sum(1) + constant + offset)
    return Explanation(
        tuple(term.name for term in model.terms), _values(additive, columns), as_array(means), as_array(sds),
        as_array(low), as_array(high), as_array(constant), as_array(constant_sd), as_array(offset),
        total, total_sd, total - wide * total_sd, total + wide * total_sd, level,
    )  # fmt: skip


def _values(additive: Additive, columns: Sequence[Column] | None) -> np.ndarray | None:
    """What each term read, shape (N, T)."""
    if columns is None:
        return None
    given = {column.name: column.values for column in columns}
    named = [given[name] for name in additive.encoding.names]
    terms = additive.model.terms
    values = np.empty((len(named[0]), len(terms)), dtype=object)
    for place, term in enumerate(terms):
        read_by = [named[feature] for feature in term.features]
        values[:, place] = read_by[0] if len(read_by) == 1 else list(zip(*read_by, strict=True))
    return values


DRAWS = 1000


@final
@dataclass(frozen=True, eq=False)
class Importance:
    """E_data ∣c_t(x)∣ of each term under the posterior, (T,) where there is one output, (T, C) where there are several.

    The mean absolute contribution over the rows that were fitted, by their weights, in the linear predictor's unit. As
    a mean of absolute values it is above 0 also where the band covers 0 everywhere: about 0.8 of the band's standard
    deviation. ``at_mean`` is that of the posterior mean's effect alone, which is close to 0 for such a term.

    Attributes:
        names: of the terms, pairs among them.
        mean: over the posterior.
        sd: its standard deviation.
        low: the lower end of its central interval.
        high: the upper end.
        at_mean: that of the effects' means.
        level: the interval's probability.
        outputs: names of the outputs where there are several, such as the classes, if they are known.
        unit: what contributions are measured in.
    """

    names: tuple[str, ...]
    mean: np.ndarray
    sd: np.ndarray
    low: np.ndarray
    high: np.ndarray
    at_mean: np.ndarray
    level: float
    outputs: tuple[str, ...] = ()
    unit: str = UNIT

    @property
    def order(self) -> np.ndarray:
        """The terms' positions, the most important first; of several outputs the one that a term moves most counts."""
        most = self.mean if self.mean.ndim == 1 else self.mean.max(1)
        return np.argsort(-most, kind="stable")

    @notebook.shows
    def _repr_html_(self) -> str:
        picture = notebook.picture(notebook.plots().importance(self), "The most important terms, with intervals.")
        return notebook.card(
            f"Importance of {len(self.names)} terms", picture, notebook.note("as_frame() gives this table.")
        )

    def as_frame(self) -> pd.DataFrame:
        """One line a term and, where there are several, output; the most important first."""
        columns = {"mean": self.mean, "sd": self.sd, "low": self.low, "high": self.high, "at_mean": self.at_mean}
        terms = np.array(self.names, dtype=object)[self.order]
        return long_frame({"term": terms}, {name: part[self.order] for name, part in columns.items()}, self.outputs)


def importance(
    additive: Additive, *, level: float = 0.95, draws: int = DRAWS, generator: torch.Generator | int | None = 0
) -> Importance:
    """The importance of each term, by draws of the weights of the linearised model.

    Args:
        additive: a fitted model.
        level: the probability of the interval.
        draws: of the weights.
        generator: a ``torch.Generator`` or a seed.

    Raises:
        InputError: if the level is not between 0 and 1, or there are no draws.
    """
    tail = 0.5 * (1.0 - checks.fraction("level", level))
    location, model = additive.posterior.location, additive.model
    moves = additive.posterior.sample(checks.count("draws", draws), generator=generator) - location
    moves = torch.cat([torch.zeros_like(location)[None], moves]).mT
    total = torch.zeros(len(model.terms), model.outputs, moves.shape[1], dtype=torch.float64)
    with progress_bar("computing", patience=PATIENCE_SECONDS) as report:
        for place, term in enumerate(model.terms):  # each at its own distinct points
            report(place, len(model.terms), f"the importance of {term.name}")
            values = additive.seen.values(term.features)
            for block in read(additive, values.rows(additive.encoding), [place]):
                if not any(bool(part.any()) for part in (block.means, *block.jacobians[0].values())):
                    continue  # switched off: 0 in every draw
                size = at_draws(additive, block, 0, moves).abs()
                total[place] += torch.tensordot(values.weights[block.rows], size, 1)
    point, over = (part := total.movedim(-1, 0) / additive.seen.features[0].weights.sum())[0], part[1:]
    ends = torch.quantile(over, torch.tensor([tail, 1.0 - tail], dtype=torch.float64), dim=0)
    sd = over.std(0, correction=0)
    names = tuple(term.name for term in model.terms)
    return Importance(
        names, as_array(over.mean(0)), as_array(sd), as_array(ends[0]), as_array(ends[1]), as_array(point), level
    )
