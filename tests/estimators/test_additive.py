from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm

from bayescope.errors import InputError, InputTypeError, NotPositiveDefiniteError, OptionError, UnsupportedError
from bayescope.estimators import NeuralAdditiveClassifier, NeuralAdditiveRegressor
from tests.reference import regression

# Small nets, few epochs: what is tested here are laws that hold wherever training ends.
SMALL = {"hidden": 5, "epochs": 12, "random_state": 0}
ROWS = 90


def table(seed: int = 0, rows: int = ROWS) -> pd.DataFrame:
    """Two numbers, one with missing values, and labels."""
    rng = np.random.default_rng(seed)
    age, dose, ward = rng.uniform(20.0, 80.0, rows), rng.gamma(2.0, 1.0, rows), rng.choice(["a", "b", "c"], rows)
    frame = pd.DataFrame({"age": age, "dose": dose, "ward": ward})
    frame.loc[::8, "dose"] = np.nan
    return frame


def signal(x: pd.DataFrame) -> np.ndarray:
    waves = np.sin(x["age"].to_numpy() / 10.0)
    return 3.0 * waves + x["dose"].fillna(4.0).to_numpy() + 2.0 * (x["ward"] == "b").to_numpy()


def numbers(x: pd.DataFrame, seed: int = 1) -> np.ndarray:
    return signal(x) + 0.3 * np.random.default_rng(seed).standard_normal(len(x))


def labels(x: pd.DataFrame, classes: int = 2, seed: int = 1) -> np.ndarray:
    y = numbers(x, seed)
    return np.digitize(y, np.quantile(y, np.linspace(0.0, 1.0, classes + 1)[1:-1]))


X = table()
NEW = table(seed=5, rows=7)
NUMBERS, TWO, THREE = numbers(X), labels(X), labels(X, 3)
SEVERAL = np.stack([TWO, (X["ward"] == "a").to_numpy(), THREE == 2], 1).astype(int)
COLUMNS = np.stack([NUMBERS, 40.0 - 10.0 * X["age"].to_numpy()], 1)


def regressor(x=X, y=NUMBERS, *, weight=None, offset=None, **options) -> NeuralAdditiveRegressor:
    return NeuralAdditiveRegressor(**{**SMALL, **options}).fit(x, y, sample_weight=weight, offset=offset)


def classifier(x=X, y=TWO, *, weight=None, offset=None, **options) -> NeuralAdditiveClassifier:
    return NeuralAdditiveClassifier(**{**SMALL, **options}).fit(x, y, sample_weight=weight, offset=offset)


# --- what is fitted ---------------------------------------------------------------------------------------------------


