"""Faults from outside: full disks, files that are cut, processes that are killed, Ctrl-C.

python -m bench.robustness_processes FILE      # the training that is killed, with FILE for its checkpoint
"""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import bayescope as bs
from bench import record
from bench.robustness_faults import Came, Slow, attempt, network, on_network, rows

EPOCHS = 40


# --- files ------------------------------------------------------------------------------------------------------------


@contextmanager
def full_disk(most: int) -> Iterator[None]:
    """Files end after so many bytes, as those on a full disk do."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def survives(path: Path, work: Callable[[], Any], most: int, **wanted: Any) -> Came:
    """A write that breaks off half-way: the old file is whole and alone."""
    before, beside = path.read_bytes(), sorted(path.parent.iterdir())

    def limited() -> Any:
        with full_disk(most):
            work()

    came = attempt(limited, **wanted)
    if path.read_bytes() != before or sorted(path.parent.iterdir()) != beside:
        return Came(f"{came.said} CHANGED: {sorted(each.name for each in path.parent.iterdir())}", False)
    return came


def file_faults() -> Iterator[tuple[str, str, Came]]:
    """Full disks, cut files."""
    with tempfile.TemporaryDirectory() as folder:
        model, state = Path(folder) / "models" / "m.bayes", Path(folder) / "runs" / "run.pt"
        q = bs.laplace(network(), rows(), likelihood="categorical")
        q.save(model)
        train = lambda epochs: bs.fit_map(  # noqa: E731
            network(), rows(), likelihood="categorical", epochs=epochs, generator=0, checkpoint=state
        )
        train(2)
        estimator = bs.BayesianLogisticRegression().fit(*(part.numpy() for part in rows(40, 2)))
        for size in (0, 100, len(model.read_bytes()) // 2):
            fault = f"a disk full after {size} bytes"
            yield fault, "save", survives(model, lambda: q.save(model), size)
            yield fault, "estimator.save", survives(model, lambda: estimator.save(model), min(size, 500))
            yield fault, "checkpoint", survives(state, lambda: train(4), size)
        bs.load(model).predict(rows()[0])
        for path, read in ((model, lambda: bs.load(model)), (state, lambda: train(4))):
            whole = path.read_bytes()
            for share in (0.0, 0.3, 0.99):
                path.write_bytes(whole[: int(share * len(whole))])
                yield f"a file cut to {share:.0%}", path.suffix, survives(path, read, -1)
            path.write_bytes(whole)


# --- processes that end -----------------------------------------------------------------------------------------------


def train(checkpoint: str | None) -> Tensor:
    """A training of a slow network, with its last loss beside its weights."""
    found = bs.fit_map(
        Slow(), rows(48), likelihood="categorical", epochs=EPOCHS, batch_size=8, generator=3, checkpoint=checkpoint,
        progress=False,
    )  # fmt: skip
    state = [value.double().reshape(-1) for value in found.model.state_dict().values()]
    return torch.cat([*state, torch.tensor(found.trace["loss"], dtype=torch.float64)])


def killed(kills: int) -> Iterator[tuple[str, str, Came]]:
    """A training that is killed and called again has the numbers of one that was not, bit for bit."""
    whole = train(None)
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "run.pt"
        for turn in range(kills):
            process = subprocess.Popen(
                [sys.executable, "-m", "bench.robustness_processes", str(state)], cwd=record.ROOT
            )
            old = state.read_bytes() if state.exists() else b""
            while process.poll() is None and (not state.exists() or state.read_bytes() == old):
                time.sleep(0.002)
            time.sleep(0.05 + 0.03 * turn)
            process.kill()
            process.wait()
        done = torch.load(state, weights_only=True)["state"]["epoch"] if state.exists() else 0
        left = sorted(each.name for each in Path(folder).iterdir())
        resumed = train(str(state))
        fine = torch.equal(whole, resumed) and done > 0
        bits = "the same bits" if fine else "OTHER NUMBERS"
        yield "kill -9", "fit_map", Came(f"{bits}, going on after epoch {done} of {EPOCHS}; beside it {left}", fine)


def interrupted() -> Iterator[tuple[str, str, Came]]:
    """Ctrl-C while fits run: what there is so far and says so, or the interrupt itself."""
    fits: dict[str, Callable[[nn.Module, Any], Any]] = {
        "fit_map": lambda m, d: bs.fit_map(m, d, likelihood="categorical", epochs=10**4, batch_size=8, progress=False),
        "fit_curvature": lambda m, d: bs.fit_curvature(m, d * 400, likelihood="categorical"),
        "swag": lambda m, d: bs.swag(m, d, likelihood="categorical", epochs=10**4, batch_size=8, progress=False),
        "sgmcmc": lambda m, d: bs.sgmcmc(m, d, likelihood="categorical", draws=10**5, batch_size=8, progress=False),
    }
    for name, fit in fits.items():
        x, y = rows(48)
        data = [(x, y)] if name == "fit_curvature" else (x, y)
        timer = threading.Timer(0.6, lambda: signal.raise_signal(signal.SIGINT))
        timer.start()
        came = on_network(fit, Slow(), data, own=KeyboardInterrupt, answers=True)
        timer.join()
        yield "Ctrl-C", name, came


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(sys.argv[1])
