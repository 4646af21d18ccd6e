"""Models that were fitted once, by the command itself."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.tables import mixed, run, written


@pytest.fixture(autouse=True, scope="session")
def hanging_up_ends() -> Iterator[None]:
    """Commands that tests start heed SIGHUP, also where the tests themselves were started to ignore it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def table(folder: Path) -> Path:
    return written(folder / "table.csv", mixed())


def fitted(table: Path, name: str, *options: object) -> Path:
    out = table.with_name(name)
    result = run("fit", table, "--out", out, *options)
    assert result.exit_code == 0, (result.output, result.exception)
    return out


@pytest.fixture(scope="session")
def classes(table: Path) -> Path:
    """An additive model of two classes."""
    return fitted(table, "classes.bayes", "--target", "state", "--drop", "id,cost", "--no-refit")


@pytest.fixture(scope="session")
def numbers(table: Path) -> Path:
    """A linear model of numbers."""
    options = ["--target", "cost", "--drop", "id,state", "--model", "linear", "--test-size", "0"]
    return fitted(table, "numbers.bayes", *options)
