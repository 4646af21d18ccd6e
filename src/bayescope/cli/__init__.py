"""The command line: `bayescope compare`, `bayescope gallery`."""

from bayescope.cli.app import app, main

__all__ = ["app", "main"]
