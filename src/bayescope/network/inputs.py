"""What a network takes, all with N rows: a tensor, a tuple of positional arguments, or a dict of named ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from bayescope.errors import BayescopeError, InputError, InputTypeError
from bayescope.layers.output_choice import output_choice
from bayescope.private_draws import draws_of

# A tensor, a tuple of positional arguments, or a dict of named ones. What is no tensor in there is passed on unchanged.
Inputs = Tensor | Sequence[Any] | Mapping[str, Any]


def map_tensors(function: Callable[[Tensor], object], inputs: Inputs) -> Any:
    """Applies a function to every tensor of the inputs; anything else stays unchanged."""
    if isinstance(inputs, Tensor):
        return function(inputs)
    if isinstance(inputs, Mapping):
        return {name: map_tensors(function, value) for name, value in inputs.items()}
    if isinstance(inputs, tuple | list):
        return tuple(map_tensors(function, value) for value in inputs)
    return inputs


def leaves(inputs: object) -> Iterator[Any]:
    """What the inputs hold, in order: themselves, or what is in a tuple, a list or a dict."""
    if isinstance(inputs, Mapping):
        inputs = tuple(inputs.values())
    if not isinstance(inputs, tuple | list):
        yield inputs
        return
    for value in inputs:
        yield from leaves(value)


def tensors(inputs: Inputs) -> Iterator[Tensor]:
    """Every tensor of the inputs, in order."""
    return (value for value in leaves(inputs) if isinstance(value, Tensor))


def has_tensors(x: object) -> bool:
    """Whether inputs came as tensors, alone or in a tuple, list or dict."""
    return any(isinstance(value, Tensor) for value in leaves(x))


def requires_grad(x: object) -> bool:
    """Whether inputs are tensors of which one requires a gradient."""
    values = list(leaves(x))
    return all(isinstance(value, Tensor) for value in values) and any(value.requires_grad for value in values)


def count_rows(inputs: Inputs) -> int:
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


def require_rows(inputs: Inputs) -> Inputs:
    """The inputs as they are, if they have rows.

    Raises:
        InputError: if there are no rows, or tensors differ in their number.
    """
    if count_rows(inputs) == 0:
        raise InputError("x: expected at least one row, got none.")
    return inputs


def take_rows(inputs: Inputs, rows: slice) -> Any:
    """The inputs of a range of rows."""
    return map_tensors(lambda tensor: tensor[rows], inputs)


def as_batch(row: Inputs) -> Inputs:
    """The inputs of one row, which has no axis of rows, as a batch of it alone."""
    return map_tensors(lambda tensor: tensor.unsqueeze(0), row)


def placed(inputs: Inputs, module: nn.Module) -> Inputs:
    """The inputs on the device of a module, floating-point ones in the dtype of its parameters; whole numbers stay."""
    reference = next((p for p in module.parameters() if p.is_floating_point()), torch.empty(0))

    def place(tensor: Tensor) -> Tensor:
        dtype = reference.dtype if tensor.is_floating_point() else tensor.dtype
        return tensor.to(reference.device, dtype, non_blocking=True)

    return map_tensors(place, inputs)


def first_not_finite(*values: object) -> int | None:
    """The first row of tensors, a tuple or a dict of them, in which one of them is NaN or infinite."""
    rows = [
        int(torch.nonzero(~torch.isfinite(tensor).reshape(len(tensor), -1).all(1))[0])
        for tensor in tensors(values)
        if tensor.ndim and not torch.isfinite(tensor).all()
    ]
    return min(rows, default=None)


@contextmanager
def explained(module: nn.Module, inputs: Inputs) -> Iterator[None]:
    """Says what a network was given, where it cannot be run on that.

    Args:
        module: the network.
        inputs: as the caller gave them, whichever of their rows the network sees.

    Raises:
        InputError: in place of the errors that torch raises for shapes and dtypes that do not fit, from those.
    """
    try:
        yield
    except (BayescopeError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = (str(error) or type(error).__name__).rstrip(".")
        several = isinstance(error, TypeError) and isinstance(inputs, Tensor)
        advice = " Several inputs go into a tuple: ((x1, x2), y)." if several else _advice(module, inputs)
        raise InputError(
            f"model: the network could not be run on inputs of {described(inputs)}: {reason}.{advice}"
        ) from error


def described(inputs: object) -> str:
    """The shapes and dtypes of the inputs, in words."""
    if isinstance(inputs, Tensor):
        return f"shape {tuple(inputs.shape)} and dtype {str(inputs.dtype).removeprefix('torch.')}"
    if isinstance(inputs, Mapping):
        return ", ".join(f"{name}: {described(value)}" for name, value in inputs.items())
    if isinstance(inputs, tuple | list):
        return ", ".join(map(described, inputs))
    return f"type {type(inputs).__name__}"


def _advice(module: nn.Module, inputs: Inputs) -> str:
    """What may be wrong with inputs that a network cannot be run on."""
    found, advice = list(tensors(inputs)), ""
    if isinstance(inputs, Mapping):
        names = ", ".join(f"{name}=…" for name in inputs)
        advice += f" The entries of a dict are passed as keyword arguments, forward({names})."
    elif isinstance(inputs, tuple | list):
        advice += f" The entries of a tuple are passed as {len(inputs)} positional arguments."
    if any(tensor.ndim == 1 and tensor.is_floating_point() for tensor in found):
        advice += " Rows are on the first axis, shape (N, …): one row is X[:1]."
    whole = any(not tensor.is_floating_point() and not tensor.is_complex() for tensor in found)
    if whole and not any(isinstance(submodule, nn.Embedding | nn.EmbeddingBag) for submodule in module.modules()):
        advice += " Whole numbers stay whole, as embeddings need them: give X.astype(float) where they are quantities."
    return advice


def call(module: nn.Module, inputs: Inputs) -> Tensor:
    """f, shape (N, …, C): what the module's `OutputChoice` finds in what it returns.

    Raises:
        InputTypeError: if there is no such tensor.
        InputError: if it has no axis that the classes are said to be on.
    """
    with draws_of(module):
        if isinstance(inputs, Mapping):
            output = module(**inputs)
        elif isinstance(inputs, tuple | list):
            output = module(*inputs)
        else:
            output = module(inputs)
    return output_choice(module).of(output)


def map_arrays(inputs: object) -> Any:
    """Inputs with every array or data frame as a tensor; tuples and dicts stay what they are.

    Raises:
        InputTypeError: if there is something without numbers among them.
    """
    if isinstance(inputs, Mapping):
        return {name: map_arrays(value) for name, value in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(map_arrays(value) for value in inputs)
    return as_tensor(inputs)


# Under which of these names a dict has its targets.
TARGETS = ("labels", "label", "targets", "target", "y")
_NAMES = " or ".join(map(repr, TARGETS))


def target_name(batch: Mapping[str, Any]) -> str | None:
    """The name of the targets in a dict; ``None`` where it has none.

    Raises:
        InputError: if several names may be that of the targets.
    """
    found = [name for name in TARGETS if name in batch]
    if len(found) > 1:
        both = " and ".join(map(repr, found))
        raise InputError(
            f"data: expected targets under {_NAMES} in the dict, got {both}. Leave one out, or give pairs "
            "(dict of inputs, targets)."
        )
    return found[0] if found else None


def inputs_of(batch: object) -> Any:
    """The inputs of a batch that may have targets: the first of a tuple, a dict without its targets, or all of it.

    Raises:
        InputError: if several names of a dict may be that of the targets.
        InputTypeError: if a tuple is no (inputs,), (inputs, targets) or (inputs, targets, weights).
    """
    if isinstance(batch, Mapping):
        name = target_name(batch)
        return {key: value for key, value in batch.items() if key != name}
    if isinstance(batch, tuple | list):
        if not 1 <= len(batch) <= 3:
            raise InputTypeError(
                f"x: expected batches (inputs,), (inputs, targets) or (inputs, targets, weights), got {len(batch)} "
                "entries. Several inputs go into a tuple: ((x1, x2), y)."
            )
        return _gathered(batch[0])
    return batch


def _gathered(inputs: Any) -> Any:
    """Several inputs as a tuple, where a loader's collate has made a list of it."""
    several = isinstance(inputs, list) and all(isinstance(value, Tensor) for value in inputs)
    return tuple(inputs) if several else inputs


