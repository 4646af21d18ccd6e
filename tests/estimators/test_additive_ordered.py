"""Additive models of ordered classes: their laws, their cutpoints, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import is_classifier
from sklearn.model_selection import cross_val_score

import bayescope as bs
from bayescope.errors import InputError, InputTypeError, UnsupportedError

NAMES = ["poor", "fair", "good", "best"]
CUTS = np.array([-1.0, 0.5, 2.0])
# The two columns are the only ones that tell something.
OPTIONS: dict[str, Any] = {"likelihood": "ordinal", "random_state": 0, "hidden": 8}


def truth(x: np.ndarray) -> np.ndarray:
    return np.asarray(1.5 * np.sin(1.5 * x[:, 0]) + 0.8 * x[:, 1])


def table(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and classes 0 to 3."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2.0, 2.0, (rows, 2))
    return x, np.digitize(truth(x) + rng.logistic(size=rows), CUTS)


def fitted(x: object, y: object, **options: Any) -> bs.NeuralAdditiveRegressor:
    return bs.NeuralAdditiveRegressor(**OPTIONS | options).fit(x, y)


@pytest.fixture(scope="module")
def model() -> bs.NeuralAdditiveRegressor:
    return fitted(*table(300))


def test_it_is_a_classifier_of_numbers_and_of_ordered_categories(model: bs.NeuralAdditiveRegressor) -> None:
    x, y = table(300)
    assert is_classifier(model)
    cases = {
        "numbers": (2.5 * y - 1.0, [-1.0, 1.5, 4.0, 6.5]),
        "names": (pd.Categorical.from_codes(y, NAMES, ordered=True), NAMES),
    }
    for other, classes in cases.values():
        again = fitted(x, other)
        assert list(again.classes_) == classes
        np.testing.assert_array_equal(again.predict_proba(x), model.predict_proba(x))
        np.testing.assert_array_equal(again.predict(x), np.array(classes)[model.predict(x)])
        assert again.score(x, other) == model.score(x, y) > 0.4
    loss = cross_val_score(bs.NeuralAdditiveRegressor(**OPTIONS), x, y, scoring="neg_log_loss", cv=2)
    assert loss.mean() > -np.log(4)


def test_the_order_of_rows_and_the_units_of_columns_change_nothing(model: bs.NeuralAdditiveRegressor) -> None:
    x, y = table(300)
    order = np.random.default_rng(1).permutation(300)
    np.testing.assert_array_equal(fitted(x[order], y[order]).predict_proba(x), model.predict_proba(x))
    weights = 1 + np.arange(300) % 2
    twice = np.repeat(np.arange(300), weights)
    one, two = bs.NeuralAdditiveRegressor(**OPTIONS).fit(x, y, weights), fitted(x[twice], y[twice])
    np.testing.assert_array_equal(one.predict_proba(x), two.predict_proba(x))
    moved = x * [1e-3, 1e4] + [5.0, -100.0]
    np.testing.assert_allclose(fitted(moved, y).predict_proba(moved), model.predict_proba(x), atol=1e-3)


def test_the_opposite_order_has_the_opposite_effects(model: bs.NeuralAdditiveRegressor) -> None:
    x, y = table(300)
    other = fitted(x, 3 - y)
    np.testing.assert_allclose(other.effects(0).mean, -model.effects(0).mean, atol=1e-2)
    np.testing.assert_allclose(other.predict_proba(x)[:, ::-1], model.predict_proba(x), atol=1e-3)
    assert other.log_evidence_ == pytest.approx(model.log_evidence_, abs=1e-2)


@pytest.mark.parametrize("likelihood", ["ordinal", "ordinal_probit", "given"])
def test_effects_of_labels_are_those_of_the_linear_model(likelihood: str) -> None:
    """Levels with a given prior precision have a column of 0 and 1 each in a linear model of the same prior."""
    rng = np.random.default_rng(2)
    levels = rng.integers(0, 4, 250)
    y = np.digitize(np.array([-1.0, 0.0, 0.5, 1.5])[levels] + rng.logistic(size=250), CUTS)
    asked: Any = bs.Ordinal(cutpoints=CUTS) if likelihood == "given" else likelihood
    frame, columns = pd.DataFrame({"level": np.array(list("abcd"))[levels]}), np.eye(4)[levels]
    additive = fitted(frame, y, likelihood=asked, prior_precision=2.0, structure="full")
    linear = bs.BayesianGeneralizedLinearModel(
        likelihood=asked, prior_precision=2.0, standardize=False, posterior="laplace"
    ).fit(columns, y)
    gaps = [
        each.likelihood_.known("cutpoints").numpy() - each.predict_distribution(rows).latent_mean
        for each, rows in ((additive, frame), (linear, columns))
    ]
    np.testing.assert_allclose(*gaps, atol=1e-3)
    np.testing.assert_allclose(additive.predict_proba(frame), linear.predict_proba(columns), atol=1e-3)


def test_cutpoints_and_probabilities_are_as_right_as_the_rows_tell() -> None:
    z, gap, shares = [], [], []
    for seed in range(6):
        x, y = table(400, seed)
        found = fitted(x, y)
        likelihood, f = found.likelihood_, torch.from_numpy(found.predict_distribution(x).latent_mean)
        targets, names = likelihood.targets(y, 1), ("cutpoints",)

        def total(cutpoints: torch.Tensor) -> torch.Tensor:
            return likelihood.with_hyperparameters(cutpoints=cutpoints).log_prob(f, targets).sum()  # noqa: B023

        information = -torch.autograd.functional.hessian(total, likelihood.known(*names))
        sd = information.inverse().diagonal().sqrt().numpy()
        z.append((likelihood.known(*names).numpy() - (CUTS - truth(x).mean())) / sd)
        x, y = table(2_000, 100 + seed)
        p = found.predict_proba(x)
        right = np.diff(1.0 / (1.0 + np.exp(truth(x)[:, None] - [-np.inf, *CUTS, np.inf])), axis=1)
        rows = np.arange(len(y))
        gap.append(np.log(right[rows, y]).mean() - np.log(p[rows, y]).mean())
        shares.append((y < 2).mean() - p[:, :2].sum(1).mean())
    assert 0.6 < np.sqrt(np.square(z).mean()) < 1.5
    assert np.mean(gap) < 0.03
    assert abs(np.mean(shares)) < 0.02


def test_the_effect_on_the_mean_is_the_probability_of_each_class() -> None:
    x, y = table(300)
    gone = np.arange(300) % 10 == 0
    one = fitted(np.where(gone[:, None], np.nan, x[:, :1]), y)
    link, mean = (one.effects(0, grid=9, scale=scale) for scale in ("link", "mean"))
    assert mean.outputs == ("0", "1", "2", "3")
    np.testing.assert_allclose(mean.mean, one.predict_proba(mean.grid[:, None]), atol=1e-6)
    share = np.linspace(0.0, 1.0, 4001)[:, None]
    inside = torch.from_numpy(link.low + share * (link.high - link.low))[..., None]
    p = one.likelihood_.conditional(inside + float(one.posterior_.location[-1]))[0].numpy()
    np.testing.assert_allclose(mean.low, p.min(0), atol=1e-5)
    np.testing.assert_allclose(mean.high, p.max(0), atol=1e-5)
    assert (mean.sd > 0).all()
    assert mean.missing is not None
    assert mean.missing.mean.sum() == pytest.approx(1.0)
    assert ((mean.missing.low < mean.missing.mean) & (mean.missing.mean < mean.missing.high)).all()
    subtitles = [[text.get_text() for text in bs.plots.effects([each]).texts] for each in (link, mean)]
    assert ["0 is the mean over the data" in " ".join(texts) for texts in subtitles] == [True, False]


def test_explanations_offsets_and_monotone_effects_have_no_intercept(model: bs.NeuralAdditiveRegressor) -> None:
    x, y = table(300)
    parts = model.explain(x[:5])
    np.testing.assert_allclose(parts.total, model.predict_distribution(x[:5]).latent_mean[:, 0], atol=1e-10)
    assert abs(float(model.posterior_.location[-1])) < 1e-4
    offset = np.linspace(-2.0, 2.0, 300)
    other = bs.NeuralAdditiveRegressor(**OPTIONS).fit(x, y, offset=offset)
    moved = other.predict_distribution(x, offset=offset + 0.5).latent_mean
    np.testing.assert_allclose(moved, other.predict_distribution(x, offset=offset).latent_mean + 0.5)
    rising = fitted(x, y, monotone={1: 1}).effects(1)
    assert (np.diff(rising.mean) >= -1e-12).all()
    assert rising.mean[-1] > rising.mean[0] + 1.0


def test_a_file_answers_with_the_same_bits(model: bs.NeuralAdditiveRegressor, tmp_path: Path) -> None:
    x, _ = table(50, 9)
    again = bs.load(model.save(tmp_path / "model.bayes"))
    np.testing.assert_array_equal(again.predict_proba(x), model.predict_proba(x))
    np.testing.assert_array_equal(again.predict(x), model.predict(x))
    np.testing.assert_array_equal(again.effects(0, scale="mean").high, model.effects(0, scale="mean").high)
    other = bs.NeuralAdditiveRegressor(**OPTIONS).fit(*table(60))
    assert not hasattr(other.set_params(likelihood="poisson").fit(*table(60)), "classes_")
    assert not hasattr(other, "predict_proba")


def test_separated_classes_have_an_answer() -> None:
    x, _ = table(60)
    y = np.digitize(truth(x), CUTS)
    found = fitted(x, y)
    assert found.score(x, y) > 0.9
    assert np.isfinite(found.likelihood_.known("cutpoints").numpy()).all()


def test_a_comparison_and_a_report_take_ordered_classes(tmp_path: Path) -> None:
    x, y = table(160)
    ordered = pd.Series(pd.Categorical.from_codes(y, NAMES, ordered=True), name="rating")
    frame = pd.DataFrame(x, columns=["a", "b"])
    found = bs.compare(bs.NeuralAdditiveRegressor(**OPTIONS), frame, ordered, posteriors=["map"], reference=None)
    assert found.split.classes == tuple(f"rating = {name}" for name in NAMES)
    assert found.table.loc["map", "nll"] < np.log(4)
    bs.report(fitted(frame, ordered), frame, ordered, out=tmp_path / "r.html", reference=None)
    assert "rating" in (tmp_path / "r.html").read_text()


def test_what_has_no_order_or_no_intercept_is_refused() -> None:
    x, y = table(40)
    with pytest.raises(InputTypeError, match=r"got '\w+' in row 0 of column 'rating', text without an order. Give an "):
        fitted(x, pd.Series(np.array(NAMES)[y], name="rating"))
    with pytest.raises(InputError, match="at least two ordered classes, got one class, 2"):
        fitted(x, np.full(40, 2))
    with pytest.raises(UnsupportedError, match="intercept_prior_precision: expected the default"):
        fitted(x, y, intercept_prior_precision=1.0)
    with pytest.raises(UnsupportedError, match="return_std: expected False"):
        fitted(x, y, epochs=8).predict(x, return_std=True)
    with pytest.raises(UnsupportedError, match="exposure: expected a likelihood with a log link"):
        bs.NeuralAdditiveRegressor(**OPTIONS).fit(x, y, exposure=np.ones(40))
