"""Small fitted additive models: numbers with missing values, a category, and a pair."""

from __future__ import annotations

import functools
import math

import numpy as np
import pandas as pd
import torch

from bayescope.additive import Additive, AdditiveOptions, EncodedRows, RowsInMemory, fit_additive
from bayescope.likelihoods import Bernoulli, Categorical, Gaussian
from bayescope.tables import TableEncoding, read_table

DOUBLE = torch.float64
ROWS = 160


def frame(rows: int = ROWS, seed: int = 0) -> pd.DataFrame:
    source = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "age": source.normal(50, 10, rows).round(),
            "dose": source.uniform(0, 1, rows),
            "kind": source.choice(["red", "green", "blue"], rows, p=[0.2, 0.3, 0.5]),
        }
    )
    table.loc[source.random(rows) < 0.1, "age"] = np.nan
    return table


def signal(table: pd.DataFrame) -> np.ndarray:
    age = (table["age"].fillna(55.0).to_numpy() - 50) / 8
    return np.sin(age) + (table["kind"] == "red").to_numpy() * 0.9 + 1.5 * (table["dose"].to_numpy() - 0.5) * age


def weights(rows: int = ROWS) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(1).integers(1, 4, rows).astype(np.float64))


@functools.cache
def fitted(kind: str = "gaussian", structure: str = "block", posterior: str = "laplace", pair: bool = True) -> Additive:
    """A fit in a second or less; weighted rows, targets of the kind of the likelihood."""
    table = frame()
    f, source = signal(table), np.random.default_rng(2)
    rows = encoded(table)
    options = AdditiveOptions(
        hidden=6, pair_hidden=6, interactions=[(0, 1)] if pair else 0, posterior=posterior, structure=structure
    )
    columns = read_table(table)
    encoding = TableEncoding.fit(columns)
    one = torch.ones(1, dtype=DOUBLE)
    if kind == "gaussian":
        y = f + 0.3 * source.normal(size=ROWS)
        mean, sd = y.mean(), y.std()
        targets = torch.from_numpy((y - mean) / sd)[:, None]
        data = RowsInMemory(rows, targets, weights(), sd * one, mean * one, math.log(sd))
        return fit_additive(encoding, data, Gaussian(0.5), options)
    if kind == "bernoulli":
        y = (source.random(ROWS) < 1 / (1 + np.exp(-2 * f))).astype(int)
        return fit_additive(
            encoding, RowsInMemory(rows, Bernoulli().targets(y, 1), weights(), one, 0 * one), Bernoulli(), options
        )
    y = np.digitize(f + 0.3 * source.normal(size=ROWS), [0.0, 0.8])
    three = torch.ones(3, dtype=DOUBLE)
    return fit_additive(
        encoding, RowsInMemory(rows, Categorical().targets(y, 3), weights(), three, 0 * three), Categorical(), options
    )


def encoded(table: pd.DataFrame, offset: torch.Tensor | None = None) -> EncodedRows:
    """Rows of a table, in the encoding of the one that was fitted."""
    encoding = TableEncoding.fit(read_table(frame()))
    return EncodedRows.of(encoding.encode(read_table(table)), offset)
