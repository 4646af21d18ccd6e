from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from bayescope.curvature import memory
from bayescope.curvature.memory import free_memory, readable


def test_it_is_of_this_machine() -> None:
    assert 2**20 < free_memory(torch.device("cpu")) <= sys.maxsize


def test_a_containers_limit_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "limit").write_text("5000\n")
    (tmp_path / "used").write_text("3000\n")
    limited = ((str(tmp_path / "limit"), str(tmp_path / "used")),)
    monkeypatch.setattr(memory, "_LIMITED", limited)
    assert free_memory(torch.device("cpu")) == 2000
    (tmp_path / "limit").write_text("max\n")
    assert free_memory(torch.device("cpu")) > 2**20


def test_a_system_that_does_not_tell_forbids_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_read", lambda _: "")
    monkeypatch.setattr("os.sysconf_names", {})
    assert free_memory(torch.device("cpu")) == sys.maxsize


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (2_340_000, "2.34 MB"), (5 * 10**15, "5e+03 TB")],
)
def test_sizes_are_told_as_people_read_them(count: int, text: str) -> None:
    assert readable(count) == text
