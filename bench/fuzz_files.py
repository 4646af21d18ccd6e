"""10,000 altered files: each is refused with one error of the library's own, or is whole and holds other values.

Files of several kinds are altered from a seed (`tests/storage/mutants.py`): bits, spans and ends, members of the zip
and their headers, and manifests and tensors whose checksums have been put right. Each is loaded under Python's audit
hooks, which see code that is compiled or run, processes, sockets, pickles and files that are opened for writing, with
the memory of the process capped. What loads is asked for a prediction.

    python -m bench.fuzz_files [--count 10000] [--seed 0] [--quick]
"""

from __future__ import annotations

import random
import resource
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

import bayescope as bs
from bayescope.errors import BayescopeError, FileError
from bayescope.storage.objects import RECORDS
from bench import record
from tests.storage import saved
from tests.storage.mutants import WELL_FRAMED, mutant

POSTERIORS = (
    "laplace, full, float32", "laplace, block, float64", "laplace, kfac, float32", "laplace, ekfac, float32",
    "laplace, low_rank, float64", "laplace, samples, float32", "dropout", "ensemble", "swag", "function space",
    "function space, nystrom",
)  # fmt: skip
ESTIMATORS = (
    "linear, rbf", "linear, mixed columns", "logistic, pipeline", "logistic, nystroem", "logistic, mixed columns",
    "mlp, laplace", "mlp, dropout", "additive, labels", "additive, numbers",
)  # fmt: skip
# What no file may cause; "open" counts where it is for writing.
FORBIDDEN = (
    "exec", "compile", "import", "os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen",
    "pickle.find_class", "marshal.loads", "socket.connect", "socket.getaddrinfo", "ctypes.dlopen", "shutil.rmtree",
    "os.remove", "os.rename", "os.mkdir", "urllib.Request",
)  # fmt: skip
Files = dict[str, tuple[bytes, Callable[[Any], Any]]]
WARMING = 400
WORDS = ("altered", "truncated", "something else", "another zip", "Upgrade")
ADDED = 1536 * 2**20  # bytes that loading may map beyond what the process had


class Watch:
    """Counts what happens while a file is being loaded."""

    def __init__(self) -> None:
        self.on, self.seen, self.seconds = False, Counter[str](), 0.0
        sys.addaudithook(self._hook)

    def timed(self, path: Path) -> Callable[[], Any]:
        """Loads a file under watch."""

        def load() -> Any:
            start, self.on = time.perf_counter(), True
            try:
                return bs.load(path)
            finally:
                self.on, self.seconds = False, time.perf_counter() - start

        return load

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open":
            writes = isinstance(arguments[1], str) and any(mode in arguments[1] for mode in "wax+")
            self.seen.update(["open for writing"] * writes)
        elif event in FORBIDDEN:
            self.seen.update([f"{event} {arguments[0]!r}"[:80]])


def asks() -> Files:
    """Files by name, each with a question for what is loaded."""
    found: Files = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "whole.bayes"
        for name in POSTERIORS:
            x = saved.data(torch.float64 if name.endswith("64") else torch.float32)[0][:3]
            found[name] = saved.posterior(name).save(path).read_bytes(), lambda q, x=x: q.predict(x, generator=0).mean
        for name in ESTIMATORS:
            mixed = name.startswith(("additive", "mlp")) or "mixed" in name
            rows = saved.table().iloc[:3] if mixed else saved.plain_table()[:3]
            found[name] = saved.estimator(name).save(path).read_bytes(), lambda est, rows=rows: est.predict(rows)
        for content, ask in found.values():  # what is imported late is imported now
            path.write_bytes(content)
            ask(bs.load(path))
    return found


def outcome(load: Callable[[], Any], ask: Callable[[Any], Any]) -> tuple[str, str]:
    """What came of a file, and the message or the kind of error where there was one."""
    try:
        value = load()
    except FileError as error:
        return ("refused" if any(word in str(error) for word in WORDS) else "refused without a word"), str(error)
    except Exception as error:  # noqa: BLE001 - anything else is what this is looking for
        return "CRASH", f"{type(error).__name__}: {error}"
    try:
        ask(value)
    except BayescopeError as error:
        return "whole, refused when asked", str(error)
    except Exception as error:  # noqa: BLE001
        return "whole, an error of others when asked", f"{type(error).__name__}: {error}"
    return "whole, answers", ""


