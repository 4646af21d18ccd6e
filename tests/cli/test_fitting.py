"""`bayescope fit`: the same model as in Python, honest scores, one file, and fits that can be carried on."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

import bayescope as bs
import bayescope.cli.fitting as fitting
from bayescope.cli import Roles, held_out_rows, open_source, read_training_table
from bayescope.storage import read_manifest
from bayescope_command.process import Stopped
from tests.cli.tables import mixed, refused, run, written


def read(table, target, drop):
    return read_training_table(open_source(table), Roles(target, drop=[drop]))


def test_the_model_in_the_file_is_that_of_python(table, tmp_path):
    out = tmp_path / "m.bayes"
    result = run(
        "fit", table, "--target", "state", "--drop", "id,cost", "--set", "hidden=8", "--seed", "3", "--out", out
    )
    assert result.exit_code == 0, result.output
    data = read(table, "state", "id,cost")
    own = bs.NeuralAdditiveClassifier(hidden=8, random_state=3).fit(data.features, data.target.series())
    np.testing.assert_array_equal(bs.load(out).predict_proba(data.features), own.predict_proba(data.features))


def test_every_option_reaches_the_estimator(table, tmp_path):
    out = tmp_path / "m.bayes"
    options = ["--model", "linear", "--posterior", "map", "--prior-precision", "2.5", "--set", "link=probit"]
    options += [
        "--set",
        "fit_intercept=False",
        "--task",
        "classification",
        "--categorical",
        "dose",
        "--missing",
        "57.7",
    ]
    result = run("fit", table, "--target", "state", "--drop", "id,cost", *options, "--seed", "7", "--out", out)
    assert result.exit_code == 0, result.output
    parameters = bs.load(out).get_params()
    expected = {"posterior": "map", "prior_precision": 2.5, "link": "probit", "fit_intercept": False, "random_state": 7}
    assert {**parameters, **expected, "standardize": True} == parameters
    told = read_manifest(out).metadata["command line"]
    assert told["kinds"] == {"age": "numeric", "dose": "categorical", "colour": "categorical"}
    assert (told["missing"], told["dropped"], told["target"]) == (["57.7"], ["id", "cost"], "state")


def test_scores_are_of_rows_that_were_not_fitted(table, tmp_path):
    """With --no-refit the model in the file is the one that was judged: its scores can be had from the file again."""
    out = tmp_path / "m.bayes"
    given = [
        "--target",
        "cost",
        "--drop",
        "id,state",
        "--model",
        "linear",
        "--test-size",
        "0.3",
        "--seed",
        "1",
        "--json",
    ]
    facts = json.loads(run("fit", table, *given, "--no-refit", "--out", out).stdout)
    data, model = read(table, "cost", "id,state"), bs.load(out)
    assert (facts["rows"], facts["held_out"]["rows"]) == (63, 27)
    split = held_out_rows(data.target, 0.3, 1)
    error = data.target.values[split[1]] - model.predict(data.features.iloc[split[1]])
    assert facts["held_out"]["scores"]["rmse"]["value"] == pytest.approx(np.sqrt((error**2).mean()), rel=1e-12)
    own = bs.BayesianLinearRegression(standardize=True, random_state=1)
    own.fit(data.features.iloc[split[0]], data.target.series().iloc[split[0]])
    np.testing.assert_array_equal(own.predict(data.features), model.predict(data.features))
    again = json.loads(run("fit", table, *given, "--out", out).stdout)
    assert again["held_out"]["scores"] == facts["held_out"]["scores"]
    assert (again["rows"], again["held_out"]["then_fitted_to_all_rows"]) == (90, True)


def test_weights_count(tmp_path):
    """A weight of 2 is the row twice; a weight of 0 is no row."""
    frame = mixed(60).drop(columns=["id", "state", "dose", "colour"]).assign(w=np.arange(60) % 3)
    weighted = written(tmp_path / "w.csv", frame)
    repeated = written(tmp_path / "r.csv", frame.loc[np.repeat(frame.index, frame["w"])].drop(columns="w"))
    given = ["--target", "cost", "--model", "linear", "--test-size", "0"]
    assert run("fit", weighted, *given, "--weight", "w", "--out", tmp_path / "w.bayes").exit_code == 0
    assert run("fit", repeated, *given, "--out", tmp_path / "r.bayes").exit_code == 0
    at = frame[["age"]]
    np.testing.assert_allclose(
        bs.load(tmp_path / "w.bayes").predict(at), bs.load(tmp_path / "r.bayes").predict(at), rtol=1e-6
    )


@pytest.mark.parametrize("name", ["t.tsv", "t.csv.gz", "t.parquet"])
def test_every_format_makes_the_same_model(table, numbers, tmp_path, name):
    path = written(tmp_path / name, mixed())
    options = ["--target", "cost", "--drop", "id,state", "--model", "linear", "--test-size", "0"]
    assert run("fit", path, *options, "--out", tmp_path / "m.bayes").exit_code == 0
    data = read(table, "cost", "id,state").features
    np.testing.assert_array_equal(bs.load(tmp_path / "m.bayes").predict(data), bs.load(numbers).predict(data))


def test_a_table_on_the_standard_input(table, numbers, tmp_path):
    options = ["--target", "cost", "--drop", "id,state", "--model", "linear", "--test-size", "0"]
    result = run("fit", "-", *options, "--out", tmp_path / "m.bayes", stdin=table.read_text())
    assert result.exit_code == 0, result.output
    data = read(table, "cost", "id,state").features
    np.testing.assert_array_equal(bs.load(tmp_path / "m.bayes").predict(data), bs.load(numbers).predict(data))


def test_the_answer_is_short_and_says_what_is_next(tmp_path):
    out = tmp_path / "m.bayes"
    frame = mixed().assign(state=lambda t: t["state"].where(t.index > 4))
    path = written(tmp_path / "t.csv", frame)
    shown = run("fit", path, "--target", "state", "--drop", "id,cost", "--out", out).stdout
    for text in (
        "NeuralAdditiveClassifier of state",
        "classification, 2 classes: 'sick', 'well'",
        "85 rows, 3 features: 2 of numbers, 1 of labels",
        "5 rows without a target were left out",
        "judged on 17 held-out rows",
        "was then fitted to all rows",
        "accuracy",
        "NLL",
        "log evidence",
        "what matters most: ",
        f"wrote {out} (",
        f"bayescope predict {out} NEW.csv --out predictions.csv",
        f"bayescope effects {out} --out effects",
        f"bayescope report {out} OTHER_ROWS.csv --out report.html",
    ):
        assert text in shown
    assert shown.count("\n") < 25


def test_json_is_one_object(table, tmp_path):
    result = run("fit", table, "--target", "state", "--drop", "id,cost", "--out", tmp_path / "m.bayes", "--json")
    facts = json.loads(result.stdout)
    assert result.stderr == ""
    assert (facts["task"], facts["classes"], facts["features"]) == ("classification", ["sick", "well"], 3)
    assert facts["bytes"] == (tmp_path / "m.bayes").stat().st_size
    assert {"age", "colour"} <= set(facts["terms"]) <= {"age", "dose", "colour"}
    assert 0 < facts["held_out"]["scores"]["nll"]["low"] < facts["held_out"]["scores"]["nll"]["high"]


def test_a_failed_fit_leaves_the_file_that_was_there(table, tmp_path, monkeypatch):
    out = written(tmp_path / "m.bayes", "before")

    def fails(*_):
        raise bs.errors.ConvergenceError("no mode in sight")

    monkeypatch.setattr(fitting, "_fit", fails)
    result = run("fit", table, "--target", "state", "--out", out)
    assert (result.exit_code, result.stderr) == (1, "bayescope: no mode in sight\n")
    assert out.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["m.bayes"]


GIVEN = ("--target", "state", "--drop", "id,cost", "--model", "mlp", "--set", "hidden=(4,)", "--set", "epochs=6")


@pytest.fixture(scope="module")
def whole(table, tmp_path_factory):
    """The file of a fit that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole") / "m.bayes"
    assert run("fit", table, *GIVEN, "--test-size", "0", "--out", out).exit_code == 0
    return out.read_bytes()


