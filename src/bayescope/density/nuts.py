"""The No-U-Turn sampler (Hoffman & Gelman 2014) on any log density, by nutpie, which nothing else knows.

``nutpie.compiled_pyfunc.from_pyfunc`` is undocumented. What is relied on, and held by a contract test: it calls
``make_logp_fn()`` once a chain for a function from a float64 array (P,), made anew for each call, to a float and a
contiguous array (P,); a value that is not finite counts as a divergence; an exception from it makes the Rust side
panic, so none may reach it; an initial point whose gradient is zero is refused; ``sample(..., blocking=False)`` returns
a handle with ``cancel`` and with ``wait``, which raises `TimeoutError` while the chain runs.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bayescope import checks
from bayescope.density.diagnosis import diagnosed
from bayescope.density.problem import Dim, LogProb, pose, starting_points
from bayescope.errors import ConvergenceError, InputError
from bayescope.log_density import LogDensity, curvature_scale
from bayescope.logs import logged, say
from bayescope.posterior import DrawsPosterior, Record
from bayescope.process_state import one_thread
from bayescope.progress import progress_bar


@logged
def nuts(
    log_density: LogProb,
    dim: Dim,
    *,
    transform: Any = None,
    start: Any = None,
    draws: int = 1000,
    tune: int = 1000,
    chains: int = 4,
    target_accept: float = 0.8,
    generator: torch.Generator | int | None = None,
    progress: bool = True,
) -> DrawsPosterior:
    """Draws by the No-U-Turn sampler (Hoffman & Gelman 2014), as nutpie implements it.

    Args:
        log_density: a function from a float64 tensor (P,) in the user's coordinates to a scalar tensor that autograd
            can differentiate; or from named parameters, which it takes as keyword arguments.
        dim: P; for named parameters a dict with the shape of each, such as ``{"mean": (), "weights": (3,)}``.
        transform: ``None``; a name ("positive", "unit_interval", "ordered", "simplex", "cholesky_correlation",
            "correlation") or `between`; a list with one of these a coordinate; for named parameters a dict with one of
            these for those that are constrained; or an object with forward, inverse and log_jacobian.
        start: in the user's coordinates, shape (P,), which is spread, or (chains, P); for named parameters a dict
            with a value for each, or a list of them; the default is u = 0.
        draws: kept draws a chain.
        tune: warm-up draws a chain, dropped.
        chains: how many; on several cores at once where a gradient takes milliseconds, one after another where it is
            cheaper.
        target_accept: the acceptance rate that the step size aims at; nearer to 1 for fewer divergences.
        generator: a ``torch.Generator`` or an int.
        progress: whether to show a progress bar, on the error stream and only to a terminal.

    Returns:
        A `DrawsPosterior`, with ``r_hat``, ``effective_draws`` and ``divergences``.

    Raises:
        MissingDependencyError: if nutpie is not installed: pip install 'bayescope[nuts]'.
        InputError: if the log density at a start is not finite.
        ConvergenceError: if the sampler gives up.

    Warns:
        ConvergenceWarning: if an R-hat is above 1.01 or there are fewer than 400 effective draws of a coordinate.
        DivergenceWarning: if transitions diverged.
    """
    problem = pose(log_density, dim, transform)
    sampled, statistics = nuts_draws(
        problem.unconstrained,
        start=starting_points(problem, start),
        draws=checks.count("draws", draws, least=4),
        tune=checks.count("tune", tune),
        chains=checks.count("chains", chains),
        target_accept=checks.fraction("target_accept", target_accept),
        generator=checks.generator(generator),
        progress=progress,
    )
    record = Record("nuts", parameters=problem.parameters)
    return diagnosed(sampled, record, transform=problem.transform, statistics=statistics)


# What nutpie reports of each draw, and what ArviZ calls it.
REPORTED = {
    "diverging": "diverging", "energy": "energy", "logp": "lp", "depth": "tree_depth", "n_steps": "n_steps",
    "step_size": "step_size", "mean_tree_accept": "acceptance_rate",
}  # fmt: skip
_POLL_SECONDS = 0.01
# A gradient that takes fewer seconds is mostly Python's: chains side by side would hand its lock to each other at every
# operation, and take three times as long as one after another.
_WORTH_A_CORE = 5e-3


class _Chain(NamedTuple):
    """A running chain: nutpie's handle, and what its callbacks have seen."""

    sampler: Any
    failures: list[BaseException]


