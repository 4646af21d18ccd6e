"""Outputs that would replace what is read, mix what two processes write, or lose what was there."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from typer.testing import CliRunner

from bayescope.cli import app
from bayescope.cli.model_files import load_model
from bayescope.cli.opening import open_source
from bayescope.files import only_writer
from bench.attacks import Outcome

TABLE = "a,b,y\n" + "".join(f"{i % 7},{i % 5},{i % 2}\n" for i in range(40))
FIT = ("--target", "y", "--model", "mlp", "--posterior", "map", "--prior-precision", "1.0", "--set", "hidden=(6,)",
       "--set", "epochs=1500", "--set", "batch_size=8")  # fmt: skip
OF_ALL_ROWS = (*FIT, "--test-size", "0")
OTHER_OPTIONS: dict[str, tuple[str, ...]] = {
    "seed": ("--seed", "1"), "hidden": ("--set", "hidden=(5,)"), "lr": ("--set", "lr=0.5"),
    "prior precision": ("--prior-precision", "2.0"), "posterior": ("--posterior", "mc_dropout"),
    "test size": ("--test-size", "0.3"), "refit": ("--no-refit",), "dropped columns": ("--drop", "b"),
    "model": ("--model", "additive"),
}  # fmt: skip
# Lines of one column, each a record: cells that look empty, line breaks and separators in quotes, other white space.
SPACES = (" ", "  ", "\t", " \t")
LINES = ('""', '" "', "1", "NA", '"a,b"', '"x\ny"', '"\n"', "\xa0", "\x0c", '"\x0c"', "\x0b", "\u2028", '"q""q"')
SWAP = """
import itertools, os, shutil, sys
*models, place = sys.argv[1:]
for model in itertools.cycle(models):
    shutil.copy(model, place + ".next")
    os.replace(place + ".next", place)
"""


def command(*words: object) -> tuple[int, str]:
    """The command line's exit status and what it wrote to stderr."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.stderr


def attacks(quick: bool) -> Iterator[Outcome]:
    """Outputs among the inputs, fits that are killed and carried on, two writers, files under swaps, odd CSV files."""
    for attack in (_among_the_inputs, _under_swaps, _one_column):
        with tempfile.TemporaryDirectory() as folder:
            yield from attack(Path(folder), quick)
    if not quick:
        for attack in (_killed, _two_writers):
            with tempfile.TemporaryDirectory() as folder:
                yield from attack(Path(folder))


def _among_the_inputs(place: Path, quick: bool) -> Iterator[Outcome]:
    """`fit` and `predict` into their own input."""
    folder = place / "rows"
    folder.mkdir()
    parts = [folder / "a.csv", folder / "b.csv"]
    for part in parts:
        part.write_text(TABLE)
    model = place / "model.bayes"
    command("fit", folder, "--target", "y", "--model", "linear", "--out", model)
    for source in [folder] if quick else [folder, folder / "*.csv"]:
        for verb in (["predict", model, source], ["fit", source, "--target", "y"]):
            status, said = command(*verb, "--out", parts[1])
            refused = status == 2 and all(part.read_text() == TABLE for part in parts)
            yield Outcome(f"{verb[0]}: --out is a part of the input", int(refused), 0, int(not refused), said[:160])


def _under_swaps(place: Path, quick: bool) -> Iterator[Outcome]:
    """Loads of a file that another process keeps replacing by one of two models."""
    models, file = [], place / "m.bayes"
    for name in ("first", "second"):
        table = place / f"{name}.csv"
        table.write_text(TABLE.replace("a,b", f"{name},b"))
        models.append(place / f"{name}.bayes")
        command("fit", table, "--target", "y", "--model", "linear", "--out", models[-1])
    shutil.copy(models[0], file)
    swapping = subprocess.Popen([sys.executable, "-c", SWAP, *map(str, models), str(file)])
    try:
        whole = [_is_whole(file) for _ in range(40 if quick else 600)]
    finally:
        swapping.kill()
        swapping.wait()
    yield Outcome("load under swaps of the file", 0, sum(whole), whole.count(False))


def _is_whole(file: Path) -> bool:
    model, table = load_model(file)
    return bool(list(model.feature_names_in_) == list(table.kinds))


