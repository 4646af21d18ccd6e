"""Comparisons of regressions, and of estimators of every kind: scores by hand, units, baselines and references."""

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib import image
from scipy import stats
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.preprocessing import StandardScaler

from bayescope import metrics
from bayescope.comparison import compare, comparison, contenders, measures
from bayescope.comparison.answers import LEVELS, NumberAnswers, _quantiles, pit_ends, share_below, share_inside, spreads
from bayescope.comparison.split import split
from bayescope.errors import BayescopeWarning, ConvergenceError, InputError, OptionError
from bayescope.estimators import (
    BayesianGeneralizedLinearModel,
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianMLPClassifier,
    BayesianMLPRegressor,
    NeuralAdditiveClassifier,
    NeuralAdditiveRegressor,
)
from bayescope.latent import DrawsLatent
from bayescope.likelihoods import Binomial, Gaussian, Poisson, Tweedie
from bayescope.predictive import Predictive

COLUMNS = [
    "nll",
    "crps",
    "rmse",
    "coverage",
    "width",
    "w1_to_exact",
    "sd_error",
    "log_evidence",
    "evidence_kind",
    "loo",
    "loo_warnings",
    "fit_seconds",
    "predict_seconds",
]
SECONDS = ["fit_seconds", "predict_seconds"]


def line(rows=80, seed=0):
    source = np.random.default_rng(seed)
    X = pd.DataFrame(source.normal(size=(rows, 2)), columns=["width", "height"])
    y = 2.0 * X["width"] - X["height"] + 0.7 * source.normal(size=rows)
    return X, y.rename("weight")


def quick_mlp(kind=BayesianMLPRegressor, **options):
    return kind(hidden=(3,), epochs=3, prior_precision=1.0, members=2, **options)


