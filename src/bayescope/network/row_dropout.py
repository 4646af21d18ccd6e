"""What a network draws for the rows of a minibatch that several processes share: dropout, and other random calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bayescope.network.dropout import Call, dropout_call
from bayescope.private_draws import DRAWING, Cut, RandomSource, drawing_for, unsettled


@final
class DrawnByRow(TorchFunctionMode):
    """Answers a network's random calls on a part of a minibatch, as `by_row` and `by_process` draw.

    Dropout is called on the whole minibatch, the other processes' rows being zeros: the masks are those that a single
    process would draw. Other random calls, such as dropout inside attention, draw from a state of the process's own.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = dropout_call(func, args, kwargs)
        random = found is None and func in DRAWING
        drawing = unsettled() if random or found is not None else None
        if drawing is None:
            return func(*args, **kwargs)
        if found is not None and found.training and found.rate > 0:
            if found.input.ndim > 1 and found.input.shape[0] == drawing.cut.count:
                return _on_all_rows(func, found, drawing.cut, args, kwargs)
        elif not random:
            return func(*args, **kwargs)
        with drawing.own.inside():
            return func(*args, **kwargs)


def _on_all_rows(func: Callable[..., Tensor], found: Call, cut: Cut, args: Any, kwargs: Any) -> Tensor:
    x = found.input
    before, after = (x.new_zeros(rows, *x.shape[1:]) for rows in (cut.own.start, cut.rows - cut.own.stop))
    whole = torch.cat([before, x, after])
    result = func(*(whole if value is x else value for value in args), **{**kwargs, **_named(kwargs, whole)})[cut.own]
    return x.copy_(result) if found.inplace else result


def _named(kwargs: Any, whole: Tensor) -> dict[str, Tensor]:
    return {"input": whole} if "input" in kwargs else {}


@contextmanager
def drawing(cut: Cut | None, own: RandomSource | None, *, backward: bool = True) -> Iterator[None]:
    """How the rows of a process get their random numbers inside.

    Args:
        cut: where they are in a minibatch of all processes, for numbers that are those of a single process; ``None``
            where they are no part of one.
        own: this process's own random state; ``None`` for a single process.
        backward: whether a backward pass follows.

    Raises:
        RecomputedError: from inside, if there is a cut, and a backward pass that would draw other numbers.
    """
    if own is None:
        yield
    elif cut is None:
        with own.inside():
            yield
    else:
        with drawing_for(cut, own, backward=backward), DrawnByRow():
            yield


def compiled(module: nn.Module) -> bool:
    """Whether a part of a network has been compiled, so that its calls to torch are not seen."""
    if "torch._dynamo" not in sys.modules:  # importing it takes seconds
        return False
    parts = list(module.modules())
    return any(type(part).__name__ == "OptimizedModule" or part._compiled_call_impl is not None for part in parts)
