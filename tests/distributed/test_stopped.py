"""Processes that stop, die, or send what they should not: the others end with the library's error, and say where."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import distributed

import bayescope as bs
from bayescope import processes
from bayescope.errors import ProcessError
from bayescope.processes import called, present
from bayescope.storage import to_message
from tests.distributed.ranks import end, run
from tests.distributed.test_unlike import deep, rows

# Seconds that a process waits here for one that has stopped.
WAIT = 4


class Code:
    """What runs code of the sender's when it is unpickled."""

    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('code of another process has run')",)


def stops(name: str) -> Callable[[], None]:
    """What ends or stops its process, rank 1, when it is called for the fourth time where gradients are recorded."""
    passes = []

    def stop() -> None:
        passes.extend([1] * torch.is_grad_enabled())
        if distributed.get_rank() == 1 and len(passes) == 4:
            os.kill(os.getpid(), getattr(signal, name))

    return stop


def left_alone(name: str, folder: str) -> None:
    """Rank 0 writes down how its fit ended, and ends rank 1, which has stopped."""
    place = Path(folder) / "pid"
    if distributed.get_rank() == 1:
        place.write_text(str(os.getpid()))
    distributed.barrier()
    network, stop = deep((6,), (6,))(0), stops(name)
    network.register_forward_hook(lambda *_: stop())
    try:
        with patch.dict(os.environ, {processes.VARIABLE: str(WAIT)}):
            bs.fit_map(network, rows(), likelihood="categorical", epochs=9, batch_size=10, generator=1, progress=False)
    except ProcessError as error:
        (Path(folder) / "words.txt").write_text(str(error))
    finally:
        with suppress(ProcessLookupError):
            os.kill(int(place.read_text()), signal.SIGKILL)


@pytest.mark.parametrize("name", ["SIGSTOP", "SIGKILL"])
def test_the_others_end_within_the_timeout(name: str, tmp_path: Path) -> None:
    assert end(left_alone, 2, name, str(tmp_path))[1].exitcode == -signal.SIGKILL
    words = (tmp_path / "words.txt").read_text()
    assert words.startswith(f"processes: expected all to take part in a sum of fit_map within {WAIT} s, got: ")
    assert "set BAYESCOPE_TIMEOUT to more seconds" in words
    assert "\n" not in words
    assert ".cc:" not in words


def message(work: Callable[[], Any]) -> str:
    try:
        work()
    except Exception as error:  # noqa: BLE001 — what is looked at
        return f"{type(error).__name__}: {error}"
    return "none"


def call() -> None:
    with called("laplace", {"rank": distributed.get_rank()}):
        pass


OTHER: dict[str, Any] = {
    "pickle": pickle.dumps(Code()),
    "no bytes of ours": b"\xff" * 50,
    "JSON cut short": to_message(("laplace", {})).numpy().tobytes()[:-9],
    "a class that nobody knows": b"\x28" + b"\0" * 7 + b'[{"object":["os.system",1,{},{}]},[],[]]',
    "lists without end": b"\x50" + b"\0" * 7 + b"[" * 80,
    "nothing": b"",
    "another value": to_message(["laplace", 3]).numpy().tobytes(),
    "an escape": to_message(("\x1b[2J\nlaplace", {}, None)).numpy().tobytes(),
}


def hostile() -> dict[str, Any]:
    """What each rank says of a message of rank 1's that is none, and of one after it."""
    said: dict[str, Any] = {}
    for name, content in OTHER.items():
        sent = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.zeros(0).byte()
        changed = {"to_message": lambda _, sent=sent: sent} if distributed.get_rank() == 1 else {}
        with patch.multiple(processes, **changed) if changed else nullcontext():
            said[name] = message(call)
    said["an object with code"] = message(lambda: present().gather(Code() if distributed.get_rank() else None))
    said["afterwards"] = list(present().sum_numbers(1.0 + distributed.get_rank()))
    return said


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return run(hostile)


@pytest.mark.parametrize("name", OTHER)
def test_messages_that_are_none_end_all_in_one_line(ranks: list[dict[str, Any]], name: str) -> None:
    first, second = (rank[name] for rank in ranks)
    assert first == second
    assert first.startswith("ProcessError: ")
    assert "rank 1" in first or "all processes to say" in first
    assert first.isprintable()


def test_no_object_with_code_is_sent(ranks: list[dict[str, Any]]) -> None:
    assert all("rank 1 failed with UnsupportedError" in rank["an object with code"] for rank in ranks)
    assert all("without code" in rank["an object with code"] for rank in ranks)


def test_the_ranks_are_still_in_step_afterwards(ranks: list[dict[str, Any]]) -> None:
    assert [rank["afterwards"] for rank in ranks] == [[3.0], [3.0]]


@pytest.mark.parametrize("given", ["soon", "-1", "0", "nan", "inf"])
def test_a_timeout_that_is_none_is_refused(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(processes.VARIABLE, given)
    with pytest.raises(bs.errors.InputError, match="BAYESCOPE_TIMEOUT: expected a positive number of seconds, got"):
        processes.timeout()


def test_processes_wait_for_five_minutes_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(processes.VARIABLE, raising=False)
    assert processes.timeout() == 300
    monkeypatch.setenv(processes.VARIABLE, "7.5")
    assert processes.timeout() == 7.5
