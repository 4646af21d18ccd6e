"""What a network takes: a tensor, a tuple of positional arguments, or a dict of named ones, all with N rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bayescope.errors import InputError, InputTypeError


def map_tensors(function: Callable[[Tensor], Any], inputs: Any) -> Any:
    """Applies a function to every tensor of the inputs; what is no tensor stays as it is."""
    if isinstance(inputs, Tensor):
        return function(inputs)
    if isinstance(inputs, Mapping):
        return {name: map_tensors(function, value) for name, value in inputs.items()}
    if isinstance(inputs, tuple | list):
        return tuple(map_tensors(function, value) for value in inputs)
    return inputs


def tensors(inputs: Any) -> Iterator[Tensor]:
    """Every tensor of the inputs, in order."""
    found: list[Tensor] = []
    map_tensors(found.append, inputs)
    yield from found


def count_rows(inputs: Any) -> int:
    """N, the length that the first axis of every tensor has.

    Raises:
        InputTypeError: if there is no tensor.
        InputError: if the lengths differ.
    """
    lengths = [tensor.shape[0] if tensor.ndim else -1 for tensor in tensors(inputs)]
    if not lengths:
        raise InputTypeError(f"inputs: expected a tensor, a tuple or a dict of tensors, got {type(inputs).__name__}.")
    if min(lengths) != max(lengths) or lengths[0] < 0:
        raise InputError(f"inputs: expected tensors with the same number of rows on their first axis, got {lengths}.")
    return lengths[0]


def some_rows(inputs: Any) -> Any:
    """The inputs as they are.

    Raises:
        InputError: if there are no rows, or tensors differ in their number.
    """
    if count_rows(inputs) == 0:
        raise InputError("x: expected at least one row, got none.")
    return inputs


def take_rows(inputs: Any, rows: slice) -> Any:
    """The inputs of a range of rows."""
    return map_tensors(lambda tensor: tensor[rows], inputs)


def placed(inputs: Any, module: nn.Module) -> Any:
    """The inputs on the device of a module, floating-point ones in the dtype of its parameters; whole numbers stay."""
    reference = next((p for p in module.parameters() if p.is_floating_point()), torch.empty(0))

    def place(tensor: Tensor) -> Tensor:
        dtype = reference.dtype if tensor.is_floating_point() else tensor.dtype
        return tensor.to(reference.device, dtype, non_blocking=True)

    return map_tensors(place, inputs)


def call(module: nn.Module, inputs: Any) -> Tensor:
    """f, the output of the module: its tensor, or the ``logits`` of an output object or dict.

    Raises:
        InputTypeError: if the module returns neither.
    """
    if isinstance(inputs, Mapping):
        output = module(**inputs)
    elif isinstance(inputs, tuple | list):
        output = module(*inputs)
    else:
        output = module(inputs)
    if isinstance(output, Tensor):
        return output
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    raise InputTypeError(
        f"model: expected an output that is a tensor or has `logits`, got {type(output).__name__}. "
        "Wrap the model in a module that returns the tensor."
    )
