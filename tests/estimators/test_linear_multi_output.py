"""Linear regression of several columns of y: each column is a conjugate regression of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import TransformedTargetRegressor
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import cross_val_score
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import bayescope as bs
from bayescope.errors import BayescopeWarning, InputError, InputTypeError, UnsupportedError
from bayescope.estimators import BayesianLinearRegression
from bayescope.likelihoods import Gaussian, MultivariateGaussian
from bayescope.linear import LinearDensity, compile_density, conjugate
from bayescope.models import LinearModel
from bayescope.precision import BlockPrecision
from bayescope.priors import Prior

RNG = np.random.default_rng(0)
X = RNG.standard_normal((53, 4)) * [1.0, 30.0, 0.01, 2.0] + [0.0, 100.0, 0.0, -1.0]
SCORES = (X - X.mean(0)) / X.std(0)
Y = SCORES @ RNG.standard_normal((4, 3)) + RNG.standard_normal((53, 3)) * [1.0, 0.1, 3.0] + [0.0, 5.0, -2.0]
NAMES = ["length", "weight", "age"]
FRAME = pd.DataFrame(Y, columns=NAMES)
WIDE = RNG.standard_normal((23, 40))
COUNTS = RNG.integers(0, 4, 53)
MIXED = pd.DataFrame(SCORES, columns=list("abcd")).assign(site=RNG.choice(list("uvw"), 53))
MIXED.loc[5, "b"] = np.nan
HIDDEN = MIXED.assign(c=MIXED["c"].where(MIXED.index != 7), site=MIXED["site"].where(MIXED.index != 8, "new"))
GAPS = [5, 7, 8]


def fitted(y: object, x: Any = X, weights: object = None, **options: Any) -> BayesianLinearRegression:
    return BayesianLinearRegression(**options).fit(x, y, weights)


def assert_apart(together: Any, alone: list[Any], new: Any, y: np.ndarray, close: float = 1e-10) -> None:
    """A fit of all columns says of each column what the fit of that column says."""
    given = together.prior_precision != "evidence"
    p, size = together.predict_distribution(new), np.abs(y).max(0)
    low, high = p.interval(0.9)
    for d, one in enumerate(alone):
        q = one.predict_distribution(new)
        bottom, top = q.interval(0.9)
        for mine, theirs in ((p.mean, q.mean), (low, bottom), (high, top)):
            np.testing.assert_allclose(mine[:, d], theirs[:, 0], rtol=close, atol=close * size[d])
        np.testing.assert_allclose(p.sd[:, d], q.sd[:, 0], rtol=close)
        np.testing.assert_allclose(p.epistemic[:, d], q.epistemic[:, 0], rtol=close)
        np.testing.assert_allclose(together.coef_[d], one.coef_, rtol=close, atol=close * np.abs(one.coef_).max())
        assert together.intercept_[d] == pytest.approx(one.intercept_, rel=close, abs=close * size[d])
        assert together.noise_variance_[d] == pytest.approx(one.noise_variance_, rel=close)
        mine = together.prior_precision_ if given else together.prior_precision_[d]
        np.testing.assert_allclose(mine, one.prior_precision_, rtol=1e-8)
    log_prob = sum(one.predict_distribution(new).log_prob(each) for one, each in zip(alone, y.T, strict=True))
    # What a missing value could be, all columns of its row have in common: they are not independent there.
    known = np.setdiff1d(np.arange(len(y)), GAPS if new is HIDDEN else [])
    np.testing.assert_allclose(p.log_prob(y)[known], log_prob[known], rtol=close, atol=close)
    assert together.log_evidence_ == pytest.approx(sum(one.log_evidence_ for one in alone), rel=close)
    assert together.effective_parameters_ == pytest.approx(sum(one.effective_parameters_ for one in alone), rel=1e-8)


CASES: dict[str, dict[str, Any]] = {
    "learnt": {},
    "sample_weight": {"weights": COUNTS},
    "noise, one for each column": {"noise_variance": [0.8, 0.02, 7.0]},
    "prior precision": {"prior_precision": [0.5, 2.0, 0.1, 3.0]},
    "all given": {"prior_precision": 0.7, "noise_variance": 2.0, "intercept_prior_precision": 0.3},
    "intercept with a prior": {"intercept_prior_precision": 0.2},
    "no intercept": {"fit_intercept": False, "standardize": False},
    "more columns than rows": {"x": WIDE, "noise_variance": [0.5, 0.5, 2.0]},
    "features": {"features": "polynomial"},
    "labels and missing values": {"x": MIXED},
}


@pytest.mark.parametrize("case", CASES)
def test_each_column_has_the_answers_of_its_own_fit(case: str) -> None:
    options = dict(CASES[case])
    x = options.get("x", X)
    y = Y[: len(x)] * [1.0, 1e3, 1e-4] if "noise_variance" not in options else Y[: len(x)]
    noise = options.get("noise_variance", "evidence")
    noises = noise if isinstance(noise, list) else [noise] * 3
    alone = [fitted(y[:, d], **(options | {"noise_variance": noises[d]})) for d in range(3)]
    assert_apart(fitted(y, **options), alone, HIDDEN if x is MIXED else x, y)


@pytest.mark.parametrize("options", [{"prior_precision": "ard"}, {"groups": "site"}], ids=str)
def test_relevance_and_random_effects_are_those_of_each_column(options: dict[str, Any]) -> None:
    y = Y * [1.0, 1e3, 1e-2] + RNG.standard_normal((3, 3))[MIXED["site"].map(ord) - ord("u")] * [2.0, 0.0, 0.1]
    model, alone = fitted(y, MIXED, **options), [fitted(each, MIXED, **options) for each in y.T]
    p = model.predict_distribution(HIDDEN)
    for d, one in enumerate(alone):
        q = one.predict_distribution(HIDDEN)
        np.testing.assert_allclose(p.mean[:, d], q.mean[:, 0], rtol=1e-6, atol=1e-6 * y[:, d].std())
        np.testing.assert_allclose(p.sd[:, d], q.sd[:, 0], rtol=1e-6)
        for name, precision in one.group_precision_.items():
            assert model.group_precision_[name][d] == pytest.approx(precision, rel=1e-5)
    assert model.log_evidence_ == pytest.approx(sum(one.log_evidence_ for one in alone), abs=1e-6)
    report = model.relevance()
    for d, one in enumerate(alone):
        mine = report[report["class"] == f"y{d}"].drop(columns="class").set_index("feature").sort_index()
        pd.testing.assert_frame_equal(mine, one.relevance().set_index("feature").sort_index(), rtol=1e-4, atol=1e-6)


def test_units_and_the_order_of_the_columns_change_nothing() -> None:
    unit, origin = np.array([1e3, -1e-4, 7.0]), np.array([5e3, 1e-4, 0.0])
    plain, moved = fitted(Y).predict_distribution(X), fitted(Y * unit + origin).predict_distribution(X)
    np.testing.assert_allclose((moved.mean - origin) / unit, plain.mean, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(moved.sd / abs(unit), plain.sd, rtol=1e-8)
    turned = fitted(Y[:, [2, 0, 1]]).predict_distribution(X)
    np.testing.assert_allclose(turned.mean, plain.mean[:, [2, 0, 1]], rtol=1e-10, atol=1e-10)


def test_the_posterior_is_that_of_the_joint_model_with_a_dense_precision() -> None:
    """A MultivariateGaussian of the same variances takes the path of outputs that are joined."""
    noise, prior = np.array([0.5, 2.0, 1.5]), Prior(np.linspace(0.5, 3.0, 15))
    model = LinearModel(4, 3)
    apart = conjugate(compile_density(model, Gaussian(noise), prior, SCORES, Y, COUNTS))
    joined = conjugate(compile_density(model, MultivariateGaussian(np.diag(noise)), prior, SCORES, Y, COUNTS))
    assert isinstance(apart.precision, BlockPrecision)
    np.testing.assert_allclose(apart.mean, joined.mean, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(apart.precision.to_dense(), joined.precision.to_dense(), rtol=1e-10, atol=1e-10)
    assert float(apart.log_evidence()) == pytest.approx(float(joined.log_evidence()), rel=1e-12)


def test_the_curvature_is_summed_once_for_all_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    grams: list[int] = []
    plain = LinearDensity.gram
    monkeypatch.setattr(LinearDensity, "gram", lambda self, x, lam: grams.append(len(x)) or plain(self, x, lam))
    fitted(Y)
    assert grams == [len(X)]


def test_names_and_shapes_are_those_of_the_columns() -> None:
    model = fitted(FRAME, pd.DataFrame(X, columns=list("abcd")))
    frame = pd.DataFrame(X[:5], columns=list("abcd"))
    mean, sd = model.predict(frame, return_std=True)
    assert (mean.shape, sd.shape, model.coef_.shape, model.intercept_.shape) == ((5, 3), (5, 3), (3, 4), (3,))
    assert (model.noise_variance_.shape, model.prior_precision_.shape) == ((3,), (3,))
    p = model.predict_distribution(frame)
    assert list(p.names) == NAMES
    assert {"length: mean", "weight: sd", "age: high"} <= set(p.to_frame().columns)
    assert [*model.weight_names_[:2], model.weight_names_[-1]] == ["length: a", "length: b", "age: intercept"]
    assert list(model.posterior_.summary_frame()["name"]) == list(model.weight_names_)
    assert "weight" in model.summary()
    assert list(model.coefficients()["class"].unique()) == NAMES
    assert fitted(Y).predict_distribution(X).names == ("y0", "y1", "y2")


def test_one_column_keeps_its_dimension_as_in_scikit_learn() -> None:
    model, theirs, flat = fitted(Y[:, :1]), LinearRegression().fit(X, Y[:, :1]), fitted(Y[:, 0])
    for name in ("coef_", "intercept_"):
        assert getattr(model, name).shape == getattr(theirs, name).shape
    assert model.predict(X).shape == theirs.predict(X).shape == (53, 1)
    np.testing.assert_array_equal(model.predict(X)[:, 0], flat.predict(X))
    assert (flat.coef_.shape, np.ndim(flat.intercept_), np.ndim(flat.noise_variance_)) == ((4,), 0, 0)


def test_scikit_learn_scores_and_composes_it() -> None:
    model = fitted(Y)
    apart = MultiOutputRegressor(BayesianLinearRegression()).fit(X, Y)
    np.testing.assert_allclose(model.predict(X), apart.predict(X), rtol=1e-9, atol=1e-9)
    assert model.score(X, Y) == pytest.approx(apart.score(X, Y))
    assert model.__sklearn_tags__().target_tags.multi_output
    pipeline = make_pipeline(StandardScaler(), BayesianLinearRegression()).fit(X, Y)
    np.testing.assert_allclose(bs.predict_distribution(pipeline, X).mean, model.predict(X), rtol=1e-8, atol=1e-8)
    assert cross_val_score(pipeline, X, Y, cv=3).shape == (3,)
    scaled = TransformedTargetRegressor(BayesianLinearRegression(), transformer=StandardScaler()).fit(X, Y)
    np.testing.assert_allclose(scaled.predict(X), model.predict(X), rtol=1e-8, atol=1e-8)


def test_metrics_judge_all_columns() -> None:
    p = fitted(Y).predict_distribution(X)
    crps = [bs.metrics.crps(p.mean[:, d], p.variance[:, d], Y[:, d]) for d in range(3)]
    assert bs.metrics.crps(p.mean, p.variance, Y) == pytest.approx(np.mean(crps))
    assert p.crps(Y).mean() == pytest.approx(np.mean(crps))


def test_files_hold_it(tmp_path: Path) -> None:
    for model in (fitted(FRAME), fitted(FRAME[:23], WIDE, noise_variance=1.0)):
        new = X if model.n_features_in_ == 4 else WIDE
        again = bs.load(model.save(tmp_path / "model.bayes"))
        np.testing.assert_array_equal(again.predict(new), model.predict(new))
        p, q = again.predict_distribution(new), model.predict_distribution(new)
        np.testing.assert_array_equal(p.variance, q.variance)
        assert p.names == q.names


@pytest.mark.parametrize("wide", [False, True])
def test_parts_one_after_the_other_are_one_fit(wide: bool) -> None:
    options: dict[str, Any] = {"prior_precision": 0.6, "noise_variance": [0.5, 0.1, 4.0], "standardize": False}
    x = WIDE if wide else SCORES
    options["intercept_prior_precision"] = 0.5
    whole, parts = fitted(Y[: len(x)], x, **options), BayesianLinearRegression(**options)
    for rows in (slice(0, 11), slice(11, 14), slice(14, len(x))):
        parts.partial_fit(x[rows], Y[: len(x)][rows])
    np.testing.assert_allclose(parts.coef_, whole.coef_, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(parts.intercept_, whole.intercept_, rtol=1e-8)
    p, q = parts.predict_distribution(x), whole.predict_distribution(x)
    np.testing.assert_allclose(p.sd, q.sd, rtol=1e-8)
    assert parts.log_evidence_ == pytest.approx(whole.log_evidence_, rel=1e-9)
    assert isinstance(parts.posterior_.precision, BlockPrecision)


def test_a_table_on_disk_has_one_column_of_y(tmp_path: Path) -> None:
    FRAME.assign(a=X[:, 0]).to_csv(tmp_path / "table.csv", index=False)
    table = bs.open_table(str(tmp_path / "table.csv"))
    with pytest.raises(InputTypeError, match=r"y: expected the name of a column .* Fit a model to each column of y"):
        BayesianLinearRegression().fit(table, ["length", "weight"])


def test_what_it_does_not_take_is_refused_with_what_to_do() -> None:
    for prior in ("horseshoe", "laplace"):
        with pytest.raises(UnsupportedError, match=r"for 3 outcomes, .* MultiOutputRegressor"):
            fitted(Y, prior_precision=prior)
    with pytest.raises(InputError, match=r"noise_variance: expected a positive number, or 3 of them, .* shape \(2,\)"):
        fitted(Y, noise_variance=[1.0, 2.0])
    gaps = FRAME.copy()
    gaps.loc[4, "weight"] = np.nan
    with pytest.raises(InputError, match="row 4 of column 'weight'"):
        fitted(gaps)
    with pytest.raises(UnsupportedError, match="posterior: expected 'auto'"):
        fitted(Y, posterior="nuts")
    with pytest.warns(BayescopeWarning, match="the constant 2 in each row of column 1"):
        fitted(np.c_[Y[:, 0], np.full(53, 2.0)])
