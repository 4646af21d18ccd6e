"""Targets of a table on disk: labels as they are, however large, and numbers that can be computed with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import bayescope as bs
from bayescope.errors import InputError
from bayescope.estimators.labels import one_class
from bayescope.estimators.table_rows import TableRows
from bayescope.estimators.targets import Labels

SOURCE = np.random.default_rng(0)
X = pd.DataFrame({"x": SOURCE.normal(size=40)})


def opened(folder: Path, y: object) -> bs.TableDataset:
    X.assign(y=y).to_parquet(folder / "t.parquet")
    return bs.open_table(folder)


def rows_of(table: bs.TableDataset) -> TableRows:
    return TableRows.of(bs.BayesianLogisticRegression(), table, "y", None, target=one_class, labels=True)


@pytest.mark.parametrize("labels", [[2**63 + 1, 3], [-5, 2**53 + 1], [True, False], [0.5, 2.0], ["b", "a"]])
def test_labels_are_those_of_the_column(tmp_path: Path, labels: list[object]) -> None:
    y = np.array(labels * 20, dtype=np.uint64 if labels[0] == 2**63 + 1 else None)
    found, rows = Labels.of(rows_of(opened(tmp_path, y)), None)
    assert found.classes.tolist() == sorted(labels)  # type: ignore[type-var]
    (block,) = rows.blocks()
    np.testing.assert_array_equal(found.classes[block.target], y)


def test_one_truth_value_is_one_class(tmp_path: Path) -> None:
    source = rows_of(opened(tmp_path, True))
    with pytest.raises(InputError, match="at least two classes, got one class, True"):
        Labels.of(source, None)


def test_a_model_of_truth_values_is_reported(tmp_path: Path) -> None:
    y = (X["x"] + SOURCE.normal(size=40) > 0.0).to_numpy()
    model = bs.BayesianLogisticRegression().fit(opened(tmp_path, y), "y")
    assert model.predict(X).dtype == bool
    assert bs.report(model, X, y, out=tmp_path / "r.html", reference=None).stat().st_size > 0


@pytest.mark.parametrize("make", [bs.BayesianLinearRegression, bs.NeuralAdditiveRegressor, bs.BayesianMLPRegressor])
def test_numbers_whose_squares_are_none_are_told(tmp_path: Path, make: type) -> None:
    y = 1e200 * SOURCE.normal(size=40)
    with pytest.raises(InputError, match=r"y'?: expected numbers whose squares"):
        make().fit(opened(tmp_path, y), "y")
    if make is bs.BayesianLinearRegression:
        with pytest.raises(InputError, match="y: expected numbers whose squares"):
            make().fit(X, y)
