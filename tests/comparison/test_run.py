"""The comparison's figures: against hand computation, against the estimators themselves, and against the promises."""

import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.preprocessing import FunctionTransformer

from bayescope import metrics
from bayescope.comparison import compare
from bayescope.errors import (
    BayescopeWarning,
    ConvergenceWarning,
    InputError,
    InputTypeError,
    MissingDependencyError,
    OptionError,
    UnsupportedError,
)
from bayescope.estimators import BayesianLogisticRegression

pytest.importorskip("nutpie")

COLUMNS = [
    "nll",
    "brier",
    "ece",
    "auroc",
    "tv_to_nuts",
    "sd_error",
    "log_evidence",
    "evidence_kind",
    "loo",
    "loo_warnings",
    "fit_seconds",
    "predict_seconds",
]
SECONDS = ["fit_seconds", "predict_seconds"]
BINARY = ["map", "map_temperature", "laplace", "mean_field", "variational", "ep", "nuts"]


def blobs(classes=2, rows=120, seed=0):
    source = np.random.default_rng(seed)
    y = source.integers(classes, size=rows)
    centres = 1.5 * np.array([[np.cos(k), np.sin(k)] for k in 2 * np.pi * np.arange(classes) / classes])
    X = pd.DataFrame(centres[y] + source.normal(size=(rows, 2)), columns=["width", "height"])
    return X, pd.Series(y, name="kind")


def quick(**options):
    return BayesianLogisticRegression(standardize=True, draws=300, tune=200, chains=2, **options)


