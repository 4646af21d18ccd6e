"""Cells of more characters than Python's csv module takes by default: read as any other, shown in part."""

import numpy as np
import pandas as pd
import pytest

from bayescope.cli import open_source
from tests.cli.tables import refused, run, written

LONG = "z" * 200_000


@pytest.mark.parametrize("cell", [LONG, f'"{LONG}"', f'"{LONG}\n{LONG},"'])
@pytest.mark.parametrize("rows", [1, 2, 10])
def test_a_long_label_is_read(tmp_path, cell, rows):
    path = written(tmp_path / "t.csv", f"x,label\n1,a\n2,{cell}\n3,b\n")
    source = open_source(path)
    blocks = [block.read(source.kinds(["x", "label"])) for block in source.blocks(rows)]
    assert np.concatenate([block["x"] for block in blocks]).tolist() == [1.0, 2.0, 3.0]
    assert [label for block in blocks for label in block["label"]] == ["a", cell.strip('"'), "b"]


@pytest.mark.parametrize("quote", ["", '"'])
def test_a_long_name_of_a_column_is_read(tmp_path, quote):
    path = written(tmp_path / "t.csv", f"x,{quote}{LONG}{quote}\n1,2\n")
    assert open_source(path).header == ("x", LONG)


@pytest.mark.parametrize("quote", ["", '"'])
def test_a_long_cell_among_numbers_is_told_by_its_place_and_its_beginning(tmp_path, quote):
    frame = pd.DataFrame({"x": np.arange(40) % 7, "y": np.arange(40) % 2})
    table, model, out = written(tmp_path / "t.csv", frame), tmp_path / "m.bayes", tmp_path / "p.csv"
    assert run("fit", table, "--target", "y", "--model", "linear", "--out", model).exit_code == 0
    new = written(tmp_path / "new.csv", f"x,y\n1,0\n{quote}{LONG}{quote},1\n")
    result = run("predict", model, new, "--out", out)
    assert refused(result, f"{new}: line 3, column 'x': expected a number, got 'zzz", "… (200,002 characters)")
    assert len(result.stderr) < 600
    assert not out.exists()