def test_of_labels_with_known_scales_it_is_the_exact_model_of_random_effects():
    rng = np.random.default_rng(0)
    ward = np.array(["a", "b", "b", None, "c", "a", "b", "a"], dtype=object)
    weight, offset = np.array([1, 2, 1, 3, 1, 1, 2, 1]), rng.standard_normal(8)
    y = 50.0 + 4.0 * rng.standard_normal(8)
    options = {"prior_precision": 0.7, "noise_variance": 3.0, "structure": "full", "epochs": 30}
    model = regressor(pd.DataFrame({"ward": ward}), y, weight=weight, offset=offset, **options)

    levels = ["a", "b", "c", None, "new"]
    rows = np.repeat(np.arange(8), weight)
    spread = (y - offset)[rows]
    mean, scale = spread.mean(), spread.std()
    shown = np.array([[level == one for level in levels] for one in ward], dtype=float)
    share = shown[rows].mean(0)
    jacobian = torch.tensor(scale * np.column_stack([shown[rows] - share, np.ones(len(rows))]))
    noise = torch.full((len(rows),), 3.0, dtype=torch.float64)
    prior = torch.tensor([0.7] * 5 + [1e-4], dtype=torch.float64)
    zero = torch.zeros(6, dtype=torch.float64)
    theta, covariance, evidence = regression(jacobian, torch.tensor(spread - mean), noise, prior, zero)

    np.testing.assert_allclose(model.posterior_.mean, theta, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(model.posterior_.covariance, covariance, rtol=1e-6, atol=1e-9)
    assert model.log_evidence_ == pytest.approx(evidence, rel=1e-9)
    new = pd.DataFrame({"ward": np.array(levels, dtype=object)})
    at = torch.tensor(scale * np.column_stack([np.eye(5) - share, np.ones(5)]))
    predicted, sd = model.predict(new, return_std=True, offset=np.arange(5.0))
    np.testing.assert_allclose(predicted, mean + (at @ theta).numpy() + np.arange(5.0), rtol=1e-6)
    variance = torch.einsum("np,pq,nq->n", at, covariance, at)
    np.testing.assert_allclose(sd, (variance + 3.0).sqrt(), rtol=1e-6)
    assert model.noise_variance_ == pytest.approx(3.0)


def test_a_regression_finds_curved_effects_and_their_noise():
    x = table(rows=400)
    model = NeuralAdditiveRegressor(random_state=0).fit(x, numbers(x))
    new = table(seed=9, rows=300)
    mean, sd = model.predict(new, return_std=True)
    assert np.sqrt(np.mean((mean - signal(new)) ** 2)) < 0.15
    assert model.noise_variance_ == pytest.approx(0.09, rel=0.3)
    inside = np.abs(numbers(new, seed=4) - mean) < norm.ppf(0.975) * sd
    assert 0.91 < inside.mean() < 0.99


@pytest.mark.parametrize("y", [TWO, THREE], ids=["two classes", "three"])
def test_probabilities_of_classes_beat_their_shares(y):
    model = classifier(y=y)
    classes = len(np.unique(y))
    probs = model.predict_proba(X)
    assert probs.shape == (ROWS, classes)
    np.testing.assert_allclose(probs.sum(1), 1.0, atol=1e-9)
    assert -np.log(probs[np.arange(ROWS), y]).mean() < 0.5 * np.log(classes)
    np.testing.assert_array_equal(model.predict(X), model.classes_[probs.argmax(1)])
    np.testing.assert_allclose(model.predict_log_proba(X), np.log(probs), atol=2e-3)
    np.testing.assert_allclose(model.predict_distribution(X).probs, probs, atol=1e-12)


def test_several_labels_a_row_have_a_probability_each():
    model = classifier(y=pd.DataFrame(SEVERAL, columns=["ill", "first", "top"]))
    probs = model.predict_proba(X)
    assert probs.shape == (ROWS, 3)
    assert model.classes_.tolist() == ["ill", "first", "top"]
    np.testing.assert_array_equal(model.predict(X), (probs > 0.5).astype(int))
    assert (model.predict(X) == SEVERAL).mean(0).min() > 0.8
    np.testing.assert_allclose(model.predict_log_proba(X), np.log(probs))


def test_the_names_of_classes_do_not_matter():
    named = classifier(y=np.array(["low", "middle", "top"])[THREE])
    np.testing.assert_array_equal(named.predict_proba(NEW), classifier(y=THREE).predict_proba(NEW))
    assert set(named.predict(NEW)) <= {"low", "middle", "top"}


@pytest.mark.parametrize("likelihood", ["gaussian", "heteroscedastic_gaussian"])
def test_several_columns_of_y_have_an_effect_and_a_noise_each(likelihood):
    model = regressor(y=COLUMNS, likelihood=likelihood)
    mean, sd = model.predict(NEW, return_std=True)
    assert mean.shape == sd.shape == (len(NEW), 2)
    assert np.corrcoef(mean[:, 1], NEW["age"])[0, 1] < -0.99
    assert regressor(y=NUMBERS[:, None]).predict(NEW).shape == (len(NEW), 1)
    assert regressor().predict(NEW).shape == (len(NEW),)


def test_the_noise_of_columns_is_learnt_for_each():
    rng = np.random.default_rng(0)
    y = np.stack([signal(X), 5.0 * signal(X)], 1) + rng.standard_normal((ROWS, 2)) * [0.3, 6.0]
    noise = regressor(y=y, epochs=40).noise_variance_
    assert noise.shape == (2,)
    assert 0.03 < noise[0] < 0.3 < 15.0 < noise[1] < 70.0


def test_a_noise_that_depends_on_the_features_is_found():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1.0, 1.0, (400, 1))
    sd = np.where(x[:, 0] > 0, 1.0, 0.1)
    model = regressor(x, 10.0 + sd * rng.standard_normal(400), likelihood="heteroscedastic_gaussian", epochs=60)
    _, told = model.predict([[-0.5], [0.5]], return_std=True)
    np.testing.assert_allclose(told, [0.1, 1.0], rtol=0.35)
    assert not hasattr(model, "noise_variance_")


