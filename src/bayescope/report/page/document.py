"""A page as one HTML file: the template with everything it needs inside, and a policy that lets nothing else in.

The file's content security policy names its three scripts by their SHA-256 and no address at all: no script that came
in with a name or a value of the caller's table would run, and nothing can be fetched or sent.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from bayescope.report.page.blocks import Explorer, Figures, Folded, Page

PACKAGE = "bayescope.report"
_PERCENT = re.compile(r"(?<=\d) %")
PLOTLY, SCRIPT, THEME, STYLE = "plotly-basic.min.js", "report.js", "theme.js", "report.css"


def document(page: Page) -> str:
    """The HTML of a page.

    Args:
        page: its content.
    """
    figures = {figure.name: {"data": figure.data, "layout": figure.layout} for figure in _figures(page)}
    scripts = {name: _asset(name) for name in (PLOTLY, SCRIPT, THEME)}
    html: str = (
        _environment()
        .get_template("page.html.j2")
        .render(
            page=page,
            policy=_policy(list(scripts.values())),
            style=Markup(_asset(STYLE)),
            plotly=Markup(scripts[PLOTLY]),
            script=Markup(scripts[SCRIPT]),
            theme=Markup(scripts[THEME]),
            figures=_json(figures),
            explorer=_json(next((block.payload for block in _blocks(page) if isinstance(block, Explorer)), {})),
        )
    )
    return html


def _policy(scripts: Sequence[str]) -> str:
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
        "form-action 'none'"
    )


def _json(value: Mapping[str, Any]) -> Markup:
    """JSON that no text inside can end early: neither </script> nor <!-- survives as such."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)


def _blocks(page: Page) -> Iterator[Any]:
    """All blocks, also those that are folded away."""
    waiting = [block for section in page.sections for block in section.blocks]
    while waiting:
        block = waiting.pop(0)
        yield block
        waiting += block.blocks if isinstance(block, Folded) else ()


def _figures(page: Page) -> Iterator[Any]:
    for block in _blocks(page):
        if isinstance(block, Figures):
            yield from block.figures
        elif isinstance(block, Explorer):
            yield block.figure


@cache
def _asset(name: str) -> str:
    return (files(PACKAGE) / "assets" / name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader(PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_unbroken,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _unbroken(value: Any) -> Any:
    """Text whose percent signs stay with their numbers."""
    return _PERCENT.sub("\u00a0%", value) if type(value) is str else value