def _one_column(place: Path, quick: bool) -> Iterator[Outcome]:
    """Tables of one column, read in blocks: as many rows come out as there are records."""
    source, right, wrong = random.Random(0), 0, 0
    for turn in range(40 if quick else 500):
        cells = [source.choice(LINES + SPACES) for _ in range(source.randrange(1, 30))]
        end = source.choice(("\n", "\r\n"))
        table = place / f"{turn}.csv"
        table.write_bytes("".join(line + end for line in ["a", *cells]).encode())
        for chunk in (1, 2, 7, 100):
            blocks = [block.copied(["a"]) for block in open_source(table).blocks(chunk)]
            fine = sum(map(len, blocks)) == len(cells)
            right, wrong = right + fine, wrong + (not fine)
        table.unlink()
    yield Outcome("rows of one column, in chunks of 1, 2, 7 and all", 0, right, wrong)


def _killed(place: Path, kills: int = 3) -> Iterator[Outcome]:
    """Fits that are killed at a random time: carried on with other options they are refused, with the same right."""
    table, whole, out = place / "table.csv", place / "whole.bayes", place / "cut.bayes"
    table.write_text(TABLE)
    source, right, tries = random.Random(0), 0, 0
    refusals, last = dict.fromkeys(OTHER_OPTIONS, 0), dict.fromkeys(OTHER_OPTIONS, "")
    for fit in [FIT, OF_ALL_ROWS] * kills:
        command("fit", table, *fit, "--out", whole)
        process = _begun(fit, table, out)
        time.sleep(source.random())
        process.kill()
        process.wait()
        kept = {file: file.read_bytes() for file in _checkpoints(out)}
        if not kept:  # it had ended
            out.unlink()
            continue
        tries += 1
        for name, options in OTHER_OPTIONS.items():
            words = FIT[:2] if name == "model" else fit
            status, said = command("fit", table, *words, *options, "--resume", "--out", out)
            last[name] = said[:160]
            refusals[name] += status == 2 and said.count("\n") == 1 and not out.exists()
            for file, content in kept.items():
                file.write_bytes(content)
            out.unlink(missing_ok=True)
        command("fit", table, *fit, "--resume", "--out", out)
        right += out.exists() and out.read_bytes() == whole.read_bytes()
        out.unlink(missing_ok=True)
    for name, refused in refusals.items():
        yield Outcome(f"a killed fit is carried on with another {name}", refused, 0, tries - refused, last[name])
    yield Outcome("a killed fit is carried on with the same options", 0, right, tries - right)


def _two_writers(place: Path) -> Iterator[Outcome]:
    """A second fit to the same file, with `--resume` and another seed or without, while the first one runs."""
    table, whole, out = place / "table.csv", place / "whole.bayes", place / "m.bayes"
    table.write_text(TABLE)
    command("fit", table, *OF_ALL_ROWS, "--out", whole)
    for name, options in {"": (), " with --resume": ("--resume",)}.items():
        process = _begun(OF_ALL_ROWS, table, out)
        os.kill(process.pid, signal.SIGSTOP)
        status, said = command("fit", table, *OF_ALL_ROWS, "--seed", "1", *options, "--out", out)
        os.kill(process.pid, signal.SIGCONT)
        fine = process.wait() == 0 and out.read_bytes() == whole.read_bytes() and not _checkpoints(out)
        refused = status == 2 and said.count("\n") == 1 and fine
        yield Outcome(f"a second fit to the same file{name}", int(refused), 0, int(not refused), said[:160])
        out.unlink(missing_ok=True)
    model, folder = place / "additive.bayes", place / "folder"
    command("fit", table, "--target", "y", "--set", "epochs=5", "--out", model)
    for words, file in ((["effects", model], "effects.csv"), (["compare", table, "--target", "y"], "report.html")):
        with only_writer("--out", folder / file):
            status, said = command(*words, "--out", folder)
        refused = status == 2 and said.count("\n") == 1 and not folder.exists()
        yield Outcome(f"{words[0]} into a folder that another writes", int(refused), 0, int(not refused), said[:160])


def _begun(fit: Sequence[str], table: Path, out: Path) -> subprocess.Popen[bytes]:
    """A fit in a process of its own that has written its first checkpoint."""
    words = [sys.executable, "-m", "bayescope", "fit", str(table), *fit, "--out", str(out)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not _checkpoints(out):
        time.sleep(0.002)
    return process


def _checkpoints(out: Path) -> list[Path]:
    return list(out.parent.glob(f"{out.name}*.checkpoint"))
