"""A table on disk as an additive model is fitted to it: two passes over the features turn rows into codes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
import torch

from bayescope.additive.coded import CodedData, Codes
from bayescope.additive.design import MOST_POINTS
from bayescope.additive.passes import Computed
from bayescope.estimators.mapped_rows import Canonical
from bayescope.estimators.table_rows import TableRows
from bayescope.tables.codes import Coder, LabelCoder, NumberCoder
from bayescope.tables.column_sums import numeric_encoding
from bayescope.tables.columns import Kind
from bayescope.tables.encoding import Transform, transforms_of
from bayescope.tables.preprocessing import TableSeen
from bayescope.tables.row_files import RowFile
from bayescope.tables.suspicion import warn_of_text

NumericTransform: TypeAlias = Transform | Mapping[str, Transform]


@final
@dataclass(frozen=True, eq=False)
class Outputs:
    """The unit of an additive model's outputs.

    Attributes:
        scale: in that of the targets, shape (C,).
        shift: their zero, shape (C,).
        log_unit: log∣dy/d target∣, summed over the targets of a row.
    """

    scale: np.ndarray
    shift: np.ndarray
    log_unit: float = 0.0

    @classmethod
    def of_logits(cls, count: int) -> Outputs:
        """Of a classifier, whose outputs are taken as they are."""
        return cls(np.ones(count), np.zeros(count))


def coded(source: TableRows, values: Canonical, outputs: Outputs, numeric_transform: NumericTransform) -> CodedData:
    """Reads a table twice: what its columns hold, and the point of each value, which goes to a file.

    Args:
        source: the table.
        values: makes the likelihood's canonical form of targets.
        outputs: their unit.
        numeric_transform: of columns of numbers, as the estimators take it.

    Raises:
        InputError: if a column cannot be used.
        OptionError: if a transform or a column that it names is unknown.
    """
    processes = source.processes
    seen = TableSeen(source.kinds, scaling="quantile", encoding="ordinal")
    for count, block in enumerate(source.blocks()):
        if count == 0:
            warn_of_text(block.columns)
        if len(block):
            seen.add(block.columns, block.weights, block.rows)
    transforms = transforms_of(source.kinds, numeric_transform)
    coders = _coders(source.joined(seen), source.kinds, transforms)
    codes = Codes(len(coders), max(coder.points for coder in coders))
    targets: RowFile | None = None
    weights = RowFile() if source.weighted else None
    offset = None if source.roles[2] is None else RowFile((len(outputs.scale),))
    for block in source.blocks():
        canonical = values(block.target).numpy()
        targets = targets or RowFile(canonical.shape[1:], canonical.dtype)
        targets.append(canonical)
        if weights is not None:
            weights.append(block.weights)
        if offset is not None and block.offset is not None:
            offset.append(np.pad(block.offset, ((0, 0), (0, len(outputs.scale) - 1))) / outputs.scale)
        pairs = zip(coders, block.columns, strict=True)
        codes.append(np.stack([coder.codes(column, block.weights) for coder, column in pairs]))
    if not codes.rows or targets is None:
        raise source.nobody()
    sums = [[torch.from_numpy(part) for part in coder.sums()] for coder in coders]
    added = iter(processes.sum([part for parts in sums for part in parts]))
    features = tuple(
        coder.coded([next(added).numpy() for _ in parts]) for coder, parts in zip(coders, sums, strict=True)
    )
    return CodedData(
        features, codes, targets, Computed(_ones) if weights is None else weights, offset,
        torch.from_numpy(outputs.scale), torch.from_numpy(outputs.shift), outputs.log_unit, processes,
    )  # fmt: skip


def _ones(rows: slice) -> torch.Tensor:
    return torch.ones(rows.stop - rows.start, dtype=torch.float64)


def _coders(seen: TableSeen, kinds: Mapping[str, Kind], transforms: Mapping[str, Transform]) -> list[Coder]:
    """Of the columns, in the order of the table."""
    coders: dict[str, Coder] = {name: LabelCoder(encoding) for name, encoding in seen.labels().items()}
    numeric = [name for name, kind in kinds.items() if kind == "numeric"]
    for place, (name, known) in enumerate(zip(numeric, seen.known(), strict=True)):
        encoding = numeric_encoding(name, transforms[name], seen.moments, place, known)
        coders[name] = NumberCoder(encoding, known[0], seen.tallies[place].values is not None, MOST_POINTS)
    return [coders[name] for name in kinds]
