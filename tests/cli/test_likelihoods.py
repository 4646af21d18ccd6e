"""`--likelihood`: the estimator that it makes, the rows that it refuses, and the remark that suggests one."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import typer

import bayescope as bs
from bayescope.cli.models import GENERALIZED, LIKELIHOODS, MODELS, build, task_of
from bayescope.cli.target import ORDERED, Target
from bayescope_command.app import FitOptions, LikelihoodName, app
from tests.cli.tables import refused, run, written

LINEAR = ["--model", "linear", "--likelihood", "poisson"]


def visits(rows=80):
    """Counts whose mean depends on a number and on a label, with a gap in the first row's target."""
    source = np.random.default_rng(0)
    frame = pd.DataFrame({"age": source.normal(size=rows).round(3), "site": source.choice(["a", "b"], rows)})
    frame["visits"] = source.poisson(np.exp(1.3 + 0.8 * frame["age"])).astype(float)
    frame.loc[0, "visits"] = np.nan
    return frame


def fit(folder, frame, *options, name="t.csv"):
    result = run("fit", written(folder / name, frame), "--target", "visits", "--out", folder / "m.bayes", *options)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def test_the_help_names_every_likelihood():
    (option,) = [each for each in typer.main.get_command(app).commands["fit"].params if each.name == "likelihood"]
    assert set(LIKELIHOODS) <= set(option.help.replace(",", " ").replace(";", " ").replace(".", " ").split())
    assert option.help == LikelihoodName.__metadata__[0].help


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", [name for name in LIKELIHOODS if name not in ORDERED])
def test_every_likelihood_reaches_the_estimator(model, name):
    given = FitOptions(table=Path("t.csv"), target="y", out=Path("y.bayes"), model=model, likelihood=name)
    estimator = build(given, "regression")
    kind = MODELS[model]["regression"]
    assert (type(estimator).__name__, estimator.likelihood) == (GENERALIZED.get(kind, kind), name)


def test_the_model_of_counts_is_that_of_python(tmp_path):
    fit(tmp_path, visits(), *LINEAR, "--test-size", "0")
    features, target = visits()[1:][["age", "site"]], visits()["visits"][1:]
    own = bs.BayesianGeneralizedLinearModel(likelihood="poisson", random_state=0)
    own.fit(features, target)
    np.testing.assert_array_equal(bs.load(tmp_path / "m.bayes").predict(features), own.predict(features))


def test_few_counts_are_a_regression_where_a_likelihood_is_given(tmp_path):
    facts = json.loads(fit(tmp_path, visits().assign(visits=np.arange(80) % 4), *LINEAR, "--json"))
    assert (facts["task"], facts["notes"]) == ("regression", [])
    said = fit(tmp_path, visits().assign(visits=np.arange(80) % 4), "--model", "linear")
    assert "since visits has 4 different whole numbers; --task, or --likelihood for counts, decides otherwise" in said


def test_predictions_of_counts_are_counts_and_the_report_judges_them(tmp_path):
    fit(tmp_path, visits(), *LINEAR, "--no-refit")
    model, table, page = tmp_path / "m.bayes", tmp_path / "t.csv", tmp_path / "r.html"
    assert run("predict", model, table, "--out", tmp_path / "p.csv").exit_code == 0
    predicted = pd.read_csv(tmp_path / "p.csv")
    ends = predicted[["low", "high"]].to_numpy()
    assert (ends >= 0).all()
    assert (ends % 1 == 0).all()
    assert (predicted["low"] <= predicted["mean"]).all()
    result = run("report", model, table, "--out", page, "--reference", "none")
    assert result.exit_code == 0, (result.output, result.exception)
    assert page.stat().st_size > 0


@pytest.mark.parametrize("wrong", [-1.0, 2.5])
@pytest.mark.parametrize(
    ("name", "place", "options"),
    [("t.csv", "line 11", []), ("t.parquet", "row 10", []), ("t.parquet", "row 10", ["--stream"])],
)
def test_what_is_no_count_is_refused_with_its_place_in_the_file(tmp_path, wrong, name, place, options):
    table = written(tmp_path / name, visits().assign(visits=lambda t: t["visits"].where(t.index != 9, wrong)))
    result = run("fit", table, "--target", "visits", *LINEAR, *options, "--out", tmp_path / "m.bayes")
    said = f"{name}: {place}, column 'visits': expected whole numbers of at least 0 for --likelihood poisson"
    assert refused(result, said, f"got {wrong:g}. Give whole counts")
    assert not (tmp_path / "m.bayes").exists()


