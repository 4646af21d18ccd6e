"""Outputs that would replace something that is read, or lose what was there."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.attacks import Outcome

TABLE = "a,b,y\n" + "".join(f"{i % 7},{i % 5},{i % 2}\n" for i in range(40))


def command(*words: str) -> tuple[int, str]:
    """The command line's exit status and what it wrote to stderr."""
    call = [sys.executable, "-m", "bayescope", *words]
    done = subprocess.run(call, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stderr


def attacks(quick: bool) -> Iterator[Outcome]:
    """Of `fit` and `predict`, into their own input."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "rows"
        folder.mkdir()
        parts = [folder / "a.csv", folder / "b.csv"]
        for part in parts:
            part.write_text(TABLE)
        model = Path(name) / "model.bayes"
        command("fit", str(folder), "--target", "y", "--out", str(model))
        sources = [str(folder), str(folder / "*.csv")]
        for source in sources[:1] if quick else sources:
            for verb in (["predict", str(model), source], ["fit", source, "--target", "y"]):
                status, said = command(*verb, "--out", str(parts[1]))
                whole = all(part.read_text() == TABLE for part in parts)
                refused = whole and status == 2
                yield Outcome(
                    f"{verb[0]}: --out is a part of the input", int(refused), 0, int(not refused), said[-160:]
                )
