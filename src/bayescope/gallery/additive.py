"""Tables for the additive pictures, and their two models: the plain one and the one with learnt precisions."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from bayescope.additive.additive import Additive, AdditiveOptions, fit_additive
from bayescope.additive.observed import RowsInMemory
from bayescope.additive.terms import EncodedRows
from bayescope.likelihoods import Bernoulli, Gaussian
from bayescope.tables import Column, TableEncoding, read_table

# The plain model is trained with this weight decay for all of its weights, and the noise that the data have.
WEAK = 0.1


class Table(NamedTuple):
    """A table and what was measured.

    Attributes:
        columns: as they were read.
        encoding: of them.
        targets: y, shape (N,).
    """

    columns: list[Column]
    encoding: TableEncoding
    targets: np.ndarray

    @classmethod
    def of(cls, frame: pd.DataFrame, targets: np.ndarray) -> Table:
        """The columns of a frame, with the targets."""
        columns = read_table(frame)
        return cls(columns, TableEncoding.fit(columns), targets)

    @property
    def rows(self) -> EncodedRows:
        """As a model takes them."""
        return EncodedRows.of(self.encoding.encode(self.columns))


def regression(table: Table, *, plain: bool) -> Additive:
    """A Gaussian y: the plain additive model at its mode, or Laplace's posterior of one whose precisions are learnt."""
    y = torch.from_numpy(table.targets)
    mean, sd = y.mean(), y.std()
    data = RowsInMemory(
        table.rows, ((y - mean) / sd)[:, None], torch.ones_like(y), sd[None], mean[None], math.log(float(sd))
    )
    return fit_additive(table.encoding, data, Gaussian(0.5 if not plain else float(sd) ** -2), _options(plain))


def classification(table: Table, *, plain: bool) -> Additive:
    """A label of two: the plain additive model at its mode, or Laplace's posterior with learnt precisions."""
    likelihood = Bernoulli()
    one = torch.ones(1, dtype=torch.float64)
    weights = torch.ones(len(table.targets), dtype=torch.float64)
    data = RowsInMemory(table.rows, likelihood.targets(table.targets, 1), weights, one, 0 * one)
    return fit_additive(table.encoding, data, likelihood, _options(plain))


def _options(plain: bool) -> AdditiveOptions:
    return AdditiveOptions(posterior="map", prior_precision=WEAK) if plain else AdditiveOptions()
