"""How much each term moves the predictions over the data, with its uncertainty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import pandas as pd
import torch

from bayescope import checks
from bayescope.additive.additive import Additive
from bayescope.additive.contributions import at_draws, read
from bayescope.additive.effects import UNIT, as_array

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

    def as_frame(self) -> pd.DataFrame:
        """One line a term and, where there are several, output; the most important first."""
        outputs = 1 if self.mean.ndim == 1 else self.mean.shape[1]
        order = self.order
        columns = {"mean": self.mean, "sd": self.sd, "low": self.low, "high": self.high, "at_mean": self.at_mean}
        frame = pd.DataFrame(
            {
                "term": np.repeat(np.array(self.names, dtype=object)[order], outputs),
                "output": np.tile(np.array(self.outputs or range(outputs), dtype=object), len(order)),
                **{name: values[order].ravel() for name, values in columns.items()},
            }
        )
        return frame.drop(columns="output") if self.mean.ndim == 1 else frame


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
    for place, term in enumerate(model.terms):  # each at its own distinct points
        values = additive.seen.values(term.features)
        for block in read(additive, values.rows(additive.encoding), [place]):
            size = at_draws(additive, block, 0, moves).abs()
            total[place] += torch.tensordot(values.weights[block.rows], size, 1)
    point, over = (part := total.movedim(-1, 0) / additive.seen.features[0].weights.sum())[0], part[1:]
    ends = torch.quantile(over, torch.tensor([tail, 1.0 - tail], dtype=torch.float64), dim=0)
    sd = over.std(0, correction=0)
    names = tuple(term.name for term in model.terms)
    return Importance(
        names, as_array(over.mean(0)), as_array(sd), as_array(ends[0]), as_array(ends[1]), as_array(point), level
    )
