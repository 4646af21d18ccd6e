"""Parquet files whose bytes were altered, or whose columns have types that no model takes: read whole, or one line."""

from __future__ import annotations

import io
import random
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import bayescope as bs
from bayescope.cli.opening import open_source
from bayescope.cli.training_table import Roles, read_training_table
from bayescope.errors import BayescopeError
from bayescope.tables.reading import read_table
from bench.attacks import Outcome, apart
from tests.tables.parquet import COLUMNS, mutant, table, whole, written

MUTANTS, BATCH = 10_000, 250


def blocks(path: Path) -> None:
    """As `open_table` reads it."""
    found = bs.open_table(path)
    _check(sum(len(block[0].values) for block in found.blocks()), found.rows)


def training(path: Path) -> None:
    """As `fit` reads it."""
    read_training_table(open_source(path, again=True), Roles(target="state"))


def kept(path: Path) -> None:
    """As `predict` copies its columns."""
    source, rows = open_source(path), 0
    for block in source.blocks(7):
        block.copied(source.header).to_csv(io.StringIO())
        rows += block.rows
    _check(rows, bs.open_table(path).rows)


READERS: dict[str, Callable[[Path], None]] = {"open_table": blocks, "fit": training, "predict": kept}


def _check(found: int, expected: int) -> None:
    if found != expected:
        raise AssertionError(f"{found} rows of {expected}")


def outcome(work: Callable[[], object]) -> tuple[str, str]:
    """Whether an attack was refused, or went right or wrong, and the words of the error."""
    try:
        work()
    except BayescopeError as error:
        return ("refused" if "\n" not in str(error) else "wrong"), str(error)
    except Exception as error:  # noqa: BLE001 - an error of others is what this looks for
        return "wrong", f"{type(error).__name__}: {error}"
    return "right", ""


def batch(path: Path, first: int, count: int) -> tuple[Counter[tuple[str, str]], str]:
    """What came of altered files, by reader, and the words of something that went wrong."""
    warnings.simplefilter("ignore")
    counts, said, files = Counter[tuple[str, str]](), "", whole()
    for seed in range(first, first + count):
        source = random.Random(seed)
        path.write_bytes(mutant(source.choice(files), source))
        for name, read in READERS.items():
            what, words = outcome(partial(read, path))
            counts[name, what] += 1
            said = words if what == "wrong" else said
    return counts, said


def altered(count: int, path: Path) -> Iterator[Outcome]:
    """Altered files in batches, each in a process of its own: a crash ends no more than its batch."""
    counts, said = Counter[tuple[str, str]](), ""
    for first in range(0, count, BATCH):
        answer = apart(partial(batch, path, first, min(BATCH, count - first)))
        if isinstance(answer, str):
            counts.update({(name, "wrong"): 1 for name in READERS})
            said = answer
        else:
            counts += answer[0]
            said = answer[1] or said
    for name in READERS:
        each = {what: counts[name, what] for what in ("refused", "right", "wrong")}
        yield Outcome(f"{name}: altered bytes", **each, said=said[:160] if each["wrong"] else "")


def typed(path: Path) -> Iterator[Outcome]:
    """A column of each type, to each reader and as a table of pyarrow's in memory."""
    for kind, (column, right) in COLUMNS.items():
        content = table().select(["age", "state"]).append_column("x", column)
        path.write_bytes(written(content))
        works = [partial(blocks, path), partial(training, path), partial(read_table, content)]
        found = [outcome(work) for work in works]
        expected = "right" if right else "refused"
        wrong = [words for what, words in found if what != expected]
        counts = {expected: len(found) - len(wrong), "wrong": len(wrong)}
        yield Outcome(f"a column of {kind}", **counts, said=wrong[0][:160] if wrong else "")


def attacks(quick: bool) -> Iterator[Outcome]:
    """Bytes and types; fewer bytes of a quick run."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.parquet"
        yield from typed(path)
        yield from altered(BATCH // 2 if quick else MUTANTS, path)
