"""What the prose shows happens: Python and command lines run in order, and print what stands below them.

A page is one session in a folder of its own. A Python block that imports bayescope begins anew; any other goes on
from the block above. A `text` block right below a Python block is what that one prints, up to the last digits.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from bayescope.cli import app

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]
FENCE = re.compile(r"^```(python|console)\n(.*?)^```$(?:\n\n?```text\n(.*?)^```$)?", flags=re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"[-−+]?(?:\d[\d,]*)(?:\.\d*)?(?:e[-+]?\d+)?|[-−+]?\.\d+")
# What samples or draws for long, or serves until Ctrl-C, is not run, and tested elsewhere: here its options are read.
SLOW = {"compare", "explore", "gallery"}
# Packages that users come from. They lie in the environment of the benchmarks (`make test-peers`).
PEERS = {"bambi", "interpret", "laplace", "mapie", "ngboost", "numpyro", "pymc", "pyro"}
# Real tables that pages read from the network: where the folder of reference data has them, and how they differ there.
TABLES: dict[str, tuple[str, dict[str, Any]]] = {
    "https://archive.ics.uci.edu/ml/machine-learning-databases/statlog/german/german.data": (
        "german.csv",
        {"sep": ","},
    ),
    "https://raw.githubusercontent.com/jbrownlee/Datasets/master/pima-indians-diabetes.data.csv": (
        "pima-indians-diabetes.csv",
        {},
    ),
}


class Block(NamedTuple):
    """A piece of a page that runs.

    Attributes:
        language: "python" or "console".
        code: what is run.
        shown: what the page says that it prints; "" where it says nothing.
        place: the page, and the line of its first line of code.
    """

    language: str
    code: str
    shown: str
    place: str


def blocks(page: Path) -> list[Block]:
    """The blocks of a page in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(found[1], found[2], found[3] or "", f"{page.name}:{text.count(chr(10), 0, found.start()) + 2}")
        for found in FENCE.finditer(text)
    ]


