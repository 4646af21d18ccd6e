"""Every training by several processes at once ends where a single one's does, with the same weights on each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import bayescope as bs
from bayescope.errors import InputError
from tests.distributed.ranks import run
from tests.distributed.trainings import ROWS, SEED, TRAININGS, Found, Whole, found, labelled
from tests.training.toys import noisy_network, seeded

# On four processes, some of the same.
ON_FOUR = ("map", "local reparameterization")
# How the rows reach the processes as parts of their own, unlike in size, and all of them in each step.
UNEVEN = 70
WEIGHTS = [(nn.Linear, (2, 16)), (nn.Tanh, ()), (nn.Linear, (16, 3))]


class Stream(IterableDataset[Any]):
    """Rows that come one after another."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __iter__(self) -> Any:
        return iter(zip(self.x, self.y, strict=True))


def network() -> nn.Sequential:
    """A classifier that nothing is random in."""
    return seeded(0, *WEIGHTS)


def mapped(data: Any, model: nn.Module | None = None, **options: Any) -> Any:
    """The mode after three steps, each on all rows."""
    chosen = {"likelihood": "categorical", "epochs": 3, "generator": SEED, "progress": False, **options}
    return bs.fit_map(network() if model is None else model, data, **chosen)


def own_part() -> tuple[Tensor, Tensor]:
    """The first rows on rank 0, the others on rank 1."""
    part = slice(0, UNEVEN) if distributed.get_rank() == 0 else slice(UNEVEN, ROWS)
    x, y = labelled()
    return x[part], y[part]


def sampled(size: int, *, shuffle: bool) -> DataLoader[Any]:
    """A loader for one of several processes."""
    rows = TensorDataset(*labelled())
    return DataLoader(rows, batch_size=size, sampler=DistributedSampler(rows, shuffle=shuffle))


SHARDS = {
    "sampler": lambda: mapped(sampled(60, shuffle=True)),
    "stream": lambda: mapped(DataLoader(Stream(*own_part()), batch_size=80)),
    "arrays": lambda: mapped(own_part(), batch_size=200),
    "data set": lambda: mapped(Whole(*own_part()), batch_size=200),
    "wrapped": lambda: mapped(labelled(), nn.parallel.DistributedDataParallel(network()), batch_size=200),
    "in place": lambda: mapped(
        labelled(), nn.parallel.DistributedDataParallel(network()), batch_size=200, inplace=True
    ),
}


def on_two() -> dict[str, Any]:
    """What two processes find."""
    torch.default_generator.manual_seed(distributed.get_rank())
    return {
        **{name: found(training) for name, training in TRAININGS.items()},
        **{f"shards: {name}": found(training) for name, training in SHARDS.items()},
        "orders": orders(),
        "uneven": found(lambda: mapped(DataLoader(Stream(*own_part()), batch_size=7))),
        "statistics": statistics(),
        "starts": starts(),
        "all on each": all_on_each(),
        "alone": alone(),
    }


def orders() -> list[list[float]]:
    """The first inputs of each epoch that a process reads through its sampler."""
    seen: list[list[float]] = []

    class Seeing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = network()

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                seen.append(x[:, 0].tolist())
            out: Tensor = self.body(x)
            return out

    model = Seeing()
    bs.fit_map(model, sampled(60, shuffle=True), likelihood="categorical", epochs=2, inplace=True, progress=False)
    return seen


def statistics() -> Tensor:
    """Batch norm's running mean after an epoch of one step on all rows."""
    x = labelled(100)[0]
    q = bs.fit_map(
        noisy_network().float(), (x, x[:, :1]), likelihood="gaussian", epochs=1, batch_size=200, progress=False
    )
    return torch.cat([buffer.double().flatten() for buffer in q.model.buffers()])


def starts() -> Tensor:
    """Weights after a training that begins at other weights, with other seeds, on each process."""
    q = mapped(labelled(), seeded(distributed.get_rank(), *WEIGHTS), generator=None, batch_size=16)
    return torch.cat([parameter.detach().flatten() for parameter in q.model.parameters()])


def all_on_each() -> str:
    """What is said of a loader that gives every process all rows."""
    with pytest.raises(InputError) as raised:
        mapped(DataLoader(TensorDataset(*labelled()), batch_size=10))
    return str(raised.value)


def alone() -> bool:
    """Whether a process can train by itself while the other does not."""
    if distributed.get_rank() == 0:
        with bs.alone():
            mapped(labelled())
    return True


