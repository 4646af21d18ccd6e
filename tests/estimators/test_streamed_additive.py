"""Additive models of tables on disk: they equal those of the same rows in memory, and leave nothing behind."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch.overrides import TorchFunctionMode

import bayescope as bs
from bayescope.additive import CODED_ROWS
from bayescope.errors import InputError, InputTypeError, OptionError, UnsupportedError
from tests.estimators.streamed import features, frame, open_files, opened, stored

Regressor, Classifier = bs.NeuralAdditiveRegressor, bs.NeuralAdditiveClassifier
TABLE = frame()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(tmp_path_factory.mktemp("table"), TABLE)


def options(**more: object) -> dict[str, object]:
    return {"hidden": 5, "pair_hidden": 4, "epochs": 8, "random_state": 0, **more}


CASES = [
    ("regression", Regressor, "y", False, options()),
    ("weights", Regressor, "y", True, options(numeric_transform="quantile")),
    ("classes", Classifier, "cls", True, options(epochs=6, class_weight="balanced")),
    ("two classes", Classifier, "two", False, options(epochs=8)),
    ("a pair", Regressor, "y", False, options(interactions=[("age", "kind")])),
    ("groups", Regressor, "y", False, options(groups="dose")),
    ("pairs", Regressor, "y", False, options(interactions=1)),
    (
        "dependence, full",
        Regressor,
        "y",
        False,
        options(interactions=1, ranking="mutual_information", structure="full"),
    ),
    ("heteroscedastic", Regressor, "y", False, options(epochs=8, likelihood="heteroscedastic_gaussian")),
]


@pytest.mark.parametrize(
    ("make", "target", "weighted", "given"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_rows_on_disk_have_the_fit_of_rows_in_memory(folder, make, target, weighted, given):
    table = opened(folder, target, weighted=weighted)
    streamed = make(**given).fit(table, target, sample_weight="w" if weighted else None)
    held = make(**given).fit(features(TABLE), TABLE[target], sample_weight=TABLE["w"] if weighted else None)
    assert streamed.log_evidence_ == pytest.approx(held.log_evidence_, rel=1e-9)
    assert streamed.pairs_ == held.pairs_
    assert streamed.feature_names_in_.tolist() == held.feature_names_in_.tolist()
    some = features(TABLE)[:60]
    ours, theirs = (model.predict_distribution(some) for model in (streamed, held))
    np.testing.assert_allclose(ours.mean, theirs.mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(ours.variance, theirs.variance, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(streamed.importance().mean, held.importance().mean, rtol=1e-5, atol=1e-6)
    one, other = streamed.effects("age"), held.effects("age")
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(one.density, other.density, atol=1e-12)
    for described, known in zip(streamed.additive_.encoding.features, held.additive_.encoding.features, strict=True):
        np.testing.assert_allclose(described.counts, known.counts, rtol=1e-12)
    if make is Classifier:
        assert streamed.classes_.tolist() == held.classes_.tolist()


def test_numbers_of_many_values_are_in_the_groups_that_they_have_in_memory(tmp_path):
    rows = CODED_ROWS + 1000  # two blocks of codes
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.normal(size=rows), "z": rng.normal(size=rows)})
    table["y"] = np.sin(table["x"]) + 0.2 * rng.normal(size=rows)
    stored(tmp_path, table)
    streamed = Regressor(**options()).fit(bs.open_table(str(tmp_path)), "y")
    held = Regressor(**options()).fit(table[["x", "z"]], table["y"])
    assert streamed.log_evidence_ == pytest.approx(held.log_evidence_, rel=1e-8)
    assert "numbers grouped while fitting: x, z" in streamed.summary()
    np.testing.assert_allclose(
        streamed.predict(table[["x", "z"]][:50]), held.predict(table[["x", "z"]][:50]), rtol=1e-6, atol=1e-6
    )


def test_a_pair_of_many_cells_finds_the_surface(tmp_path):
    rng, rows = np.random.default_rng(0), CODED_ROWS + 1000
    table = pd.DataFrame({"x": rng.uniform(-1, 1, rows).round(2), "z": rng.uniform(-1, 1, rows).round(2)})
    table["y"] = 2.0 * table["x"] * table["z"] + 0.1 * rng.normal(size=rows)
    stored(tmp_path, table)
    given = options(interactions=[("x", "z")], pair_hidden=8, epochs=25)
    model = Regressor(**given).fit(bs.open_table(str(tmp_path), block_rows=5000), "y")
    x = table[["x", "z"]][:500]
    assert np.sqrt(np.mean((model.predict(x) - 2.0 * x["x"] * x["z"]) ** 2)) < 0.06
    assert model.noise_variance_ == pytest.approx(0.01, rel=0.4)
    assert "numbers grouped while fitting: x & z" in model.summary()


def test_an_offset_is_a_column(tmp_path):
    table = TABLE.assign(base=np.random.default_rng(3).normal(size=len(TABLE)).round(2))
    table["y"] = table["y"] + table["base"]
    stored(tmp_path, table)
    on_disk = bs.open_table(str(tmp_path), columns=["age", "dose", "y", "base"], block_rows=200)
    streamed = Regressor(**options()).fit(on_disk, "y", offset="base")
    held = Regressor(**options()).fit(table[["age", "dose"]], table["y"], offset=table["base"])
    assert streamed.log_evidence_ == pytest.approx(held.log_evidence_, rel=1e-9)


def test_numbers_that_are_labels(folder):
    streamed = Regressor(**options(categorical=["dose"])).fit(opened(folder, "y"), "y")
    held = Regressor(**options(categorical=["dose"])).fit(features(TABLE), TABLE["y"])
    assert streamed.log_evidence_ == pytest.approx(held.log_evidence_, rel=1e-9)
    np.testing.assert_allclose(streamed.predict(features(TABLE)[:20]), held.predict(features(TABLE)[:20]), rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"y": "height"}, OptionError, "'height'"),
        ({"y": np.zeros(3)}, InputTypeError, "y: expected the name of a column"),
        ({"y": "kind"}, InputTypeError, "column 'kind': expected numbers, got labels"),
        ({"y": "age"}, InputError, "column 'age': expected a value in each row, got none in row"),
        ({"y": "y", "sample_weight": [1.0]}, InputTypeError, "sample_weight: expected the name of a column"),
    ],
)
def test_what_cannot_be_used_is_told_by_its_column(folder, arguments, error, said):
    with pytest.raises(error, match=said):
        Regressor(**options()).fit(opened(folder, "y"), **arguments)


class Looking(TorchFunctionMode):
    """Counts the temporary files while a fit solves its equations, or interrupts it there."""

    def __init__(self, *, interrupts: bool) -> None:
        self.interrupts = interrupts
        self.counted: list[int] = []

    def __torch_function__(self, function, types, arguments=(), options=None):
        if function is torch.linalg.cholesky_ex:
            self.counted.append(open_files())
            if self.interrupts:
                raise KeyboardInterrupt
        return function(*arguments, **(options or {}))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the files that a process holds are read from /proc")
@pytest.mark.parametrize("interrupts", [False, True])
def test_temporary_files_are_gone_after_a_fit_and_after_an_error(folder, interrupts):
    before = open_files()
    with pytest.raises(KeyboardInterrupt) if interrupts else nullcontext(), Looking(interrupts=interrupts) as mode:
        Regressor(**options()).fit(opened(folder, "y"), "y")
    assert min(mode.counted) > before  # they are counted at all
    gc.collect()
    assert open_files() == before


def test_a_fitted_model_is_saved_and_answers_without_its_table(folder, tmp_path):
    model = Regressor(**options()).fit(opened(folder, "y"), "y")
    path = model.save(tmp_path / "model.bayes")
    some = features(TABLE)[:10]
    np.testing.assert_array_equal(bs.load(path).predict(some), model.predict(some))


def test_what_a_fit_of_a_table_does_not_do_is_said(folder, tmp_path):
    with pytest.raises(UnsupportedError, match="offset: expected None for 3 classes of a table on disk"):
        Classifier(**options()).fit(opened(folder, "cls"), "cls", offset="dose")
    stored(tmp_path, TABLE.assign(y=3.0))
    with pytest.raises(InputError, match="expected numbers that vary for likelihood='heteroscedastic_gaussian'"):
        Regressor(**options(likelihood="heteroscedastic_gaussian")).fit(opened(tmp_path, "y"), "y")
