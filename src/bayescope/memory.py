"""How much memory a run may take."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from bayescope import checks
from bayescope.errors import OUT_OF_MEMORY, MemoryBudgetError

if sys.platform != "win32":
    import resource

# Control groups of either version: the name of the controller in /proc/self/cgroup, the folder of the groups, and the
# files of a group's limit and of what it uses.
_GROUPS = (
    ("", "sys/fs/cgroup", "memory.max", "memory.current"),
    ("memory", "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
# Pages of files that were read count as used by a group; the kernel drops them as soon as memory is wanted.
_DROPPED = ("inactive_file", "active_file")
# What needs no more than this is not held against what is free: to look costs about 0.1 ms.
UNCHECKED_BYTES = 2**24
# Draws are there in pieces, and joined.
DRAW_COPIES = 2
_CPU = torch.device("cpu")
_UNITS = ("B", "kB", "MB", "GB", "TB")

_limit: ContextVar[int | None] = ContextVar("memory_limit", default=None)


@contextmanager
def memory_limit(limit: int) -> Iterator[None]:
    """Inside, `require_memory` refuses what needs more than this many bytes, however much memory is free."""
    token = _limit.set(limit)
    try:
        yield
    finally:
        _limit.reset(token)


def free_memory(device: torch.device, root: Path = Path("/")) -> int:
    """Bytes that this process may still take: of a GPU's own memory, else of the machine's.

    Of the machine's memory it is the least of what is available, what the limits of the process's control group and of
    all groups above it leave, and what the process's own limits on its address space and its data leave (``ulimit -v``
    and ``ulimit -d``). A limit that the system does not tell forbids nothing: without any, it is the largest integer.

    Args:
        device: whose memory.
        root: of the file system in which /proc and /sys are.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return max(0, min([_available(root), *_left_of_groups(root), *_left_of_process(root)]))


def require_memory(
    needed: int, purpose: str, advice: str, *, budget: int | None = None, device: torch.device = _CPU
) -> None:
    """Refuses what memory does not hold, before it is made.

    Args:
        needed: bytes.
        purpose: what takes them, such as "a matrix of 10,000² numbers".
        advice: what to do instead.
        budget: the most bytes that may be taken; by default that of `memory_limit`, else what is free.
        device: that they are taken on.

    Raises:
        MemoryBudgetError: if they are more than the budget, or more than what is free and than `UNCHECKED_BYTES`.
    """
    budget = _limit.get() if budget is None else budget
    if needed <= (UNCHECKED_BYTES if budget is None else budget):
        return
    most = free_memory(device) if budget is None else budget
    if needed > most:
        raise MemoryBudgetError(
            f"memory: expected at most {readable(most)}, but {purpose} would take about {readable(needed)}. {advice}"
        )


def refuse_ran_out(error: BaseException) -> None:
    """Turns what NumPy, Python or torch raise where memory has run out into the library's own error.

    Raises:
        MemoryBudgetError: if that is what the error says, and it is not one of these already.
    """
    if isinstance(error, MemoryBudgetError):
        return
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and OUT_OF_MEMORY in str(error)):
        raise MemoryBudgetError(
            f"memory: expected enough for this, but it ran out with {readable(free_memory(_CPU))} left: "
            f"{' '.join(str(error).split()) or type(error).__name__}. Take fewer rows, columns or draws."
        ) from error


def draw_count(n: Any, numbers: int, *, copies: int = DRAW_COPIES) -> int:
    """How many draws are asked for, if memory holds them.

    Args:
        n: what was asked for.
        numbers: of a draw.
        copies: how many of each draw are there at once.

    Raises:
        InputError: if it is no count.
        MemoryBudgetError: if memory does not hold them.
    """
    count = checks.count("n", n)
    require_memory(
        copies * 8 * count * numbers, f"{count:,} draws of {numbers:,} numbers each", "Ask for fewer at a time."
    )
    return count


def readable(count: int) -> str:
    """A number of bytes as people read it: "3.2 GB"."""
    power = 0
    while power < len(_UNITS) - 1 and count >= 1000 ** (power + 1):
        power += 1
    return f"{count / 1000**power:.3g} {_UNITS[power]}"


def _available(root: Path) -> int:
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    names = getattr(os, "sysconf_names", {})
    if "SC_AVPHYS_PAGES" in names and "SC_PAGE_SIZE" in names:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return sys.maxsize


def _left_of_groups(root: Path) -> Iterator[int]:
    """What each limit leaves of the process's control group and of the groups that this is in."""
    groups = {
        controller: path
        for line in _read(root / "proc/self/cgroup").splitlines()
        for _, controllers, path in [line.split(":", 2)]
        for controller in controllers.split(",")
    }
    for controller, top, limit, used in _GROUPS:
        group = root / top
        for part in PurePosixPath(groups.get(controller, "/")).parts:
            group /= part.lstrip("/")
            texts = [_read(group / name) for name in (limit, used)]
            if all(text.isdigit() for text in texts):
                statistics = (line.split() for line in _read(group / "memory.stat").splitlines())
                dropped = sum(int(count) for name, count in statistics if name in _DROPPED)
                yield int(texts[0]) - max(0, int(texts[1]) - dropped)


def _left_of_process(root: Path) -> Iterator[int]:
    """What the process's own limits leave."""
    if sys.platform == "win32":
        return
    pages = _read(root / "proc/self/statm").split()
    for kind, column in ((resource.RLIMIT_AS, 0), (resource.RLIMIT_DATA, 5)):
        limit, _ = resource.getrlimit(kind)
        if limit != resource.RLIM_INFINITY:
            yield limit - (int(pages[column]) * resource.getpagesize() if pages else 0)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
