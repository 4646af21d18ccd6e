"""The frame of a file: what is not as bayescope writes it is refused, and named."""

from __future__ import annotations

import hashlib
import io
import random
import struct
import time
import zipfile
import zlib

import pytest
import torch

import bayescope as bs
from bayescope import storage
from bayescope.errors import FileError, InputError
from bayescope.storage import container
from bayescope.storage.container import Member, ending
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


BAD = {
    "an empty file": (lambda whole: b"", "truncated file of 0 bytes"),
    "text": (lambda whole: b"age,dose\n1,2\n", "expected a file saved by bayescope, got something else"),
    "a pickle": (lambda whole: b"\x80\x04\x95\x0a\x00", "got something else"),
    "cut in its header": (lambda whole: whole[:20], "truncated file of 20 bytes"),
    "cut in its manifest": (lambda whole: whole[:80], "truncated file of 80 bytes"),
    "cut in its tensors": (lambda whole: whole[:-300], "truncated"),
    "cut by a byte": (lambda whole: whole[:-1], "truncated"),
    "longer by a byte": (lambda whole: whole + b"\x00", "1 bytes more than were saved"),
    "a bit of the manifest": (lambda whole: flip(whole, 90), "the checksum of its manifest is another"),
    "a bit of the tensors": (lambda whole: flip(whole, whole.rindex(b"F32") + 60), "the checksum of its tensors"),
    "a bit of their names": (lambda whole: flip(whole, whole.rindex(b'"F32"') + 1), "the names, types or shapes"),
    "a bit of the directory": (lambda whole: flip(whole, whole.index(b"PK\x01\x02") + 20), "its end does not belong"),
    "another checksum in its comment": (lambda whole: flip(whole, len(whole) - 3), "its end does not belong"),
    "a plain zip": (lambda whole: other({"a.txt": b"x" * 50}), "got another zip"),
    "a zip of a path upwards": (lambda whole: other({"../../evil": b"x" * 50}), "got another zip"),
    "a compressed zip": (lambda whole: other(both(whole), zipfile.ZIP_DEFLATED), "its first header is another"),
    "written by another program": (lambda whole: other(both(whole)), "altered|more than were saved"),
    "a third member": (lambda whole: other({**both(whole), "evil.py": b"import os"}), "altered"),
    "a bomb": (lambda whole: other({"manifest.json": b" " * 10**7}, zipfile.ZIP_DEFLATED), "its first header"),
    "no JSON": (lambda whole: framed(None, b"", text=b"{'a': 1}"), "its manifest is no JSON"),
    "deep JSON": (lambda whole: framed(None, b"", text=b"[" * 10**5), "its manifest is no JSON"),
    "NaN in JSON": (lambda whole: framed(None, b"", text=b'{"format": NaN}'), "its manifest is no JSON"),
    "a list": (lambda whole: framed(None, b"", text=b"[]"), "its manifest is no table"),
    "no version": (lambda whole: edited(whole, lambda m: m.pop("format")), "does not tell its version"),
    "a version of text": (lambda whole: edited(whole, lambda m: m.update(format="1")), "does not tell its version"),
    "no objects": (lambda whole: edited(whole, lambda m: m.pop("objects")), "lacks what every file has"),
    "no value": (lambda whole: edited(whole, lambda m: m.pop("value")), "lacks what every file has"),
    "a tag of nobody's": (lambda whole: edited(whole, lambda m: m.update(value={"call": "print"})), "'call' is not"),
    "two tags": (lambda whole: edited(whole, lambda m: m.update(value={"ref": 0, "size": []})), "altered"),
    "a class of nobody's": (
        lambda whole: edited(whole, lambda m: m.update(value={"object": ["os.system", 1, {}, {}]})),
        "the class 'os.system' is not known",
    ),
    "a reference onwards": (lambda whole: edited(whole, lambda m: m.update(value={"ref": 1})), "leads nowhere"),
    "a reference to itself": (
        lambda whole: edited(whole, lambda m: m["objects"].append({"network": {"ref": 1}})), "leads nowhere"
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
        lambda whole: edited(whole, lambda m: m["objects"].append({"array": ["object", [2**62] * 10**6, [], None]})),
        "another number of cells",
    ),
    "signs that a terminal obeys": (
        lambda whole: edited(whole, lambda m: m["objects"].append({"estimator": ["Normalizer", {"\x1b[2J": 1}, {}]})),
        r"got an unexpected keyword argument '\?\[2J'",
    ),
    "a tensor that is not there": (
        lambda whole: edited(whole, lambda m: m["objects"][0].update(tensor=["b", None])),
        "a tensor is missing",
    ),
    "another shape": (lambda whole: edited(whole, lambda m: m["tensors"][0].__setitem__(2, [6])), "another size"),
    "a huge shape": (lambda whole: edited(whole, lambda m: m["tensors"][0].__setitem__(2, [2**61])), "another size"),
    "a shape below 0": (lambda whole: edited(whole, lambda m: m["tensors"][0].__setitem__(2, [-5])), "cannot be"),
    "another type": (lambda whole: edited(whole, lambda m: m["tensors"][0].__setitem__(1, "I32")), "not those of its"),
    "a type of nobody's": (lambda whole: edited(whole, lambda m: m["tensors"][0].__setitem__(1, "O")), "cannot be"),
    "a tensor twice": (lambda whole: edited(whole, lambda m: m["tensors"].append(m["tensors"][0])), "a tensor twice"),
}  # fmt: skip


