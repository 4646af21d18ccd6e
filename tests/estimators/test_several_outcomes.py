"""Several columns of y: each has its own unit, and columns that share nothing are fits of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import bayescope as bs
from bayescope.errors import InputError, UnsupportedError
from bayescope.estimators import BayesianGeneralizedLinearModel

# Laws hold for Laplace's answer also where "auto" would not take it.
pytestmark = pytest.mark.filterwarnings("ignore:posterior='laplace'")
RNG = np.random.default_rng(0)
X = RNG.standard_normal((80, 3)) * [1.0, 30.0, 0.01] + [0.0, 100.0, 0.0]
SCORES = (X - X.mean(0)) / X.std(0)
NUMBERS = SCORES @ [[1.0, 0.0], [0.5, 0.3], [0.0, -0.6]] + RNG.multivariate_normal(
    [2.0, -1.0], [[1, 0.7], [0.7, 1]], 80
)
COUNTS = RNG.poisson(np.exp(0.5 + 0.4 * SCORES[:, :2]) * RNG.gamma(2.0, 0.5, (80, 2))).astype(float)
MIXED = np.c_[NUMBERS[:, 0], COUNTS[:, 0], RNG.logistic(size=80) < SCORES[:, 2]]
CASES: dict[str, tuple[Any, list[Any], np.ndarray]] = {
    "joint": (bs.Joint(["gaussian", "negative_binomial", bs.Binomial(1)]), [*"gn", bs.Binomial(1)], MIXED),
    "gaussian": ("gaussian", ["gaussian"] * 2, NUMBERS * [1.0, 1e3]),
    "poisson": ("poisson", ["poisson"] * 2, COUNTS),
    "student_t": (
        bs.StudentT("evidence", 5.0),
        [bs.StudentT("evidence", 5.0)] * 4,
        np.c_[NUMBERS, NUMBERS[:, ::-1] ** 3],
    ),
    "gamma": ("gamma", ["gamma"] * 2, np.exp(NUMBERS)),
    "log_normal": ("log_normal", ["log_normal"] * 2, np.exp(NUMBERS * [1.0, 0.2])),
    "beta": ("beta", ["beta"] * 2, 1.0 / (1.0 + np.exp(-NUMBERS * [1.0, 0.3]))),
}
NAMES = {"g": "gaussian", "n": "negative_binomial"}


def fitted(likelihood: Any, y: object, x: object = X, **options: Any) -> Any:
    return BayesianGeneralizedLinearModel(likelihood=likelihood, **{"posterior": "laplace", **options}).fit(x, y)


def assert_apart(together: Any, alone: list[Any], new: object, y: np.ndarray) -> None:
    """A fit of all columns says of each what the fit of that column says.

    A search for hyperparameters ends within 1e-5 standard deviations of their maximum.
    """
    close = 1e-5 if together.likelihood_.hyperparameters else 1e-6
    p, each = together.predict_distribution(new), [one.predict_distribution(new) for one in alone]
    for d, q in enumerate(each):
        np.testing.assert_allclose(p.mean[:, d], q.mean[:, 0], rtol=close, atol=close * y[:, d].std())
        np.testing.assert_allclose(p.sd[:, d], q.sd[:, 0], rtol=close)
    log_prob = sum(q.log_prob(column) for q, column in zip(each, y.T, strict=True))
    np.testing.assert_allclose(p.log_prob(y), log_prob, rtol=close, atol=close)
    assert together.log_evidence_ == pytest.approx(sum(one.log_evidence_ for one in alone), abs=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_columns_that_share_nothing_are_fits_of_their_own(case: str) -> None:
    likelihood, parts, y = CASES[case]
    alone = [fitted(NAMES.get(part, part) if isinstance(part, str) else part, y[:, d]) for d, part in enumerate(parts)]
    model = fitted(likelihood, y)
    assert_apart(model, alone, X, y)
    np.testing.assert_allclose(model.prior_precision_, [one.prior_precision_ for one in alone], rtol=1e-4)


@pytest.mark.parametrize("options", [{"prior_precision": "ard"}, {"groups": "site"}], ids=str)
def test_relevance_and_random_effects_are_those_of_each_column(options: dict[str, Any]) -> None:
    table = pd.DataFrame(SCORES, columns=list("abc")).assign(site=RNG.integers(0, 5, 80).astype(str))
    y = NUMBERS * [1.0, 1e3] + RNG.standard_normal((5, 2))[table["site"].astype(int)] * [2.0, 0.0]
    model, alone = fitted("gaussian", y, table, **options), [fitted("gaussian", each, table, **options) for each in y.T]
    assert_apart(model, alone, table, y)
    report = model.relevance()
    for d, one in enumerate(alone):
        mine = report[report["class"] == f"y{d}"].drop(columns="class").set_index("feature").sort_index()
        pd.testing.assert_frame_equal(mine, one.relevance().set_index("feature").sort_index(), rtol=1e-4, atol=1e-6)
        for name, precision in one.group_precision_.items():
            assert model.group_precision_[name][d] == pytest.approx(precision, rel=1e-4)


@pytest.mark.parametrize("likelihood", ["gaussian", "multivariate", "student_t", "joint"])
def test_units_origins_and_the_order_of_the_columns_change_nothing(likelihood: str) -> None:
    kinds: dict[str, Any] = {
        "multivariate": bs.MultivariateGaussian(),
        "student_t": bs.StudentT("evidence", 5.0),
        "joint": bs.Joint(["gaussian", "gaussian", bs.Binomial(1)]),
    }
    kind, more = kinds.get(likelihood, likelihood), MIXED[:, 2:] if likelihood == "joint" else MIXED[:, :0]
    unit, origin = np.array([1e3, -1e-4]), np.array([5e4, 1.0])
    plain = fitted(kind, np.c_[NUMBERS, more]).predict_distribution(X)
    y = NUMBERS * unit + origin
    moved = fitted(kind, np.c_[y, more]).predict_distribution(X)
    np.testing.assert_allclose((moved.mean[:, :2] - origin) / unit, plain.mean[:, :2], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(moved.sd[:, :2] / abs(unit), plain.sd[:, :2], rtol=1e-6)
    np.testing.assert_allclose(moved.mean[:, 2:], plain.mean[:, 2:], rtol=1e-6)
    change = -np.log(abs(unit)).sum()
    np.testing.assert_allclose(
        moved.log_prob(np.c_[y, more]), plain.log_prob(np.c_[NUMBERS, more]) + change, rtol=1e-6, atol=1e-6
    )
    turned = fitted(kind, np.c_[NUMBERS[:, ::-1], more]).predict_distribution(X)
    np.testing.assert_allclose(turned.mean[:, 1::-1], plain.mean[:, :2], rtol=1e-6, atol=1e-6)


def test_amounts_in_another_unit_and_counts_of_another_exposure_move_the_intercept_alone() -> None:
    for kind, y, unit in (("gamma", np.exp(NUMBERS), np.array([1e3, 1e-2])), ("poisson", COUNTS, np.array([40.0]))):
        plain, options = fitted(kind, y), {"exposure": np.full(80, 40.0)} if kind == "poisson" else {}
        model = BayesianGeneralizedLinearModel(likelihood=kind, posterior="laplace")
        moved = model.fit(X, y if options else y * unit, **options)
        np.testing.assert_allclose(moved.coef_, plain.coef_, rtol=1e-6, atol=1e-8)
        shift = -np.log(unit) if options else np.log(unit)
        np.testing.assert_allclose(moved.intercept_ - plain.intercept_, np.broadcast_to(shift, 2), rtol=1e-6)


def test_more_columns_than_rows_have_the_answer_of_each_column() -> None:
    wide = RNG.standard_normal((30, 45))
    y = wide[:, :2] * [2.0, 500.0] + RNG.standard_normal((30, 2)) * [1.0, 100.0]
    noise = [0.5, 1e4]
    model = fitted(bs.Gaussian(noise), y, wide)
    assert_apart(model, [fitted(bs.Gaussian(v), each, wide) for v, each in zip(noise, y.T, strict=True)], wide, y)


@pytest.mark.parametrize("likelihood", ["poisson", "negative_binomial"])
def test_a_column_of_zeros_has_the_intercept_that_it_has_alone(likelihood: str) -> None:
    """Without a prior an intercept among several would go to −∞: it has that of a column of zeros alone."""
    y = np.c_[COUNTS[:, 0], np.zeros(80)]
    model, alone = fitted(likelihood, y), fitted(likelihood, y[:, 1])
    assert model.intercept_[1] == pytest.approx(alone.intercept_, abs=1e-3)
    assert model.intercept_[0] == pytest.approx(fitted(likelihood, y[:, 0]).intercept_, abs=1e-5)
    assert "flat for 1 of 2 outputs" in model.summary()
    low, high = model.predict_distribution(X).interval(0.95, of="outcome")
    assert (low[:, 1] == 0).all()
    assert (high[:, 1] <= 1).all()


def test_amounts_of_zero_alone_leave_no_dispersion_to_learn() -> None:
    y = np.c_[np.exp(NUMBERS[:, 0]), np.zeros(80)]
    for estimator in (BayesianGeneralizedLinearModel, bs.BayesianMLPRegressor):
        with pytest.raises(InputError, match="got 0 in all rows of column 1"):
            estimator(likelihood="tweedie").fit(X, y)


@pytest.mark.filterwarnings("ignore:nuts. the chains have not mixed well")
@pytest.mark.parametrize("posterior", ["laplace", "variational", "mean_field", "nuts"])
@pytest.mark.parametrize("prior_precision", ["evidence", "ard"])
def test_features_that_tell_nothing_of_one_column_keep_their_weights_for_another(
    posterior: str, prior_precision: str
) -> None:
    y = np.c_[NUMBERS[:, 0], np.random.default_rng(3).standard_normal(80)]
    chains = {"draws": 150, "tune": 150, "chains": 1, "random_state": 0} if posterior == "nuts" else {}
    model = fitted("gaussian", y, posterior=posterior, prior_precision=prior_precision, **chains)
    off = np.broadcast_to(np.isinf(model.prior_precision_.reshape(2, -1)), (2, 3))
    assert off[1].sum() >= 2
    assert not off[0, 0]
    assert ((model.coef_ == 0.0) == off).all()
    assert len(model.coefficients()) == 2 + (~off).sum()
    truth = fitted("gaussian", y[:, 1], prior_precision=prior_precision).predict_distribution(X)
    p = model.predict_distribution(X)
    np.testing.assert_allclose(p.mean[:, 1], truth.mean[:, 0], atol=0.1)
    np.testing.assert_allclose(p.sd[:, 1], truth.sd[:, 0], rtol=0.1)


def test_a_sparse_prior_of_several_outcomes_is_refused() -> None:
    with pytest.raises(
        UnsupportedError, match=r"for 2 outcomes, which have units.*got 'horseshoe'.*Fit a model to each"
    ):
        fitted("gaussian", NUMBERS, prior_precision="horseshoe", posterior="auto")
