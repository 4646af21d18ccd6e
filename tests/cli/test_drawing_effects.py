"""`bayescope effects`: pictures, and tables that hold what the estimator says."""

import json

import numpy as np
import pandas as pd
import pytest

import bayescope as bs
from bayescope.files import only_writer
from tests.cli.tables import mixed, refused, run, written


def test_files_hold_what_the_estimator_says(classes, tmp_path):
    out = tmp_path / "effects"
    result = run("effects", classes, "--out", out, "--level", "0.8")
    assert result.exit_code == 0, (result.output, result.exception)
    files = {"effects.csv", "effects.png", "importance.csv", "importance.png"}
    assert {path.name for path in out.iterdir()} == files
    assert all(f"wrote {out / name}\n" in result.stdout for name in files)
    table, model = pd.read_csv(out / "effects.csv", keep_default_na=False), bs.load(classes)
    for name in ("age", "dose", "colour"):
        own, rows = model.effects(name, level=0.8), table[table["feature"] == name]
        there = rows[rows["value"] != ""]
        np.testing.assert_allclose(there["mean"], own.mean)
        np.testing.assert_allclose(there["high"], own.high)
        assert (len(rows) > len(there)) == (own.missing is not None)
        if own.missing is not None:
            assert rows[rows["value"] == ""]["low"].item() == own.missing.low
    importance = pd.read_csv(out / "importance.csv")
    assert importance["term"].tolist() == [model.importance().names[k] for k in model.importance().order]


def test_some_features_alone_in_json(classes, tmp_path):
    facts = json.loads(run("effects", classes, "--out", tmp_path / "e", "--feature", "dose,age", "--json").stdout)
    assert facts["features"] == ["dose", "age"]
    assert set(pd.read_csv(tmp_path / "e" / "effects.csv")["feature"]) == {"dose", "age"}
    assert facts["unit"] == "logit of 'well'"


def test_pairs_and_several_classes(tmp_path):
    frame = mixed(120).assign(state=lambda t: np.where(t["age"] * (t["dose"] - 4) > 60, "a", t["state"]))
    path, model, out = written(tmp_path / "t.csv", frame), tmp_path / "m.bayes", tmp_path / "e"
    given = ["--target", "state", "--drop", "id,cost,colour", "--interactions", "1", "--test-size", "0"]
    assert (
        run(
            "fit", path, *given, "--set", "epochs=8", "--set", "hidden=6", "--set", "pair_hidden=6", "--out", model
        ).exit_code
        == 0
    )
    result = run("effects", model, "--out", out, "--json")
    facts = json.loads(result.stdout)
    assert facts["pairs"] == [["age", "dose"]]
    assert {"pairs.csv", "pair-1-1.png", "pair-1-2.png", "pair-1-3.png"} <= set(facts["files"])
    pairs, own = pd.read_csv(out / "pairs.csv"), bs.load(model).surface("age", "dose")
    assert pairs["output"].unique().tolist() == ["a", "sick", "well"]
    of_a = pairs[pairs["output"] == "a"]
    np.testing.assert_allclose(of_a["mean"].to_numpy().reshape(own.mean.shape[:2]), own.mean[..., 0])
    np.testing.assert_allclose(of_a["first_value"].to_numpy().reshape(own.mean.shape[:2])[:, 0], own.grid_a)
    effects = pd.read_csv(out / "effects.csv")
    assert effects["output"].unique().tolist() == ["a", "sick", "well"]


@pytest.mark.parametrize("command", ["effects", "compare"])
def test_a_folder_has_one_writer_at_a_time(classes, table, tmp_path, command):
    out = tmp_path / "out"
    file, options = {
        "effects": ("effects.csv", [classes]),
        "compare": ("report.html", [table, "--target", "state", "--drop", "id,cost", "--posteriors", "map"]),
    }[command]
    with only_writer("--out", out / file):
        assert refused(run(command, *options, "--out", out), "expected a file that no other process writes")
    assert not out.exists()
