"""Values as messages: back as they were, and of other bytes one kind of error."""

from __future__ import annotations

import pickle
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayescope.errors import UnsupportedError
from bayescope.storage import MalformedError, from_message, to_message

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
TENSORS = st.sampled_from([torch.float64, torch.float32, torch.int64, torch.uint8, torch.bool]).flatmap(
    lambda dtype: st.lists(st.integers(0, 3), max_size=3).map(lambda shape: torch.ones(shape).to(dtype))
)
VALUES = st.recursive(
    PLAIN | TENSORS,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(each, other[key]) for key, each in one.items())
    return type(one) is type(other) and bool(one == other)


@given(VALUES)
def test_values_come_back_as_they_were(value: Any) -> None:
    assert same(value, from_message(to_message(value)))


def test_numbers_that_json_does_not_have_come_back() -> None:
    found = from_message(to_message([np.float32(1.5), np.arange(3), -np.inf, torch.float64, {None: np.nan}]))
    assert found[0] == 1.5
    assert found[1].tolist() == [0, 1, 2]
    assert found[2:4] == [-np.inf, torch.float64]
    assert np.isnan(found[4][None])


def test_objects_with_code_of_their_own_are_not_sent() -> None:
    with pytest.raises(UnsupportedError, match="without code"):
        to_message([object()])


@given(st.data())
@settings(max_examples=300)
def test_other_bytes_are_one_kind_of_error(data: st.DataObject) -> None:
    content = to_message({"a": [1.5, torch.ones(2, 3)], "b": (None, "text", np.arange(4) > 1)}).clone()
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    with suppress(MalformedError):
        from_message(content[: data.draw(st.integers(0, len(content)))])


@pytest.mark.parametrize(
    "content",
    [
        b"", pickle.dumps(print), b"\xff" * 40, b"\x02" + b"\0" * 7 + b"{}", b"\x40" + b"\0" * 7 + b"[" * 64,
        b"\x1e" + b"\0" * 7 + b'{"__metadata__":{"bayescope":"{}"}',
    ],
)  # fmt: skip
def test_bytes_that_nobody_packed_are_refused(content: bytes) -> None:
    with pytest.raises(MalformedError):
        from_message(torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.zeros(0).byte())
