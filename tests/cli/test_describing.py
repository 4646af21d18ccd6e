"""`bayescope info`: what a file says of itself, without its tensors."""

import json

import bayescope as bs
from tests.cli.tables import mixed, run


def test_people_are_told_what_was_fitted_and_which_columns_it_takes(classes):
    result = run("info", classes)
    assert result.exit_code == 0
    for text in (
        "classes.bayes: NeuralAdditiveClassifier",
        "classification of state, fitted to 72 rows of table.csv",
        "labels: 'blue', 'green', 'red'",
        "on held-out rows, with 95 % intervals: accuracy ",
        "log evidence",
        f"saved by bayescope {bs.__version__}",
    ):
        assert text in result.stdout


def test_programs_are_told_all(numbers):
    facts = json.loads(run("info", numbers, "--json").stdout)
    assert facts["kind"] == "BayesianLinearRegression"
    assert facts["metadata"]["command line"]["kinds"] == {"age": "numeric", "dose": "numeric", "colour": "labels"}
    assert facts["bytes"] == numbers.stat().st_size
    assert facts["tensors"]


def test_any_file_of_the_library(tmp_path):
    frame = mixed()
    posterior = bs.BayesianLinearRegression().fit(frame[["age"]], frame["cost"]).posterior_
    path = posterior.save(tmp_path / "q.bayes", metadata={"whose": "mine"})
    result = run("info", path)
    assert result.exit_code == 0
    assert "log evidence" in result.stdout
    assert json.loads(run("info", path, "--json").stdout)["metadata"] == {"whose": "mine"}


def test_no_tensor_is_read(classes, monkeypatch):
    monkeypatch.setattr("bayescope.storage.load", lambda *_, **__: 1 / 0)
    assert run("info", classes).exit_code == 0
