"""Signals at any moment, and standard streams that are full, closed or read by nobody: one line and its exit code."""

import os
import shlex
import signal
import subprocess
import sys

import pandas as pd
import pytest

from bayescope.estimators import BayesianLinearRegression
from tests.cli.started import command

INTERRUPTED = "bayescope: interrupted; no file is half-written.\n"
EMPTY = "bayescope: standard input: expected a header and rows, got an empty file. Give a table with data.\n"
LOST = "bayescope: standard output: expected it to take the answer, got: "
FULL = f"{LOST}No space left on device. Send it elsewhere.\n"

# Raises a signal as soon as a module is imported.
HOOK = """
import signal, sys

def once(event, given):
    if event == "import" and given[0] == {module!r} and not told:
        told.append(given)
        signal.raise_signal({number})

told = []
sys.addaudithook(once)
"""


def shell(line, tmp_path, start=(sys.executable, "-m", "bayescope_command"), **places):
    """The exit code of a line of the shell, and what it wrote to the streams that are left to it."""
    ended = subprocess.run(
        ["sh", "-c", line.replace("bayescope", shlex.join(start), 1)],
        capture_output=True, text=True, check=False, cwd=tmp_path, env={**os.environ, **places},
    )  # fmt: skip
    return ended.returncode, ended.stdout, ended.stderr


def hooked(tmp_path, module, number, *command):
    (tmp_path / "sitecustomize.py").write_text(HOOK.format(module=module, number=int(number)))
    path = os.pathsep.join([str(tmp_path), *sys.path])
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path}
    )


@pytest.mark.parametrize(
    ("command", "module", "number"),
    [
        ("bayescope_command", "typer", signal.SIGINT),
        ("bayescope_command", "bayescope_command.app", signal.SIGTERM),
        ("bayescope_command", "torch", signal.SIGHUP),
        ("bayescope_command", "numpy", signal.SIGINT),
        ("bayescope", "torch._C", signal.SIGINT),
        ("bayescope", "bayescope.errors", signal.SIGTERM),
    ],
)
def test_a_signal_during_the_imports_ends_in_one_line(tmp_path, command, module, number):
    ended = hooked(tmp_path, module, number, "-m", command, "info", "none.bayes")
    assert (ended.returncode, ended.stdout, ended.stderr) == (128 + number, "", INTERRUPTED)


def test_a_signal_while_the_interpreter_shuts_down_changes_nothing():
    code = "import atexit, os, signal\nfrom bayescope_command import main\n"
    code += "atexit.register(os.kill, os.getpid(), signal.SIGINT)\nmain()"
    ended = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout[:12], ended.stderr) == (0, "bayescope 0.", "")


def test_what_the_process_was_started_to_ignore_stays_ignored(tmp_path):
    code, out, err = shell("trap '' INT; bayescope --version; kill -INT $$", tmp_path)
    assert (code, out[:12], err) == (0, "bayescope 0.", "")
    script = "import signal\nfrom bayescope_command.process import signals_end\n"
    script += "signal.signal(signal.SIGHUP, signal.SIG_IGN)\nwith signals_end(): signal.raise_signal(signal.SIGHUP)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


SWALLOWED = """
import signal, time
from bayescope_command.process import clean_up_first, signals_end

class Left:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)

with signals_end():
    clean_up_first()
    Left()
    time.sleep(60)
"""


def test_a_signal_in_a_place_that_raises_nothing_is_raised_again():
    ended = subprocess.run([sys.executable, "-c", SWALLOWED], capture_output=True, text=True, check=False, timeout=50)
    assert (ended.returncode, ended.stdout, ended.stderr) == (143, "", "")


CLEANING = """
import signal, sys
from bayescope_command.process import clean_up_first, signals_end

with signals_end():
    clean_up_first()
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.raise_signal(signal.SIGTERM)  # torchrun sends one beside the terminal's
        print("cleaned up", flush=True)
"""


def test_a_second_signal_waits_for_the_cleaning_up_after_the_first():
    ended = subprocess.run([sys.executable, "-c", CLEANING], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "cleaned up\n", "")


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        ("bayescope --version >&-", 2, f"{LOST}it is closed. Send it elsewhere.\n"),
        ("bayescope --help >/dev/full", 2, FULL),
        ("(sleep 1; bayescope --help; echo $? >code) | true; exit $(cat code)", 141, ""),
        ("bayescope nothing 2>&-", 2, ""),
        ("bayescope nothing 2>/dev/full", 2, ""),
        ("(sleep 1; bayescope nothing; echo $? >code) 2>&1 >/dev/null | true; exit $(cat code)", 2, ""),
        ("bayescope --version >&- 2>&- <&-", 2, ""),
        ("bayescope --version <&-", 0, ""),
    ],
)  # fmt: skip
def test_streams_that_take_nothing_end_in_one_line_and_the_code(tmp_path, line, code, told):
    found, _, err = shell(line, tmp_path)
    assert (found, err) == (code, told)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ends")
    frame = pd.DataFrame({"x": [float(row % 7) for row in range(40)]})
    frame.to_csv(folder / "t.csv", index=False)
    BayesianLinearRegression().fit(frame, [row % 5 for row in range(40)]).save(folder / "m.bayes")
    return folder


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        ("(bayescope info m.bayes; echo $? >code) | true; exit $(cat code)", 141, ""),
        ("bayescope predict m.bayes t.csv --out - >/dev/full", 2, FULL),
        ("bayescope predict m.bayes - --out p.csv <&-", 2, EMPTY),
        ("bayescope predict m.bayes t.csv --out p.csv >&- 2>&-", 2, ""),
    ],
)  # fmt: skip
def test_answers_that_cannot_be_delivered(fitted, line, code, told):
    found, _, err = shell(line, fitted, command())
    assert (found, err) == (code, told)
    assert sorted(file.name for file in fitted.iterdir() if file.name != "code") == ["m.bayes", "t.csv"]