def quietly(*arguments, **options):
    """A comparison whose short chains may warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BayescopeWarning)
        return compare(*arguments, **options)


@pytest.fixture(scope="module")
def binary():
    return quietly(quick(), *blobs())


def test_every_posterior_has_a_row_and_every_measure_a_column(binary):
    assert binary.table.index.tolist() == BINARY
    assert binary.table.columns.tolist() == COLUMNS
    assert binary.table.index.name == "posterior"


def test_scores_are_those_of_the_predictions(binary):
    y = binary.split.y_test
    for name, outcome in binary.outcomes.items():
        row, p = binary.table.loc[name], outcome.answers.probs
        assert row["nll"] == pytest.approx(log_loss(y, p), abs=1e-9)
        assert row["brier"] == pytest.approx(((p[:, 1] - y) ** 2).mean(), abs=1e-9)
        assert row["auroc"] == pytest.approx(roc_auc_score(y, p[:, 1]), abs=1e-9)
        assert row["ece"] == metrics.ece(p, y)


def test_a_row_equals_the_estimator_fitted_alone(binary):
    data = binary.split
    alone = BayesianLogisticRegression(standardize=True).fit(data.X_train, data.y_train)
    np.testing.assert_allclose(binary.outcomes["laplace"].answers.probs, alone.predict_proba(data.X_test), atol=1e-9)
    assert binary.table.loc["laplace", "log_evidence"] == pytest.approx(alone.log_evidence_)


def test_distances_to_the_reference_by_hand(binary):
    truth = binary.outcomes["nuts"]
    for name, outcome in binary.outcomes.items():
        gap = np.abs(outcome.answers.probs[:, 1] - truth.answers.probs[:, 1]).mean()
        assert binary.table.loc[name, "tv_to_nuts"] == pytest.approx(gap, abs=1e-12)
    sd = np.sqrt(np.diag(binary.outcomes["laplace"].fitted.posterior.covariance))
    sd_truth = truth.fitted.posterior.draws.reshape(-1, 3).numpy().std(0, ddof=1)
    assert binary.table.loc["laplace", "sd_error"] == pytest.approx(np.abs(sd / sd_truth - 1).max())


def test_the_reference_is_at_no_distance_from_itself(binary):
    assert binary.table.loc["nuts", ["tv_to_nuts", "sd_error"]].tolist() == [0.0, 0.0]


def test_evidence_and_bound_are_told_apart_and_ordered(binary):
    kinds = binary.table["evidence_kind"].to_dict()
    assert kinds == dict(zip(BINARY, ["", "", "estimate", "lower bound", "lower bound", "estimate", ""], strict=True))
    evidence = binary.table["log_evidence"]
    assert evidence["mean_field"] <= evidence["variational"] <= evidence["ep"] + 0.05


def test_what_is_undefined_is_blank_and_explained(binary):
    blank = binary.table.isna()
    assert blank.loc["map", ["sd_error", "log_evidence", "loo", "loo_warnings"]].all()
    assert blank.loc["map_temperature", ["sd_error", "log_evidence", "loo", "loo_warnings"]].all()
    assert blank.loc["nuts"].sum() == 1
    [note] = [note for note in binary.footnotes if note.startswith("Blank")]
    assert "a point has no spread (MAP)" in note
    assert "no log evidence (NUTS)" in note


def test_approximations_of_an_easy_posterior_are_close_to_nuts(binary):
    close = binary.table.drop(index="map_temperature")
    assert close["tv_to_nuts"].max() < 0.03
    assert close["sd_error"].max() < 0.4
    assert np.ptp(close["loo"].dropna()) < 1.0


def test_the_temperature_is_told_and_leaves_the_ranking_alone(binary):
    assert any(note.startswith("MAP + temperature: temperature ") for note in binary.footnotes)
    assert binary.table.loc["map_temperature", "auroc"] == binary.table.loc["map", "auroc"]


def test_the_seed_decides_everything_but_the_time():
    tables = [
        quietly(quick(), *blobs(), posteriors=["laplace"], random_state=seed).table.drop(columns=SECONDS)
        for seed in (3, 3, 4)
    ]
    pd.testing.assert_frame_equal(tables[0], tables[1])
    assert not tables[0].equals(tables[2])


def test_three_classes_leave_ep_out():
    comparison = quietly(quick(), *blobs(3))
    assert comparison.table.index.tolist() == [name for name in BINARY if name != "ep"]
    assert comparison.table.loc[["laplace", "variational"], "tv_to_nuts"].max() < 0.05
    assert comparison.split.classes == ("kind = 0", "kind = 1", "kind = 2")


def test_another_reference_needs_no_sampler():
    comparison = compare(quick(), *blobs(), posteriors=["map"], reference="laplace")
    assert comparison.table.index.tolist() == ["map", "laplace"]
    assert comparison.table.loc["laplace", "tv_to_laplace"] == 0.0


def test_labels_of_any_kind_and_plain_arrays_give_the_same_figures():
    X, y = blobs()
    options = {"posteriors": ["map"], "reference": "laplace"}
    plain = compare(quick(), X.to_numpy(), y.to_numpy(), **options).table
    named = compare(quick(), X, y.map({0: "no", 1: "yes"}), **options).table
    pd.testing.assert_frame_equal(plain.drop(columns=SECONDS), named.drop(columns=SECONDS))


def test_a_learnt_prior_is_one_for_all_posteriors():
    comparison = compare(
        quick(prior_precision="evidence"), *blobs(), posteriors=["map", "variational", "ep"], reference="laplace"
    )
    assert any(note.startswith("Prior precision: ") for note in comparison.footnotes)
    data = comparison.split
    options = {"standardize": True}
    learnt = BayesianLogisticRegression(prior_precision="evidence", **options).fit(data.X_train, data.y_train)
    same = BayesianLogisticRegression(prior_precision=learnt.prior_precision_, posterior="ep", **options).fit(
        data.X_train, data.y_train
    )
    np.testing.assert_allclose(comparison.outcomes["ep"].answers.probs, same.predict_proba(data.X_test), atol=1e-8)


@pytest.mark.filterwarnings("ignore:posterior='laplace'")
def test_a_learnt_prior_is_learnt_on_the_features_that_are_compared():
    template = quick(features="rbf", prior_precision="evidence", random_state=1)
    outcome = compare(template, *blobs(), posteriors=["laplace"], reference="laplace", random_state=5)
    data = outcome.split
    alone = template.set_params(random_state=5, draws=None, tune=None, chains=None).fit(data.X_train, data.y_train)
    alone.set_params(posterior="laplace", prior_precision=alone.prior_precision_).fit(data.X_train, data.y_train)
    np.testing.assert_allclose(outcome.outcomes["laplace"].answers.probs, alone.predict_proba(data.X_test), atol=1e-8)


class Warns(FunctionTransformer):
    """Features whose fit warns."""

    def fit(self, X, y=None):
        warnings.warn("evidence is flat", ConvergenceWarning, stacklevel=1)
        return super().fit(X, y)


def test_a_warning_of_the_learnt_prior_reaches_the_caller_and_the_footnotes():
    template = quick(prior_precision="evidence", features=Warns())
    with pytest.warns(ConvergenceWarning, match="evidence is flat"):
        comparison = compare(template, *blobs(), posteriors=["map"], reference="laplace")
    assert comparison.footnotes[-1] == "Prior precision, warning: evidence is flat"


def test_the_template_is_left_as_it_was():
    template = quick(posterior="ep", random_state=7)
    before = template.get_params()
    compare(template, *blobs(), posteriors=["map"], reference="laplace")
    assert template.get_params() == before
    assert not hasattr(template, "posterior_")


def test_a_sampler_that_warns_warns_the_caller_and_the_reader():
    with pytest.warns(BayescopeWarning) as caught:
        comparison = compare(quick().set_params(draws=20, tune=20), *blobs(), posteriors=["map"])
    told = [note for note in comparison.footnotes if note.startswith("NUTS, warning: ")]
    assert told[0].removeprefix("NUTS, warning: ") in {str(warning.message) for warning in caught}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"posteriors": ["laplase"]}, OptionError, "Did you mean 'laplace'"),
        ({"posteriors": "laplace"}, InputTypeError, "posteriors: expected a list of names"),
        ({"reference": "map_temperature"}, OptionError, "reference: expected one of"),
        ({"test_size": 1.5}, InputError, "test_size"),
        ({"random_state": -1}, InputError, "random_state: expected an int from 0 to 4294967295, got -1"),
        ({"random_state": 2**32}, InputError, "random_state: expected an int"),
        ({"random_state": np.random.RandomState(0)}, InputTypeError, "random_state: .* got RandomState"),
        ({"random_state": None}, InputTypeError, "random_state: .* got NoneType"),
    ],
)
def test_refuses_options(options, error, message):
    with pytest.raises(error, match=message):
        compare(quick(), *blobs(), **options)


def test_the_largest_seed_is_taken():
    compare(quick(), *blobs(), posteriors=["map_temperature"], reference="laplace", random_state=np.int64(2**32 - 1))


class NoFit(FunctionTransformer):
    """Features that fail a test where an estimator is fitted."""

    def fit(self, X, y=None):
        raise AssertionError(f"fitted to {X}, {y}")


@pytest.mark.parametrize(
    ("link", "options", "message"),
    [
        ("logit", {"posteriors": ["laplace", "ep"]}, "posterior='ep': expected two classes, got 3"),
        ("logit", {"posteriors": ["laplace"], "reference": "ep"}, "posterior='ep': expected two classes, got 3"),
        ("probit", {}, "link='probit': expected two classes, got 3"),
    ],
)
def test_what_needs_two_classes_is_refused_before_the_first_fit(link, options, message):
    with pytest.raises(UnsupportedError, match=message):
        compare(quick(link=link, features=NoFit()), *blobs(3), **options)


@pytest.mark.parametrize(
    ("package", "reference"), [("nutpie", "nuts"), ("arviz", "nuts"), ("arviz", "metropolis"), ("arviz", "laplace")]
)
def test_a_missing_package_is_missed_before_the_first_fit(monkeypatch, package, reference):
    monkeypatch.setitem(sys.modules, package, None)  # which is imported no more
    with pytest.raises(MissingDependencyError, match=rf"{package} is needed here .*bayescope\[nuts\]"):
        compare(quick(features=NoFit()), *blobs(), posteriors=["map"], reference=reference)


def test_points_need_no_package(monkeypatch):
    for package in ("nutpie", "arviz"):
        monkeypatch.setitem(sys.modules, package, None)
    assert len(compare(quick(), *blobs(), posteriors=["map_temperature"], reference="map").table) == 2


@pytest.mark.parametrize("estimator", [None, "laplace", BaseEstimator(), BayesianLogisticRegression])
def test_refuses_what_is_no_estimator_to_compare(estimator):
    with pytest.raises(InputTypeError, match="estimator: expected an estimator of this library"):
        compare(estimator, *blobs())


def test_the_noise_of_the_reference_is_told(binary):
    chains = binary.outcomes["nuts"].fitted.posterior.draws.numpy().std(axis=1, ddof=1)
    errors = chains.std(axis=0, ddof=1) / chains.mean(axis=0) / np.sqrt(2)
    expected = f"NUTS is a sample: it knows a weight's sd to ±{100 * np.sqrt((errors**2).mean()):.1f} %"
    assert any(note.startswith(expected) for note in binary.footnotes)


def test_an_empty_list_of_posteriors_is_refused():
    with pytest.raises(InputError, match="posteriors: expected at least one name"):
        compare(quick(), *blobs(), posteriors=[])
