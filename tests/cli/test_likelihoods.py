"""`--likelihood`: the estimator that it makes, the rows that it refuses, and the remark that suggests one."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
import typer
from scipy.special import comb

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
    assert run("predict", model, table, "--out", tmp_path / "p.csv", "--digits", "full").exit_code == 0
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
    assert (
        run(
            "predict", tmp_path / "m.bayes", tmp_path / "t.csv", "--out", tmp_path / "p.csv", "--digits", "full"
        ).exit_code
        == 0
    )
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
    run("predict", tmp_path / "m.bayes", tmp_path / "t.csv", "--out", tmp_path / "p.csv", "--digits", "full")
    rows = pd.read_csv(tmp_path / "p.csv")
    model = bs.load(tmp_path / "m.bayes")
    assert model.classes_.tolist() == [3, 4, 5]
    np.testing.assert_allclose(rows[["p(3)", "p(4)", "p(5)"]], model.predict_proba(ratings()[["age", "site"]]))
    np.testing.assert_array_equal(rows["predicted"], model.predict(ratings()[["age", "site"]]))


def test_whole_numbers_one_after_another_are_suggested_as_ordered(tmp_path):
    assert "has the values 3 to 5: if they are in order" in fit(tmp_path, ratings(), "--model", "linear")
    skipped = ratings().assign(visits=lambda frame: frame["visits"] ** 2)
    assert "in order" not in fit(tmp_path, skipped, "--model", "linear")


@pytest.mark.parametrize(
    ("often", "counts", "ordered"),
    [
        ([180, 90, 25, 5], True, True),
        ([180, 90, 25, 0, 5], True, False),
        ([0, 180, 90, 25, 5], False, True),
        ([90, 180, 25, 5], False, True),
        ([180, 90, 90, 5], False, True),
    ],
)
def test_few_whole_numbers_from_0_of_which_large_ones_are_rare_are_suggested_as_counts(often, counts, ordered):
    values = np.repeat(np.arange(len(often), dtype=float), often)[::-1]
    rows = Target.of(TABLE, "y", values, "numeric", np.arange(len(values)), "auto")
    assert rows.task == "classification"
    assert ("if they are counts, try --likelihood negative_binomial (or poisson)" in rows.remark) == counts
    assert ("if they are in order" in rows.remark) == ordered
    different, times = np.unique(values, return_counts=True)
    assert Target.of(TABLE, "y", different, "numeric", np.zeros(1), "auto", times).remark == rows.remark


@pytest.mark.parametrize("options", [[], ["--stream"]])
def test_a_text_among_ordered_classes_is_refused_with_its_place(tmp_path, options):
    frame = ratings().astype({"visits": str})
    frame.loc[3, "visits"] = "good"
    name = "t.parquet" if options else "t.csv"
    table = tmp_path / name
    frame.to_parquet(table) if options else written(table, frame)
    given = ["--target", "visits", "--out", tmp_path / "m.bayes", "--likelihood", "ordinal", "--model", "linear"]
    place = "row 4" if options else "line 5"
    said = f"{place}, column 'visits': expected a whole number, in the order of the classes, for --likelihood ordinal, "
    assert refused(run("fit", table, *given, *options), said + "got 'good'. Number the classes in the table.")


def litters(rows=60):
    """How many of some animals died of a dose."""
    source = np.random.default_rng(0)
    frame = pd.DataFrame({"dose": source.normal(size=rows).round(3), "animals": source.integers(2, 9, rows)})
    return frame.assign(visits=source.binomial(frame["animals"], 1.0 / (1.0 + np.exp(-1.5 * frame["dose"]))))


TRIALS = ["--likelihood", "binomial", "--trials", "animals"]
WHOLE = "line 6, column 'animals': expected a whole number of trials of at least 1"


@pytest.mark.parametrize("model", ["linear", "additive"])
def test_successes_of_trials_are_predicted_for_the_trials_that_are_given(tmp_path, model):
    frame, new = litters(), ["--out", tmp_path / "p.csv"]
    facts = json.loads(fit(tmp_path, frame, *TRIALS, "--model", model, "--no-refit", "--test-size", "0.5", "--json"))
    scores = {name: each["value"] for name, each in facts["held_out"]["scores"].items()}
    assert scores["coverage"] > 0.8
    assert 0.5 < scores["nll"] < 2.0
    own, features = bs.load(tmp_path / "m.bayes"), frame[["dose"]]
    alone = own.predict_distribution(features)
    assert run("predict", tmp_path / "m.bayes", tmp_path / "t.csv", *new, "--digits", "full").exit_code == 0
    found, count = pd.read_csv(tmp_path / "p.csv"), frame["animals"].to_numpy()
    np.testing.assert_allclose(found["mean"], count * alone.mean[:, 0])
    np.testing.assert_allclose(found["epistemic_sd"], count * np.sqrt(alone.epistemic[:, 0]), rtol=1e-6)
    np.testing.assert_allclose(found["aleatoric_sd"], np.sqrt(count * alone.aleatoric[:, 0]), rtol=1e-6)
    f = alone.latent.sample(4000, torch.Generator())[..., 0].numpy()
    drawn = np.random.default_rng(0).binomial(count, 1.0 / (1.0 + np.exp(-f)))
    inside = ((found["low"].to_numpy() <= drawn) & (drawn <= found["high"].to_numpy())).mean(0)
    assert (inside > 0.93).all()
    assert (((found["low"].to_numpy() < drawn) & (drawn < found["high"].to_numpy())).mean(0) < 0.97).all()
    told = run("predict", tmp_path / "m.bayes", written(tmp_path / "n.csv", features), *new, "--digits", "full")
    assert (
        "no column 'animals': predictions are of one trial, whose mean is the probability of a success" in told.output
    )
    np.testing.assert_allclose(pd.read_csv(tmp_path / "p.csv")["mean"], alone.mean[:, 0])
    page = run("report", tmp_path / "m.bayes", tmp_path / "t.csv", "--out", tmp_path / "r.html", "--reference", "none")
    assert page.exit_code == 0, page.output


def test_a_row_of_trials_is_as_many_rows_of_one_trial(tmp_path):
    """But for the means of the inputs, at which the intercept has its prior, and the orders that successes may have."""
    frame = litters()
    apart = frame.loc[frame.index.repeat(frame["animals"])]
    apart = apart.assign(visits=(apart.groupby(level=0).cumcount() < apart["visits"]).astype(int), animals=1)
    options = [*TRIALS, "--model", "linear", "--test-size", "0"]
    fit(tmp_path, frame, *options)
    one, ways = bs.load(tmp_path / "m.bayes"), np.log(comb(frame["animals"], frame["visits"])).sum()
    fit(tmp_path, apart, *options)
    other = bs.load(tmp_path / "m.bayes")
    np.testing.assert_allclose(one.predict(frame[["dose"]]), other.predict(frame[["dose"]]), rtol=1e-4)
    assert one.log_evidence_ == pytest.approx(other.log_evidence_ + ways, abs=1e-2)


@pytest.mark.parametrize(
    ("cells", "options", "message"),
    [
        ({"animals": np.nan}, TRIALS, f"t.csv: {WHOLE}, got no value. Correct the cell, or drop the row."),
        ({"animals": 0}, TRIALS, f"{WHOLE}, got 0."),
        ({"animals": 2.5}, TRIALS, f"{WHOLE}, got 2.5."),
        ({"visits": 99}, TRIALS, "line 6, column 'visits': expected no more successes than trials for --likelihood"),
        ({"visits": -1}, TRIALS, "line 6, column 'visits': expected whole numbers of at least 0 for --likelihood"),
        ({}, ["--likelihood", "binomial", "--trials", "animal"], "Did you mean 'animals'?"),
        ({}, ["--likelihood", "binomial", "--trials", "visits"], "--trials: expected a column with no other role"),
        ({}, ["--likelihood", "binomial"], "--trials: expected the column with the number of trials of each row"),
        ({}, ["--trials", "animals"], "--trials: expected none without --likelihood binomial, got 'animals'"),
        ({}, [*TRIALS, "--stream"], "--trials: expected none for a table that is read in blocks"),
    ],
)  # fmt: skip
def test_trials_that_cannot_be_are_refused(tmp_path, cells, options, message):
    frame = litters().astype(float)
    for name, cell in cells.items():
        frame.loc[4, name] = cell
    name = "t.parquet" if "--stream" in options else "t.csv"
    table = written(tmp_path / name, frame)
    result = run("fit", table, "--target", "visits", "--out", tmp_path / "m.bayes", "--model", "linear", *options)
    assert refused(result, message)


def test_trials_of_new_rows_are_checked_and_a_comparison_takes_none(tmp_path):
    fit(tmp_path, litters(), *TRIALS, "--model", "linear", "--test-size", "0")
    table = written(
        tmp_path / "n.csv", litters().assign(animals=lambda frame: frame["animals"].where(frame.index != 4))
    )
    result = run("predict", tmp_path / "m.bayes", table, "--out", tmp_path / "p.csv", "--digits", "full")
    assert refused(result, f"n.csv: {WHOLE}, got no value")
    compared = run("compare", tmp_path / "t.csv", "--target", "visits", "--likelihood", "binomial")
    assert refused(compared, "expected one of a single column for compare, got 'binomial', whose target has two")


def test_a_text_among_numbers_is_named_with_its_line(tmp_path):
    frame = visits()[1:].astype({"visits": int}).astype({"visits": str})
    frame.iloc[20, frame.columns.get_loc("visits")] = "many"
    path = written(tmp_path / "t.csv", frame)
    result = run("fit", path, "--target", "visits", "--likelihood", "poisson", "--out", tmp_path / "m.bayes")
    assert result.exit_code != 0
    assert "got 'many' in line 22" in " ".join(result.stderr.split())
