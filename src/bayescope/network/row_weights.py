"""Whether the rows of some data have weights, and the likelihood of such rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate, default_convert

from bayescope.errors import InputError
from bayescope.likelihoods import Likelihood, LikelihoodName, Weighted, resolve
from bayescope.network.batches import DATASET_ROWS, as_data, row_totals
from bayescope.network.inputs import weights_of
from bayescope.private_draws import RandomSource, drawn_privately, private_draws


def likelihood_of_rows(likelihood: LikelihoodName | Likelihood, data: Any) -> Likelihood:
    """p(y∣f) for the rows of some data: to the power of the weight of each, where data are triples with weights.

    A row of weight 2 then counts as if it were there twice. All processes that fit together ask at once.

    Args:
        likelihood: a name or a likelihood; one of weighted rows is returned as it is.
        data: in a form that `Batches` takes.

    Raises:
        InputError: if no weight is positive, or one is negative or not finite.
    """
    found = resolve(likelihood)
    if found.mean_weight is not None:
        return found
    (weighted,) = row_totals(has_weights(data))
    if not weighted:
        return found
    weights = torch.cat([torch.zeros(0, dtype=torch.float64), *_weights(data)])
    total, rows, zeros = row_totals(float(weights.sum()), len(weights), int((weights == 0).sum()))
    if not total > 0:
        raise InputError("data: expected weights of which some are positive, got zeros alone. Leave the weights out.")
    return Weighted(found, total / rows, beside=True, zero_rows=int(zeros))


def row_weight_notes(likelihood: Likelihood, rows: int) -> dict[str, str]:
    """A line for the summary of a fit to triples (inputs, targets, weights); none for pairs.

    Args:
        likelihood: of the rows, as `likelihood_of_rows` returns it.
        rows: N.
    """
    if not isinstance(likelihood, Weighted) or not likelihood.beside:
        return {}
    zeros = likelihood.zero_rows
    total = f"sum {rows * likelihood.mean_weight:,.6g}"
    return {"row weights": f"{total}, {zeros:,} {'row' if zeros == 1 else 'rows'} of weight 0" if zeros else total}


def has_weights(data: Any) -> bool:
    """Whether data are triples (inputs, targets, weights), as their first batch tells."""
    data = as_data(data)
    if isinstance(data, Mapping | tuple):
        return _is_triple(data)
    if isinstance(data, list):
        return bool(data) and _is_triple(data[0])
    # Of an augmentation. If it draws from the global states of Python or NumPy, it draws once more than a fit does: to
    # put these states back would have other threads see numbers twice.
    with private_draws():
        if isinstance(data, DataLoader):
            return _is_triple(_first_of(data))
        if isinstance(data, IterableDataset):
            return _is_triple(next(iter(data), None))
        return isinstance(data, Dataset) and len(data) > 0 and _is_triple(data[0])  # type: ignore[arg-type]


def require_alike(likelihood: Likelihood, validation: Any) -> None:
    """Checks that validation rows have weights where those that are trained on have.

    Raises:
        InputError: if they have not.
    """
    beside = isinstance(likelihood, Weighted) and likelihood.beside
    if beside != has_weights(validation):
        raise InputError(
            "validation: expected triples (inputs, targets, weights) where the data are triples, and pairs where they "
            f"are pairs, got {'pairs' if beside else 'triples'}. A weight of 1 stands for a row that counts once."
        )


def _is_triple(batch: object) -> bool:
    return isinstance(batch, tuple | list) and len(batch) == 3


def _first_of(loader: DataLoader[Any]) -> Any:
    """A batch of a loader's first row, or a row that it would make batches of; its sampler stays as it is."""
    data: Any = loader.dataset
    row = next(iter(data), None) if isinstance(data, IterableDataset) else _row(data)
    if loader.collate_fn in (default_collate, default_convert) or row is None:
        return row
    try:
        return loader.collate_fn(row if loader.batch_sampler is None else [row])
    except Exception:  # noqa: BLE001 — a caller's code that does not take a single row
        return next(iter(loader), None)


def _row(data: Any) -> Any:
    try:
        return data[0] if len(data) else None
    except (KeyError, IndexError):  # rows that have other names than their places
        return None


def _weights(data: Any) -> list[Tensor]:
    """The weights of all batches of the data."""
    data = as_data(data)
    if isinstance(data, tuple):
        return [weights_of(data)]
    if isinstance(data, Dataset):
        data = DataLoader(data, batch_size=DATASET_ROWS, generator=torch.Generator())
    with RandomSource(0).inside():
        return [weights_of(batch) for batch in drawn_privately(data)]
