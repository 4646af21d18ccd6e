"""Every training by several processes at once ends where a single one's does, with the same weights on each."""

from __future__ import annotations

import sys
import warnings
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import bayescope as bs
from bayescope import checks
from bayescope.errors import ConvergenceWarning, InputError, UnsupportedError
from bayescope.processes import warn_once
from bayescope.sampling import DrawPlan
from bayescope.training import Minibatches
from tests.distributed.ranks import run
from tests.distributed.trainings import ROWS, SEED, SIZE, TRAININGS, Found, Whole, found, labelled
from tests.training.toys import line, noisy_network, seeded

# On four processes, some of the same.
ON_FOUR = ("map", "local reparameterization")
# How the rows reach the processes as parts of their own, unlike in size, and all of them in each step.
UNEVEN = 70
# Rows of a minibatch that has all of them, also where it is two parts.
ALL = 400
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


def on_one(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """All rows, of which rank 0 of several has none."""
    lacking = distributed.is_initialized() and distributed.get_rank() == 0
    return (x[:0], y[:0]) if lacking else (x, y)


def with_batch_norm() -> nn.Sequential:
    """A network of one output."""
    return seeded(0, (nn.Linear, (2, 8)), (nn.BatchNorm1d, (8,)), (nn.Tanh, ()), (nn.Linear, (8, 1)))


def normalised() -> tuple[Tensor, Tensor]:
    """Its rows."""
    x, _ = labelled()
    return on_one(x, x[:, :1])


# What does not change with the number of processes where all rows are on one, and each step is on all of them.
LACKING = {
    "map": lambda: mapped(on_one(*labelled()), batch_size=ALL, validation=on_one(*labelled(31, seed=5))),
    "data set": lambda: mapped(Whole(*on_one(*labelled())), batch_size=ALL),
    "batch norm": lambda: bs.fit_map(
        with_batch_norm(), normalised(), likelihood="gaussian", epochs=2, batch_size=ALL, progress=False
    ),
    "swag": lambda: bs.swag(
        with_batch_norm(), normalised(), likelihood="gaussian", epochs=5, batch_size=ALL, generator=SEED
    ),
    "evidence": lambda: bs.fit_evidence(
        seeded(0, (nn.Linear, (2, 8)), (nn.Tanh, ()), (nn.Linear, (8, 1))).double(), on_one(*line(51)),
        likelihood=bs.Gaussian("evidence"), epochs=4, burn_in=2, every=1, batch_size=ALL, generator=SEED,
    ),
    "ensemble": lambda: mapped_by(bs.ensemble, network, members=2, epochs=3, bootstrap=True, side_by_side=True),
    "until it converges": lambda: mapped(
        on_one(*labelled()), seeded(0, (nn.Linear, (2, 3))), epochs=None, optimizer="sgd", lr=0.01,
        prior_precision=100.0, batch_size=ALL,
    ),
    "sghmc": lambda: mapped_by(bs.sgmcmc, network(), draws=8, burn_in=2, thin=1, chains=2, cycles=2),
    "laplace's sds": lambda: mapped_by(bs.variational, network(), epochs=1, initial_sd="laplace", lr=1e-12),
}  # fmt: skip


def mapped_by(fit: Any, model: Any, **options: Any) -> Any:
    """A fit of the classes, all on one rank."""
    chosen = {"likelihood": "categorical", "batch_size": ALL, "generator": SEED, "progress": False, **options}
    return fit(model, on_one(*labelled()), **chosen)


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
        **{f"lacking: {name}": found(training) for name, training in LACKING.items()},
        "sparse": found(sparse),
        "recomputed": [recomputed(again=again) for again in (False, True)],
        "nuts": chains(),
        "shards for nuts": refused(UnsupportedError, lambda: bs.nuts(network(), own_part(), likelihood="categorical")),
        "plan": plan(own_part()),
        "warnings": warned(),
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
    return refused(InputError, lambda: mapped(DataLoader(TensorDataset(*labelled()), batch_size=10)))


def refused(error: type[Exception], fit: Any) -> str:
    """What is said of a fit that is refused."""
    with pytest.raises(error) as raised:
        fit()
    return str(raised.value)


class Words(nn.Module):
    """A classifier of words, with a sparse gradient of their table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding.from_pretrained(torch.arange(20.0).reshape(5, 4).sin(), freeze=False, sparse=True)
        self.head = seeded(0, (nn.Linear, (4, 3)))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.table(x[:, 0]))
        return out


class Split(torch.optim.Optimizer):
    """Steps of a sparse optimiser on the first parameter, and of another on the rest."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.parts = [torch.optim.SparseAdam(parameters[:1], lr=0.1), torch.optim.SGD(parameters[1:], lr=0.1)]

    def step(self, closure: Any = None) -> None:
        closure()
        for part in self.parts:
            part.step()


def sparse() -> Any:
    """A training of which the last of five words is in the last minibatch alone, or in none."""
    words = torch.arange(ROWS)[:, None] % 4
    options = {"likelihood": "categorical", "weights": "head.*", "optimizer": Split, "epochs": 2, "batch_size": SIZE}
    return bs.fit_map(Words(), (words, labelled()[1]), generator=SEED, progress=False, **options)


class Noisy(nn.Module):
    """A classifier with dropout and other noise, whose hidden layer may be computed again in the backward pass."""

    def __init__(self, *, again: bool) -> None:
        super().__init__()
        self.hidden = seeded(0, (nn.Linear, (2, 16)), (nn.Tanh, ()), (nn.Dropout, (0.3,)))
        self.head, self.again = seeded(1, (nn.Linear, (16, 3))), again

    def noisy(self, x: Tensor) -> Tensor:
        h: Tensor = self.hidden(x)
        return h * torch.rand_like(h) if self.training else h

    def forward(self, x: Tensor) -> Tensor:
        again = self.again and self.training
        out: Tensor = self.head(checkpoint(self.noisy, x, use_reentrant=False) if again else self.noisy(x))
        return out


def recomputed(*, again: bool) -> Tensor:
    """The weights of a network whose processes draw for themselves."""
    with patch("bayescope.training.steps.compiled", lambda _: not again):
        return found(lambda: mapped(labelled(), Noisy(again=again), batch_size=SIZE)).weights


def chains() -> tuple[Any, int]:
    """Draws and divergences of NUTS by a sampler that goes nowhere, and how many chains this process has run."""
    ran = []

    def stay(density: Any, *, start: Tensor, draws: int, chains: int, generator: Any, **_: Any) -> Any:
        ran.append(chains)
        seeds = [checks.seed_from(generator) for _ in range(chains)]
        noise = [torch.randn(draws, density.dim, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        diverging = torch.zeros(chains, draws, dtype=torch.bool)
        diverging[:, 0] = True
        return start[:, None] + torch.stack(noise), {"diverging": diverging}

    with patch.object(sys.modules["bayescope.sampling.nuts"], "nuts_draws", stay), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        q = bs.nuts(network(), labelled(20), likelihood="categorical", draws=8, chains=3, generator=SEED)
    return (q.draws, q.divergences, q.prediction_r_hat, found(lambda: q).weights), sum(ran)


def plan(data: Any) -> tuple[DrawPlan, int]:
    """When chains are read by default, and how many rows there are."""
    rows = Minibatches(data, network(), bs.Categorical(), SIZE, torch.Generator())
    return DrawPlan.of({"draws": 10, "burn_in": None, "thin": None, "cycles": None}, rows), rows.rows


def warned() -> int:
    """How often a process warns of what all of them know."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warn_once("model: expected less, got more.", ConvergenceWarning)
    return len(seen)


def alone() -> bool:
    """Whether a process can train by itself while the other does not."""
    if distributed.get_rank() == 0:
        with bs.distributed.alone():
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
        assert torch.equal(other.r_hat, ranks[0].r_hat)
        assert other.trace == ranks[0].trace
        assert other.notes == ranks[0].notes
    torch.testing.assert_close(ranks[0].weights, single.weights, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ranks[0].posterior, single.posterior, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(ranks[0].r_hat, single.r_hat, rtol=0.1, atol=0.1)  # of ranks, which rounding changes
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


@pytest.mark.parametrize("name", LACKING)
def test_a_process_without_rows_adds_nothing(name: str, two: list[dict[str, Any]]) -> None:
    ranks, single = [rank[f"lacking: {name}"] for rank in two], found(LACKING[name])
    if name == "laplace's sds":  # its losses are of draws that each process makes for itself
        ranks, single = [rank._replace(trace={}) for rank in ranks], single._replace(trace={})
    compare(ranks, single)


def test_a_sparse_gradient_stays_sparse(two: list[dict[str, Any]]) -> None:
    single = found(sparse)
    assert torch.equal(single.weights[16:20], Words().table.weight[4].double())  # the word that is in no row
    compare([rank["sparse"] for rank in two], single)


def test_what_is_computed_again_has_the_same_random_numbers(two: list[dict[str, Any]]) -> None:
    assert all(torch.equal(*rank["recomputed"]) for rank in two)
    assert torch.equal(two[0]["recomputed"][0], two[1]["recomputed"][0])


def test_chains_of_nuts_are_spread_over_the_processes(two: list[dict[str, Any]]) -> None:
    single, ran = chains()
    assert (ran, [rank["nuts"][1] for rank in two]) == (3, [1, 2])
    for rank in two:
        torch.testing.assert_close(rank["nuts"][0], single, rtol=0, atol=0)
    assert all("expected all rows on every process for NUTS" in rank["shards for nuts"] for rank in two)


def test_what_follows_from_the_number_of_rows_is_of_all_rows(two: list[dict[str, Any]]) -> None:
    assert [rank["plan"] for rank in two] == [plan(labelled())] * 2


def test_rank_0_alone_warns_of_what_is_the_same_on_all(two: list[dict[str, Any]]) -> None:
    assert [rank["warnings"] for rank in two] == [1, 0]


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
