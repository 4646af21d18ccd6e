"""A model and what its file says of the table are of one file, whoever replaces the file meanwhile."""

import json
import os
import shutil
import threading
from dataclasses import replace
from itertools import cycle

import numpy as np
import pandas as pd
import pytest

import bayescope as bs
from bayescope.cli.model_files import load_model, table_of
from tests.cli.tables import run


@pytest.fixture
def models(tmp_path):
    """Two models, with slopes that their tables' names tell."""
    x = pd.DataFrame({"x": np.arange(20.0)})
    paths = []
    for slope in (1.0, -1.0):
        model = bs.BayesianLinearRegression().fit(x, slope * x["x"] + np.sin(7.0 * x["x"]))
        table = replace(table_of("", model), target="y", file=str(slope), missing=["?"] * int(50.0 * (1.0 + slope)))
        paths.append(model.save(tmp_path / f"{slope}.bayes", metadata=table.metadata()))
    return paths


def whole(path):
    """Whether the model is that of the table that comes with it."""
    model, table = load_model(path)
    return np.sign(model.coef_[0]) == float(table.file)


def put(model, place):
    """Puts a model in the place of another one, in a single step."""
    shutil.copy(model, f"{place}.next")
    os.replace(f"{place}.next", place)


def test_a_file_that_another_thread_replaces(models, tmp_path):
    place, ended = tmp_path / "m.bayes", threading.Event()
    put(models[0], place)

    def swap():
        for model in cycle(models):
            if ended.is_set():
                return
            put(model, place)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        assert all(whole(place) for _ in range(60))
        sizes = {path.stem: path.stat().st_size for path in models}
        for _ in range(20):
            facts = json.loads(run("info", place, "--json").stdout)
            assert facts["bytes"] == sizes[facts["metadata"]["command line"]["file"]]
        assert len(set(sizes.values())) == 2
    finally:
        ended.set()
        swapping.join()
