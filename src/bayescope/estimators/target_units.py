"""The unit of a regression's targets, in which models see them with mean 0 and variance 1, and its noise in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from bayescope import checks
from bayescope.errors import InputError
from bayescope.estimators.table_rows import TableRows
from bayescope.layers.outputs import Rescaled
from bayescope.likelihoods import Gaussian
from bayescope.tables.column_sums import NumbersSeen

# Numbers that differ by no more than this share of the largest are one number, but for rounding.
ROUNDING = 4.0 * np.finfo(np.float64).eps


@final
@dataclass(frozen=True, eq=False)
class Units:
    """The unit of the targets of a regression: y = shift + scale · z, for each of D columns.

    Attributes:
        shift: the means, shape (D,).
        scale: the standard deviations, 1 where there is none, shape (D,).
        rows: how many rows these are of.
        varies: whether no column is one number but for rounding.
    """

    shift: np.ndarray
    scale: np.ndarray
    rows: int
    varies: bool

    @classmethod
    def of(cls, rows: TableRows) -> Units:
        """Read the targets alone, once, less their offset.

        Raises:
            InputError: if no row counts, or the square of a target leaves floating point.
        """
        seen: list[NumbersSeen] = []
        largest = np.zeros(1)
        for block in rows.blocks(features=False):
            y = block.target.reshape(len(block), -1)
            around = y if block.offset is None else y - block.offset.reshape(len(block), -1)
            seen = seen or [NumbersSeen(rows.target_name) for _ in around.T]
            largest = np.maximum(largest, np.abs(y).max(0, initial=0.0))
            for numbers, column in zip(seen, around.T, strict=True):
                numbers.add(column, block.weights)
        parts = [part for part in rows.processes.gather((seen, largest)) if part[0]]
        if not any(part[0][0].size for part in parts):
            raise rows.nobody()
        columns = [reduce(NumbersSeen.joined, column) for column in zip(*(part[0] for part in parts), strict=True)]
        largest = np.maximum.reduce([part[1] for part in parts])
        farthest = max(column.farthest for column in columns)
        if farthest > checks.FARTHEST:
            raise InputError(
                f"{rows.target_name}: expected numbers whose squares are floats, got one of {farthest:.3g} in size. "
                "Divide them by a constant."
            )
        scales = [column.standard for column in columns]
        return cls(
            np.array([each.mean for each in scales]), np.array([each.scale for each in scales]), columns[0].size,
            all(column.range > ROUNDING * size for column, size in zip(columns, largest, strict=True)),
        )  # fmt: skip

    def standardised(self, targets: np.ndarray) -> Tensor:
        """z of y, shape (N, D)."""
        return torch.from_numpy((targets.reshape(len(targets), -1) - self.shift) / self.scale)

    def given(self, standardised: Tensor) -> Tensor:
        """y of z, shape (N, D)."""
        return standardised * torch.from_numpy(self.scale) + torch.from_numpy(self.shift)

    def notes(self) -> dict[str, str]:
        """What a summary says of them."""
        each = (
            f"less {shift:.6g}, divided by {scale:.6g}" for shift, scale in zip(self.shift, self.scale, strict=True)
        )
        return {"y inside the network": "; ".join(each)}

    def restored(self, network: nn.Sequential) -> nn.Sequential:
        """A network for z as one for y, of the same layers."""
        return nn.Sequential(*network, Rescaled.of(self.shift, self.scale))

    def maker(self, make: Callable[[int], nn.Sequential]) -> Callable[[int], nn.Sequential]:
        """The same for a function that makes networks from seeds."""
        return lambda seed: self.restored(make(seed))


def given_noise(noise_variance: object, scale: np.ndarray, rows: int) -> Gaussian | None:
    """The likelihood of standardised targets whose noise variance is given; ``None`` stands for "evidence".

    Args:
        noise_variance: in y's unit squared: "evidence", a positive number, or one for each column of y.
        scale: y's unit in standard deviations, shape (D,).
        rows: how many there are.

    Raises:
        InputError: if the noise variance is no positive number, nor one for each target, or is to be learnt of one row.
        OptionError: if it is another word than "evidence".
    """
    if isinstance(noise_variance, str):
        checks.choice("noise_variance", noise_variance, ["evidence"])
        refuse_one_row(rows)
        return None
    noise = checks.positive("noise_variance", noise_variance).numpy()
    if noise.shape not in ((), scale.shape):
        raise InputError(f"noise_variance: expected a number or {len(scale)} of them, got shape {noise.shape}.")
    standardised = noise / scale**2
    return Gaussian(standardised if len(standardised) > 1 else standardised[0])


def refuse_one_row(rows: int) -> None:
    """Refuses to learn a noise variance of a single row.

    Raises:
        InputError: in words that scikit-learn's check_estimator looks for.
    """
    if rows < 2:
        raise InputError(
            "X: Found array with 1 sample(s) while a minimum of 2 is required to learn how much y varies. Give a "
            "noise_variance."
        )
