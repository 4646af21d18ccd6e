"""Conditions that tests run code under, and what they count while it runs."""

from __future__ import annotations

import cProfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """Inside, writing a file beyond so many bytes fails, as on a full disk."""
    resource = pytest.importorskip("resource", reason="no limits of processes there")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def calls(work: Callable[[], object], name: str) -> int:
    """How often functions of a qualified name, such as "DataFrame.__getitem__", are called while some work is done."""
    profile = cProfile.Profile()
    profile.runcall(work)
    return sum(entry.callcount for entry in profile.getstats() if getattr(entry.code, "co_qualname", "") == name)
