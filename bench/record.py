"""What all benchmarks share: their arguments, where their results go, and what is said of how these were made.

Results are committed, a .json with the numbers and a .md that shows them; those of a quick run, which are of small
sizes and prove only that the benchmark runs, go to a folder that is not.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
QUICK = ROOT / "bench" / "quick"
PEERS = (
    "asdfghjkl", "backpack-for-pytorch", "bayesian-torch", "blackjax", "curvlinops-for-pytorch", "interpret-core",
    "ivon-opt", "laplace-torch", "lifelines", "ngboost", "nutpie", "numpyro", "pyro-ppl", "scikit-learn", "statsmodels",
)  # fmt: skip


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """The arguments of every benchmark: `--quick` and `--out`."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, in about half a minute: does it run?")
    parser.add_argument("--out", type=Path, help="the folder of the results: bench/results, of a quick run bench/quick")
    return parser


def default_device() -> torch.device:
    """The GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def gpu_of(device: torch.device) -> str | None:
    """The name of a GPU, such as ``"NVIDIA H100 80GB HBM3"``; ``None`` for a CPU."""
    return None if device.type == "cpu" else torch.cuda.get_device_name(device)


def on_gpu(name: str, gpu: str | None) -> str:
    """The name of the results on a GPU, which has the name of the GPU in it; on a CPU the plain name."""
    return "_".join([name, *(gpu or "").lower().split()])


def folder(options: argparse.Namespace) -> Path:
    """Where the results of these options go: those of a quick run or without the peers are not committed."""
    chosen: Path | None = options.out
    kept = not options.quick and vars(options).get("peers", True)
    return chosen or (RESULTS if kept else QUICK)


def sources(module: str) -> set[Path]:
    """The files of a benchmark, ``"bench.curvature"``: its own, and those of `bench` and `tests` that it imports."""
    found: set[Path] = set()
    due = [module]
    while due:
        name = due.pop()
        path = ROOT / f"{name.replace('.', '/')}.py"
        if name == "bench.record" or path in found or not path.exists():
            continue
        found.add(path)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("bench", "tests"):
                due += [str(node.module), *(f"{node.module}.{each.name}" for each in node.names)]
    return found


def code(module: str) -> str:
    """A digest of the library and of a benchmark with all that it imports: results are of the code that had it."""
    digest = hashlib.sha256()
    for path in [*sorted((ROOT / "src").rglob("*.py")), *sorted(sources(module))]:
        digest.update(path.relative_to(ROOT).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def processor() -> str:
    """The processor's own name, where the system tells it."""
    texts = Path("/proc/cpuinfo")
    if texts.exists():
        for line in texts.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def peers() -> dict[str, str]:
    """The versions of the peers that are installed."""
    found = {name: find_version(name) for name in PEERS}
    return {name: version for name, version in found.items() if version}


def find_version(name: str) -> str | None:
    """Of a package, ``None`` where it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def made(module: str) -> dict[str, Any]:
    """By which code, on which machine, when."""
    return {
        "by": f"python -m {module}",
        "code": code(module),
        "when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "peers": peers(),
    }


def oldest(parts: Mapping[str, Mapping[str, Any]], wanted: Iterable[str]) -> dict[str, Any]:
    """How results that were made part by part count as made: like the oldest part; where one is missing, `partly`."""
    origin = dict(min((part["made"] for part in parts.values()), key=lambda origin: origin["when"]))
    return origin if set(wanted) <= set(parts) else partly(origin)


def partly(origin: Mapping[str, Any]) -> dict[str, Any]:
    """How results count that are not all of one run: as of no code, so that they are due."""
    return {**origin, "code": "in parts"}


def origin_text(origin: Mapping[str, Any]) -> str:
    """A sentence on how results were made."""
    return (
        f"`{origin['by']}` wrote this on {origin['cores']} cores ({origin['processor']}), {origin['threads']} thread(s)"
        f", torch {origin['torch']}, {origin['when']} UTC, load {origin['load']}, by code {origin['code']}."
    )


def page(title: str, origin: Mapping[str, Any] | None, how: str, parts: Sequence[str]) -> str:
    """The page of results: a title, what was done, how it was made unless its parts say that, and its parts."""
    texts = [] if origin is None else [origin_text(origin)]
    return "\n\n".join([f"# {title}", how.strip(), *texts, *(part.strip() for part in parts)]) + "\n"


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return "\n".join([*lines, *(f"| {' | '.join(str(cell) for cell in row)} |" for row in rows)])


def table_of(rows: Sequence[Mapping[str, Any]], form: str) -> str:
    """A Markdown table with a column for each entry; numbers that are not whole are told in a form, ``".2g"``."""
    cells = [[format(cell, form) if isinstance(cell, float) else cell for cell in row.values()] for row in rows]
    return table(list(rows[0]), cells)


def save(into: Path, name: str, results: Mapping[str, Any], text: str) -> None:
    """Writes the numbers and their page, whole or not at all, and prints the page."""
    into.mkdir(parents=True, exist_ok=True)
    numbers = json.dumps(results, indent=1, ensure_ascii=False) + "\n"
    for path, content in ((into / f"{name}.json", numbers), (into / f"{name}.md", text)):
        draft = path.with_suffix(f"{path.suffix}.new")
        draft.write_text(content, encoding="utf-8")
        draft.replace(path)
    sys.stdout.write(text)


def method_in(doc: str | None) -> str:
    """The second paragraph of a benchmark's docstring, which stands on its page."""
    return " ".join((doc or "").split("\n\n")[1].split())


def publish(
    options: argparse.Namespace,
    module: str,
    title: str,
    how: str,
    parts: Sequence[str],
    results: Mapping[str, Any],
    *,
    whole: bool = True,
    name: str | None = None,
) -> None:
    """Writes results and their page.

    Args:
        options: what was asked for; it says where results go.
        module: the benchmark: ``"bench.curvature"``.
        title: of the page.
        how: how it was measured.
        parts: of the page, in Markdown.
        results: the numbers.
        whole: whether all numbers are of this run; if not they are due again.
        name: of the results; by default the last part of the module's.
    """
    origin = made(module) if whole else partly(made(module))
    found = name or module.rpartition(".")[2]
    save(folder(options), found, {"made": origin, **results}, page(title, origin, how, parts))


def load(into: Path, name: str) -> dict[str, Any]:
    """The numbers of an earlier run, of none an empty dict."""
    path = into / f"{name}.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found if isinstance(found, dict) else {}  # the earliest results were lists
