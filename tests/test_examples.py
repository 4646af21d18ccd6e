"""The notebooks of `examples/` and of the course run from the first cell to the last; no outputs are committed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient", reason="runs the notebooks")
nbformat = pytest.importorskip("nbformat", reason="reads the notebooks")
pytest.importorskip("ipykernel", reason="the kernel of the notebooks")

ROOT = Path(__file__).resolve().parents[1]
COURSE = ROOT / "docs" / "course"
LESSONS, SOLUTIONS = (sorted(folder.glob("*.ipynb")) for folder in (COURSE, COURSE / "solutions"))
EXAMPLES = sorted((ROOT / "examples").glob("*.ipynb"))
NOTEBOOKS = [
    pytest.param(path, id=path.relative_to(ROOT).with_suffix("").as_posix()) for path in EXAMPLES + LESSONS + SOLUTIONS
]
NAMES = {"additive", "decisions", "density", "network", "regression", "table"}
# Bytes of a notebook with no picture in it.
LARGEST = 20_000
# The packages that a notebook needs beside the library.
EXTRAS = {
    "density": ("nutpie", "arviz"),
    "table": ("arviz",),
    "06_expectation_propagation": ("nutpie",),
    "07_mcmc": ("nutpie",),
}


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def shown(output: Any) -> set[str]:
    """What an output shows: kinds of data, or the name of the stream."""
    return {output.name} if output.output_type == "stream" else set(output.data)


def test_there_are_six_examples_and_a_solution_to_each_lesson() -> None:
    assert {path.stem for path in EXAMPLES} == NAMES
    assert [path.name for path in LESSONS] == [path.name for path in SOLUTIONS]


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_asks_what_its_solutions_answer(path: Path) -> None:
    questions, answers = (exercises(folder / path.name) for folder in (COURSE, COURSE / "solutions"))
    assert len(questions) >= 3
    assert questions == answers


def exercises(path: Path) -> list[str]:
    """The headings of the exercises of a notebook, such as "Exercise 1: which prior?"."""
    text = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    return re.findall(r"^#+ (Exercise \d+.*)$", text, flags=re.MULTILINE)


@pytest.mark.parametrize("path", NOTEBOOKS)
def test_its_links_lead_somewhere(path: Path) -> None:
    text = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    targets = re.findall(r"\]\(([^)#\s]+\.(?:md|ipynb))", text)
    assert [target for target in targets if "://" not in target and not (path.parent / target).exists()] == []


@pytest.mark.parametrize("path", NOTEBOOKS)
def test_it_is_committed_without_outputs(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    assert path.read_text(encoding="utf-8") == nbformat.writes(notebook) + "\n"
    assert path.stat().st_size < LARGEST
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    for place, cell in enumerate(notebook.cells, start=1):
        assert (cell.id, dict(cell.metadata)) == (f"cell-{place}", {})
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:jupyter_client")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:zmq")
@pytest.mark.parametrize("path", NOTEBOOKS)
def test_it_runs_without_a_warning_and_each_result_shows_itself(path: Path, tmp_path: Path) -> None:
    for package in EXTRAS.get(path.stem, ()):
        pytest.importorskip(package, reason=f"the notebook {path.name} uses it")
    notebook = read(path)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=100, kernel_name="python3", resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert "warn" not in "".join(output.text for output in outputs if output.get("name") == "stderr").lower()
    kinds = [shown(output) for output in outputs]
    assert path not in EXAMPLES or any("text/html" in kind for kind in kinds)
    assert path in SOLUTIONS or any("image/png" in kind for kind in kinds)
    assert all(kind & {"text/html", "image/png", "stdout", "stderr"} for kind in kinds if kind != {"text/plain"})
