"""Values come back as they were: to the type, the bit, the layout in memory."""

from __future__ import annotations

import math
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, reduce
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayescope import storage
from bayescope.errors import FileError, NotPositiveDefiniteError, UnsupportedError
from bayescope.storage import fits, stored
from bayescope.storage.codec import Reader, Writer, flattened, in_order

PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.sampled_from([math.inf, -math.inf, -0.0])
)
KEYS = st.one_of(st.none(), st.booleans(), st.integers(), st.text())
TREES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(KEYS, inner, max_size=4),
    ),
    max_leaves=20,
)
Pair = namedtuple("Pair", "a b")


def there_and_back(value: Any, tmp_path) -> Any:
    return storage.load(storage.save(value, tmp_path / "value.bayes"))


def alike(first: Any, second: Any) -> bool:
    """Equal with equal types, NaN and the sign of 0 too."""
    if type(first) is not type(second):
        return False
    if isinstance(first, float):
        signs = math.copysign(1, first) == math.copysign(1, second)
        return (first == second and signs) or (math.isnan(first) and math.isnan(second))
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(alike, first, second))
    if isinstance(first, dict):
        return alike(list(first), list(second)) and alike(list(first.values()), list(second.values()))
    return bool(first == second)


@given(TREES)
def test_trees_come_back_to_the_type(tree):
    writer = Writer()
    node = writer.value(tree, "tree")
    assert alike(Reader({}).value(node), tree)


SCALARS = [np.float64(0.1), np.float32(0.1), np.int8(-3), np.bool_(True), np.str_("é"), np.uint64(2**63)]


@pytest.mark.parametrize("scalar", [*SCALARS, np.float16("nan"), np.datetime64("2020-02-03"), np.timedelta64(3, "h")])
def test_scalars_keep_their_type(scalar, tmp_path):
    back = there_and_back(scalar, tmp_path)
    assert (type(back), back.dtype) == (type(scalar), scalar.dtype)
    assert back == scalar or np.isnan(scalar)


ARRAYS = {
    "floats": np.arange(6.0).reshape(2, 3),
    "columns first": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "none": np.empty((0, 3)),
    "one": np.array(3.0),
    "whole": np.arange(3, dtype=np.uint16),
    "truths": np.array([True, False]),
    "text": np.array(["a", "longer"]),
    "empty text": np.array([], dtype="U3"),
    "labels": np.array(["a", None, 1, 2.5, True, math.nan], dtype=object),
    "lists": np.array([None, None], dtype=object),
    "days": np.array(["2020-01-01", "NaT"], dtype="M8[D]"),
    "other bytes": np.arange(3, dtype=">f8"),
    "backwards": np.arange(5.0)[::-1],
}
ARRAYS["lists"][:] = [[1, 2], [3, 4]]


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_come_back(name, tmp_path):
    array = ARRAYS[name]
    array.flags.writeable = name != "floats"  # a table that must not be changed is stored all the same
    back = there_and_back(array, tmp_path)
    assert back.dtype == array.dtype.newbyteorder("=")
    assert back.shape == array.shape
    assert back.flags.writeable
    assert alike(back.tolist(), array.tolist())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.uint8])
def test_tensors_keep_their_type(dtype, tmp_path):
    tensor = torch.tensor([[1, 0], [2, 3]]).to(dtype)
    back = there_and_back({"t": tensor, "d": dtype}, tmp_path)
    assert back["d"] is dtype
    assert torch.equal(back["t"], tensor)
    assert back["t"].dtype == dtype


@given(st.permutations(range(4)), st.integers(0, 3), st.integers(1, 3))
def test_tensors_lie_in_memory_as_they_did(order, narrowed, size):
    tensor = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0)).permute(order)
    for one in (tensor, tensor.narrow(narrowed, 0, min(size, tensor.shape[narrowed])), tensor[:, :1]):
        flat, told = flattened(one)
        assert flat.is_contiguous()
        back = in_order(flat, told)
        assert torch.equal(back, one)
        if one.numel() == tensor.numel():
            assert back.stride() == one.stride()


def test_a_tensor_that_is_expanded_is_stored_whole(tmp_path):
    assert torch.equal(there_and_back(torch.ones(1).expand(4), tmp_path), torch.ones(4))


def test_mappings_and_other_plain_values_come_back(tmp_path):
    value = {
        "proxy": MappingProxyType({1: 2}), "ordered": OrderedDict(a=1), "size": torch.Size([2, 3]),
        "slice": slice(1, None, 2), "type": np.float64, "dtype": np.dtype("int8"), "builtin": int,
        "random": np.random.RandomState(7),
    }  # fmt: skip
    back = there_and_back(value, tmp_path)
    assert back["proxy"] == {1: 2}
    assert back["ordered"] == {"a": 1}
    assert (back["size"], type(back["size"])) == (torch.Size([2, 3]), torch.Size)
    assert (back["slice"], back["type"], back["dtype"], back["builtin"]) == (slice(1, None, 2), np.float64, "int8", int)
    assert back["random"].random_sample() == np.random.RandomState(7).random_sample()


def loop() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


class Level(IntEnum):
    LOW = 1


