"""Calls of dropout in any network, seen as they are made, whatever mode the network is in."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from bayescope.errors import UnsupportedError
from bayescope.network.rewrites.attention import multi_head_attention, scaled_dot_product_attention


class Call(NamedTuple):
    """One call of dropout.

    Attributes:
        input: what it was called on.
        rate: the probability r of dropping.
        kept: on how many of the first axes a mask has entries of its own; the rest share one, as channels do.
        alpha: whether it is alpha dropout, which keeps mean and variance of a self-normalising network.
        inplace: whether it writes over its input.
        training: whether it drops by itself, as it was called.
    """

    input: Tensor
    rate: float
    kept: int
    alpha: bool
    inplace: bool
    training: bool


# By function: the axes that tell masks apart (None: all of them), and whether it is alpha dropout.
_FUNCTIONS: dict[Callable[..., Any], tuple[int | None, bool]] = {
    F.dropout: (None, False),
    F.dropout1d: (2, False),
    F.dropout2d: (2, False),
    F.dropout3d: (2, False),
    F.alpha_dropout: (None, True),
    F.feature_alpha_dropout: (2, True),
    torch.dropout: (None, False),
    torch.dropout_: (None, False),
    torch.feature_dropout: (2, False),
    torch.feature_dropout_: (2, False),
    torch.alpha_dropout: (None, True),
    torch.alpha_dropout_: (None, True),
    torch.feature_alpha_dropout: (2, True),
    torch.feature_alpha_dropout_: (2, True),
}
# The dimensions at which these take their input for a single row without an axis of rows.
_UNBATCHED = {F.dropout1d: 2, F.dropout3d: 4}
_RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)


@final
class DropoutCalls(TorchFunctionMode):
    """Hands each call of dropout to a function, whether the network is in train or in eval mode.

    Args:
        answer: from the call to its result, for rates above 0.
        otherwise: what is run in the place of every other function, given it and its arguments.
        off: the calls, by their place among those at rates above 0, that drop nothing.
    """

    def __init__(
        self,
        answer: Callable[[Call], Tensor],
        otherwise: Callable[..., Any] | None = None,
        off: Collection[int] = frozenset(),
    ) -> None:
        super().__init__()
        self._answer, self._otherwise, self._off = answer, otherwise or _plainly, off
        self._place = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = dropout_call(func, args, kwargs)
        if found is not None:
            self._place += found.rate > 0
            return self._answer(found) if found.rate > 0 and self._place - 1 not in self._off else found.input
        composite = _COMPOSITES.get(func)
        if composite is not None:
            with self:  # the dropout inside is a call like any other
                result = composite(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if func in _RECURRENT:
            _refuse_recurrent(func, args, kwargs)
        return self._otherwise(func, *args, **kwargs)


def _plainly(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return func(*args, **kwargs)


def dropout_call(func: Any, args: Any, kwargs: Any) -> Call | None:
    """A call to torch as one of dropout; ``None`` where it is none."""
    if func not in _FUNCTIONS:
        return None
    given = dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | kwargs
    x, (axes, alpha) = given["input"], _FUNCTIONS[func]
    kept = x.ndim if axes is None else min(axes, x.ndim)
    if _UNBATCHED.get(func) == x.ndim:
        kept = 1
    inplace = given.get("inplace", False) or func.__name__.endswith("_")
    training = given.get("training", given.get("train", True))
    return Call(x, float(given.get("p", 0.5)), kept, alpha, inplace, bool(training))


def attention_in_calls(*args: Any, **kwargs: Any) -> Any:
    """``torch.nn.functional.multi_head_attention_forward`` in calls to torch; ``NotImplemented`` where it has none."""
    given = dict(zip(_ATTENTION_ARGUMENTS, args, strict=False)) | kwargs
    return multi_head_attention(**{**given, "training": True})


def _multi_head_attention(*args: Any, **kwargs: Any) -> Any:
    """Attention whose weights are dropped, in calls to torch; ``NotImplemented`` where there is no dropout in it."""
    given = dict(zip(_ATTENTION_ARGUMENTS, args, strict=False)) | kwargs
    return attention_in_calls(*args, **kwargs) if given["dropout_p"] else NotImplemented


_ATTENTION_ARGUMENTS = tuple(multi_head_attention.__code__.co_varnames[: multi_head_attention.__code__.co_argcount])


def _scaled_dot_product_attention(*args: Any, **kwargs: Any) -> Any:
    """Attention in calls to torch; ``NotImplemented`` where there is no dropout in it."""
    dropped = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)
    return scaled_dot_product_attention(*args, **kwargs) if dropped else NotImplemented


_COMPOSITES: dict[Callable[..., Any], Callable[..., Any]] = {
    F.multi_head_attention_forward: _multi_head_attention,
    F.scaled_dot_product_attention: _scaled_dot_product_attention,
}


def _refuse_recurrent(func: Any, args: Any, kwargs: Any) -> None:
    """Refuses dropout between the layers of a recurrent network, which no mask of ours reaches."""
    packed = len(args) > 3 and isinstance(args[3], tuple | list)  # input, batch_sizes, hx, params
    names = ("input", *["batch_sizes"] * packed, "hx", "params", "has_biases", "num_layers", "dropout", "train")
    given = dict(zip(names, args, strict=False)) | kwargs
    if given.get("num_layers", 1) > 1 and given.get("dropout", 0.0) > 0:
        raise recurrent_refused(func.__name__)


def recurrent_refused(name: str) -> UnsupportedError:
    """The error for dropout inside a recurrent network."""
    return UnsupportedError(
        f"model: expected dropout whose masks can be drawn once a pass, got {name!r} with dropout between its "
        "recurrent layers. Give it dropout=0 and put nn.Dropout before or after it."
    )
