"""One forward pass under the recorder, and the cotangents of its sites.

The recorder sees every call to torch that a network makes, and notes those that random weights take part in. For each
primitive that a random weight can take part in, a rule says what kind of site the call is. A function without a rule
meets the weight as it is: a view of it is a view of the weight, and anything else is left to the probe, which finds
that rows cannot be separated there, and hands the weight to the exact reading row by row.
"""

from __future__ import annotations

import string
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from bayescope.errors import UnsupportedError
from bayescope.network.guard import check_readable, lent, untouched
from bayescope.network.inputs import Inputs, call, map_tensors
from bayescope.network.interception import (
    KERNELS,
    TRANSPOSED_KERNELS,
    Args,
    Function,
    Interception,
    Kwargs,
    bound,
    flows,
    leaves,
    named,
    replaced,
)
from bayescope.network.notes import RANDOM, ChangedInPlaceError, Computing, Notes, grows
from bayescope.network.rewrites import OF_WEIGHTS, REWRITES
from bayescope.network.sites import Convolved, Dense, Lookup, Target, WeightView
from bayescope.network.vectorising import POINTWISE, pull_back
from bayescope.process_state import WhileAnyone
from bayescope.tape.unfold import Convolution

_Inputs = TypeVar("_Inputs", bound=Inputs)


@contextmanager
def reading(module: nn.Module) -> Iterator[None]:
    """The state in which a network is read, whatever the caller's: eval mode, no inference mode, left as found.

    What has been compiled runs as it was written, so that its calls to torch are seen.

    Raises:
        BayescopeError: as `check_readable`.
    """
    written = lent(module)
    if written is None:
        check_readable(module)
    with nullcontext() if written is False else eager(), torch.inference_mode(False), untouched(module):
        yield


def eager() -> AbstractContextManager[None]:
    """What has been compiled runs as it was written."""
    compiled = "torch._dynamo" in sys.modules  # else nothing can have been compiled, and importing it takes seconds
    return _EAGER.inside() if compiled else nullcontext()


_EAGER: WhileAnyone[Any] = WhileAnyone(lambda: torch.compiler.set_stance("force_eager"))


def compiled(module: nn.Module) -> bool:
    """Whether a part of a network has been compiled, so that its calls to torch are not seen."""
    if "torch._dynamo" not in sys.modules:  # importing it takes seconds
        return False
    parts = list(module.modules())
    return any(type(part).__name__ == "OptimizedModule" or part._compiled_call_impl is not None for part in parts)


def forward(
    module: nn.Module,
    names: frozenset[str],
    inputs: Inputs,
    overwritten: frozenset[Hashable] = frozenset(),
    computing: Computing | None = None,
) -> tuple[Tensor, Notes]:
    """Runs a network with some parameters random.

    Args:
        module: the network.
        names: the random parameters that sites are noted for; all others count as fixed.
        inputs: a batch.
        overwritten: the sites whose inputs the network writes over afterwards.
        computing: what is noted of calls that take weights alone.

    Returns:
        f with its graph, and the notes of the sites.
    """
    named = list(module.named_parameters())
    random = {id(parameter): (name, parameter) for name, parameter in named if name in names}
    fixed = {id(parameter): parameter for name, parameter in named if name not in names}
    notes = Notes(random, fixed, overwritten, computing, module.buffers())
    with torch.enable_grad(), recorder(notes):
        f = call(module, inputs)
    return f, notes


def owned(inputs: _Inputs, *, copy: bool) -> _Inputs:
    """The inputs without gradients; as copies where the network writes over them or they belong to inference mode."""

    def detached(tensor: Tensor) -> Tensor:
        return tensor.detach().clone() if copy or tensor.is_inference() else tensor.detach()

    return map_tensors(detached, inputs)


def cotangents(f: Target, targets: Sequence[Target], seeds: Tensor) -> list[Tensor | None]:
    """The gradients of Σ s_k · f at each target, (K, *shape), or ``None`` where f does not depend on it.

    Args:
        f: the outputs, or the node behind something inside the network.
        targets: the nodes or leaves.
        seeds: s, shape (K, *f).

    Raises:
        UnsupportedError: if torch cannot differentiate the network from the recorded pass alone.
    """
    if not targets or (isinstance(f, Tensor) and not f.requires_grad):
        return [None] * len(targets)
    try:
        return pull_back(f, targets, seeds)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise UnsupportedError(
            f"model: expected a network whose backward pass runs by itself, got: {error} Turn activation checkpointing "
            "off (`gradient_checkpointing_disable()`), and change no activations in place that a gradient needs."
        ) from error


Rule = Callable[[Notes, Function, Args, Kwargs], object]


def linear(notes: Notes, func: Function, args: Args, kwargs: Kwargs) -> object:
    """y = x Wᵀ + b."""
    x, weight, bias = bound(func, args, kwargs).values()
    if weight.ndim != 2:
        return unknown(notes, func, args, kwargs)
    return _linear(notes, x, weight, bias)


