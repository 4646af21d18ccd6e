"""`bayescope predict`: a row for each row, the same whatever the chunks, in any format, and nothing half-written."""

import io
import json
import subprocess

import numpy as np
import pandas as pd
import pytest

import bayescope as bs
from tests.cli.started import command
from tests.cli.tables import mixed, refused, run, written
from tests.storage.mutants import framed, parts

DECIDE = "--sep, --decimal and --encoding decide otherwise"


def predicted(model, path, out, *options):
    result = run("predict", model, path, "--out", out, *options)
    assert result.exit_code == 0, (result.output, result.exception)
    return pd.read_parquet(out) if out.suffix == ".parquet" else pd.read_csv(out, sep=None, engine="python")


def own(model, frame):
    """The table that Python gives."""
    estimator = bs.load(model)
    classes = getattr(estimator, "classes_", None)
    features = frame[list(estimator.feature_names_in_)]
    return estimator.predict_distribution(features).to_frame(classes=classes)


@pytest.mark.parametrize("how", ["folder", "glob", "file", "link"])
@pytest.mark.parametrize("command", ["predict", "fit"])
def test_no_output_replaces_what_is_read(classes, table, tmp_path, how, command):
    """An input that is a folder or a glob is each of its files."""
    part = tmp_path / "parts" / "a.csv"
    part.parent.mkdir()
    part.write_bytes(table.read_bytes())
    read = {"folder": part.parent, "glob": part.parent / "*.csv", "file": part, "link": part}[how]
    out = part
    if how == "link":
        out = tmp_path / "link.csv"
        out.symlink_to(part)
    words = ["predict", classes, read] if command == "predict" else ["fit", read, "--target", "state"]
    assert refused(run(*words, "--out", out), "expected another file, got the one that is read")
    assert part.read_bytes() == table.read_bytes()


@pytest.mark.parametrize("name", ["classes", "numbers"])
def test_predictions_are_those_of_python(request, name, table, tmp_path):
    model = request.getfixturevalue(name)
    found = predicted(model, table, tmp_path / "p.csv", "--digits", "full")
    expected = own(model, mixed())
    pd.testing.assert_frame_equal(found, expected, check_exact=True, check_dtype=False)
    assert len(found) == 90


@pytest.mark.parametrize("given", ["t.tsv", "t.csv.gz", "t.parquet"])
@pytest.mark.parametrize("out", ["p.tsv", "p.csv.gz", "p.parquet"])
def test_every_format_goes_in_and_comes_out(classes, table, tmp_path, given, out):
    """Columns in another order, others among them, whole numbers in the place of fractions."""
    frame = mixed()[["state", "colour", "age", "id", "dose"]]
    found = predicted(classes, written(tmp_path / given, frame), tmp_path / out, "--keep", "id,state")
    assert found["id"].astype(int).tolist() == list(range(90))
    assert found["state"].tolist() == frame["state"].tolist()
    expected = predicted(classes, table, tmp_path / "expected.csv")
    pd.testing.assert_frame_equal(found.drop(columns=["id", "state"]), expected, check_exact=True, check_dtype=False)


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_answers_do_not_depend_on_the_chunks(classes, tmp_path, name):
    """Chunks are whole numbers of the 4,096 rows that are predicted together, wherever they end."""
    path = written(tmp_path / name, mixed(9000))
    answers = {}
    for rows in (1, 4097, 100_000):
        predicted(classes, path, tmp_path / f"{rows}.csv", "--chunk-rows", rows)
        answers[rows] = (tmp_path / f"{rows}.csv").read_bytes()
    assert len(set(answers.values())) == 1
    assert answers[1].count(b"\n") == 9001


def test_pipes(classes, table, tmp_path):
    """From the standard input to the standard output, as one process of several."""
    expected = predicted(classes, table, tmp_path / "p.csv")
    tabs = mixed().to_csv(index=False, sep="\t")
    for text in (table.read_text(), tabs):
        result = run("predict", classes, "-", "--out", "-", stdin=text)
        assert result.exit_code == 0, result.output
        pd.testing.assert_frame_equal(pd.read_csv(io.StringIO(result.stdout)), expected, check_exact=True)
        *format_, gaps = result.stderr.splitlines()
        assert gaps.startswith("note: 2 values in 2 rows are missing")
        assert format_ == (
            [] if text != tabs else [f"note: standard input was taken for text separated by tab; {DECIDE}"]
        )