class TestNetworks:
    """Fits of networks, which take long enough to be carried on."""

    @pytest.mark.parametrize(
        ("after", "left"),
        [(2, {"-search-1"}), (11, {"-search-1", "-search-2"}), (16, {"-search-1", "-search-2", ""})],
        ids=["in the first search", "in the second search", "in the last training"],
    )
    def test_an_interrupted_fit_is_carried_on_to_the_same_model(self, table, tmp_path, monkeypatch, whole, after, left):
        cut = tmp_path / "cut.bayes"
        self._interrupt(monkeypatch, after=after)
        result = run("fit", table, *GIVEN, "--test-size", "0", "--out", cut)
        assert result.exit_code == 130, result.output
        assert {path.name for path in tmp_path.iterdir()} == {f"cut.bayes{part}.checkpoint" for part in left}
        said = result.stderr.removeprefix("bayescope: interrupted; no file is half-written. ")
        file, _, advice = said.partition(" has what was trained: ")
        assert Path(file).exists()
        assert advice == "the same command with --resume goes on from there.\n"
        monkeypatch.undo()
        assert refused(run("fit", table, *GIVEN, "--test-size", "0", "--out", cut), "Carry it on with --resume")
        result = run("fit", table, *GIVEN, "--test-size", "0", "--resume", "--out", cut)
        assert result.exit_code == 0, result.output
        assert [path.name for path in tmp_path.iterdir()] == ["cut.bayes"]
        assert cut.read_bytes() == whole

    def test_a_fit_with_another_option_is_not_carried_on(self, table, tmp_path, monkeypatch):
        """Whichever training it was stopped in, and of whatever the option makes a difference to."""
        whole, cut = tmp_path / "whole.bayes", tmp_path / "cut.bayes"
        given = [*GIVEN[:-1], "epochs=5", "--prior-precision", "1", "--posterior", "map", "--seed", "2"]
        assert run("fit", table, *given, "--out", whole).exit_code == 0
        self._interrupt(monkeypatch, after=3)
        assert run("fit", table, *given, "--out", cut).exit_code == 130
        monkeypatch.undo()
        left = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        changed = {
            "seed": ["--seed", "1"], "test_size": ["--test-size", "0.3"], "refit": ["--no-refit"],
            "posterior": ["--posterior", "mc_dropout"], "prior_precision": ["--prior-precision", "2"],
            "hidden": ["--set", "hidden=(5,)"], "lr": ["--set", "lr=0.5"], "members": ["--set", "members=3"],
            "model": ["--model", "additive"], "drop": ["--drop", "id"], "categorical": ["--categorical", "dose"],
            "weight": ["--weight", "age"], "missing": ["--missing", "none"], "target": ["--target", "colour"],
            "task": ["--task", "classification"], "stream": ["--no-stream"],
        }  # fmt: skip
        for name, options in changed.items():
            kept = given[:-4] if name in ("model", "posterior") else given  # additive models have no posterior
            result = run("fit", table, *kept, "--seed", "2", *options, "--resume", "--out", cut)
            assert refused(result, "checkpoint: expected one of a run with "), name
            assert name in result.stderr or name in ("model", "posterior"), result.stderr
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == left
        assert run("fit", table, *given, "--resume", "--out", cut).exit_code == 0
        assert cut.read_bytes() == whole.read_bytes()

    def test_a_second_fit_to_the_same_file_is_refused(self, table, tmp_path, monkeypatch):
        out, told = tmp_path / "m.bayes", []
        given = [*GIVEN[:-1], "epochs=2", "--prior-precision", "1", "--posterior", "map"]
        fit = fitting._fit

        def twice(*arguments):
            if not told:
                told.append(None)
                told[0] = run("fit", table, *given, "--seed", "5", "--out", out)
            return fit(*arguments)

        monkeypatch.setattr(fitting, "_fit", twice)
        assert run("fit", table, *given, "--test-size", "0", "--out", out).exit_code == 0
        assert refused(told[0], "--out: expected a file that no other process writes", "Wait until it ends")
        assert [path.name for path in tmp_path.iterdir()] == ["m.bayes"]

    @staticmethod
    def _interrupt(monkeypatch, after):
        """Ctrl-C after so many checkpoints, each of which is written at once."""
        from bayescope.training import Checkpoint

        saved, save = [], Checkpoint.save

        def stop(self, state):
            save(self, state)
            saved.append(1)
            if len(saved) == after:
                raise Stopped(2)

        monkeypatch.setattr(Checkpoint, "due", lambda self: self._path is not None)
        monkeypatch.setattr(Checkpoint, "save", stop)

    def test_the_same_table_options_and_seed_make_the_same_file(self, table, tmp_path, whole):
        out = tmp_path / "m.bayes"
        assert run("fit", table, *GIVEN, "--test-size", "0", "--out", out).exit_code == 0
        assert out.read_bytes() == whole

    def test_both_fits_keep_a_checkpoint_and_none_is_left(self, table, tmp_path):
        out = tmp_path / "m.bayes"
        result = run("fit", table, *GIVEN, "--resume", "--out", out)
        assert result.exit_code == 0, result.output
        assert [path.name for path in tmp_path.iterdir()] == ["m.bayes"]


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (["linear"], "expected a model that keeps checkpoints while it trains, got 'linear'"),
        (["mlp", "--set", "epochs=1", "--set", "hidden=[2]"], "expected the checkpoint of an interrupted fit"),
    ],
)
def test_resume_says_where_there_is_nothing_to_carry_on(table, tmp_path, model, told):
    given = ["--target", "cost", "--drop", "id,state", "--test-size", "0", "--resume", "--out", tmp_path / "m.bayes"]
    said = " ".join(run("fit", table, *given, "--model", *model).stdout.split())
    assert f"note: --resume: {told}" in said
    assert "it was fitted from the start" in said


