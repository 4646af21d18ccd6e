"""The terms of an additive model: which features each summand reads, and as what numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError, OptionError
from bayescope.storage import stored
from bayescope.tables.encoding import NO_LEVEL, CategoricalEncoding, Encoded, TableEncoding

# How many indicators describe a categorical feature in a pair; the rarest categories share the last one.
SLOTS = 8


@stored("additive_column")
@final
@dataclass(frozen=True, eq=False)
class FeatureInput:
    """How a net reads one feature: as its number, or as indicators of its categories.

    Attributes:
        feature: its position in the table.
        slots: for a categorical feature, the indicator that each level switches on, −1 for a level that none tells
            (missing, unseen); ``None`` for a number.
        width: how many inputs of the net it takes.
    """

    feature: int
    slots: tuple[int, ...] | None = None
    width: int = 1

    def read(self, rows: EncodedRows) -> tuple[Tensor, Tensor]:
        """Inputs of shape (N, width), and which rows have none, shape (N,)."""
        levels = rows.levels[:, self.feature]
        if self.slots is None:
            return rows.values[:, self.feature, None], levels != NO_LEVEL
        slot = torch.tensor(self.slots, device=levels.device)[levels]
        switched = slot[:, None] == torch.arange(self.width, device=levels.device)
        return switched.to(rows.values), slot < 0


@stored("additive_term")
@final
@dataclass(frozen=True, eq=False)
class Term:
    """One summand of an additive model: the effect of a feature, or of a pair beyond their own.

    Attributes:
        name: the feature's, or "a & b".
        columns: how each of its features is read, one or two.
    """

    name: str
    columns: tuple[FeatureInput, ...]

    @property
    def features(self) -> tuple[int, ...]:
        """The positions of the term's features in the table."""
        return tuple(column.feature for column in self.columns)

    @property
    def width(self) -> int:
        """How many numbers a net of this term reads."""
        return sum(column.width for column in self.columns)

    def read(self, rows: EncodedRows) -> tuple[Tensor, Tensor]:
        """Inputs (N, width), 0 in rows where a feature is missing, and which rows those are, shape (N,)."""
        inputs, absent = zip(*[column.read(rows) for column in self.columns], strict=True)
        gone = torch.stack(absent).any(0)
        return torch.cat(inputs, 1).masked_fill(gone[:, None], 0.0), gone


@final
@dataclass(frozen=True, eq=False)
class EncodedRows:
    """Encoded rows as an additive model takes them.

    Attributes:
        values: shape (N, D), float64; 0 where there is no number.
        levels: shape (N, D), int64; −1 where the number counts.
        offset: added to the outputs as it is (the log of an exposure, a baseline), shape (N, C), or ``None``.
    """

    values: Tensor
    levels: Tensor
    offset: Tensor | None = None

    @classmethod
    def of(cls, encoded: Encoded, offset: Tensor | None = None) -> EncodedRows:
        """The rows of an encoded table."""
        return cls(torch.from_numpy(encoded.values), torch.from_numpy(encoded.levels), offset)

    def __len__(self) -> int:
        return self.values.shape[0]

    def __getitem__(self, rows: slice | Tensor) -> EncodedRows:
        offset = None if self.offset is None else self.offset[rows]
        return EncodedRows(self.values[rows], self.levels[rows], offset)


def feature_position(option: str, feature: object, names: Sequence[str]) -> int:
    """The position of a feature that an option names, or gives the position of.

    Raises:
        OptionError: if no feature has this name.
        InputError: if the position is not one of the table's.
    """
    if isinstance(feature, str):
        if feature not in names:
            raise OptionError.unknown(option, feature, names)
        return list(names).index(feature)
    position = checks.count(option, feature, least=0)
    if position >= len(names):
        raise InputError(f"{option}: expected a name or a position from 0 to {len(names) - 1}, got {position}.")
    return position


def feature_term(encoding: TableEncoding, feature: int) -> Term:
    """The effect of one feature by its number or, of a categorical one, by its levels."""
    return Term(encoding.features[feature].name, (FeatureInput(feature),))


def pair_term(encoding: TableEncoding, pair: Sequence[int]) -> Term:
    """The effect that two features have together."""
    names = " & ".join(encoding.features[feature].name for feature in pair)
    return Term(names, tuple(_paired(encoding, feature) for feature in pair))


def _paired(encoding: TableEncoding, feature: int) -> FeatureInput:
    described = encoding.features[feature]
    if not isinstance(described, CategoricalEncoding):
        return FeatureInput(feature)
    order = np.argsort(-described.counts, kind="stable")
    slots = np.full(len(described.levels), -1)
    slots[order] = np.minimum(np.arange(len(order)), SLOTS - 1)
    return FeatureInput(feature, tuple(slots.tolist()), max(1, min(len(order), SLOTS)))