def quietly(*arguments, **options):
    """A comparison of networks that are hardly trained."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BayescopeWarning)
        return compare(*arguments, **options)


@pytest.fixture(scope="module")
def linear():
    return compare(BayesianLinearRegression(), *line())


def test_a_model_with_one_posterior_is_compared_with_baselines(linear):
    assert linear.table.index.tolist() == ["constant", "ridge", "exact"]
    assert linear.table.columns.tolist() == COLUMNS
    assert linear.table["evidence_kind"].tolist() == ["", "", "exact"]
    assert linear.title == "1 posterior, 2 baselines, 60 training rows, 20 test rows, 2 features"


def test_scores_are_those_of_the_predictions(linear):
    y = linear.split.y_test
    for name, outcome in linear.outcomes.items():
        row, answers = linear.table.loc[name], outcome.answers
        low, high = stats.norm.interval(0.95, answers.mean, answers.sd)
        assert row["nll"] == pytest.approx(-stats.norm.logpdf(y, answers.mean, answers.sd).mean(), abs=1e-9)
        assert row["crps"] == pytest.approx(metrics.crps(answers.mean, answers.sd**2, y), abs=1e-9)
        assert row["rmse"] == pytest.approx(np.sqrt(((answers.mean - y) ** 2).mean()), abs=1e-9)
        assert row["coverage"] == pytest.approx(((low <= y) & (y <= high)).mean())
        assert row["width"] == pytest.approx((high - low).mean())


def test_a_row_equals_the_estimator_fitted_alone(linear):
    data = linear.split
    alone = BayesianLinearRegression().fit(data.X_train, data.y_train)
    mean, sd = alone.predict(data.X_test, return_std=True)
    np.testing.assert_allclose(linear.outcomes["exact"].answers.mean, mean, atol=1e-10)
    np.testing.assert_allclose(linear.outcomes["exact"].answers.sd, sd, atol=1e-10)
    assert linear.table.loc["exact", "log_evidence"] == pytest.approx(alone.log_evidence_)


def test_left_out_rows_are_those_of_fits_without_them(linear):
    data, exact = linear.split, 0.0
    fitted = BayesianLinearRegression().fit(data.X_train, data.y_train)
    given = {"prior_precision": fitted.prior_precision_, "noise_variance": fitted.noise_variance_, "standardize": False}
    inputs = fitted.transform_inputs(data.X_train)
    for row in range(len(inputs)):
        rest = np.arange(len(inputs)) != row
        left_out = BayesianLinearRegression(**given).fit(inputs[rest], data.y_train[rest])
        exact += left_out.predict_distribution(inputs[[row]]).log_prob(data.y_train[[row]])[0]
    assert linear.table.loc["exact", "loo"] == pytest.approx(exact, abs=0.2)


def test_baselines_are_those_of_scikit_learn(linear):
    data = linear.split
    scale = StandardScaler().fit(data.X_train)
    ridge = RidgeCV(contenders.RIDGES).fit(scale.transform(data.X_train), data.y_train)
    expected = ridge.predict(scale.transform(data.X_test))
    np.testing.assert_allclose(linear.outcomes["ridge"].answers.mean, expected, atol=1e-9)
    constant = linear.outcomes["constant"].answers
    assert constant.mean == pytest.approx(np.full(20, data.y_train.mean()))
    assert constant.sd == pytest.approx(np.full(20, data.y_train.std(ddof=1)))


def test_another_unit_and_origin_of_y_is_another_unit_alone(linear):
    X, y = line()
    other = compare(BayesianLinearRegression(), X, 1e6 * y - 3e8).table
    table = linear.table
    for column in ("crps", "rmse", "width"):
        np.testing.assert_allclose(other[column], 1e6 * table[column], rtol=1e-5)
    for column in ("coverage", "w1_to_exact", "sd_error"):
        np.testing.assert_allclose(other[column], table[column], atol=1e-5)
    np.testing.assert_allclose(other["nll"], table["nll"] + np.log(1e6), atol=1e-5)


def answers(mean, sd):
    quantiles = stats.norm.ppf(LEVELS, np.asarray(mean)[:, None], np.asarray(sd)[:, None])
    return NumberAnswers(*[np.zeros(len(mean))] * 6, quantiles, np.zeros((len(mean), 2)), np.zeros(len(mean)), unit=2.0)


def test_the_distance_of_predictives_is_in_sds_of_y():
    one, moved, wide = answers([0.0, 1.0], [1.0, 2.0]), answers([0.5, 1.5], [1.0, 2.0]), answers([0.0, 1.0], [2.0, 4.0])
    assert measures.wasserstein(one, one) == 0
    assert measures.wasserstein(moved, one) == pytest.approx(0.25)
    # E|Z| times the mean difference of the sds, over the unit; the levels leave out the outermost tails.
    assert measures.wasserstein(wide, one) == pytest.approx(1.5 * np.sqrt(2 / np.pi) / 2.0, rel=0.02)


def test_spreads_are_finite_where_an_sd_is_not():
    tails = replace(answers([0.0, 1.0], [1.0, 2.0]), sd=np.array([1.0, np.inf]), low=np.zeros(2), high=np.full(2, 8.0))
    plain = replace(tails, sd=np.ones(2))
    assert spreads({"laplace": plain})["laplace"].tolist() == [1.0, 1.0]
    assert spreads({"laplace": plain, "map": tails})["laplace"].tolist() == [2.0, 2.0]


@pytest.mark.parametrize("counts", [False, True])
def test_shares_below_quantiles_are_the_levels_for_outcomes_of_the_distribution(counts):
    rates = np.linspace(0.2, 6.0, 2000)[:, None]
    latent = DrawsLatent(torch.from_numpy(np.log(rates) if counts else rates)[None])
    p = Predictive(latent, Poisson() if counts else Gaussian(2.0), arrays=True)
    quantiles, ends = _quantiles(p), pit_ends(p, p.sample(1, generator=0)[0, :, 0])
    np.testing.assert_allclose(share_below(ends, LEVELS).mean(0), LEVELS, atol=5 * 0.5 / 2000**0.5)
    exact = stats.poisson(rates).ppf(LEVELS) if counts else stats.norm(rates, 2.0**0.5).ppf(LEVELS)
    np.testing.assert_allclose(quantiles, exact, atol=1e-9)


@pytest.mark.parametrize(
    ("likelihood", "f"),
    [(Poisson(), np.log(0.5)), (Poisson(), np.log(30.0)), (Binomial(3), 1.0), (Tweedie(1.5, 2.0), 0.0)],
)
def test_shares_have_the_levels_as_their_expectations_over_outcomes(likelihood, f):
    levels = np.array([0.01, 0.1, 0.36, 0.5, 0.8, 0.95])
    y = np.arange(likelihood.domain.high + 1 if likelihood.domain.high < np.inf else 80.0)
    if likelihood.domain.atom:  # a 0 and 20,000 amounts that are equally likely
        zero = np.exp(-(likelihood.dispersion.numpy() ** -1) * 2.0)
        ranks = zero + (1 - zero) * (np.arange(20_000) + 0.5) / 20_000
        y = np.append(0.0, likelihood.quantile(torch.full((20_000, 1), f), torch.from_numpy(ranks)[:, None])[:, 0])
    p = Predictive(DrawsLatent(torch.full((1, len(y), 1), f, dtype=torch.float64)), likelihood, arrays=True)
    mass = np.append(zero, np.full(20_000, (1 - zero) / 20_000)) if likelihood.domain.atom else np.exp(p.log_prob(y))
    ends = pit_ends(p, y)
    np.testing.assert_allclose(mass @ share_below(ends, levels), levels, atol=1e-4)
    np.testing.assert_allclose(mass @ share_inside(ends, levels), levels, atol=1e-4)


def test_counts_are_compared_by_their_own_distribution():
    X, y = line()
    source = np.random.default_rng(1)
    template = BayesianGeneralizedLinearModel(likelihood="poisson")
    counts = pd.Series(source.poisson(np.exp(0.5 * y)), name="claims")
    table = compare(template, X, counts, posteriors=["poisson", "map"], reference="laplace")
    data, answers = table.split, table.outcomes["map"].answers
    alone = template.set_params(posterior="map").fit(data.X_train, data.y_train)
    expected = stats.poisson(alone.predict(data.X_test))
    k = np.arange(200)[:, None]
    assert table.table.loc["map", "nll"] == pytest.approx(-expected.logpmf(data.y_test).mean(), abs=1e-3)
    crps = ((expected.cdf(k) - (k >= data.y_test)) ** 2).sum(0).mean()
    assert table.table.loc["map", "crps"] == pytest.approx(crps, rel=1e-3)
    np.testing.assert_array_equal(answers.low, expected.ppf(0.025))
    assert set(table.figures()) == {"calibration", "agreement", "marginals"}
    baseline = table.outcomes["poisson"].answers  # with next to no penalty
    np.testing.assert_allclose(baseline.mean, answers.mean, rtol=0.1)
    np.testing.assert_allclose(baseline.sd, np.sqrt(baseline.mean))


def test_counts_have_a_baseline_of_counts_by_default():
    data = split(*line(), "numbers", test_size=0.25, random_state=0)
    for likelihood, baseline in (("poisson", "poisson"), ("gaussian", "ridge")):
        template = BayesianGeneralizedLinearModel(likelihood=likelihood)
        names, reference, _ = contenders.names_of(template, data, None, "nuts")
        assert names[:2] == ["constant", baseline]
        assert reference == "nuts"
    assert "poisson" not in contenders.names_of(BayesianLinearRegression(), data, None, "nuts")[0]


@pytest.mark.parametrize(
    ("estimator", "names"),
    [
        (BayesianLinearRegression(), ("exact",)),
        (NeuralAdditiveRegressor(), ("laplace", "map")),
        (
            BayesianLogisticRegression(),
            ("auto", "map", "laplace", "mean_field", "variational", "ep", "nuts", "metropolis"),
        ),
    ],
)
def test_an_estimator_s_option_lists_its_posteriors(estimator, names):
    assert contenders.posteriors_of(estimator) == names
    assert {"mc_dropout", "ensemble", "nuts"} < set(contenders.posteriors_of(BayesianMLPClassifier()))


@pytest.mark.parametrize(
    ("estimator", "named", "reference", "stand_in"),
    [
        (BayesianLinearRegression(), None, "nuts", "exact"),
        (NeuralAdditiveRegressor(), None, "nuts", "laplace"),
        (BayesianMLPRegressor(), None, "nuts", "ensemble"),
        (BayesianMLPRegressor(), ["map", "nuts"], "nuts", "nuts"),
        (BayesianMLPRegressor(), None, "swag", "swag"),
        (BayesianMLPRegressor(), None, None, None),
    ],
)
def test_what_stands_in_for_nuts(estimator, named, reference, stand_in):
    data = split(*line(), "numbers", test_size=0.25, random_state=0)
    names, found, notes = contenders.names_of(estimator, data, named, reference)
    assert found == stand_in
    assert stand_in is None or stand_in in names
    assert bool(notes) == (stand_in != reference)
    assert stand_in != "ensemble" or notes[0].startswith("NUTS takes minutes to hours for a network")


def test_a_network_is_compared_in_the_posteriors_that_are_named():
    X, y = line()
    table = quietly(quick_mlp(noise_variance=0.5), X, y, posteriors=["ridge", "map"], reference="laplace")
    assert table.table.index.tolist() == ["ridge", "map", "laplace"]
    assert "sd_error" not in table.table
    assert table.table.loc["laplace", "w1_to_laplace"] == 0.0
    assert table.table["w1_to_laplace"].drop("laplace").gt(0).all()
    assert set(table.figures()) == {"calibration", "agreement"}


def test_a_network_of_labels_has_the_measures_of_labels():
    X, y = line()
    table = quietly(quick_mlp(BayesianMLPClassifier), X, y > 0, posteriors=["map", "laplace"], reference=None)
    assert table.table.index.tolist() == ["map", "laplace"]
    assert {"nll", "brier", "auroc"} < set(table.table)
    assert not any(name.startswith("tv_to") for name in table.table)
    assert set(table.figures()) == {"reliability", "decision_surface"}


@pytest.mark.parametrize("classes", [False, True])
def test_an_additive_model_is_compared_with_its_mode_and_baselines(classes):
    X, y = line(60)
    X["colour"] = np.where(np.arange(60) % 3, "red", None)
    X.loc[5, "width"] = np.nan
    template = (NeuralAdditiveClassifier if classes else NeuralAdditiveRegressor)(hidden=4, epochs=5, burn_in=1)
    table = quietly(
        template, X, (y > 0 if classes else y), posteriors=None if not classes else ["logistic", "laplace", "map"]
    )
    baselines = ["logistic"] if classes else ["constant", "ridge"]
    assert table.table.index.tolist() == [*baselines, "laplace", "map"]
    assert np.isfinite(table.table.loc["laplace", "loo"])
    assert any("Laplace, an approximation too, is the reference" in note for note in table.footnotes)


def test_the_logistic_baseline_is_scikit_learns():
    X, y = line()
    table = quietly(quick_mlp(BayesianMLPClassifier), X, y > 0, posteriors=["logistic", "constant"], reference=None)
    data = table.split
    scale = StandardScaler().fit(data.X_train)
    alone = LogisticRegression().fit(scale.transform(data.X_train), data.y_train)
    expected = alone.predict_proba(scale.transform(data.X_test))
    np.testing.assert_allclose(table.outcomes["logistic"].answers.probs, expected, atol=1e-6)
    share = data.y_train.mean()
    np.testing.assert_allclose(table.outcomes["constant"].answers.probs, np.tile([1 - share, share], (20, 1)))


def test_a_fit_that_fails_is_left_out_unless_it_was_named(monkeypatch):
    fit = comparison.contender

    def failing(name, kind):
        def fails(*_):
            raise ConvergenceError("no mode in sight")

        return fails if name == "map" else fit(name, kind)

    monkeypatch.setattr(comparison, "contender", failing)
    template = NeuralAdditiveRegressor(hidden=4, epochs=5, burn_in=1)
    table = quietly(template, *line())
    assert table.table.index.tolist() == ["constant", "ridge", "laplace"]
    assert "MAP was left out, since its fit failed: no mode in sight" in table.footnotes
    with pytest.raises(ConvergenceError):
        quietly(template, *line(), posteriors=["map"])


def test_pictures_of_numbers_are_written(linear, tmp_path):
    paths = linear.save(tmp_path)
    assert [path.name for path in paths] == ["agreement.png", "calibration.png", "comparison.csv", "comparison.md"]
    assert all(image.imread(path)[..., :3].std() > 0.01 for path in paths if path.suffix == ".png")


def test_numbers_have_the_digits_that_their_column_needs():
    table = pd.DataFrame({"rmse": [0.00123456, 0.25, np.nan], "evidence_kind": ["", "", ""]})
    [rmse] = [column for column in measures.columns("numbers", None) if column.name == "rmse"]
    assert measures.written(table, rmse) == ["0.001235", "0.250000", ""]
    assert measures.written(table.assign(rmse=[98765.4, 1234567.0, 1e5]), rmse) == ["98765", "1234567", "100000"]


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.ones(80), "with numbers y that differ"),
        (np.arange(79.0), "y: expected 80 targets"),
        (np.where(np.arange(80) == 3, np.nan, 1.0), "y: expected finite numbers, got nan in row 3"),
        (np.ones((80, 2)), r"y: expected one number for each of the 80 rows of X, got shape \(80, 2\)"),
    ],
)
def test_refuses_numbers(y, message):
    with pytest.raises(InputError, match=message):
        compare(BayesianLinearRegression(), line()[0], y)


@pytest.mark.parametrize(
    "options", [{"posteriors": ["laplace"]}, {"reference": "ep"}, {"posteriors": ["map_temperature"]}]
)
def test_refuses_posteriors_that_the_estimator_has_not(options):
    with pytest.raises(OptionError, match="expected one of"):
        compare(BayesianLinearRegression(), *line(), **options)
