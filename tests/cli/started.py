"""Commands as processes of their own, forked from one that has made the imports, which take most of a command's time.

The process that starts a command is a small client: it hands its streams, arguments, folder and environment to the
forked one, passes signals on to it, and ends as it ends. All that a command does, up to the end of its interpreter, is
as if it had been started itself.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
IMPORTS = ["bayescope.cli.fitting", "bayescope.cli.predicting", "bayescope.cli.comparing", "bayescope.cli.exploring"]


def command() -> list[str]:
    """The words that start `bayescope` in a process, before its arguments."""
    return [sys.executable, "-S", "-E", __file__, _server()]


@cache
def _server() -> str:
    """Where the process listens that has made the imports; it ends with this one."""
    folder = tempfile.mkdtemp()
    place = str(Path(folder) / "commands")
    # GNU's OpenMP waits forever for its threads in a process that was forked beside them.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [sys.executable, __file__, place, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    assert server.stdout.readline() == b"ready\n"
    atexit.register(shutil.rmtree, folder)
    atexit.register(server.communicate)  # which closes its input
    return place


def _ask(place: str, arguments: list[str]) -> int:
    """The client: runs a command on the server, and returns its exit status."""
    there = [number for number in (0, 1, 2) if _is_open(number)]
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(place)
    request = json.dumps([there, arguments, os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(connection, [len(request).to_bytes(4, "big")], there)
    connection.sendall(request)
    answers = connection.makefile()
    process = int(answers.readline())
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda given, _: os.kill(process, given))
    return int(answers.readline())


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _serve(place: str) -> list[str]:
    """Forks a process for each request; in that process it returns the arguments, and its streams are the client's."""
    for module in IMPORTS:
        __import__(module)
    gc.freeze()  # else the end of each command looks through all that was imported
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(place)
    listening.listen(64)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    running: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([0, listening], [], [], 0.01 if running else None)
        if 0 in ready:
            os._exit(0)
        while running and (ended := os.waitpid(-1, os.WNOHANG))[0]:
            with running.pop(ended[0]) as connection:
                connection.sendall(f"{os.waitstatus_to_exitcode(ended[1])}\n".encode())
        if listening in ready:
            connection, _ = listening.accept()
            size, files, _, _ = socket.recv_fds(connection, 4, 3)
            request = json.loads(connection.makefile("rb").read(int.from_bytes(size, "big")))
            if process := os.fork():
                running[process] = connection
                connection.sendall(f"{process}\n".encode())
                for each in files:
                    os.close(each)
                continue
            for each in (listening, connection, *running.values()):
                each.close()
            return _become(files, *request)


def _become(
    files: list[int], there: list[int], arguments: list[str], folder: str, environment: dict[str, str]
) -> list[str]:
    """Takes the streams, the folder and the environment of the client."""
    for number in (0, 1, 2):
        os.close(number)
    for number, given in zip(there, files, strict=True):
        os.dup2(given, number)
        os.close(given)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        stream = open(number, mode, closefd=False, encoding="utf-8") if number in there else None  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    return arguments


if __name__ == "__main__":
    if sys.argv[2:] == ["--serve"]:
        sys.argv = ["bayescope", *_serve(sys.argv[1])]
        from bayescope_command import main

        main()
    else:
        status = _ask(sys.argv[1], sys.argv[2:])
        if status < 0:
            signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
        os._exit(status)
