"""What a command answers: lines for people, or one JSON object for programs, on the standard output."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
import typer
from rich.console import Console, RenderableType
from rich.text import Text

from bayescope_command.exits import printable, steers_terminal

PIPED_WIDTH = 160  # a pipe has no width of its own; the whole table fits


def stdout(*, aside: bool = False) -> Console:
    """The console for results; where the output is no terminal, lines are as long as the table needs.

    Args:
        aside: whether results go to the error stream, since the standard output carries data.
    """
    console = Console(highlight=False, stderr=aside)
    return console if console.is_terminal else Console(highlight=False, stderr=aside, width=PIPED_WIDTH)


def answer(facts: Mapping[str, Any], *lines: RenderableType | str, as_json: bool, aside: bool = False) -> None:
    """Prints what a command found.

    Args:
        facts: all of it, for programs; what is not finite becomes null.
        lines: the lines and tables for people; plain text is not cut into lines where it is piped.
        as_json: whether to print the facts.
        aside: whether the lines go to the error stream.
    """
    if as_json:
        text = json.dumps(_plain(facts), ensure_ascii=False, indent=2)
        typer.echo("".join(json.dumps(letter)[1:-1] if steers_terminal(letter) else letter for letter in text))
        return
    console = stdout(aside=aside)
    for each in lines:
        line = verbatim(_wrapped(each, console)) if isinstance(each, str) else each
        console.print(line, soft_wrap=not console.is_terminal)


def verbatim(text: str, style: str = "") -> Text:
    """Text that may come from a file: its brackets are no markup, and its control characters are shown, not obeyed."""
    return Text(printable(text), style=style)


def _wrapped(line: str, console: Console) -> str:
    """A line for a terminal, whose continuations stand below its beginning."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    if not console.is_terminal:
        return line
    return textwrap.fill(line, console.width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _plain(value: object) -> Any:
    """A value in the types that JSON has."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
