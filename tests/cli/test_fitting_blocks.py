"""`bayescope fit` on directories, globs and large files: in blocks, what Python finds, by one process or several."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import bayescope as bs
from bayescope.cli.arrow_source import large
from bayescope.cli.streamed_table import stride
from bayescope.storage import read_manifest
from tests.cli.started import command
from tests.cli.tables import mixed, refused, run, written

ROWS = 240
LINEAR = ["--model", "linear", "--target", "state", "--drop", "id,cost"]


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return mixed(ROWS).assign(alive=np.arange(ROWS) % 3 == 0)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory, rows: pd.DataFrame) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    rows[:100].to_parquet(folder / "a.parquet", index=False)
    rows[100:].to_parquet(folder / "b.parquet", index=False)
    return folder


@pytest.fixture(scope="module")
def model(parts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("model") / "m.bayes"
    result = run("fit", parts, *LINEAR, "--out", out)
    assert result.exit_code == 0, (result.output, result.exception)
    assert "note: rows 5, 10, 15 and so on were held out" in result.stdout
    assert "judged on 48 held-out rows" in result.stdout
    return out


def test_the_model_is_that_of_rows_in_memory(model: Path, rows: pd.DataFrame, tmp_path: Path):
    columns = ["age", "dose", "colour", "alive"]
    saved = bs.load(model)
    assert saved.classes_.tolist() == ["sick", "well"]
    told = read_manifest(model).metadata["command line"]
    assert told["rows"] == ROWS
    assert told["kinds"] == {"age": "numeric", "dose": "numeric", "colour": "categorical", "alive": "categorical"}
    assert told["classes"] == ["sick", "well"]
    features = rows[columns].assign(alive=rows["alive"].astype(str))
    for ending in ("parquet", "csv"):
        path, out = written(tmp_path / f"rows.{ending}", rows), tmp_path / f"{ending}.bayes"
        assert run("fit", path, *LINEAR, "--no-stream", "--test-size", "0", "--out", out).exit_code == 0
        own = bs.load(out)
        assert own.weight_names_ == saved.weight_names_
        np.testing.assert_allclose(own.predict_proba(features), saved.predict_proba(features), rtol=1e-8)


def test_rows_of_text_without_a_target_or_a_label(rows: pd.DataFrame, tmp_path: Path):
    """A directory of text is a single file of it: empty cells, true and false, rows that have no target, large ids."""
    table = rows.assign(state=rows["state"].where(rows["id"] % 7 != 0), alive=np.where(rows["alive"], "true", "false"))
    table["code"] = 2**53 + np.arange(ROWS) % 3
    (tmp_path / "parts").mkdir()
    table[:90].to_csv(tmp_path / "parts" / "a.csv", index=False)
    table[90:].to_csv(tmp_path / "parts" / "b.csv", index=False)
    single = written(tmp_path / "rows.csv", table)
    answers, predicted = [], []
    for source in (tmp_path / "parts", single):
        out, probs = tmp_path / f"{source.stem}.bayes", tmp_path / f"{source.stem}.out.csv"
        options = ["--categorical", "code", "--test-size", "0", "--json", "--out", out]
        result = run("fit", source, *LINEAR, *options)
        assert result.exit_code == 0, (result.output, result.exception)
        answers.append(json.loads(result.stdout))
        for read in (tmp_path / "parts", single):
            assert run("predict", out, read, "--out", probs).exit_code == 0
            predicted.append(pd.read_csv(probs))
    gone = int(table["state"].isna().sum())
    for answer in answers:
        assert (answer["rows"], answer["rows_without_target"]) == (ROWS - gone, gone)
    for other in predicted[1:]:
        pd.testing.assert_frame_equal(other, predicted[0], rtol=1e-7)
    assert len(bs.load(tmp_path / "parts.bayes").weight_names_) == len(bs.load(tmp_path / "rows.bayes").weight_names_)


def test_a_truth_value_is_predicted_and_reported(parts: Path, tmp_path: Path):
    out, page = tmp_path / "m.bayes", tmp_path / "r.html"
    result = run("fit", parts, "--target", "alive", "--drop", "id,state", "--model", "linear", "--out", out)
    assert result.exit_code == 0, (result.output, result.exception)
    assert bs.load(out).classes_.tolist() == ["False", "True"]
    result = run("report", out, parts, "--out", page, "--reference", "none")
    assert result.exit_code == 0, (result.output, result.exception)


def test_the_judged_rows_are_not_fitted(parts: Path, rows: pd.DataFrame, tmp_path: Path):
    out = tmp_path / "m.bayes"
    result = run("fit", parts, *LINEAR, "--no-refit", "--out", out, "--json")
    facts = json.loads(result.stdout)
    assert (facts["rows"], facts["held_out"]["rows"]) == (192, 48)
    apart = rows[np.arange(ROWS) % 5 == 4]
    features = apart[["age", "dose", "colour", "alive"]].assign(alive=apart["alive"].astype(str))
    assert facts["held_out"]["scores"]["accuracy"]["value"] == pytest.approx(
        bs.load(out).score(features, apart["state"])
    )


def test_predictions_of_files_are_those_of_one(model: Path, parts: Path, rows: pd.DataFrame, tmp_path: Path):
    whole, several, single = tmp_path / "rows.parquet", tmp_path / "several.csv", tmp_path / "single.csv"
    rows.to_parquet(whole, index=False)
    assert run("predict", model, whole, "--out", single, "--keep", "id").exit_code == 0
    for source in (parts, parts / "*.parquet"):
        result = run("predict", model, source, "--out", several, "--keep", "id")
        assert result.exit_code == 0, (result.output, result.exception)
        assert several.read_bytes() == single.read_bytes()
    page = tmp_path / "r.html"
    assert run("report", model, parts, "--out", page, "--reference", "none").exit_code == 0


def test_a_large_file_is_fitted_in_blocks_and_a_small_one_is_not(rows: pd.DataFrame, tmp_path: Path):
    path, remark = tmp_path / "rows.parquet", "rows 5, 10, 15 and so on were held out"
    rows.to_parquet(path, index=False)
    for options, in_blocks in (([], False), (["--stream"], True), (["--no-stream"], False)):
        result = run("fit", path, *LINEAR, "--out", tmp_path / "m.bayes", *options)
        assert (remark in result.stdout) == in_blocks
    size = path.stat().st_size
    assert [large(path), large(path, size), large(path, size + 1)] == [False, True, False]


def test_text_is_read_in_blocks_where_asked(rows: pd.DataFrame, tmp_path: Path):
    rows.to_csv(tmp_path / "rows.csv", index=False)
    out = tmp_path / "m.bayes"
    result = run("fit", tmp_path / "rows.csv", *LINEAR, "--stream", "--categorical", "alive", "--out", out)
    assert result.exit_code == 0, (result.output, result.exception)
    rows.to_parquet(tmp_path / "rows.parquet", index=False)
    for name, missing in (("rows.parquet", "?"), ("rows.csv", "-9"), ("rows.csv", "age=?")):
        result = run("fit", tmp_path / name, *LINEAR, "--stream", "--missing", missing, "--out", out)
        assert refused(result, f"--missing: expected none for {tmp_path / name}, which is read in blocks")


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16"])
def test_a_directory_of_text_is_read_as_a_file_is(tmp_path: Path, rows: pd.DataFrame, encoding: str):
    """Semicolons, decimal commas, line breaks in cells, an encoding, and what stands for a missing value."""
    table = rows[["age", "dose", "colour", "state"]].assign(note=np.where(rows["alive"], "gr\u00fcn\nrot; x", "?"))
    table = table.assign(dose=table["dose"].astype(object).fillna("?"))
    table["dose"] = table["dose"].map(lambda dose: str(dose).replace(".", ","))
    (tmp_path / "parts").mkdir()
    spelled = {"index": False, "sep": ";", "decimal": ",", "encoding": encoding}
    for name, some in (("parts/a.csv", table[:100]), ("parts/b.csv", table[100:]), ("whole.csv", table)):
        some.to_csv(tmp_path / name, **spelled)
    given = ["--target", "state", "--model", "linear", "--missing", "?", "--test-size", "0"]
    answers, predicted = [], []
    named = ["--sep", ";", "--decimal", ",", "--encoding", encoding]
    for place, options in (("parts", []), ("parts/*.csv", named), ("parts", ["--no-stream"]), ("whole.csv", [])):
        out = tmp_path / "m.bayes"
        result = run("fit", tmp_path / place, *given, *options, "--out", out, "--json")
        assert result.exit_code == 0, (result.output, result.exception)
        answers.append(json.loads(result.stdout))
        assert run("predict", out, tmp_path / "parts", "--out", tmp_path / "p.csv").exit_code == 0
        predicted.append(pd.read_csv(tmp_path / "p.csv"))
    for facts, found in zip(answers, predicted, strict=True):
        assert (facts["numeric"], facts["labels"], facts["rows"]) == (2, 2, ROWS)
        assert facts["log_evidence"] == pytest.approx(answers[-1]["log_evidence"])
        pd.testing.assert_frame_equal(found, predicted[-1], rtol=1e-4)
    assert "separated by ';', with decimal commas" in answers[0]["notes"][0]
    wrong = run("fit", tmp_path / "parts", *given, "--sheet", "2", "--out", tmp_path / "m.bayes")
    assert refused(wrong, "--sheet: expected none for")


@pytest.mark.parametrize(
    ("target", "drop", "task"), [("cost", "id,state", "regression"), ("id", "cost,state", "regression")]
)
def test_numbers_of_many_values_are_a_regression(parts: Path, tmp_path: Path, target: str, drop: str, task: str):
    out = tmp_path / "m.bayes"
    options = ["--model", "linear", "--test-size", "0", "--json", "--out", out]
    result = run("fit", parts, "--target", target, "--drop", drop, *options)
    assert result.exit_code == 0, (result.output, result.exception)
    facts = json.loads(result.stdout)
    assert (facts["task"], facts["rows"], facts["held_out"]) == (task, ROWS, None)


def test_no_more_rows_are_held_out_than_judge_a_fit():
    assert stride(0.2, 10_000) == 5
    assert stride(0.2, 10**7) == 100
    assert stride(0.0, 10**7) is None


@pytest.mark.parametrize(("share", "every"), [(0.5, 2), (0.4, 3), (0.3, 3), (0.25, 4), (0.1, 10), (0.07, 14)])
def test_every_kth_row_is_nearest_to_the_share(share: float, every: int):
    assert stride(share, 1000) == every


def test_what_cannot_be_used_is_told(parts: Path, rows: pd.DataFrame, tmp_path: Path):
    out = tmp_path / "m.bayes"
    (tmp_path / "none").mkdir()
    assert refused(run("fit", tmp_path / "none", *LINEAR, "--out", out), "expected a directory with .parquet")
    assert refused(run("fit", tmp_path / "*.parquet", *LINEAR, "--out", out), "some file fits")
    assert refused(run("fit", parts, *LINEAR, "--out", out, "--test-size", "0.7"), "from 0 to 0.5")
    assert refused(run("fit", parts, *LINEAR, "--out", out, "--test-size", "0.001"), "at least two rows to judge by")
    assert refused(run("fit", parts, "--target", "stat", "--out", out), "Did you mean 'state'?")
    rows.assign(state=pd.Series([None] * ROWS, dtype="str")).to_parquet(tmp_path / "gap.parquet")
    assert refused(run("fit", tmp_path / "gap.parquet", *LINEAR, "--stream", "--out", out), "a target in some rows")
    rows.assign(state=pd.Timestamp("2020-01-01")).to_parquet(tmp_path / "dates.parquet")
    assert refused(run("fit", tmp_path / "dates.parquet", *LINEAR, "--stream", "--out", out), "dates or times")
    assert not out.exists()


def torchrun(*arguments: object) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    typed = [*launcher, *command(), *map(str, arguments)]
    return subprocess.run(typed, capture_output=True, text=True, timeout=500, env=environment, check=False)


def test_several_processes_write_one_model_and_speak_once(model: Path, parts: Path, rows: pd.DataFrame, tmp_path: Path):
    out = tmp_path / "m.bayes"
    done = torchrun("fit", parts, *LINEAR, "--out", out)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("BayesianLogisticRegression of state") == 1
    features = rows[["age", "dose", "colour", "alive"]].assign(alive=rows["alive"].astype(str))
    np.testing.assert_allclose(bs.load(out).predict_proba(features), bs.load(model).predict_proba(features), rtol=1e-8)


def test_an_error_of_several_processes_is_told_once_and_ends_them(parts: Path, tmp_path: Path):
    done = torchrun("fit", parts, "--target", "nobody", "--model", "linear", "--out", tmp_path / "m.bayes")
    assert done.returncode != 0
    assert done.stderr.count("expected a target column 'nobody'") == 1
    assert "exitcode  : 2" in done.stderr
    assert done.stdout == ""
