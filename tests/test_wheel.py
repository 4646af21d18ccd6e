"""The wheel: what it says of itself, and the README run from it in an environment without the sources."""

from __future__ import annotations

import email
import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from email.message import Message
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("build", reason="build is in the extra dev")
pytest.importorskip("hatchling", reason="the wheel is built without a network, by the hatchling that is installed")

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# What a fresh interpreter runs: the README's blocks, by the bayescope that it finds.
SESSION = """
import importlib.util, sys
from pathlib import Path
import bayescope
assert Path(bayescope.__file__).is_relative_to(sys.prefix), bayescope.__file__
assert bayescope.__version__ == sys.argv[3]
spec = importlib.util.spec_from_file_location("prose", sys.argv[1])
prose = importlib.util.module_from_spec(spec)
spec.loader.exec_module(prose)
prose.write_tables(Path.cwd())
prose.run_page(Path(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution: what that lacks would be missing."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel, which finds the dependencies among those of the tests."""
    folder = tmp_path_factory.mktemp("fresh")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    install = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--quiet"]
    subprocess.run([*install, "--no-deps", "--no-index", "--disable-pip-version-check", wheel], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    # The editable install of the sources is a .pth file there, which Python reads in its own environment alone.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def run(environment: Path, folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs a program of the environment in a folder, without what this process's own variables add."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    program = environment / "bin" / command[0]
    return subprocess.run(
        [program, *command[1:]], cwd=folder, env=variables, capture_output=True, text=True, check=False
    )


def test_the_pages_have_their_files(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for page, files in {
        "report": ("report.css", "theme.js"),
        "explore": ("explore.html", "plots.js", "panels.js", "asking.js", "explore.js"),
    }.items():
        assert {f"bayescope/{page}/assets/{file}" for file in files} <= names


@pytest.mark.timeout(600)
def test_the_readme_runs_from_the_wheel(environment: Path, tmp_path: Path) -> None:
    prose, readme = ROOT / "tests" / "test_prose.py", ROOT / "README.md"
    done = run(environment, tmp_path, "python", "-c", SESSION, prose, readme, PROJECT["version"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "report.html").stat().st_size > 100_000, "the templates and scripts of reports are in the wheel"


def test_the_command_of_the_wheel_answers(environment: Path, tmp_path: Path) -> None:
    done = run(environment, tmp_path, "bayescope", "--help")
    assert done.returncode == 0, done.stderr
    assert "predict" in done.stdout


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as files:
        (name,) = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(files.read(name))


def test_the_metadata_are_whole(wheel: Path) -> None:
    told = metadata_of(wheel)
    versions = [f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13, 14)]
    assert set(versions) <= set(told.get_all("Classifier", []))
    assert told["Description-Content-Type"] == "text/markdown"
    assert told["License-Expression"] == "MIT"
    with zipfile.ZipFile(wheel) as files:
        assert {"bayescope/py.typed", "bayescope/__init__.pyi"} <= set(files.namelist())


def test_the_description_leads_nowhere_that_is_not_there(wheel: Path) -> None:
    text = str(metadata_of(wheel).get_payload())
    assert "other ways to install" in text, "the text of a link stays"
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []


@pytest.fixture
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("metadata_hook", ROOT / ".ci" / "metadata.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_become_absolute_where_the_address_is_known(hook: ModuleType) -> None:
    readme = "![A map](docs/a.png)\n\nSee [more](docs/b.md) and [there](https://example.org/c).\n"
    assert hook.description(readme, "https://example.org/r") == (
        "![A map](https://example.org/r/raw/main/docs/a.png)\n\n"
        "See [more](https://example.org/r/blob/main/docs/b.md) and [there](https://example.org/c).\n"
    )
    assert hook.description(readme, "") == "See more and [there](https://example.org/c).\n"
    assert set(hook.addresses("https://example.org/r")) == {"Repository", "Documentation", "Changelog", "Issues"}
    assert hook.addresses("") == {}


def test_the_citation_is_of_this_version() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with mkdocs")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys(), "what the format 1.2.0 requires"
    assert (citation["cff-version"], citation["title"], citation["type"]) == ("1.2.0", "bayescope", "software")
    assert str(citation["version"]) == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert citation["authors"] == PROJECT["authors"]