# The README runs from an installed wheel, in test_wheel.py.
SESSIONS = [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in PAGES[1:] if blocks(page)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty place to work in but for the tables that command lines speak of."""
    write_tables(tmp_path)
    monkeypatch.chdir(tmp_path)


def write_tables(folder: Path) -> None:
    """Writes the tables that command lines speak of."""
    source = np.random.default_rng(0)
    X = pd.DataFrame(source.normal(size=(60, 2)).round(3), columns=["age", "dose"])
    X.assign(y=(X["age"] + source.normal(size=60) > 0).astype(int)).to_csv(folder / "table.csv", index=False)
    X.assign(visits=source.poisson(np.exp(X["age"]))).to_csv(folder / "visits.csv", index=False)
    X.to_csv(folder / "new.csv", index=False)
    other = X[::-1].assign(y=(X["age"] > 0).astype(int))
    other.to_csv(folder / "other.csv", index=False)
    shutil.copy(ROOT / "docs" / "cases" / "bike_days.csv", folder)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Tables of an address are read from the copy beside the repository; where there is none, the page is skipped."""
    read = pd.read_csv

    def read_copy(source: Any, *arguments: Any, **options: Any) -> Any:
        if source in TABLES:
            place, changes = TABLES[source]
            source, options = request.getfixturevalue("reference_data") / "tabular" / place, options | changes
        return read(source, *arguments, **options)

    monkeypatch.setattr(pd, "read_csv", read_copy)


@pytest.mark.usefixtures("folder", "no_network")
@pytest.mark.global_rng  # an example may make a layer, whose initial weights come from the global generator
@pytest.mark.parametrize("page", SESSIONS)
def test_page_runs(page: Path) -> None:
    absent = {peer for block in blocks(page) for peer in absent_peers(block)}
    run_page(page)
    if absent:
        pytest.skip(f"all blocks ran but those of {', '.join(sorted(absent))}: `make test-peers` runs them")


def absent_peers(block: Block) -> set[str]:
    """The packages of others that a block imports and that are not installed."""
    asked = re.findall(r"^ *(?:from|import) (\w+)", block.code, flags=re.MULTILINE)
    return {peer for peer in PEERS.intersection(asked) if find_spec(peer) is None}


def run_page(page: Path) -> None:
    """Runs the blocks of a page in order, in the working directory."""
    names: dict[str, Any] = {}
    for block in blocks(page):
        if block.language == "console":
            run_commands(block)
            continue
        if absent_peers(block):
            continue
        if "import bayescope" in block.code:
            names = {"__name__": "example"}
        said = run_python(block, names)
        assert said, f"{block.place}: an example shows its answer"
        assert not block.shown or differences(said, block.shown) == [], f"{block.place} prints\n{said}"


def run_python(block: Block, names: dict[str, Any]) -> str:
    """Runs code in a namespace, with warnings as errors, and returns what it prints."""
    said = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(said):
        warnings.simplefilter("error")
        if any(f"import {peer}" in block.code or f"from {peer}" in block.code for peer in PEERS):
            warnings.simplefilter("ignore")  # theirs
        # The import of PyTorch Geometric; Python shows no user a DeprecationWarning that comes from a package.
        warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", DeprecationWarning)
        exec(compile(block.code, block.place, "exec"), names)
    return said.getvalue()


def run_commands(block: Block) -> None:
    """Runs the lines that call bayescope, those with a pipe in a shell; of `$ make` the targets have to be there."""
    for line in re.findall(r"^\$ (.*)$", block.code.replace("\\\n", " "), flags=re.MULTILINE):
        program, *arguments = shlex.split(line, comments=True)
        if "|" in arguments:
            path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
            done = subprocess.run(
                ["bash", "-c", line], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
            )
            assert (done.returncode, done.stderr) == (0, ""), f"{block.place}: {line}"
        elif program == "make":
            rules = (ROOT / "Makefile").read_text(encoding="utf-8")
            assert all(re.search(rf"^{target}:", rules, flags=re.MULTILINE) for target in arguments), block.place
        elif program == "bayescope" and arguments[0] in SLOW:
            commands: Any = typer.main.get_command(app)
            commands.commands[arguments[0]].make_context(arguments[0], arguments[1:])
        elif program == "bayescope":
            result = CliRunner().invoke(app, arguments)
            assert result.exit_code == 0, f"{block.place}: {line}\n{result.output}\n{result.exception!r}"


def differences(said: str, shown: str) -> list[str]:
    """Words that are not alike, and numbers that differ by more than 10 % and by more than their last digits."""
    words, expected = said.split(), shown.split()
    if len(words) != len(expected):
        return [f"{len(words)} words, not {len(expected)}"]
    return [f"{word} for {other}" for word, other in zip(words, expected, strict=True) if not alike(word, other)]


def alike(word: str, other: str) -> bool:
    """Whether two words are the same but for the last digits of the numbers in them."""
    if NUMBER.sub("#", word) != NUMBER.sub("#", other):
        return False
    return all(near(*pair) for pair in zip(NUMBER.findall(word), NUMBER.findall(other), strict=True))


def near(number: str, other: str) -> bool:
    """Whether a number is within 10 %, or two units of the last digit, of another."""
    digit = 10.0 ** -len(other.partition("e")[0].partition(".")[2])
    value, expected = (float(text.replace(",", "").replace("−", "-")) for text in (number, other))
    return abs(value - expected) <= max(0.1 * abs(expected), 2 * digit * ("." in other)) + 1e-12


@pytest.mark.parametrize(
    ("said", "shown", "same"),
    [
        ("NLL 0.2034 [1. 2.]", "NLL 0.2051 [1. 2.]", True),
        ("NLL 0.2034", "NLL 0.2600", False),
        ("NLL −0.0012", "NLL −0.0010", True),
        ("12 rows", "16 rows", False),
        ("a 1", "b 1", False),
        ("1 2", "1", False),
    ],
)
def test_what_is_shown_is_compared(said: str, shown: str, same: bool) -> None:
    assert (differences(said, shown) == []) is same


LINKS = [
    pytest.param(page, target, id=f"{page.relative_to(ROOT).as_posix()}-{target}")
    for page in PAGES
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    if "://" not in target and not target.startswith("gallery/")  # made with the site, which is tested for its links
]


@pytest.mark.parametrize(("page", "target"), LINKS)
def test_link_leads_somewhere(page: Path, target: str) -> None:
    assert (page.parent / target).exists()


def test_readme_shows_each_kind_of_user_an_example() -> None:
    assert (ROOT / "README.md").read_text(encoding="utf-8").count("```python") >= 3
