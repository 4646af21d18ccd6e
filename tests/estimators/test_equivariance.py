"""Laws of the default options: no answer depends on units, origins, or the order of rows, columns and classes."""

from __future__ import annotations

import numpy as np
import pytest

from bayescope.estimators import BayesianLinearRegression, BayesianLogisticRegression

# Equivariance holds for Laplace's answer also where "auto" would not take it.
pytestmark = pytest.mark.filterwarnings("ignore:posterior='laplace'")

SEEDS = range(4)
CLOSE = {"rtol": 1e-8, "atol": 1e-8}


def table(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.random.Generator]:
    """Rows, columns of which two are alike, new rows, and f, with sizes that differ between seeds."""
    rng = np.random.default_rng(seed)
    rows, columns = int(rng.integers(15, 90)), int(rng.integers(2, 7))
    X = rng.standard_normal((rows + 9, columns)) * 10.0 ** rng.uniform(-3, 3, columns) + rng.normal(0, 5, columns)
    X[:, -1] = X[:, 0] + 0.3 * X[:, 0].std() * rng.standard_normal(len(X))
    f = (X - X.mean(0)) / X.std(0) @ rng.standard_normal(columns) + rng.standard_normal(len(X))
    return X[:rows], X[rows:], f[:rows], rng


def moved(X: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A unit and an origin for each column."""
    unit = 10.0 ** rng.uniform(-6, 6, X.shape[1]) * rng.choice([-1.0, 1.0], X.shape[1])
    return unit, unit * X.std(0) * rng.normal(0, 100, X.shape[1])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("y_at", [(10_000.0, 3_000.0), (-1.0, -1e-7), (1e5, 1.0)], ids=str)
def test_regression_does_not_depend_on_units_and_origins(seed: int, y_at: tuple[float, float]):
    X, new, y, rng = table(seed)
    weights = rng.integers(1, 4, len(y)).astype(float)
    origin, unit = y_at
    column_unit, column_origin = moved(X, rng)
    plain = BayesianLinearRegression().fit(X, y, sample_weight=weights)
    other = BayesianLinearRegression().fit(X * column_unit + column_origin, origin + unit * y, sample_weight=weights)
    mean, sd = plain.predict(new, return_std=True)
    other_mean, other_sd = other.predict(new * column_unit + column_origin, return_std=True)
    np.testing.assert_allclose((other_mean - origin) / unit, mean, **CLOSE)
    np.testing.assert_allclose(other_sd / abs(unit), sd, rtol=1e-8)
    # The flat prior of the intercept is per unit of y: one factor of the unit less than rows.
    change = -(weights.sum() - 1.0) * np.log(abs(unit))
    assert other.log_evidence_ == pytest.approx(plain.log_evidence_ + change, rel=1e-8)


@pytest.mark.parametrize(
    ("posterior", "classes", "seed"),
    [
        *(("laplace", classes, seed) for classes in (2, 3) for seed in SEEDS),
        *(("ep", 2, seed) for seed in SEEDS),
        ("variational", 2, 0),
        ("variational", 3, 1),
        ("mean_field", 3, 0),
    ],
)
def test_classification_does_not_depend_on_units_and_origins(posterior: str, classes: int, seed: int):
    X, new, f, rng = table(seed)
    y = np.digitize(f, np.quantile(f, np.arange(1, classes) / classes))
    unit, origin = moved(X, rng)
    plain = BayesianLogisticRegression(posterior=posterior).fit(X, y)
    other = BayesianLogisticRegression(posterior=posterior).fit(X * unit + origin, y)
    np.testing.assert_allclose(other.predict_proba(new * unit + origin), plain.predict_proba(new), **CLOSE)
    quantity = "log_evidence_" if posterior in ("laplace", "ep") else "elbo_"
    assert getattr(other, quantity) == pytest.approx(getattr(plain, quantity), rel=1e-8)


@pytest.mark.parametrize("seed", SEEDS)
def test_orders_of_rows_columns_and_classes_do_not_matter(seed: int):
    X, new, f, rng = table(seed)
    rows, columns = rng.permutation(len(X)), rng.permutation(X.shape[1])
    plain, other = BayesianLinearRegression().fit(X, f), BayesianLinearRegression().fit(X[rows][:, columns], f[rows])
    for ours, theirs in zip(
        other.predict(new[:, columns], return_std=True), plain.predict(new, return_std=True), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, **CLOSE)
    assert other.log_evidence_ == pytest.approx(plain.log_evidence_, rel=1e-8)
    y = np.digitize(f, np.quantile(f, [0.2, 0.5]))
    renamed = np.array([2, 0, 1])
    labelled = BayesianLogisticRegression(posterior="laplace").fit(X, y)
    mixed = BayesianLogisticRegression(posterior="laplace").fit(X[rows][:, columns], renamed[y[rows]])
    np.testing.assert_allclose(mixed.predict_proba(new[:, columns])[:, renamed], labelled.predict_proba(new), **CLOSE)
    assert mixed.log_evidence_ == pytest.approx(labelled.log_evidence_, rel=1e-8)


@pytest.mark.parametrize("standardize", [True, False])
def test_the_origin_may_be_a_billion_units_away(standardize: bool):
    """x + 1e9 keeps seven digits of x, and a fit loses none of them."""
    rng = np.random.default_rng(0)
    X = np.round(rng.standard_normal((60, 3)), 2)
    f = X @ [1.0, -2.0, 0.5] + 0.3 * rng.standard_normal(60)
    options = {"standardize": standardize}
    near, far = (BayesianLinearRegression(**options).fit(at, f).predict(at) for at in (X, X + 1e9))
    np.testing.assert_allclose(far, near, atol=1e-5)
    near, far = (
        BayesianLogisticRegression(posterior="laplace", **options).fit(at, f > 0).predict_proba(at)
        for at in (X, X + 1e9)
    )
    np.testing.assert_allclose(far, near, atol=1e-5)


@pytest.mark.parametrize("standardize", [True, False])
def test_constant_columns_change_nothing(standardize: bool):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((40, 2))
    f = X @ [1.0, -1.0] + 0.5 * rng.standard_normal(40)
    wide = np.column_stack([X, np.full(40, 0.1), np.full(40, 1e9)])
    options = {"standardize": standardize}
    for model, y, answer in (
        (BayesianLinearRegression(**options), f, "predict"),
        (BayesianLogisticRegression(posterior="laplace", **options), f > 0, "predict_proba"),
    ):
        plain, more = getattr(model.fit(X, y), answer)(X), getattr(model.fit(wide, y), answer)(wide)
        np.testing.assert_allclose(more, plain, atol=1e-9)
    alone = np.full((40, 1), 0.1)
    np.testing.assert_allclose(BayesianLinearRegression(**options).fit(alone, f).predict(alone), f.mean(), rtol=1e-9)
    rate = BayesianLogisticRegression(posterior="map", **options).fit(alone, f > 0).predict_proba(alone)[:, 1]
    np.testing.assert_allclose(rate, (f > 0).mean(), rtol=1e-3)


@pytest.mark.parametrize("value", [0.0, 3.0, -1e8])
def test_a_constant_target_is_predicted_as_it_is(value: float):
    X = np.random.default_rng(0).standard_normal((12, 2))
    with pytest.warns(UserWarning, match="y: expected numbers that vary, got the constant"):
        model = BayesianLinearRegression().fit(X, np.full(12, value))
    mean, sd = model.predict(X + 1.0, return_std=True)
    np.testing.assert_allclose(mean, value, rtol=1e-12, atol=1e-12)
    assert sd.max() < 1e-9 * (abs(value) or 1.0)


def test_a_class_of_few_rows_among_very_many_is_found():
    """A sample of the rows, where the climb begins, has none of the class."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30_000, 2))
    y = np.zeros(30_000, dtype=int)
    y[[101, 202, 303]] = 1
    model = BayesianLogisticRegression(posterior="map", prior_precision=1.0).fit(X, y)
    assert model.predict_proba(X)[:, 1].mean() == pytest.approx(1e-4, rel=0.05)  # the prior of f moves it


@pytest.mark.parametrize("seed", SEEDS)
def test_without_an_intercept_f_is_zero_at_the_origin_of_the_columns_as_given(seed: int):
    """Standardising then scales the columns and does not move them: units change nothing, and origins do."""
    X, new, _, rng = table(seed)
    shift = X.std(0) - X.mean(0)
    X, new = X + shift, new + shift
    y = X @ (rng.standard_normal(X.shape[1]) / X.std(0)) + 0.1 * rng.standard_normal(len(X))
    unit, _ = moved(X, rng)
    plain = BayesianLinearRegression(fit_intercept=False).fit(X, y)
    other = BayesianLinearRegression(fit_intercept=False).fit(X * unit, y)
    np.testing.assert_allclose(other.predict(new * unit), plain.predict(new), **CLOSE)
    np.testing.assert_allclose(plain.predict(np.zeros((1, X.shape[1]))), 0.0, atol=1e-9)
    assert plain.score(X, y) > 0.9
    proba = BayesianLogisticRegression(posterior="laplace", fit_intercept=False).fit(X, y > np.median(y))
    np.testing.assert_allclose(proba.predict_proba(np.zeros((1, X.shape[1]))), 0.5, atol=1e-9)
