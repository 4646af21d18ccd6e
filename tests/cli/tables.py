"""Tables for the command line, and the runner that types commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from typer.testing import CliRunner

from bayescope.cli import app


def run(*arguments: object, stdin: str | bytes | None = None) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)


def refused(result: Any, *messages: str) -> bool:
    """Whether the command ended as bad input does: one line on the error stream, nothing printed, code 2."""
    assert result.exit_code == 2, (result.output, result.exception)
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith("bayescope: ")
    assert "Traceback" not in result.stderr
    for message in messages:
        assert message in result.stderr
    return True


def mixed(rows: int = 90, seed: int = 0) -> pd.DataFrame:
    """Two columns of numbers, one of labels, gaps in both, a label and a number to predict."""
    source = np.random.default_rng(seed)
    age = source.normal(50, 12, rows).round(1)
    dose = source.gamma(2, 2, rows).round(2)
    colour = source.choice(["red", "blue", "green"], rows).astype(object)
    f = 0.15 * (age - 50) + (colour == "red") * 2.0
    frame = pd.DataFrame({"id": np.arange(rows), "age": age, "dose": dose, "colour": colour})
    frame["cost"] = (10 * f + source.normal(0, 3, rows)).round(2)
    frame["state"] = np.where(source.random(rows) < 1 / (1 + np.exp(-f)), "sick", "well")
    frame.loc[[3, 17], "dose"] = np.nan
    frame.loc[[5, 17], "colour"] = None
    return frame


def written(path: Path, content: str | bytes | pd.DataFrame) -> Path:
    """A file with this content; a frame in the format that the name asks for."""
    if isinstance(content, pd.DataFrame):
        if path.suffix == ".parquet":
            content.to_parquet(path, index=False)
        else:
            content.to_csv(path, index=False, sep="\t" if ".tsv" in path.name else ",")
        return path
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path
