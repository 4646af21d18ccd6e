"""A posterior is held against the exact one for its own rows, and what is found is what slow references find."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

import bayescope as bs
from bayescope.errors import InputError
from bayescope.report import judged as rows
from bayescope.report import reference
from bayescope.report.reference import FunctionSpace, TrainingRows, standing
from bayescope.report.standing import _grounds, sentence, standing_blocks
from tests.report.conftest import Case


@pytest.fixture(scope="module", autouse=True)
def _packages():
    pytest.importorskip("nutpie", reason="the reference is NUTS")
    pytest.importorskip("arviz", reason="importance weights are smoothed by it")


def found_for(case, *, most=300_000, **options):
    return standing(case.estimator, case.judged(), TrainingRows(*case.fitted), "auto", 0, most=most, **options)


@pytest.fixture(scope="module")
def one_feature(logistic):
    """Few rows, so that Laplace's posterior is off: two weights, over which a grid integrates."""
    X, y = (part[:30] for part in logistic.fitted)
    model = bs.BayesianLogisticRegression(posterior="laplace", prior_precision=0.5, standardize=False)
    return Case(model.fit(X[["width"]], y), logistic.X[["width"]], logistic.y, (X[["width"]], y))


def integrated(case):
    """The probabilities of the second class and their sds under the exact posterior, by a grid over both weights."""
    X, y = case.fitted
    x, new = X["width"].to_numpy(), case.X["width"].to_numpy()
    truth, centre = (y == "b").to_numpy(), x.mean()
    slope, level = np.meshgrid(np.linspace(-6, 10, 500), np.linspace(-10, 10, 500))
    f = slope[..., None] * (x - centre) + level[..., None]
    log_joint = np.where(truth, -np.logaddexp(0, -f), -np.logaddexp(0, f)).sum(-1)
    log_joint += -0.5 * (0.5 * slope**2 + 0.01 * level**2)
    mass = np.exp(log_joint - log_joint.max())
    mass /= mass.sum()
    p = [1 / (1 + np.exp(-(slope * (at - centre) + level))) for at in new]
    mean = np.array([(mass * each).sum() for each in p])
    return mean, np.sqrt([(mass * (each - m) ** 2).sum() for each, m in zip(p, mean, strict=True)])


@pytest.fixture(scope="module")
def by_nuts(one_feature):
    return found_for(one_feature)


@pytest.fixture(scope="module")
def by_importance(one_feature):
    return found_for(one_feature, most=0)


@pytest.mark.parametrize("method", ["nuts", "importance"])
def test_a_posterior_is_as_wrong_as_integrals_over_the_exact_one_say(one_feature, method, request):
    mean, sd = integrated(one_feature)
    ours = one_feature.estimator.predict_distribution(one_feature.X)
    apart = np.abs(np.asarray(ours.probs)[:, 1] - mean)
    found = request.getfixturevalue(f"by_{method}")
    assert (found.method, found.rows, found.compared, found.directions) == (method, 30, 100, 2)
    assert found.mean.typical == pytest.approx(apart.mean(), abs=0.006)
    assert found.mean.largest == pytest.approx(apart.max(), abs=0.015)
    assert found.ratio == pytest.approx(np.median(np.sqrt(np.asarray(ours.epistemic)[:, 1]) / sd), rel=0.06)
    assert found.predictions[:, 0] == pytest.approx(np.maximum(mean, 1 - mean), abs=0.02)
    assert found.sds[:, 0] == pytest.approx(sd, rel=0.15)
    assert found.pareto_k < 0.7


def test_a_posterior_that_is_too_narrow_is_found(one_feature, by_nuts):
    """All sds of the weights halved: those of predictions are, and the sentence says so."""
    X, y = one_feature.fitted
    model = bs.BayesianLogisticRegression(posterior="laplace", prior_precision=0.5, standardize=False).fit(X, y)
    model.posterior_ = replace(model.posterior_, precision=model.posterior_.precision.scaled(4.0))
    found = found_for(one_feature._replace(estimator=model))
    assert found.ratio == pytest.approx(0.5 * by_nuts.ratio, rel=0.15)
    assert re.search(r"in the median row [45]\d.% too narrow", sentence(found, classes=True))


