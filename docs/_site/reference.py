"""The API reference: `::: bs.laplace` becomes its docstring, and `bs.laplace` in any prose a link to it."""

from __future__ import annotations

import importlib
import inspect
import operator
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

import bayescope

MARK = "<!-- names -->"
ENTRY = re.compile(r"^::: (?P<name>(?:bs|bayescope)\.[\w.]+)$", flags=re.MULTILINE)
# Inline code that begins with a public name: not within a fence, not the text of a link.
MENTION = re.compile(
    r"(?P<fence>^```.*?^```$)|(?<![\[`])`(?P<name>bs\.\w+(?:\.\w+)?)(?P<rest>[^`\n]*)`(?!`)",
    flags=re.MULTILINE | re.DOTALL,
)


def find(name: str) -> Any:
    """The thing of a dotted name: `bs.laplace` as users call it, or a module's own name after `bayescope.`."""
    home, _, last = name.rpartition(".")
    if name.startswith("bs."):
        return operator.attrgetter(name.removeprefix("bs."))(bayescope)
    return getattr(importlib.import_module(home), last)


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Writes the entries and the list of them out, and links what is mentioned to its entry."""
    if MARK in markdown:
        markdown = markdown.replace(MARK, "\n".join(map(_listed, _pages(config))))
    return ENTRY.sub(_entry, MENTION.sub(_mention, markdown))


def _entry(match: re.Match[str]) -> str:
    name = match["name"]
    thing = find(name)
    options = {"heading": name, "toc_label": name.rpartition(".")[2]}
    if inspect.isclass(thing):
        options["members"] = str(_members(thing))
    lines = [f"[](){{#{name}}}", "", f"::: {thing.__module__}.{thing.__qualname__}", "    options:"]
    return "\n".join(lines + [f"      {key}: {value}" for key, value in options.items()])


def _pages(config: MkDocsConfig) -> list[Path]:
    """The pages of the reference that have entries, in the navigation's order."""
    (section,) = (part["Reference"] for part in config.nav or [] if "Reference" in part)
    pages = [Path(config.docs_dir) / page for named in section[1:] for page in named.values()]
    return [page for page in pages if ENTRY.search(page.read_text(encoding="utf-8"))]


def _listed(page: Path) -> str:
    """A page's title, and a table of its names with the first sentence of each docstring."""
    text = page.read_text(encoding="utf-8")
    title = text.partition("\n")[0].removeprefix("# ")
    rows = [f"| [`{name}`][{name}] | {_summary(find(name))} |" for name in ENTRY.findall(text)]
    return "\n".join([f"\n## [{title}]({page.name})\n", "| name | |", "|---|---|", *rows])


def _summary(thing: Any) -> str:
    """The docstring's first paragraph, such that a table can hold it."""
    return " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split()).replace("|", "\\|")


def _members(cls: type) -> list[str]:
    """The public methods and properties, those too of base classes in this package that have no entry of their own."""
    bases = [base for base in cls.__mro__[1:] if base.__name__ not in bayescope.__all__]
    own = [base for base in (cls, *bases) if base.__module__.startswith("bayescope")]
    return [
        member
        for base in own
        for member, value in vars(base).items()
        if not member.startswith("_") and (inspect.isroutine(value) or isinstance(value, property))
    ]


def _mention(match: re.Match[str]) -> str:
    if match["fence"] is not None or inspect.ismodule(_or_none(match["name"])):
        return match[0]
    if _or_none(match["name"]) is None:
        return match[0]
    return f"[`{match['name']}{match['rest']}`][{match['name']}]"


def _or_none(name: str) -> Any:
    try:
        return find(name)
    except AttributeError:
        return None
