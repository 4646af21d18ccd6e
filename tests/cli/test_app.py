"""The command line: what it prints and writes, and how it ends."""

import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import typer

from bayescope.cli.comparing import compare_table
from bayescope.comparison import compare
from bayescope.errors import ConvergenceError
from bayescope.estimators import BayesianLogisticRegression
from bayescope_command.app import CompareOptions
from bayescope_command.exits import exits
from tests.cli.started import command
from tests.cli.tables import refused, run
from tests.conditions import file_limit

pytest.importorskip("nutpie")

SEEDS = "invalid value for '--seed': expected a whole number from 0 to 4294967295"


def table(tmp_path, classes=2, rows=60, **columns):
    source = np.random.default_rng(0)
    y = np.arange(rows) % classes
    frame = pd.DataFrame(
        {"width": y + source.normal(size=rows), "height": source.normal(size=rows), "kind": y, **columns}
    )
    path = tmp_path / "table.csv"
    frame.to_csv(path, index=False)
    return path


def short_chains(template, *arguments, draws=300, **options):
    return compare(template.set_params(draws=draws, tune=draws, chains=2), *arguments, **options)


def compared(path, capsys, compare, *, out=None, **options):
    """The exit code, the answer and the complaint of `bayescope compare` where a function makes the comparison."""
    code = 0
    given = {"posteriors": "map", "prior_precision": "1", **options}
    try:
        with exits():
            compare_table(CompareOptions(table=path, target="kind", out=out, **given), compare)
    except typer.Exit as end:
        code = end.exit_code
    return code, *capsys.readouterr()


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    frame = pd.read_csv(table(tmp_path_factory.mktemp("compared")))
    return compare(
        BayesianLogisticRegression(), frame[["width", "height"]], frame["kind"], posteriors=["map"], reference="laplace"
    )


def test_compare_prints_the_table_and_writes_files(tmp_path, capsys):
    code, printed, complaint = compared(
        table(tmp_path), capsys, short_chains, out=tmp_path / "out", posteriors="map,laplace"
    )
    assert (code, complaint) == (0, "")
    for text in ("MAP", "Laplace", "NUTS", "NLL", "AUROC", "TV to NUTS", "sd error", "log evidence", "k̂ > 0.7"):
        assert text in printed
    written = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"comparison.csv", "comparison.md", "reliability.png", "marginals.png", "decision_surface.png"} <= written
    assert all(f"wrote {tmp_path / 'out' / name}\n" in printed for name in written)


def test_a_column_of_numbers_is_a_regression(tmp_path, capsys):
    path = table(tmp_path, kind=np.linspace(0.0, 9.0, 60) ** 1.5)
    options = {"posteriors": "ridge", "out": tmp_path / "out", "prior_precision": None}
    code, printed, complaint = compared(path, capsys, compare, **options)
    assert (code, complaint) == (0, "")
    assert "1 posterior, 1 baseline" in printed
    for text in ("Ridge", "Exact", "CRPS", "RMSE", "W1 to Exact"):
        assert text in printed
    written = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"comparison.csv", "comparison.md", "calibration.png", "agreement.png", "report.html"} == written


def test_the_model_is_chosen_as_for_fit(tmp_path, capsys):
    options = {"model": "additive", "given": ["hidden=4", "epochs=5", "burn_in=1"], "prior_precision": None}
    code, printed, _ = compared(table(tmp_path), capsys, compare, **options)
    assert code == 0
    assert "Laplace, an approximation too, is the reference" in printed


def test_options_reach_the_model(tmp_path, capsys):
    options = {"test_size": 0.5, "seed": 3, "link": "probit", "features": "polynomial", "prior_precision": "evidence"}
    code, printed, _ = compared(table(tmp_path), capsys, short_chains, **options)
    assert code == 0
    assert "30 training rows, 30 test rows" in printed
    assert "Prior precision: " in printed
    assert "add --out" in printed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--target", "kin"], "Did you mean 'kind'?"),
        (["--posteriors", "map,laplase"], "Did you mean 'laplace'?"),
        (["--posteriors", ""], "posteriors: expected one of"),
        (["--test-size", "1.5"], "test_size: expected a number strictly between 0 and 1"),
        (["--test-size", "0.99"], "split: expected at least 2 training rows"),
        (["--prior-precision", "weak"], "prior_precision: "),
        (["--prior-precision", "-1"], "prior_precision: expected"),
        (["--link", "cauchit"], "link: expected one of"),
        (["--features", "splines"], "features: expected one of"),
        (["--out", "/dev/null/results"], "--out: expected a folder"),
    ],
)
def test_options_that_cannot_be_used(tmp_path, options, message):
    out = tmp_path / "out"
    given = ["--target", "kind", "--out", out, *options]
    assert refused(run("compare", table(tmp_path), *given), message)
    assert not out.exists()


