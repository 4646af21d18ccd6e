"""`bayescope info`: what a file says of itself, without its tensors."""

import copy
import json

import numpy as np
import pandas as pd

import bayescope as bs
from tests.cli.tables import mixed, refused, run
from tests.storage.mutants import framed, parts, places


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
    assert facts["metadata"]["command line"]["kinds"] == {"age": "numeric", "dose": "numeric", "colour": "categorical"}
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


def test_no_tensor_is_read(classes, table, tmp_path):
    """A byte of a tensor is altered: what the file says of itself is still known, and its model is refused."""
    altered = bytearray(classes.read_bytes())
    altered[-1] ^= 1
    (tmp_path / "altered.bayes").write_bytes(altered)
    assert run("info", tmp_path / "altered.bayes").exit_code == 0
    assert refused(run("predict", tmp_path / "altered.bayes", table, "--out", "-"), "altered.bayes: ")


def test_brackets_in_names_are_no_markup(tmp_path):
    table = tmp_path / "table.csv"
    rows = np.random.default_rng(0).normal(size=(40, 2))
    pd.DataFrame({"dose [mg]": rows[:, 0], "y [/bold]": rows.sum(1)}).to_csv(table, index=False)
    model = tmp_path / "model.bayes"
    run("fit", table, "--target", "y [/bold]", "--model", "linear", "--out", model)
    shown = run("info", model).stdout
    assert "dose [mg]" in shown
    assert "y [/bold]" in shown


STRANGE = [None, True, -1, 1.5, 10**400, "", "x", "\x1b[2J", "\ud800", [], {}, [[]], [1, 2], {"a": 1}, [None] * 50]


def test_a_description_of_the_table_that_nobody_wrote_ends_in_one_line(numbers, table, tmp_path):
    """Each value in the metadata, exchanged for each of these under checksums that are right: read, or one line."""
    manifest, tensors = parts(numbers.read_bytes())
    path, ended = tmp_path / "altered.bayes", {"answers": 0, "refused": 0}
    for place in range(len(places(manifest["metadata"], []))):
        for strange in STRANGE[place % 3 :: 3]:
            changed = copy.deepcopy(manifest)
            holder, key = places(changed["metadata"], [])[place]
            holder[key] = strange
            path.write_bytes(framed(changed, tensors))
            result = run("info", path)
            ended["refused" if result.exit_code and refused(result, "altered.bayes") else "answers"] += 1
    assert min(ended.values()) > 10
    manifest["metadata"]["command line"]["scores"] = [["nll", 10**400, 0.1, 0.2]]
    path.write_bytes(framed(manifest, tensors))
    assert refused(run("predict", path, table, "--out", "-"), "expected the description of a table in its metadata")
