"""Requests and files that would take far more memory than there is, each in a process that may take 2 GB more."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bench.attacks import Outcome

# What a process may take beyond what it has when it begins, and how long an attack may take.
MORE, SECONDS = 2 * 10**9, 120
# Fits whose matrices take this share of what is left must not be refused.
SHARE = 0.6
LABELS = 48_000
WIDE, ROWS = 22_000, 22_100  # the table itself fits as bytes, and as numbers it does not
MIDDLE = 6_000  # here the table fits, and the matrices of its weights do not


def requests(folder: Path) -> dict[str, Callable[[], Any]]:
    """What is asked for in Python."""
    import bayescope as bs

    rng = np.random.default_rng(0)

    def table(columns: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
        return np.ones((rows, columns), np.int8), np.arange(rows) % 3

    def labelled(frame: bool = True) -> Any:
        names = np.char.add("record ", (np.arange(3 * LABELS) % LABELS).astype(str))
        made = pd.DataFrame({"id": names, "x": rng.standard_normal(3 * LABELS), "y": rng.standard_normal(3 * LABELS)})
        if frame:
            return made
        made.to_parquet(folder / "labels.parquet")
        return bs.open_table(folder / "labels.parquet")

    def fitted() -> tuple[Any, np.ndarray]:
        X = rng.standard_normal((60, 3))
        return bs.BayesianLogisticRegression(posterior="laplace", prior_precision=1.0).fit(X, X[:, 0] > 0), X

    def wide(posterior: str, columns: int, rows: int, classes: int = 2) -> Any:
        X, y = table(columns, rows)
        y = np.arange(rows) % classes
        return bs.BayesianLogisticRegression(posterior=posterior, prior_precision=1.0).fit(X, y)

    def network() -> Any:
        return bs.BayesianMLPRegressor(hidden=(5,), epochs=1, random_state=0)

    def draws(ask: Callable[[Any, np.ndarray], Any]) -> Callable[[], Any]:
        return lambda: ask(*fitted())

    asked: dict[str, Callable[[], Any]] = {
        "10⁹ draws of the weights": draws(lambda model, _: model.posterior_.sample(10**9)),
        "10⁹ functions": draws(lambda model, X: model.posterior_.sample_functions(X, 10**9)),
        "predictions by 10⁹ draws": draws(
            lambda model, X: model.predict_distribution(X, method="sampled", samples=10**9)
        ),
        "10⁹ outcomes": draws(lambda model, X: model.predict_distribution(X).sample(10**9)),
        "a covariance of 100,000 weights": lambda: (
            bs.BayesianLinearRegression().fit(rng.standard_normal((40, 10**5)), np.arange(40.0)).posterior_.covariance
        ),
        "linear, 22,000 columns": lambda: bs.BayesianLinearRegression().fit(*table(WIDE, ROWS)),
        "linear, 6,000 columns": lambda: bs.BayesianLinearRegression().fit(*table(MIDDLE, MIDDLE + 100)),
        "logistic, 1,500 columns and 10 classes": lambda: wide("laplace", 1500, 1600, 10),
        "logistic, 22,000 columns": lambda: wide("auto", WIDE, ROWS),
        "linear, 48,000 labels": lambda: bs.BayesianLinearRegression().fit(labelled(), "y"),
        "linear, 48,000 labels on disk": lambda: bs.BayesianLinearRegression().fit(labelled(frame=False), "y"),
        "network, 48,000 labels": lambda: network().fit(labelled(), "y"),
        "network, 48,000 labels on disk": lambda: network().fit(labelled(frame=False), "y"),
        "additive, 48,000 levels": lambda: bs.NeuralAdditiveRegressor().fit(labelled(), "y"),
    }
    for posterior in ("map", "laplace", "ep", "variational", "mean_field", "nuts", "metropolis"):
        asked[f"logistic, 6,000 columns, {posterior}"] = lambda each=posterior: wide(each, MIDDLE, MIDDLE + 100)
    return asked


def allowed() -> dict[str, tuple[Callable[[], Any], int]]:
    """Fits that memory holds, each with what may be taken for it."""
    import bayescope as bs
    from bayescope.estimators import linear, linear_posteriors

    rng = np.random.default_rng(0)
    X, f = rng.standard_normal((1300, 1200)), rng.standard_normal(1300)
    models: dict[str, tuple[Any, np.ndarray, int]] = {
        "linear": (bs.BayesianLinearRegression(), f, linear.MATRICES),
    }
    for posterior in ("laplace", "ep"):
        model = bs.BayesianLogisticRegression(posterior=posterior, prior_precision=1.0)
        models[posterior] = model, f > 0, linear_posteriors.MATRICES[posterior]
    return {
        f"{name}, 1,200 columns, 60 % of what is left": (
            lambda model=model, y=y: model.fit(X, y).predict(X[:9]), round(8 * matrices * 1201**2 / SHARE)
        )
        for name, (model, y, matrices) in models.items()
    }  # fmt: skip


def commands(folder: Path) -> dict[str, tuple[Callable[[Path], object], list[str]]]:
    """What is typed: how its file is made, and the words."""
    fit = ["--target", "y", "--model", "linear", "--out", str(folder / "model.bayes")]

    def packed(path: Path) -> None:
        member = gzip.compress(b"1.5,0\n" * 10**6)
        path.write_bytes(gzip.compress(b"a,y\n") + member * 1000)

    def sparse(path: Path) -> None:
        with path.open("wb") as file:
            file.truncate(10**10)

    def repeated(path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        part = pa.table({"a": np.zeros(10**6), "y": np.zeros(10**6)})
        with pq.ParquetWriter(path, part.schema) as writer:
            for _ in range(100):
                writer.write_table(part)

    files: dict[str, tuple[str, Callable[[Path], object]]] = {
        "a packed table of 10⁹ rows": ("t.csv.gz", packed),
        "a sparse file of 10 GB": ("t.csv", sparse),
        "a line of 10⁸ characters": ("t.csv", lambda path: path.write_bytes(b"a" * 10**8)),
        "a quoted cell of 10⁸ characters": ("t.csv", lambda path: path.write_bytes(b'a,y\n1,"' + b"a" * 10**8)),
        "10⁷ blank lines": ("t.csv", lambda path: path.write_bytes(b"a,y\n" + b"\n" * 10**7 + b"1,2\n")),
        "a header of 10⁶ columns": (
            "t.csv", lambda path: path.write_text(",".join([*map("x{}".format, range(10**6)), "y"]) + "\n"),
        ),
        "10⁸ rows in a Parquet file of 0.1 MB": ("t.parquet", repeated),
    }  # fmt: skip
    made = {name: (write, ["fit", str(folder / file), *fit]) for name, (file, write) in files.items()}
    nothing: Callable[[Path], object] = lambda path: None  # noqa: E731
    made["/dev/zero"] = nothing, ["fit", "/dev/zero", *fit]
    made["a pipe that does not end"] = nothing, ["fit", "-", *fit]
    return made


def came_of(attack: Callable[[], Any]) -> tuple[str, str]:
    """How a call in Python ended, and what it said."""
    from bayescope.errors import MemoryBudgetError

    try:
        attack()
    except MemoryBudgetError as error:
        return "refused", str(error)
    except BaseException as error:  # noqa: BLE001  also what other libraries raise
        return "wrong", f"{type(error).__name__}: {error}"
    return "right", ""


def command_ended(words: list[str], folder: Path) -> tuple[str, str]:
    """How a command ended, of a process of its own."""
    source = subprocess.Popen(["yes", "1,2"], stdout=subprocess.PIPE) if "-" in words else None
    call = [sys.executable, "-m", "bayescope", *words]
    try:
        done = subprocess.run(
            call, capture_output=True, text=True, check=False, preexec_fn=limited, cwd=folder,
            stdin=subprocess.DEVNULL if source is None else source.stdout, timeout=SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "wrong", f"still running after {SECONDS} s"
    finally:
        if source is not None:
            source.kill()
            source.wait()
    one_line = done.stderr.count("\n") == 1 and done.stderr.startswith("bayescope: ")
    if done.returncode in (1, 2) and one_line:
        return "refused", done.stderr
    return ("right" if done.returncode == 0 else "wrong"), done.stderr


def limited(more: int = MORE) -> None:
    """Lets this process take so much more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def apart(attack: Callable[[], Any], more: int = MORE) -> tuple[str, str]:
    """The same of a copy of this process, which may take so much more memory."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        limited(more)
        warnings.simplefilter("ignore")
        os.write(writing, json.dumps(came_of(attack)).encode()[:60_000])
        os._exit(0)
    os.close(writing)
    ended = time.monotonic() + SECONDS
    while not os.waitpid(child, os.WNOHANG)[0]:
        if time.monotonic() > ended:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.05)
    with os.fdopen(reading, "rb") as told:
        said = told.read()
    if not said:
        return "wrong", "the process was killed"
    outcome, text = json.loads(said)
    return outcome, text


def tried(quick: bool) -> Iterator[tuple[str, str, str]]:
    """Each attack with what came."""
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for attack, ask in itertools.islice(requests(folder).items(), 5 if quick else None):
            yield (f"Python: {attack}", *apart(ask))
        for attack, (ask, more) in itertools.islice(allowed().items(), 0 if quick else None):
            outcome, said = apart(ask, more)
            yield f"Python: {attack}", "right" if outcome == "right" else "wrong", said
        for attack, (write, words) in itertools.islice(commands(folder).items(), 0 if quick else None):
            write(Path(words[1]))
            yield (f"command line: {attack}", *command_ended(words, folder))


def attacks(quick: bool) -> Iterator[Outcome]:
    """In a process without threads, of which each attack gets a copy."""
    call = [sys.executable, "-m", "bench.attacks.memory", *(["quick"] if quick else [])]
    done = subprocess.run(call, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    for line in done.stdout.splitlines():
        attack, outcome, said = json.loads(line)
        yield Outcome(attack, **{outcome: 1}, said=" ".join(said.split())[-160:])


if __name__ == "__main__":
    for each in tried("quick" in sys.argv[1:]):
        print(json.dumps(each), flush=True)
