"""The baseline: its temperature is the minimum of the held-out loss, and it learns that from rows it has not seen."""

import numpy as np
import pandas as pd
import pytest
from scipy.special import log_softmax

from bayescope.comparison import contenders
from bayescope.comparison.answers import class_log_probs
from bayescope.estimators import BayesianLogisticRegression


def held_out(rows=4000, classes=3, seed=0):
    """Log probabilities, and labels drawn from them."""
    source = np.random.default_rng(seed)
    log_probs = log_softmax(2 * source.normal(size=(rows, classes)), axis=1)
    uniform = source.uniform(size=(rows, 1))
    return log_probs, (np.exp(log_probs).cumsum(1) < uniform).sum(1).clip(max=classes - 1)


def loss(log_probs, y, temperature):
    return -log_softmax(log_probs / temperature, axis=1)[np.arange(len(y)), y].sum()


@pytest.mark.parametrize("true", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("classes", [2, 3])
def test_undoes_a_wrong_temperature(true, classes):
    calibrated, y = held_out(classes=classes)
    sharpened = log_softmax(calibrated * true, axis=1)
    assert contenders.fit_temperature(sharpened, y) == pytest.approx(true, rel=0.08)


def test_is_the_minimum_of_the_loss_and_so_no_worse_than_leaving_it():
    log_probs, y = held_out(200, seed=3)
    best = contenders.fit_temperature(log_probs, y)
    nearby = [loss(log_probs, y, best * factor) for factor in (0.9, 0.99, 1.01, 1.1)]
    assert loss(log_probs, y, best) <= min(nearby)
    assert loss(log_probs, y, best) <= loss(log_probs, y, 1.0)


def test_perfect_rows_drive_it_to_the_end_of_the_range():
    log_probs, _ = held_out(50)
    assert contenders.fit_temperature(log_probs, log_probs.argmax(1)) == pytest.approx(contenders.TEMPERATURES[0])


def test_rows_against_the_labels_drive_it_to_the_other_end():
    log_probs, _ = held_out(50)
    assert contenders.fit_temperature(log_probs, log_probs.argmin(1)) == pytest.approx(contenders.TEMPERATURES[1])


def test_probabilities_that_round_to_zero_and_one_are_no_obstacle():
    log_probs = np.array([[-1000.0, 0.0], [0.0, -1000.0], [-1000.0, 0.0]])
    assert contenders.fit_temperature(log_probs, np.array([1, 0, 0])) == pytest.approx(contenders.TEMPERATURES[1])


def test_the_temperature_of_map_comes_from_rows_that_its_fold_has_not_seen():
    # Noise with as many features as a fold can fit perfectly: on its own rows MAP would want to be sharper still.
    source = np.random.default_rng(0)
    X = pd.DataFrame(source.normal(size=(60, 30))).add_prefix("x")
    y = np.repeat(["no", "yes"], 30)
    template = BayesianLogisticRegression(prior_precision=0.01)
    point, scaled = (contenders.contender(name)(template, X, y, 0) for name in ("map", "map_temperature"))
    codes = (y == "yes").astype(int)
    assert contenders.fit_temperature(class_log_probs(point.predict, X, 2), codes) < 0.5
    ratio = class_log_probs(point.predict, X, 2) @ [-1, 1] / (class_log_probs(scaled.predict, X, 2) @ [-1, 1])
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-9)
    assert ratio[0] > 3
    assert scaled.note.startswith(f"temperature {ratio[0]:.3f}, fitted on 5 folds")
    assert scaled.posterior is None


@pytest.mark.filterwarnings("ignore:prior_precision")  # of a fold's four rows: a point separates them
def test_the_baselines_probabilities_are_those_of_its_log_probabilities():
    X, y = pd.DataFrame({"x": [-2.0, -1.0, 0.0, 0.5, 1.0, 2.0]}), np.array([0, 0, 1, 0, 1, 1])
    scaled = contenders.contender("map_temperature")(BayesianLogisticRegression(), X, y, 0)
    np.testing.assert_allclose(scaled.predict(X).probs, np.exp(class_log_probs(scaled.predict, X, 2)))
    assert "folds of the training rows" in scaled.note
