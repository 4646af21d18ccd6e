"""Every measured number in the prose and in tables stands in a page of results that its section links to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NUMBER = r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
# In a row of a table any decimal number counts as measured; that of a version or of a name does not.
ROW = re.compile(r"^\|.*$", flags=re.MULTILINE)
DECIMAL = re.compile(r"(?<![\w.^])((?:\d[\d,]*)?\.\d+(?:e[+-]?\d+)?)(?![\w.])")
# What only a measurement has: a time, a size, a gain, a share but for the usual levels of intervals; not 3 × 224 × 224.
UNIT = r"(?:ns|µs|ms|s|seconds?|minutes|hours?|[kMGT]i?B|nats|times|-?fold|x|×(?! \d)|%|forward passes|plain epochs)"
MEASURED = re.compile(rf"(?<![\w.,^/×-])(?<!× )(?!9[05] %)({NUMBER}) {UNIT}(?![\w/])")
LINK = re.compile(r"\]\((?:\.\./)*bench/results/([\w/.-]+\.md)[)#]")
# What stands under a heading of a page of results is shown in the site: <!-- results: curvature.md, Speed -->
SHOWN = re.compile(r"<!-- results: ([\w/.]+), (.+?) -->")
# What is counted, chosen or quoted, and not measured, is named in a comment of the section: <!-- not measured: 8 GB -->
STATED = re.compile(r"<!-- not measured: (.*?) -->", flags=re.DOTALL)


def sections(text: str) -> list[str]:
    """The text between headings, without code."""
    plain = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.split(r"^#+ .*$", re.sub(r"`[^`\n]*`", "", plain), flags=re.MULTILINE)


def number(told: str) -> tuple[float, int]:
    """Its value and its decimals: of 2.5e-4 five."""
    mantissa, _, exponent = told.replace(",", "").partition("e")
    return float(told.replace(",", "")), len(mantissa.partition(".")[2]) - int(exponent or 0)


def is_in(told: str, page: str) -> bool:
    """Whether a number of the page, rounded as it is told, is it; a number in the middle may be rounded to both."""
    value, decimals = number(told)
    most = 0.5 * 10.0**-decimals * (1.0 + 1e-6)
    return any(abs(number(other)[0] - value) <= most for other in re.findall(NUMBER, page))


def decimals_of_tables(section: str) -> list[str]:
    """The decimal numbers in the rows of tables."""
    return [match[1] for row in ROW.findall(section) for match in DECIMAL.finditer(row)]


def unfounded(text: str) -> list[str]:
    """Measured numbers of a text that no page has which their section links to."""
    found = []
    for section in sections(text):
        pages = "\n".join((ROOT / "bench" / "results" / name).read_text() for name in LINK.findall(section))
        stated, plain = " ".join(STATED.findall(section)), STATED.sub("", section)
        told = [match for match in MEASURED.finditer(plain) if match[0] not in stated]
        found += [match[0] for match in told if not is_in(match[1], pages)]
        chosen = re.findall(NUMBER, stated)
        found += [each for each in decimals_of_tables(plain) if each not in chosen and not is_in(each, pages)]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_measured_numbers_stand_in_a_page_of_results(page: Path) -> None:
    assert unfounded(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_is_shown_of_the_results_is_there(page: Path) -> None:
    shown = SHOWN.findall(page.read_text(encoding="utf-8"))
    missing = [
        f"{name}, {heading}"
        for name, heading in shown
        if f"\n## {heading}\n" not in (ROOT / "bench" / "results" / name).read_text(encoding="utf-8")
    ]
    assert missing == []


def test_a_number_without_a_source_is_seen() -> None:
    assert unfounded("It takes 3.14 s.") == ["3.14 s"]
    told = "Seconds are [here](../bench/results/curvature.md).\n\n## More\n\nAnd 99.87 MB."
    assert unfounded(told) == ["99.87 MB"]
    assert unfounded("It takes 3 MB. <!-- not measured: 3 MB -->") == []


def test_a_wrong_number_in_a_table_is_seen() -> None:
    link = "[Here](../bench/results/integrals.md)."
    right = f"{link}\n\n| sd | error |\n|---|---|\n| 0.1 | 6.7e-16 |\n| 1 | 1.2e-12 |\n"
    assert unfounded(right) == []
    assert unfounded(right.replace("6.7e-16", "6.8e-16")) == ["6.8e-16"]
    assert unfounded(right.replace("0.1", ".7173")) == [".7173"]
    assert unfounded(right.replace(link, "")) == ["0.1", "6.7e-16", "1.2e-12"]
    assert unfounded(right.replace(link, "## Elsewhere")) == unfounded(right.replace(link, ""))
    assert unfounded("| rate | 0.1 |\n\n<!-- not measured: 0.1 -->") == []
    assert unfounded("| rate | 0.1 |\n\n<!-- not measured: 0.15 -->") == ["0.1"]


def test_numbers_are_compared_as_they_are_told() -> None:
    assert is_in("0.08", "| 0.0751 |")
    assert is_in("3.72", "| 3.715 |")
    assert is_in("3.71", "| 3.715 |")
    assert not is_in("3.73", "| 3.715 |")
    assert not is_in("6.7e-16", "| 0.1 | 6.7e-15 |")