def flip(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]


def both(whole: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(whole)) as file:
        return {name: file.read(name) for name in file.namelist()}


def other(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return buffer.getvalue()


def edited(whole: bytes, change) -> bytes:
    manifest, tensors = parts(whole)
    del manifest["members"]
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


def test_the_first_format_stays_readable(read):
    """A file of the first format as it was written on its first day: later versions have to read it too."""
    text = (
        '{"format": 1, "bayescope": "0.1.0", "kind": "record", "summary": "", "metadata": {}, "packages": {}, '
        '"tensors": [["record.evidence", "F64", []]], "objects": [{"tensor": ["record.evidence", null]}, {"object": '
        '["record", 1, {"method": "laplace", "evidence": {"ref": 0}, "elbo_terms": null, "notes": {"dict": [["a", "b"]'
        ']}, "trace": {"dict": []}, "instead": ""}, {}]}], "value": {"ref": 1}, "members": {"tensors.safetensors": '
        '{"size": 80, "crc32": CRC, "sha256": "SHA"}}}'
    )
    head = b'{"record.evidence":{"dtype":"F64","shape":[],"data_offsets":[0,8]}}'
    head += b" " * (-len(head) % 8)
    tensors = struct.pack("<Q", len(head)) + head + struct.pack("<d", -1.25)
    text = text.replace("80", str(len(tensors))).replace("CRC", str(zlib.crc32(tensors)))
    text = text.replace("SHA", hashlib.sha256(tensors).hexdigest())
    record = read(framed(None, tensors, text=text.encode()))
    assert (record.method, float(record.evidence), record.notes) == ("laplace", -1.25, {"a": "b"})


def test_wide_members_are_what_zips_call_them(monkeypatch, tmp_path):
    """Beyond 4 GiB sizes stand elsewhere in a zip; here every member counts as that large."""
    monkeypatch.setattr(container, "MOST", 200)
    monkeypatch.setattr(Member, "wide", property(lambda self: self.name == container.TENSORS))
    path = storage.save({"a": torch.arange(50.0)}, tmp_path / "wide.bayes")
    assert torch.equal(storage.load(path)["a"], torch.arange(50.0))
    with zipfile.ZipFile(path) as file:
        assert file.testzip() is None
        assert len(file.read(container.TENSORS)) == storage.read_manifest(path).sizes[container.TENSORS]


def test_the_end_is_that_of_its_manifest():
    first, second = Member(container.MANIFEST, 10, 1), Member(container.TENSORS, 20, 2)
    assert ending(first, second, "a" * 64).endswith(b"bayescope file 1 sha256 " + b"a" * 64)


def test_manifests_are_read_without_the_tensors(whole, tmp_path):
    path = tmp_path / "file.bayes"
    path.write_bytes(flip(whole, whole.rindex(b"F32") + 60))
    assert storage.read_manifest(path).metadata == {"n": 1}
    with pytest.raises(FileError, match="the checksum of its tensors"):
        storage.load(path)
    path.write_bytes(edited(whole, lambda m: m.update(summary=3)))
    with pytest.raises(FileError, match="lacks what every file has"):
        storage.read_manifest(path)


@pytest.mark.filterwarnings("ignore::bayescope.errors.BayescopeWarning")
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
