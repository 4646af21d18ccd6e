"""Additive models and networks of a table on disk, fitted by two processes: what one process finds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bayescope.additive import coded
from tests.distributed import table_fits
from tests.distributed.ranks import run
from tests.estimators.streamed import frame, stored


def test_two_processes_find_what_one_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(stored(tmp_path, frame()))
    monkeypatch.setattr(coded, "CODED_ROWS", table_fits.CODED_ROWS)
    alone = table_fits.both(folder)
    found = run(table_fits.all_of_them, 2, folder)
    for one, *others in zip(alone, *[fits for fits, _ in found], strict=True):
        first, second = others
        assert np.array_equal(first["weights"], second["weights"])  # to the last bit
        assert first["evidence"] == second["evidence"]
        assert first["evidence"] == pytest.approx(one["evidence"], rel=1e-6)
        np.testing.assert_allclose(first["mean"], one["mean"], rtol=1e-5, atol=1e-6)
    for _, refusal in found:
        assert "expected the same table on every rank, got another on rank 1" in refusal
