"""Linear models of a table on disk are those of the same rows in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import bayescope as bs
from bayescope.errors import InputError, InputTypeError, OptionError, UnsupportedError
from bayescope.estimators import MappedRows, TableRows
from tests.estimators.streamed import features, frame, opened, stored


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return frame(500)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, table: pd.DataFrame) -> Path:
    return stored(tmp_path_factory.mktemp("rows"), table)


def both(kind: Any, options: dict[str, Any], table: pd.DataFrame, folder: Path, target: str, weighted: bool):
    weights = table["w"] if weighted else None
    whole = kind(**options).fit(features(table), table[target], sample_weight=weights)
    streamed = kind(**options).fit(
        opened(folder, target, weighted=weighted), target, sample_weight="w" if weighted else None
    )
    return streamed, whole


def assert_same(ours: Any, theirs: Any) -> None:
    assert ours.weight_names_ == theirs.weight_names_
    assert ours.n_features_in_ == theirs.n_features_in_
    assert list(ours.feature_names_in_) == list(theirs.feature_names_in_)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-8, atol=1e-8)
    assert ours.summary() == theirs.summary()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("two", {"posterior": "map"}),
        ("two", {"prior_precision": "evidence", "standardize": True}),
        ("two", {"posterior": "variational", "class_weight": "balanced"}),
        ("two", {"posterior": "mean_field", "link": "probit", "encoding": "ordinal"}),
        ("two", {"features": "polynomial", "standardize": True}),
        ("cls", {"standardize": True, "class_weight": {"low": 2.0}}),
    ],
)
def test_classifiers(table: pd.DataFrame, folder: Path, target: str, options: dict[str, Any], weighted: bool):
    ours, theirs = both(bs.BayesianLogisticRegression, options, table, folder, target, weighted)
    assert ours.classes_.tolist() == theirs.classes_.tolist()
    assert_same(ours, theirs)
    if options.get("posterior", "laplace") == "laplace":
        assert ours.log_evidence_ == pytest.approx(theirs.log_evidence_, rel=1e-10)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"prior_precision": 2.0, "standardize": True},
        {"noise_variance": 9.0, "fit_intercept": False},
        {"features": "rbf", "standardize": True},
    ],
)
def test_regressions(table: pd.DataFrame, folder: Path, options: dict[str, Any], weighted: bool):
    ours, theirs = both(bs.BayesianLinearRegression, options, table, folder, "y", weighted)
    assert ours.log_evidence_ == pytest.approx(theirs.log_evidence_, rel=1e-9)
    np.testing.assert_allclose(
        ours.predict(features(table)), theirs.predict(features(table)), rtol=1e-6 if "features" in options else 1e-8
    )
    if "features" not in options:
        assert_same(ours, theirs)


def test_large_tables_are_read_in_blocks_and_small_ones_are_kept(folder: Path):
    source = TableRows.of(
        bs.BayesianLinearRegression(), opened(folder, "y", weighted=True), "y", "w", target=lambda y, _: np.asarray(y)
    )
    mapped = MappedRows.fit(source, scaling="standard", encoding="one_hot")
    kept, in_blocks = (mapped.table(lambda y: torch.tensor(y)[:, None], held_bytes=size) for size in (2**20, 0))
    assert kept.in_memory
    assert not in_blocks.in_memory
    assert (kept.count, kept.total) == (in_blocks.count, in_blocks.total)
    for _ in range(2):
        grams = [
            table.sum(lambda rows: (rows.features.mT @ rows.weighed(rows.targets),), size=1)[0]
            for table in (kept, in_blocks)
        ]
        torch.testing.assert_close(*grams, rtol=1e-12, atol=1e-9)


def test_columns_of_numbers_may_be_labels(table: pd.DataFrame, tmp_path: Path):
    few = table.assign(age=table["age"] // 10)
    path = stored(tmp_path, few)
    ours = bs.BayesianLogisticRegression(categorical=["age"]).fit(opened(path, "two"), "two")
    theirs = bs.BayesianLogisticRegression(categorical=["age"]).fit(features(few), few["two"])
    assert_same(ours, theirs)
    np.testing.assert_allclose(ours.predict_proba(opened(path, "two")), theirs.predict_proba(features(few)), atol=1e-10)


def test_a_fit_from_disk_is_saved_and_predicts_like_any_other(table: pd.DataFrame, folder: Path, tmp_path: Path):
    model = bs.BayesianLogisticRegression(standardize=True).fit(opened(folder, "cls"), "cls")
    again = bs.load(model.save(tmp_path / "m.bayes"))
    rows = features(table)
    np.testing.assert_array_equal(again.predict_proba(rows), model.predict_proba(rows))
    np.testing.assert_allclose(model.predict_proba(opened(folder, "cls")), model.predict_proba(rows), rtol=1e-12)
    assert (model.predict(opened(folder, "cls")) == model.predict(rows)).all()
    with pytest.raises(InputTypeError, match="X: expected a table in memory"):
        model.predict_distribution(opened(folder, "cls"))


def test_what_cannot_be_fitted_in_blocks_is_told(table: pd.DataFrame, folder: Path):
    for posterior in ("ep", "nuts", "metropolis"):
        with pytest.raises(UnsupportedError, match=f"got '{posterior}', which needs all rows in memory"):
            bs.BayesianLogisticRegression(posterior=posterior).fit(opened(folder, "two"), "two")
    with pytest.raises(UnsupportedError, match="encoding: expected 'one_hot' or 'ordinal'"):
        bs.BayesianLogisticRegression(encoding="target").fit(opened(folder, "two"), "two")
    with pytest.raises(InputTypeError, match="y: expected the name of a column"):
        bs.BayesianLogisticRegression().fit(opened(folder, "two"), table["two"])
    with pytest.raises(OptionError, match="y: expected one of"):
        bs.BayesianLinearRegression().fit(opened(folder, "y"), "yy")
    with pytest.raises(InputTypeError, match="column 'kind': expected numbers"):
        bs.BayesianLinearRegression().fit(opened(folder, "y"), "kind")


def test_a_missing_target_is_told_with_its_row(table: pd.DataFrame, tmp_path: Path):
    table.assign(y=table["y"].where(table.index != 437)).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(InputError, match="column 'y': expected a value in each row, got none in row 437"):
        bs.BayesianLinearRegression().fit(opened(tmp_path, "y"), "y")
