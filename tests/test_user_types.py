"""What users write passes their type checkers: no cast, no ignored line, and answers of a known type.

`tests/user_scripts` has a script for each door, and what is known of each answer (`answer_types.py`).
"""

from __future__ import annotations

import inspect
import json
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import bayescope as bs
from bayescope.posterior.posterior import PredictKeywords

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "tests" / "user_scripts"
# The error that is planted, so that a checker that reads nothing turns red.
PLANTED = """
from bayescope import Posterior

def wrong(q: Posterior, x: list[list[float]]) -> int:
    return q.predict(x)
"""


@pytest.mark.timeout(300)
def test_mypy_strict_passes_the_scripts() -> None:
    """By the settings of pyproject.toml, whose cache `make types` has filled; for the scripts they are `--strict`."""
    pytest.importorskip("mypy", reason="mypy is in the extra dev")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]
    (own,) = (each for each in settings["overrides"] if "table" in each["module"])
    assert settings["strict"]
    assert sorted(own["module"]) == sorted(path.stem for path in SCRIPTS.glob("*.py"))
    assert own.keys() - {"module"} == {name for name, value in settings.items() if value is False}
    done = subprocess.run(
        [sys.executable, "-m", "mypy", SCRIPTS], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(300)
def test_pyright_passes_the_scripts(tmp_path: Path) -> None:
    pytest.importorskip("pyright", reason="pyright is in the extra dev")
    shutil.copytree(SCRIPTS, tmp_path, dirs_exist_ok=True)
    (tmp_path / "planted.py").write_text(PLANTED)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT / "src")]}))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "--project", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] == 5
    errors = [f"{Path(each['file']).name}: {each['message']}" for each in found["generalDiagnostics"]]
    assert len(errors) == 1, errors
    assert errors[0].startswith("planted.py: Type "), errors


@pytest.mark.filterwarnings(
    "ignore:nuts. the chains have not mixed:bayescope.errors.ConvergenceWarning"
)  # of few draws
@pytest.mark.parametrize("door", ["table", "network", "density"])
@pytest.mark.global_rng  # the weights of the user's network
def test_the_script_of_a_door_runs(door: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(SCRIPTS / f"{door}.py"), run_name="__main__")
    assert len(capsys.readouterr().out.splitlines()) > 4
    assert len((SCRIPTS / f"{door}.py").read_text(encoding="utf-8").splitlines()) >= 40
    assert "cast" not in (SCRIPTS / f"{door}.py").read_text(encoding="utf-8")
    assert "type: ignore" not in (SCRIPTS / f"{door}.py").read_text(encoding="utf-8")


def test_type_checkers_know_every_option_of_predict() -> None:
    options = inspect.signature(bs.Posterior.predict).parameters
    assert list(PredictKeywords.__annotations__) == list(options)[2:]
