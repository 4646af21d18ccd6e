"""The lock and the audit of what is installed: true to each other, and an audit that finds what is put before it."""

import base64
import hashlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module", autouse=True)
def scripts():
    sys.path.insert(0, str(ROOT / ".ci"))
    yield
    sys.path.remove(str(ROOT / ".ci"))
    for name in ("audit", "lock"):
        sys.modules.pop(name, None)


def pins(path):
    lines = re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / path).read_text(), re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in lines}


def test_the_lock_has_the_versions_of_the_constraints():
    locked, constraints = pins("lock.txt"), pins("constraints.txt")
    assert {name: version.partition("+")[0] for name, version in locked.items()} == {
        name: constraints.get(name) for name in locked
    }


def test_every_line_of_the_lock_has_one_digest():
    lines = [line for line in (ROOT / "lock.txt").read_text().splitlines() if not line.startswith("#")]
    assert len(lines) > 100
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==\S+ --hash=sha256:[0-9a-f]{64}", line)] == []


def test_the_sources_import_what_is_declared_and_nothing_else():
    import audit

    assert list(audit.check_imports()) == []


def test_an_import_that_is_not_declared_is_found(tmp_path):
    import audit

    (tmp_path / "module.py").write_text("import networkx.classes\nimport torch\n")
    found = list(audit.check_imports(tmp_path))
    assert "networkx: imported, and declared by no dependency" in found
    assert "scipy: declared, and imported nowhere" in found
    assert not [line for line in found if line.startswith("torch")]


def package(folder, licence="MIT", **files):
    """A folder with one installed package."""
    info = folder / "thing-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: thing\nVersion: 1.0\nLicense-Expression: {licence}\n")
    lines = []
    for name, content in files.items():
        (folder / f"{name}.py").write_bytes(content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{name}.py,sha256={digest},{len(content)}\n")
    (info / "RECORD").write_text("".join(lines))
    return folder, list(importlib.metadata.distributions(path=[str(folder)]))


def test_files_that_changed_or_came_since_are_found(tmp_path):
    import audit

    folder, found = package(tmp_path, one=b"x = 1\n", two=b"y = 2\n", three=b"z = 3\n")
    assert list(audit.check_files(found, folder)) == []
    (folder / "one.py").write_bytes(b"x = 2\n")
    (folder / "two.py").write_bytes(b"y = 22\n")
    (folder / "three.py").unlink()
    (folder / "four.py").touch()
    assert list(audit.check_files(found, folder)) == [
        "thing: one.py: is not the file that was installed",
        "thing: two.py: expected 6 bytes, got 7",
        "thing: three.py: is not there",
        "four.py: no package lists it",
    ]


@pytest.mark.parametrize(
    ("licence", "complaints"),
    [("MIT", 0), ("GPL-3.0-only OR Apache-2.0", 0), ("MIT AND (BSD-3-Clause)", 0), ("MIT AND GPL-3.0-only", 1)],
)
def test_licences(tmp_path, licence, complaints):
    import audit

    assert len(list(audit.check_licences(package(tmp_path, licence)[1]))) == complaints


def test_code_that_runs_at_the_start_is_found(tmp_path):
    import audit

    (tmp_path / "path.pth").write_text("/somewhere/src\n")
    assert list(audit.check_start(tmp_path)) == []
    (tmp_path / "spy.pth").write_text("/somewhere\nimport os; os.getpid()\n")
    (tmp_path / "usercustomize.py").touch()
    found = [line.partition(":")[0] for line in audit.check_start(tmp_path)]
    assert found == ["spy.pth", "usercustomize"]


# Run by a process of its own, in the folder of the scripts.
VERSIONS = """
import audit, importlib.metadata, sys
print(*audit.check_versions(importlib.metadata.distributions(path=sys.argv[1:])), sep="\\n")
"""


def test_other_versions_than_the_locks_are_told(tmp_path):
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    (tmp_path / "lock.txt").write_text("# A head.\nThing==2.0 --hash=sha256:0\nother==1.0 --hash=sha256:1\n")
    site, _ = package(tmp_path / "site")
    command = [sys.executable, "-c", VERSIONS, site]
    done = subprocess.run(command, cwd=tmp_path / ".ci", capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "other: expected 1.0, as in lock.txt, got nothing",
        "thing: expected 2.0, as in lock.txt, got 1.0",
    ]
