"""Fits by several processes: what a process does by itself."""

from bayescope.processes import alone

__all__ = ["alone"]