def test_an_additive_model_of_too_many_columns_is_refused_by_the_header_with_a_command_that_works(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(fitting, "MOST_FEATURES", 3)
    table, out = tmp_path / "wide table.csv", tmp_path / "m.bayes"
    rows = np.random.default_rng(0).standard_normal((30, 6)).round(3)
    table.write_text("a;b;c;d;e;y\n" + "\n".join(";".join(map(str, row)) for row in rows) + "\n")
    options = ["--target", "y", "--missing", "n/a", "--sep", ";", "--seed", "3", "--no-refit", "--out", out]
    with monkeypatch.context() as reading:
        reading.setattr(fitting, "read_training_table", lambda *_, **__: pytest.fail("the table was read"))
        result = run("fit", table, *options)
    assert refused(result, "expected at most 3 features for --model additive, got 5. Leave columns out with --drop, or")
    command = shlex.split(result.stderr.partition("bayescope fit ")[2])
    assert {"--no-refit", "--seed"} <= set(command)
    assert run("fit", *command).exit_code == 0
    assert type(bs.load(out)).__name__ == "BayesianLinearRegression"
    out.unlink()
    assert refused(run("fit", table, *options, "--stream"), "--no-refit --stream --out")
    assert run("fit", table, *options, "--drop", "a,b", "--set", "epochs=6").exit_code == 0
