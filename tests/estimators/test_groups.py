"""Relevance of features and random effects of groups, in the linear estimators."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import bayescope as bs
from bayescope.errors import ConvergenceWarning, InputError, InputTypeError, OptionError
from bayescope.estimators import (
    BayesianGeneralizedLinearModel,
    BayesianLinearRegression,
    BayesianLogisticRegression,
)

pytestmark = pytest.mark.filterwarnings("ignore:posterior='laplace'")
LEVELS = 12
BOTH = [BayesianLinearRegression, BayesianLogisticRegression]


def frame(rows: int = 240, seed: int = 0) -> pd.DataFrame:
    """A feature that matters, labels that do, two features that do not, and a site with an effect on y."""
    rng = np.random.default_rng(seed)
    site = rng.integers(0, LEVELS, rows)
    table = pd.DataFrame({name: rng.standard_normal(rows) for name in ("dose", "noise", "more noise")})
    table["kind"] = rng.choice(["u", "v", "w"], rows)
    table["site"] = [f"s{each}" for each in site]
    effect = rng.standard_normal(LEVELS)[site] + 1.5 * (table["kind"] == "u") + table["dose"]
    table["y"] = 3.0 + effect + 0.7 * rng.standard_normal(rows)
    table["two"] = table["y"] > 3.5
    return table


def fitted(kind: Any, table: pd.DataFrame | None = None, **options: Any) -> Any:
    table = frame() if table is None else table
    target = "y" if kind is BayesianLinearRegression else "two"
    return kind(**options).fit(table.drop(columns=["y", "two"]), table[target])


@pytest.mark.parametrize("kind", BOTH)
def test_irrelevant_features_are_switched_off_and_reported(kind: Any):
    table, model = frame(), fitted(kind, prior_precision="ard", groups="site")
    report = model.relevance().set_index("feature")
    off = report.index[report["switched_off"]]
    assert set(off) <= {"noise", "more noise"}
    assert len(off) >= 1
    assert report["determined"].is_monotonic_decreasing
    assert report.loc["dose", "determined"] > 0.5
    assert (report.loc[off, "determined"] == 0).all()
    assert report.loc["kind", "inputs"] == 3
    assert model.prior_precision_.shape == (6,)
    assert len(set(model.prior_precision_[3:])) == 1  # one for all labels of a column
    assert model.coef_.shape[-1] == 6 + LEVELS + 2
    assert (np.atleast_2d(model.coef_)[0, :6] == 0).tolist() == np.isinf(model.prior_precision_).tolist()
    assert f"{len(off)} of 4 features: {', '.join(off)}" in model.summary()
    assert len(model.posterior_.mean) == len(model.weight_names_) == 6 - len(off) + LEVELS + 2 + 1
    changed = table.assign(**dict.fromkeys(off, 100.0)).drop(columns=["y", "two"])
    np.testing.assert_array_equal(model.predict(changed), model.predict(table.drop(columns=["y", "two"])))


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("options", [{"prior_precision": "ard"}, {"prior_precision": "ard", "groups": "site"}], ids=str)
def test_the_evidence_is_higher_than_with_one_precision(kind: Any, options: dict[str, Any]):
    assert fitted(kind, **options).log_evidence_ > fitted(kind).log_evidence_


@pytest.mark.parametrize("kind", [BayesianLinearRegression, BayesianGeneralizedLinearModel])
def test_switched_off_columns_would_lower_the_evidence_and_the_others_are_stationary(kind: Any):
    """q² ≤ s for a column without a weight and β q² = s for one with, C the covariance of y (Tipping & Faul 2003)."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((60, 12))
    y = X[:, 0] - 0.6 * X[:, 1] + 0.3 * X[:, 2] + rng.standard_normal(60)
    options = {"likelihood": "gaussian", "posterior": "laplace"} if kind is BayesianGeneralizedLinearModel else {}
    model = kind(prior_precision="ard", standardize=False, **options).fit(X, y)
    noise = model.hyperparameters_["noise_variance"] if options else model.noise_variance_
    precision = np.asarray(model.prior_precision_)
    centred, off = X - X.mean(0), np.isinf(precision)
    assert 2 <= off.sum() <= 9
    covariance = noise * np.eye(60) + (centred / precision) @ centred.T
    s = np.einsum("nd,nd->d", centred, np.linalg.solve(covariance, centred))
    q = centred.T @ np.linalg.solve(covariance, y - y.mean())
    assert (q[off] ** 2 <= s[off] * (1.0 + 1e-6)).all()
    np.testing.assert_allclose(q[~off] ** 2, s[~off], rtol=1e-4)


