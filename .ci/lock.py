"""Writes lock.txt: every package that CI installs, at the version of constraints.txt, with the SHA-256 of its file.

    make lock                     # after a change of pyproject.toml or constraints.txt, on CI's Python and platform

pip resolves the extra `dev` and what builds the project, and downloads and installs nothing but metadata. Files on PyPI
never change. torch's CPU build comes from elsewhere, so that its file may be built anew: see the Makefile.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

HERE = Path(__file__).parents[1]
LOCK = HERE / "lock.txt"
# What `pip install --editable .` needs beside the project's own dependencies.
BUILD = ("hatchling", "editables")


def target() -> str:
    """The Python and the platform that the files are for, as a line of the lock says it."""
    version = ".".join(platform.python_version_tuple()[:2])
    return f"{platform.python_implementation()} {version}, {sysconfig.get_platform()}, {platform.libc_ver()[0]}"


def fits() -> bool:
    """Whether this Python is the one that the lock is for."""
    return f"# For {target()}." in LOCK.read_text().splitlines()


def locked() -> dict[str, tuple[str, str]]:
    """The version and the SHA-256 of each package."""
    lines = [line.split() for line in LOCK.read_text().splitlines() if line and not line.startswith("#")]
    return {name: (version, digest) for name, _, version, digest in (
        (*line[0].partition("=="), line[1].removeprefix("--hash=sha256:")) for line in lines
    )}  # fmt: skip


def resolved() -> list[str]:
    """A line for each package that pip would install."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
        command += ["--only-binary", ":all:", "--report", str(report), "--constraint", str(HERE / "constraints.txt")]
        subprocess.run([*command, "--editable", f"{HERE}[dev]", *BUILD], check=True)
        packages = json.loads(report.read_text())["install"]
    lines = []
    for package in packages:
        name, version = package["metadata"]["name"], package["metadata"]["version"]
        if name != "bayescope":
            digest = package["download_info"]["archive_info"]["hashes"]["sha256"]
            lines.append(f"{name.lower()}=={version} --hash=sha256:{digest}")
    return sorted(lines)


if __name__ == "__main__":
    if sys.argv[1:] == ["fits"]:
        sys.exit(not fits())
    head = [
        "# What CI installs. `make lock` writes this file from pyproject.toml and constraints.txt.",
        f"# For {target()}.",
    ]
    LOCK.write_text("\n".join([*head, *resolved(), ""]))
