"""What the wheel says of itself beside pyproject.toml: its description, which is the README, and its addresses.

A package index shows the README without the repository around it. Its relative links become absolute ones if
pyproject.toml names the repository's address; without it they are left out: pictures whole, links but for their text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"^!\[[^\]]*\]\((?!https?://)([^)]+)\)\n\n?", re.MULTILINE)
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)]+)\)")


def description(readme: str, repository: str) -> str:
    """The README for a reader elsewhere."""
    if not repository:
        return LINK.sub(r"\2", PICTURE.sub("", readme))

    def absolute(link: re.Match[str]) -> str:
        return f"{link[1]}[{link[2]}]({repository}/{'raw' if link[1] else 'blob'}/main/{link[3]})"

    return LINK.sub(absolute, readme)


def addresses(repository: str) -> dict[str, str]:
    """What a package index lists beside the description."""
    if not repository:
        return {}
    return {
        "Repository": repository,
        "Documentation": f"{repository}/blob/main/docs/index.md",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


class Metadata(MetadataHookInterface):
    """The fields that pyproject.toml calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Sets them."""
        repository = self.config["repository"].rstrip("/")
        text = description((Path(self.root) / "README.md").read_text(encoding="utf-8"), repository)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = addresses(repository)
