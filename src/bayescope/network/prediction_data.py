"""Inputs to predict at that come in batches: from a loader, a data set, or a list of batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader, Dataset, RandomSampler

from bayescope.errors import BayescopeWarning, InputError, InputTypeError, warn
from bayescope.network.batches import DATASET_ROWS, as_data
from bayescope.network.inputs import Inputs, count_rows, inputs_of, leaves, map_arrays
from bayescope.private_draws import RandomSource, drawn_privately


def input_batches(x: object) -> Iterator[Inputs] | None:
    """The inputs of x, a batch at a time; ``None`` where x is not in batches.

    Args:
        x: a ``DataLoader``; a ``Dataset``, also one of Hugging Face's; an iterator over batches or a function that
            returns one; or a list of batches, each of which is a dict, or a tuple of arrays. What a batch has beside
            its inputs, as targets and weights, is left out: see `inputs_of`.

    Raises:
        InputTypeError: if x is a list of bare tensors or arrays with two axes or more, which may be rows or batches.

    Warns:
        BayescopeWarning: if a loader gives the rows in an order that another pass over it does not repeat.
    """
    x = x if isinstance(x, Iterator) else as_data(x)
    if isinstance(x, DataLoader):
        samplers = (x.sampler, getattr(x.batch_sampler, "sampler", None))
        if any(isinstance(sampler, RandomSampler) for sampler in samplers):
            warn(
                "x: expected a DataLoader that gives the rows in their order, got one that shuffles: which answer "
                "belongs to which row is then unknown. Make the loader with shuffle=False.",
                BayescopeWarning,
            )
        return _read(x)
    if isinstance(x, Dataset):
        return _read(DataLoader(x, batch_size=DATASET_ROWS))
    if isinstance(x, Iterator) or (isinstance(x, list) and x and all(map(_is_batch, x))):
        return _read(x)
    if isinstance(x, list) and any(getattr(value, "ndim", 0) > 1 for value in x):
        raise InputTypeError(
            "x: expected an array, or a list of batches, which are pairs, dicts or tuples, got a list of bare arrays. "
            "Join batches by torch.cat, and rows that have several axes by torch.stack."
        )
    return None


def _is_batch(value: object) -> bool:
    """Whether an entry of a list is a batch of several rows, and not a row of numbers."""
    return isinstance(value, Mapping | tuple) and all(getattr(leaf, "ndim", 0) > 0 for leaf in leaves(value))


def _read(batches: Iterable[Any]) -> Iterator[Inputs]:
    """The inputs of batches that have rows.

    Raises:
        InputError: if there is not a single row.
    """
    source, nothing, rows = RandomSource(0), object(), 0
    items = drawn_privately(batches)
    while True:
        with source.inside():  # not while the batch is predicted
            batch = next(items, nothing)
        if batch is nothing:
            break
        inputs = inputs_of(batch)
        count = count_rows(map_arrays(inputs))
        if count:
            rows += count
            yield inputs
    if not rows:
        raise InputError("x: expected at least one row, got none.")
