"""SECURITY.md promises what tests hold: each promise names its tests, and these are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "SECURITY.md").read_text()


def test_every_test_that_a_promise_names_is_there():
    named = re.findall(r"`(tests/[\w/]+\.py)`", PAGE)
    assert len(set(named)) >= 10
    for name in named:
        assert "\ndef test_" in (ROOT / name).read_text(), name


def test_every_promise_names_one():
    promises = PAGE.partition("## Not promised")[0].split("\n- ")[1:]
    assert len(promises) > 10
    assert [promise[:60] for promise in promises if "tests/" not in promise and "lock.txt" not in promise] == []