def matmul(notes: Notes, func: Function, args: Args, kwargs: Kwargs) -> object:
    """x V = F.linear(x, Vᵀ), and V x = (xᵀ Vᵀ)ᵀ, for a matrix V of weights; w as a matrix of one column."""
    a, b = bound(func, args, {"other" if k == "mat2" else k: v for k, v in kwargs.items()}).values()
    left, right = notes.view(a), notes.view(b)
    if right is not None and b.ndim == 2 and a.ndim >= 2:
        return _linear(notes, a, _transposed(notes, right))
    if right is not None and b.ndim == 1 and a.ndim >= 2:
        return _linear(notes, a, notes.register(right.viewed(right.value[None]))).squeeze(-1)
    if left is not None and right is None and a.ndim == 2 and b.ndim >= 2:
        return _linear(notes, b.mT, a).mT
    return unknown(notes, func, args, kwargs)


def addmm(notes: Notes, func: Function, args: Args, kwargs: Kwargs) -> object:
    """b + x V = F.linear(x, Vᵀ, b)."""
    if len(args) != 3 or kwargs or args[0].ndim != 1:
        return unknown(notes, func, args, kwargs)
    bias, x, matrix = args
    view = notes.view(matrix)
    return _linear(notes, x, notes.plain(matrix).mT if view is None else _transposed(notes, view), bias)


def contraction(notes: Notes, func: Function, args: Args, kwargs: Kwargs) -> object:
    """einsum of data with an array of weights: F.linear where each index of the weights is summed or in the result."""
    operands = args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:]
    views = [notes.view(operand) for operand in operands]
    if not isinstance(args[0], str) or len(operands) != 2 or views.count(None) != 1:
        return unknown(notes, func, args, kwargs)
    place = 1 - views.index(None)
    view, x = views[place], operands[1 - place]
    subscripts = _subscripts(args[0], place, x.ndim)
    if view is None or subscripts is None:
        return unknown(notes, func, args, kwargs)
    data, weights, result = subscripts
    summed, added = [i for i in weights if i in data], [i for i in weights if i not in data]
    kept = [i for i in data if i not in summed]
    array = view.value.permute([weights.index(i) for i in added + summed])
    matrix = array.flatten(0, len(added) - 1).flatten(1) if added and summed else array
    if matrix.ndim != 2 or matrix.data_ptr() != array.data_ptr() or sorted(result) != sorted(kept + added):
        return unknown(notes, func, args, kwargs)
    vectors = x.permute([data.index(i) for i in kept + summed]).flatten(len(kept))
    y = _linear(notes, vectors, notes.register(view.viewed(matrix)))
    y = y.unflatten(-1, array.shape[: len(added)])
    return y.permute([(kept + added).index(i) for i in result])


def convolution(notes: Notes, func: Function, args: Args, kwargs: Kwargs) -> object:
    """Convolutions and transposed ones, in one, two and three dimensions."""
    given = bound(func, args, kwargs)
    x, weight, bias, transposed = *(given.pop(name) for name in ("input", "weight", "bias")), func in TRANSPOSED_KERNELS
    options = [given[name] for name in ("stride", "padding", "dilation", "groups")]
    return notes.meet(
        Convolved(Convolution.of(notes.plain(weight), *options, transposed=transposed)),
        lambda x, w, b: func(x, w, b, **given),
        x,
        weight,
        bias,
        outputs=weight.shape[1] * given["groups"] if transposed else weight.shape[0],
        lead=int(x.ndim == weight.ndim),
    )


def embedding(notes: Notes, func: Function, args: Args, kwargs: Kwargs) -> object:
    """y = W[token]. With ``max_norm`` the table changes while it is read, which is no linear map."""
    tokens, weight, padding, limit, _, by_frequency, _ = bound(func, args, kwargs).values()
    view = notes.view(weight)
    if view is None or limit is not None or by_frequency:
        return unknown(notes, func, args, kwargs)
    entries = weight.shape[0]
    padding = padding + entries if padding is not None and padding < 0 else padding
    return notes.look(Lookup(entries, padding), tokens, view)


def elementwise(notes: Notes, func: Function, args: Args, kwargs: Kwargs) -> object:
    """Broadcasting functions: the weight has an entry for each entry of the result."""
    tensors = [value for value in leaves(args, kwargs) if isinstance(value, Tensor)]
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))

    def spread(value: object) -> object:
        view = notes.view(value)
        return notes.plain(value) if view is None else notes.spread(view, shape)

    args, kwargs = replaced(args, kwargs, spread)
    return func(*args, **kwargs)


def assignment(notes: Notes, func: Function, args: Args, kwargs: Kwargs) -> object:
    """x[index] = w: the weight has an entry for each entry that is written."""
    if len(args) != 3 or notes.view(args[2]) is None or notes.view(args[0]) is not None:
        return unknown(notes, func, args, kwargs)
    target, index, value = args
    view = notes.view(value)
    assert view is not None
    return func(target, index, notes.spread(view, target[index].shape))