REFUSED = {
    "a function": ([lambda x: x], r"got a function \(.*<lambda>\) at list\[0\]"),
    "a builtin": ({"f": print}, r"got a builtin_function_or_method \(print\) at dict\['f'\]"),
    "a class": (OSError, r"got a type \(OSError\)"),
    "a set": ({"a": (1, {2})}, r"got a set at dict\['a'\]\[1\]"),
    "bytes": (b"x", "got a bytes"),
    "a named tuple": (Pair(1, 2), "got a .*Pair"),
    "an enumeration": (Level.LOW, "got a .*Level"),
    "a complex array": (np.ones(1, dtype=complex), "got a numpy.ndarray"),
    "a record array": (np.zeros(1, dtype=[("a", "f8")]), "got a numpy.ndarray"),
    "a matrix": (np.ma.masked_array([1.0]), "MaskedArray"),
    "a sparse tensor": (torch.eye(2).to_sparse(), "got a torch.Tensor"),
    "a tensor without memory": (torch.empty(2, device="meta"), "got a torch.Tensor"),
    "a list in itself": (loop(), "that does not hold itself"),
    "lists in lists": (reduce(lambda inside, _: [inside], range(10_000), []), "parts are nested more deeply than"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_stored_is_named_with_its_path(name, tmp_path):
    value, match = REFUSED[name]
    with pytest.raises(UnsupportedError, match=match):
        storage.save(value, tmp_path / "value.bayes")
    assert list(tmp_path.iterdir()) == []


# Classes ---------------------------------------------------------------------------------------------------------


@stored("test_thing", without=("hidden",), possible=("cause",), lost="lost", kept=("root",))
@dataclass(frozen=True)
class Thing:
    value: float
    names: tuple[str, ...] = ()
    inner: Thing | None = None
    cause: Any = None
    hidden: Any = None
    lost: tuple[str, ...] = ()

    @cached_property
    def root(self) -> float:
        if self.value < 0:
            raise NotPositiveDefiniteError("no root")
        return self.value**0.5

    def _check_stored(self) -> None:
        if self.value == 13:
            raise ValueError("13 is no value")


def test_objects_come_back_with_what_is_kept_of_them(tmp_path):
    thing = Thing(4.0, ("a",), Thing(-1.0, cause=("b",)), cause=print, hidden=1)
    back = there_and_back(thing, tmp_path)
    assert back == Thing(4.0, ("a",), Thing(-1.0, cause=("b",)), None, None, ("cause",))
    assert vars(back)["root"] == 2.0
    assert "root" not in vars(back.inner)
    assert back.inner.lost == ()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"value": "x"}, "the value of a Thing is not one"),
        ({"value": True}, "the value of a Thing is not one"),
        ({"names": [1]}, "the names of a Thing is not one"),
        ({"inner": {"tuple": []}}, "the inner of a Thing is not one"),
        ({"evil": 1}, "a Thing has other parts"),
        ({"hidden": 1}, "a Thing has other parts"),
        ({"value": 13}, "13 is no value"),
    ],
)
def test_parts_are_what_the_class_says(change, match):
    values = {"value": 1.0, "names": {"tuple": []}, "inner": None, "lost": {"tuple": []}}
    assert Reader({}).value({"test_thing": values}) == Thing(1.0)
    with pytest.raises(ValueError, match=match):
        Reader({}).value({"test_thing": values | change})
    with pytest.raises(ValueError, match="other parts"):
        Reader({}).value({"test_thing": {"value": 2.0}})


def test_names_are_taken_once():
    with pytest.raises(ValueError, match="the name 'test_thing' is taken by Thing"):

        @stored("test_thing")
        class Other:
            pass


def test_a_subclass_is_not_its_parent(tmp_path):
    class More(Thing):
        pass

    with pytest.raises(UnsupportedError, match="More"):
        storage.save(More(1.0), tmp_path / "value.bayes")


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (1, int, True), (True, int, False), (1.0, int, False), (1, float, True), (True, float, False),
        ("a", str, True), (None, int | None, True), ("a", int | None, False), ((1, 2), tuple[int, ...], True),
        ((1, "a"), tuple[int, ...], False), ((1, "a"), tuple[int, str], True), ((1,), tuple[int, str], False),
        ([1.0], list[float], True), ({"a": 1}, dict[str, int], True), ({1: 1}, dict[str, int], False),
        ("x", Literal["x", "y"], True), ("z", Literal["x", "y"], False), (print, Any, True),
        (torch.ones(1), torch.Tensor, True), (np.ones(1), torch.Tensor, False), ([1], tuple, False),
    ],
)  # fmt: skip
def test_values_are_judged_by_their_annotations(value, hint, expected):
    assert fits(value, hint) is expected


def test_an_array_of_text_takes_no_more_memory_than_the_file():
    with pytest.raises(ValueError, match="more memory than a file of its size does"):
        Reader({}).value({"array": {"dtype": "U1000000", "shape": [2000], "values": [""] * 2000}})


@pytest.mark.parametrize("change", [{"pos": -1}, {"pos": 625}, {"pos": 2**31 - 2000}, {"key": [0] * 624}, {"gauss": 1}])
def test_a_random_state_never_reads_beside_its_numbers(change):
    writer = Writer()
    writer.value(np.random.RandomState(0), "state")
    reader = Reader(writer.tensors)
    for node in writer.objects[:-1]:
        reader.add(node)
    parts = writer.objects[-1]["random_state"]
    reader.add({"random_state": parts})
    with pytest.raises(ValueError, match="a random state is malformed"):
        reader.add({"random_state": {**parts, **change}})


def test_keys_are_plain():
    reader = Reader({"t": torch.ones(2)})
    reader.add({"tensor": ["t", None]})
    assert reader.value({"dict": [[{"tuple": [1, "a"]}, 2]]}) == {(1, "a"): 2}
    for key in ({"ref": 0}, {"tuple": [1, {"ref": 0}]}):
        with pytest.raises(ValueError, match="a key is malformed"):
            reader.value({"dict": [[key, 1]]})


def test_nobody_reads_a_file_into_a_wrong_type(tmp_path):
    path = storage.save(Thing(2.0), tmp_path / "value.bayes")
    assert storage.load(path) == Thing(2.0)
    with pytest.raises(FileError):
        storage.load(tmp_path / "none.bayes")
