"""What memory does not hold is refused before it is made, whatever it is made for; what it holds is not."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import bayescope as bs
from bayescope.additive import additive
from bayescope.errors import MemoryBudgetError
from bayescope.estimators import inputs
from bayescope.memory import memory_limit

LABELS, ROWS = 300, 900


@pytest.fixture
def limited() -> Iterator[Callable[[int], None]]:
    """Sets how many bytes may be taken."""
    with ExitStack() as stack:
        yield lambda limit: stack.enter_context(memory_limit(limit))


def table(rows: int = ROWS) -> pd.DataFrame:
    """A column of many labels, and one of numbers."""
    rng = np.random.default_rng(0)
    labels = [f"record {k}" for k in np.arange(rows) % LABELS]
    return pd.DataFrame({"id": labels, "x": rng.standard_normal(rows), "y": rng.standard_normal(rows)})


ONE_HOT: dict[str, Callable[[], Any]] = {
    "linear": bs.BayesianLinearRegression,
    "logistic": bs.BayesianLogisticRegression,
    "network": lambda: bs.BayesianMLPRegressor(hidden=(3,), epochs=2, random_state=0),
}


@pytest.mark.parametrize("on_disk", [False, True], ids=["in memory", "on disk"])
@pytest.mark.parametrize("make", ONE_HOT.values(), ids=ONE_HOT)
def test_columns_of_labels_are_refused_before_they_are_encoded(
    make: Callable[[], Any],
    on_disk: bool,
    limited: Callable[[int], None],
    tmp_path: Path,
) -> None:
    frame, model = table(), make()
    if isinstance(model, bs.BayesianLogisticRegression):
        frame["y"] = np.where(frame["y"] > 0, "a", "b")
    frame.to_parquet(tmp_path / "t.parquet")
    opened = bs.open_table(tmp_path / "t.parquet") if on_disk else frame
    limited(inputs.COPIES * 8 * ROWS * LABELS)
    tracemalloc.start()
    try:
        with pytest.raises(MemoryBudgetError, match=r"with one for each label.* Column 'id' alone has 300 labels"):
            model.fit(opened, "y")
        assert tracemalloc.get_traced_memory()[1] < 8 * ROWS * LABELS
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("make", ONE_HOT.values(), ids=ONE_HOT)
def test_predictions_of_more_rows_than_memory_holds_are_refused(
    make: Callable[[], Any], limited: Callable[[int], None]
) -> None:
    frame, model = table(), make()
    y = frame["y"] > 0 if isinstance(model, bs.BayesianLogisticRegression) else frame["y"]
    model.fit(frame[["id", "x"]], y)
    limited(inputs.COPIES * 8 * 100 * (LABELS + 1))
    assert len(model.predict(frame[["id", "x"]].head(90))) == 90
    with pytest.raises(MemoryBudgetError, match="Predict fewer rows at once"):
        model.predict(frame[["id", "x"]])


@pytest.mark.parametrize("on_disk", [False, True], ids=["in memory", "on disk"])
def test_additive_terms_of_very_many_levels_are_refused(
    on_disk: bool, limited: Callable[[int], None], tmp_path: Path
) -> None:
    frame = table()
    frame.to_parquet(tmp_path / "t.parquet")
    limited(8 * (additive.JACOBIANS + additive.BLOCKS) * LABELS**2)
    model = bs.NeuralAdditiveRegressor(epochs=8, random_state=0)
    with pytest.raises(MemoryBudgetError, match=r"one of which has 30\d weights, .*Leave out 'id'"):
        model.fit(bs.open_table(tmp_path / "t.parquet") if on_disk else frame, "y")
    model.fit(frame[["x", "y"]], "y")


@pytest.mark.filterwarnings("ignore:metropolis:bayescope.errors.ConvergenceWarning")
@pytest.mark.parametrize("posterior", ["laplace", "map", "metropolis"])
def test_draws_that_memory_does_not_hold_are_refused(posterior: str, limited: Callable[[int], None]) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 3))
    options = {"draws": 300} if posterior == "metropolis" else {}
    model = bs.BayesianLogisticRegression(posterior=posterior, prior_precision=1.0, random_state=0, **options)
    q = model.fit(X, X[:, 0] + rng.standard_normal(60) > 0).posterior_
    limited(10**6)
    assert q.sample(1000).shape == (1000, 4)
    asked: list[Callable[[], Any]] = [
        lambda: q.sample(10**9),
        lambda: q.sample_functions(X, 10**9),
        lambda: model.predict_distribution(X).sample(10**9),
        lambda: model.to_arviz(draws=10**9) if posterior == "laplace" else q.sample(10**9),
    ]
    if posterior == "laplace":
        asked += [lambda: q.predict(X, method="sampled", samples=10**9)]
        asked += [lambda: q.predict(X, integral="monte_carlo", samples=10**9)]
    for ask in asked:
        with pytest.raises(MemoryBudgetError, match=r"draws of \d+ numbers each would take about .* Ask for fewer"):
            ask()


def test_chains_that_memory_does_not_hold_are_refused_before_they_begin(limited: Callable[[int], None]) -> None:
    X = np.random.default_rng(0).standard_normal((60, 3))
    limited(10**6)
    for posterior in ("nuts", "metropolis"):
        model = bs.BayesianLogisticRegression(posterior=posterior, prior_precision=1.0, draws=10**7, random_state=0)
        with pytest.raises(MemoryBudgetError, match="draws of 4 numbers each"):
            model.fit(X, X[:, 0] > 0)


def test_covariances_of_very_many_weights_are_refused(limited: Callable[[int], None]) -> None:
    rng = np.random.default_rng(0)
    q = bs.BayesianLinearRegression().fit(rng.standard_normal((40, 9)), rng.standard_normal(40)).posterior_
    limited(2000)
    with pytest.raises(MemoryBudgetError, match=r"a covariance of 10 × 10 numbers would take about 2\.4 kB"):
        _ = q.covariance


def test_a_network_of_more_columns_than_its_curvature_allows_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.random.default_rng(0).standard_normal((40, 400))
    monkeypatch.setattr(sys.modules["bayescope.curvature.plan"], "free_memory", lambda _: 8 * 400**2)
    model = bs.BayesianMLPRegressor(hidden=(3,), epochs=2, random_state=0)
    with pytest.raises(MemoryBudgetError, match=r"X: expected a network .* 400 inputs and hidden=\(3,\).*linear model"):
        model.fit(X, X[:, 0])
    assert not hasattr(model, "posterior_")
