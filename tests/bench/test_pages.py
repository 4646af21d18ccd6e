"""A page of committed results says what the numbers beside it say."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bench import record, turns
from bench.suite import SUITE

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"
MADE = [path for path in sorted(RESULTS.rglob("*.json")) if '"processor"' in path.read_text(encoding="utf-8")]
TOLD = re.compile(r"`python -m [^`]+` wrote this on .*?, by code [^.]+\.")


def origins(value: Any) -> Iterator[Mapping[str, Any]]:
    """How results were made, wherever that is held in them."""
    if isinstance(value, dict):
        if "processor" in value:
            yield value
        for each in value.values():
            yield from origins(each)


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.relative_to(RESULTS).as_posix())
def test_a_page_tells_how_its_numbers_were_made(path: Path) -> None:
    told = TOLD.findall(path.with_suffix(".md").read_text(encoding="utf-8"))
    assert told
    assert set(told) <= {record.origin_text(origin) for origin in origins(json.loads(path.read_text(encoding="utf-8")))}


@pytest.mark.parametrize("name", [each.result for each in SUITE if each.compared])
def test_a_page_of_speeds_shows_the_ratios_beside_it(name: str) -> None:
    ratios = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["ratios"]
    assert turns.speed_table(ratios) in (RESULTS / f"{name}.md").read_text(encoding="utf-8")
