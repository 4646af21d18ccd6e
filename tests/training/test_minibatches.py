"""Minibatches: every row once an epoch, in an order from a generator of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from bayescope.errors import InputError
from bayescope.likelihoods import Categorical, Gaussian
from bayescope.network import Batches
from bayescope.training import Minibatches, OrderedLoader, fit_map
from tests.training.toys import line, noisy_network, perceptron


def rows_of(minibatches: Minibatches) -> list[Tensor]:
    return [inputs for inputs, _ in minibatches.epoch()]


@pytest.mark.parametrize("batch_size", [1, 7, 12, 25, 26, None])
def test_every_row_once_an_epoch(batch_size: int | None) -> None:
    x, y = line(25)
    minibatches = Minibatches((x, y), perceptron(), Gaussian(), batch_size, torch.Generator().manual_seed(0))
    pieces = rows_of(minibatches)
    sizes = [len(piece) for piece in pieces]
    assert max(sizes) <= (batch_size or 25)
    assert max(sizes) - min(sizes) <= 1
    assert len(pieces) == -(-25 // (batch_size or 25))
    found = torch.cat(pieces)
    assert torch.equal(found.sort(0).values, x.sort(0).values)
    if len(pieces) > 1:
        assert not torch.equal(found, torch.cat(rows_of(minibatches)))


def test_inputs_and_targets_stay_together() -> None:
    x, y = line(25)
    minibatches = Minibatches(({"a": x}, y), _Named(), Gaussian(), 4, torch.Generator().manual_seed(0))
    for inputs, targets in minibatches.epoch():
        for row, target in zip(inputs["a"], targets, strict=True):
            place = int((x == row).all(1).nonzero())
            assert torch.equal(target[0], y[place])


class _Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = perceptron()

    def forward(self, a: Tensor) -> Tensor:
        out: Tensor = self.body(a)
        return out


def test_validation_order_is_the_datas() -> None:
    x, y = line(25)
    minibatches = Minibatches((x, y), perceptron(), Gaussian(), 4, torch.Generator())
    assert torch.equal(torch.cat([inputs for inputs, _ in minibatches.in_order(10)]), x)


class _Squares(Dataset[tuple[Tensor, Tensor]]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.full((2,), float(index)), torch.tensor([float(index**2)])


@pytest.mark.global_rng
@pytest.mark.parametrize("form", ["dataset", "loader"])
def test_datasets_and_loaders_are_counted_and_shuffled(form: str) -> None:
    data: Any = _Squares() if form == "dataset" else DataLoader(_Squares(), batch_size=4, shuffle=True)
    minibatches = Minibatches(data, perceptron(), Gaussian(), 4, torch.Generator().manual_seed(0))
    assert (minibatches.rows, minibatches.outputs) == (10, 1)
    first, second = (torch.cat(rows_of(minibatches))[:, 0] for _ in range(2))
    assert sorted(first.tolist()) == list(range(10))
    assert not torch.equal(first, second)
    assert first.dtype == torch.float64  # that of the module


class _Ending(IterableDataset[tuple[Tensor, Tensor]]):
    """Ten rows, and fewer at each pass."""

    left = 10

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from (_Squares()[place] for place in range(self.left))
        self.left = max(2, self.left - 2)


def test_a_loader_that_ends_early_is_refused() -> None:
    with pytest.raises(InputError, match=r"data: expected \d+ rows in every epoch, as in the pass .*, got \d"):
        fit_map(perceptron(), DataLoader(_Ending(), batch_size=4), likelihood="gaussian", epochs=2, generator=0)


class _InOrder(IterableDataset[tuple[Tensor, Tensor]]):
    """The rows of `_Squares` in blocks of five."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from DataLoader(_Squares(), batch_size=5, generator=torch.Generator())


def test_training_reads_the_minibatches_of_an_ordered_loader_and_all_else_its_blocks() -> None:
    order = torch.Generator().manual_seed(0)
    shuffled: DataLoader[Any] = DataLoader(_Squares(), batch_size=4, shuffle=True, generator=order)
    data, module = OrderedLoader(_InOrder(), shuffled), perceptron()
    minibatches = Minibatches(data, module, Gaussian(), 4, torch.Generator())
    assert order in minibatches.generators  # which a checkpoint keeps
    first, second = (rows_of(minibatches) for _ in range(2))
    assert [len(rows) for rows in first] == [4, 4, 2]
    assert sorted(torch.cat(first)[:, 0].tolist()) == sorted(torch.cat(second)[:, 0].tolist()) == list(range(10))
    assert not torch.equal(torch.cat(first), torch.cat(second))
    blocks = [inputs for inputs, _ in Batches(data, module)]
    assert [len(rows) for rows in blocks] == [5, 5]
    assert torch.cat(blocks)[:, 0].tolist() == list(range(10))


def test_targets_are_checked_once_for_arrays() -> None:
    x, _ = line(6)
    y = torch.tensor([0, 1, 2, 2, 1, 0])
    minibatches = Minibatches((x, y.double()), perceptron(outputs=3), Categorical(), 6, torch.Generator())
    ((_, targets),) = minibatches.epoch()
    assert targets.dtype == torch.int64
    assert torch.equal(targets[:, 0], y)


def test_a_tensor_dataset_is_read_as_its_arrays() -> None:
    x, y = line(9)
    minibatches = Minibatches(TensorDataset(x, y), perceptron(), Gaussian(), None, torch.Generator())
    ((inputs, targets),) = minibatches.epoch()
    assert torch.equal(inputs, x)
    assert torch.equal(targets[:, 0], y)


class _Rows(Dataset[tuple[Tensor, Tensor]]):
    """Rows that are fetched one by one."""

    def __init__(self, rows: int) -> None:
        self.x, self.y = line(rows)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        return self.x[place], self.y[place]


@pytest.mark.parametrize("rows", [32, 33, 47])
def test_a_dataset_leaves_no_single_row(rows: int) -> None:
    data = _Rows(rows)
    minibatches = Minibatches(data, noisy_network(), Gaussian(), 16, torch.Generator().manual_seed(0))
    pieces = rows_of(minibatches)
    sizes = [len(piece) for piece in pieces]
    assert max(sizes) <= 16
    assert max(sizes) - min(sizes) <= 1
    found = torch.cat(pieces)
    assert torch.equal(found.sort(0).values, data.x.sort(0).values)
    assert not torch.equal(found, torch.cat(rows_of(minibatches)))


def test_batch_norm_and_a_row_left_over() -> None:
    fit_map(noisy_network(), _Rows(33), likelihood="gaussian", epochs=2, batch_size=16)
    loader = DataLoader(_Rows(33), batch_size=16)
    with pytest.raises(InputError, match="drop_last=True"):
        fit_map(noisy_network(), loader, likelihood="gaussian", epochs=2)
    with pytest.raises(InputError, match="batch norm"):
        fit_map(noisy_network(), line(1), likelihood="gaussian", epochs=2)


def test_a_fingerprint_leaves_the_order_as_it_was() -> None:
    def order(*, asked: bool) -> Tensor:
        minibatches = Minibatches(_Rows(20), perceptron(), Gaussian(), 8, torch.Generator().manual_seed(0))
        if asked:
            assert minibatches.fingerprint() == minibatches.fingerprint()
        return torch.cat(rows_of(minibatches))

    assert torch.equal(order(asked=True), order(asked=False))