def repetition(notes: Notes, func: Function, args: Args, kwargs: Kwargs) -> object:
    """w.repeat(n, 1, 1) for dimensions of size one is w.expand(n, -1, -1)."""
    value, *counts = args
    counts = [*counts[0]] if len(counts) == 1 and isinstance(counts[0], tuple | list) else counts
    view = notes.view(value)
    shape = [1] * (len(counts) - value.ndim) + list(value.shape)
    if view is None or kwargs or any(n > 1 and size > 1 for n, size in zip(counts, shape, strict=True)):
        return unknown(notes, func, args, kwargs)
    spread = [n * size for n, size in zip(counts, shape, strict=True)]
    return notes.register(view.viewed(view.value.expand(spread), expanded=True))


def computed(notes: Notes, func: Function, args: Args, kwargs: Kwargs) -> object:
    """Any function of weights alone: its result is a weight that is derived from them."""
    return notes.computed(func, args, kwargs)


def unknown(notes: Notes, func: Function, args: Args, kwargs: Kwargs) -> object:
    """Any other function: a view or a copy of one weight is one still, and else the weight is met as it is."""
    met: list[tuple[WeightView, Tensor]] = []
    target = notes.view(args[0]) if args and _writes(func) else None
    if target is not None and target.name not in notes.derived:
        raise ChangedInPlaceError(target.name)

    def stand_in(value: object) -> object:
        view = notes.view(value)
        if view is None:
            return notes.plain(value)
        met.append((view, view.value.detach().requires_grad_(view.value.is_floating_point())))
        return met[-1][1]

    given = args, kwargs
    args, kwargs = replaced(args, kwargs, stand_in)
    result = func(*args, **kwargs)
    if result is not None and not grows(result):  # a shape, a device, a detached copy
        return result
    if len(met) == 1 and result is not None:
        (view, leaf), *_ = met
        outputs = result if isinstance(result, list | tuple) else (result,)
        settled = view.expanded and func in SETTLES
        same = all(output.dtype == leaf.dtype for output in outputs)  # and not complex numbers that are pairs in it
        if not settled and same and all(output is leaf or output._base is leaf for output in outputs):
            views = [notes.register(view.viewed(output, expanded=func in EXPANDS)) for output in outputs]
            return views[0] if isinstance(result, Tensor) else tuple(views)
        if not settled and func in COPIES and result.shape == leaf.shape and result.stride() == leaf.stride():
            return notes.register(view.copied(result))
    if notes.takes_weights_alone(*given):
        return notes.computed(func, *given)
    for view, leaf in met:
        notes.met(view, leaf)
    return result


def _writes(func: Function) -> bool:
    """Whether a method of tensors changes the first of its arguments."""
    name = getattr(func, "__name__", "")
    return name in WRITES or (name.endswith("_") and not name.startswith("_") and name not in FLAGS)


def _subscripts(equation: str, place: int, dims: int) -> tuple[str, str, str] | None:
    """The indices of the data, of the weights in that place, and of the result; ``None`` where one is there twice."""
    inputs, _, result = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    data, weights = terms[1 - place], terms[place]
    spare = [letter for letter in string.ascii_letters if letter not in equation]
    hidden = "".join(spare[: dims - len(data.replace("...", ""))])
    data, result = data.replace("...", hidden), result.replace("...", hidden)
    once = all(len(set(term)) == len(term) for term in (data, weights, result))
    return (data, weights, result) if once and "." not in weights and set(result) <= set(data + weights) else None


def _linear(notes: Notes, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    outputs = weight.shape[0]
    return notes.meet(Dense(), functional.linear, x, weight, bias, outputs=outputs, lead=x.ndim - 1)


def _transposed(notes: Notes, view: WeightView) -> Tensor:
    return notes.register(view.viewed(view.value.mT))


COPIES = frozenset(named("clone", "contiguous", "to", "type_as", "float", "double", "half", "bfloat16"))
WRITES = frozenset(("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__"))
FLAGS = frozenset(("requires_grad_", "detach_", "retain_grad_"))
EXPANDS = frozenset(named("expand", "expand_as", "broadcast_to"))
# What returns an expanded weight as it is for one row, and copies it for more: it is data from there on in both cases.
SETTLES = COPIES | frozenset(named("reshape", "flatten"))

RULES: dict[Function, Rule] = {
    functional.linear: linear,
    functional.embedding: embedding,
    **dict.fromkeys(named("matmul", "mm", "__matmul__"), matmul),
    **dict.fromkeys(named("addmm"), addmm),
    torch.einsum: contraction,
    Tensor.__setitem__: assignment,
    Tensor.repeat: repetition,
    **dict.fromkeys((*KERNELS, *TRANSPOSED_KERNELS), convolution),
    **dict.fromkeys(
        named(
            *("add", "sub", "mul", "div", "subtract", "multiply", "divide", "true_divide", "rsub", "pow"),
            *("maximum", "minimum", "fmax", "fmin", "where", "lerp", "addcmul", "addcdiv", "atan2", "hypot", "copy"),
            *("__add__", "__radd__", "__iadd__", "__sub__", "__rsub__", "__isub__", "__mul__", "__rmul__", "__imul__"),
            *("__truediv__", "__rtruediv__", "__itruediv__", "__rdiv__", "__pow__", "__rpow__"),
        ),
        elementwise,
    ),
}


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
