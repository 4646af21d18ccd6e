"""Prose and messages are free of the dialect that STYLE.md replaces: words and turns that a reader stumbles over.

Only what has no good use in these texts is a pattern: "that of" or "the same" can be right, and are left to the reader.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").glob("**/*.md"))
MODULES = sorted((ROOT / "src").glob("**/*.py"))


class Turn(NamedTuple):
    """A turn of phrase that is not plain English.

    Attributes:
        pattern: what finds it.
        write: what to write in its place, or why it stops a reader.
        example: a sentence that has it.
        plain: a sentence that is close to it, and good.
    """

    pattern: str
    write: str
    example: str
    plain: str


TURNS = [
    Turn(r"\bso-manieth\b", "'every k-th'", "Every so-manieth row is kept.", "Every k-th row is kept."),
    Turn(r"\bmend(?:s|ed|ing)?\b", "'fix'", "Mend it.", "Recommend it."),
    Turn(r"\banew\b", "'again', 'new'", "The chain begins anew.", "The chain begins again."),
    Turn(r"\bdear(?:er|est)\b", "'more expensive'", "From the cheapest to the dearest.", "From cheap to expensive."),
    Turn(r"\bforet(?:ells?|old)\b", "'predict'", "It foretells what log Z gains.", "It predicts what log Z gains."),
    Turn(r"\bbut for\b", "'except', 'apart from'", "All but for the last.", "All except the last."),
    Turn(r"\bspeaks? of\b", "'describe', 'mean'", "The report speaks of columns.", "The report describes columns."),
    Turn(
        r"\b(?:to|can|could|may) be had\b|\b(?:is|are|was|were) at hand\b",
        "'available', 'known'",
        "Where the truth can be had.",
        "Where the truth is known.",
    ),
    Turn(r"\bwhat (?:is|was) there\b", "the name of what exists", "It leaves out what is there.", "What is a prior?"),
    Turn(
        r"(?<!there )\b(?:is|are) none\b(?! of)",
        "'is not allowed', 'is not one'",
        "A float is none.",
        "There is none. These are none of them.",
    ),
    Turn(
        r"(?<!there )(?<!here )\b(?:is|are|was|were) no (?!longer|more|less|better|worse|fewer|such|part\b)(?=[a-z])",
        "'is not a'",
        "1 of 94 cells are no numbers.",
        "There are no numbers. It is no longer slow.",
    ),
    Turn(
        r"\btold (?:from|without)\b",
        "'reported', 'distinguished'",
        "Pairs are told without their features.",
        "Pairs are reported without their features. It is told what to do.",
    ),
    Turn(r"\bwhat tells\b", "'X shows'", "What tells is the decrement.", "The decrement shows this."),
    Turn(
        r"\brefused by name\b",
        "'raises an error that names it'",
        "Such a layer is refused by name.",
        "Such a layer raises an error.",
    ),
    Turn(r"\bby the caller's word\b", "'as the caller says'", "By the caller's word, no.", "The caller decides."),
    Turn(
        r"\bthe one (?:and|or) the other\b",
        "the names of both",
        "What tells the one and the other.",
        "What distinguishes bias from variance.",
    ),
    Turn(
        r"\b(?:goes|go|went) on (?:where|from|as)\b",
        "'resumes', 'continues'",
        "It goes on where it was stopped.",
        "It resumes where it stopped. It goes on.",
    ),
    Turn(
        r"\b(?:nats|bytes|numbers?|networks?|draws?|labels?|values?|gradients?|steps?|curves?)"
        r" a (?:row|feature|column|cell|weight|class|layer|batch|draw|prediction)\b",
        "'per' or 'for each'",
        "It adds 0.007 nats a row.",
        "It adds 0.007 nats per row. It gives labels and a row.",
    ),
    Turn(
        r"(?:^|(?<=[.!?:] ))(?-i:Of) (?!course\b)",
        "the subject first: the sentence is inverted",
        "Held: Of A⁻¹ g by blocks, their answers.",
        "All blocks: of each its answer. Of course.",
    ),
    Turn(
        r";[^.;:()]*;[^.;()]*\.",
        "one thought a sentence: two semicolons join three",
        "It is read; it is cut; it is kept.",
        "It is read; it is kept. Two pairs (Gal 2016; Immer 2021; Hinton 1993).",
    ),
]

# Words of a sentence, code as one: the most on any page, and the most on average.
LONGEST, MEAN = 45, 20
SENTENCE = r"(?<=[.!?:])\s+(?=[A-Z*]|code\b)"


def prose(page: Path) -> Iterator[str]:
    """The paragraphs, items and cells of a page in one line each, without code."""
    text = re.sub(r"^(?:---\n.*?\n---\n)", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = re.sub(r"^ *```.*?^ *```$|<!--.*?-->|\$\$.*?\$\$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`\n]*`|\$[^$\n]+\$", "code", text)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*#|]|\d+\.) ?)|(?<!\\)\|", text):
        yield " ".join(re.sub(r"^\s*(?:[-*#]+|\d+\.)\s", "", block).split())


def messages(module: Path) -> Iterator[str]:
    """The texts of errors and warnings, with a stand-in for what is put into them."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        called = node.exc if isinstance(node, ast.Raise) else node
        if not isinstance(called, ast.Call) or not (isinstance(node, ast.Raise) or _name(called).startswith("warn")):
            continue
        for argument in called.args:
            yield "".join(_text(part) for part in getattr(argument, "values", [argument]))


def _name(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _text(part: ast.expr) -> str:
    return part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "X"


def found(texts: Iterator[str]) -> list[str]:
    """A line for each turn in the texts: what was found, and what to write."""
    return [
        f"{text[max(0, match.start() - 40) : match.end() + 20]!r}: write {turn.write}"
        for text in texts
        for turn in TURNS
        for match in re.finditer(turn.pattern, text, flags=re.IGNORECASE)
    ]


@pytest.mark.parametrize("path", [*PAGES, *MODULES], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_prose_is_plain(path: Path) -> None:
    complaints = found(prose(path) if path.suffix == ".md" else messages(path))
    assert complaints == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_sentences_can_be_read_at_once(page: Path) -> None:
    lengths = {sentence: len(sentence.split()) for text in prose(page) for sentence in re.split(SENTENCE, text)}
    assert [sentence for sentence, words in lengths.items() if words > LONGEST] == []
    counted = [words for words in lengths.values() if words >= 5]
    assert not counted or sum(counted) / len(counted) <= MEAN


@pytest.mark.parametrize("turn", TURNS, ids=lambda turn: turn.pattern)
def test_a_turn_is_found_and_plain_english_is_not(turn: Turn) -> None:
    assert re.search(turn.pattern, turn.example, flags=re.IGNORECASE)
    assert not re.search(turn.pattern, turn.plain, flags=re.IGNORECASE)


def test_texts_are_read_without_code(tmp_path: Path) -> None:
    page, module = tmp_path / "page.md", tmp_path / "module.py"
    page.write_text("# A title\n\n```python\nmend\n```\n\nOne `mend` line,\ntwo lines.\n\n- an item\n\n| a | b |\n")
    assert [text for text in prose(page) if text] == ["A title", "One code line, two lines.", "an item", "a", "b"]
    module.write_text('x = "mend"\nraise InputError(f"y: got {x}. " "Mend it.")\nwarn_once(f"{x} is none")\n')
    assert sorted(messages(module)) == ["X is none", "y: got X. Mend it."]
