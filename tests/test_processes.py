"""Sums over processes, and errors that all of them learn of."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import bayescope as bs
from bayescope.errors import InputError
from bayescope.processes import Processes, called, collective, form, present
from tests.distributed.ranks import run


def told(work: Any) -> str | None:
    """The kind and the message of what a function raises."""
    try:
        work()
    except Exception as error:  # noqa: BLE001 — what is looked at
        return f"{type(error).__name__}: {error}"
    return None


def failing(rank: int, *, alike: bool = False) -> None:
    """Fails on one rank, or on all in the same way."""
    with present().agreed():
        if alike or present().rank == rank:
            raise InputError("data: expected numbers, got none.")
    present().sum_numbers(1.0)


@collective
def fit(rank: int = 3, *, fails: bool = False, **options: Any) -> float:
    """A function that all call, which may fail on one after its last sum."""
    (total,) = present().sum_numbers(rank)
    if options.get("progress") and fails:
        raise InputError("rank: expected a number, got none.")
    return total


def named(name: str) -> None:
    with called(name, {}):
        pass


def other_work(rank: int) -> None:
    """A sum of other numbers on each rank."""
    present().sum_numbers(*range(1 + rank))


def shared(values: list[torch.Tensor], source: int) -> list[torch.Tensor]:
    present().share(values, source)
    return values


def together() -> dict[str, Any]:
    """All that two ranks do together."""
    processes = present()
    rank = processes.rank
    mixed = [
        torch.full((2, 3), 1.0 + rank),
        torch.tensor(rank, dtype=torch.int64),
        torch.ones(0),
        torch.eye(2).mT * 0.1,
    ]
    mixed.append(torch.full((5,), 2.0**-40, dtype=torch.float64) + rank)
    leaf = torch.full((3,), float(rank), requires_grad=True)
    strided = torch.full((4, 2), float(rank))
    with bs.distributed.alone():
        lonely = present()
        own = present().sum([torch.tensor(float(rank))])
    return {
        "processes": processes,
        "alone": (lonely, own),
        "sum": processes.sum(mixed),
        "mixed": mixed,
        "numbers": processes.sum_numbers(0.1, rank),
        "shared": shared([leaf, strided[:, 0]], 1),
        "strided": strided,
        "gathered": processes.gather({"rank": rank}),
        "one fails": told(lambda: failing(1)),
        "all fail": told(lambda: failing(0, alike=True)),
        "alike": fit(rank=3, data=rank, generator=rank, progress=bool(rank)),
        "another option": told(lambda: fit(rank=3 + rank)),
        "another function": told(lambda: named(["laplace", "fit_map"][rank])),
        "its end": told(lambda: fit(fails=True, progress=rank == 1)),
        "other work": told(lambda: other_work(rank)),
    }


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return run(together)


def test_every_rank_has_the_sum_in_the_order_and_shapes_given(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        matrix, whole, empty, transposed, fine = rank["sum"]
        assert torch.equal(matrix, torch.full((2, 3), 3.0))
        assert whole.item() == 1
        assert whole.dtype == torch.int64
        assert empty.shape == (0,)
        torch.testing.assert_close(transposed, 0.2 * torch.eye(2))
        assert torch.equal(fine, torch.full((5,), 1 + 2.0**-39, dtype=torch.float64))
    assert torch.equal(ranks[0]["mixed"][0], torch.ones(2, 3))  # what went in is as it was


def test_numbers_are_summed_in_float64(ranks: list[dict[str, Any]]) -> None:
    assert [rank["numbers"] for rank in ranks] == [(0.2, 1.0)] * 2


def test_one_ranks_tensors_are_written_into_the_others(ranks: list[dict[str, Any]]) -> None:
    leaf, column = ranks[0]["shared"]
    assert leaf.tolist() == [1.0] * 3
    assert leaf.requires_grad
    assert column.tolist() == [1.0] * 4
    assert ranks[0]["strided"][:, 1].tolist() == [0.0] * 4


def test_objects_are_gathered_by_rank(ranks: list[dict[str, Any]]) -> None:
    assert all(rank["gathered"] == [{"rank": 0}, {"rank": 1}] for rank in ranks)


def test_an_error_of_one_rank_is_told_on_all(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["one fails"].startswith("ProcessError: processes: expected all 2 to succeed; rank 1 failed with")
        assert "InputError: data: expected numbers, got none." in rank["one fails"]


def test_what_all_ranks_fail_with_alike_is_raised_as_it_is(ranks: list[dict[str, Any]]) -> None:
    assert all(rank["all fail"] == "InputError: data: expected numbers, got none." for rank in ranks)


def test_calls_that_differ_end_at_once_on_all_ranks(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["alike"] == 6
        assert "fit: expected the same rank on all 2 processes, got 3 on rank 0 and 4" in rank["another option"]
        assert "to call the same, got laplace on rank 0 and fit_map on rank 1" in rank["another function"]


def test_a_function_ends_on_all_ranks_or_on_none(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["its end"].startswith("ProcessError: ")
        assert "rank 1 failed with InputError: rank: expected a number, got none." in rank["its end"]


def test_other_work_is_refused_before_tensors_are_exchanged(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert (
            "sum: expected the same tensors on all 2 processes, got (1,) torch.float64 on rank 0" in rank["other work"]
        )


@dataclass(frozen=True, eq=False)
class _Record:
    value: Any


VALUES = [
    None, True, 1, 1.5, "1", (1, 2), {"a": 1.0, "b": 2}, torch.ones(3), torch.ones(4), np.arange(3), np.float64(2.5),
    torch.tensor([True, False, True]), torch.tensor([True, True, False]), _Record(1.0), _Record(torch.ones(2)),
    torch.relu, int,
]  # fmt: skip


def test_options_are_told_apart_by_what_they_hold() -> None:
    forms = [form("option", value) for value in VALUES]
    assert len(set(forms)) == len(VALUES)
    assert all(len(each) < 100 for each in forms)
    rounded = torch.rand(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert form("prior_precision", rounded) == form("prior_precision", rounded * (1 + 1e-14))
    assert form("prior_precision", 0.1 + 0.2) == form("prior_precision", 0.3) != form("prior_precision", 0.3 + 1e-9)
    assert form("lr", 1) == form("lr", 1.0)
    assert form("prior_precision", {"0": 1.0, "2": {3: 2.0, "b": 1}}) == form(
        "prior_precision", {"2": {"b": 1, 3: 2.0}, "0": 1.0}
    )
    assert form("option", {(1, 2): 3}) != form("option", {(1, 3): 3})
    assert form("validation", "a.pt") == form("validation", "b.pt") != form("validation", None)


def test_code_of_the_callers_is_told_apart_by_what_it_does() -> None:
    own = lambda log_prob: type("Own", (), {"log_prob": log_prob})  # noqa: E731
    once, twice = (lambda f, y: f - y), (lambda f, y: [f - each for each in y])
    again = lambda f, y: f - y  # noqa: E731
    others = [once, twice, own(once), own(twice), own(once)(), partial(once, 1), partial(once, 2), partial(twice, 1)]
    forms = [form("likelihood", each).replace("<lambda>", "") for each in others]
    assert len(set(forms)) == len(others) - 1  # a class and its object have the same code
    assert form("likelihood", own(once)()) == form("likelihood", own(again)())
    assert form("schedule", once) == form("schedule", again)


def third_differs() -> str | None:
    return told(lambda: fit(rank=5 if present().rank == 2 else 3))


def test_the_rank_that_differs_is_named() -> None:
    assert all("got 3 on rank 0 and 5 on rank 2" in str(message) for message in run(third_differs, 3))


def test_inside_of_alone_there_is_one_process(ranks: list[dict[str, Any]]) -> None:
    assert [rank["processes"] for rank in ranks] == [Processes(0, 2), Processes(1, 2)]
    assert [rank["alone"] for rank in ranks] == [(Processes(), [torch.tensor(float(r))]) for r in range(2)]


def test_a_single_process_gives_back_what_it_gets() -> None:
    value = torch.ones(2)
    assert present() == Processes(0, 1)
    assert present().first
    assert present().sum([value])[0] is value
    assert present().sum_numbers(0.1, 2) == (0.1, 2)
    present().share([value])
    present().agree(None)
    assert fit(2) == 2
    error = InputError("data: got none.")
    with pytest.raises(InputError) as caught:
        present().agree(error)
    assert caught.value is error


@pytest.mark.parametrize("count", [1, 3, 4])
@pytest.mark.parametrize("n", [0, 2, 7, 12])
def test_slices_are_even_contiguous_and_whole(count: int, n: int) -> None:
    parts = [Processes(rank, count).slice(n) for rank in range(count)]
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(n))
    sizes = [part.stop - part.start for part in parts]
    assert max(sizes) - min(sizes) <= 1
