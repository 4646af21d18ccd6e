"""Tables of fewer rows than columns: the fit in the space of the rows is the fit to all columns."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import bayescope as bs
from bayescope.errors import BayescopeWarning, MemoryBudgetError
from bayescope.estimators import BayesianLinearRegression, BayesianLogisticRegression, linear, linear_posteriors
from bayescope.linear import RowSpace
from bayescope.memory import memory_limit
from bayescope.precision import DensePrecision, LowRankPrecision

ROWS, COLUMNS = 14, 23
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
EACH = np.linspace(0.3, 3.0, COLUMNS)
# So few rows are separable, and Laplace warns rightly that it predicts worse than its mode. The laws are of numbers.
harmful = pytest.mark.filterwarnings("ignore:posterior='laplace':bayescope.errors.BayescopeWarning")


def table(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of which two are equal, new rows, and f."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((ROWS + 5, COLUMNS)) + 1.0
    X[1] = X[0]
    f = X[:, :3].sum(1) + 0.5 * rng.standard_normal(len(X))
    return X[:ROWS], X[ROWS:], f[:ROWS]


def of_columns(monkeypatch: pytest.MonkeyPatch, model: Any, X: np.ndarray, y: np.ndarray, **options: Any) -> Any:
    """The same model, fitted to all columns as they are."""
    with monkeypatch.context() as patch:
        patch.setattr(RowSpace, "of", partial(lambda of, *a, **given: of(*a, **given | {"turned": False}), RowSpace.of))
        return model.fit(X, y, **options)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "options", [{}, {"prior_precision": EACH, "noise_variance": 0.3}, {"fit_intercept": False, "noise_variance": 0.2}],
    ids=["learnt", "one a column", "no intercept"],
)  # fmt: skip
def test_regression(seed: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    X, new, y = table(seed)
    weights = np.random.default_rng(seed).uniform(0.5, 2.0, ROWS)
    options = {"prior_precision": 0.7, **options} if options else options
    ours = BayesianLinearRegression(**options).fit(X, y, sample_weight=weights)
    theirs = of_columns(monkeypatch, BayesianLinearRegression(**options), X, y, sample_weight=weights)
    assert isinstance(ours.posterior_.precision, LowRankPrecision)
    assert isinstance(theirs.posterior_.precision, DensePrecision)
    assert ours.log_evidence_ == pytest.approx(theirs.log_evidence_, rel=1e-9)
    assert ours.effective_parameters_ == pytest.approx(theirs.effective_parameters_, rel=1e-7)
    np.testing.assert_allclose(ours.prior_precision_, theirs.prior_precision_, rtol=1e-6)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-8)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-8)
    for one, other in zip(ours.predict(new, return_std=True), theirs.predict(new, return_std=True), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-7)
    np.testing.assert_allclose(ours.posterior_.covariance, theirs.posterior_.covariance, rtol=1e-6, atol=1e-8)
    again = bs.load(ours.save(tmp_path / "m.bayes"))
    np.testing.assert_array_equal(again.predict(new, return_std=True), ours.predict(new, return_std=True))
    one, other = (each.posterior_.condition((new, np.arange(5.0))) for each in (ours, theirs))
    np.testing.assert_allclose(one.mean, other.mean, atol=1e-7)
    np.testing.assert_allclose(float(one.log_evidence()), float(other.log_evidence()), rtol=1e-7)


@harmful
@pytest.mark.parametrize(
    ("posterior", "classes"), [("map", 2), ("map", 3), ("laplace", 2), ("laplace", 3), ("variational", 2), ("ep", 2)]
)
@pytest.mark.parametrize("precision", [0.7, EACH], ids=["one", "one a column"])
def test_classification(posterior: str, classes: int, precision: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    X, new, f = table()
    y = np.digitize(f, np.quantile(f, np.arange(1, classes) / classes))
    options = {"posterior": posterior, "prior_precision": precision}
    ours = BayesianLogisticRegression(**options).fit(X, y)
    theirs = of_columns(monkeypatch, BayesianLogisticRegression(**options), X, y)
    np.testing.assert_allclose(ours.predict_proba(new), theirs.predict_proba(new), atol=1e-7)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-7)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-7)
    np.testing.assert_allclose(ours.posterior_.covariance, theirs.posterior_.covariance, atol=1e-7)
    assert ours.weight_names_ == theirs.weight_names_
    assert [line.split(":")[0] for line in ours.summary().splitlines()] == [
        line.split(":")[0] for line in theirs.summary().splitlines()
    ]


@harmful
def test_the_precision_that_laplaces_evidence_has_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    X, new, f = table(1)
    y = f > np.median(f)
    ours = BayesianLogisticRegression(posterior="laplace").fit(X, y)
    theirs = of_columns(monkeypatch, BayesianLogisticRegression(posterior="laplace"), X, y)
    assert ours.prior_precision_ == pytest.approx(theirs.prior_precision_, rel=1e-6)
    np.testing.assert_allclose(ours.predict_proba(new), theirs.predict_proba(new), atol=1e-7)


def test_independent_weights_stay_those_of_the_columns() -> None:
    X, _, f = table()
    model = BayesianLogisticRegression(posterior="mean_field", prior_precision=1.0).fit(X, f > np.median(f))
    covariance = model.posterior_.covariance
    torch.testing.assert_close(covariance, torch.diag(covariance.diagonal()))


@harmful
@pytest.mark.filterwarnings("ignore:metropolis:bayescope.errors.ConvergenceWarning")
def test_draws_have_the_prior_where_no_row_tells_of_a_weight() -> None:
    X, _, f = table()
    X[:, -1] = 0.0  # which leaves the weight of the last column alone
    options = {"prior_precision": np.append(EACH[:-1], 4.0), "random_state": 0}
    exact = BayesianLogisticRegression(posterior="laplace", **options).fit(X, f > np.median(f)).posterior_.covariance
    chains = BayesianLogisticRegression(posterior="metropolis", draws=1500, chains=4, **options)
    draws = chains.fit(X, f > np.median(f)).posterior_.draws
    assert draws.shape == (4, 1500, COLUMNS + 1)
    spread = draws.flatten(0, 1).T.cov()
    assert float(spread[COLUMNS - 1, COLUMNS - 1]) == pytest.approx(0.25, rel=0.1)
    torch.testing.assert_close(spread.diagonal()[:-1], exact.diagonal()[:-1], rtol=0.35, atol=0.0)


@final
class Squares(TorchDispatchMode):
    """Whether a matrix of a certain size is made inside."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.made = size, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        shapes = [leaf.shape for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        self.made |= (self.size, self.size) in shapes
        return out


