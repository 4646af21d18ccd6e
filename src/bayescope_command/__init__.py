"""The face of the command line: commands, options and how they end, known before the library is imported.

It lies beside the library since importing any part of `bayescope` imports all of it, and torch: `--help` and a shell's
completion answer without.
"""

from bayescope_command.process import signals_end


def main() -> None:
    """Runs the command line on the process's arguments, and without any shows the help."""
    with signals_end():
        try:
            from bayescope_command.app import run  # a tenth of a second, in which a signal can come
        except ModuleNotFoundError as error:  # a slim install
            message = f"{error.name} is needed here and is not installed: pip install bayescope (without --no-deps)."
            raise SystemExit(f"bayescope: {message}") from error

        run()
