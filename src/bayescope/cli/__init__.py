"""The command line: what `bayescope fit`, `predict`, `compare`, `report`, `effects`, `info` and `gallery` do."""

from bayescope_command import main
from bayescope_command.app import app

__all__ = ["app", "main"]
