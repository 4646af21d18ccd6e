"""The frame of a file: what is not as bayescope writes it is refused, and named."""

from __future__ import annotations

import io
import json
import random
import time
import zipfile

import pytest
import safetensors.torch
import torch

import bayescope as bs
from bayescope import storage
from bayescope.errors import FileError, InputError
from tests.storage.mutants import FREQUENCIES, MUTATIONS, WELL_FRAMED, framed, mutant, parts
from tests.storage.saved import estimator, posterior

FUZZED = ("laplace, kfac, float32", "laplace, low_rank, float64", "ensemble", "dropout", "function space")
MUTANTS = 250  # of each of six files


@pytest.fixture
def whole(tmp_path) -> bytes:
    value = {"a": torch.arange(5.0), "b": [1, "x", 2.5]}
    return storage.save(value, tmp_path / "whole.bayes", metadata={"n": 1}).read_bytes()


@pytest.fixture
def read(tmp_path):
    """Reads a file of these bytes."""

    def reading(content: bytes):
        path = tmp_path / "file.bayes"
        path.write_bytes(content)
        return storage.load(path)

    return reading


def respaced(whole: bytes) -> bytes:
    start = 8 + int.from_bytes(whole[:8], "little")
    content = json.dumps(json.loads(whole[8:start])).encode()
    return len(content).to_bytes(8, "little") + content + whole[start:]


def longer(whole: bytes) -> bytes:
    start = 8 + int.from_bytes(whole[:8], "little")
    return start.to_bytes(8, "little") + whole[8:start] + b" " * 8 + whole[start:]


MANY_AXES = {"array": {"dtype": "object", "shape": [2**62] * 10**6, "values": []}}
WHOLE = {"array": {"dtype": "int32", "values": {"ref": 0}}}
NAME = "dict['a']"
BAD = {
    "an empty file": (lambda whole: b"", "truncated file of 0 bytes"),
    "text": (lambda whole: b"age,dose\n1,2\n", "expected a file saved by bayescope, got something else"),
    "a pickle": (lambda whole: b"\x80\x04\x95\x0a\x00", "got something else"),
    "a plain zip": (lambda whole: zipped({"a.txt": b"x" * 50}), "got something else"),
    "a zip of a path upwards": (lambda whole: zipped({"../../evil": b"x" * 50}), "got something else"),
    "other tensors": (lambda whole: safetensors.torch.save({"a": torch.ones(2)}), "got something else"),
    "cut in its beginning": (lambda whole: whole[:20], "truncated file of 20 bytes"),
    "cut in its header": (lambda whole: whole[:80], "truncated file of 80 bytes"),
    "cut in its tensors": (lambda whole: whole[:-10], "truncated"),
    "cut by a byte": (lambda whole: whole[:-1], "truncated"),
    "longer by a byte": (lambda whole: whole + b"\x00", "1 bytes more than were saved"),
    "a bit of the manifest": (lambda whole: flip(whole, 74), "the checksum of its manifest is another"),
    "a bit of the checksum": (lambda whole: flip(whole, whole.index(b'"sha256":"') + 12), "of its manifest"),
    "a bit of the tensors": (lambda whole: flip(whole, len(whole) - 4), "the checksum of its tensors"),
    "a bit of their types": (lambda whole: flip(whole, whole.rindex(b'"F32"') + 2), "that cannot be|is another"),
    "another order": (lambda whole: headed(whole, lambda e: dict(reversed(e.items()))), "got something else"),
    "other spaces": (respaced, "got something else"),
    "more spaces": (longer, "the checksum of its manifest is another"),
    "a second entry": (lambda whole: headed(whole, lambda e: e | {"x": {"dtype": "F32", "shape": [0]}}), "is another"),
    "other offsets": (
        lambda whole: headed(whole, lambda e: e | {NAME: {**e[NAME], "data_offsets": [4, 24]}}),
        "is another",
    ),
    "a length beyond all": (lambda whole: b"\xff" * 8 + whole[8:], "its header is longer than any"),
    "no JSON": (lambda whole: framed(None, b"", text="{'a': 1}"), "its manifest is not JSON"),
    "deep JSON": (lambda whole: framed(None, b"", text="[" * 10**5), "its manifest is not JSON"),
    "NaN in JSON": (lambda whole: framed(None, b"", text='{"format": NaN}'), "its manifest is not JSON"),
    "a list": (lambda whole: framed(None, b"", text="[]"), "its manifest is no table"),
    "no version": (lambda whole: edited(whole, lambda m: m.pop("format")), "does not tell its version"),
    "a version of text": (lambda whole: edited(whole, lambda m: m.update(format="1")), "does not tell its version"),
    "no objects": (lambda whole: edited(whole, lambda m: m.pop("objects")), "lacks what every file has"),
    "no value": (lambda whole: edited(whole, lambda m: m.pop("value")), "lacks what every file has"),
    "a tag of nobody's": (lambda whole: edited(whole, lambda m: m.update(value={"call": "print"})), "'call' is not"),
    "two tags": (lambda whole: edited(whole, lambda m: m.update(value={"ref": 0, "size": []})), "altered"),
    "a class of nobody's": (
        lambda whole: edited(whole, lambda m: m.update(value={"os.system": {}})),
        "the class 'os.system' is not known",
    ),
    "a reference onwards": (lambda whole: edited(whole, lambda m: m.update(value={"ref": 1})), "leads nowhere"),
    "a reference to itself": (
        lambda whole: edited(whole, lambda m: m["objects"].append({"Sequential": {"0": {"ref": 1}}})), "leads nowhere"
    ),
    "nodes without end": (lambda whole: edited(whole, lambda m: m.update(value=nest(200))), "without end"),
    "a tree in the table": (lambda whole: edited(whole, lambda m: m["objects"].append([1])), "what is not shared"),
    "tuples of tuples without end": (
        lambda whole: edited(whole, lambda m: m["objects"].extend(doubled(1, 60))),
        "what is not shared",
    ),
    "a version that is a command": (
        lambda whole: edited(whole, lambda m: m.update(format=9, bayescope="9'; rm -r ~; '")),
        "does not tell its version",
    ),
    "an array of many axes": (
        lambda whole: edited(whole, lambda m: m["objects"].append(MANY_AXES)),
        "another number of cells",
    ),
    "signs that a terminal obeys": (
        lambda whole: edited(whole, lambda m: m["objects"].append({"Normalizer": {"\x1b[2J": 1}})),
        r"'.x1b\[2J' is not learnt by Normalizer",
    ),
    "a tensor that is not there": (
        lambda whole: edited(whole, lambda m: m["objects"][0].update(tensor=["b", None])),
        "a tensor is missing",
    ),
    "another shape": (lambda whole: edited(whole, lambda m: m["tensors"][0].__setitem__(2, [6])), "truncated file"),
    "a huge shape": (lambda whole: edited(whole, lambda m: m["tensors"][0].__setitem__(2, [2**61])), "truncated file"),
    "a shape below 0": (lambda whole: edited(whole, lambda m: m["tensors"][0].__setitem__(2, [-5])), "cannot be"),
    "another type": (lambda whole: edited(whole, lambda m: m["objects"].append(WHOLE)), "an array is of another type"),
    "a type of nobody's": (lambda whole: edited(whole, lambda m: m["tensors"][0].__setitem__(1, "O")), "cannot be"),
}  # fmt: skip


