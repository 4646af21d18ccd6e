"""Sums over two processes, each with its own share, against the sums of both shares in one process."""

from __future__ import annotations

import pytest
import torch
from torch import distributed

from bayescope.errors import UnsupportedError
from bayescope.precision import (
    BlockPrecision,
    DiagonalPrecision,
    KroneckerPrecision,
    LowRankPrecision,
    Precision,
    all_reduce,
)
from bayescope.processes import alone
from tests.distributed.ranks import run
from tests.precision.cases import CASES, corrected, covariance, kronecker, low_rank, positive, seeded

SHAPE = (2, 4, 3)


def share(name: str, rank: int) -> Precision:
    """What one process has read: other data on each, in the same eigenvectors where that is asked for."""
    if name == "block":
        return blocks_in_one_basis(rank)
    if name == "low rank":
        return low_rank(SHAPE, seeded(rank), 2 + rank)
    if name == "low rank, a prior on one":
        return low_rank(SHAPE, seeded(rank), 2).add_diagonal(positive(24, g=seeded(9)) if rank else 0.0)
    if name == "eigenvalue-corrected":
        return kronecker(SHAPE, seeded(0)).corrected(positive(24, g=seeded(rank)))
    if name == "no data on one":
        return (
            kronecker(SHAPE, seeded(0)) if rank else KroneckerPrecision(torch.zeros(2, 3, 3), torch.zeros(2, 4, 4), 0)
        )
    return CASES[name].data(rank)


def blocks_in_one_basis(rank: int) -> BlockPrecision:
    parts = [share(name, rank) for name in ("kronecker", "eigenvalue-corrected", "low rank")]
    dims = [part.dim for part in parts]
    return BlockPrecision(parts, torch.randperm(sum(dims), generator=seeded(1)).split(dims), sum(dims))


SHARES = ["dense", "diagonal", "kronecker", "kronecker, counted inputs", "low rank", "low rank, a prior on one"]
SHARES += ["eigenvalue-corrected", "no data on one", "block"]
REFUSED = {
    "structures": lambda rank: kronecker(SHAPE, seeded(0)) if rank else low_rank(SHAPE, seeded(0)),
    "shapes": lambda rank: kronecker((1, 2, 3 + rank), seeded(0)),
    "bases": lambda rank: corrected(SHAPE, seeded(rank)),
    "bases of a block": lambda rank: BlockPrecision([corrected(SHAPE, seeded(rank))], [torch.arange(24)], 24),
    "held by its inverse": lambda rank: covariance(SHAPE, seeded(rank)),
    "blocks held by their inverse": lambda rank: BlockPrecision(
        [covariance(SHAPE, seeded(rank))], [torch.arange(24)], 24
    ),
    "positions": lambda rank: BlockPrecision([DiagonalPrecision(torch.ones(2))], [torch.tensor([rank, 1 - rank])], 2),
}


def work() -> dict:
    """Everything that is reduced, and what refusing says."""
    rank = distributed.get_rank()
    dense = {name: all_reduce(share(name, rank)).to_dense() for name in SHARES}
    messages = {}
    for name, build in REFUSED.items():
        try:
            all_reduce(build(rank))
        except UnsupportedError as error:
            messages[name] = str(error)
    group = distributed.new_group([1])
    own = share("dense", rank)
    if rank == 1:
        assert all_reduce(own, group) is own
    with alone():
        assert all_reduce(own) is own
    return {"dense": dense, "messages": messages}


@pytest.fixture(scope="module")
def results() -> list[dict]:
    return run(work)


@pytest.mark.parametrize("name", SHARES)
def test_every_process_has_the_sum(results, name):
    expected = (share(name, 0) + share(name, 1)).to_dense()
    torch.testing.assert_close(results[0]["dense"][name], expected)
    assert torch.equal(results[0]["dense"][name], results[1]["dense"][name])


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_add_is_refused_on_every_process(results, name):
    for result in results:
        assert ("held by its inverse" if "inverse" in name else "same") in result["messages"][name]


def test_without_other_processes_it_is_the_identity():
    precision = LowRankPrecision(torch.ones(3, 1), torch.ones(1))
    assert all_reduce(precision) is precision
