from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, final

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import bayescope as bs
from bayescope.errors import MemoryBudgetError
from bayescope.memory import free_memory, memory_limit, readable, refuse_ran_out, require_memory

if sys.platform != "win32":
    import resource

CPU = torch.device("cpu")
MIB = 2**20  # a limit of the process of the tests leaves more than some of these


def system(root: Path, files: dict[str, object]) -> Path:
    """A file system with the given files of /proc and /sys, and 20 MiB of available memory."""
    for name, content in {"proc/meminfo": f"MemTotal: 1 kB\nMemAvailable: {20 * 2**10} kB", **files}.items():
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"{content}\n")
    return root


def test_it_is_of_this_machine() -> None:
    assert 2**20 < free_memory(CPU) <= sys.maxsize


def groups(version: int, limits: dict[str, object], used: int) -> dict[str, object]:
    """The files of control groups with the given limits, each of which uses so many bytes."""
    top, *names = {
        2: ("sys/fs/cgroup", "memory.max", "memory.current"),
        1: ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    }[version]
    files: dict[str, object] = {}
    for group, limit in limits.items():
        files |= {f"{top}/{group}/{name}": value for name, value in zip(names, (limit, used), strict=True)}
    return files


@pytest.mark.parametrize("tightest", ["a/b/c", "a/b", "a", "."])
@pytest.mark.parametrize("version", [1, 2])
def test_each_control_group_above_the_process_limits_it(version: int, tightest: str, tmp_path: Path) -> None:
    own = "0::/a/b/c" if version == 2 else "9:cpu,cpuacct:/z\n7:memory:/a/b/c"
    unlimited = "max" if version == 2 else 2**63 - 4096
    limits = dict.fromkeys((".", "a", "a/b", "a/b/c"), unlimited)
    open_to_all = system(tmp_path / "all", {"proc/self/cgroup": own, **groups(version, limits, MIB)})
    assert free_memory(CPU, open_to_all) == 20 * MIB
    beside = {"a/d": 2 * MIB, "z": 2 * MIB}  # groups that the process is not in
    limited = groups(version, {**limits, tightest: 5 * MIB, **beside}, MIB)
    assert free_memory(CPU, system(tmp_path / "few", {"proc/self/cgroup": own, **limited})) == 4 * MIB


def test_a_container_that_shows_its_own_group_alone_is_limited_by_it(tmp_path: Path) -> None:
    files = groups(2, {".": 3 * MIB}, MIB)
    assert free_memory(CPU, system(tmp_path / "elsewhere", {"proc/self/cgroup": "0::/docker/x", **files})) == 2 * MIB
    assert free_memory(CPU, system(tmp_path / "silent", files)) == 2 * MIB


def test_files_that_were_read_do_not_count_as_used(tmp_path: Path) -> None:
    statistics = {"sys/fs/cgroup/memory.stat": f"anon 5\ninactive_file {2 * MIB}\nactive_file {MIB}\nshmem 7"}
    assert free_memory(CPU, system(tmp_path, {**groups(2, {".": 6 * MIB}, 4 * MIB), **statistics})) == 5 * MIB
    full = {**groups(2, {".": MIB}, 2 * MIB), "sys/fs/cgroup/memory.stat": "anon 5"}
    assert free_memory(CPU, system(tmp_path, full)) == 0


def test_a_system_that_does_not_tell_forbids_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if sys.platform != "win32":
        limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
        if any(limit != resource.RLIM_INFINITY for limit in limits):
            pytest.skip("the process of the tests has a limit of its own, which is a system's word")
        monkeypatch.delitem(os.sysconf_names, "SC_AVPHYS_PAGES", raising=False)
    assert free_memory(CPU, tmp_path) == sys.maxsize


def test_within_a_limit_little_is_checked_too() -> None:
    require_memory(1000, "a table", "Take less.")
    with memory_limit(999):
        require_memory(999, "a table", "Take less.")
        with pytest.raises(MemoryBudgetError, match=r"at most 999 B, but a table would take about 1 kB\. Take less\."):
            require_memory(1000, "a table", "Take less.")
    require_memory(1000, "a table", "Take less.")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not hold to these limits, or tell what is used")
@pytest.mark.parametrize("kind", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_the_limits_of_the_process_count(kind: str) -> None:
    program = f"""
import resource, torch
from bayescope.memory import free_memory
pages = int(open("/proc/self/statm").read().split()[{0 if kind == "RLIMIT_AS" else 5}])
resource.setrlimit(resource.{kind}, (pages * resource.getpagesize() + 2**28, resource.RLIM_INFINITY))
free = free_memory(torch.device("cpu"))
torch.set_num_threads(1)  # each further one has a stack
kept = torch.ones(2**24, dtype=torch.float64)
print(free, free_memory(torch.device("cpu")))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    before, after = map(int, run.stdout.split())
    assert 0.9 * 2**28 < before <= 2**28
    assert 0.9 * 2**27 < before - after < 1.1 * 2**27


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (2_340_000, "2.34 MB"), (5 * 10**15, "5e+03 TB")],
)
def test_sizes_are_told_as_people_read_them(count: int, text: str) -> None:
    assert readable(count) == text


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes")])
def test_memory_that_ran_out_is_told_in_our_words(error: Exception) -> None:
    with pytest.raises(MemoryBudgetError, match=r"memory: expected enough for this, but it ran out with .* left: "):
        refuse_ran_out(error)


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), MemoryBudgetError("ours"), KeyboardInterrupt()])
def test_other_errors_are_left_as_they_are(error: BaseException) -> None:
    refuse_ran_out(error)


@final
class Exhausted(TorchDispatchMode):
    """Memory that has no room for an eigendecomposition."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return torch.empty(2**60) if "eigh" in str(func) else func(*args, **(kwargs or {}))


def test_a_fit_that_runs_out_of_memory_says_so_and_leaves_the_estimator_as_it_was() -> None:
    model = bs.BayesianLinearRegression()
    with Exhausted(), pytest.raises(MemoryBudgetError, match="it ran out"):
        model.fit([[0.0], [1.0], [2.0]], [0.0, 1.1, 1.9])
    assert not hasattr(model, "posterior_")