# --- units ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("likelihood", ["gaussian", "heteroscedastic_gaussian"])
def test_answers_follow_the_unit_of_y(likelihood):
    model, other = regressor(likelihood=likelihood), regressor(y=1000.0 * NUMBERS - 7.0, likelihood=likelihood)
    (mean, sd), (scaled, scaled_sd) = (one.predict(NEW, return_std=True) for one in (model, other))
    np.testing.assert_allclose(scaled, 1000.0 * mean - 7.0, rtol=1e-6)
    np.testing.assert_allclose(scaled_sd, 1000.0 * sd, rtol=1e-6)
    assert other.log_evidence_ == pytest.approx(model.log_evidence_ - ROWS * np.log(1000.0), abs=1e-5)


def test_noise_and_effects_are_in_the_unit_of_y():
    model, other = regressor(), regressor(y=1000.0 * NUMBERS - 7.0)
    assert other.noise_variance_ == pytest.approx(1e6 * model.noise_variance_)
    np.testing.assert_allclose(other.effects("age").mean, 1000.0 * model.effects("age").mean, rtol=1e-5)
    np.testing.assert_allclose(other.effects("age").sd, 1000.0 * model.effects("age").sd, rtol=1e-5)


def test_a_given_noise_is_in_the_unit_of_y():
    assert regressor(noise_variance=0.25).noise_variance_ == pytest.approx(0.25)
    np.testing.assert_allclose(regressor(y=COLUMNS, noise_variance=[0.25, 9.0]).noise_variance_, [0.25, 9.0])


def test_the_unit_of_a_feature_does_not_matter():
    scaled = X.assign(age=X["age"] * 1024.0 - 3.0)
    expected = regressor().predict(X)
    np.testing.assert_allclose(regressor(scaled).predict(scaled), expected, rtol=1e-6)


@pytest.mark.parametrize("transform", ["quantile", {"dose": "quantile"}], ids=str)
def test_scores_of_a_feature_do_not_see_a_monotone_change(transform):
    def changed(x: pd.DataFrame) -> pd.DataFrame:
        return x.assign(dose=np.exp(x["dose"]))

    plain, other = (regressor(x, numeric_transform=transform) for x in (X, changed(X)))
    np.testing.assert_allclose(other.predict(changed(X)), plain.predict(X), rtol=1e-6)
    assert "dose: as normal scores" in plain.summary()


# --- rows, weights, offsets -------------------------------------------------------------------------------------------


def same(model, other) -> None:
    """Bit for bit."""
    read = "predict_proba" if hasattr(model, "predict_proba") else "predict"
    np.testing.assert_array_equal(getattr(model, read)(NEW), getattr(other, read)(NEW))
    assert model.log_evidence_ == other.log_evidence_


@pytest.mark.parametrize(("make", "y"), [(regressor, NUMBERS), (classifier, THREE), (classifier, SEVERAL)])
def test_a_weight_is_so_many_rows_and_none_for_zero(make, y):
    weight = np.random.default_rng(0).integers(0, 3, ROWS)
    rows = np.random.default_rng(1).permutation(np.repeat(np.arange(ROWS), weight))
    offset = np.linspace(-1.0, 1.0, ROWS)
    offset = np.stack([offset] * 3, 1) if make is classifier else offset
    options = {"interactions": 1, "numeric_transform": "quantile"}
    weighted = make(X, y, weight=weight, offset=offset, **options)
    repeated = make(X.iloc[rows], y[rows], offset=offset[rows], **options)
    same(weighted, repeated)
    assert weighted.ranking_.equals(repeated.ranking_)
    np.testing.assert_array_equal(weighted.effects("ward").density, repeated.effects("ward").density)


