"""Saved models that take all memory, or for ever: small files whose checksums agree."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

import bayescope as bs
from bayescope.errors import FileError
from bench.attacks import Outcome, apart
from tests.storage.hostile import ATTACKS

# What a process may grow by while it loads a file: so many bytes, and so many for each byte of the file.
GROWN, GROWN_A_BYTE = 64 * 2**20, 64
# Of the processor.
SECONDS = 10.0
QUICK = ("text arrays, 30 kB", "mixtures nested 12 deep", "a polynomial of degree 10⁶")


def peak() -> int:
    """Bytes that this process has held at most."""
    [line] = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def tried(name: str, path: Path) -> Outcome:
    """What came of reading a file's manifest and of loading it."""
    before, start = peak(), time.process_time()
    try:
        bs.read_manifest(path)
        bs.load(path)
        said = "loaded"
    except FileError as error:
        said = str(error).removeprefix(f"{path}: ")
    except Exception as error:  # noqa: BLE001 - an error of others is what this looks for
        said = f"{type(error).__name__}: {error}"
    seconds, grown = time.process_time() - start, peak() - before
    small = grown <= GROWN + GROWN_A_BYTE * path.stat().st_size and seconds <= SECONDS
    refused = said.startswith("expected a file as bayescope saved it") and small
    told = f"{path.stat().st_size / 1e3:.0f} kB, grew by {grown / 2**20:.0f} MiB, {seconds:.2f} s: {said}"[:160]
    return Outcome(name, int(refused), 0, int(not refused), told)


def attacks(quick: bool) -> Iterator[Outcome]:
    """Each in a process of its own, so that none grows into what another has left."""
    repr(torch.ones(1))  # what torch imports late is imported now
    torch.nn.Embedding(1, 1, device="meta")
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        for name in QUICK if quick else ATTACKS:
            path = Path(folder) / "file.bayes"
            path.write_bytes(ATTACKS[name]())
            said = apart(partial(tried, name, path))
            yield Outcome(*said) if isinstance(said, tuple) else Outcome(name, wrong=1, said=said)
