"""Which rows each of several processes reads: together every row once, whatever form the data come in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import bayescope as bs
from bayescope.errors import InputError
from bayescope.network import Batches, same_on_all, set_epoch, tensors, unwrapped
from bayescope.network.shards import Shard, _fingerprint
from bayescope.processes import Processes, present
from tests.distributed.ranks import run

ROWS = 11


def numbered(rows: int = ROWS, first: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows that tell which they are."""
    numbers = torch.arange(first, first + rows, dtype=torch.float64)
    return numbers[:, None].expand(-1, 3).contiguous(), numbers


class _Augmented(Dataset[Any]):
    """Rows with random noise, which hides that processes have the same."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        return torch.full((3,), float(index)) + 0.01 * torch.rand(3), float(index)


class _Stream(IterableDataset[Any]):
    """A stream that looks at its rank."""

    def __iter__(self) -> Any:
        x, y = numbered()
        return iter([(x[i], y[i]) for i in range(present().rank, ROWS, present().count)])


def dealt(**options: Any) -> DataLoader[Any]:
    data = TensorDataset(*numbered())
    return DataLoader(data, batch_size=2, sampler=DistributedSampler(data, **{"shuffle": False, **options}))


def own(rows: int) -> Any:
    """Rank r has r + 1 of so many rows, and the last one the rest."""
    rank, last = present().rank, present().rank == present().count - 1
    first = rank * (rank + 1) // 2
    return numbered((rows - first) if last else rank + 1, first)


FORMS: dict[str, Callable[[], Any]] = {
    "arrays": numbered,
    "arrays by name": lambda: {"x": numbered()[0].numpy(), "labels": numbered()[1].numpy()},
    "data set": lambda: TensorDataset(*numbered()),
    "augmented data set": _Augmented,
    "batches": lambda: [*zip(*(part.split(4) for part in numbered()), strict=True)],
    "sampler": dealt,
    "shuffling sampler": lambda: dealt(shuffle=True, seed=3),
    "own arrays": lambda: own(ROWS),
    "own data set": lambda: TensorDataset(*own(ROWS)),
    "own loader": lambda: DataLoader(TensorDataset(*own(ROWS)), batch_size=2),
    "stream": _Stream,
    "stream's loader": lambda: DataLoader(_Stream(), batch_size=2),
}
# Forms whose rows have the numbers that they have for a single process.
IN_ORDER = [name for name in FORMS if "stream" not in name and "shuffling" not in name and name != "own loader"]


def plain() -> nn.Module:
    return nn.utils.skip_init(nn.Linear, 3, 1)


def read(batches: Batches) -> list[float]:
    return [round(float(target)) for _, targets in batches for target in targets]


def reading() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, make in FORMS.items():
        batches = Batches(make(), plain(), batch_size=3)
        rows = read(batches)
        batches.check_shards()
        shard = batches.shard
        example = batches.example()
        found[name] = {
            "rows": rows,
            "again": read(batches),
            "count": batches.rows,
            "numbers": [shard.first + i * shard.step for i in range(len(rows))] if shard.numbered else None,
            "example": [(tuple(tensor.shape), tensor.dtype) for tensor in tensors(example[0])],
            "dropped": batches.dropped,
        }
    short = Batches(dealt(drop_last=True), plain())
    found["short"] = (read(short), short.dropped)
    shuffled = dealt(shuffle=True)
    orders = []
    for epoch in range(2):
        set_epoch(shuffled, epoch)
        orders.append(read(Batches(shuffled, plain())))
    found["epochs"] = orders
    found["unshuffled"] = same_on_all(present(), dealt())
    with bs.distributed.alone():
        found["alone"] = read(Batches(numbered(), plain()))
    try:
        Batches(numbered(4, 10 * (present().rank // 2)), plain())
    except InputError as error:
        found["in pairs"] = str(error)
    return found


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return run(reading, 4)


@pytest.mark.parametrize("name", FORMS)
def test_every_row_is_read_by_one_rank(ranks: list[dict[str, Any]], name: str) -> None:
    assert sorted(row for rank in ranks for row in rank[name]["rows"]) == list(range(ROWS))
    for rank in ranks:
        assert rank[name]["again"] == rank[name]["rows"]
        assert rank[name]["count"] == len(rank[name]["rows"])
        assert rank[name]["dropped"] == 0


@pytest.mark.parametrize("name", IN_ORDER)
def test_the_numbers_of_rows_are_those_of_a_single_process(ranks: list[dict[str, Any]], name: str) -> None:
    assert all(rank[name]["numbers"] == rank[name]["rows"] for rank in ranks)


def test_shuffled_rows_have_numbers_of_their_own_and_streams_none(ranks: list[dict[str, Any]]) -> None:
    assert sorted(i for rank in ranks for i in rank["shuffling sampler"]["numbers"]) == list(range(ROWS))
    assert all(rank["stream"]["numbers"] is None for rank in ranks)


@pytest.mark.parametrize("name", FORMS)
def test_every_rank_has_an_example_also_without_a_row(ranks: list[dict[str, Any]], name: str) -> None:
    for rank in ranks:
        ((shape, dtype),) = rank[name]["example"]
        assert shape[1:] == (3,)
        assert shape[0] > 0
        assert dtype == torch.float32  # the module's
    assert not ranks[0]["batches"]["rows"]  # three batches for four ranks


def test_what_a_sampler_drops_is_counted_once(ranks: list[dict[str, Any]]) -> None:
    assert sorted(row for rank in ranks for row in rank["short"][0]) == list(range(8))
    assert [rank["short"][1] for rank in ranks] == [3, 0, 0, 0]


def test_an_epoch_has_an_order_of_its_own(ranks: list[dict[str, Any]]) -> None:
    for epoch in range(2):
        assert sorted(row for rank in ranks for row in rank["epochs"][epoch]) == list(range(ROWS))
    assert [rank["epochs"][0] for rank in ranks] != [rank["epochs"][1] for rank in ranks]


def test_inside_of_alone_a_rank_reads_all(ranks: list[dict[str, Any]]) -> None:
    assert all(rank["alone"] == list(range(ROWS)) for rank in ranks)
    assert not any(rank["unshuffled"] for rank in ranks)


def test_ranks_that_have_the_same_in_pairs_are_told(ranks: list[dict[str, Any]]) -> None:
    assert all("the same on ranks 0 and 1 alone" in rank["in pairs"] for rank in ranks)


def test_a_single_process_reads_what_it_is_given() -> None:
    batches = Batches(numbered(), plain())
    assert batches.shard == Shard()
    assert read(batches) == list(range(ROWS))
    assert not same_on_all(Processes(), numbered())
    set_epoch(numbered(), 1)  # nothing to tell


def test_a_single_process_refuses_a_share_of_the_rows() -> None:
    data = TensorDataset(*numbered())
    share = DistributedSampler(data, num_replicas=2, rank=1, shuffle=False)
    batches = Batches(DataLoader(data, sampler=share, generator=torch.Generator()), plain())
    assert len(batches.first()[1]) == 1  # an example may come from it
    with pytest.raises(InputError, match=r"a sampler that deals out a share to each of 2\. Give the data set"):
        next(iter(batches))


class _Sparse(Dataset[Any]):
    """Rows of zeros but for a few."""

    def __init__(self, hot: range) -> None:
        self.hot = hot

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> Any:
        return torch.full((3,), float(index in self.hot)), 0.0


def test_data_sets_of_zeros_but_for_some_rows_are_told_apart() -> None:
    """Eight rows, evenly spread, are every 28th."""
    x, y = torch.zeros(200, 3), torch.zeros(200)
    other = x.clone()
    other[101] = 1.0
    pairs = [
        (_Sparse(range(0)), _Sparse(range(100, 108))),
        (TensorDataset(x, y), TensorDataset(other, y)),
        (Subset(_Sparse(range(0)), range(100)), Subset(_Sparse(range(0)), range(100, 200))),
    ]
    for one, another in pairs:
        assert _fingerprint(one) != _fingerprint(another)
        assert _fingerprint(one) == _fingerprint(one)


def test_wrappers_are_taken_off() -> None:
    inner = plain()
    assert unwrapped(nn.DataParallel(inner)) is inner
    assert unwrapped(inner) is inner
    assert unwrapped("no module") == "no module"