@pytest.mark.filterwarnings("ignore:posterior='laplace'")  # that a better one is there
def test_relevance_of_squares_and_products_ends_at_a_maximum(reference_data: Path):
    """Many of 104 features of 189 separable rows leave on the way, where the evidence is nearly level."""
    table = pd.read_csv(reference_data / "tabular" / "heart" / "statlog_heart.dat", header=None, sep=" ", skiprows=1)
    rows = np.random.default_rng(8).permutation(len(table))[:189]
    X, y = table.iloc[rows, :-1].add_prefix("x"), table.iloc[rows, -1]
    found, plain = (
        bs.BayesianLogisticRegression(prior_precision=prior, features="polynomial", posterior="laplace").fit(X, y)
        for prior in ("ard", "evidence")
    )
    assert found.log_evidence_ > plain.log_evidence_
    assert 10 < found.relevance()["switched_off"].sum() < 104


def test_more_features_than_rows_do_not_explain_the_noise():
    """Four of 150 features matter in 80 rows: relevance finds them, and the noise stays noise."""
    rng = np.random.default_rng(0)
    X, new = rng.standard_normal((80, 150)), rng.standard_normal((500, 150))
    truth = np.array([1.5, -1.5, 1.0, 1.0])
    y = X[:, :4] @ truth + rng.standard_normal(80)
    plain, chosen = (BayesianLinearRegression(prior_precision=each).fit(X, y) for each in ("evidence", "ard"))
    assert chosen.noise_variance_ == pytest.approx(plain.noise_variance_)
    assert set(chosen.relevance()["feature"][:4]) == {"x0", "x1", "x2", "x3"}
    assert np.isinf(chosen.prior_precision_).sum() > 100
    ours, theirs = (np.sqrt(((each.predict(new) - new[:, :4] @ truth) ** 2).mean()) for each in (chosen, plain))
    assert ours < 0.7 * theirs


@pytest.mark.parametrize(
    "options", [{"groups": "site"}, {"prior_precision": "ard", "groups": ["kind", "site"]}], ids=str
)
def test_a_generalised_model_of_numbers_is_linear_regression(options: dict[str, Any]):
    """Laplace's evidence of a Gaussian likelihood is exact: two searches, over different coordinates, end alike."""
    table = frame()
    features = table.drop(columns=["y", "two"])
    linear = BayesianLinearRegression(**options).fit(features, table["y"])
    general = BayesianGeneralizedLinearModel(likelihood="gaussian", posterior="laplace", **options)
    general.fit(features, table["y"])
    assert general.log_evidence_ == pytest.approx(linear.log_evidence_, abs=1e-6)
    assert general.hyperparameters_["noise_variance"] == pytest.approx(linear.noise_variance_, rel=1e-4)
    np.testing.assert_allclose(general.prior_precision_, linear.prior_precision_, rtol=1e-3)
    assert general.group_precision_ == pytest.approx(linear.group_precision_, rel=1e-3)
    np.testing.assert_allclose(
        general.predict(features.assign(site="new")), linear.predict(features.assign(site="new")), rtol=1e-4
    )


@pytest.mark.parametrize("likelihood", ["poisson", "negative_binomial"])
def test_counts_have_random_effects(likelihood: str):
    """An effect multiplies the mean; a new level has the population's, with e^{v/2} for its variance v."""
    table, rng = frame(), np.random.default_rng(5)
    features = table[["dose", "noise", "site"]]
    effect = dict(zip(sorted(set(table["site"])), rng.standard_normal(LEVELS), strict=True))
    mean = np.exp(1.0 + 0.3 * table["dose"] + table["site"].map(effect))
    model = BayesianGeneralizedLinearModel(likelihood=likelihood, posterior="laplace", groups="site")
    model.fit(features, rng.poisson(mean))
    found = model.random_effects().set_index("level")
    centred = pd.Series(effect) - np.mean(list(effect.values()))
    assert (np.abs(found.loc[list(effect), "mean"] - centred) < 4.0 * found.loc[list(effect), "sd"]).all()
    row = features.head(1).assign(site="new")
    latent = model.predict_distribution(row)
    assert float(latent.latent_cov.ravel()[0]) > 1.0 / model.group_precision_["site"]
    assert model.predict(row)[0] == pytest.approx(
        math.exp(latent.latent_mean.ravel()[0] + 0.5 * latent.latent_cov.ravel()[0]), rel=1e-6
    )


