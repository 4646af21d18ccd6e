"""Ends of the command line: signals at random moments, and standard streams that are full, closed or read by nobody."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.attacks import Outcome

KILLS = (("bayescope_command", "info", 30), ("bayescope", "predict", 30), ("bayescope", "fit", 18))
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INTERRUPTED = "bayescope: interrupted; no file is half-written.\n"
# Tells the end of a pipe that Python itself has started, and the first slow import of the command line begins.
BEGUN = """
import os, sys

def once(event, given):
    if event == "import" and given[0] in ("typer", "bayescope.density") and not told:
        told.append(os.write(int(os.environ["BEGUN"]), b"x"))

told = []
sys.addaudithook(once)
"""


def prepared(folder: Path) -> dict[str, list[str]]:
    """A table, a model that is fitted to it, and each command with its arguments."""
    rows = "".join(f"{i % 7},{(i * 5) % 11},{int(i % 7 + i % 3 > 4)}\n" for i in range(60))
    (folder / "t.csv").write_text("a,b,y\n" + rows)
    fit = ["fit", "t.csv", "--target", "y", "--model", "additive", "--out"]
    subprocess.run([sys.executable, "-m", "bayescope", *fit, "m.bayes"], cwd=folder, capture_output=True, check=True)
    return {
        "--help": ["--help"],
        "info": ["info", "m.bayes"],
        "predict": ["predict", "m.bayes", "t.csv", "--out", "p.csv"],
        "predict --out -": ["predict", "m.bayes", "t.csv", "--out", "-"],
        "effects": ["effects", "m.bayes", "--out", "effects"],
        "fit": [*fit, "n.bayes"],
        "report": ["report", "m.bayes", "t.csv", "--out", "r.html", "--reference", "none"],
        "compare": ["compare", "t.csv", "--target", "y", "--posteriors", "map", "--out", "compared"],
        "gallery": ["gallery", "--out", "pictures", "--only", "sigmoid-against-probit"],
    }


def killed(folder: Path, module: str, words: Sequence[str], number: int, delay: float) -> str:
    """What is wrong with how a command ends that is sent a signal so many seconds after its start, or nothing."""
    (folder / "hook").mkdir(exist_ok=True)
    (folder / "hook" / "sitecustomize.py").write_text(BEGUN)
    reads, writes = os.pipe()
    path = os.pathsep.join([str(folder / "hook"), *filter(None, sys.path)])
    process = subprocess.Popen(
        [sys.executable, "-m", module, *words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        pass_fds=[writes], env={**os.environ, "BEGUN": str(writes), "PYTHONPATH": path},
    )  # fmt: skip
    os.close(writes)
    with os.fdopen(reads, "rb") as begun:
        begun.read(1)
    time.sleep(delay)
    process.send_signal(number)
    _, err = process.communicate(timeout=300)
    left = [file.name for file in folder.iterdir() if file.name.startswith(".bayescope-unfinished")]
    finished = process.returncode == 0 and err.count("\n") <= 1 and "Traceback" not in err
    if (finished or (process.returncode == 128 + number and err == INTERRUPTED)) and not left:
        return ""
    return f"code {process.returncode}, {' '.join(err.split())[-120:]!r}, left: {left}"


def streams() -> dict[str, tuple[str, set[int], bool]]:
    """What is done to the streams in a shell, the codes that are right, and whether one line has to be told."""
    return {
        "the output is closed": ("bayescope >&-", {2}, True),
        "the output is full": ("bayescope >/dev/full", {2}, True),
        "nobody reads the output": ("(bayescope; echo $? >code) | true; exit $(cat code)", {141}, False),
        "the reader leaves early": ("(bayescope; echo $? >code) | head -c 1; exit $(cat code)", {0, 141}, False),
        "the error stream is closed": ("bayescope >/dev/null 2>&-", {0}, False),
        "the error stream is full": ("bayescope >/dev/null 2>/dev/full", {0}, False),
    }  # fmt: skip


def bent(folder: Path, line: str, words: Sequence[str], codes: set[int], told: bool) -> str:
    """What is wrong with the end of a command whose streams are bent; empty if nothing."""
    call = " ".join([sys.executable, "-m", "bayescope_command", *words])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run = subprocess.run(
        ["sh", "-c", line.replace("bayescope", call, 1)],
        cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    lines = run.stderr.count("\n")
    if run.returncode in codes and "Traceback" not in run.stderr and (lines == 1 if told else lines <= 1):
        return ""
    return f"code {run.returncode}, {' '.join(run.stderr.split())[-120:]!r}"


def attacks(quick: bool) -> Iterator[Outcome]:
    """Signals while the library is imported and while a command works; then the streams of every command."""
    source = random.Random(0)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where this was started to ignore it
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if quick:
            for module in ("bayescope_command", "bayescope"):
                wrong = killed(folder, module, ["info", "m.bayes"], signal.SIGINT, 0.0)
                yield Outcome(f"{module}: a signal as it begins", 0, int(not wrong), int(bool(wrong)), wrong)
            return
        commands = prepared(folder)
        for module, verb, tries in KILLS:
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-m", module, *commands[verb]], cwd=folder, capture_output=True, check=True)
            whole = time.perf_counter() - begin
            found = [
                killed(folder, module, commands[verb], SIGNALS[k % 3], source.uniform(0.0, whole)) for k in range(tries)
            ]
            wrong = [each for each in found if each]
            said = wrong[0] if wrong else ""
            attack = f"python -m {module} {verb}: a signal at a random moment"
            yield Outcome(attack, 0, tries - len(wrong), len(wrong), said)
        for what, (line, codes, told) in streams().items():
            verbs = commands if what == "the output is full" else ("--help", "info", "predict --out -")
            found = {verb: bent(folder, line, commands[verb], codes, told) for verb in verbs}
            wrong = [f"{verb}: {each}" for verb, each in found.items() if each]
            right, said = len(found) - len(wrong), wrong[0] if wrong else ""
            yield Outcome(what, right if told else 0, 0 if told else right, len(wrong), said)
