"""Bytes that reach other code: atheris alters a table or a saved posterior, led by which lines of the readers run.

Each reader runs in a process of its own under instrumentation, from a whole file. Text is altered byte by byte. A saved
posterior ends with checksums, behind which no altered byte comes; it is altered by `tests.storage.mutants` too, which
puts them right. A crash is any error that is not the library's own.

    python -m bench.robustness_bytes table|posterior FOLDER [flags of libFuzzer]
"""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench import record

Record = dict[str, Any]
READERS = ("table", "posterior")
# The part of a folder from which files are altered, and that gets those which run other lines.
CORPUS = "corpus"
# Bytes that an altered file has at most.
LONGEST = {"table": 4096, "posterior": 1 << 16}
# The changes that leave the checksums of a saved posterior right.
FRAMED = ("edited", "retold", "scribbled", "misspelt")


def searched(seconds: int) -> list[Record] | None:
    """Each reader for so long; ``None`` where atheris is not installed."""
    if importlib.util.find_spec("atheris") is None:
        return None
    return [_searched(reader, seconds) for reader in READERS]


def _searched(reader: str, seconds: int) -> Record:
    """One reader for so long."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / CORPUS).mkdir()
        command = [sys.executable, "-m", "bench.robustness_bytes", reader, folder, f"-max_total_time={seconds}",
                   f"-artifact_prefix={folder}/crash-", f"-max_len={LONGEST[reader]}", "-close_fd_mask=1"]  # fmt: skip
        answer = subprocess.run(command, check=False, capture_output=True, text=True, cwd=record.ROOT)
        lines = answer.stderr.splitlines()
        crashes = [repr(each.read_bytes())[:400] for each in Path(folder).glob("crash-*")]
    done = next((line for line in reversed(lines) if line.lower().startswith("done")), lines[-1] if lines else "")
    if answer.returncode and not crashes:
        crashes = [f"ended with {answer.returncode}: {done}"]
    return {"reader": reader, "seconds": seconds, "crashes": crashes, "said": done[:160]}


# --- the readers, each in its own process -----------------------------------------------------------------------------


def table() -> tuple[bytes, Callable[[Path], object], None]:
    """A CSV file and what reads it."""
    from bayescope.cli.opening import open_source
    from bayescope.cli.training_table import Roles, read_training_table
    from bench.robustness_tables import text

    return text(), lambda path: read_training_table(open_source(path, again=True), Roles(target="state")), None


def posterior() -> tuple[bytes, Callable[[Path], object], Callable[[bytes, int, int], bytes]]:
    """A saved Laplace posterior, what loads it, and what alters it."""
    import atheris

    import bayescope as bs
    from tests.storage import saved
    from tests.storage.mutants import MUTATIONS

    with tempfile.TemporaryDirectory() as folder:
        whole = saved.posterior("laplace, kfac, float32").save(Path(folder) / "whole.bayes").read_bytes()

    def altered(content: bytes, longest: int, seed: int) -> bytes:
        source = random.Random(seed)
        if source.random() < 0.2:
            return bytes(atheris.Mutate(content, longest))
        with suppress(Exception):  # what is no file any more cannot be taken apart; the whole one can
            return MUTATIONS[source.choice(FRAMED)](content, source)[:longest]
        return MUTATIONS[source.choice(FRAMED)](whole, source)[:longest]

    return whole, bs.load, altered


def main(reader: str, folder: str, flags: Sequence[str]) -> None:
    """Runs until bytes crash the reader, or the time is over."""
    import atheris

    warnings.simplefilter("ignore")
    with atheris.instrument_imports(include=["bayescope.cli", "bayescope.tables", "bayescope.storage"]):
        whole, read, altered = {"table": table, "posterior": posterior}[reader]()
    from bayescope.errors import BayescopeError

    path = Path(folder) / ("altered.csv" if reader == "table" else "altered.bayes")
    corpus = Path(folder) / CORPUS
    (corpus / "whole").write_bytes(whole)

    def one(content: bytes) -> None:
        path.write_bytes(content)
        with suppress(BayescopeError):
            read(path)

    options = {} if altered is None else {"custom_mutator": altered}
    atheris.Setup([sys.argv[0], str(corpus), *flags], one, **options)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
