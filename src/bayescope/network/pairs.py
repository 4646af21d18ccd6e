"""Pairs of inputs and targets as tensors, whatever form they come in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from bayescope.errors import InputError, InputTypeError
from bayescope.network.inputs import count_rows


def map_arrays(inputs: Any) -> Any:
    """Inputs with every array or data frame as a tensor; tuples and dicts stay what they are.

    Raises:
        InputTypeError: if there is something without numbers among them.
    """
    if isinstance(inputs, Mapping):
        return {name: map_arrays(value) for name, value in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(map_arrays(value) for value in inputs)
    return as_tensor(inputs)


def pair_of(batch: Any) -> tuple[Any, Any]:
    """Inputs and targets of a batch, or of a whole data set, as they were given.

    Raises:
        InputTypeError: if it is no pair, nor a dict.
        InputError: if it is a dict without targets.
    """
    if isinstance(batch, Mapping):
        name = next((key for key in ("labels", "label") if key in batch), None)
        if name is None:
            raise InputError(f"data: expected targets under 'labels' in the dict, got {list(batch)}.")
        return {key: value for key, value in batch.items() if key != name}, batch[name]
    if isinstance(batch, tuple | list) and len(batch) == 2:
        inputs, targets = batch
        several = isinstance(inputs, list) and all(
            isinstance(value, Tensor) for value in inputs
        )  # by a loader's collate
        return (tuple(inputs) if several else inputs), targets
    raise InputTypeError(
        "data: expected batches (inputs, targets) or dicts with 'labels', got "
        f"{type(batch).__name__}{f' of length {len(batch)}' if isinstance(batch, tuple | list) else ''}. "
        "Several inputs go into a tuple: ((x1, x2), y)."
    )


def checked_pair(inputs: Any, targets: Tensor) -> tuple[Any, Tensor]:
    """Inputs and targets, where they have as many rows.

    Raises:
        InputError: if they have not.
    """
    rows = count_rows(inputs)
    if targets.ndim == 0 or len(targets) != rows:
        raise InputError(f"data: expected as many targets as inputs, {rows}, got shape {tuple(targets.shape)}.")
    return inputs, targets


def as_tensor(value: Any) -> Tensor:
    """A tensor of numbers, sharing memory with an array where it can.

    Raises:
        InputTypeError: if there is something without numbers.
    """
    if isinstance(value, Tensor):
        return value.clone() if value.is_inference() else value.detach()  # autograd cannot keep the former
    if isinstance(value, DataLoader | Dataset):
        raise InputTypeError(
            f"x: expected arrays or tensors, got a {type(value).__name__}. Take its inputs a batch at a time: "
            "for x, y in loader."
        )
    array = np.asarray(value)
    if array.dtype.kind == "O":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise InputTypeError(f"data: expected numbers ({error}).") from None
    if array.dtype.kind not in "biuf":
        raise InputTypeError(f"data: expected numbers, got dtype {array.dtype}. Encode text and categories first.")
    return torch.from_numpy(array if array.flags.writeable and array.flags.c_contiguous else array.copy())
