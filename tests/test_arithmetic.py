"""The same fits under the arithmetic of this processor, and of two others in separate processes: the answers agree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from tests.arithmetic import ENVIRONMENTS, FITS

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, tuple[list[float], float]]]:
    """The answers of all fits under each kind of arithmetic."""
    arithmetic = {name for settings in ENVIRONMENTS.values() for name in settings}
    rest = {name: value for name, value in os.environ.items() if name not in arithmetic}
    command = [sys.executable, "-W", "ignore", "-m", "tests.arithmetic"]
    running = {
        name: subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env={**rest, **settings})
        for name, settings in ENVIRONMENTS.items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        here = {name: fit() for name, fit in FITS.items()}
    return {"here": here} | {name: json.loads(process.communicate()[0]) for name, process in running.items()}


@pytest.mark.parametrize("fit", FITS)
def test_all_processors_give_one_answer(answers: dict[str, dict[str, tuple[list[float], float]]], fit: str) -> None:
    reference, tolerance = answers["here"][fit]
    scale = np.abs(reference).max()
    for name in ENVIRONMENTS:
        np.testing.assert_allclose(
            answers[name][fit][0], reference, rtol=tolerance, atol=tolerance * scale, err_msg=name
        )
