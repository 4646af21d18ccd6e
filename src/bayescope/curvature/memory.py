"""How much memory a run may take."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from bayescope.errors import MemoryBudgetError

_LIMITED = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
# What needs no more than this is not held against what is free.
UNCHECKED_BYTES = 2**28
_UNITS = ("B", "kB", "MB", "GB", "TB")


def free_memory(device: torch.device) -> int:
    """Bytes that are free on a device: of a GPU's own memory, else of the machine's, within a container's limit.

    Where the system does not tell, what cannot be known is not held against a run: the answer is the largest integer.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = _available()
    for limit, used in _LIMITED:
        texts = [_read(path) for path in (limit, used)]
        if all(text.isdigit() for text in texts):
            free = min(free, max(0, int(texts[0]) - int(texts[1])))
    return free


def require_memory(needed: int, purpose: str, advice: str) -> None:
    """Refuses what memory does not hold, before it is made.

    Args:
        needed: bytes.
        purpose: what takes them, such as "a matrix of so many numbers".
        advice: what to do instead.

    Raises:
        MemoryBudgetError: if they are more than what is free, and more than `UNCHECKED_BYTES`.
    """
    if needed > UNCHECKED_BYTES and needed > (free := free_memory(torch.device("cpu"))):
        raise MemoryBudgetError(
            f"memory: expected at most {readable(free)}, but {purpose} takes about {readable(needed)}. {advice}"
        )


def readable(count: int) -> str:
    """A number of bytes as people read it: "3.2 GB"."""
    power = 0
    while power < len(_UNITS) - 1 and count >= 1000 ** (power + 1):
        power += 1
    return f"{count / 1000**power:.3g} {_UNITS[power]}"


def _available() -> int:
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    names = getattr(os, "sysconf_names", {})
    if "SC_AVPHYS_PAGES" in names and "SC_PAGE_SIZE" in names:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return sys.maxsize


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
