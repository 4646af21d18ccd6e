"""The memory of a call: what it held at its highest counts, freed or not, and nothing runs beside it."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest

from bench.memory import peak_growth

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the mark is Linux's")

SIZE = 2**26


def test_the_highest_counts_also_where_it_is_freed():
    def work() -> None:
        np.ones(SIZE // 8).sum()

    assert 0.9 * SIZE < peak_growth(work) < 1.5 * SIZE  # the kernel counts pages a batch at a time
    # The mark starts anew: what an earlier call held is no part of a later one's.
    assert peak_growth(lambda: None) < SIZE // 8


def test_nothing_runs_beside_the_call():
    found = []
    before = threading.active_count()
    peak_growth(lambda: found.append(threading.active_count()))
    assert found == [before]
