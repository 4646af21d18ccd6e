"""The command line: what `bayescope fit`, `predict`, `compare`, `report`, `effects`, `info` and `gallery` do."""

from bayescope_command import app, main

__all__ = ["app", "main"]
