"""Values that are missing when predicting: answers are integrated over what the training rows say of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

import bayescope as bs
from bayescope import BayesianLinearRegression, BayesianLogisticRegression
from bayescope.posterior import InputRows


def random_table(seed: int, rows: int = 300) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    """Correlated columns in units of their own, and y with noise."""
    source = np.random.default_rng(seed)
    columns = int(source.integers(2, 6))
    units = 10.0 ** source.uniform(-3, 3, columns)
    numbers = source.standard_normal((rows, columns)) @ source.standard_normal((columns, columns))
    y = numbers @ source.standard_normal(columns) + 0.3 * source.standard_normal(rows)
    return units * (numbers + 3.0 * source.standard_normal(columns)), y, source


def with_gaps(X: np.ndarray, source: np.random.Generator, share: float) -> np.ndarray:
    return np.where(source.random(X.shape) < share, np.nan, X)


def integral(model: Any, row: np.ndarray, X: np.ndarray) -> tuple[float, float]:
    """Mean and sd of y where the missing values of a row are those of each training row in turn."""
    missing = np.isnan(row)
    every = np.repeat(row[None], len(X), 0)
    every[:, missing] = X[:, missing]
    mean, sd = model.predict(every, return_std=True)
    return float(mean.mean()), float(np.sqrt((sd**2).mean() + mean.var()))


@pytest.mark.parametrize("seed", range(8))
def test_the_sd_is_that_of_the_integral_over_the_training_rows(seed: int):
    X, y, source = random_table(seed)
    model = BayesianLinearRegression(standardize=True, prior_precision=1.0).fit(X, y)
    rows = with_gaps(X[:20], source, 0.5)
    mean, sd = model.predict(rows, return_std=True)
    expected = np.array([integral(model, row, X) for row in rows])
    np.testing.assert_allclose(mean, expected[:, 0], atol=1e-6 * np.abs(y).max())
    np.testing.assert_allclose(sd, expected[:, 1], rtol=1e-6)


@pytest.mark.parametrize("share", [0.1, 0.4])
def test_intervals_cover_rows_with_random_gaps(share: float):
    covered: list[np.ndarray] = []
    for seed in range(12):
        X, y, source = random_table(seed, rows=800)
        model = BayesianLinearRegression(standardize=True).fit(X[:400], y[:400])
        answer = model.predict_distribution(with_gaps(X[400:], source, share))
        low, high = answer.interval(0.95)
        covered.append((low[:, 0] <= y[400:]) & (y[400:] <= high[:, 0]))
    assert 0.93 <= np.mean(covered) <= 0.97


@pytest.mark.parametrize("posterior", ["map", "laplace", "variational"])
def test_a_class_probability_is_the_mean_over_the_training_rows(posterior: str):
    X, y, source = random_table(3)
    labels = np.digitize(y, np.quantile(y, [0.5]))
    model = BayesianLogisticRegression(standardize=True, posterior=posterior).fit(X, labels)
    for row in with_gaps(X[:10], source, 0.4):
        every = np.repeat(row[None], len(X), 0)
        every[:, np.isnan(row)] = X[:, np.isnan(row)]
        expected = model.predict_proba(every).mean(0)
        # The missing values are taken as normal.
        np.testing.assert_allclose(model.predict_proba(row[None])[0], expected, atol=0.03)


def test_whole_rows_have_the_same_answers_beside_rows_with_gaps():
    X, y, _ = random_table(0)
    model = BayesianLinearRegression(standardize=True).fit(X, y)
    rows = X[:10].copy()
    rows[3, 0] = np.nan
    whole, beside = (model.predict_distribution(table) for table in (X[:10], rows))
    others = [place for place in range(10) if place != 3]
    for name in ("mean", "epistemic", "aleatoric"):
        np.testing.assert_array_equal(getattr(beside, name)[others], getattr(whole, name)[others])
    np.testing.assert_array_equal(whole.imputed, 0)
    np.testing.assert_array_equal(beside.imputed, np.arange(10) == 3)
    assert "missing values: 1 values in 1 rows, by column x0 (1)" in beside.summary()
    assert "missing values" not in whole.summary()
    assert "imputed" not in whole.to_frame().columns
    np.testing.assert_array_equal(beside.to_frame()["imputed"], beside.imputed)


def test_gaps_in_training_leave_the_variance_of_a_missing_value():
    """Of n gaps, a share s of the rows, 1 − s of it beside the noise, and 1/n for the mean effect of a gap."""
    X, y, source = random_table(1, rows=600)
    added = []
    for gaps in (0, 1, 10, 300):
        trained = X.copy()
        trained[source.permutation(600)[:gaps], 0] = np.nan
        model = BayesianLinearRegression(standardize=True, prior_precision=1.0).fit(trained, y)
        row = X[:1].copy()
        row[0, 0] = np.nan
        weight = model.coef_[model.weight_names_.index("x0")]
        imputed = model.posterior_.predict(stand_ins(model, row)).epistemic[0, 0]
        added.append((model.predict_distribution(row).epistemic[0, 0] - imputed) / weight**2)
    np.testing.assert_allclose(added, [1.0, 2.0, 1 - 10 / 600 + 1 / 10, 0.5 + 1 / 300], rtol=0.1)


REGRESSORS = {
    "linear": lambda seed: BayesianLinearRegression(),
    "additive": lambda seed: bs.NeuralAdditiveRegressor(interactions=[(0, 1)] if seed % 2 else 0, random_state=seed),
    "network": lambda seed: bs.BayesianMLPRegressor(
        hidden=(8,), posterior="map", prior_precision=1.0, epochs=60, random_state=seed
    ),
}
CLASSIFIERS = {
    "linear": lambda seed: BayesianLogisticRegression(),
    "additive": lambda seed: bs.NeuralAdditiveClassifier(random_state=seed),
    "network": lambda seed: bs.BayesianMLPClassifier(
        hidden=(8,), posterior="map", prior_precision=1.0, epochs=60, random_state=seed
    ),
}


GAPS = [(kind, gaps) for kind in REGRESSORS for gaps in ((0, 5, 150) if kind == "network" else (0, 1, 5, 30, 150))]


def gapped(seed: int, gaps: int, rows: int = 300) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.random.Generator]:
    """Two independent columns in units of their own, what the first one adds to f, and rows of which some lack it."""
    source = np.random.default_rng(seed)
    X = source.standard_normal((rows + 500, 2))
    effect = (2.0 * X[:, 0], 2.0 * X[:, 0] + 0.5 * np.sin(2.0 * X[:, 0]), -1.5 * X[:, 0])[seed % 3]
    trained = (10.0 ** source.uniform(-3, 3)) * X + source.standard_normal()
    lacking = np.concatenate([source.permutation(rows)[:gaps], np.arange(rows, rows + 500)])
    trained[lacking, 0] = np.nan
    return trained, effect, X[:, 1], source


@pytest.mark.parametrize(("kind", "gaps"), GAPS)
def test_a_missing_value_has_the_sd_of_the_training_distribution_however_many_gaps_there_were(kind: str, gaps: int):
    ratios, covered = [], []
    for seed in range(3):
        trained, effect, other, source = gapped(seed, gaps)
        y = effect + other + 0.2 * source.standard_normal(len(other))
        answer = REGRESSORS[kind](seed).fit(trained[:300], y[:300]).predict_distribution(trained[300:])
        ratios.append(np.sqrt(answer.variance.mean() / (effect.var() + 0.04)))
        low, high = answer.interval(0.95)
        covered.append(((low[:, 0] <= y[300:]) & (y[300:] <= high[:, 0])).mean())
        np.testing.assert_array_equal(answer.imputed, 1)
        assert "missing values: 500 values in 500 rows" in answer.summary()
    few = gaps in (1, 5)  # the mean effect of a gap is not known well
    # A network was never trained on the missing column's numbers beside the mark of a gap.
    assert (0.75 if kind == "network" else 0.9) < np.mean(ratios) < (1.6 if few else 1.15)
    assert np.mean(covered) > (0.88 if few or kind == "network" else 0.93)


@pytest.mark.parametrize(("kind", "gaps"), GAPS)
def test_a_missing_value_leaves_a_class_as_open_as_the_training_distribution_does(kind: str, gaps: int):
    excess = []
    z = np.linspace(-6.0, 6.0, 241)
    mass = np.exp(-0.5 * z**2) / np.exp(-0.5 * z**2).sum()
    for seed in range(2):
        trained, effect, other, source = gapped(seed, gaps)
        y = source.random(len(other)) < expit(1.5 * effect + other)
        p = CLASSIFIERS[kind](seed).fit(trained[:300], y[:300]).predict_proba(trained[300:])[:, 1]
        best = expit(1.5 * effect.std() * z + other[300:, None]) @ mass
        excess.append(np.mean(np.where(y[300:], np.log(best / p), np.log((1 - best) / (1 - p)))))
    assert np.mean(excess) < (0.06 if gaps in (1, 5) else 0.03)


def stand_ins(model: Any, row: np.ndarray) -> Any:
    """The row with its stand-ins as if they were known."""
    return InputRows(model.transform_inputs(row))


def labelled(seed: int, rows: int = 500) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    source = np.random.default_rng(seed)
    labels = np.array(["ash", "beech", "cedar", "douglas"])
    codes = source.choice(4, rows, p=[0.4, 0.3, 0.2, 0.1])
    frame = pd.DataFrame({"tree": labels[codes], "height": source.standard_normal(rows)})
    return frame, 2.0 * codes + frame["height"].to_numpy() + 0.3 * source.standard_normal(rows), codes


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("stranger", ["fir", None])
@pytest.mark.parametrize("encoding", ["ordinal", "one_hot", "target"])
def test_a_label_without_a_code_is_as_uncertain_as_the_labels_are(encoding: str, stranger: str | None, seed: int):
    frame, y, codes = labelled(seed)
    model = BayesianLinearRegression(encoding=encoding, standardize=True).fit(frame, y)
    row = pd.DataFrame({"tree": pd.Series([stranger], dtype=object), "height": [0.0]})
    answer = model.predict_distribution(row)
    assert answer.imputed is not None
    assert answer.imputed[0] == 1
    mean, sd = model.predict(row, return_std=True)
    effects = 2.0 * codes
    assert sd[0] >= 0.98 * np.sqrt(effects.var() + 0.09)
    assert abs(mean[0] - effects.mean()) < 2.0 * sd[0]
    if encoding != "one_hot":
        assert mean[0] == pytest.approx(effects.mean(), abs=0.3)
        assert sd[0] == pytest.approx(np.sqrt(effects.var() + 0.09), rel=0.1)


@pytest.mark.parametrize("features", ["polynomial", "rbf"])
def test_features_are_made_of_what_the_missing_value_may_be(features: str):
    X, y, _ = random_table(2)
    model = BayesianLinearRegression(standardize=True, features=features, random_state=0).fit(X, y)
    row = X[5].copy()
    row[1] = np.nan
    mean, sd = model.predict(row[None], return_std=True)
    expected = integral(model, row, X)
    assert mean[0] == pytest.approx(expected[0], abs=0.15 * expected[1])
    assert sd[0] == pytest.approx(expected[1], rel=0.15)


@pytest.mark.parametrize("standardize", [False, True])
def test_the_posterior_reads_the_estimators_tables(standardize: bool, tmp_path: Path):
    frame, y, _ = labelled(0)
    labels = np.digitize(y, np.quantile(y, [0.3, 0.7]))
    rows = frame.head(30).assign(height=lambda t: t["height"].where(t.index != 4))
    for model in (
        BayesianLinearRegression(standardize=standardize).fit(frame, y),
        BayesianLogisticRegression(standardize=standardize, prior_precision=1.0).fit(frame, labels),
    ):
        model.save(tmp_path / "model.bayes")
        model.posterior_.save(tmp_path / "posterior.bayes")
        expected = model.predict_distribution(rows)
        for posterior in (
            model.posterior_,
            bs.load(tmp_path / "model.bayes").posterior_,
            bs.load(tmp_path / "posterior.bayes"),
        ):
            answer = posterior.predict(rows)
            for name in ("mean", "variance", "epistemic", "imputed"):
                np.testing.assert_array_equal(getattr(answer, name), getattr(expected, name))
        with pytest.raises(ValueError, match="feature names"):
            model.posterior_.predict(rows.rename(columns={"height": "size"}))
        f = model.posterior_.sample_functions(frame.head(3), 4000, generator=0)
        np.testing.assert_allclose(f.mean(0), model.predict_distribution(frame.head(3)).latent_mean, atol=0.1)


def test_the_posterior_is_conditioned_on_rows_of_the_estimators_table():
    X, y, _ = random_table(4)
    model = BayesianLinearRegression(standardize=True, prior_precision=1.0, noise_variance=0.1).fit(X[:150], y[:150])
    whole = model.posterior_.condition((X[150:], y[150:]))
    inputs = model.transform_inputs(X)
    theirs = BayesianLinearRegression(standardize=False, prior_precision=1.0, noise_variance=0.1).fit(inputs, y)
    np.testing.assert_allclose(whole.predict(X[:5]).mean[:, 0], theirs.predict(inputs[:5]), rtol=1e-8)


@pytest.mark.parametrize("posterior", ["laplace", "ensemble", "map"])
def test_a_network_is_read_at_what_the_missing_value_may_be(posterior: str):
    source = np.random.default_rng(0)
    X = source.standard_normal((200, 2))
    y = 2.0 * np.tanh(X[:, 0]) + X[:, 1] + 0.1 * source.standard_normal(200)
    options = {"members": 2} if posterior == "ensemble" else {}
    model = bs.BayesianMLPRegressor(hidden=(8,), epochs=8, posterior=posterior, random_state=0, **options).fit(X, y)
    row = np.array([np.nan, 0.5])
    mean, sd = model.predict(row[None], return_std=True)
    expected = integral(model, row, X)
    assert mean[0] == pytest.approx(expected[0], abs=0.1 * expected[1])
    assert sd[0] == pytest.approx(expected[1], rel=0.1)
    answer = model.posterior_.predict(row[None])
    np.testing.assert_array_equal(answer.imputed, [1])
    np.testing.assert_allclose(np.sqrt(answer.variance[0, 0]), sd[0], rtol=1e-9)
    assert model.predict(row[None][:0]).shape == (0,)


@pytest.mark.parametrize("posterior", ["laplace", "map"])
@pytest.mark.parametrize("structure", ["block", "full"])
def test_an_additive_model_is_integrated_over_the_values_that_it_was_fitted_to(structure: str, posterior: str):
    source = np.random.default_rng(0)
    labels = source.choice(np.array(["ash", "beech", "cedar"], dtype=object), 150, p=[0.6, 0.3, 0.1])
    frame = pd.DataFrame({"a": source.standard_normal(150), "b": source.standard_normal(150), "tree": labels})
    y = 2.0 * np.sin(2.0 * frame["a"]) + frame["b"] * frame["a"] + 2.0 * (labels == "beech")
    y = y + 0.1 * source.standard_normal(150)
    model = bs.NeuralAdditiveRegressor(
        interactions=[("a", "b")], structure=structure, posterior=posterior, random_state=0
    ).fit(frame, y)
    for gone in (["a"], ["tree"], ["a", "tree"]):
        row = frame.iloc[[3]].copy()
        row[gone] = None
        row = row.astype({"a": float})
        every = frame.iloc[[3] * 150].reset_index(drop=True)
        every[gone] = frame[gone]
        answers, answer = model.predict_distribution(every), model.predict_distribution(row)
        sd = np.sqrt(answers.epistemic.mean() + answers.mean.var())
        if len(gone) == 2:  # each feature by itself
            assert np.sqrt(answer.epistemic[0, 0]) == pytest.approx(sd, rel=0.15)
            continue
        assert answer.mean[0, 0] == pytest.approx(answers.mean.mean(), abs=0.1 * sd)
        assert np.sqrt(answer.epistemic[0, 0]) == pytest.approx(sd, rel=0.05)


def test_a_label_that_was_never_seen_keeps_its_prior_in_an_additive_model():
    frame, y, _ = labelled(0)
    model = bs.NeuralAdditiveRegressor(random_state=0).fit(frame, y)
    row = pd.DataFrame({"tree": pd.Series(["fir"], dtype=object), "height": [0.0]})
    answer = model.predict_distribution(row)
    np.testing.assert_array_equal(answer.imputed, 0)
    assert answer.epistemic[0, 0] > 1.0
