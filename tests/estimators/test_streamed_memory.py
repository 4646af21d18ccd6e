"""What a fit of a table on disk takes of memory does not grow with its rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

COLUMNS, FEW, MANY = 10, 20_000, 240_000
# A copy of the larger table in float64 is 20 MiB, and a fit of it in memory takes ten such at least.
ALLOWED_MIB = 80

SCRIPT = """
import resource, sys
import torch
import bayescope as bs
from bayescope.tables import column_sums
torch.set_num_threads(1)
column_sums.SAMPLE_ROWS = 4096
def fitted(folder):
    table = bs.open_table(folder, block_rows=8192)
    bs.NeuralAdditiveRegressor(hidden=2, epochs=2, burn_in=1, random_state=0).fit(table, "y")
    network = {"hidden": (4,), "epochs": 1, "batch_size": 4096, "prior_precision": 1.0, "random_state": 0}
    bs.BayesianMLPRegressor(posterior="map", **network).fit(table, "y")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(fitted(sys.argv[1]), fitted(sys.argv[2]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss is another elsewhere")
def test_memory_does_not_grow_with_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    folders = []
    for rows in (FEW, MANY):
        table = pd.DataFrame(rng.normal(size=(rows, COLUMNS)).astype(np.float32), columns=list("abcdefghij"))
        table["y"] = np.sin(table["a"]) + rng.normal(size=rows)
        folders.append(tmp_path / str(rows))
        folders[-1].mkdir()
        table.to_parquet(folders[-1] / "part.parquet", row_group_size=16_384)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, *map(str, folders)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    few, many = map(float, done.stdout.split())
    assert many - few < ALLOWED_MIB
