"""Data in batches, whatever form it comes in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset

from bayescope import checks
from bayescope.errors import InputError, InputTypeError
from bayescope.network.inputs import count_rows, placed, take_rows


@final
class Batches:
    """Pairs (inputs, targets) of a data set, on the device and in the floating-point type of a network.

    Inputs are a tensor, a tuple of positional or a dict of keyword arguments of the module's ``forward``, each with the
    rows on its first axis. Floating-point inputs get the type of the module's parameters; whole numbers (tokens,
    labels) stay whole, in arrays and data frames too: quantities that happen to be whole are given as
    ``X.astype(float)``.

    Args:
        data: a ``DataLoader``; a ``Dataset``; a pair (X, y) of arrays, tensors or data frames, where X may be a dict or
            a tuple; or a list of batches. A batch is a pair, or a dict with its targets under "labels" or "label".
        module: the network.
        batch_size: rows at once where the data is not in batches already.

    Raises:
        InputTypeError: if the data has none of these forms.
        InputError: if it is empty, or inputs and targets differ in length.
    """

    def __init__(self, data: Any, module: nn.Module, *, batch_size: int = 256) -> None:
        self._module = module
        self._arrays: tuple[Any, Tensor] | None = None
        self._source: Iterable[Any] = ()
        self._rows: int | None = None
        self._size = checks.count("batch_size", batch_size)
        if isinstance(data, DataLoader):
            self._source = data
        elif isinstance(data, Dataset):
            self._source = DataLoader(data, batch_size=self._size, generator=torch.Generator())
        elif isinstance(data, Mapping) or (isinstance(data, tuple) and len(data) == 2):
            inputs, targets = _pair(data)
            self._arrays = _checked(map_arrays(inputs), _as_tensor(targets))
            self._rows = len(self._arrays[1])
        elif isinstance(data, list) and all(isinstance(batch, Mapping | tuple | list) for batch in data):
            self._source = data
        else:
            raise InputTypeError(
                f"data: expected a DataLoader, Dataset, pair (X, y) or list of batches, got {type(data).__name__}."
            )

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        """One pass over the data. Batches without rows are passed over.

        Raises:
            InputError: if there is not a single row.
        """
        rows = 0
        for inputs, targets in self._pairs():
            count = len(targets)
            if count:
                rows += count
                device = next((p.device for p in self._module.parameters()), targets.device)
                yield placed(inputs, self._module), targets.to(device, non_blocking=True)
        if not rows:
            raise InputError("data: expected at least one row, got none.")
        self._rows = rows

    @property
    def rows(self) -> int:
        """N, the number of rows: known for arrays, and after a full pass; otherwise a pass counts them."""
        if self._rows is None:
            self._rows = sum(len(targets) for _, targets in self._pairs())
        return self._rows

    @property
    def dropped(self) -> int:
        """How many rows a loader with ``drop_last`` leaves out of every pass, where it can be told."""
        sampler = getattr(self._source, "batch_sampler", None)
        if not isinstance(sampler, BatchSampler) or not sampler.drop_last or not isinstance(sampler.sampler, Sized):
            return 0
        return max(0, len(sampler.sampler) - self.rows)

    def first(self) -> tuple[Any, Tensor]:
        """The first batch."""
        return next(iter(self))

    def _pairs(self) -> Iterator[tuple[Any, Tensor]]:
        if self._arrays is None:
            for batch in self._source:
                inputs, targets = _pair(batch)
                yield _checked(map_arrays(inputs), _as_tensor(targets))
            return
        inputs, targets = self._arrays
        for start in range(0, len(targets), self._size):
            rows = slice(start, start + self._size)
            yield take_rows(inputs, rows), targets[rows]


def map_arrays(inputs: Any) -> Any:
    """Inputs with every array or data frame as a tensor; tuples and dicts stay what they are.

    Raises:
        InputTypeError: if there is something without numbers among them.
    """
    if isinstance(inputs, Mapping):
        return {name: map_arrays(value) for name, value in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(map_arrays(value) for value in inputs)
    return _as_tensor(inputs)


def _pair(batch: Any) -> tuple[Any, Any]:
    """Inputs and targets of a batch, or of a whole data set."""
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


def _checked(inputs: Any, targets: Tensor) -> tuple[Any, Tensor]:
    rows = count_rows(inputs)
    if targets.ndim == 0 or len(targets) != rows:
        raise InputError(f"data: expected as many targets as inputs, {rows}, got shape {tuple(targets.shape)}.")
    return inputs, targets


def _as_tensor(value: Any) -> Tensor:
    """A tensor of numbers, sharing memory with an array where it can."""
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
