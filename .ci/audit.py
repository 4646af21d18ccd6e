"""Check the dependencies without a network. Print each problem on a line, and exit with 1 if there is one.

    make audit

1. What the sources import is declared in pyproject.toml, and what is declared is imported.
2. The versions that are installed are those of lock.txt, and nothing else is installed.
3. Every licence is one of those below.
4. No package runs code when Python starts, but those named below.
5. Every installed file has the digest or the size that its package lists, and each module is listed by a package.

Advisories on known weaknesses come from the network: these are not looked up.
"""

from __future__ import annotations

import ast
import base64
import csv
import hashlib
import importlib.metadata
import os
import re
import sys
import sysconfig
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import lock

SOURCES = lock.HERE / "src"
OWN = {"bayescope", "bayescope_command"}
# The environment's own, and the project.
UNLOCKED = {"pip", "bayescope"}
# By what they begin with, in lower case; of several that a package names, all have to be there.
LICENCES = (
    "0bsd", "3-clause bsd", "apache", "boost", "bsd", "bsl", "cc0",
    "cnri-python", "hpnd", "isc", "mit", "mozilla", "mpl", "new bsd",
    "psf", "public domain", "python", "the unlicense", "unlicense", "zlib", "zpl",
)  # fmt: skip
# What a classifier says of a licence beside its name.
NO_NAMES = {"OSI Approved", "DFSG approved"}
# Modules of packages that are not installed here: what arviz 1 is made of.
PARTS = {"arviz_stats": "arviz"}
# Files of which Python runs the content; those above so many bytes are held against their size alone.
RUNS = (".py", ".so", ".pth")
WHOLE = 2**20
# Files that run at the interpreter's start: distutils for setuptools, the path of an editable install.
STARTERS = {"distutils-precedence.pth", "_editable_impl_bayescope.pth"}


def name_of(distribution: importlib.metadata.Distribution) -> str:
    """The name in the form that all spellings share."""
    return normal(distribution.metadata["Name"])


def normal(name: str) -> str:
    """A package's name in the form of PEP 503, which all spellings share."""
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(requirements: Iterable[str]) -> set[str]:
    """The packages that requirements name."""
    return {normal(re.split(r"[\s<>=!~\[;]", text, maxsplit=1)[0]) for text in requirements}


