"""Files that ask for more than they are: refused before anything of it is made."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from bayescope import storage
from bayescope.errors import FileError, InputError, UnsupportedError
from bayescope.storage import ModelError, Reader
from tests.storage.hostile import ATTACKS, file_of
from tests.storage.mutants import framed, parts
from tests.storage.saved import estimator, plain_table, seeded, table


@pytest.mark.parametrize("name", ATTACKS)
def test_a_file_that_asks_for_too_much_is_refused(name, tmp_path):
    path = tmp_path / "file.bayes"
    path.write_bytes(ATTACKS[name]())
    with pytest.raises(FileError, match="got an altered one") as caught:
        storage.load(path)
    assert len(str(caught.value).removeprefix(str(path)).splitlines()) == 1


@pytest.mark.parametrize("name", ["a manifest of empty tables", "a manifest of empty lists"])
def test_a_manifest_of_little_but_brackets_is_not_parsed(name, tmp_path):
    path = tmp_path / "file.bayes"
    path.write_bytes(ATTACKS[name]())
    with pytest.raises(FileError, match="its manifest is not JSON of ours"):
        storage.read_manifest(path)


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(3_000_000),
        np.zeros((1000, 1000)),
        {"labels": np.array(["x"] * 50_000)},
        [[float(i), [i]] for i in range(30_000)],
        [torch.arange(3.0)] * 5000,
        np.zeros((50_000, 0)),
        [{"a": 1}] * 20_000,
    ],
    ids=["zeros", "a constant table", "equal labels", "lists in a list", "one tensor often", "no columns", "mappings"],
)
def test_what_is_large_or_alike_comes_back(value, tmp_path):
    back = storage.load(storage.save(value, tmp_path / "value.bayes"))
    assert str(back) == str(value)


@pytest.mark.parametrize("text", [r"\ud800", r"a\udfff", r"\ud83d \ude00"])
def test_half_of_a_character_is_refused(text, tmp_path):
    path = tmp_path / "file.bayes"
    halves = text.encode().decode("unicode_escape")
    path.write_bytes(file_of([], [halves], summary=halves))
    for read in (storage.load, storage.read_manifest):
        with pytest.raises(FileError, match="its manifest is not JSON of ours"):
            read(path)
    with pytest.raises(UnsupportedError, match="could not be read again"):
        storage.save([halves], tmp_path / "saved.bayes")
    assert not (tmp_path / "saved.bayes").exists()


def test_whole_characters_of_all_planes_come_back(tmp_path):
    value = ["é\U0001f600", "\\ud800"]
    assert storage.load(storage.save(value, tmp_path / "value.bayes")) == value


def test_layers_that_no_file_may_ask_for_are_saved_as_ones_own(tmp_path):
    for make in (lambda: nn.Sequential(nn.MaxPool1d(2**40)), lambda: nn.Sequential(nn.RNN(1, 1, 501))):
        with pytest.raises(ModelError, match="architecture of Sequential"):
            storage.load(storage.save(seeded(make), tmp_path / "net.bayes"))


def test_deep_networks_of_ordinary_layers_are_described(tmp_path):
    def residual() -> nn.Module:
        stem = [nn.Conv2d(3, 8, 7, 2, 3), nn.BatchNorm2d(8), nn.MaxPool2d(3, 2, 1)]
        body = [layer for _ in range(50) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())]
        return nn.Sequential(*stem, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))

    def decoder() -> nn.Module:
        pairs = [(nn.ConvTranspose2d(4, 4, 4, 2, 1), nn.Upsample(scale_factor=2)) for _ in range(3)]
        return nn.Sequential(nn.Upsample(size=(512, 512)), nn.AvgPool2d(64), *[each for pair in pairs for each in pair])

    for make in (residual, decoder):
        assert len(list(storage.load(storage.save(seeded(make), tmp_path / "net.bayes")).modules())) > 6


@pytest.mark.parametrize(
    ("name", "attribute", "value"),
    [
        ("logistic, pipeline", "scale_", {"tuple": [1.0, "x"]}),
    ],
)
def test_a_model_with_altered_attributes_fails_in_the_library_s_words(name, attribute, value, tmp_path):
    path = estimator(name).save(tmp_path / "model.bayes")
    manifest, tensors = parts(path.read_bytes())
    learnt = [parts for node in manifest["objects"] for parts in node.values() if attribute in parts]
    learnt[-1][attribute] = value
    path.write_bytes(framed(manifest, tensors))
    rows = plain_table()[:3] if "pipeline" in name else table().iloc[:3]
    model = storage.load(path)
    for answer in ("predict", "predict_distribution"):
        with pytest.raises(
            FileError, match=r"model\.bayes: expected a model that answers for these inputs, got "
        ) as error:
            getattr(model, answer)(rows)
        assert error.value.__cause__ is not None
        assert len(str(error.value).splitlines()) == 1


def test_a_loaded_model_names_a_column_that_is_missing_and_does_not_suspect_its_file(tmp_path):
    model = storage.load(estimator("mlp, laplace").save(tmp_path / "model.bayes"))
    rows = table().iloc[:3]
    with pytest.raises(InputError, match=rf"yet now missing:\n- {rows.columns[0]}"):
        model.predict(rows.iloc[:, 1:])


def test_a_model_that_is_fitted_again_forgets_its_file(tmp_path):
    model = storage.load(estimator("linear, rbf").save(tmp_path / "model.bayes"))
    model.fit(plain_table(), plain_table()[:, 0])
    model._inputs = None
    with pytest.raises(AttributeError, match="NoneType"):
        model.predict(plain_table())


def test_a_slip_in_a_call_of_a_loaded_model_is_told_as_a_slip(tmp_path):
    model = storage.load(estimator("linear, rbf").save(tmp_path / "model.bayes"))
    with pytest.raises(TypeError, match="unexpected keyword argument 'sampels'"):
        model.predict_distribution(plain_table(), sampels=3)
    with pytest.raises(InputError, match="samples: expected"):
        model.predict_distribution(plain_table(), samples=-3)


def test_what_an_object_refers_to_counts_at_each_use():
    def taken(uses: int) -> int:
        reader = Reader({"t": torch.zeros(1000)})
        reader.add({"tensor": ["t", None]})
        reader.value([{"ref": 0}] * uses)
        return reader._taken + reader._met

    assert taken(11) - taken(1) > 10 * 4000
