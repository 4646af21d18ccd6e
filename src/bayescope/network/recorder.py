"""The recorder: sees every call to torch that a network makes, and notes those that random weights take part in."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from bayescope.network.interception import Args, Function, Interception, Kwargs, flows, named, replaced
from bayescope.network.notes import RANDOM, Notes
from bayescope.network.rewrites import OF_WEIGHTS, REWRITES
from bayescope.network.rules import RULES, computed, unknown
from bayescope.network.vectorising import POINTWISE


def recorder(notes: Notes) -> Interception:
    """Runs a network's calls to torch so that each site's cotangents can be asked for afterwards.

    No graph is built before the first random weight: reading a last layer is a forward pass.
    """

    def rewritten(args: Args, kwargs: Kwargs) -> bool:
        return flows(args, kwargs) or (torch.is_grad_enabled() and notes.parameters(args, kwargs) == RANDOM)

    return Interception(partial(_answer, notes), REWRITES, rewritten)


def _answer(notes: Notes, func: Function, args: Args, kwargs: Kwargs) -> object:
    found = notes.parameters(args, kwargs)
    if moves_rows(func, args) and notes.parameters(args[:1], {}) is None:  # a table of weights holds no rows
        notes.moves_rows = True
    if found is None and not flows(args, kwargs):
        return _constant(notes, func(*args, **kwargs), args, kwargs)
    if found and getattr(func, "__name__", "") == "__get__":
        value = func(*args, **kwargs)
        if not (isinstance(value, Tensor) and value.requires_grad):  # a shape, the flag requires_grad, W.data
            return value
    return _weighted(notes, func, args, kwargs, found)


def _weighted(notes: Notes, func: Function, args: Args, kwargs: Kwargs, found: str | None) -> object:
    """What a call returns in which weights take part, or through which a gradient has to pass."""
    random = found == RANDOM and torch.is_grad_enabled()
    if random and notes.takes_weights_alone(args, kwargs):
        followed = func in OF_WEIGHTS or notes.is_followed(args, kwargs)
        return (computed if followed else unknown)(notes, OF_WEIGHTS.get(func, func), args, kwargs)
    if random:
        return RULES.get(func, unknown)(notes, func, args, kwargs)
    if found:
        given = replaced(args, kwargs, notes.plain)
        if not flows(*given):
            return _constant(notes, func(*given[0], **given[1]), args, kwargs)
        args, kwargs = given
    return _DIFFERENTIABLE.get(func, func)(*args, **kwargs)


def _constant(notes: Notes, result: object, args: Args, kwargs: Kwargs) -> object:
    """What a call returned; noted if it took nothing that differs between rows."""
    recorded = torch.is_grad_enabled() or not isinstance(result, Tensor)
    if recorded and notes.takes_weights_alone(args, kwargs):
        notes.note_constant(result, args)
    return result


def _attention(*args: object, **kwargs: object) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return functional.scaled_dot_product_attention(*args, **kwargs)  # type: ignore[arg-type]


# Functions in the form whose backward pass takes many cotangents at once. The fused kernels of attention have none.
_DIFFERENTIABLE = {**POINTWISE, functional.scaled_dot_product_attention: _attention}


def moves_rows(func: Function, args: Args) -> bool:
    """Whether a call can move rows by value: it selects by a tensor, or hands values to Python, which then may.

    A trace sees the rows of one batch. A network that sorts them, or packs the tokens that are not padding, may leave
    the rows of that batch in place and move the rows of a later one.
    """
    if func in _INDEXED:
        return not _fixed(args[1])
    if func in _WHERE:
        return len(args) == 1
    return func in _MOVES


def _fixed(index: object) -> bool:
    """Whether an index selects the same entries whatever the values are."""
    if isinstance(index, tuple):
        return all(map(_fixed, index))
    return index is None or index is Ellipsis or isinstance(index, bool | int | slice)


_INDEXED = frozenset(named("__getitem__", "__setitem__"))
_WHERE = frozenset(named("where"))
_MOVES = frozenset(named(
    *("gather", "take", "take_along_dim", "nonzero", "argwhere", "masked_select", "masked_scatter", "index_select"),
    *("sort", "argsort", "msort", "topk", "_pack_padded_sequence", "_pad_packed_sequence"),
    *(f"index_{name}" for name in ("add", "copy", "put", "fill", "reduce")),
    *("scatter", "scatter_add", "scatter_reduce"),
    *("item", "tolist", "numpy", "__array__", "__int__", "__index__", "__float__", "__bool__"),
))  # fmt: skip