def pair_of(batch: object) -> tuple[Any, Any]:
    """Inputs and targets of a batch, or of a whole data set, as they were given.

    Where there are weights of rows, the targets have them beside each number, shape (N, ..., 2); see `Weighted`.

    Raises:
        InputTypeError: if it is no pair, no triple (inputs, targets, weights), nor a dict.
        InputError: if it is a dict without targets, or the weights do not fit.
    """
    if isinstance(batch, Mapping):
        name = target_name(batch)
        if name is None:
            raise InputError(
                f"data: expected targets under {_NAMES} in the dict, got {list(batch)}. Rename them, or give pairs "
                "(dict of inputs, targets)."
            )
        return {key: value for key, value in batch.items() if key != name}, batch[name]
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return _gathered(batch[0]), batch[1]
    if isinstance(batch, tuple | list) and len(batch) == 3:
        return _gathered(batch[0]), _beside(as_tensor(batch[1]), weights_of(batch))
    refuse_graphs(batch)
    raise InputTypeError(
        "data: expected batches (inputs, targets), (inputs, targets, weights of the rows) or dicts with 'labels', got "
        f"{type(batch).__name__}{f' of length {len(batch)}' if isinstance(batch, tuple | list) else ''}. "
        "Several inputs go into a tuple: ((x1, x2), y)."
    )


