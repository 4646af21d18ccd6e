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

# Stands for all entries whose names begin with one of these.
NAMES = re.compile(r"<!-- names (?P<prefixes>[\w. ]+) -->")
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
    """Writes the entries and lists of them out, and links what is mentioned to its entry."""
    markdown = NAMES.sub(lambda match: _listed(match["prefixes"].split(), config), markdown)
    return ENTRY.sub(_entry, MENTION.sub(_mention, markdown))


def _entry(match: re.Match[str]) -> str:
    name = match["name"]
    thing = find(name)
    options = {"heading": name, "toc_label": name.rpartition(".")[2]}
    if inspect.isclass(thing):
        options["members"] = str(_members(thing))
    lines = [f"[](){{#{name}}}", "", f"::: {_path(name, thing)}", "    options:"]
    return "\n".join(lines + [f"      {key}: {value}" for key, value in options.items()])


def _path(name: str, thing: object) -> str:
    """Where a thing is defined: a value, such as a mapping, does not say so, and is imported from there."""
    if hasattr(thing, "__qualname__"):
        return f"{thing.__module__}.{thing.__qualname__}"
    name = name.removeprefix("bs.")
    return f"{bayescope._HOMES[name]}.{name}"


def _listed(prefixes: list[str], config: MkDocsConfig) -> str:
    """Links to the entries of the reference, in its order, each by the last part of its name."""
    pages = [Path(config.docs_dir) / page for page in _reference(config)]
    names = [name for page in pages for name in ENTRY.findall(page.read_text(encoding="utf-8"))]
    listed = [name for name in names if name.startswith(tuple(prefixes))]
    return ", ".join(f"[`{name.rpartition('.')[2]}`][{name}]" for name in listed)


def _reference(config: MkDocsConfig) -> list[str]:
    """The pages of the reference beside its first one, in the navigation's order."""
    (section,) = (part["Reference"] for part in config.nav or [] if "Reference" in part)
    return [page for named in section[1:] for page in named.values()]


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
