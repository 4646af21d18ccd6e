"""A linear model's inputs from a table on disk: the sample that is looked at, and parts that processes read."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import bayescope as bs
from bayescope.errors import InputError
from bayescope.estimators import MappedRows, TableRows
from bayescope.linear import RowTable

ROWS = 400


@dataclass
class Threads:
    """Threads that stand for processes: who waits for another that does not come gets an error after five seconds."""

    rank: int
    count: int
    meeting: threading.Barrier
    told: list[Any]

    def gather(self, value: Any) -> list[Any]:
        self.told[self.rank] = value
        self.meeting.wait(5)
        everyone = pickle.loads(pickle.dumps(self.told))  # copies, as processes have them
        self.meeting.wait(5)
        return everyone

    def sum(self, tensors: list[Tensor]) -> list[Tensor]:
        return [sum(parts) for parts in zip(*self.gather(tensors), strict=True)]

    @contextmanager
    def agreed(self) -> Iterator[None]:
        yield
        self.gather(None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Only odd rows count, and most of them stand above: of the table's row numbers, a stride of two meets none."""
    source, rows = np.random.default_rng(0), np.arange(ROWS)
    x = source.normal(size=ROWS)
    weights = np.where((rows % 2 == 1) & ((rows < ROWS // 2) | (rows % 10 == 9)), 1.0, 0.0)
    table = pd.DataFrame({"x": x, "z": source.normal(size=ROWS), "y": x + source.normal(size=ROWS), "w": weights})
    table.to_parquet(tmp_path / "t.parquet")
    return tmp_path


def learnt(folder: Path, processes: Any = None, features: Any = "rbf", **options: int) -> MappedRows:
    table = bs.open_table(folder, block_rows=60)
    source = TableRows.of(bs.BayesianLinearRegression(), table, "y", "w", target=lambda y, _: np.asarray(y))
    source = source if processes is None else replace(source, processes=processes)
    given = {"features": features, "random_state": 0, "origin": "means", **options}
    return MappedRows.fit(source, scaling="standard", encoding="one_hot", **given)


def grams(table: RowTable) -> Tensor:
    """Sums of two passes."""
    for _ in range(2):
        (gram,) = table.sum(lambda part: (part.features.mT @ part.weighed(part.features),), size=1)
    return gram


def test_the_sample_is_of_rows_that_count(folder: Path) -> None:
    # Of the rows that count, every 10th: by their numbers in the table these would be rows of weight 0.
    inputs = learnt(folder, features=None, sample_rows=40).inputs
    assert 0.5 < inputs.scales[0] <= inputs.scales[1] < 1.5
    table = pd.read_parquet(folder)
    ours = bs.BayesianLinearRegression().fit(bs.open_table(folder), "y", sample_weight="w")
    theirs = bs.BayesianLinearRegression().fit(table[["x", "z"]], table["y"], sample_weight=table["w"])
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-9)
    table.assign(w=0.0).to_parquet(folder / "t.parquet")
    with pytest.raises(InputError, match="sample_weight: expected a weight above 0 in some row"):
        bs.BayesianLinearRegression().fit(bs.open_table(folder), "y", sample_weight="w")


def test_processes_of_unlike_parts_have_one_sample_and_one_sum(folder: Path) -> None:
    """One part would be held in memory and the other would not: they go the same way."""
    third = {"sample_bytes": 8 * ROWS * 2 // 3 + 1}  # every third row
    alone = learnt(folder, **third)
    width = len(alone.inputs.names)
    assert alone.sampled == -(-alone.rows // 3)
    meeting, told = threading.Barrier(2), [None, None]

    def part(rank: int) -> tuple[MappedRows, Tensor]:
        own = learnt(folder, Threads(rank, 2, meeting, told), **third)
        return own, grams(own.table(lambda y: torch.tensor(y)[:, None], held_bytes=8 * 60 * width))

    with ThreadPoolExecutor(2) as pool:
        parts = list(pool.map(part, range(2)))
    assert 8 * parts[0][0].rows * width > 8 * 60 * width > 8 * parts[1][0].rows * width
    expected = grams(alone.table(lambda y: torch.tensor(y)[:, None]))
    for own, gram in parts:
        assert own.sampled == alone.sampled
        torch.testing.assert_close(gram, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("estimator", "target"),
    [
        (bs.BayesianLinearRegression(), "y"),
        (bs.BayesianLogisticRegression(), "label"),
        (bs.BayesianMLPRegressor(hidden=(4,), epochs=3, random_state=0), "y"),
        (bs.BayesianMLPClassifier(hidden=(4,), epochs=3, random_state=0), "label"),
        (bs.NeuralAdditiveRegressor(hidden=4, epochs=20, random_state=0), "y"),
        (bs.NeuralAdditiveClassifier(hidden=4, epochs=20, random_state=0), "label"),
    ],
    ids=lambda each: type(each).__name__,
)
@pytest.mark.filterwarnings("ignore::bayescope.errors.BayescopeWarning")
def test_a_table_on_disk_is_predicted_as_the_same_rows_in_memory(estimator, target: str, tmp_path: Path):
    source = np.random.default_rng(0)
    X = pd.DataFrame({"a": source.normal(size=60), "b": source.choice(list("xyz"), 60)})
    y = X["a"] + (X["b"] == "x") + 0.1 * source.normal(size=60)
    estimator.fit(X, y if target == "y" else np.where(y > 0, "yes", "no"))
    X.to_parquet(tmp_path / "rows.parquet")
    on_disk = bs.open_table(tmp_path / "rows.parquet")
    if target == "y":
        np.testing.assert_allclose(estimator.predict(on_disk), estimator.predict(X), atol=1e-12)
    else:
        np.testing.assert_array_equal(estimator.predict(on_disk), estimator.predict(X))
        np.testing.assert_allclose(estimator.predict_proba(on_disk), estimator.predict_proba(X), atol=1e-12)
