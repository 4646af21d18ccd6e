"""Rows with missing values: predictions are integrated over what the training rows say of these values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from bayescope.errors import UnsupportedError
from bayescope.latent import Latent
from bayescope.network.inputs import leaves
from bayescope.quadrature import normal_nodes

# Up to this many directions of uncertainty have a pair of nodes each; more are covered by as many random signs.
MOST_DIRECTIONS = 128
# At least this many nodes of a function that bends.
BENT_NODES = 64
# Numbers in the inputs of all nodes that are predicted at once.
NODE_NUMBERS = 2**20


@final
@dataclass(frozen=True, eq=False)
class Missing:
    """The rows that lack values, and what the training rows say of these.

    Attributes:
        rows: which rows they are, ascending, shape (n,).
        lacking: whether a row lacks the value of a column, bool of shape (n, K).
        columns: the names of the K columns.
        numbers: the rows before `mapped`, with stand-ins for the missing values, shape (n, E).
        mapped: makes the model's inputs of numbers, shape (M, E).
        changes: what is added to the numbers of a row that lacks some values, bool of shape (K,), at each of M equally
            weighted nodes, shape (M, E).
    """

    rows: np.ndarray
    lacking: np.ndarray
    columns: tuple[str, ...]
    numbers: np.ndarray
    mapped: Callable[[np.ndarray], Any]
    changes: Callable[[np.ndarray], np.ndarray]

    def taken(self, start: int, stop: int) -> Missing | None:
        """Those of the rows from start to stop, counted from there; ``None`` where no row lacks a value."""
        some = (self.rows >= start) & (self.rows < stop)
        if not some.any():
            return None
        return replace(self, rows=self.rows[some] - start, lacking=self.lacking[some], numbers=self.numbers[some])

    def note(self) -> str:
        """How many values of which columns are missing."""
        counts = {name: int(count) for name, count in zip(self.columns, self.lacking.sum(0), strict=True) if count}
        listed = ", ".join(f"{name} ({count})" for name, count in counts.items())
        return (
            f"{sum(counts.values()):,} values in {len(self.rows):,} rows, by column {listed}: what the training rows "
            "have there is part of the epistemic variance"
        )

    def nodes(self) -> Iterator[tuple[np.ndarray, Any, np.ndarray]]:
        """Rows in blocks, each row at equally weighted nodes of what it lacks.

        Yields:
            The block's places among `rows`, shape (b,), the model's inputs at all its nodes, M rows, and for each
            node the row's place in the block, shape (M,).
        """
        patterns, pattern_of = np.unique(self.lacking, axis=0, return_inverse=True)
        places: list[np.ndarray] = []
        inputs: list[np.ndarray] = []
        room = NODE_NUMBERS
        for pattern, lacking in enumerate(patterns):
            changes = self.changes(lacking)
            size = max(1, NODE_NUMBERS // changes.size)
            rows = np.flatnonzero(pattern_of.ravel() == pattern)
            for start in range(0, len(rows), size):
                some = rows[start : start + size]
                if len(some) * changes.size > room and places:
                    yield self._block(places, inputs)
                    places, inputs, room = [], [], NODE_NUMBERS
                places.append(some)
                inputs.append(self.numbers[some][:, None] + changes)
                room -= len(some) * changes.size
        yield self._block(places, inputs)

    def _block(self, places: list[np.ndarray], inputs: list[np.ndarray]) -> tuple[np.ndarray, Any, np.ndarray]:
        counts = np.concatenate([np.full(len(part), part.shape[1]) for part in inputs])
        joined = np.concatenate([part.reshape(-1, part.shape[2]) for part in inputs])
        return np.concatenate(places), self.mapped(joined), np.repeat(np.arange(len(counts)), counts)


@final
@dataclass(frozen=True, eq=False)
class Spread:
    """Changes of numbers that have the mean 0 and the second moments of training rows about the stand-ins.

    Attributes:
        owners: the column that each number is made of, shape (E,).
        moments: the mean of (x − s)(x − s)ᵀ over the training rows, s being the stand-ins, shape (E, E); its diagonal,
            shape (E,), where there are very many numbers.
        linear: whether the model's f is linear in the numbers.
    """

    owners: np.ndarray
    moments: np.ndarray
    linear: bool

    def __call__(self, lacking: np.ndarray) -> np.ndarray:
        """The changes of a row that lacks the values of some columns, shape (M, E)."""
        at = np.flatnonzero(lacking[self.owners])
        if self.moments.ndim == 1:
            values, vectors = self.moments[at], np.eye(len(at))
        else:
            values, vectors = np.linalg.eigh(self.moments[np.ix_(at, at)])
        # Rounding leaves zeros as ±1e-17 of the largest eigenvalue.
        real = values > len(at) * np.finfo(np.float64).eps * values.max()
        nodes = standard_nodes(int(real.sum()), self.linear) if real.any() else np.zeros((1, 0))
        changes = np.zeros((len(nodes), len(self.owners)))
        changes[:, at] = nodes @ (vectors[:, real] * np.sqrt(values[real])).T
        return changes


def standard_nodes(directions: int, linear: bool) -> np.ndarray:
    """Equally weighted nodes of mean 0 and covariance I, shape (K, directions), so that linear functions are exact.

    For linear functions these are the 2 r points ±√r eᵢ of the cubature rule of degree 3 (Arasaratnam & Haykin 2009,
    eq. 17), for others quasi-random normal points and their negatives, whitened. More than `MOST_DIRECTIONS` directions
    have 2 `MOST_DIRECTIONS` points of random signs, whose covariance is I on average.
    """
    if directions > MOST_DIRECTIONS:
        signs = np.random.default_rng(0).choice([-1.0, 1.0], (MOST_DIRECTIONS, directions))
        return np.concatenate([signs, -signs])
    if linear:
        corners = np.sqrt(directions) * np.eye(directions)
        return np.concatenate([corners, -corners])
    half = max(BENT_NODES // 2, 1 << (2 * directions - 1).bit_length())
    points = normal_nodes(directions, half).numpy()
    whitened = points @ np.linalg.inv(np.linalg.cholesky(points.T @ points / half)).T
    return np.concatenate([whitened, -whitened])


@final
@dataclass(frozen=True, eq=False)
class InputRows:
    """Rows of a table as a model takes them.

    Attributes:
        values: the model's inputs, N rows.
        missing: the rows that lack values; ``None`` where no row does.
        offset: what is added to the outputs of each row, shape (N,) or (N, C); ``None`` for nothing.
    """

    values: Any
    missing: Missing | None = None
    offset: np.ndarray | None = None

    def shift(self, like: Tensor) -> Tensor | None:
        """The offset as a tensor of shape (N, 1) or (N, C) on another one's device; ``None`` for nothing."""
        if self.offset is None:
            return None
        return torch.from_numpy(self.offset.reshape(len(self.offset), -1)).to(like.device)

    def __len__(self) -> int:
        first = next(leaves(self.values), ())
        return len(first if hasattr(first, "__len__") else self.values)

    def __getitem__(self, rows: slice) -> InputRows:
        start, stop, _ = rows.indices(len(self))
        missing = None if self.missing is None else self.missing.taken(start, stop)
        return InputRows(self.values[rows], missing, None if self.offset is None else self.offset[rows])

    @cached_property
    def imputed(self) -> np.ndarray:
        """How many values each row lacks, shape (N,)."""
        counts = np.zeros(len(self), dtype=np.int64)
        if self.missing is not None:
            counts[self.missing.rows] = self.missing.lacking.sum(1)
        return counts


# Reads a table like the one that was fitted, for a posterior whose model takes numbers that were made of such tables.
TableReader = Callable[[Any], InputRows]


def require_no_reader(name: str, reader: TableReader | None) -> None:
    """Checks that a posterior's inputs are its model's own, as what needs their tensors asks.

    Args:
        name: what asks, for the message.
        reader: the posterior's.

    Raises:
        UnsupportedError: if the posterior is an estimator's, which reads tables.
    """
    if reader is not None:
        raise UnsupportedError(
            f"{name}: expected a posterior whose inputs are tensors, got an estimator's, which reads tables. Take "
            "dataclasses.replace(posterior, reader=None), whose inputs are the numbers that the preprocessing makes."
        )


def integrated(latent: Latent, missing: Missing, ask: Callable[[np.ndarray], Latent]) -> Latent:
    """The latent with the rows that lack values integrated over them.

    Args:
        latent: of all rows, with stand-ins for missing values.
        missing: what is missing.
        ask: from inputs to their latent, of the same kind.
    """
    device = latent.mean.device
    for places, inputs, owners in missing.nodes():
        rows, owner = (torch.from_numpy(each).to(device) for each in (missing.rows[places], owners))
        latent = latent.pooled(rows, ask(inputs), owner)
    return latent
