"""`bayescope explore`: it prints an address that answers, and Ctrl-C ends it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from bayescope.cli.exploring import explore
from bayescope.errors import InputError
from bayescope_command.app import ExploreOptions
from tests.cli.started import command


def test_a_port_that_is_taken_is_refused():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"--port: expected a free port, got {port}"):
            explore(ExploreOptions(port=port, browser=False))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends Ctrl-C to the whole console")
def test_ctrl_c_ends_it_cleanly():
    typed = [*command(), "explore", "--no-browser"]
    with subprocess.Popen(typed, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        url = process.stdout.readline().strip()
        with urllib.request.urlopen(url) as page:
            assert "bayescope explore" in page.read().decode()
        process.send_signal(signal.SIGINT)
        shown, complaints = process.communicate(timeout=60)
    assert process.returncode == 0
    assert shown.endswith("ended\n")
    assert complaints == ""
