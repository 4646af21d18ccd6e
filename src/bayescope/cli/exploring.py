"""`bayescope explore`: a page on this machine where posteriors are seen at work."""

from __future__ import annotations

import signal
import webbrowser

from bayescope.cli.answer import stdout, verbatim
from bayescope.errors import InputError
from bayescope.explore import serving
from bayescope_command.app import ExploreOptions
from bayescope_command.process import Stopped


def explore(options: ExploreOptions) -> None:
    """Serves the page until Ctrl-C.

    Raises:
        InputError: if the port cannot be used.
    """
    try:
        server = serving(options.port)
    except OSError as error:
        raise InputError(
            f"--port: expected a free port, got {options.port}: {error.strerror}. Leave it out."
        ) from error
    console = stdout()
    try:
        console.print(verbatim(f"{server.url}\nCtrl-C ends it."), soft_wrap=True)
        if options.browser:
            webbrowser.open(server.url)
        server.serve_forever()
    except (KeyboardInterrupt, Stopped) as stop:
        if isinstance(stop, Stopped) and stop.number != signal.SIGINT:
            raise
        console.print("ended")
    finally:
        server.server_close()