def test_equal_rows_are_counted_where_numbers_are_scaled():
    x, y = np.repeat([[0.0], [10.0]], [90, 10], axis=0), np.tile([0, 1], 50)
    encoding = classifier(x, y).additive_.encoding.features[0]
    assert (encoding.scaling.mean, encoding.scaling.scale) == pytest.approx((1.0, 3.0))
    assert encoding.counts.sum() == 100.0


def test_the_same_seed_gives_the_same_model_and_another_one_another():
    same(regressor(), regressor())
    assert np.abs(regressor(random_state=1).predict(NEW) - regressor().predict(NEW)).max() > 0.0
    state = np.random.RandomState(0)
    first, second = (regressor(random_state=state) for _ in range(2))
    assert np.abs(first.predict(NEW) - second.predict(NEW)).max() > 0.0


def test_an_offset_is_taken_off_the_numbers():
    offset = np.linspace(-5.0, 20.0, ROWS)
    model = regressor(y=NUMBERS + offset, offset=offset)
    np.testing.assert_allclose(model.predict(NEW), regressor().predict(NEW), rtol=1e-9)
    ahead = np.arange(len(NEW)) * 2.0
    np.testing.assert_allclose(model.predict(NEW, offset=ahead), regressor().predict(NEW) + ahead, rtol=1e-9)


def test_an_offset_moves_the_mean_and_not_the_noise():
    offset = np.linspace(-5.0, 20.0, ROWS)
    model = regressor(y=NUMBERS + offset, offset=offset, likelihood="heteroscedastic_gaussian")
    plain = regressor(likelihood="heteroscedastic_gaussian")
    ahead = np.arange(len(NEW)) * 2.0
    (mean, sd), (expected, expected_sd) = model.predict(NEW, True, offset=ahead), plain.predict(NEW, True)
    np.testing.assert_allclose(mean, expected + ahead, rtol=1e-6)
    np.testing.assert_allclose(sd, expected_sd, rtol=1e-6)


@pytest.mark.parametrize(("y", "outputs"), [(TWO, 1), (THREE, 3), (SEVERAL, 3)], ids=["two", "three", "several"])
def test_an_offset_is_added_to_the_logits(y, outputs):
    model = classifier(y=y)
    offset = np.random.default_rng(0).standard_normal((len(NEW), outputs))
    plain, moved = model.predict_distribution(NEW), model.predict_distribution(NEW, offset=offset)
    np.testing.assert_allclose(moved.latent_mean, plain.latent_mean + offset)
    np.testing.assert_allclose(moved.latent_cov, plain.latent_cov)
    np.testing.assert_allclose(model.predict_proba(NEW, offset=offset), moved.probs)


def test_a_known_offset_leaves_nothing_to_the_features():
    rng = np.random.default_rng(0)
    x, f = rng.uniform(-1.0, 1.0, (500, 1)), np.repeat([-3.0, 3.0], 250)
    y = rng.random(500) < 1.0 / (1.0 + np.exp(-f))
    model = NeuralAdditiveClassifier(random_state=0).fit(x, y, offset=f)
    assert np.abs(model.predict_distribution(x).latent_mean).max() < 0.3
    assert model.log_evidence_ > NeuralAdditiveClassifier(random_state=0).fit(x, y).log_evidence_ + 50.0


# --- options ----------------------------------------------------------------------------------------------------------


def test_a_point_has_no_bands_and_no_evidence():
    point, laplace = regressor(posterior="map"), regressor()
    whole = NEW.dropna()
    np.testing.assert_allclose(point.predict(whole), laplace.predict(whole), rtol=1e-12)
    np.testing.assert_allclose(point.predict(NEW), laplace.predict(NEW), rtol=1e-3)
    assert (point.predict_distribution(whole).epistemic == 0.0).all()
    assert (laplace.predict_distribution(NEW).epistemic > 0.0).all()
    assert (point.effects("age").sd == 0.0).all()
    assert not hasattr(point, "log_evidence_")


def test_the_full_structure_has_the_larger_evidence():
    assert regressor(structure="full").log_evidence_ > regressor().log_evidence_


