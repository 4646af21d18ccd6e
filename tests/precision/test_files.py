"""What is saved comes back, and what was not saved by us does not."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from bayescope.errors import InputError
from bayescope.precision import BlockPrecision, DiagonalPrecision, load_precision, save_precision
from bayescope.precision.files import FORMAT
from tests.precision.cases import CASES, blocks


def nested() -> BlockPrecision:
    inner = blocks()
    one = DiagonalPrecision(torch.tensor([2.0], requires_grad=True), name="bias")
    return BlockPrecision([inner, one], [torch.arange(inner.dim), torch.tensor([inner.dim])], inner.dim + 1)


EVERY = {name: case.precision for name, case in CASES.items()}
EVERY |= {f"{name}, without a prior": case.data for name, case in CASES.items()}
EVERY |= {"block": blocks, "nested": nested}


@pytest.mark.parametrize("name", EVERY)
def test_what_was_saved_comes_back(name, tmp_path):
    precision, path = EVERY[name](), tmp_path / "new folder" / "posterior.safetensors"
    save_precision(path, precision)
    loaded = load_precision(path)
    assert type(loaded) is type(precision)
    assert [file.name for file in path.parent.iterdir()] == ["posterior.safetensors"]
    torch.testing.assert_close(loaded.to_dense(), precision.to_dense().detach(), rtol=1e-15, atol=1e-15)
    assert loaded.state().signature() == precision.state().signature()
    again = loaded.add_diagonal(0.0 if "separable" in name else 0.5)
    if "without" not in name or "separable" not in name:
        torch.testing.assert_close(again.logdet(), torch.logdet(again.to_dense()))


def test_names_and_semidefiniteness_come_back(tmp_path):
    curvature = DiagonalPrecision(torch.zeros(3), name="the curvature", semidefinite=True)
    save_precision(tmp_path / "a", curvature)
    with pytest.raises(ValueError, match="the curvature"):
        load_precision(tmp_path / "a").logdet()


def test_a_file_is_replaced(tmp_path):
    for value in (1.0, 2.0):
        save_precision(tmp_path / "a", DiagonalPrecision(torch.tensor([value])))
    assert load_precision(tmp_path / "a").diagonal().tolist() == [2.0]


def test_there_is_no_such_file(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(InputError, match="expected a precision saved by bayescope"):
            load_precision(path)


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "a"
    save_precision(path, blocks())
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", whole[:3], b"text" * 100):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match="path: expected a precision"):
            load_precision(path)


def test_files_of_others_are_refused(tmp_path):
    for metadata in (None, {"format": "pt"}):
        save_file({"weight": torch.ones(2)}, tmp_path / "a", metadata)
        with pytest.raises(InputError, match=f"expected the format '{FORMAT}'"):
            load_precision(tmp_path / "a")


def test_files_whose_contents_do_not_fit_are_refused(tmp_path):
    path = tmp_path / "a"
    save_precision(path, CASES["kronecker"].precision())
    with safe_open(path, "pt") as file:
        structure = json.loads(file.metadata()["structure"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    cut = {**tensors, "sums/input": tensors["sums/input"][:, :2]}
    less = {key: tensor for key, tensor in tensors.items() if key != "sums/output"}
    wrong = {**tensors, "added/diagonal": torch.ones(7)}
    plans = [(structure, cut), (structure, less), (structure, wrong), ({}, tensors), ([], tensors)]
    plans += [({**structure, "structure": "cholesky"}, tensors), ({**structure, "structure": "full"}, tensors)]
    for header, held in plans:
        save_file(held, path, {"format": FORMAT, "structure": json.dumps(header)})
        with pytest.raises(InputError, match="expected a whole precision"):
            load_precision(path)