def refuse_graphs(value: object) -> None:
    """Refuses graphs of PyTorch Geometric, a batch of them or a list.

    Raises:
        InputTypeError: if the value is one of these.
    """
    first = value[0] if isinstance(value, list) and value else value
    if hasattr(first, "edge_index") and hasattr(first, "edge_attr"):  # a table may have a column of one name
        raise InputTypeError(
            f"data: expected arrays or batches that have an axis of rows, got graphs in a {type(value).__name__}. Take "
            "network = bs.integrations.GraphNetwork(module, graphs) for the model, network.data() for the data, and "
            "network.add(graphs) for x."
        )


def weights_of(batch: Sequence[Any]) -> Tensor:
    """The weights of the rows of a triple (inputs, targets, weights), float64 of shape (N,).

    Raises:
        InputTypeError: if it is no triple.
        InputError: if they have another shape, or one is negative or not finite.
    """
    if len(batch) != 3:
        raise InputTypeError(
            f"data: expected triples (inputs, targets, weights) as in the first batch, got {len(batch)} entries."
        )
    weights, rows = as_tensor(batch[2]).to(torch.float64), len(as_tensor(batch[1]))
    advice = "A third entry has the weights of the rows; several inputs go into a tuple: ((x1, x2), y)."
    if weights.numel() != rows or weights.ndim > 2:
        raise InputError(f"data: expected {rows} weights, one a row, got shape {tuple(weights.shape)}. {advice}")
    weights = weights.reshape(-1)
    wrong = torch.nonzero(~(torch.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        row = int(wrong[0])
        raise InputError(
            f"data: expected weights that are at least 0, got {weights[row].item():g} in row {row}. {advice}"
        )
    return weights


def _beside(targets: Tensor, weights: Tensor) -> Tensor:
    """Targets (N, ...) with the weight of the row beside each, float64 of shape (N, ..., 2)."""
    column = weights.to(targets.device).reshape(-1, *[1] * (targets.ndim - 1)).expand(targets.shape)
    return torch.stack([targets.to(torch.float64), column], -1)


def checked_pair(inputs: Inputs, targets: Tensor) -> tuple[Inputs, Tensor]:
    """Inputs and targets, where they have as many rows.

    Raises:
        InputError: if they have not.
    """
    rows = count_rows(inputs)
    if targets.ndim == 0 or len(targets) != rows:
        raise InputError(f"data: expected as many targets as inputs, {rows}, got shape {tuple(targets.shape)}.")
    return inputs, targets


def as_tensor(value: object) -> Tensor:
    """A tensor of numbers, sharing memory with an array where it can.

    Raises:
        InputTypeError: if there is something without numbers.
    """
    if isinstance(value, Tensor):
        return value.clone() if value.is_inference() else value.detach()  # autograd cannot keep the former
    if isinstance(value, DataLoader | Dataset):
        raise InputTypeError(
            f"x: expected arrays or tensors, got a {type(value).__name__}. Give it by itself to the posterior of a "
            "network, which reads its batches; an estimator takes tables."
        )
    refuse_graphs(value)
    array = np.asarray(value)
    if array.dtype.kind == "O":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise InputTypeError(f"data: expected numbers ({error}).") from None
    if array.dtype.kind not in "biuf":
        raise InputTypeError(f"data: expected numbers, got dtype {array.dtype}. Encode text and categories first.")
    return torch.from_numpy(array if array.flags.writeable and array.flags.c_contiguous else array.copy())
