"""What an additive model is fitted to: rows with targets, in memory or in files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Tensor

from bayescope.additive.design import Design
from bayescope.additive.families import TermFamily
from bayescope.additive.margins import Margin
from bayescope.additive.passes import RowPasses, RowValues
from bayescope.additive.terms import EncodedRows, FeatureInput


class Observed(Protocol):
    """N rows, their targets, and the distinct points that terms read of them.

    Attributes:
        scale: the outputs' unit in that of the targets, shape (C,).
        shift: the outputs' zero, shape (C,).
        log_unit: log∣dy/d target∣, summed over the targets of a row: what each row takes off log Z in y's unit.
    """

    @property
    def scale(self) -> Tensor:
        """The unit of the outputs in that of the targets, shape (C,)."""

    @property
    def shift(self) -> Tensor:
        """The target where an output is 0, shape (C,)."""

    @property
    def log_unit(self) -> float:
        """The logarithm of y's unit in that of the targets, summed over the targets of a row."""

    @property
    def targets(self) -> RowValues:
        """Canonical, in units in which first weights of order 1 make sense: standard deviations of y."""

    @property
    def weights(self) -> RowValues:
        """Of the rows, shape (N,)."""

    @property
    def total(self) -> float:
        """The sum of the row weights, Σ w."""

    @property
    def offset(self) -> RowValues | None:
        """Shape (N, C), in the unit of the targets."""

    @property
    def passes(self) -> RowPasses:
        """How the rows are read."""

    @property
    def values(self) -> EncodedRows:
        """Rows in which each feature takes all the values that it has, whatever the others have."""

    def design(self, family: TermFamily) -> Design:
        """The distinct points of a family."""

    def margin(self, column: FeatureInput, generator: torch.Generator) -> Margin:
        """One feature in a few groups."""


@final
@dataclass(frozen=True, eq=False)
class RowsInMemory:
    """Rows in memory.

    Attributes:
        rows: encoded, their offset in the outputs' unit.
        targets: canonical.
        weights: of the rows, shape (N,).
        scale: the outputs' unit in that of the targets, shape (C,).
        shift: the outputs' zero, shape (C,).
        log_unit: log∣dy/d target∣, summed over the targets of a row.
    """

    rows: EncodedRows
    targets: Tensor
    weights: Tensor
    scale: Tensor
    shift: Tensor
    log_unit: float = 0.0

    @property
    def total(self) -> float:
        return float(self.weights.sum())

    @property
    def offset(self) -> Tensor | None:
        """In the unit of the targets."""
        return None if self.rows.offset is None else self.rows.offset / self.scale

    @property
    def passes(self) -> RowPasses:
        return RowPasses()

    @property
    def values(self) -> EncodedRows:
        return self.rows

    def design(self, family: TermFamily) -> Design:
        """The distinct points of a family."""
        return Design.of(family, self.rows, self.weights)

    def margin(self, column: FeatureInput, generator: torch.Generator) -> Margin:
        """One feature in a few groups."""
        return Margin.of(column, self.rows, self.weights, generator)