def imported(folder: Path) -> Iterator[tuple[str, bool]]:
    """The top-level modules that sources import, each with whether it is reached as an optional package.

    What stands under ``if TYPE_CHECKING`` is imported by nobody.
    """
    for path in folder.rglob("*.py"):
        tree = ast.parse(path.read_text())
        choices = [each for each in ast.walk(tree) if isinstance(each, ast.If)]
        types = {inner for each in choices if ast.unparse(each.test) == "TYPE_CHECKING" for inner in each.body}
        for node in ast.walk(tree):
            if node in types:
                continue
            if isinstance(node, ast.Import):
                yield from ((alias.name.partition(".")[0], False) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.partition(".")[0], False
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "checks.optional_package":
                yield from (
                    (str(each.value).partition(".")[0], True) for each in node.args if isinstance(each, ast.Constant)
                )


def check_imports(folder: Path = SOURCES) -> Iterator[str]:
    """Yields a line for each import without a dependency, and for each dependency without an import."""
    project = tomllib.loads((lock.HERE / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].items()
    asked = [package for extra, packages in extras if extra not in ("bench", "dev", "docs") for package in packages]
    needed, optional = declared(project["dependencies"]), declared(asked)
    packages = importlib.metadata.packages_distributions()
    found: dict[bool, set[str]] = {False: set(), True: set()}
    for module, by_choice in set(imported(folder)):
        if module not in sys.stdlib_module_names and module not in OWN:
            names = {normal(name) for name in packages.get(module, [PARTS.get(module, module)])}
            known = names & (optional if by_choice else needed)
            found[by_choice] |= known
            if not known:
                yield f"{module}: imported, and declared by no dependency"
    for name in sorted((needed - found[False]) | (optional - found[True])):
        yield f"{name}: declared, and imported nowhere"


def check_versions(distributions: Iterable[importlib.metadata.Distribution]) -> Iterator[str]:
    """Yields a line for each package whose version is not the lock's."""
    expected = {normal(name): version for name, (version, _) in lock.locked().items()}
    installed = {name_of(each): each.version for each in distributions}
    for name in sorted((expected.keys() | installed.keys()) - UNLOCKED):
        if expected.get(name) != installed.get(name):
            wanted, got = (versions.get(name, "nothing") for versions in (expected, installed))
            yield f"{name}: expected {wanted}, as in lock.txt, got {got}"


def licences(distribution: importlib.metadata.Distribution) -> list[str]:
    """As its metadata name them: an SPDX expression, else classifiers, else the first line of a text."""
    told = distribution.metadata
    if expression := told.get("License-Expression"):
        return [part.strip() for part in re.split(r"[()]| AND | and ", expression) if part.strip()]
    classes = [each.rpartition(" :: ")[2] for each in told.get_all("Classifier", []) if each.startswith("License ::")]
    named = [each for each in classes if each not in NO_NAMES]
    return named or [(told.get("License") or "").strip().partition("\n")[0]]


def check_licences(distributions: Iterable[importlib.metadata.Distribution]) -> Iterator[str]:
    """Yields a line for each licence that is not among `LICENCES`; of alternatives one has to be."""
    for each in distributions:
        for licence in licences(each):
            if not any(part.strip().lower().startswith(LICENCES) for part in re.split(r" OR | or ", licence)):
                yield f"{name_of(each)}: expected one of the licences of {Path(__file__).name}, got {licence!r}"


def check_start(folder: Path) -> Iterator[str]:
    """Yields a line for each file that runs when Python starts."""
    for path in sorted(folder.glob("*.pth")):
        runs = any(line.startswith(("import ", "import\t")) for line in path.read_text().splitlines())
        if runs and path.name not in STARTERS:
            yield f"{path.name}: runs code when Python starts"
    for name in ("sitecustomize", "usercustomize"):
        if any(folder.glob(f"{name}*")):
            yield f"{name}: runs code when Python starts"


def check_files(distributions: Iterable[importlib.metadata.Distribution], folder: Path) -> Iterator[str]:
    """Yields a line for each file that is not as its package lists it.

    Of what Python does not run, and of files above `WHOLE` bytes, the size alone counts: all digests take a minute.
    """
    known = set()
    for each in distributions:
        for place, digest, size in csv.reader((each.read_text("RECORD") or "").splitlines()):
            path = os.path.normpath(folder / place)
            known.add(path)
            if reason := changed(path, digest, size):
                yield f"{name_of(each)}: {place}: {reason}"
    for path in map(str, folder.rglob("*")):
        if path.endswith(RUNS) and path not in known:
            yield f"{os.path.relpath(path, folder)}: no package lists it"


def changed(path: str, digest: str, size: str) -> str:
    """What is wrong with a file, beside what its package says of it; a file without a digest may be anything."""
    if not digest:
        return ""
    if not os.path.isfile(path):
        return "is not there"
    found = os.path.getsize(path)
    if size and found != int(size):
        return f"expected {size} bytes, got {found}"
    if found > WHOLE or not path.endswith(RUNS):
        return ""
    kind, _, expected = digest.partition("=")
    told = base64.urlsafe_b64encode(hashlib.new(kind, Path(path).read_bytes()).digest()).rstrip(b"=").decode()
    return "" if told == expected else "is not the file that was installed"


def main() -> int:
    """Prints what is wrong."""
    folder = Path(sysconfig.get_path("purelib"))
    distributions = list(importlib.metadata.distributions(path=[str(folder)]))
    wrong = [
        *check_imports(),
        *check_licences(distributions),
        *check_start(folder),
        *check_files(distributions, folder),
    ]
    if lock.fits():
        wrong += check_versions(distributions)
    else:
        print(f"audit: lock.txt is for another Python or platform than {lock.target()}: versions are not compared")
    print("\n".join([*wrong, f"audit: {len(distributions)} packages, {len(wrong)} complaints"]))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
