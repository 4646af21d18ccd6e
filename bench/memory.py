"""The memory that a call takes, as the kernel keeps it: nothing runs beside the call.

A thread that samples the resident size wakes a thousand times a second, and the work and it hand Python's lock to each
other at every one of the sample's system calls: on a busy machine that doubles the time of what is measured. Linux
notes the highest resident size of a process itself, and starts anew when told so.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

# What makes of the highest resident size the present one; see the manual page of proc_pid_clear_refs.
RESET = "5"


def peak_growth(work: Callable[[], object]) -> int:
    """The highest resident size in bytes during a call less that before it.

    Raises:
        OSError: where the kernel is not Linux's, or does not let a process reset its mark.
    """
    Path("/proc/self/clear_refs").write_text(RESET, encoding="ascii")
    before = _highest()
    work()
    return _highest() - before


def _highest() -> int:
    """The highest resident size since the last reset, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (line,) = (each for each in lines if each.startswith("VmHWM:"))
    return 1024 * int(line.split()[1])
