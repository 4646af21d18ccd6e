"""Training without a number of epochs ends as well as a run of many times its length."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bayescope.dropout import mc_dropout
from bayescope.ensembles import ensemble
from bayescope.errors import ConvergenceWarning, InputError
from bayescope.likelihoods import Gaussian
from bayescope.training import fit_map
from bayescope.training.convergence import FIRST_STEPS, MOST_CYCLES, Cycles
from bayescope.variational import variational
from tests.training.toys import (
    Killed,
    Mortal,
    classes,
    flat,
    last_epoch_left,
    line,
    noisy_network,
    perceptron,
    seeded,
)

METHODS: dict[str, Callable[..., Any]] = {
    "fit_map": lambda data, **options: fit_map(perceptron(), data, **options),
    "adam": lambda data, **options: fit_map(perceptron(), data, optimizer="adam", **options),
    "sgd": lambda data, **options: fit_map(perceptron(), data, optimizer="sgd", **options),
    "ensemble": lambda data, **options: ensemble([perceptron(seed=s) for s in range(2)], data, **options),
    "variational": lambda data, **options: variational(perceptron(), data, **options),
    "mc_dropout": lambda data, **options: mc_dropout(perceptron(), data, rate=0.1, **options),
}


def nll(q: Any, data: tuple[Tensor, Tensor]) -> float:
    drawn = {"generator": 0} if q.record.method in ("variational", "mc_dropout") else {}
    return -float(q.predict(data[0], **drawn).log_prob(data[1]).mean())


@pytest.mark.parametrize("name", METHODS)
def test_the_default_is_as_good_as_a_long_run(name: str) -> None:
    x, y = classes(160, seed=1)
    train, test = (x[:60], y[:60]), (x[60:], y[60:])
    common: dict[str, Any] = {"likelihood": "bernoulli", "generator": 1, "progress": False}
    found = METHODS[name](train, **common)
    more = {"epochs": 2500, "schedule": "cosine"} if name != "ensemble" else {"epochs": 1500, "schedule": "cosine"}
    step = {"lr": 0.1 if name == "sgd" else 0.02}
    long = METHODS[name](train, **common, **more, **step)
    assert nll(found, test) < nll(long, test) + 0.03


@pytest.mark.parametrize("name", METHODS)
def test_a_given_number_of_epochs_that_is_too_small_is_said_not_to_be_at_rest(name: str) -> None:
    data, common = classes(200), {"likelihood": "bernoulli", "generator": 1, "progress": False}
    assert "at rest: no, the second half lowered" in METHODS[name](data, epochs=12, lr=0.01, **common).summary()
    assert "at rest: unknown after 4 epochs" in METHODS[name](data, epochs=4, **common).summary()


def scripted(losses: Callable[[int, float], float], *, rows: int = 10) -> tuple[list[str], Cycles]:
    """The moves of a training whose losses are given, by the epoch and the step size."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    cycles = Cycles(optimizer, rows, 25, rising=True)
    moves: list[str] = []
    while not moves or (moves[-1] != "end" and len(moves) < cycles.epochs):
        moves.append(cycles.step(losses(len(moves), optimizer.param_groups[0]["lr"])))
    return moves, cycles


def test_a_loss_that_rests_ends_after_the_fewest_cycles() -> None:
    moves, cycles = scripted(lambda epoch, lr: 5.0)
    assert len(moves) == 4 * (2**5 - 1)
    assert moves[-1] == "end"
    assert cycles.converged


def test_a_loss_that_goes_on_falling_ends_with_its_budget_unconverged() -> None:
    moves, cycles = scripted(lambda epoch, lr: -float(epoch))
    assert len(moves) == 4 * (2**MOST_CYCLES - 1)
    assert "end" not in moves
    assert not cycles.converged


def test_a_step_size_that_does_harm_is_taken_back() -> None:
    moves, _ = scripted(lambda epoch, lr: 100.0 / (epoch + 1) + (50.0 if epoch > 60 else 0.0) * (epoch < 124))
    assert "back" in moves


def test_a_step_size_that_overflows_is_made_smaller() -> None:
    x, y = line()
    module = seeded(0, (nn.Linear, (2, 1))).double()
    q = fit_map(module, (x, y), likelihood=Gaussian(0.01), optimizer="sgd", lr=0.2, generator=0, progress=False)
    best = fit_map(module, (x, y), likelihood=Gaussian(0.01), optimizer="lbfgs", progress=False)
    torch.testing.assert_close(flat(q.model), flat(best.model), rtol=0.0, atol=0.01)


def test_a_budget_that_is_too_small_warns(tmp_path: Path) -> None:
    file, epochs = tmp_path / "run", FIRST_STEPS * (2**MOST_CYCLES - 1)
    common: dict[str, Any] = {"likelihood": "gaussian", "optimizer": "adam", "generator": 0, "progress": False}
    with pytest.raises(Killed):
        fit_map(Mortal(5, perceptron()), line(), checkpoint=file, **common)
    last_epoch_left(file, epochs)
    with pytest.warns(ConvergenceWarning, match=f"predictions may be worse .* has not converged after {epochs:,} epo"):
        fit_map(Mortal(5, perceptron()), line(), checkpoint=file, **common)


def test_a_run_that_was_stopped_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    common: dict[str, Any] = {"likelihood": "gaussian", "batch_size": 4, "generator": 1, "progress": False}
    whole = fit_map(Mortal(10**9), line(), **common)
    for _ in range(2):  # the second run saves at its first epoch
        with pytest.raises(Killed):
            fit_map(Mortal(1234), line(), checkpoint=tmp_path / "run", **common)
    resumed = fit_map(Mortal(10**9), line(), checkpoint=tmp_path / "run", **common)
    assert torch.equal(resumed.mean, whole.mean)
    assert resumed.trace == whole.trace
    fit_map(Mortal(10**9), line(), checkpoint=tmp_path / "counted", epochs=2, **common)
    with pytest.raises(InputError, match="expected one of a run with"):
        fit_map(Mortal(10**9), line(), checkpoint=tmp_path / "counted", **common)


def test_draws_and_buffers_are_no_case_for_lbfgs() -> None:
    q = fit_map(noisy_network(), line(), likelihood="gaussian", generator=0, progress=False)
    assert len(q.trace["loss"]) >= 31
    assert "nats are left to gain" in q.summary()
