"""What code prints is set apart from it: a text block right below a code block has the label "Output"."""

from __future__ import annotations

import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

TEXT, END = '<div class="language-text highlight">', "</code></pre></div>"
CODE = r'<div class="language-(?!text)[\w+-]+ highlight">'
PRINTED = re.compile(rf"(?P<code>{CODE}(?:(?!{END}).)*{END}\s*){TEXT}", flags=re.DOTALL)
# A word for all readers, those who hear the page too; the search index leaves it out.
LABEL = '<p class="output-label" data-search-exclude="true">Output</p>\n'
OUTPUT = '<div class="language-text highlight output no-copy">'


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Labels the blocks."""
    return PRINTED.sub(lambda found: found["code"] + LABEL + OUTPUT, html)
