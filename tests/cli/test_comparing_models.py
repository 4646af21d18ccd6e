"""`bayescope compare MODEL MODEL TABLE`: which rows judge, what is said of them, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import bayescope as bs
from bayescope.cli import Roles, held_out_rows, open_source, read_training_table
from tests.cli.conftest import fitted
from tests.cli.tables import mixed, refused, run, written


@pytest.fixture(scope="module")
def linear(table):
    """A linear model of the classes, whose held-out rows are those of the additive one, without a column."""
    options = ["--target", "state", "--drop", "id,cost,dose", "--model", "linear", "--no-refit"]
    return fitted(table, "linear.bayes", *options)


@pytest.fixture(scope="module")
def costs(table):
    """Two models of numbers, one with every row."""
    options = ["--target", "cost", "--drop", "id,state"]
    whole = fitted(table, "whole.bayes", *options, "--model", "linear")
    return whole, fitted(table, "part.bayes", *options, "--model", "linear", "--drop", "dose", "--no-refit")


def held_out(table):
    data = read_training_table(open_source(table), Roles("state", drop=["id,cost"]))
    return data.taken(held_out_rows(data.target, 0.2, 0)[1])


def test_both_are_judged_on_the_rows_that_neither_was_trained_on(classes, linear, table, tmp_path):
    result = run("compare", classes, linear, table, "--out", tmp_path / "out", "--seed", "3")
    assert result.exit_code == 0, (result.output, result.exception)
    judged = held_out(table)
    found = pd.read_csv(tmp_path / "out" / "comparison.csv").set_index(["score", "model"])
    for path, columns in ((classes, judged.features), (linear, judged.features.drop(columns="dose"))):
        probs = bs.load(path).predict_proba(columns)
        codes = (judged.target.values == "well").astype(int)
        for score in ("nll", "brier", "ece", "auroc"):
            expected = getattr(bs.metrics, score)(probs, codes)
            assert found.loc[score, path.stem]["value"] == pytest.approx(expected, abs=1e-6)
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    for text in ("Which model predicts state better?", "classes · linear · 18 rows", "calibration error, 15 bins"):
        assert text in page
    assert "No model was trained on these rows" in result.stdout
    assert "72 rows that a model was trained on are left out; the 18 others judge" in result.stdout
    assert f"{tmp_path}/out --seed 3" in page
    assert result.stdout.splitlines()[0].rstrip(".") in page


def test_a_model_of_these_rows_is_called_so(costs, table):
    facts = json.loads(run("compare", *costs, table, "--json").stdout)
    assert [model["seen"] for model in facts["models"]] == ["fitted", "held out"]
    assert facts["rows"] == 18
    said = run("compare", *costs, table).stdout
    assert "Trained on these rows: whole." in said
    assert "add --out page.html" in said


def test_of_other_rows_nobody_knows_and_rows_are_called_by_their_number(classes, linear, tmp_path):
    frame = mixed(40, seed=7).drop(columns="id")
    frame.loc[:2, "state"] = None
    page = tmp_path / "page.html"
    result = run("compare", classes, linear, written(tmp_path / "other.csv", frame), "--out", page)
    assert result.exit_code == 0, result.output
    assert "It is unknown whether these models were trained on some of these rows: classes, linear." in result.stdout
    assert "note: 3 rows without a target were left out" in result.stdout
    text = page.read_text(encoding="utf-8")
    assert "rows are counted from 1, below the header" in text
    apart = np.abs(
        bs.load(classes).predict_proba(frame[["age", "dose", "colour"]])[3:, 0]
        - bs.load(linear).predict_proba(frame[["age", "colour"]])[3:, 0]
    )
    first = text.split('<h2 id="rows-heading">')[1].split('<th scope="row">')[1].split("<")[0]
    assert int(first) == 3 + int(np.argmax(apart)) + 1


def test_models_of_python_are_compared(classes, table, tmp_path):
    judged = held_out(table)
    estimator = bs.BayesianLogisticRegression().fit(judged.features[["age"]], judged.target.values)
    estimator.save(tmp_path / "python.bayes")
    result = run("compare", tmp_path / "python.bayes", classes, table, "--json")
    facts = json.loads(result.stdout)
    assert [model["seen"] for model in facts["models"]] == ["unknown", "held out"]
    alone = run("compare", tmp_path / "python.bayes", tmp_path / "again.bayes", table)
    assert refused(alone, "again.bayes: expected the file of a model")
    estimator.save(tmp_path / "again.bayes")
    assert refused(run("compare", tmp_path / "python.bayes", tmp_path / "again.bayes", table), "--target: expected")
    named = run("compare", tmp_path / "python.bayes", tmp_path / "again.bayes", table, "--target", "state")
    assert "These 90 rows do not show which model predicts better." in named.stdout


def test_classes_in_another_order_are_put_in_order(tmp_path):
    frame = mixed(90, seed=4)[["age", "colour"]].assign(
        level=lambda t: np.select([t["age"] < 45, t["age"] < 55], "ab", "c")
    )
    frame["level"] = np.where(np.random.default_rng(0).random(90) < 0.2, "b", frame["level"])
    y = pd.Series(pd.Categorical(frame["level"], categories=["c", "b", "a"], ordered=True))
    ordered = bs.BayesianGeneralizedLinearModel(likelihood="ordinal").fit(frame[["age"]], y)
    plain = bs.BayesianLogisticRegression().fit(frame[["age"]], frame["level"])
    assert ordered.classes_.tolist() == ["c", "b", "a"]
    paths = []
    for name, model in (("plain", plain), ("ordered", ordered)):
        model.save(path := tmp_path / f"{name}.bayes")
        paths.append(path)
    table, out = written(tmp_path / "levels.csv", frame), tmp_path / "out"
    result = run("compare", *paths, table, "--target", "level", "--out", out)
    assert result.exit_code == 0, (result.output, result.exception)
    found = pd.read_csv(out / "comparison.csv").set_index(["score", "model"])["value"]
    for name, model in (("plain", plain), ("ordered", ordered)):
        probs = model.predict_proba(frame[["age"]])
        codes = pd.Index(model.classes_).get_indexer(frame["level"])
        assert found["brier", name] == pytest.approx(bs.metrics.brier(probs, codes), abs=1e-6)
        assert found["accuracy", name] == pytest.approx((probs.argmax(1) == codes).mean())
    nobody = out / "report.html"
    assert "total variation" in nobody.read_text(encoding="utf-8")


def test_counts_and_amounts_are_compared_without_the_nll(tmp_path):
    frame = mixed(80, seed=2).drop(columns=["state", "cost"])
    frame["visits"] = np.random.default_rng(0).poisson(np.exp(0.02 * frame["age"]))
    table = written(tmp_path / "visits.csv", frame)
    options = ["--target", "visits", "--drop", "id", "--model", "linear", "--no-refit"]
    models = [fitted(table, f"{name}.bayes", *options, "--likelihood", name) for name in ("poisson", "gaussian")]
    result = run("compare", *models, table)
    assert "note: NLL is left out" in result.stdout
    assert "poisson: whole numbers; gaussian: numbers" in result.stdout
    assert "NLL, nats per row" not in result.stdout
    assert "CRPS" in result.stdout


def test_what_cannot_be_compared_is_refused(classes, linear, numbers, table, tmp_path):
    assert refused(run("compare", classes, numbers, table), "expected a model of 'state'", "got one of 'cost'")
    assert refused(run("compare", classes, table), "expected 2 to 8 models, and a table after them, got 1")
    assert refused(run("compare", classes, classes, table), "expected different files")
    assert refused(run("compare", classes, linear, table, "--posteriors", "ep"), "--posteriors: expected no such")
    assert refused(run("compare", classes, linear, table, "--target", "cost"), "expected a model of 'cost'")
    assert refused(run("compare", classes, linear, table, "--out", table), "is a file. Name another folder")
    three = mixed().assign(state=np.array(["sick", "well", "gone"])[np.arange(90) % 3])
    other = written(tmp_path / "three.csv", three)
    third = fitted(other, "third.bayes", "--target", "state", "--drop", "id,cost", "--model", "linear")
    assert refused(run("compare", classes, third, table), "expected the classes of", "Fit both to the same classes")
    crossed = fitted(table, "crossed.bayes", "--target", "cost", "--drop", "id,state", "--model", "linear",
                     "--no-refit", "--seed", "1", "--test-size", "0.05")  # fmt: skip
    small = fitted(table, "small.bayes", "--target", "cost", "--drop", "id,state", "--model", "linear",
                   "--no-refit", "--seed", "2", "--test-size", "0.05")  # fmt: skip
    assert refused(run("compare", crossed, small, table), "rows that no model was trained on, got")
    ints = fitted(written(tmp_path / "n.csv", mixed().assign(cost=np.arange(90) % 2)), "ints.bayes",
                  "--target", "cost", "--drop", "id,state", "--model", "linear")  # fmt: skip
    assert refused(run("compare", numbers, ints, table), "expected a regression", "got a classification")


def test_a_table_of_other_missing_values_is_read_for_each_model(table, tmp_path):
    frame = pd.read_csv(table).assign(dose=lambda t: t["dose"].fillna(-1).astype(str).replace("-1.0", "?"))
    marked = written(tmp_path / "marked.csv", frame)
    options = ["--target", "state", "--drop", "id,cost", "--model", "linear", "--no-refit"]
    one = fitted(marked, "one.bayes", *options, "--missing", "?")
    other = fitted(marked, "other.bayes", *options, "--drop", "dose")
    assert run("compare", one, other, marked).exit_code == 0
    piped = run("compare", one, other, "-", stdin=marked.read_bytes())
    assert refused(piped, "expected a file, since the models were fitted with different --missing")
    assert run("compare", other, fitted(marked, "same.bayes", *options, "--drop", "dose,colour"), "-",
               stdin=marked.read_bytes()).exit_code == 0  # fmt: skip