@pytest.mark.parametrize("kind", BOTH)
def test_the_order_and_the_units_of_columns_and_rows_do_not_matter(kind: Any):
    table = frame()
    plain = fitted(kind, table, prior_precision="ard", groups="site")
    rows = np.random.default_rng(1).permutation(len(table))
    moved = table.iloc[rows, ::-1].assign(
        dose=lambda each: 5.0 - 1e4 * each["dose"], noise=lambda each: each["noise"] * 1e-3
    )
    moved["site"] = moved["site"].map(lambda label: f"z{13 - int(label[1:])}")
    other = fitted(kind, moved, prior_precision="ard", groups="site")
    assert other.log_evidence_ == pytest.approx(plain.log_evidence_, abs=1e-6)
    ours, theirs = (each.relevance().set_index("feature").sort_index() for each in (plain, other))
    np.testing.assert_allclose(ours["precision"], theirs["precision"], rtol=1e-4)
    inputs, moved_inputs = table.drop(columns=["y", "two"]).iloc[rows], moved.drop(columns=["y", "two"])
    for answer in ("predict",) if kind is BayesianLinearRegression else ("predict_proba",):
        np.testing.assert_allclose(getattr(other, answer)(moved_inputs), getattr(plain, answer)(inputs), rtol=1e-5)


def test_effects_and_new_levels_are_those_of_the_gaussian_by_hand():
    """y = b + X w + Z u + noise, in the data's units: the posterior of (b, w, u) by normal equations, b flat."""
    table = frame(80)
    model = fitted(BayesianLinearRegression, table[["dose", "site", "y", "two"]], groups="site")
    x = table["dose"].to_numpy()
    z = (table["site"].to_numpy()[:, None] == np.array([f"s{each}" for each in range(LEVELS)])).astype(float)
    design = np.column_stack([np.ones(80), x - x.mean(), z])
    alpha, noise = model.group_precision_["site"], model.noise_variance_
    prior = np.diag([0.0, model.prior_precision_ * x.var(), *[alpha] * LEVELS])
    covariance = np.linalg.inv(prior + design.T @ design / noise)
    mean = covariance @ design.T @ table["y"].to_numpy() / noise
    effects = model.random_effects().set_index("level")
    order = [f"s{each}" for each in range(LEVELS)]
    np.testing.assert_allclose(effects.loc[order, "mean"], mean[2:], rtol=1e-6)
    np.testing.assert_allclose(effects.loc[order, "sd"], np.sqrt(np.diag(covariance))[2:], rtol=1e-6)
    assert effects.loc[order, "rows"].tolist() == z.sum(0).tolist()
    assert effects.loc["unseen", ["mean", "sd", "rows"]].tolist() == pytest.approx([0.0, alpha**-0.5, 0.0])
    # A new level, whatever its name, and a missing one, predict from the population.
    new = pd.DataFrame({"dose": [0.3] * 3, "site": ["new", None, "s3"]})
    at = np.array([1.0, 0.3 - x.mean()])
    predicted = model.predict_distribution(new)
    variance = at @ covariance[:2, :2] @ at + 1.0 / alpha
    np.testing.assert_allclose(np.ravel(predicted.mean)[:2], [at @ mean[:2]] * 2, rtol=1e-8)
    np.testing.assert_allclose(np.ravel(predicted.epistemic)[:2], [variance] * 2, rtol=1e-8)
    known = np.array([*at, *(np.arange(LEVELS) == 3)])
    assert np.ravel(predicted.mean)[2] == pytest.approx(known @ mean)
    assert np.ravel(predicted.epistemic)[2] == pytest.approx(known @ covariance @ known)


def test_missing_labels_that_were_fitted_are_a_level():
    table = frame()
    lacking = np.arange(len(table)) % 5 == 0
    table.loc[lacking, "y"] += 4.0
    table.loc[lacking, "site"] = None
    model = fitted(BayesianLinearRegression, table, groups="site")
    effects = model.random_effects().set_index("level")
    assert effects.loc["missing", "rows"] == lacking.sum()
    assert effects.loc["missing", "mean"] > 2.0
    row = table.drop(columns=["y", "two"]).head(1)
    missing, new = (model.predict(row.assign(site=label))[0] for label in (None, "new"))
    assert missing - new == pytest.approx(effects.loc["missing", "mean"])


