"""Prints pip constraints that hold each run-time dependency at its lower bound: `python tests/lowest.py`.

torch stays at the version of constraints.txt: its older builds for a CPU are not on the package index.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def bounds() -> dict[str, str]:
    """The lower bound of each dependency of the library and of its extras for users."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["nuts"], *extras["parquet"]]
    return dict(re.match(r"([A-Za-z0-9-]+)>=([0-9.]+)", line).groups() for line in lines)  # type: ignore[union-attr]


if __name__ == "__main__":
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    lowest = bounds() | {"torch": re.search(r"^torch==(.+)$", pinned, re.MULTILINE)[1]}  # type: ignore[index]
    sys.stdout.write("\n".join(f"{name}=={version}" for name, version in lowest.items()) + "\n")
