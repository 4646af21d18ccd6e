"""Effects, weights and explanations are the model's own; where it has none, predictions of changed rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from bayescope import BayesianLogisticRegression
from bayescope.report import judged as rows
from bayescope.report import reasons, statistics
from tests.report.conftest import HOSTILE

PLACES = np.array([4, 0, 9])


@pytest.mark.parametrize("name", ["additive_classes", "additive_numbers"])
def test_an_additive_model_tells_its_own_effects(name, request):
    case = request.getfixturevalue(name)
    told = reasons.influence(case.estimator, case.judged(), 0)
    assert isinstance(told, reasons.Effects)
    for shown in told.effects:
        own = case.estimator.effects(shown.feature, grid=shown.grid)
        assert shown.mean == pytest.approx(own.mean)
        assert shown.high == pytest.approx(own.high)
    drawn = [shown.feature for shown in told.effects] + [" & ".join(shown.features) for shown in told.surfaces]
    assert set(drawn) | set(told.silent) == set(case.estimator.importance().names)
    assert f"age & {HOSTILE}" in drawn + list(told.silent)


@pytest.mark.parametrize("name", ["additive_classes", "additive_numbers", "logistic", "three_classes", "linear"])
def test_parts_and_constant_sum_to_the_linear_predictor(name, request):
    case = request.getfixturevalue(name)
    told = reasons.explanations(case.estimator, case.judged(), PLACES)
    latent = np.asarray(case.estimator.predict_distribution(case.judged().rows(PLACES)).latent_mean)
    if latent.shape[1] > 1:
        latent = latent - latent.mean(1, keepdims=True)
    assert told.sums
    assert told.parts.sum(1) + told.constant == pytest.approx(latent, abs=1e-8)
    assert told.total == pytest.approx(latent, abs=1e-8)
    assert (told.low <= told.parts).all()
    assert (told.parts <= told.high).all()


def test_intervals_of_weights_are_the_posteriors(logistic):
    told = reasons.influence(logistic.estimator, logistic.judged(), 0)
    assert isinstance(told, reasons.Coefficients)
    posterior = logistic.estimator.posterior_
    half = 1.959964 * posterior.covariance.diagonal().sqrt().numpy()
    assert told.weights[0][0] == pytest.approx(posterior.mean.numpy())
    assert (told.weights[2] - told.weights[0])[0] == pytest.approx(half, rel=1e-5)
    assert told.names == ("width", "height", "noise")
    assert told.order[0] == 0


def test_weights_of_classes_are_told_against_their_mean(three_classes):
    told = reasons.influence(three_classes.estimator, three_classes.judged(), 0)
    assert told.weights[0].sum(0) == pytest.approx(np.zeros(4), abs=1e-9)
    draws = three_classes.estimator.posterior_.sample(20_000, generator=0).numpy()
    weights = draws[:, :9].reshape(-1, 3, 3)
    weights = weights - weights.mean(1, keepdims=True)
    assert told.weights[2][:, :3] == pytest.approx(np.quantile(weights, 0.975, axis=0), abs=0.05)
    assert told.names == ("width", "height", "noise")


def test_intervals_of_a_sampled_posterior_are_its_draws(logistic):
    model = BayesianLogisticRegression(posterior="metropolis", random_state=0, draws=300, tune=300, chains=2)
    with pytest.warns():
        model.fit(logistic.X, logistic.y)
    told = reasons.influence(model, logistic.judged(), 0)
    draws = model.posterior_.flat.numpy()
    assert told.weights[1][0] == pytest.approx(np.quantile(draws, 0.025, axis=0))


class Black:
    """A model of which nothing is known but its predictions, over the columns of another."""

    def __init__(self, estimator):
        self._estimator, self.classes_ = estimator, getattr(estimator, "classes_", None)

    def predict_distribution(self, X):
        return self._estimator.predict_distribution(X)


def test_partial_dependence_is_the_mean_of_changed_rows(logistic):
    judged = logistic.judged()
    told = reasons.influence(Black(logistic.estimator), judged, 0)
    assert isinstance(told, reasons.Dependence)
    some = np.random.default_rng(0).permutation(len(judged))[: reasons.AVERAGED]
    shown = next(curve for curve in told.curves if curve.feature == "height")
    for place in (0, 7, len(shown.grid) - 1):
        changed = logistic.X.iloc[some].assign(height=shown.grid[place])
        assert shown.mean[place] == pytest.approx(logistic.estimator.predict_proba(changed).mean(0))
    assert told.curves[0].feature == "width"
    assert (shown.low <= shown.mean).all()
    assert shown.low.min() >= 0


def test_labels_stay_labels_where_they_are_changed(additive_classes):
    judged = additive_classes.judged()
    told = reasons.influence(Black(additive_classes.estimator), judged, 0)
    shown = next(curve for curve in told.curves if curve.feature == "kind")
    assert shown.categorical
    assert set(shown.grid) == set(additive_classes.X["kind"])
    explained = reasons.explanations(Black(additive_classes.estimator), judged, PLACES)
    usual = additive_classes.X.iloc[PLACES].assign(kind=additive_classes.X["kind"].mode()[0])
    gone = additive_classes.estimator.predict_proba(additive_classes.X.iloc[PLACES])
    gone = gone - additive_classes.estimator.predict_proba(usual)
    assert explained.parts[:, 2] == pytest.approx(gone, abs=1e-9)
    assert not explained.sums


@pytest.mark.parametrize("kind", ["pandas", "polars", "numpy"])
def test_a_column_is_swapped_in_any_table(kind):
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0, 6.0]}, index=[7, 7, 9])
    X = {"pandas": frame, "numpy": frame.to_numpy()}.get(kind)
    if X is None:
        X = pytest.importorskip("polars").DataFrame({"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0, 6.0]})
    judged = rows.Judged(X, np.zeros(3), rows.RowNames.of(X), (), (), np.zeros(3), (), "y")
    swapped = np.asarray(judged.swapped(np.array([2, 0]), 1, np.array([1, 1])))
    assert swapped.tolist() == [[3.0, 5.0], [1.0, 5.0]]
    assert np.asarray(frame)[:, 1].tolist() == [4.0, 5.0, 6.0]


def test_doubt_lists_the_rows_of_the_largest_epistemic_sd(logistic):
    judged = logistic.judged()
    told = rows.predictions(logistic.estimator, judged)
    shown = statistics.doubt(judged, told, 0)
    p = logistic.estimator.predict_distribution(logistic.X)
    sd = np.sqrt(p.epistemic)[np.arange(len(judged)), p.probs.argmax(1)]
    assert shown.sd[shown.listed] == pytest.approx(np.sort(sd)[::-1][:15])
    wrong = logistic.estimator.predict(logistic.X) != logistic.y
    top = np.argsort(-sd, kind="stable")[:10]
    assert shown.most == pytest.approx(wrong.to_numpy()[top].mean())
    assert len(set(shown.explorable)) == len(shown.explorable)


def test_a_point_has_no_epistemic_uncertainty_and_doubt_says_so(logistic):
    model = BayesianLogisticRegression(posterior="map", standardize=True).fit(logistic.X, logistic.y)
    judged = rows.Judged.of(model, logistic.X, logistic.y, 0)
    shown = statistics.doubt(judged, rows.predictions(model, judged), 0)
    assert not shown.epistemic
    assert shown.sd.min() > 0
