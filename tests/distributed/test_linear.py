"""Linear models fitted by several processes: what one process finds, on each of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.distributed import linear_fits
from tests.distributed.ranks import run
from tests.estimators.streamed import frame, stored


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(stored(tmp_path, frame(linear_fits.ROWS)))


def assert_found_alike(alone: dict, ranks: list[dict]) -> None:
    for name, expected in alone.items():
        for rank in ranks:
            found = rank[name]
            assert found["goes on"] == expected["goes on"] == (True, ())  # `condition` has what it calls
            for part in ("mean", "precision", "prior"):
                assert np.array_equal(found[part], ranks[0][name][part]), name  # to the last bit
                np.testing.assert_allclose(found[part], expected[part], rtol=1e-7, atol=1e-7, err_msg=name)


def test_two_processes_find_what_one_finds(folder: str) -> None:
    assert_found_alike(linear_fits.every(folder), run(linear_fits.rounded, 2, folder))


def test_four_processes_take_the_same_sample_as_one(folder: str) -> None:
    assert_found_alike(linear_fits.large(folder), run(linear_fits.large, 4, folder))


def test_an_error_of_one_process_reaches_the_other(folder: str) -> None:
    first, second = run(linear_fits.refusals, 2, folder)
    assert first == second
    tables, broken, alone = first
    assert tables.startswith("X, y: expected the same table on every rank")
    assert "rank 1 failed with InputError: part-1.parquet: cannot be read" in broken
    assert alone == "1"
