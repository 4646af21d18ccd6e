"""What every test runs under: one thread, no screen, the same examples at each run, untouched global generators."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import matplotlib as mpl
import numpy as np
import pytest
import torch

from tests.browser import CHROMIUM

mpl.use("Agg")
# A shell that starts the tests in the background has them ignore Ctrl-C, which some of them send.
signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
# What each test finds in the global generators, whichever ran before it, in whichever process.
np.random.seed(0)  # noqa: NPY002
torch.manual_seed(0)  # torch begins each process at another seed
TORCH_STATE, NUMPY_STATE = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002

# The machines that run the tests are shared, so that no single example has a deadline; pytest's timeout guards instead.
# The same examples at every run: a test that turns red says that the code changed.
hypothesis.settings.register_profile("bayescope", deadline=None, derandomize=True)
hypothesis.settings.load_profile("bayescope")


@pytest.fixture(scope="session")
def reference_data() -> Path:
    """The folder of real data and published posteriors; tests that need it are skipped where it is absent."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("BAYESCOPE_REFERENCE_DATA", beside))
    if not folder.is_dir():
        pytest.skip(f"no reference data at {folder} (BAYESCOPE_REFERENCE_DATA names another folder)")
    return folder


def start_global_generators() -> None:
    torch.set_rng_state(TORCH_STATE)
    np.random.set_state(NUMPY_STATE)  # noqa: NPY002


@pytest.fixture(autouse=True)
def global_generators_untouched(request: pytest.FixtureRequest) -> Iterator[None]:
    """The library draws from generators that it is given: the global states of torch and NumPy stay as they were.

    A test that writes them itself is marked `global_rng`.
    """
    start_global_generators()
    yield
    after_torch, after_numpy = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
    start_global_generators()
    if request.node.get_closest_marker("global_rng") is None:
        torch_same = torch.equal(after_torch, TORCH_STATE)
        assert torch_same, "the test left torch's global generator changed"
        numpy_same = np.array_equal(after_numpy[1], NUMPY_STATE[1]) and after_numpy[2:] == NUMPY_STATE[2:]
        assert numpy_same, "the test left NumPy's global generator changed"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium: one for all tests of a process, since Playwright runs no second one beside it."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="pip install 'bayescope[dev]' brings playwright")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()
