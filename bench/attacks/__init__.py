"""Attacks from outside: each group is a file whose `attacks(quick)` yields what was tried and what came.

An outcome counts as right where the answer is the right one and nothing of the user's is lost, as refused where one
line of the library's own says why not, and as wrong otherwise.
"""

from __future__ import annotations

import importlib
import multiprocessing
import pkgutil
import resource
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

GROUPS = tuple(sorted(group.name for group in pkgutil.iter_modules(__path__)))


# What a process apart may map beyond what this one has, and how long it may take.
ADDED_BYTES, SECONDS = 6 * 2**30, 60


class Outcome(NamedTuple):
    """What came of one attack, tried a number of times."""

    attack: str
    refused: int = 0
    right: int = 0
    wrong: int = 0
    said: str = ""


def run(quick: bool) -> dict[str, list[dict[str, object]]]:
    """All groups, one after another."""
    return {
        group: [outcome._asdict() for outcome in importlib.import_module(f"bench.attacks.{group}").attacks(quick)]
        for group in GROUPS
    }


def apart(work: Callable[[], Any]) -> Any:
    """What the work answers in a copy of this process, or how the copy ended: by a signal, or out of time."""
    context = multiprocessing.get_context("fork")
    mine, others = context.Pipe(duplex=False)
    process = context.Process(target=_sent, args=(work, others))
    process.start()
    others.close()
    try:
        return mine.recv()
    except EOFError:
        process.join()
        return f"the process ended with {process.exitcode}"
    finally:
        process.join()


def _sent(work: Callable[[], Any], pipe: Connection) -> None:
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + ADDED_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    signal.alarm(SECONDS)
    pipe.send(work())