def test_an_additive_model_of_gaussian_noise_under_the_full_curvature_is_exact(additive_numbers):
    """Linearised at the mode, its posterior is that Gaussian: whatever the weights, of which there are many more."""
    X, y = additive_numbers.fitted
    X, judges = X.drop(columns="age"), additive_numbers.X.drop(columns="age")
    model = bs.NeuralAdditiveRegressor(structure="full", hidden=6, epochs=12, random_state=0).fit(X, y)
    judged = rows.Judged.of(model, judges, additive_numbers.y, 0)
    found = standing(model, judged, TrainingRows(X, y), "auto", 0, most=0)
    assert (found.method, found.linearized) == ("importance", True)
    assert found.directions < model.posterior_.sizes[0]
    assert found.mean.largest < 0.02
    assert found.spread.typical < 0.05
    assert found.ratio == pytest.approx(1.0, abs=0.04)
    assert found.pareto_k < 0.3


def test_a_network_is_held_against_its_linearisation(linear):
    """Under the full curvature and Gaussian noise Laplace's posterior is exact there; the last layer alone is, too."""
    X, y = (part[:30] for part in linear.fitted)
    case = linear._replace(fitted=(X, y))
    for posterior, options in (("laplace", {"structure": "full"}), ("last_layer", {"structure": "full"})):
        model = bs.BayesianMLPRegressor(
            hidden=(3,), posterior=posterior, posterior_options=options, prior_precision=1.0, random_state=0
        ).fit(X, y)
        found = found_for(case._replace(estimator=model), most=0)
        assert found.method == "importance", found.reason
        assert found.mean.noise < 0.015
        assert found.mean.largest < 4 * found.mean.noise
        assert found.ratio == pytest.approx(1.0, abs=0.04)
    point = bs.BayesianMLPRegressor(hidden=(3,), posterior="map", prior_precision=1.0, epochs=2, random_state=0)
    assert "only for Laplace's posterior" in found_for(case._replace(estimator=point.fit(X, y))).reason


@pytest.mark.parametrize("name", ["logistic", "additive_classes"])
def test_other_rows_than_those_that_were_fitted_are_refused(name, request):
    case = request.getfixturevalue(name)
    X, y = case.fitted
    wrong = TrainingRows(X, y.sample(frac=1, random_state=0).to_numpy())
    with pytest.raises(InputError, match="training: expected the rows that the model was fitted to, got others"):
        standing(case.estimator, case.judged(), wrong, "auto", 0, most=0)
    assert standing(case.estimator, case.judged(), TrainingRows(X, y), "auto", 0, most=0).rows == len(X)


@pytest.mark.parametrize("posterior", ["variational", "mean_field"])
def test_other_rows_are_refused_for_variational_posteriors_too(three_classes, posterior):
    X, y = three_classes.fitted
    model = bs.BayesianLogisticRegression(posterior=posterior).fit(X, y)
    case = three_classes._replace(estimator=model)
    wrong = TrainingRows(X, y.sample(frac=1, random_state=0).to_numpy())
    with pytest.raises(InputError, match="training: expected the rows that the model was fitted to, got others"):
        standing(model, case.judged(), wrong, "auto", 0, most=0)
    assert found_for(case, most=0).rows == len(X)


def test_errors_of_tiny_standard_deviations_do_not_decide(by_importance, one_feature, monkeypatch):
    """Below the least that matters they are errors of that."""
    exact, ours = by_importance.sds.T
    assert by_importance.spread.typical == pytest.approx(np.abs(ours / exact - 1).mean())
    least = float(np.median(exact))
    monkeypatch.setattr(reference, "LEAST_SD", least)
    spread = found_for(one_feature, most=0).spread
    off = np.abs(ours - exact) / np.maximum(exact, least)
    assert (spread.typical, spread.largest) == pytest.approx((off.mean(), off.max()))
    assert spread.noise < by_importance.spread.noise


def test_the_page_says_that_chance_may_explain_small_differences(by_importance):
    found = replace(by_importance, left_out=3)
    loud = replace(found, mean=found.mean._replace(noise=found.mean.typical))
    assert "chance alone may explain one of the averages" in _grounds(loud, True)[0]
    assert "3 rows with a missing value are left out" in _grounds(loud, True)[0]
    sure = replace(found, mean=found.mean._replace(noise=0.0), spread=found.spread._replace(noise=0.0))
    assert "chance" not in _grounds(sure, True)[0]


def test_weighted_rows_count_as_often(logistic):
    """A weight of 2 is the row twice."""
    X, y = logistic.fitted
    weights = np.ones(len(X))
    weights[:30] = 2.0
    model = bs.BayesianLogisticRegression(prior_precision=1.0).fit(X, y, sample_weight=weights)
    twice = TrainingRows(pd.concat([X, X[:30]]), pd.concat([y, y[:30]]))
    modes = []
    for training in (TrainingRows(X, y, weights), twice, TrainingRows(X, y)):
        density = FunctionSpace.of(model, training).density
        modes.append(density.outputs(density.mode(torch.zeros(density.dim, dtype=torch.float64)))[:100].numpy())
    assert modes[0] == pytest.approx(modes[1], abs=1e-6)
    assert np.abs(modes[0] - modes[2]).max() > 0.05