def test_ep_for_three_classes(tmp_path):
    result = run("compare", table(tmp_path, classes=3), "--target", "kind", "--posteriors", "ep")
    assert refused(result, "posterior='ep': ")


@pytest.mark.parametrize("name", ["comparison.md", "reliability.png"])
def test_a_folder_in_the_place_of_a_file_is_refused_before_the_fits(tmp_path, capsys, name):
    (tmp_path / "out" / name).mkdir(parents=True)
    ended = compared(table(tmp_path), capsys, raising(AssertionError("fitted")), out=tmp_path / "out")
    assert ended[:2] == (2, "")
    assert f"{name}, got a folder of that name" in ended[2]
    assert [file.name for file in (tmp_path / "out").iterdir()] == [name]


def test_a_full_disk_ends_in_one_line_and_leaves_nothing(tmp_path, capsys, comparison):
    path = table(tmp_path)
    with file_limit(8000):
        code, _, complaint = compared(path, capsys, lambda *_, **__: comparison, out=tmp_path / "out")
    assert (code, complaint.count("\n")) == (2, 1)
    assert "File too large" in complaint
    assert not (tmp_path / "out").exists()


def test_out_is_a_file(tmp_path):
    path = table(tmp_path)
    assert refused(run("compare", path, "--target", "kind", "--out", path), "is a file. Name another folder")
    assert path.read_text().startswith("width")


def raising(error):
    def compare(*_, **__):
        raise error

    return compare


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ConvergenceError("no mode\nin sight"), 1, "bayescope: no mode in sight\n"),
        (KeyboardInterrupt(), 130, "bayescope: interrupted; no file is half-written.\n"),
    ],
)
def test_failures_and_interruptions_end_in_one_line(tmp_path, capsys, error, code, message):
    ended = compared(table(tmp_path), capsys, raising(error), out=tmp_path / "out")
    assert ended == (code, "", message)
    assert not (tmp_path / "out").exists()


def test_an_interruption_while_saving_leaves_nothing(tmp_path, capsys, comparison):
    """It comes while the last picture is drawn, when the table has been written."""
    outcomes = {
        name: replace(outcome, fitted=replace(outcome.fitted, predict=raising(KeyboardInterrupt())))
        for name, outcome in comparison.outcomes.items()
    }
    stopped = replace(comparison, outcomes=outcomes)
    code, _, complaint = compared(table(tmp_path), capsys, lambda *_, **__: stopped, out=tmp_path / "out")
    assert (code, complaint) == (130, "bayescope: interrupted; no file is half-written.\n")
    assert not (tmp_path / "out").exists()


def test_warnings_stand_in_the_footnotes_and_not_on_the_error_stream(tmp_path, capsys):
    code, printed, complaint = compared(table(tmp_path), capsys, partial(short_chains, draws=20))
    assert (code, complaint) == (0, "")
    assert "NUTS, warning: " in printed


def test_version_and_help():
    assert run("--version").stdout.startswith("bayescope 0.")
    helped = run("compare", "--help")
    assert helped.exit_code == 0
    for option in (
        "--target",
        "--out",
        "--posteriors",
        "--test-size",
        "--seed",
        "--link",
        "--prior-precision",
        "--features",
    ):
        assert option in helped.stdout


def test_gallery_draws_what_is_asked_for(tmp_path):
    result = run("gallery", "--out", tmp_path / "pictures", "--only", "sigmoid-against-probit")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "pictures" / "sigmoid-against-probit.png").exists()
    assert refused(
        run("gallery", "--out", tmp_path / "more", "--only", "sigmoid-against-probi"),
        "Did you mean 'sigmoid-against-probit'?",
    )
    assert not (tmp_path / "more").exists()


def process(*arguments, start=(sys.executable, "-m", "bayescope_command")):
    return subprocess.run([*start, *map(str, arguments)], capture_output=True, text=True, check=False)


