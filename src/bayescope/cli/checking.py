"""`bayescope check`: all that is wrong or suspicious with a table at once, and the command that fits it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from rich.console import RenderableType

from bayescope.cli.answer import answer, verbatim
from bayescope.cli.arrow_source import large, several
from bayescope.cli.findings import Finding, flag, shell_word
from bayescope.cli.header import listed, shortened
from bayescope.cli.opening import STANDARD
from bayescope.cli.problems import collected
from bayescope.cli.source import Source
from bayescope.cli.suspicious import (
    code,
    constants,
    gaps,
    leak,
    multiples,
    repeated_rows,
    row_number,
    stand_in,
    twins,
    variants,
    words_for_missing,
    zeros,
)
from bayescope.cli.target import Target
from bayescope.cli.training_table import Examined, Roles, examine, held_out_rows, opened_table
from bayescope.estimators.additive_reading import MOST_FEATURES
from bayescope.progress import progress_bar
from bayescope_command.app import CheckOptions

# Names that a target often has; else it is the last column.
TARGETS = ("target", "y", "label", "class", "outcome", "response")
# The share of rows that a fit holds out by default.
HELD_OUT = 0.2
# More whole numbers than this, some of which occur once, are probably counts or ratings and not classes.
FEW_CLASSES = 4
# How many letters of the suggested command stand in a line.
WIDTH = 88
# Letters of a column's name beside a bar.
SHORT = 20


def check_table(options: CheckOptions) -> None:
    """Prints what is wrong or suspicious with a table, and a command that fits it.

    Raises:
        InputError: if the table cannot be read, or an option names no column of it.
    """
    source, _ = opened_table(options.table, options)
    target = options.target or _guessed(source.header)
    found = examine(source, Roles.of(options, target), task=options.task)
    findings = [*found.problems, *_suspicions(source, found)]
    dropped = {value for each in findings if each.suggested and each.option == "--drop" for value in each.values}
    linear = len(set(found.roles.features(source)) - dropped) > MOST_FEATURES
    command = _command(options, target, findings, linear=linear)
    facts: dict[str, Any] = {
        "table": source.name,
        "rows": found.rows,
        "columns": len(source.header),
        "target": target,
        "target_guessed": options.target is None,
        "kinds": {name: kind for name, kind in found.kinds.items() if name in found.columns},
        "notes": list(source.notes),
        "findings": [
            {"refused": each.refused, "text": each.text, "flag": each.flag or None, "suggested": each.suggested}
            for each in findings
        ],
        "command": " ".join(command),
    }
    lines = _lines(facts, found, findings, command)
    answer(facts, *lines, as_json=options.as_json)


def _guessed(header: Sequence[str]) -> str:
    """The column that is probably to be predicted."""
    usual = {name.casefold(): name for name in reversed(header)}
    return next((usual[name] for name in TARGETS if name in usual), header[-1])


def _suspicions(source: Source, found: Examined) -> Iterator[Finding]:
    """What may mislead a fit, in the columns that have no problem."""
    target = found.target
    worse = {problem.about for problem in found.problems}
    names = [name for name in found.roles.features(source) if name in found.columns and name not in worse]
    columns = {name: found.columns[name] for name in names}
    numbers = {name: values for name, values in columns.items() if found.kinds[name] == "numeric"}
    reported: set[str] = set()
    for each in [*constants(columns), *twins(columns, found.kinds)]:
        reported.update(each.values)
        yield each
    numbers = {name: values for name, values in numbers.items() if name not in reported}
    for each in multiples(numbers):
        reported.update(each.values)
        yield each
    written = _written(source, [name for name, values in numbers.items() if (values % 1 == 0).any()])
    left = [name for name in names if name not in reported]
    with progress_bar("checking") as report:
        for place, name in enumerate(left):
            report(place, len(left), f"column {shortened(name, SHORT)}")
            yield from _of_column(name, columns[name], found, written.get(name, ()))
    yield from words_for_missing({name: values for name, values in columns.items() if name not in numbers})
    yield from gaps(columns)
    if target is not None:
        yield from _of_target(found, target)
        if repeated := repeated_rows(columns, target):
            yield repeated


def _of_column(name: str, values: np.ndarray, found: Examined, cells: Sequence[str]) -> Iterator[Finding]:
    """What is suspicious with one feature: the first thing that makes it useless, or all others."""
    kind, target = found.kinds[name], found.target
    if target is not None and (leaking := leak(name, values, kind, target)):
        yield leaking
        return
    if kind == "categorical":
        if spelled := variants(name, [label for label in dict.fromkeys(values) if label is not None]):
            yield spelled
        return
    if numbered := row_number(name, values):
        yield numbered
        return
    if replaced := stand_in(name, values) or zeros(name, values):
        yield replaced
    if (
        target is not None
        and name != (found.roles.added or ("", ""))[1]
        and (coded := code(name, values, cells, target))
    ):
        yield coded


def _of_target(found: Examined, target: Target) -> Iterator[Finding]:
    if target.remark:
        name, sure = target.suggests
        yield Finding(f"target {target.name!r}: {target.remark}.", "--likelihood", (name,), suggested=sure)
    gone = found.rows - len(found.places)
    if gone:
        yield Finding(f"target {target.name!r}: {gone} of {found.rows} rows have none, and are left out.")
    problems: list[str] = []
    with collected(problems):
        held_out_rows(target, HELD_OUT, 0)
    for problem in problems:
        if target.reason and len(target.classes) > FEW_CLASSES:
            text = f"{problem} If {target.name} is a number and not a class: --task regression."
            yield Finding(text, "--task", ("regression",), refused=True, suggested=True)
        else:
            yield Finding(problem, "--test-size", ("0",), refused=True, suggested=True)


def _written(source: Source, names: Sequence[str]) -> dict[str, list[str]]:
    """The different cells of columns of numbers as they stand in text, as far as they begin with a zero."""
    found: dict[str, dict[str, None]] = {name: {} for name in names}
    for block in source.blocks(65_536, names) if names else ():
        frame = block.copied(names)
        for name in names:
            if frame[name].dtype.kind not in "iufM":
                cells = map(str, frame[name].unique())  # a regular expression takes ten times as long
                found[name].update((cell, None) for cell in cells if cell[:1] == "0" and cell[1:].isdecimal())
    return {name: list(cells) for name, cells in found.items()}


def _command(options: CheckOptions, target: str, findings: Sequence[Finding], *, linear: bool) -> list[str]:
    """The command that fits the table with the suggested options, in parts that belong together."""
    path, named = options.table, {"--target": [target], "--model": ["linear"] if linear else []}
    for name in ("sep", "decimal", "encoding", "sheet"):
        value = getattr(options, name)
        named[f"--{name}"] = [] if value is None else [value]
    for name in ("missing", "dates", "drop", "categorical"):
        named[f"--{name}"] = list(getattr(options, name) or ())
    named["--task"] = [options.task] if options.task != "auto" else []
    for each in findings:
        values = named.setdefault(each.option, [])
        if each.suggested and not (values and each.option in ("--decimal", "--likelihood")):
            values += [value for value in each.values if value not in values]
    named["--categorical"] = [name for name in named["--categorical"] if name not in named["--drop"]]
    parts = [flag(option, *values) for option, values in named.items() if values]
    if named["--missing"] and (several(path) or large(path)):
        parts.append("--no-stream")
    stem = "model" if str(path) == STANDARD or several(path) else path.name.partition(".")[0]
    return [f"bayescope fit {shell_word(str(path))}", *parts, flag("--out", f"{stem}.bayes")]


def _left(findings: Sequence[Finding]) -> list[str]:
    """The options that the command leaves out, since only somebody who knows the table can tell."""
    left: dict[str, list[str]] = {}
    for each in findings:
        if each.option and not each.suggested:
            left.setdefault(each.option, []).extend(each.values)
    return [flag(option, *values) for option, values in left.items()]


def _lines(
    facts: dict[str, Any], found: Examined, findings: Sequence[Finding], command: Sequence[str]
) -> list[RenderableType]:
    """What `check` prints for people."""
    kinds = list(facts["kinds"].values())
    guessed = " (a guess: name another with --target)" if facts["target_guessed"] else ""
    lines: list[RenderableType] = [
        verbatim(f"{facts['table']}", "bold"),
        f"  {found.rows} rows, {facts['columns']} columns: {kinds.count('numeric')} of numbers, "
        f"{kinds.count('categorical')} of labels",
        f"  target {listed([facts['target']])}{guessed}{_task(found.target)}",
        *(f"  note: {note}" for note in facts["notes"]),
    ]
    for title, refused in (("fit refuses", True), ("suspicious", False)):
        some = [each for each in findings if each.refused is refused]
        if some:
            lines += [verbatim(f"{title}:", "bold"), *(f"  {each.text}" for each in some)]
    if not findings:
        lines.append("nothing wrong was found")
    lines += [verbatim("the command with the options that are probably right:", "bold"), *map(verbatim, _cut(command))]
    if left := _left(findings):
        lines += [verbatim('options to add where the answer to an "if" above is yes:', "bold")]
        lines += [verbatim(f"  {option}") for option in left]
    return lines


def _task(target: Target | None) -> str:
    if target is None:
        return ""
    return f": {target.task}" + (f", {len(target.classes)} classes" if target.task == "classification" else "")


def _cut(command: Sequence[str]) -> list[str]:
    """The command in lines that a shell takes for one."""
    lines, line = [], "  "
    for part in command:
        if len(line) + len(part) > WIDTH and line.strip():
            lines.append(f"{line}\\")
            line = "      "
        line += f"{part} "
    return [*lines, line.rstrip()]
