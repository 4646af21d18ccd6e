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


class Enough(BaseException):
    """What a listener raises to end the work: no `Exception`, as Ctrl-C is none."""


def test_a_listener_hears_steps_that_no_bar_shows(capsys):
    heard = []
    with progress.listening(lambda *step: heard.append(step)):
        run(visible=False, patience=60.0)
    run()
    assert heard == [(0, 2, "fitting laplace"), (1, 2, "fitting nuts")]
    assert capsys.readouterr() == ("", "")


def test_a_listener_ends_the_chains_of_nuts():
    pytest.importorskip("nutpie", reason="pip install 'bayescope[nuts]' brings nutpie")
    from bayescope import density

    def enough(done, *_):
        if done >= 30:
            raise Enough

    with progress.listening(enough), pytest.raises(Enough):
        density.nuts(lambda x: -0.5 * x.square().sum(), 2, draws=10_000, tune=10_000, chains=2)