def test_a_process_ends_with_the_code_and_the_line(tmp_path):
    ended = process("compare", tmp_path / "none.csv", "--target", "kind", start=command())
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"bayescope: {tmp_path / 'none.csv'}: expected a file, got nothing there.\n"
    ended = process("nothing", start=(sys.executable, "-m", "bayescope"))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "bayescope: no such command 'nothing'; see 'bayescope --help'.\n"


@pytest.mark.parametrize(
    ("arguments", "slip", "asked"),
    [
        (["compare", "t.csv"], "missing option '--target'", "bayescope compare"),
        (["compare"], "missing argument 'table'", "bayescope compare"),
        (
            ["report", "m.bayes", "t.csv", "--training", "--out", "r.html"],
            "--training: expected a value, got the option --out",
            "bayescope report",
        ),
        (["compare", "t.csv", "--colour", "red"], "no such option: --colour", "bayescope compare"),
        (["compare", "t.csv", "--seed", "x"], "invalid value for '--seed'", "bayescope compare"),
        *(
            (
                [command, "t.csv", "--target", "y", "--out", "o", "--seed", seed],
                f"{SEEDS}, got {seed}",
                f"bayescope {command}",
            )
            for command in ("fit", "compare")
            for seed in ("-1", "99999999999")
        ),
        (["comparing"], "no such command 'comparing'", "bayescope"),
    ],
)
def test_a_slip_in_the_arguments_ends_in_one_line(arguments, slip, asked):
    ended = process(*arguments)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert ended.stderr.lower().startswith(f"bayescope: {slip}")
    assert ended.stderr.endswith(f"; see '{asked} --help'.\n")


def test_no_arguments_show_the_help():
    ended = process()
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "compare" in ended.stdout


def test_help_loads_neither_the_library_nor_torch():
    code = "import sys, bayescope_command.app; sys.exit(bool({'bayescope', 'torch', 'numpy'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_command_has_help_and_completion():
    shown = run("--help").stdout
    for name in ("check", "fit", "predict", "compare", "report", "effects", "info", "gallery"):
        assert f" {name} " in shown
        assert run(name, "--help").exit_code == 0
    assert "--install-completion" in shown


SLEEPS = """
import sys, time
import bayescope.cli.fitting as fitting
from bayescope_command import main

def fit(*_):
    print("fitting", flush=True)
    time.sleep(60)

fitting._fit = fit
sys.argv = ["bayescope", *sys.argv[1:]]
main()
"""


def test_a_fit_that_is_killed_leaves_what_was_there(tmp_path):
    path, out = table(tmp_path), tmp_path / "m.bayes"
    out.write_text("what was there")
    command = [sys.executable, "-c", SLEEPS, "fit", str(path), "--target", "kind", "--out", str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as fit:
        assert fit.stdout.readline() == "fitting\n"
        fit.terminate()
        _, err = fit.communicate(timeout=60)
    assert (fit.returncode, err) == (143, "bayescope: interrupted; no file is half-written.\n")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m.bayes", "table.csv"]
    assert out.read_text() == "what was there"


WAITS = """
import sys, time, typer
from bayescope_command.exits import exits, process_exits
from bayescope_command.process import signals_end

try:
    with signals_end(), process_exits(), exits():
        print("waiting", flush=True)
        try:
            time.sleep(60)
        except KeyboardInterrupt:  # as trainings take it: stop early, and go on with what there is
            pass
except typer.Exit as end:
    sys.exit(end.exit_code)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_end_what_would_go_on_after_an_interruption(number):
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (128 + number, b"bayescope: interrupted; no file is half-written.\n")


def test_a_rank_that_fails_by_itself_speaks_once_the_first_has_had_its_time(monkeypatch, capsys):
    for rank in ("0", "1"):
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(typer.Exit), exits(linger=0.0):
            raise ConvergenceError("mode: not reached.")
    assert capsys.readouterr().err == "bayescope: mode: not reached.\nbayescope: rank 1: mode: not reached.\n"


ENDS = """
import signal, sys
from bayescope_command import main

def handlers():
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

before = handlers()
sys.argv = ["bayescope", "--version"]
try:
    main()
except SystemExit:
    print(handlers() == before)
"""


def test_signals_are_handled_as_before_when_the_command_has_ended():
    ended = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, check=True)
    assert ended.stdout.endswith("\nTrue\n")