SOURCE = np.random.default_rng(1)
TABLE = SimpleNamespace(name="t.csv")
LONG = np.exp(SOURCE.normal(size=400))
NUMBERS = {
    "counts": (np.floor(4 * LONG), "counts (whole numbers from 0 to "),
    "half counts": (np.floor(4 * LONG) + 0.5, "amounts"),
    "counts and a negative number": (np.append(np.floor(4 * LONG), -1.0), ""),
    "counts far above 0": (SOURCE.poisson(50.0, 400), ""),
    "ages": (SOURCE.integers(18, 90, 400), ""),
    "amounts": (LONG, "amounts"),
    "amounts in another unit": (1e9 * LONG, "amounts"),
    "whole amounts": (1000 + np.floor(1e4 * LONG), "amounts"),
    "tiny amounts": (1e-200 * LONG, "amounts"),
    "amounts and 0": (np.append(LONG, 0.0), ""),
    "measurements": (SOURCE.normal(size=400), ""),
    "measurements above 0": (SOURCE.normal(100.0, 10.0, 400), ""),
}


@pytest.mark.parametrize(("values", "meant"), NUMBERS.values(), ids=NUMBERS.keys())
def test_numbers_that_are_never_negative_have_likelihoods_of_their_own(values, meant):
    """Numbers with their frequencies, as a table on disk has them, say what the rows say."""
    values = np.asarray(values, dtype=np.float64)
    rows = Target.of(TABLE, "y", values, "numeric", np.arange(len(values)), "auto")
    assert rows.remark.startswith(f"y looks like {meant}" if meant else "")
    assert bool(rows.remark) == bool(meant)
    different, counts = np.unique(values, return_counts=True)
    assert Target.of(TABLE, "y", different, "numeric", np.zeros(1), "regression", counts).remark == rows.remark


@pytest.mark.parametrize("options", [[], ["--stream"]])
def test_the_fit_suggests_a_likelihood_and_does_not_take_it(tmp_path, options):
    frame = visits().assign(visits=np.floor(4 * LONG[:80]))
    said = fit(tmp_path, frame, "--model", "linear", *options, name="t.parquet")
    assert "BayesianLinearRegression of visits" in said
    assert said.count("try --likelihood negative_binomial (or poisson), whose predictions are never negative") == 1
    asked = fit(tmp_path, frame, "--model", "linear", "--likelihood", "negative_binomial", *options, name="t.parquet")
    assert "try --likelihood" not in asked


def test_outliers_of_infinite_variance_have_scores(tmp_path):
    source = np.random.default_rng(2)
    frame = visits()[["age"]].assign(visits=source.standard_t(1.2, 80))
    options = ["--model", "linear", "--likelihood", "student_t", "--no-refit"]
    facts = json.loads(fit(tmp_path, frame, *options, "--json"))
    assert list(facts["held_out"]["scores"]) == ["rmse", "crps", "nll", "coverage"]
    assert 0.0 < facts["held_out"]["scores"]["crps"]["value"] < 3.0
    page = tmp_path / "r.html"
    result = run("report", tmp_path / "m.bayes", tmp_path / "t.csv", "--out", page, "--reference", "none")
    assert result.exit_code == 0, (result.output, result.exception)


def watched(rows=80):
    """Visits over some months."""
    source = np.random.default_rng(1)
    frame = visits(rows).assign(months=source.uniform(1.0, 24.0, rows).round(1))
    return frame.assign(visits=source.poisson(frame["months"] * np.exp(0.3 + 0.5 * frame["age"])))[1:]