def test_prior_precisions_are_told_by_term_and_layer():
    model = regressor(interactions=[("ward", "age")])
    assert list(model.prior_precision_) == ["age", "dose", "ward", "age & ward"]
    assert model.prior_precision_["age"].keys() == {"inner", "outer"}
    assert model.prior_precision_["ward"].keys() == {"levels"}
    of_nets = regressor(share_prior="net").prior_precision_
    assert all(isinstance(value, float) for value in of_nets.values())
    fit = (of_net := regressor(share_prior="net")).additive_.fit
    fit.at.precisions[0][0] = torch.tensor([3.0, 1e8], dtype=torch.float64)  # as where a net is switched off
    told = of_net.prior_precision_[fit.problem.families[0].terms[0].name]
    assert told == {"inner": 3.0, "outer": 1e8}
    given = regressor(prior_precision=2.0)
    assert given.prior_precision_["age"] == {"inner": 2.0, "outer": 2.0}
    assert given.noise_variance_ < 0.3 * NUMBERS.var()  # which is learnt all the same


def test_pairs_are_named_however_they_were_chosen():
    given = classifier(interactions=[("dose", 0)])
    assert given.pairs_ == [("age", "dose")]
    assert given.ranking_ is None
    ranked = classifier(interactions=2)
    assert ranked.pairs_ == list(zip(ranked.ranking_["first"][:2], ranked.ranking_["second"][:2], strict=True))
    assert len(ranked.ranking_) == 3
    assert ranked.ranking_["score"].is_monotonic_decreasing
    assert set(classifier(interactions="auto").pairs_) <= {("age", "dose"), ("age", "ward"), ("dose", "ward")}


def test_a_product_is_found_among_the_pairs():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1.0, 1.0, (300, 3))
    y = 3.0 * x[:, 0] * x[:, 2] + x[:, 1] + 0.2 * rng.standard_normal(300)
    alone, paired = (regressor(x, y, interactions=count, hidden=8, epochs=60) for count in (0, 1))
    assert paired.pairs_ == [("x0", "x2")]
    assert paired.noise_variance_ < 0.2 < alone.noise_variance_
    assert paired.log_evidence_ > alone.log_evidence_ + 50.0


def test_the_fit_is_traced():
    model = regressor(epochs=20)
    assert set(model.trace_) == {"log_evidence", "log_joint", "noise_variance"}
    assert model.n_iter_ == len(model.trace_["log_evidence"]) <= 20
    assert "noise_variance" not in classifier().trace_


def test_the_evidence_is_asked_when_it_was_told_to_be():
    noise = np.array(regressor(burn_in=3, evidence_every=2).trace_["noise_variance"])
    moved = np.flatnonzero(np.diff(noise)) + 1
    assert moved[:3].tolist() == [4, 6, 8]
    once, twice = (regressor(burn_in=3, evidence_steps=steps).trace_["noise_variance"][4] for steps in (1, 2))
    assert once != twice


def test_nets_are_as_wide_as_they_were_told_to_be():
    model = regressor(hidden=3, pair_hidden=7, interactions=[("age", "dose")])
    assert [family.weights for family in model.additive_.model.families] == [3 * 3 + 1, 5, 7 * 4 + 1]


def test_it_can_be_fitted_in_inference_mode():
    with torch.inference_mode():
        model = regressor()
    np.testing.assert_array_equal(model.predict(NEW), regressor().predict(NEW))


# --- bad input --------------------------------------------------------------------------------------------------------