def on_four() -> dict[str, Found]:
    """What four processes find."""
    return {name: found(TRAININGS[name]) for name in ON_FOUR}


@pytest.fixture(scope="module")
def two() -> list[dict[str, Any]]:
    """By rank."""
    return run(on_two, 2)


@pytest.fixture(scope="module")
def four() -> list[dict[str, Found]]:
    """By rank."""
    return run(on_four, 4)


@pytest.fixture(scope="module")
def one() -> dict[str, Found]:
    """What a single process finds."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {name: found(training) for name, training in TRAININGS.items()}
    finally:
        torch.set_num_threads(threads)


def compare(ranks: list[Found], single: Found) -> None:
    for other in ranks[1:]:
        assert torch.equal(other.weights, ranks[0].weights)
        assert torch.equal(other.posterior, ranks[0].posterior)
        assert other.trace == ranks[0].trace
        assert other.notes == ranks[0].notes
    torch.testing.assert_close(ranks[0].weights, single.weights, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ranks[0].posterior, single.posterior, rtol=1e-4, atol=1e-6)
    assert ranks[0].trace.keys() == single.trace.keys()
    for name, values in single.trace.items():
        told = [torch.tensor(each, dtype=torch.float64) for each in (ranks[0].trace[name], values)]
        torch.testing.assert_close(*told, rtol=1e-5, atol=1e-6, equal_nan=True)
    assert ranks[0].notes.get("rows") == single.notes.get("rows")


@pytest.mark.parametrize("name", TRAININGS)
def test_two_processes_end_where_one_does(name: str, one: dict[str, Found], two: list[dict[str, Any]]) -> None:
    compare([rank[name] for rank in two], one[name])


@pytest.mark.parametrize("name", ON_FOUR)
def test_four_processes_end_where_one_does(name: str, one: dict[str, Found], four: list[dict[str, Found]]) -> None:
    compare([rank[name] for rank in four], one[name])


@pytest.mark.parametrize("name", SHARDS)
def test_every_row_of_parts_counts_once(name: str, two: list[dict[str, Any]]) -> None:
    """A step on all rows of all parts is one on all rows: the sampler's repeated one is not among them."""
    compare([rank[f"shards: {name}"] for rank in two], found(lambda: mapped(labelled(), batch_size=200)))


def test_a_sampler_shuffles_anew_in_each_epoch_and_gives_all_rows(two: list[dict[str, Any]]) -> None:
    rows = sorted(labelled()[0][:, 0].tolist())
    for epoch in range(2):
        assert sorted([*two[0]["orders"][epoch], *two[1]["orders"][epoch]]) == rows
    assert two[0]["orders"][0] != two[0]["orders"][1]


def test_processes_with_unlike_numbers_of_batches_train_on_all_of_them(two: list[dict[str, Any]]) -> None:
    """Ten minibatches here and five there: the last five steps are on the rows of one process."""
    ranks = [rank["uneven"] for rank in two]
    assert torch.equal(ranks[0].weights, ranks[1].weights)
    x, y = labelled()
    own, other = torch.arange(UNEVEN).split(7), torch.arange(UNEVEN, ROWS).split(7)
    steps = [torch.cat(pair) for pair in zip(own, other, strict=False)] + list(own[len(other) :])
    compare(ranks, found(lambda: mapped([(x[rows], y[rows]) for rows in steps])))


def test_batch_norms_have_the_mean_of_the_processes_statistics(two: list[dict[str, Any]]) -> None:
    assert torch.equal(two[0]["statistics"], two[1]["statistics"])
    x = labelled(100)[0]
    with torch.no_grad():
        hidden = noisy_network().float()[0](x).double()
    mean, variance = two[0]["statistics"][:8], two[0]["statistics"][8:16]
    torch.testing.assert_close(mean, 0.1 * hidden.mean(0), rtol=1e-5, atol=1e-6)
    within = (hidden[:50].var(0) + hidden[50:].var(0)) / 2  # each process sees its own rows
    torch.testing.assert_close(variance, 0.9 + 0.1 * within, rtol=1e-5, atol=1e-6)


def test_rank_0_says_where_all_begin(two: list[dict[str, Any]]) -> None:
    assert torch.equal(two[0]["starts"], two[1]["starts"])


def test_a_loader_that_gives_every_process_all_rows_is_refused(two: list[dict[str, Any]]) -> None:
    assert all("DistributedSampler" in rank["all on each"] for rank in two)


def test_a_process_can_train_by_itself(two: list[dict[str, Any]]) -> None:
    assert all(rank["alone"] for rank in two)