def nuts_draws(
    density: LogDensity,
    *,
    start: Tensor,
    draws: int = 1000,
    tune: int = 1000,
    chains: int = 4,
    target_accept: float = 0.8,
    max_depth: int = 10,
    generator: torch.Generator,
    progress: bool = False,
    at_once: int | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Draws from a log density by NUTS, the chains over the processor's cores where a gradient takes long enough.

    Args:
        density: over ℝᴾ, unconstrained.
        start: where the chains start, shape (chains, P); or (P,), from which each starts at a random distance of up to
            one conditional sd a coordinate.
        draws: kept draws a chain.
        tune: warm-up draws a chain, in which step size and diagonal mass matrix adapt; they are dropped.
        chains: how many.
        target_accept: the acceptance rate that the step size aims at.
        max_depth: a draw takes at most 2^max_depth − 1 gradients.
        generator: the seeds of the chains come from it.
        progress: whether to show a progress bar.
        at_once: how many chains run at a time; ``None`` for one where a gradient is cheap, else one per core.

    Returns:
        The draws, shape (chains, draws, P), and what nutpie reports of each, shape (chains, draws), by ArviZ's names:
        the values of `REPORTED`.

    Raises:
        MissingDependencyError: if nutpie is not installed.
        InputError: if the log density at a start is not finite.
        ConvergenceError: if nutpie gives up, for instance because a gradient is zero where a chain starts.
        Exception: whatever the density itself raises.
    """
    starts = chain_starts(density, start, chains, generator)
    seeds = [checks.seed_from(generator) for _ in range(chains)]
    settings = {"draws": draws, "tune": tune, "target_accept": target_accept, "maxdepth": max_depth}
    with one_thread(), progress_bar("sampling", visible=progress) as report:
        done = itertools.count(1)

        def advance() -> None:
            report(next(done), chains * (draws + tune), "draws")

        def launch(chain: int) -> _Chain:
            return _launch(density, starts[chain].numpy(), seeds[chain], settings, advance)

        traces = _run(launch, chains, at_once=at_once or _at_once(density, starts[0], chains))
    samples = np.concatenate([trace.posterior["theta"].values for trace in traces])
    reported = {
        name: np.concatenate([trace.sample_stats[theirs].values for trace in traces])
        for theirs, name in REPORTED.items()
    }
    unsigned = {name: each.astype(np.int64) if each.dtype.kind == "u" else each for name, each in reported.items()}
    return torch.from_numpy(samples), {name: torch.from_numpy(each) for name, each in unsigned.items()}


def _launch(
    density: LogDensity, start: np.ndarray, seed: int, settings: dict[str, Any], advance: Callable[[], None]
) -> _Chain:
    nutpie = checks.optional_package("nutpie", extra="nuts")
    compiled_pyfunc = checks.optional_package("nutpie.compiled_pyfunc", extra="nuts")
    failures: list[BaseException] = []

    def log_prob(theta: np.ndarray) -> tuple[float, np.ndarray]:
        if not failures:
            try:
                value, gradient = density.value_and_gradient(torch.from_numpy(theta))
                return value.item(), np.ascontiguousarray(gradient.numpy())
            except BaseException as error:  # noqa: BLE001  re-raised by the thread that waits; here it would panic
                failures.append(error)
        return float("nan"), np.zeros_like(theta)

    def expand(theta: np.ndarray) -> dict[str, np.ndarray]:
        try:
            advance()
        except BaseException as error:  # noqa: BLE001  likewise
            failures.append(error)
        return {"theta": np.array(theta)}

    model = compiled_pyfunc.from_pyfunc(
        density.dim,
        lambda: log_prob,
        lambda *_: expand,
        [np.dtype("float64")],
        [(density.dim,)],
        ["theta"],
        make_initial_point_fn=lambda _seed: np.array(start),
    )
    sampler = nutpie.sample(
        model, chains=1, cores=1, seed=seed, save_warmup=False, progress_bar=False, blocking=False, **settings
    )
    return _Chain(sampler, failures)


def _at_once(density: LogDensity, start: Tensor, chains: int) -> int:
    """How many chains run at a time; what they draw does not depend on it."""
    taken = []
    for _ in range(3):
        begun = time.perf_counter()
        density.value_and_gradient(start)
        taken.append(time.perf_counter() - begun)
    count = min(chains, os.cpu_count() or 1) if min(taken) >= _WORTH_A_CORE else 1
    say("nuts", f"{count} of {chains} chains run at a time, since a gradient takes {1e3 * min(taken):.2g} ms")
    return count


def _run(launch: Callable[[int], _Chain], chains: int, *, at_once: int) -> list[Any]:
    """Runs the chains, this many at a time; the first failure stops them all."""
    waiting = list(range(chains))
    running: dict[int, _Chain] = {}
    traces: dict[int, Any] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                chain = waiting.pop(0)
                running[chain] = launch(chain)
            for chain, handle in list(running.items()):
                trace = _poll(handle)
                if trace is not None:
                    traces[chain] = trace
                    del running[chain]
    finally:
        for handle in running.values():
            _stop(handle)
    return [traces[chain] for chain in range(chains)]


def _stop(handle: _Chain) -> None:
    """Stops a chain whose draws are not wanted any more."""
    try:
        handle.sampler.cancel()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001, S110  Rust's panic is no Exception
        pass  # the chain had failed by itself in the meantime; what stopped the run is already on its way


def _poll(handle: _Chain) -> Any | None:
    """The trace of a finished chain, or ``None`` while it runs."""
    trace, refusal = None, None
    try:
        trace = handle.sampler.wait(timeout=_POLL_SECONDS)
    except TimeoutError:
        pass
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001  a RuntimeError, or Rust's panic, which is no Exception
        refusal = str(error).partition("Stack backtrace")[0].strip()
    if handle.failures:
        raise handle.failures[0]
    if refusal is not None:
        raise ConvergenceError(f"nuts: the sampler gave up: {refusal}. Start elsewhere, or rescale the coordinates.")
    return trace


# How often a start that has left the support is moved half-way back.
_HALVINGS = 30


@torch.no_grad()
def chain_starts(density: LogDensity, start: Tensor, chains: int, generator: torch.Generator) -> Tensor:
    """One starting point a chain, shape (chains, P).

    R-hat can see that chains disagree only if they began apart, and nutpie refuses to start where the gradient is
    zero: one start for all is spread by up to one conditional sd a coordinate, ∣∂² log p̃/∂u_i²∣^{−½}.

    Args:
        density: over ℝᴾ, unconstrained.
        start: shape (chains, P), taken as it is; or (P,), to be spread.
        chains: how many.
        generator: the spread.

    Raises:
        InputError: if there is another number of starts, or the log density at one of them is not finite.
    """
    starts = start.to(torch.float64)
    if starts.ndim == 1:
        centre = starts
        offset = 2.0 * torch.rand(chains, centre.shape[0], dtype=torch.float64, generator=generator) - 1.0
        starts = centre + curvature_scale(density.log_prob, centre) * offset
        for _ in range(_HALVINGS):
            outside = ~torch.isfinite(density.log_prob(starts))
            if not outside.any():
                break
            starts = torch.where(outside[:, None], 0.5 * (starts + centre), starts)
    if starts.shape[0] != chains:
        raise InputError(f"start: expected one point or one for each of the {chains} chains, got {starts.shape[0]}.")
    values = density.log_prob(starts)
    if not torch.isfinite(values).all():
        raise InputError(f"start: expected a finite log density, got {values.tolist()}. Start inside the support.")
    return starts
