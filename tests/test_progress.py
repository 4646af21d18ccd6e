"""Bars are for people: a pipe sees nothing, and one bar at a time is drawn."""

import pytest
import torch

from bayescope import progress
from bayescope.process_state import one_thread
from bayescope.progress import progress_bar


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the captured stream for a terminal
    monkeypatch.setenv("TERM", "xterm")


def run(**options):
    with progress_bar("fitting", **options) as report:
        report(0, 2, "laplace")
        report(1, 2, "nuts")


def test_a_pipe_sees_nothing(capsys):
    run()
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("terminal")
def test_a_terminal_sees_the_step_on_the_error_stream(capsys):
    run()
    shown = capsys.readouterr()
    assert "fitting" in shown.err
    assert shown.out == ""
    run(visible=False)
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("terminal")
def test_a_bar_inside_a_bar_stays_hidden(capsys):
    with progress_bar("fitting") as report:
        report(0, 1, "outer")
        with progress_bar("sampling") as inner:
            inner(0, 1, "draws")
    assert "sampling" not in capsys.readouterr().err
    assert not progress._drawn.get()


def interrupted():
    with one_thread():
        assert torch.get_num_threads() == 1
        raise KeyError


def test_one_thread_is_put_back_also_after_a_failure():
    before = torch.get_num_threads()
    with pytest.raises(KeyError):
        interrupted()
    assert torch.get_num_threads() == before