def flip(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]


def zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    return buffer.getvalue()


def headed(whole: bytes, change) -> bytes:
    """The file with other entries in its header."""
    start = 8 + int.from_bytes(whole[:8], "little")
    content = json.dumps(change(json.loads(whole[8:start])), separators=(",", ":")).encode()
    return len(content).to_bytes(8, "little") + content + whole[start:]


def edited(whole: bytes, change) -> bytes:
    manifest, tensors = parts(whole)
    change(manifest)
    return framed(manifest, tensors)


def nest(levels: int):
    return [nest(levels - 1)] if levels else 1


def doubled(first: int, levels: int):
    """Tuples of which each holds the one before it twice, after so many other objects."""
    return [{"tuple": [{"ref": first + place - 1}] * 2} for place in range(levels)]


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_and_told_what_it_is(name, whole, read, tmp_path):
    make, match = BAD[name]
    with pytest.raises(FileError, match=match) as caught:
        read(make(whole))
    assert str(tmp_path / "file.bayes") in str(caught.value)
    assert isinstance(caught.value, InputError)
    assert len(str(caught.value)) < 600


def test_a_file_that_is_framed_anew_is_the_file(whole):
    manifest, tensors = parts(whole)
    assert len(framed(manifest, tensors)) == len(whole)


def test_files_of_later_versions_say_which_one_reads_them(whole, read):
    later = edited(whole, lambda m: m.update(format=2, bayescope="3.1.4"))
    with pytest.raises(FileError, match=r"format 1 or before, got format 2, saved by bayescope 3\.1\.4\. Upgrade: pip"):
        read(later)


def test_manifests_are_read_without_the_tensors(whole, tmp_path):
    path = tmp_path / "file.bayes"
    path.write_bytes(flip(whole, len(whole) - 4))
    assert storage.read_manifest(path).metadata == {"n": 1}
    with pytest.raises(FileError, match="the checksum of its tensors"):
        storage.load(path)
    path.write_bytes(edited(whole, lambda m: m.update(summary=3)))
    with pytest.raises(FileError, match="lacks what every file has"):
        storage.read_manifest(path)


@pytest.mark.filterwarnings("ignore::bayescope.errors.BayescopeWarning", "ignore:Initializing zero-element:UserWarning")
@pytest.mark.parametrize("name", [*FUZZED, "logistic, pipeline"])
def test_altered_files_end_in_one_error(name, tmp_path):
    """Drawn from a seed: every file that differs is refused, or was framed well and holds other values."""
    made = estimator(name) if name.startswith("logistic") else posterior(name)
    whole, path, source = made.save(tmp_path / "whole.bayes").read_bytes(), tmp_path / "m.bayes", random.Random(0)
    told: list[str] = []
    for _ in range(MUTANTS):
        change, altered = mutant(whole, source)
        path.write_bytes(altered)
        start = time.process_time()
        try:
            bs.load(path)
        except FileError as error:
            told.append(str(error))
        else:
            assert altered == whole or change in WELL_FRAMED
        assert time.process_time() - start < 5.0, "no file keeps a machine busy"
    words = ("altered", "truncated", "something else", "Upgrade")
    assert [message for message in told if not any(word in message for word in words)] == []


@pytest.mark.parametrize("change", MUTATIONS)
def test_each_mutation_is_drawn_and_changes_something(change, whole):
    source = random.Random(1)
    assert FREQUENCIES[change] >= 1
    assert any(MUTATIONS[change](whole, source) != whole for _ in range(5))
