"""The contract with nutpie, whose interface for plain functions is undocumented, and the adapter's own promises."""

import os
import re
import signal
import time

import numpy as np
import pytest
import torch

from bayescope import checks, density
from bayescope.density.nuts import _Chain, _poll, _stop, nuts_draws
from bayescope.errors import ConvergenceError, DivergenceWarning
from bayescope.log_density import CallableDensity

STANDARD = CallableDensity(lambda x: -0.5 * x @ x, 2)


def model(log_prob, dim=2, start=0.5):
    compiled_pyfunc = checks.optional_package("nutpie.compiled_pyfunc", extra="nuts")
    return compiled_pyfunc.from_pyfunc(
        dim,
        lambda: log_prob,
        lambda *_: lambda theta: {"theta": np.array(theta)},
        [np.dtype("float64")],
        [(dim,)],
        ["theta"],
        make_initial_point_fn=lambda _seed: np.full(dim, start),
    )


def launch(log_prob, **options):
    nutpie = checks.optional_package("nutpie", extra="nuts")
    settings = {"draws": 50, "tune": 50, "chains": 1, "cores": 1, "seed": 1, "save_warmup": False} | options
    return nutpie.sample(model(log_prob), progress_bar=False, blocking=False, **settings)


class TestContract:
    def test_a_function_of_an_array_to_a_float_and_an_array(self):
        seen = []

        def log_prob(theta):
            seen.append((type(theta), theta.dtype, theta.shape))
            return -0.5 * float(theta @ theta), -theta

        trace = launch(log_prob).wait(timeout=100)
        assert set(seen) == {(np.ndarray, np.dtype("float64"), (2,))}
        assert trace.posterior["theta"].shape == (1, 50, 2)
        assert trace.sample_stats["diverging"].shape == (1, 50)

    def test_an_array_is_never_written_over(self):
        kept = []

        def log_prob(theta):
            kept.append((theta, theta.copy()))
            return -0.5 * float(theta @ theta), -theta

        launch(log_prob).wait(timeout=100)
        assert all(theta.flags.writeable and np.array_equal(theta, then) for theta, then in kept)

    def test_values_that_are_not_finite_are_divergences(self):
        def log_prob(theta):
            return (-0.5 * float(theta @ theta) if theta[0] > 0 else float("nan")), -theta

        trace = launch(log_prob, draws=200, tune=200).wait(timeout=100)
        assert trace.sample_stats["diverging"].values.sum() > 0
        assert trace.posterior["theta"].values[..., 0].min() > 0

    def test_waiting_for_a_running_chain_times_out_and_cancelling_ends_it(self):
        def slow(theta):
            time.sleep(0.01)
            return -0.5 * float(theta @ theta), -theta

        sampler = launch(slow, draws=10_000)
        with pytest.raises(TimeoutError):
            sampler.wait(timeout=0.05)
        sampler.cancel()

    def test_a_start_without_a_gradient_is_refused(self):
        with pytest.raises(RuntimeError, match="initialization points failed"):
            launch(lambda theta: (0.0, 0.0 * theta)).wait(timeout=100)