DATES = pd.date_range("2020-01-01", periods=ROWS)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"x": X.assign(day=DATES)}, InputTypeError, r"column 'day', got dates.*days since a date"),
        ({"x": X.assign(dose=np.inf)}, InputError, r"finite numbers in column 'dose', got inf in row 0"),
        ({"x": X.assign(mix=[1, "x"] * 45)}, InputTypeError, r"labels alone in column 'mix', got 1 and 'x'"),
        ({"x": X.assign(thing=[{}] * ROWS)}, InputTypeError, r"in column 'thing', got \{\} \(dict\) in row 0"),
        ({"x": X.assign(dose=1e200)}, InputError, r"column 'dose': expected numbers whose squares are floats"),
        ({"y": np.where(TWO == 1, np.nan, 0.0)}, InputError, r"y: expected a label in each row"),
        (
            {"y": np.where([0, 0, 1], 1, SEVERAL)},
            InputError,
            r"y: expected both 0 and 1 .* got 1 in all rows of column 2\.",
        ),
        ({"y": np.zeros(ROWS)}, InputError, r"y: expected at least two classes, got one class"),
        ({"weight": TWO}, InputError, r"y: expected at least two classes, got one class"),
        ({"weight": -np.ones(ROWS)}, InputError, r"sample_weight: expected no negative weights"),
        ({"offset": np.ones((ROWS, 2))}, InputError, r"offset: expected shape \(90,\), got \(90, 2\)"),
        ({"offset": np.full(ROWS, np.nan)}, InputError, r"offset: expected finite numbers"),
        ({"interactions": [("age", "wart")]}, OptionError, r"interactions: .*got 'wart'\. Did you mean 'ward'\?"),
        ({"interactions": "all"}, OptionError, r"interactions: expected a number of pairs, pairs or 'auto', got 'all'"),
        ({"interactions": -1}, InputError, r"interactions: expected a whole number of at least 0"),
        ({"ranking": "gain"}, OptionError, r"ranking: expected one of 'evidence', 'mutual_information'"),
        ({"posterior": "lapace"}, OptionError, r"posterior: .*Did you mean 'laplace'\?"),
        ({"structure": "kfac"}, OptionError, r"structure: expected one of 'block', 'full'"),
        ({"numeric_transform": "log"}, OptionError, r"^numeric_transform: expected one of 'standard', 'quantile'"),
        (
            {"numeric_transform": {"ward": "quantile"}},
            UnsupportedError,
            r"^numeric_transform: .*got 'ward', which holds labels",
        ),
        ({"categorical": ["town"]}, OptionError, r"categorical: .*got 'town'"),
        ({"prior_precision": -1.0}, InputError, r"prior_precision: expected a positive number"),
        (
            {"prior_precision": {"age": 1.0}},
            InputError,
            r"a positive number for all weights or 'evidence', got \{'age'",
        ),
        ({"share_prior": "scalar"}, OptionError, r"share_prior: expected one of 'net', 'layer'"),
        ({"hidden": 0}, InputError, r"hidden: expected a whole number of at least 1"),
        ({"progress": "yes"}, InputTypeError, r"progress: expected True or False"),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else None,
)
def test_what_cannot_be_fitted_is_refused_by_name(changes, error, message):
    with pytest.raises(error, match=message):
        classifier(**changes)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"y": np.where(np.arange(ROWS) == 5, np.nan, 0.0)},
            InputError,
            r"y: expected finite numbers, got nan in row 5\.",
        ),
        ({"y": X["ward"]}, InputTypeError, r"y: expected real numbers"),
        ({"likelihood": "poison"}, OptionError, r"likelihood: expected one of .*'gaussian'.*got 'poison'"),
        ({"noise_variance": 0.0}, InputError, r"noise_variance: expected positive numbers"),
        ({"noise_variance": "learn"}, OptionError, r"noise_variance: expected one of 'evidence'"),
        ({"noise_variance": [1.0, 2.0]}, InputError, r"expected a number or 1 of them"),
        (
            {"noise_variance": 1.0, "likelihood": "heteroscedastic_gaussian"},
            InputError,
            r"expected 'evidence' for likelihood='heteroscedastic_gaussian'",
        ),
        ({"x": X[:1], "y": NUMBERS[:1]}, InputError, r"minimum of 2 is required to learn how much y varies"),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else None,
)
def test_what_cannot_be_regressed_is_refused_by_name(changes, error, message):
    with pytest.raises(error, match=message):
        regressor(**changes)


@pytest.mark.parametrize("likelihood", ["student_t", "laplace_noise", "gamma", "log_normal", "weibull"])
def test_constant_numbers_have_no_noise_that_could_be_learnt(likelihood: str):
    with pytest.raises(InputError, match=f"y: expected numbers that vary for likelihood='{likelihood}'"):
        regressor(y=np.full(ROWS, 2.0), likelihood=likelihood)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e9 + 0.3])
