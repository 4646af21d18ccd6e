"""Processes that do not fit together: all of them end with the same error, in one line, before they share tensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, distributed, nn

import bayescope as bs
from bayescope import processes
from bayescope.errors import BayescopeError, BayescopeWarning
from tests.distributed.ranks import run

SEED = 5


class Written(nn.Module):
    """A network whose calls to torch are in its code, and in no submodule."""

    def __init__(self, activation: Callable[[Tensor], Tensor], factor: Tensor | float = 1.0, width: int = 6) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, width), nn.Linear(width, 3)
        self.activation, self.factor = activation, factor

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.activation(self.first(x))) * self.factor
        return out


def made(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return make()


def written(*values: Any) -> Callable[[int], nn.Module]:
    """By rank: a network with that one of the values for its activation, or for its factor."""
    return lambda rank: made(
        lambda: Written(values[rank]) if callable(values[rank]) else Written(torch.tanh, values[rank])
    )


def deep(*widths: tuple[int, ...]) -> Callable[[int], nn.Module]:
    def build(rank: int) -> nn.Module:
        sizes = [4, *widths[rank]]
        hidden = lambda: [each for pair in pairwise(sizes) for each in (nn.Linear(*pair), nn.Tanh())]  # noqa: E731
        return made(lambda: nn.Sequential(*hidden(), nn.Linear(sizes[-1], 3)))

    return build


NETWORKS: dict[str, tuple[Callable[[int], nn.Module], str]] = {
    "activation": (written(torch.relu, torch.tanh), "got call 2 relu((8, 6) float32) on rank 0 and call 2 tanh("),
    "option of a call": (written(lambda x: F.softmax(x, 0), lambda x: F.softmax(x, 1)), "got call 2 softmax"),
    "constant": (written(1.0, 1.5), "same outputs for the same rows"),
    "tensor constant": (written(torch.ones(3), torch.tensor([1.0, 1.0, 1.01])), "same outputs for the same rows"),
}
SHAPES: dict[str, tuple[Callable[[int], nn.Module], str]] = {
    "width": (deep((6,), (7,)), "got 0.weight (6, 4) float32 on rank 0 and 0.weight (7, 4) float32 on rank 1"),
    "depth": (deep((6,), (6, 6)), "got 2.weight (3, 6) float32 on rank 0 and 2.weight (6, 6) float32 on rank 1"),
    "type": (lambda rank: deep((6,), (6,))(rank).to([torch.float32, torch.float64][rank]), "(6, 4) float64 on rank 1"),
}


def rows(columns: int = 4) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(1)
    return torch.randn(30, columns, generator=source), torch.randint(3, (30,), generator=source)


def message(fit: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    try:
        fit(*arguments, **options)
    except BayescopeError as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def laplace(module: nn.Module, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BayescopeWarning)  # of weights that nobody has trained
        return bs.laplace(module, rows(), likelihood="categorical", **options)


def training(module: nn.Module, **options: Any) -> Any:
    chosen = {"epochs": 2, "batch_size": 10, "generator": 1, "progress": False, **options}
    return bs.fit_map(module, rows(), likelihood=chosen.pop("likelihood", "categorical"), **chosen)


def ensemble(module: nn.Module) -> Any:
    return bs.ensemble([module], rows(), likelihood="categorical", epochs=2, batch_size=10, generator=1, progress=False)


FITS: dict[str, Callable[[nn.Module], Any]] = {"laplace": laplace, "fit_map": training, "ensemble": ensemble}
OPTIONS: dict[str, tuple[Any, Any]] = {
    "lr": (0.1, 0.2),
    "epochs": (2, 3),
    "prior_precision": (1.0, 2.0),
    "likelihood": (bs.Gaussian(1.0), bs.Gaussian(2.0)),
    "schedule": (lambda share: 1.0 - share, lambda share: 1.0),
}  # fmt: skip


def unlike() -> dict[str, str]:
    """What each fit of networks that differ between the ranks says; the last one is of networks that do not."""
    rank = distributed.get_rank()
    said = {
        f"{name}, {fit}": message(call, make(rank))
        for fit, call in FITS.items()
        for name, (make, _) in {**NETWORKS, **SHAPES}.items()
    }
    same = deep((6,), (6,))
    said |= {name: message(training, same(rank), **{name: values[rank]}) for name, values in OPTIONS.items()}
    said["structure"] = message(laplace, same(rank), structure=["kfac", "diagonal"][rank])
    said["columns"] = message(bs.laplace, same(rank), rows(4 + rank), likelihood="categorical")
    with patch.dict(processes.VERSIONS, {"version of bayescope": f"{rank}.0"}):
        said["version"] = message(laplace, same(rank))
    q = laplace(same(rank), prior_precision=1.0)
    with bs.distributed.alone():
        other = laplace(deep((5,), (5,))(rank), prior_precision=1.0)
    said["posterior"] = message(bs.tune_prior, [q, other][rank])
    moved = written(lambda x: x.to("cpu").tanh(), lambda x: x.to("cpu:0").tanh())
    said["devices moved to"] = message(laplace, moved(rank))
    placed = written(lambda x: x + torch.zeros(6, device="cpu"), lambda x: x + torch.zeros(6, device="cpu:0"))
    said["devices of what is made"] = message(laplace, placed(rank))
    said["alike"] = message(laplace, same(rank))
    with patch.object(distributed.group.WORLD.__class__, "allreduce", side_effect=RuntimeError("[a.cc:1] no answer")):
        said["step"] = message(laplace, same(rank))
    return said


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, str]]:
    return run(unlike)


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("name", [*NETWORKS, *SHAPES])
def test_networks_that_differ_end_alike_on_all_ranks(ranks: list[dict[str, str]], name: str, fit: str) -> None:
    first, second = (rank[f"{name}, {fit}"] for rank in ranks)
    assert first == second
    assert first.startswith("InputError: model: expected the same ")
    assert "rank 1" in first
    assert {**NETWORKS, **SHAPES}[name][1] in first
    assert "\n" not in first


@pytest.mark.parametrize("name", [*OPTIONS, "structure", "version", "posterior"])
def test_calls_that_differ_end_alike_on_all_ranks(ranks: list[dict[str, str]], name: str) -> None:
    first, second = (rank[name] for rank in ranks)
    assert first == second
    named = {"version": "version of bayescope", "posterior": "q"}.get(name, name)
    assert first.startswith("ProcessError: ")
    assert f"expected the same {named} on all 2 processes" in first


def test_rows_with_other_columns_end_all_ranks(ranks: list[dict[str, str]]) -> None:
    first, second = (rank["columns"] for rank in ranks)
    assert first == second
    assert "rank 1 failed with InputError: model: the network could not be run" in first


def test_a_step_that_fails_is_named_by_the_function(ranks: list[dict[str, str]]) -> None:
    assert all("in a meeting of laplace within 300 s, got: no answer. Another" in rank["step"] for rank in ranks)


@pytest.mark.parametrize("name", ["alike", "devices moved to", "devices of what is made"])
def test_networks_that_are_the_same_fit(ranks: list[dict[str, str]], name: str) -> None:
    assert [rank[name] for rank in ranks] == ["none", "none"]