def test_effects_are_those_of_full_bayes():
    """Integrated over log sds of effects and noise on a grid, under a flat prior of both: within 3 % of the sds."""
    rng = np.random.default_rng(3)
    levels, each = 80, 12
    site = np.repeat(np.arange(levels), each)
    y = 5.0 + 0.8 * rng.standard_normal(levels)[site] + rng.standard_normal(levels * each)
    model = BayesianLinearRegression(groups=0).fit(site[:, None].astype(float), y)
    means, within = y.reshape(levels, each).mean(1), ((y - y.reshape(levels, each).mean(1)[site]) ** 2).sum()
    log_tau, log_sigma = (np.linspace(math.log(c) - 0.8, math.log(c) + 0.8, 161) for c in (0.8, 1.0))
    tau2, sigma2 = np.exp(2 * log_tau)[:, None], np.exp(2 * log_sigma)[None]
    total = tau2 + sigma2 / each  # the variance of a level's mean; with the flat intercept integrated out
    between = ((means - means.mean()) ** 2).sum()
    log_joint = (-0.5 * (levels - 1) * np.log(total) - 0.5 * between / total
                 - 0.5 * levels * (each - 1) * np.log(sigma2) - 0.5 * within / sigma2)  # fmt: skip
    weights = np.exp(log_joint - log_joint.max())
    weights /= weights.sum()
    shrink = tau2 / total
    mean = (weights * shrink).sum() * (means - means.mean())
    variance = shrink * sigma2 / each + shrink**2 * total / levels
    second = (weights * variance).sum() + (weights * shrink**2).sum() * (means - means.mean()) ** 2
    sd = np.sqrt(second - mean**2)
    effects = model.random_effects().iloc[:levels]
    assert (np.abs(effects["mean"] - mean) < 0.03 * sd.mean()).all()
    np.testing.assert_allclose(effects["sd"], sd, rtol=0.03)


@pytest.mark.parametrize("posterior", ["laplace", "map", "variational", "mean_field", "ep", "nuts"])
def test_every_posterior_takes_the_precisions_that_were_learnt(posterior: str):
    chains = {"draws": 100, "tune": 100, "chains": 1, "random_state": 0} if posterior == "nuts" else {}
    table = frame(120).drop(columns=["kind", "more noise"])
    reference = fitted(BayesianLogisticRegression, table, posterior="laplace", prior_precision="ard", groups="site")
    with pytest.warns() if posterior == "nuts" else _nothing():
        model = fitted(
            BayesianLogisticRegression, table, posterior=posterior, prior_precision="ard", groups="site", **chains
        )
    assert model.group_precision_ == reference.group_precision_
    new = table.assign(site="new").drop(columns=["y", "two"])
    proba, other = model.predict_proba(new), reference.predict_proba(new)
    assert np.abs(proba - other).max() < 0.15
    assert len(model.random_effects()) == LEVELS + 1
    assert len(model.relevance()) == 2


class _nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


def test_several_classes_have_effects_each():
    table = frame()
    table["two"] = np.array(["low", "middle", "high"])[np.digitize(table["y"], [2.5, 4.0])]
    model = fitted(BayesianLogisticRegression, table, groups=["site", "kind"])
    effects = model.random_effects()
    assert effects.groupby(["group", "class"]).size().to_dict() == {
        (group, label): levels + 1 for group, levels in (("site", LEVELS), ("kind", 3)) for label in model.classes_
    }
    assert set(model.group_precision_) == {"site", "kind"}
    assert len(set(model.group_precision_.values())) == 2
    assert isinstance(model.prior_precision_, float)
    assert "class" in model.coefficients()
    assert not model.coefficients()["name"].str.startswith("site").any()


def test_random_intercepts_alone_and_other_encodings():
    table = frame()
    alone = BayesianLinearRegression(groups="site").fit(table[["site"]], table["y"])
    assert alone.coefficients()["name"].tolist() == ["intercept"]
    assert len(alone.predict(pd.DataFrame({"site": ["s1", "new"]}))) == 2
    for options in ({"encoding": "target"}, {"encoding": "ordinal"}, {"features": "polynomial"}):
        model = fitted(BayesianLinearRegression, table, groups="site", **options)
        assert len(model.random_effects()) == LEVELS + 1
        assert not any("site" in name for name in model.relevance()["feature"])


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("intercept", [True, False])
def test_a_table_that_tells_nothing_leaves_an_intercept_or_nothing(kind: Any, intercept: bool):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((40, 3))
    x[20:] = x[:20]
    y = np.repeat([0, 1], 20)  # each row has both
    model = kind(prior_precision="ard", fit_intercept=intercept).fit(x, y)
    assert np.isinf(model.prior_precision_).all() or not intercept
    assert np.abs(model.coef_).max() < 1e-12
    assert "3 of 3 features" in model.summary() or not intercept
    assert np.isfinite(model.predict(x)).all()
    assert len(model.relevance()) == 3


