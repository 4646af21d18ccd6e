"""The gallery's pages: a list of the pictures, and for each its caption, its source and the code that drew it."""

from __future__ import annotations

import inspect
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from bayescope.gallery import PICTURES, Picture

MARK = "<!-- pictures -->"
ROOT = Path(__file__).parents[2]


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds a page for each picture."""
    pictures = list(PICTURES.values())
    for number, picture in enumerate(pictures):
        following = pictures[(number + 1) % len(pictures)]
        files.append(File.generated(config, f"gallery/{picture.name}.md", content=_page(picture, following)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Puts the list where the gallery's page has its mark."""
    cards = "\n".join(map(_card, PICTURES.values()))
    return markdown.replace(MARK, f'<div class="grid pictures" markdown>\n\n{cards}\n</div>')


def _card(picture: Picture) -> str:
    """The picture only repeats the link below it, so that screen readers and the keyboard pass it by."""
    return (
        f"<figure markdown>\n[![](images/{picture.name}.png){{ loading=lazy }}](gallery/{picture.name}.md)"
        "{ aria-hidden=true tabindex=-1 }\n"
        f"<figcaption markdown>[{picture.title}](gallery/{picture.name}.md)</figcaption>\n</figure>\n"
    )


def _page(picture: Picture, following: Picture) -> str:
    path = Path(inspect.getsourcefile(picture.draw) or "")
    place = path.relative_to(ROOT).as_posix()
    source = picture.source if picture.source.endswith("?") else f"{picture.source}."
    return f"""---
hide: [navigation]
---

# {picture.title}

[![{picture.caption}](../images/{picture.name}.png)](../images/{picture.name}.png)

{picture.caption}

*After {source}*

Next: [{following.title}]({following.name}.md). [All pictures](../gallery.md).

## The code that drew it

```console
$ bayescope gallery --out gallery/ --only {picture.name}
```

In Python, `bayescope.gallery.draw("{picture.name}")` gives the matplotlib figure. This is `{place}`:

```py
{path.read_text(encoding="utf-8")}```
"""