def test_constant_numbers_have_no_heteroscedastic_model(value: float):
    offset = numbers(table())
    for y, given in ((np.full(ROWS, value), None), (offset + value, offset)):
        with pytest.raises(InputError, match="y: expected numbers that vary for likelihood='heteroscedastic_gaussian'"):
            regressor(y=y, offset=given, likelihood="heteroscedastic_gaussian")


def test_numbers_without_noise_have_no_heteroscedastic_model():
    x = np.linspace(0.0, 1.0, 30)[:, None]
    with pytest.raises(NotPositiveDefiniteError, match=r"y: expected noise .* Use likelihood='gaussian'"):
        regressor(x, np.round(x[:, 0]), likelihood="heteroscedastic_gaussian", epochs=300)
    assert regressor(x, np.round(x[:, 0]), epochs=100).score(x, np.round(x[:, 0])) > 0.9


def test_one_row_is_enough_where_the_noise_is_given():
    model = regressor(X[:1], NUMBERS[:1], noise_variance=1.0)
    np.testing.assert_allclose(model.predict(X[:1]), NUMBERS[:1], rtol=1e-3)


# --- groups -----------------------------------------------------------------------------------------------------------


def sites(rows: int = 120) -> tuple[pd.DataFrame, np.ndarray]:
    """Rows of seven sites by number, which have effects of their own."""
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"site": rng.choice(7, rows, p=[0.3, 0.2, 0.2, 0.1, 0.1, 0.06, 0.04]) * 10})
    return frame, rng.normal(0.0, 2.0, 7)[frame["site"] // 10] + rng.standard_normal(rows)


def test_random_effects_are_those_of_the_exact_model():
    frame, y = sites()
    model = regressor(frame, y, groups="site", prior_precision=0.5, noise_variance=0.8, intercept_prior_precision=1e-9)
    effects = model.random_effects()
    codes = (frame["site"] // 10).to_numpy()
    levels = np.eye(7)[codes]
    # f = b + θ_l − the mean of θ over the data, θ ~ N(0, 1/δ) in y's unit.
    X = np.column_stack([np.ones(len(y)), levels - levels.mean(0)])
    precision = X.T @ X / 0.8 + np.diag([1e-12, *[0.5 / y.var()] * 7])
    covariance = np.linalg.inv(precision)
    mean = covariance @ X.T @ y / 0.8
    assert effects["level"].tolist() == [*range(0, 70, 10), "unseen"]
    np.testing.assert_allclose(effects["mean"][:7], mean[1:], atol=1e-6)
    np.testing.assert_allclose(effects["sd"][:7], np.sqrt(np.diag(covariance)[1:]), rtol=1e-6)
    assert effects["rows"].tolist() == [*np.bincount(codes), 0]
    assert effects["mean"][7] == pytest.approx(0.0, abs=1e-9)
    assert effects["sd"][7] == pytest.approx(np.sqrt(y.var() / 0.5), rel=1e-6)
    new = model.predict_distribution(pd.DataFrame({"site": [990]}))
    population = np.append(1.0, -levels.mean(0))
    expected = population @ covariance @ population + y.var() / 0.5
    assert float(new.epistemic.ravel()[0]) == pytest.approx(expected, rel=1e-6)
    assert float(new.mean.ravel()[0]) == pytest.approx(population @ mean, abs=1e-6)


def test_columns_in_groups_are_labels_as_those_in_categorical_are():
    frame, y = sites()
    frame["dose"] = np.random.default_rng(0).normal(size=len(frame))
    grouped, named = regressor(frame, y, groups=[0]), regressor(frame, y, categorical=["site"])
    np.testing.assert_array_equal(grouped.predict(frame), named.predict(frame))
    assert set(grouped.random_effects()["group"]) == {"site"}
    with pytest.raises(AttributeError, match="random_effects: expected a fit with groups="):
        named.random_effects()


def test_random_effects_of_classes_have_an_output_each():
    frame, y = sites()
    effects = classifier(frame, np.digitize(y, [-1.0, 1.0]), groups="site").random_effects()
    assert effects.columns.tolist() == ["group", "level", "output", "mean", "sd", "rows"]
    assert len(effects) == 3 * 8
    np.testing.assert_allclose(effects.groupby("level")["mean"].sum(), 0.0, atol=1e-9)
