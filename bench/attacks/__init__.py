"""Attacks from outside: each group is a file whose `attacks(quick)` yields what was tried and what came.

An outcome counts as right where the answer is the right one and nothing of the user's is lost, as refused where one
line of the library's own says why not, and as wrong otherwise.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import NamedTuple

GROUPS = tuple(sorted(group.name for group in pkgutil.iter_modules(__path__)))


class Outcome(NamedTuple):
    """What came of one attack, tried a number of times."""

    attack: str
    refused: int = 0
    right: int = 0
    wrong: int = 0
    said: str = ""


def run(quick: bool) -> dict[str, list[dict[str, object]]]:
    """All groups, one after another."""
    return {
        group: [outcome._asdict() for outcome in importlib.import_module(f"bench.attacks.{group}").attacks(quick)]
        for group in GROUPS
    }
