"""Each Python example in the prose runs as it is written."""

import re
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
EXAMPLES = [
    pytest.param(code, id=f"{page.name}-{number}")
    for page in PAGES
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL), start=1)
]
LINKS = [
    pytest.param(page, target, id=f"{page.name}-{target}")
    for page in PAGES
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text())
    if "://" not in target
]


@pytest.mark.global_rng  # an example may make a layer, whose initial weights come from the global generator
@pytest.mark.parametrize("code", EXAMPLES)
def test_example_runs(code, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(compile(code, "example", "exec"), {"__name__": "example"})
    assert capsys.readouterr().out, "an example shows its answer"


@pytest.mark.parametrize(("page", "target"), LINKS)
def test_link_leads_somewhere(page, target):
    assert (page.parent / target).exists()


def test_readme_shows_each_kind_of_user_an_example():
    assert (ROOT / "README.md").read_text().count("```python") >= 3