def test_a_reader_that_leaves_early_is_no_failure_to_talk_of(classes, tmp_path):
    path = written(tmp_path / "t.csv", pd.concat([mixed()] * 200))
    typed = [*command(), "predict", str(classes), str(path), "--out", "-"]
    with subprocess.Popen(typed, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


def test_abstention(classes, table, tmp_path):
    found = predicted(classes, table, tmp_path / "p.csv", "--abstain", "0.8")
    best = found[["p(sick)", "p(well)"]].max(axis=1)
    assert found["predicted"].isna().tolist() == (best < 0.8).tolist()
    assert 0 < found["predicted"].isna().sum() < 90
    result = run("predict", classes, table, "--out", tmp_path / "p.parquet", "--abstain", "0.999999")
    assert "90 rows (100.0 %) get no class" in result.stdout
    assert pd.read_parquet(tmp_path / "p.parquet")["predicted"].isna().all()


def test_intervals(numbers, table, tmp_path):
    wide, narrow = (predicted(numbers, table, tmp_path / f"{level}.csv", "--level", level) for level in ("0.9", "0.5"))
    assert (wide["high"] - wide["low"] > narrow["high"] - narrow["low"]).all()
    assert not {"low", "high"} & set(predicted(numbers, table, tmp_path / "p.csv", "--level", "0").columns)


def test_labels_that_were_never_seen_are_told(classes, tmp_path):
    frame = mixed(20).assign(colour=["violet", "ultra"] * 2 + ["red"] * 16)
    path, out = written(tmp_path / "t.csv", frame), tmp_path / "p.csv"
    result = run("predict", classes, path, "--out", out)
    assert "note: column 'colour': labels that the model never saw, such as 'ultra', 'violet', in 4 of the rows: " in (
        result.stdout.replace("'violet', 'ultra'", "'ultra', 'violet'")
    )
    facts = json.loads(run("predict", classes, path, "--out", out, "--json").stdout)
    assert facts["unseen_labels"] == {"colour": {"violet": 2, "ultra": 2}}
    assert (facts["rows"], facts["predictions"]) == (20, str(out))
    piped = run("predict", classes, path, "--out", "-")
    assert "never saw" in piped.stderr
    assert "never saw" not in piped.stdout


def test_values_that_were_missing_are_told_and_widen_the_intervals(tmp_path):
    source = np.random.default_rng(0)
    frame = pd.DataFrame({"age": source.normal(50, 9, 300), "weight": source.normal(70, 9, 300)})
    frame["cost"] = 2.0 * frame["age"] + frame["weight"] + source.standard_normal(300)
    model, path, out = tmp_path / "m.bayes", written(tmp_path / "t.csv", frame), tmp_path / "p.csv"
    assert run("fit", path, "--target", "cost", "--model", "linear", "--out", model).exit_code == 0
    gaps = frame.drop(columns="cost").mask(lambda t: t.index.to_numpy()[:, None] % [7, 5] == 1)
    result = run("predict", model, written(tmp_path / "g.csv", gaps), "--out", out, "--chunk-rows", "10")
    assert "note: 103 values in 94 rows are missing" in result.stdout
    found = pd.read_csv(out)
    np.testing.assert_array_equal(found["imputed"], gaps.isna().sum(axis=1))
    assert (
        found["epistemic_sd"][gaps["age"].isna()].min()
        > 15.0
        > 1.0
        > found["epistemic_sd"][found["imputed"] == 0].max()
    )
    facts = json.loads(run("predict", model, tmp_path / "g.csv", "--out", out, "--json").stdout)
    assert (facts["imputed_values"], facts["imputed_rows"]) == (103, 94)


def test_an_error_far_down_leaves_no_file_and_the_one_that_was_there(classes, tmp_path):
    path = written(tmp_path / "t.csv", mixed(5000).to_csv(index=False) + "90,old,1,red,1,sick\n")
    for name in ("p.csv", "p.parquet", "p.csv.gz"):
        out = written(tmp_path / name, "before")
        message = "t.csv: line 5002, column 'age': expected a number, got 'old'"
        assert refused(run("predict", classes, path, "--out", out, "--chunk-rows", "1"), message)
        assert out.read_text() == "before"
    assert len(list(tmp_path.iterdir())) == 4


def test_kept_columns_may_not_be_called_like_predictions(numbers, tmp_path):
    path = written(tmp_path / "t.csv", mixed().assign(mean=1))
    result = run("predict", numbers, path, "--out", tmp_path / "p.csv", "--keep", "mean")
    assert refused(result, "--keep: expected columns named otherwise than the predictions, got 'mean'")


def test_a_block_without_any_value_is_read_as_the_kinds_that_were_fitted(classes, tmp_path):
    frame = mixed(20).assign(age=np.nan, colour=None)
    found = predicted(classes, written(tmp_path / "t.csv", frame), tmp_path / "p.csv", "--digits", "full")
    expected = own(classes, frame)
    np.testing.assert_array_equal(found["p(sick)"], expected["p(sick)"])


@pytest.mark.parametrize(
    "kind",
    [bs.BayesianLogisticRegression, bs.NeuralAdditiveClassifier, bs.BayesianMLPClassifier],
    ids=lambda k: k.__name__,
)
def test_models_that_python_saved_predict_too(kind, tmp_path):
    """Their labels need not be text: truth values and numbers are known by how they are written."""
    frame = mixed(60).assign(smokes=lambda t: t["id"] % 3 == 0, ward=lambda t: t["id"] % 4 + 10)
    X = frame[["age", "colour", "smokes", "ward"]]
    options = {"hidden": (3,), "epochs": 3} if kind is bs.BayesianMLPClassifier else {}
    model = kind(categorical=["ward"], random_state=0, **options).fit(X, frame["state"])
    model.save(tmp_path / "m.bayes")
    path = written(tmp_path / "t.csv", frame)
    result = run("predict", tmp_path / "m.bayes", path, "--out", tmp_path / "p.csv", "--digits", "full", "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    assert json.loads(result.stdout)["unseen_labels"] == {}
    expected = model.predict_distribution(X).to_frame(classes=model.classes_)
    found = pd.read_csv(tmp_path / "p.csv")
    assert not found.get("imputed", pd.Series([0])).any()
    found = found[expected.columns]
    pd.testing.assert_frame_equal(found, expected, check_exact=True, check_dtype=False)
    assert refused(run("report", tmp_path / "m.bayes", path, "--out", tmp_path / "r.html"), "does not tell its target")


def test_a_model_of_columns_without_names_predicts_no_table(tmp_path, table):
    frame = mixed()
    bs.BayesianLinearRegression().fit(frame[["age"]].to_numpy(), frame["cost"]).save(tmp_path / "m.bayes")
    result = run("predict", tmp_path / "m.bayes", table, "--out", tmp_path / "p.csv", "--digits", "full")
    assert refused(result, "expected a model that was fitted to named columns")


def test_a_model_whose_file_was_altered_ends_in_one_line(table, tmp_path):
    path, options = tmp_path / "m.bayes", ["--model", "linear", "--test-size", "0", "--set", "features=polynomial"]
    assert run("fit", table, "--target", "cost", "--drop", "id,state", *options, "--out", path).exit_code == 0
    manifest, tensors = parts(path.read_bytes())
    (features,) = (node["PolynomialFeatures"] for node in manifest["objects"] if "PolynomialFeatures" in node)
    features["n_features_in_"] = 3
    path.write_bytes(framed(manifest, tensors))
    result = run("predict", path, table, "--out", tmp_path / "p.csv", "--digits", "full")
    assert refused(result, "m.bayes: expected a model that answers for these inputs, got ")
    assert not (tmp_path / "p.csv").exists()