def warm(files: Files, path: Path) -> None:
    """Has everything done that is done once: annotations looked up, what torch imports late."""
    for kind in RECORDS.values():
        kind.hints  # noqa: B018 - it is a cached property
    repr(torch.ones(1))  # as messages of errors tell tensors
    for seed in range(WARMING):
        source = random.Random(-1 - seed)
        whole, _ = files[source.choice(list(files))]
        path.write_bytes(mutant(whole, source)[1])
        with suppress(FileError):
            bs.load(path)


def run(count: int, seed: int) -> dict[str, Any]:
    """Loads altered files and counts what came of each."""
    files, source, watch = asks(), random.Random(seed), Watch()
    counts, crashes, others, slowest, wrong = Counter[tuple[str, str]](), list[str](), Counter[str](), 0.0, 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "altered.bayes"
        warm(files, path)
        before = cap_memory()
        for _ in range(count):
            whole, ask = files[source.choice(list(files))]
            change, content = mutant(whole, source)
            path.write_bytes(content)
            what, message = outcome(watch.timed(path), ask)
            counts[change, what] += 1
            slowest = max(slowest, watch.seconds)
            crashes += [f"{change}: {message}"] if what in ("CRASH", "refused without a word") else []
            others.update([message[:90]] if "others" in what else [])
            wrong += what.startswith("whole") and change not in WELL_FRAMED and content != whole
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {
        "count": count, "seed": seed, "files": {name: len(content) for name, (content, _) in files.items()},
        "outcomes": {f"{change}: {what}": number for (change, what), number in sorted(counts.items())},
        "crashes": crashes, "forbidden": dict(watch.seen), "slowest_seconds": round(slowest, 3),
        "grown_mib": round(grown), "whole_with_wrong_checksums": wrong, "errors_of_others": dict(others),
    }  # fmt: skip


def cap_memory() -> int:
    """Caps the addresses that the process may map, and returns the memory that it had at most so far, in KiB."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + ADDED, resource.getrlimit(resource.RLIMIT_AS)[1]))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def written(result: dict[str, Any]) -> str:
    """The result as a page."""
    table: dict[str, Counter[str]] = {}
    for key, number in result["outcomes"].items():
        change, what = key.split(": ", 1)
        table.setdefault(change, Counter())[what] += number
    columns = sorted({what for row in table.values() for what in row})
    counted = table | {"**all**": sum(table.values(), Counter[str]())}
    lines = [
        f"- crashes, or errors that are not the library's own, on loading: {len(result['crashes'])}",
        f"- code run, processes, sockets, pickles, files written while loading: {sum(result['forbidden'].values())}",
        f"- files accepted whose checksums do not agree: {result['whole_with_wrong_checksums']}",
        f"- the slowest load: {result['slowest_seconds']} s",
        f"- memory the process grew by: {result['grown_mib']} MiB",
        "",
        "Files that are whole hold other values under checksums that were put right: another summary, another number.",
        "",
        record.table(["change", *columns], [[name, *(row[what] for what in columns)] for name, row in counted.items()]),
    ]
    if result["errors_of_others"]:
        lines += ["", "Errors of other libraries, by predictions of edited files:", ""]
        lines += [f"- {number} × `{message}`" for message, number in sorted(result["errors_of_others"].items())]
    return "\n".join(lines)


def main() -> None:
    """Runs as many as the command line says, and writes the results."""
    parser = record.arguments(__doc__)
    parser.add_argument("--count", type=int, help="10,000; 500 of a quick run")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    result = run(options.count or (500 if options.quick else 10_000), options.seed)
    said = record.said_in(__doc__)
    title = f"{result['count']:,} altered files (seed {result['seed']})"
    record.publish(options, "bench.fuzz_files", title, said, [written(result)], result)
    wrong = ("crashes", "forbidden", "whole_with_wrong_checksums", "errors_of_others")
    sys.exit(any(result[each] for each in wrong))


if __name__ == "__main__":
    main()
