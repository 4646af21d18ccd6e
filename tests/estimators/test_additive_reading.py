from __future__ import annotations

import pickle
import warnings
from typing import Any

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.exceptions import NotFittedError
from sklearn.inspection import partial_dependence
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from bayescope.errors import BayescopeWarning, InputError, InputTypeError, OptionError
from bayescope.estimators import BLOCK_NUMBERS, NeuralAdditiveClassifier, NeuralAdditiveRegressor
from tests.estimators.test_additive import COLUMNS, NEW, NUMBERS, SEVERAL, SMALL, THREE, TWO, X, classifier, regressor

# --- tables -----------------------------------------------------------------------------------------------------------


def test_tables_of_any_library_are_one_table():
    expected = regressor().predict(NEW)
    other = regressor(pl.from_pandas(X), pl.Series(NUMBERS))
    np.testing.assert_array_equal(other.predict(pl.from_pandas(NEW)), expected)
    np.testing.assert_array_equal(other.predict(NEW), expected)
    np.testing.assert_array_equal(other.predict(pl.from_pandas(NEW).to_arrow()), expected)
    assert other.feature_names_in_.tolist() == ["age", "dose", "ward"]


class Interchanged:
    """A table of a library that speaks the interchange protocol and nothing else."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self._frame = frame

    def __dataframe__(self, **options: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pandas leaves the protocol
            return self._frame.__dataframe__(**options)


def test_tables_that_speak_the_interchange_protocol_alone_have_names_too():
    model = regressor(Interchanged(X))
    assert model.feature_names_in_.tolist() == ["age", "dose", "ward"]
    np.testing.assert_array_equal(model.predict(Interchanged(NEW)), regressor().predict(NEW))


def test_columns_that_tell_nothing_do_no_harm():
    dull = X.assign(nothing=np.nan, constant=7.0, one="x")
    model = regressor(dull, epochs=30)
    new = NEW.assign(nothing=np.nan, constant=7.0, one="x")
    np.testing.assert_allclose(model.predict(new), regressor(epochs=30).predict(NEW), atol=0.2)
    explained = model.explain(new)
    for name in ("nothing", "constant", "one"):
        place = explained.names.index(name)
        np.testing.assert_allclose(explained.contributions[:, place], 0.0, atol=1e-9)
        np.testing.assert_allclose(explained.sds[:, place], 0.0, atol=1e-9)


@pytest.mark.parametrize("form", [np.asarray, torch.tensor, lambda x: x.tolist()], ids=["array", "tensor", "list"])
def test_tables_without_names_are_told_by_position(form):
    x, new = (frame[["age", "dose"]].to_numpy() for frame in (X, NEW))
    model = regressor(form(x))
    np.testing.assert_array_equal(model.predict(form(new)), regressor(X[["age", "dose"]]).predict(NEW[["age", "dose"]]))
    assert not hasattr(model, "feature_names_in_")
    assert list(model.prior_precision_) == ["x0", "x1"]


def test_names_that_one_of_two_tables_lacks_leave_the_positions():
    named, nameless = regressor(), regressor(X.to_numpy())
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        np.testing.assert_array_equal(named.predict(NEW.to_numpy()), named.predict(NEW))
    with pytest.warns(UserWarning, match="was fitted without feature names"):
        np.testing.assert_array_equal(nameless.predict(NEW), named.predict(NEW))


@pytest.mark.parametrize("columns", [["zip"], [1], [np.int64(1)]], ids=repr)
def test_numbers_that_are_labels_have_levels(columns):
    rng = np.random.default_rng(0)
    x = pd.DataFrame({"size": rng.uniform(size=120), "zip": rng.choice([1010, 5020, 8010], 120)})
    y = x["size"] + 3.0 * (x["zip"] == 5020) + 0.1 * rng.standard_normal(120)
    model = regressor(x, y, categorical=columns)
    assert model.effects("zip").grid.tolist() == [1010, 5020, 8010]
    assert model.score(x, y) > 0.9
    np.testing.assert_array_equal(model.predict(x[:5].astype({"zip": float})), model.predict(x[:5]))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda x: x[["age", "dose"]], ValueError, r"seen at fit time, yet now missing:\n- ward"),
        (lambda x: x.assign(more=1), ValueError, r"unseen at fit time:\n- more\nGive X\[model.feature_names_in_\]"),
        (lambda x: x[["dose", "age", "ward"]], ValueError, r"must be in the same order"),
        (lambda x: x.assign(age="old"), InputTypeError, r"column 'age': expected numbers, as fitted, got labels"),
        (lambda x: x.assign(ward=1.0), InputTypeError, r"column 'ward': expected labels, as fitted, got numbers"),
        (lambda x: x.assign(age=np.inf), InputError, r"finite numbers in column 'age', got inf in row 0"),
        (lambda x: x.assign(age=1e200), InputError, r"column 'age': .* too far out to compute with"),
        (lambda x: x.to_numpy()[:, :2], ValueError, r"X has 2 features, but .* expecting 3 features"),
        (lambda x: x["age"].to_numpy(), InputError, r"X: Expected 2D array, got 1D array"),
    ],
)
@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_another_table_than_was_fitted_is_refused(change, error, message):
    with pytest.raises(error, match=message):
        regressor().predict(change(NEW))


def test_a_column_beyond_the_table_that_is_named_by_position_is_told():
    x = X.to_numpy()[:, [0, 2]]
    with pytest.raises(ValueError, match=r"X has 1 features, but .* expecting 2 features"):
        regressor(x, categorical=[1]).predict(x[:, :1])


def test_tables_of_no_rows_have_no_predictions():
    assert regressor().predict(NEW[:0]).shape == (0,)
    assert classifier(y=THREE).predict_proba(NEW[:0]).shape == (0, 3)
    assert classifier().predict(NEW[:0]).shape == (0,)


def test_blocks_of_rows_do_not_show():
    model = classifier(y=THREE)
    times = 1 + BLOCK_NUMBERS // (3 * model.additive_.model.dim * len(X))
    many = pd.concat([X] * times)
    np.testing.assert_allclose(model.predict_proba(many), np.tile(model.predict_proba(X), (times, 1)), rtol=1e-12)


# --- what was never seen ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [regressor, classifier])
def test_what_was_never_seen_keeps_its_prior(make):
    model = make(X.assign(dose=X["dose"].fillna(2.0)), epochs=60)
    new = NEW.assign(ward=["a", "b", "c", None, "z", "z", "a"], dose=[1.0] * 6 + [np.nan])
    explained = model.explain(new)
    sds = dict(zip(explained.names, explained.sds.T, strict=True))
    scale = model.additive_.model.scale.item()
    known, prior = sds["ward"][:3], scale * model.prior_precision_["ward"]["levels"] ** -0.5
    assert (sds["ward"][3:6] > 1.5 * known.max()).all()
    np.testing.assert_allclose(sds["ward"][3:6], prior, rtol=0.3)
    assert sds["dose"][6] > sds["dose"][0]
    spread = model.predict_distribution(new).latent_cov[:, 0, 0]
    assert spread[4] > spread[0]
    assert spread[6] > spread[0]


def test_a_missing_value_has_its_own_effect():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 1))
    gone = rng.random(200) < 0.3
    x[gone] = np.nan
    effect = regressor(x, np.where(gone, 5.0, 0.0) + 0.1 * rng.standard_normal(200), epochs=60).effects(0)
    assert effect.missing.mean - effect.mean.mean() == pytest.approx(5.0, abs=0.1)
    assert effect.missing.density == pytest.approx(gone.mean())


# --- explaining -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("y", [NUMBERS, TWO, THREE], ids=["numbers", "two classes", "three"])
def test_contributions_sum_to_the_prediction(y):
    make = regressor if y is NUMBERS else classifier
    model = make(y=y, interactions=[("age", "ward")], structure="full")
    offset = np.linspace(-1.0, 1.0, len(NEW))
    offset = np.stack([offset, 0.0 * offset, offset], 1) if y is THREE else offset
    explained, told = model.explain(NEW, offset=offset, level=0.5), model.predict_distribution(NEW, offset=offset)
    assert explained.names == ("age", "dose", "ward", "age & ward")
    f = told.latent_mean - told.latent_mean.mean(1, keepdims=True) if y is THREE else told.latent_mean[:, 0]
    np.testing.assert_allclose(explained.total, f, atol=1e-10)
    parts = explained.contributions.sum(1) + explained.intercept + explained.offset
    np.testing.assert_allclose(parts, explained.total, atol=1e-12)
    if y is not THREE:
        whole = told.imputed == 0  # what a missing value may be is part of the prediction alone
        np.testing.assert_allclose(explained.total_sd[whole] ** 2, told.latent_cov[whole, 0, 0], rtol=1e-9)
        assert (explained.total_sd[~whole] ** 2 < told.latent_cov[~whole, 0, 0]).all()
    assert explained.level == 0.5
    assert explained.values[:, 2].tolist() == NEW["ward"].tolist()


def test_effects_surfaces_and_importance_are_those_of_the_model():
    model = regressor(interactions=[("age", "dose")])
    effect = model.effects("age", grid=[30.0, 50.0], level=0.8)
    assert (effect.grid.tolist(), effect.level) == ([30.0, 50.0], 0.8)
    rows = pd.DataFrame({"age": [30.0, 50.0], "dose": [1.0, 2.0], "ward": ["a", "b"]})
    np.testing.assert_allclose(effect.mean, model.explain(rows).contributions[:, 0], atol=1e-12)
    np.testing.assert_allclose(effect.sd, model.explain(rows).sds[:, 0], rtol=1e-9)
    np.testing.assert_allclose(model.effects(0, grid=[30.0, 50.0]).mean, effect.mean)
    surface = model.surface("age", "dose", grid=([30.0, 50.0], [1.0, 2.0]))
    np.testing.assert_allclose(np.diag(surface.mean), model.explain(rows).contributions[:, 3], atol=1e-12)
    assert model.importance(level=0.9).names == ("age", "dose", "ward", "age & dose")


@pytest.mark.parametrize(
    ("make", "names", "unit"),
    [
        (lambda: classifier(y=np.where(TWO, "dead", "alive")), (), "logit of 'dead'"),
        (lambda: classifier(y=THREE), ("0", "1", "2"), "logit, classes centred"),
        (lambda: classifier(y=pd.DataFrame(SEVERAL, columns=["ill", "a", "top"])), ("ill", "a", "top"), "logit"),
        (lambda: regressor(y=pd.Series(NUMBERS, name="price")), (), "price"),
        (lambda: regressor(y=COLUMNS), ("y0", "y1"), "y"),
        (
            lambda: regressor(likelihood="heteroscedastic_gaussian"),
            ("mean of y", "log variance of y"),
            "y, or its log variance",
        ),
    ],
    ids=["two classes", "three", "several labels", "named", "columns", "heteroscedastic"],
)
def test_answers_tell_the_names_of_the_outputs_and_their_unit(make, names, unit):
    model = make()
    answers = [model.effects("age"), model.explain(NEW), model.importance()]
    assert {(answer.outputs, answer.unit) for answer in answers} == {(names, unit)}
    count = max(1, len(names))
    assert (answers[0].mean.shape[1] if count > 1 else 1) == count
    if names:
        assert answers[1].as_frame()["output"][:count].tolist() == list(names)
        assert set(answers[2].as_frame()["output"]) == set(names)


def test_surfaces_tell_them_too():
    model = classifier(y=THREE, interactions=[("age", "dose")])
    assert model.surface("age", "dose").outputs == ("0", "1", "2")


def test_log_variances_are_the_last_outputs():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1.0, 1.0, (400, 1))
    y = 10.0 + np.where(x[:, 0] > 0, 1.0, 0.1) * rng.standard_normal(400)
    told = regressor(x, y, likelihood="heteroscedastic_gaussian", epochs=60).effects(0, grid=[-0.5, 0.5])
    rise = dict(zip(told.outputs, told.mean[1] - told.mean[0], strict=True))
    assert rise["log variance of y"] > 2.0 > abs(rise["mean of y"])


class Broken(np.random.RandomState):
    """Seeds that nobody can draw: a fit that asks for one ends when it has read its table."""

    error: type[BaseException]

    def randint(self, *_, **__):
        raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_fit_that_does_not_end_leaves_the_model_as_it_was(error):
    broken = Broken()
    broken.error = error
    model = classifier().set_params(random_state=broken)
    before, predicted = dict(vars(model)), model.predict_proba(NEW)
    with pytest.raises(error):
        model.fit(X.to_numpy()[:, :2].astype(float), THREE)
    assert vars(model) == before
    np.testing.assert_array_equal(model.predict_proba(NEW), predicted)
    fresh = NeuralAdditiveClassifier(**SMALL | {"random_state": broken})
    with pytest.raises(error):
        fresh.fit(X, THREE)
    assert not hasattr(fresh, "n_features_in_")


def test_text_that_is_mostly_numbers_is_told_once_when_it_is_fitted():
    text = [f"{age:.1f}" for age in X["age"]]
    x = X.assign(bmi=[*text[:-1], "?"])
    with pytest.warns(BayescopeWarning, match=r"column 'bmi': 98 % .* such as '.*', and '\?' is not") as told:
        model = regressor(x)
    assert len(told) == 1
    assert told[0].filename.endswith("test_additive.py")
    model.predict(x)
    regressor(x, categorical=["bmi"])


def test_what_the_model_has_no_term_for_is_refused():
    model = regressor()
    with pytest.raises(OptionError, match=r"feature: .*got 'town'"):
        model.effects("town")
    with pytest.raises(OptionError, match=r"pair: .*got 'age & ward', .*interactions=\[\('age', 'ward'\)\]"):
        model.surface("age", "ward")


@pytest.mark.parametrize(
    "ask",
    [
        lambda model: model.effects("age"),
        lambda model: model.surface("age", "dose"),
        lambda model: model.explain(NEW),
        lambda model: model.importance(),
        lambda model: model.summary(),
        lambda model: model.predict_distribution(NEW),
        lambda model: model.log_evidence_,
        lambda model: model.pairs_,
    ],
)
def test_nothing_is_told_before_the_fit(ask):
    with pytest.raises(NotFittedError):
        ask(NeuralAdditiveRegressor())


def test_the_summary_tells_terms_units_and_scales():
    told = regressor(interactions=1).summary()
    assert "inputs: age, dose: in standard deviations; ward: a level each" in told
    for line in ("Posterior by laplace", "prior precision: age", "noise variance", "log evidence"):
        assert line in told


# --- scikit-learn -----------------------------------------------------------------------------------------------------


def test_it_is_searched_cloned_and_scored_like_any_other_estimator():
    grid = {
        "neuraladditiveclassifier__hidden": [3, 5],
        "neuraladditiveclassifier__interactions": [0, [("age", "ward")]],
    }
    search = GridSearchCV(make_pipeline(NeuralAdditiveClassifier(**SMALL)), grid, cv=2, error_score="raise").fit(X, TWO)
    assert search.best_score_ > 0.6
    assert search.best_estimator_[-1].feature_names_in_.tolist() == ["age", "dose", "ward"]
    copied = clone(classifier(interactions=[("age", "ward")]))
    assert copied.get_params() == {
        **NeuralAdditiveClassifier().get_params(),
        **SMALL,
        "interactions": [("age", "ward")],
    }
    assert not hasattr(copied, "additive_")


def test_folds_are_fitted_side_by_side():
    with joblib.parallel_config(backend="threading"):
        beside = cross_val_score(NeuralAdditiveRegressor(**SMALL), X, NUMBERS, cv=3, n_jobs=2)
    np.testing.assert_array_equal(beside, cross_val_score(NeuralAdditiveRegressor(**SMALL), X, NUMBERS, cv=3))


@pytest.mark.parametrize("output", ["default", "pandas"])
def test_it_takes_what_a_column_transformer_gives(output):
    columns = make_column_transformer(
        (StandardScaler(), ["age"]), (OneHotEncoder(sparse_output=False), ["ward"]), remainder="passthrough"
    ).set_output(transform=output)
    pipeline = make_pipeline(columns, NeuralAdditiveRegressor(**SMALL)).fit(X, NUMBERS)
    assert pipeline.score(X, NUMBERS) > 0.8
    names = "standardscaler__age" if output == "pandas" else "x0"
    assert names in pipeline[-1].prior_precision_


def test_partial_dependence_is_the_effect():
    model = regressor()
    found = partial_dependence(model, X, ["age"], grid_resolution=5, method="brute")
    effect = model.effects("age", grid=found["grid_values"][0])
    np.testing.assert_allclose(np.ptp(found["average"][0] - effect.mean), 0.0, atol=1e-9)
    pairs = partial_dependence(model, X, ["age", "ward"], categorical_features=["ward"], grid_resolution=4)
    assert pairs["average"].shape == (1, 4, 3)


@pytest.mark.parametrize("y", [NUMBERS, THREE], ids=["numbers", "labels"])
def test_it_survives_pickling(y, tmp_path):
    model = regressor(interactions=1) if y is NUMBERS else classifier(y=y, interactions=1)
    joblib.dump(model, tmp_path / "model")
    for copied in (pickle.loads(pickle.dumps(model)), joblib.load(tmp_path / "model")):
        np.testing.assert_array_equal(copied.predict(NEW), model.predict(NEW))
        np.testing.assert_array_equal(copied.effects("age").sd, model.effects("age").sd)
        assert copied.summary() == model.summary()