class TestAdapter:
    def run(self, log_density=STANDARD, **options):
        settings = {"start": torch.zeros(2, dtype=torch.float64), "draws": 60, "tune": 60} | options
        return nuts_draws(log_density, generator=torch.Generator().manual_seed(1), **settings)

    def test_shapes(self):
        draws, statistics = self.run(chains=3)
        assert draws.shape == (3, 60, 2)
        assert draws.dtype == torch.float64
        assert statistics["diverging"].sum() == 0
        assert {tuple(each.shape) for each in statistics.values()} == {(3, 60)}

    def test_the_draws_do_not_depend_on_how_many_chains_run_at_a_time(self):
        one, _ = self.run(at_once=1)
        several, _ = self.run(at_once=4)
        assert torch.equal(one, several)

    @pytest.mark.parametrize(("seconds", "most"), [(0.0, 1), (0.01, os.cpu_count())])
    def test_cheap_chains_run_one_after_another_and_dear_ones_on_all_cores(self, seconds, most):
        inside, found = [], []

        def taking(x):
            inside.append(None)
            found.append(len(inside))
            time.sleep(seconds)
            inside.pop()
            return -0.5 * x @ x

        self.run(CallableDensity(taking, 2), chains=most + 1, draws=4, tune=4)
        assert max(found) == most

    def test_chains_differ(self):
        draws, _ = self.run(chains=2)
        assert not torch.equal(draws[0], draws[1])

    def test_an_error_in_a_later_chain_surfaces_soon(self):
        calls = []

        def breaks(x):
            calls.append(None)
            if len(calls) > 3000:
                raise LookupError("late")
            return -0.5 * x @ x

        began = time.perf_counter()
        with pytest.raises(LookupError, match="late"):
            self.run(CallableDensity(breaks, 2), draws=100_000)
        assert time.perf_counter() - began < 60  # 100,000 draws would take many minutes

    def test_an_interrupt_stops_the_chains_soon(self):
        calls = []

        def slow(x):
            calls.append(None)
            if len(calls) == 500:
                signal.raise_signal(signal.SIGINT)
            time.sleep(1e-3)
            return -0.5 * x @ x

        began = time.perf_counter()
        with pytest.raises(KeyboardInterrupt):
            self.run(CallableDensity(slow, 2), draws=100_000)
        assert time.perf_counter() - began < 60  # 100,000 draws would take many minutes
        time.sleep(0.2)  # the evaluation under way may end
        stopped = len(calls)
        time.sleep(0.2)
        assert len(calls) == stopped

    @pytest.mark.parametrize("dim", [2, 5])
    def test_nothing_is_printed(self, capfd, dim):
        density.nuts(lambda x: -0.5 * x @ x, dim, draws=400, tune=300, generator=0)
        assert capfd.readouterr() == ("", "")

    def test_a_flat_density_is_refused_and_not_waited_for(self):
        with pytest.raises(ConvergenceError, match="gave up"):
            self.run(CallableDensity(lambda x: 0.0 * x.sum(), 2))

    def test_a_chain_that_fails_while_it_is_stopped_hides_nothing(self):
        class Panic(BaseException):
            """As Rust's, which is no Exception."""

        class Failed:
            def __init__(self, error):
                self.error = error

            def cancel(self):
                raise self.error

            def wait(self, timeout):
                raise self.error

        _stop(_Chain(Failed(Panic()), []))
        with pytest.raises(KeyboardInterrupt):
            _stop(_Chain(Failed(KeyboardInterrupt()), []))
        with pytest.raises(LookupError, match="the density's"):
            _poll(_Chain(Failed(Panic()), [LookupError("the density's")]))
        with pytest.raises(ConvergenceError, match="gave up"):
            _poll(_Chain(Failed(Panic()), []))

    def test_threads_are_left_as_they_were(self):
        before = torch.get_num_threads()
        self.run()
        assert torch.get_num_threads() == before

    def test_progress_counts_every_draw(self, monkeypatch, capsys):
        monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the captured stream for a terminal
        monkeypatch.setenv("TERM", "xterm")
        self.run(progress=True, chains=2)
        counts = re.findall(r"(\d+)/(\d+|\?)", re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", capsys.readouterr().err))
        assert [int(done) for done, _ in counts] == sorted(int(done) for done, _ in counts)
        assert counts[-1] == ("240", "240")

    def test_a_gradient_of_one_repeated_number(self):
        """Such a gradient is an expanded tensor, which is not contiguous."""
        draws, _ = self.run(CallableDensity(lambda x: -torch.cosh(x.sum()), 2), draws=20, tune=20, chains=1)
        assert torch.isfinite(draws).all()


def test_divergences_are_warned_of():
    """Neal's funnel: the log sd of nine Gaussians is itself Gaussian."""

    def funnel(x):
        return -0.5 * x[0] ** 2 / 9 - 0.5 * (x[1:] ** 2 * torch.exp(-x[0])).sum() - 4.5 * x[0]

    with pytest.warns() as caught:
        q = density.nuts(funnel, 10, draws=300, tune=300, chains=2, generator=0)
    assert q.divergences > 0
    assert DivergenceWarning in [warning.category for warning in caught]
