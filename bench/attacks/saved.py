"""Saved models that take all memory, or for ever, and ones whose altered parts fail when they are asked."""

from __future__ import annotations

import random
import tempfile
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

import bayescope as bs
from bayescope.errors import BayescopeError, FileError
from bayescope.storage.objects import RECORDS, StoredEstimator
from bench.attacks import Outcome, apart
from bench.fuzz_files import ESTIMATORS
from tests.storage import saved
from tests.storage.hostile import ATTACKS
from tests.storage.mutants import edited, framed, parts, strange

# What a process may grow by while it loads a file: so many bytes, and so many for each byte of the file.
GROWN, GROWN_A_BYTE = 64 * 2**20, 64
# Of the processor.
SECONDS = 10.0
QUICK = ("text arrays, 30 kB", "mixtures nested 12 deep", "a polynomial of degree 10⁶", "twenty times MaxPool2d")


def peak() -> int:
    """Bytes that this process has held at most."""
    [line] = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def tried(name: str, path: Path) -> Outcome:
    """What came of reading a file's manifest and of loading it."""
    before, start = peak(), time.process_time()
    try:
        bs.storage.read_manifest(path)
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


def relearnt(content: bytes, source: random.Random) -> bytes:
    """A file in which an estimator or a transformer has learnt something strange."""
    manifest, tensors = parts(content)
    known = RECORDS.keys() & {name for node in manifest["objects"] for name in node}
    kinds = sorted(name for name in known if isinstance(RECORDS[name], StoredEstimator))
    learnt = source.choice([node[name] for node in manifest["objects"] for name in kinds if node.get(name)])
    learnt[source.choice(list(learnt))] = strange(source, len(manifest["objects"]))
    return framed(manifest, tensors)


def asked(count: int) -> Outcome:
    """What came of altered estimators that load: an answer, or one line of the library's own."""
    source, wrong, counts = random.Random(0), [], {"refused": 0, "right": 0}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.bayes"
        for _ in range(count):
            name = source.choice(ESTIMATORS)
            path.write_bytes(source.choice((edited, relearnt))(saved.estimator(name).save(path).read_bytes(), source))
            mixed = name.startswith(("additive", "mlp")) or "mixed" in name
            try:
                bs.load(path).predict(saved.table().iloc[:3] if mixed else saved.plain_table()[:3])
                counts["right"] += 1
            except BayescopeError as error:
                wrong += [str(error)] * ("\n" in str(error))
                counts["refused"] += "\n" not in str(error)
            except Exception as error:  # noqa: BLE001 - an error of others is what this looks for
                wrong.append(f"{name}: {type(error).__name__}: {error}")
    return Outcome("altered estimators predict", **counts, wrong=len(wrong), said="; ".join(wrong)[:160])


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
    yield asked(100 if quick else 2000)
