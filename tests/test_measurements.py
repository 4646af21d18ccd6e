"""Every measured number in the prose stands in a page of results that its section links to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NUMBER = r"\d[\d,]*(?:\.\d+)?"
# What only a measurement has: a time, a size, a gain, a share but for the usual levels of intervals; not 3 × 224 × 224.
UNIT = r"(?:ns|µs|ms|s|seconds|minutes|hours|kB|MB|GB|TB|nats|times|×(?! \d)|%)"
MEASURED = re.compile(rf"(?<![\w.,^/×-])(?<!× )(?!9[05] %)({NUMBER}) {UNIT}(?![\w/])")
LINK = re.compile(r"\]\((?:\.\./)*bench/results/([\w/.-]+\.md)[)#]")
# What is counted, chosen or quoted, and not measured, is named in a comment of the section: <!-- not measured: 8 GB -->
STATED = re.compile(r"<!-- not measured: (.*?) -->", flags=re.DOTALL)


def sections(text: str) -> list[str]:
    """The text between headings, without code."""
    plain = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.split(r"^#+ .*$", re.sub(r"`[^`\n]*`", "", plain), flags=re.MULTILINE)


def number(told: str) -> tuple[float, int]:
    """Its value and its decimals."""
    return float(told.replace(",", "")), len(told.partition(".")[2])


def is_in(told: str, page: str) -> bool:
    """Whether a number of the page, rounded as it is told, is it."""
    value, decimals = number(told)
    return any(abs(round(number(other)[0], decimals) - value) < 1e-9 for other in re.findall(NUMBER, page))


def unfounded(text: str) -> list[str]:
    """Measured numbers of a text that no page has which their section links to."""
    found = []
    for section in sections(text):
        pages = "\n".join((ROOT / "bench" / "results" / name).read_text() for name in LINK.findall(section))
        stated = " ".join(STATED.findall(section))
        told = [match for match in MEASURED.finditer(STATED.sub("", section)) if match[0] not in stated]
        found += [match[0] for match in told if not is_in(match[1], pages)]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_measured_numbers_stand_in_a_page_of_results(page: Path) -> None:
    assert unfounded(page.read_text(encoding="utf-8")) == []


def test_a_number_without_a_source_is_seen() -> None:
    assert unfounded("It takes 3.14 s.") == ["3.14 s"]
    told = "Seconds are [here](../bench/results/curvature.md).\n\n## More\n\nAnd 99.87 MB."
    assert unfounded(told) == ["99.87 MB"]
    assert unfounded("It takes 3 MB. <!-- not measured: 3 MB -->") == []
