"""Calls to torch that can move rows by what is in them: whether a batch's rows stay in place is then up to its values.

A trace sees the rows of one batch. A network that sorts them, or packs the tokens that are not padding, may leave those
in place and move the rows of a later batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def moves_rows(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether a call can move rows by value: it selects by a tensor, or hands values to Python, which then may."""
    if func in _INDEXED:
        return not _fixed(args[1])
    if func in _WHERE:
        return len(args) == 1
    return func in _MOVES


def _fixed(index: Any) -> bool:
    """Whether an index selects the same entries whatever the values are."""
    if isinstance(index, tuple):
        return all(map(_fixed, index))
    return index is None or index is Ellipsis or isinstance(index, bool | int | slice)


def _named(*names: str) -> frozenset[Any]:
    """The functions of these names in torch and among the methods of tensors."""
    return frozenset(getattr(owner, name) for owner in (torch, Tensor) for name in names if hasattr(owner, name))


_INDEXED = _named("__getitem__", "__setitem__")
_WHERE = _named("where")
_MOVES = _named(
    *("gather", "take", "take_along_dim", "nonzero", "argwhere", "masked_select", "masked_scatter", "masked_scatter_"),
    *("index_select", "sort", "argsort", "msort", "topk", "_pack_padded_sequence", "_pad_packed_sequence"),
    *(f"index_{name}{end}" for name in ("add", "copy", "put", "fill", "reduce") for end in ("", "_")),
    *(f"scatter{name}{end}" for name in ("", "_add", "_reduce") for end in ("", "_")),
    *("item", "tolist", "numpy", "__array__", "__int__", "__index__", "__float__", "__bool__"),
)