def test_known_precisions_stay_beside_groups():
    one = fitted(BayesianLinearRegression, prior_precision=2.0, groups="site")
    assert one.prior_precision_ == 2.0
    each = fitted(BayesianLinearRegression, prior_precision=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], groups="site")
    assert each.prior_precision_.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert each.group_precision_["site"] == pytest.approx(one.group_precision_["site"], rel=0.1)


@pytest.mark.parametrize("kind", BOTH)
def test_tables_on_disk_give_the_same_answers(kind: Any, tmp_path: Path):
    table = frame()
    target = "y" if kind is BayesianLinearRegression else "two"
    table = table.drop(columns={"y", "two"} - {target})
    table.to_parquet(tmp_path / "table.parquet")
    stored = bs.open_table(str(tmp_path / "table.parquet"), block_rows=64)
    ours = kind(prior_precision="ard", groups="site").fit(stored, target)
    theirs = kind(prior_precision="ard", groups="site").fit(table.drop(columns=target), table[target])
    assert ours.log_evidence_ == pytest.approx(theirs.log_evidence_, abs=1e-6)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)
    np.testing.assert_allclose(
        ours.predict(stored)[:9].astype(float), theirs.predict(table.drop(columns=target))[:9].astype(float), atol=1e-5
    )


@pytest.mark.parametrize("kind", BOTH)
def test_a_saved_model_answers_alike(kind: Any, tmp_path: Path):
    model = fitted(kind, prior_precision="ard", groups="site")
    again = bs.load(model.save(tmp_path / "model.bayes"))
    pd.testing.assert_frame_equal(again.random_effects(), model.random_effects())
    pd.testing.assert_frame_equal(again.relevance(), model.relevance())
    new = frame().assign(site="new").drop(columns=["y", "two"])
    np.testing.assert_array_equal(again.predict(new), model.predict(new))


def test_gaps_in_features_and_new_levels_go_together():
    table = frame()
    model = fitted(BayesianLinearRegression, table, groups="site")
    row = table.drop(columns=["y", "two"]).head(1)
    variance = {
        name: float(model.predict_distribution(row.assign(**change)).epistemic.ravel()[0])
        for name, change in {"none": {}, "dose": {"dose": np.nan}, "site": {"site": "new"},
                             "both": {"dose": np.nan, "site": "new"}}.items()
    }  # fmt: skip
    assert variance["none"] < min(variance["dose"], variance["site"])
    assert variance["both"] > max(variance["dose"], variance["site"])


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no such column": ({"groups": "sight"}, OptionError, "groups: .* got 'sight'. Did you mean 'site'"),
    "no such position": ({"groups": 9}, InputError, "groups: expected names of columns or positions 0…4, got 9"),
    "a measurement": ({"groups": "dose"}, InputError, "groups: expected labels that recur, got 240 .* column 'dose'"),
    "one level": ({"groups": "one"}, InputError, "groups: expected a column of at least two .*, got 1 in column 'one'"),
    "labels twice": (
        {"groups": "site", "categorical": ["site"]}, InputError, "groups: expected columns that are not in cat",
    ),
    "no column": ({"groups": 1.5}, InputTypeError, "groups"),
    "another word": ({"prior_precision": "relevant"}, OptionError, "'horseshoe' or 'laplace', got 'relevant'"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD.values(), ids=BAD)
def test_what_cannot_be_grouped_is_refused(case: tuple[dict[str, Any], type[Exception], str]):
    options, error, message = case
    table = frame()
    if options.get("groups") == "one":
        table["one"] = "k"
    with pytest.raises(error, match=message) as raised:
        fitted(BayesianLinearRegression, table, **options)
    assert "\n" not in str(raised.value)


def test_effects_need_groups():
    with pytest.raises(bs.errors.UndefinedQuantityError, match="groups="):
        fitted(BayesianLinearRegression).random_effects()


@pytest.mark.parametrize("options", [{"prior_precision": "ard"}, {"groups": "site"}], ids=str)
def test_posteriors_are_compared_under_the_same_precisions(options: dict[str, Any]):
    table = frame(120).drop(columns=["y", "kind"])
    model, features = BayesianLogisticRegression(**options), table.drop(columns="two")
    compared = bs.compare(
        model, features, table["two"], posteriors=["laplace", "map"], reference="laplace", random_state=0
    )
    assert "Prior precisions: by feature or group" in str(compared)


def test_relevance_that_explains_every_row_is_reported() -> None:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((60, 200))
    y = X[:, :5] @ [2.0, -1.5, 1.0, 0.7, -0.5] + 0.5 * rng.standard_normal(60)
    with pytest.warns(ConvergenceWarning, match="explained without noise"):
        bs.BayesianLinearRegression(prior_precision="ard").fit(X, y)
