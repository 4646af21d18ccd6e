"""Brings what lies outside of docs/ into the site: the benchmarks' results, the changelog, how to contribute."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
PROJECT = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}
# <!-- results: faithfulness.md, Small networks --> is in a page what stands under that heading of the results.
SHOWN = re.compile(r"<!-- results: ([\w/.]+), (.+?) -->")
TITLE = re.compile(r"^# +(.+)$", flags=re.MULTILINE)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds the pages, the results under measurements/ and a list of them."""
    for page, name in PROJECT.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / name)))
    results = sorted(RESULTS.glob("**/*.md"))
    for path in results:
        name = path.relative_to(RESULTS).as_posix()
        files.append(File.generated(config, f"measurements/{name}", content=_titled(path)))
    files.append(File.generated(config, "measurements/index.md", content=_index(results)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Brings in what a page shows of the results; links to these, as in the repository, lead to pages here."""
    up = "../" * page.file.src_uri.count("/")
    markdown = SHOWN.sub(lambda found: section(RESULTS / found[1], found[2]), markdown)
    return re.sub(r"\]\((?:\.\./)+bench/results/", f"]({up}measurements/", markdown)


def section(path: Path, title: str) -> str:
    """What stands under a heading of the second level, up to the next heading.

    Raises:
        ValueError: if the page has no such heading.
    """
    _, found, rest = path.read_text(encoding="utf-8").partition(f"\n## {title}\n")
    if not found:
        raise ValueError(f"{path}: expected a heading '## {title}', got none. Run the benchmark that writes it.")
    return re.split(r"^##+ ", rest, maxsplit=1, flags=re.MULTILINE)[0].strip()


def _titled(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    return text if text.startswith("# ") else f"# {path.stem.capitalize()}\n\n{text}"


def _index(results: list[Path]) -> str:
    def line(path: Path) -> str:
        found = TITLE.search(_titled(path))
        assert found is not None
        return f"- [{found[1]}]({path.relative_to(RESULTS).as_posix()})"

    own = [line(path) for path in results if path.parent == RESULTS]
    published = [line(path) for path in results if path.parent != RESULTS]
    said = "Made by `bench/` in the repository, as they came out."
    parts = [
        "# Measurements",
        said,
        "## Published tasks",
        "\n".join(published),
        "## Accuracy and speed",
        "\n".join(own),
    ]
    return "\n\n".join(parts)