@pytest.mark.parametrize("options", [[], ["--stream"]])
def test_an_exposure_is_a_column_of_the_fit_and_of_every_prediction(tmp_path, options):
    frame = watched()
    fit(tmp_path, frame, *LINEAR, "--exposure", "months", "--test-size", "0.2", *options)
    own = bs.BayesianGeneralizedLinearModel(likelihood="poisson", random_state=0).fit(
        frame, "visits", exposure="months"
    )
    assert run("predict", tmp_path / "m.bayes", tmp_path / "t.csv", "--out", tmp_path / "p.csv").exit_code == 0
    predicted = pd.read_csv(tmp_path / "p.csv")["mean"]
    np.testing.assert_allclose(predicted, own.predict(frame.drop(columns="visits")), rtol=1e-6)
    assert run("report", tmp_path / "m.bayes", tmp_path / "t.csv", "--out", tmp_path / "r.html").exit_code == 0
    without = written(tmp_path / "u.csv", frame.drop(columns="months"))
    assert refused(run("predict", tmp_path / "m.bayes", without, "--out", tmp_path / "q.csv"), "none named 'months'")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--exposure", "month"], "Did you mean 'months'?"),
        (["--exposure", "months", "--drop", "months"], "got 'months', which --exposure names too"),
        (["--exposure", "months", "--offset", "age"], "expected an offset or an exposure, got both"),
        (["--exposure", "age"], "exposure: expected positive numbers"),
    ],
)
def test_an_exposure_that_cannot_be_is_refused(tmp_path, options, message):
    table = written(tmp_path / "t.csv", watched())
    assert refused(run("fit", table, "--target", "visits", "--out", tmp_path / "m.bayes", *LINEAR, *options), message)


def test_classes_have_no_exposure(tmp_path):
    table = written(tmp_path / "t.csv", watched())
    result = run("fit", table, "--target", "site", "--exposure", "months", "--out", tmp_path / "m.bayes")
    assert refused(result, "--exposure: expected none for NeuralAdditiveClassifier")


def ratings(rows=120):
    """Classes 3 to 5 in an order that depends on a number."""
    source = np.random.default_rng(0)
    frame = pd.DataFrame({"age": source.normal(size=rows).round(3), "site": source.choice(["a", "b"], rows)})
    frame["visits"] = 3 + np.digitize(frame["age"] + source.logistic(size=rows), [-1.0, 1.0])
    return frame


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", ORDERED)
def test_ordered_classes_reach_the_estimator_of_a_regression(model, name):
    given = FitOptions(table=Path("t.csv"), target="y", out=Path("y.bayes"), model=model, likelihood=name)
    assert task_of(given) == "classification"
    kind = MODELS[model]["regression"]
    estimator = build(given, "classification")
    assert (type(estimator).__name__, estimator.likelihood) == (GENERALIZED.get(kind, kind), name)


@pytest.mark.parametrize("model", ["linear", "additive"])
def test_ratings_are_fitted_and_predicted_as_ordered_classes(tmp_path, model):
    ordinal = ["--model", model, "--likelihood", "ordinal", "--set", "prior_precision=1.0"]
    facts = json.loads(fit(tmp_path, ratings(), *ordinal, "--json"))
    assert facts["task"] == "classification"
    assert {"nll", "accuracy"} <= set(facts["held_out"]["scores"])
    run("predict", tmp_path / "m.bayes", tmp_path / "t.csv", "--out", tmp_path / "p.csv")
    rows = pd.read_csv(tmp_path / "p.csv")
    model = bs.load(tmp_path / "m.bayes")
    assert model.classes_.tolist() == [3, 4, 5]
    np.testing.assert_allclose(rows[["p(3)", "p(4)", "p(5)"]], model.predict_proba(ratings()[["age", "site"]]))
    np.testing.assert_array_equal(rows["predicted"], model.predict(ratings()[["age", "site"]]))


def test_whole_numbers_one_after_another_are_suggested_as_ordered(tmp_path):
    assert "has the values 3 to 5: if they are in order" in fit(tmp_path, ratings(), "--model", "linear")
    skipped = ratings().assign(visits=lambda frame: frame["visits"] ** 2)
    assert "in order" not in fit(tmp_path, skipped, "--model", "linear")


def test_ordered_classes_that_cannot_be_are_refused(tmp_path):
    table = written(tmp_path / "t.csv", ratings().assign(visits=np.array(list("abc"))[ratings()["visits"] - 3]))
    given = ["--target", "visits", "--out", tmp_path / "m.bayes", "--likelihood", "ordinal"]
    said = "expected whole numbers in the order of the classes for --likelihood ordinal, got text such as"
    assert refused(run("fit", table, *given), said)
