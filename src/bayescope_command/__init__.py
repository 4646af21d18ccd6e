"""The face of the command line: commands, options and how they end, known before the library is imported.

It lies beside the library since importing any part of `bayescope` imports all of it, and torch: `--help` and a shell's
completion answer without.
"""

from bayescope_command.app import app, main

__all__ = ["app", "main"]
