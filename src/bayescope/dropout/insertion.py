"""Which dropout a network has, and dropout put before the layers of one that has none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from types import CodeType, FunctionType
from typing import Any, TypeVar

import torch
from torch import nn

from bayescope.errors import InputTypeError, OptionError, UnsupportedError
from bayescope.network.dropout import recurrent_refused
from bayescope.network.forward import owned, reading
from bayescope.network.inputs import call
from bayescope.storage import stored_hook

WeightLayer = (
    nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
)

Made = TypeVar("Made", bound=nn.Module)

# What an inserted dropout is called in the layer that it stands before.
NAME = "input_dropout"

_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
# By layer: dropout of its inputs that drops columns of its weight, the same ones at all positions of a convolution.
_BEFORE: dict[type[WeightLayer], type[nn.Module]] = {
    nn.Linear: nn.Dropout,
    nn.Conv1d: nn.Dropout1d,
    nn.Conv2d: nn.Dropout2d,
    nn.Conv3d: nn.Dropout3d,
    nn.ConvTranspose1d: nn.Dropout1d,
    nn.ConvTranspose2d: nn.Dropout2d,
    nn.ConvTranspose3d: nn.Dropout3d,
}


def own_dropout(module: nn.Module) -> dict[str, float]:
    """The rates of the dropout layers that a network has, by name, those of attention among them.

    Raises:
        UnsupportedError: if a recurrent network has dropout between its layers.
    """
    found = {}
    for name, layer in module.named_modules():
        if isinstance(layer, nn.RNNBase) and layer.dropout > 0 and layer.num_layers > 1:
            raise recurrent_refused(name or type(layer).__name__)
        if isinstance(layer, _DROPOUT):
            found[name] = float(layer.p)
        elif isinstance(layer, nn.MultiheadAttention) and layer.dropout > 0:
            found[name] = float(layer.dropout)
    return found


def calls_dropout(module: nn.Module) -> bool:
    """Whether the code of a module in it names dropout, as one that calls ``torch.nn.functional.dropout`` does."""
    kinds = {kind for layer in module.modules() for kind in type(layer).__mro__ if issubclass(kind, nn.Module)}
    custom = [kind for kind in kinds if not kind.__module__.startswith("torch.nn.")]
    functions = [value for kind in custom for value in vars(kind).values() if isinstance(value, FunctionType)]
    return any("dropout" in name.lower() for function in functions for name in _names(function.__code__))


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, tuple):  # the names of keyword arguments among them
            yield from (name for name in constant if isinstance(name, str))
        if isinstance(constant, CodeType):
            yield from _names(constant)


def insert(
    module: nn.Module,
    before: Any,
    make: Callable[[WeightLayer, type[nn.Module]], Made],
    called: Sequence[str] | None = None,
) -> dict[str, Made]:
    """Puts dropout before layers of a network; the names of its parameters stay.

    Args:
        module: the network, which is changed.
        before: "all" weight layers; "hidden" for all but the first that is called, whose inputs are the network's; or
            names and globs of layers.
        make: from a layer, and the kind of dropout that drops columns of its weight, to what is put before it.
        called: the names of the layers in the order in which a pass calls them (`calling_order`); ``None`` where there
            are no rows to see it on. Then "hidden" takes an ``nn.Sequential``, whose layers are called in their order.

    Returns:
        What was put before each layer, by the name of the layer.

    Raises:
        UnsupportedError: if there is no layer that dropout can be put before, if one that is named is never called, so
            that nothing before it would be, or if nobody knows which layer is the first.
        OptionError: if a name or glob stands for none.
        InputTypeError: if ``before`` is none of these.
    """
    layers = _weight_layers(module)
    if not layers:
        raise UnsupportedError(
            "rate: expected a network with linear or convolutional layers to put dropout before, got none. Put "
            "nn.Dropout layers where they belong, and leave rate out."
        )
    made = {}
    first = _first(module, list(layers), called) if before == "hidden" else None
    chosen = [name for name in _chosen(before, list(layers)) if name != first]
    if called is not None:
        refuse_uncalled([name for name in chosen if name not in called])
    for name in chosen:
        layer = layers[name]
        made[name] = make(layer, next(kind for of, kind in _BEFORE.items() if isinstance(layer, of)))
        layer.add_module(NAME, made[name].train(layer.training))
        layer.register_forward_pre_hook(_drop_inputs, with_kwargs=True)
    return made


def calling_order(module: nn.Module, inputs: Any) -> list[str]:
    """The names of the weight layers that a pass calls, by their first call.

    Args:
        module: the network; it is left as it is.
        inputs: a few rows.
    """
    layers, order = _weight_layers(module), []
    with reading(module), torch.no_grad(), ExitStack() as stack:
        for name, layer in layers.items():
            stack.callback(layer.register_forward_pre_hook(lambda *_, name=name: order.append(name)).remove)
        call(module, owned(inputs, copy=True))
    return list(dict.fromkeys(order))


@contextmanager
def all_called(module: nn.Module) -> Iterator[None]:
    """A stretch in which each dropout that was put into a network is to be called.

    Raises:
        UnsupportedError: if one is not.
    """
    inserted = {name.removesuffix(f".{NAME}"): part for name, part in module.named_modules() if name.endswith(NAME)}
    called: set[str] = set()
    with ExitStack() as stack:
        for name, part in inserted.items():
            stack.callback(part.register_forward_pre_hook(lambda *_, name=name: called.add(name)).remove)
        yield
    refuse_uncalled([name for name in inserted if name not in called])


def refuse_uncalled(names: Sequence[str]) -> None:
    """Refuses dropout before layers whose weights may be in use, but that are not called themselves.

    Raises:
        UnsupportedError: if there is one.
    """
    if names:
        raise UnsupportedError(
            f"before: expected layers that the network calls, got {', '.join(map(repr, names))}, which a pass does not "
            "call: dropout before them would do nothing. Leave them out of before=, or call the layer where its "
            "weight is used."
        )


def _first(module: nn.Module, names: Sequence[str], called: Sequence[str] | None) -> str | None:
    """The layer that is called first."""
    if called is not None:
        return next(iter(called), None)
    parts = dict(module.named_modules())
    owners = {owner for name in names for owner in _owners(name)}
    if not all(type(parts[owner]) is nn.Sequential for owner in owners):
        raise UnsupportedError(
            "before: expected names of layers, as 'hidden' leaves out the one that a pass calls first, which is "
            f"unknown without data unless the network is an nn.Sequential, got 'hidden' for a {type(module).__name__}. "
            f"Name the layers ({', '.join(names)}), or give data= with epochs=0."
        )
    return names[0]


def _owners(name: str) -> Iterator[str]:
    """The names of all modules around one, that of the network, "", among them."""
    parts = name.split(".") if name else []
    yield from (".".join(parts[:k]) for k in range(len(parts)))


def _drop_inputs(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    dropout = getattr(layer, NAME)
    if args:
        return (dropout(args[0]), *args[1:]), kwargs
    return args, {**kwargs, "input": dropout(kwargs["input"])}


stored_hook(NAME, _drop_inputs)


def _weight_layers(module: nn.Module) -> dict[str, WeightLayer]:
    """The layers that multiply their inputs by a matrix, in the order in which the network registers them."""
    inside = {
        id(part) for layer in module.modules() if isinstance(layer, nn.MultiheadAttention) for part in layer.modules()
    }
    named = (
        (name, layer) for name, layer in module.named_modules() if id(layer) not in inside
    )  # which is never called
    return {name: layer for name, layer in named if isinstance(layer, WeightLayer)}


def _chosen(before: Any, names: list[str]) -> list[str]:
    if isinstance(before, str) and before in ("all", "hidden"):
        return names
    patterns = [before] if isinstance(before, str) else before
    if not isinstance(patterns, Sequence) or not all(isinstance(pattern, str) for pattern in patterns) or not patterns:
        raise InputTypeError(f"before: expected 'all', 'hidden', or names and globs of layers, got {before!r}.")
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise OptionError.unknown("before", pattern, ["all", "hidden", *names])
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