@pytest.mark.parametrize(
    "kind",
    [
        bs.BayesianLogisticRegression,
        bs.NeuralAdditiveClassifier,
        partial(bs.BayesianMLPClassifier, posterior="laplace", hidden=(4,), epochs=200, random_state=0),
    ],
    ids=["logistic", "additive", "mlp"],
)
def test_class_weights_multiply_those_of_the_rows(logistic, kind):
    """The density is that of the same rows with the weights by hand, and other weights are refused as other rows."""
    X, y = logistic.fitted
    labels, weights = np.where(y == y.iloc[0], "yes", "no"), np.linspace(0.5, 1.5, len(X))
    model = kind(prior_precision=1.0, class_weight={"yes": 4.0}).fit(X, labels, sample_weight=weights)
    by_hand = weights * np.where(labels == "yes", 4.0, 1.0)
    density = FunctionSpace.of(model, TrainingRows(X, labels, weights)).density
    np.testing.assert_allclose(density.weights, by_hand)
    with pytest.raises(InputError, match="rows"):
        FunctionSpace.of(model, TrainingRows(X, labels, weights[::-1].copy()))


def test_what_has_no_reference_says_why(linear, logistic, facts_of):
    exact = standing(linear.estimator, linear.judged(), None, "auto", 0)
    assert exact.method == "exact"
    untold = standing(logistic.estimator, logistic.judged(), None, "auto", 0)
    assert "training=(X, y) in Python, --training TABLE on the command line" in untold.reason
    sparse = bs.BayesianLogisticRegression(prior_precision="horseshoe").fit(*logistic.fitted)
    assert "a sparse prior" in standing(sparse, logistic.judged(), TrainingRows(*logistic.fitted), "auto", 0).reason
    (block,) = standing_blocks(replace(facts_of(logistic), standing=untold))
    assert block.look == "unknown"


@pytest.mark.parametrize("exposure", [None, "hours"])
def test_counts_are_held_against_the_exact_posterior_and_a_learnt_dispersion_is_not(exposure):
    """Of one weight, flat intercept and N(0, 1/2): a grid integrates the mean count."""
    source = np.random.default_rng(0)
    x = source.normal(size=12)
    hours = np.ones(12) if exposure is None else np.tile([0.5, 1.0, 3.0], 4)
    X, y = pd.DataFrame({"x": x, "hours": hours}), source.poisson(hours * np.exp(0.3 + 0.8 * x))
    X = X if exposure else X[["x"]]
    model = bs.BayesianGeneralizedLinearModel(likelihood="poisson", prior_precision=2.0, standardize=False)
    model.fit(X, y, exposure=exposure)
    case = Case(model, X, y, (X, y))
    found = found_for(case)
    slope, level = np.meshgrid(np.linspace(-3, 4, 700), np.linspace(-5, 3, 700))
    f = slope[..., None] * (x - x.mean()) + level[..., None] + np.log(hours)
    log_joint = (y * f - np.exp(f)).sum(-1) - slope**2
    mass = np.exp(log_joint - log_joint.max())
    exact = (mass[..., None] * np.exp(f)).sum((0, 1)) / mass.sum()
    assert (found.method, found.directions, found.linearized) == ("nuts", 2, False)
    assert found.predictions[:, 0] == pytest.approx(exact, rel=0.06)
    counted = bs.BayesianGeneralizedLinearModel(likelihood="negative_binomial").fit(X, y)
    assert "a learnt dispersion" in found_for(case._replace(estimator=counted)).reason


def test_three_classes_and_a_point(three_classes, one_feature, monkeypatch):
    found = found_for(three_classes, most=0)
    assert found.method == "importance"
    assert found.directions == 12
    assert found.mean.largest < 0.08
    # Of NUTS a few draws: what they are of is another test's.
    monkeypatch.setattr(reference, "TUNE", 50)
    monkeypatch.setattr(reference, "DRAWS", 20)
    monkeypatch.setattr(reference, "MIXED", np.inf)
    X, y = one_feature.fitted
    point = bs.BayesianLogisticRegression(posterior="map", prior_precision=0.5, standardize=False).fit(X, y)
    found = found_for(one_feature._replace(estimator=point))
    assert found.spread is None
    assert "It is a point and has no epistemic" in sentence(found, classes=True)