def test_what_memory_does_not_hold_is_refused_before_it_is_made() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((60, 30)), rng.standard_normal(60)
    cases: list[tuple[Any, Any, int]] = [(BayesianLinearRegression(), y, linear.MATRICES)]
    for posterior in ("auto", "map", "laplace", "ep", "variational", "nuts", "metropolis"):
        for given in ({}, {"prior_precision": 1.0}):
            model = BayesianLogisticRegression(posterior=posterior, random_state=0, **given)
            cases.append((model, y > 0, linear_posteriors.MATRICES[posterior][not given]))
    for model, target, matrices in cases:
        free = 8 * matrices * 31**2
        refused = pytest.raises(MemoryBudgetError, match="a fit of 31 weights, with matrices of 31 × 31")
        with memory_limit(free - 1), Squares(31) as squares, refused:
            model.fit(X, target)
        assert not squares.made
    for model, target, matrices in (cases[0], cases[3]):
        with memory_limit(8 * matrices * 31**2), Squares(31) as squares:
            model.fit(X, target)
            assert squares.made
            model.fit(X[:15], target[:15])  # the space of the rows has room


# Run by a process of its own: the peak of its memory above what it had before the fit, in numbers of P² × 8 bytes.
PEAK = """
import resource, sys, warnings
import numpy as np
import bayescope as bs
warnings.simplefilter("ignore")
name, prior, columns = sys.argv[1], sys.argv[2], int(sys.argv[3])
rng = np.random.default_rng(0)
X = rng.standard_normal((columns + columns // 20, columns))
y = X @ rng.standard_normal(columns) > 2 * columns**0.5 * rng.standard_normal(len(X))
model = bs.BayesianLogisticRegression(posterior=name, prior_precision=float(prior) if prior != "evidence" else prior)
model.fit(X[:60, :5], y[:60])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model.fit(X, y)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((after - before) * 1024 / 8 / columns**2)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the unit of a process's peak differs between systems")
@pytest.mark.parametrize(("posterior", "prior"), [("laplace", "evidence"), ("variational", "1.0")])
def test_no_fit_takes_more_matrices_than_it_asks_for(posterior: str, prior: str) -> None:
    columns = 600 if posterior == "laplace" else 400
    arguments = [sys.executable, "-c", PEAK, posterior, prior, str(columns)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, env={**os.environ, **ONE_THREAD})
    asked = linear_posteriors.MATRICES[posterior][prior == "evidence"]
    # The columns made from the table, and 8 MB whatever the table's size.
    assert float(done.stdout) <= asked + 2.1 + 8e6 / 8 / columns**2


def test_the_default_leaves_out_what_memory_does_not_hold() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 8))  # separable: averaging over Laplace's posterior costs too much
    warned = pytest.warns(BayescopeWarning, match="would take too much memory for 27 weights")
    with memory_limit(8 * 50 * 27**2), warned:
        model = BayesianLogisticRegression(prior_precision=1e-3).fit(X, np.digitize(X[:, 0], [-0.5, 0.5]))
    assert model.posterior_.record.method == "laplace"


@pytest.mark.parametrize("share", [0.6, 0.9])
def test_what_memory_holds_is_not_refused(share: float) -> None:
    rng = np.random.default_rng(1)
    X, f = rng.standard_normal((80, 20)), rng.standard_normal(80)
    for model, target, matrices in (
        (BayesianLinearRegression(), f, linear.MATRICES),
        (BayesianLogisticRegression(posterior="laplace"), f > 0, linear_posteriors.MATRICES["laplace"][1]),
        (BayesianLogisticRegression(posterior="ep", prior_precision=1.0), f > 0, linear_posteriors.MATRICES["ep"][0]),
    ):
        with memory_limit(int(8 * matrices * 21**2 / share)):
            model.fit(X, target).predict(X)
