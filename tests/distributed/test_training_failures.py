"""A process that fails, dies or is interrupted: what the others do, and what they go on from."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import bayescope as bs
from bayescope.errors import BayescopeError, ProcessError
from bayescope.training import checkpoint
from tests.distributed.ranks import end, run
from tests.distributed.trainings import Found, dropped, found, labelled

EPOCHS = 6
# Forward passes in train mode before the end of a process, in its fourth epoch of seven minibatches.
LAST_PASS = 24
SECONDS = 30


class Doomed(nn.Module):
    """A network whose process, on rank 1, gets a signal at a given pass of its training."""

    def __init__(self, name: str = "") -> None:
        super().__init__()
        self.body = dropped()
        self.signal, self.left = name, LAST_PASS

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.signal and distributed.get_rank() == 1:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), getattr(signal, self.signal))
        out: Tensor = self.body(x)
        return out


def trained(name: str = "", file: Path | None = None, *, loader: bool = False, **options: Any) -> Any:
    """A training with dropout, of arrays or by a loader with an order of its own."""
    data: Any = labelled()
    if loader:
        rows = TensorDataset(*data)
        own = torch.Generator().manual_seed(distributed.get_rank())
        data = DataLoader(rows, batch_size=8, sampler=DistributedSampler(rows), generator=own)
    chosen = {"likelihood": "categorical", "epochs": EPOCHS, "batch_size": None if loader else 16, "generator": 1}
    with patch.object(checkpoint, "SHARE", 1e9):  # saved after every epoch
        return bs.fit_map(Doomed(name), data, checkpoint=file, progress=False, **{**chosen, **options})


def to_the_death(folder: str) -> None:
    """Leaves in a file what the process that is left says: its group is none any more, and it cannot return."""
    try:
        trained("SIGKILL", Path(folder) / "run.pt")
    except ProcessError as error:
        (Path(folder) / "words.txt").write_text(str(error))


def when_one_fails(folder: str) -> dict[str, Any]:
    """What processes that stay alive find."""
    begun = Path(folder)
    stopped = found(lambda: trained(file=begun / "loader.pt", loader=True, epochs=3))
    first = distributed.get_rank() == 0
    trained(file=begun / "half.pt" if first else None, epochs=3)
    return {
        "whole": found(trained),
        "resumed": found(lambda: trained(file=begun / "run.pt")),
        "ended before": stopped.trace["loss"],
        "whole loader": found(lambda: trained(loader=True)),
        "resumed loader": found(lambda: trained(file=begun / "loader.pt", loader=True)),
        "interrupted": found(lambda: trained("SIGINT")),
        "not a number": message(not_a_number),
        "own error": message(own_error),
        "no file on rank 0": message(lambda: trained(file=None if first else begun / "none.pt")),
        "another run": message(lambda: trained(file=begun / "run.pt", lr=0.5)),
    }


def message(training: Any) -> tuple[str, str]:
    """The error of a training, and its words."""
    try:
        training()
    except BayescopeError as error:
        return type(error).__name__, str(error)
    return "none", ""


def not_a_number() -> Any:
    """Rank 1's last row, which is in none of the first minibatches, has an input that is no number."""
    x, y = labelled(40)
    if distributed.get_rank() == 1:
        x[-1, 0] = torch.nan
    batches = [(x[rows], y[rows] if distributed.get_rank() else y[rows].flip(0)) for rows in torch.arange(40).split(10)]
    return bs.fit_map(dropped(), batches, likelihood="categorical", epochs=2, batch_size=10, progress=False)


class Failing(torch.utils.data.Dataset[Any]):
    """Rows one of which cannot be read on rank 1."""

    def __init__(self) -> None:
        self.x, self.y = labelled(40)

    def __len__(self) -> int:
        return 40

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        if row == 21 and distributed.get_rank() == 1:
            raise OSError("row 21 is gone")
        return self.x[row], self.y[row]


def own_error() -> Any:
    rows = Failing()
    loader = DataLoader(rows, batch_size=5, sampler=DistributedSampler(rows, shuffle=False))
    return bs.fit_map(dropped(), loader, likelihood="categorical", epochs=2, progress=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def death(folder: Path) -> list[Any]:
    """How the processes of a training ended in which rank 1 was killed."""
    return end(to_the_death, 2, str(folder))


@pytest.fixture(scope="module")
def ranks(folder: Path, death: list[Any]) -> list[dict[str, Any]]:
    """By rank; what the death left is gone on from."""
    assert len(death) == 2
    return run(when_one_fails, 2, str(folder))


def test_the_others_end_when_one_is_killed(folder: Path, death: list[Any]) -> None:
    left, killed = death
    assert killed.exitcode == -signal.SIGKILL
    assert (folder / "words.txt").read_text().startswith("processes: expected all to take part in a sum")
    assert left.seconds - killed.seconds < SECONDS


def test_a_killed_training_goes_on_to_the_same_numbers(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        same(rank["resumed"], rank["whole"])


def test_a_single_process_goes_on_from_what_two_have_begun(folder: Path, ranks: list[dict[str, Any]]) -> None:
    alone = found(lambda: trained(file=folder / "half.pt"))
    torch.testing.assert_close(alone.weights, ranks[0]["whole"].weights, rtol=1e-5, atol=1e-6)


def test_every_process_goes_on_in_its_own_order(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert len(rank["ended before"]) == 3
        same(rank["resumed loader"], rank["whole loader"])


def same(one: Found, other: Found) -> None:
    assert torch.equal(one.weights, other.weights)
    assert one.trace == other.trace


def test_an_interrupt_of_one_ends_all_after_the_same_step(ranks: list[dict[str, Any]]) -> None:
    first, second = (rank["interrupted"] for rank in ranks)
    same(first, second)
    assert "an interrupt" in first.notes["training"]
    assert len(first.trace["loss"]) == 3


def test_data_that_are_no_numbers_end_all(ranks: list[dict[str, Any]]) -> None:
    assert [rank["not a number"][0] for rank in ranks] == ["ProcessError", "ProcessError"]
    assert all(
        "rank 1 failed with InputError: data: expected finite inputs" in rank["not a number"][1] for rank in ranks
    )


def test_an_error_of_one_process_s_data_ends_all(ranks: list[dict[str, Any]]) -> None:
    assert all("rank 1 failed with OSError: row 21 is gone" in rank["own error"][1] for rank in ranks)


def test_rank_0_names_the_checkpoint(folder: Path, ranks: list[dict[str, Any]]) -> None:
    assert (folder / "half.pt").exists()
    assert all("expected a file on rank 0" in rank["no file on rank 0"][1] for rank in ranks)


def test_a_checkpoint_of_another_run_is_refused_on_all(ranks: list[dict[str, Any]]) -> None:
    assert all("expected one of a run with lr = '0.5'" in rank["another run"][1] for rank in ranks)
