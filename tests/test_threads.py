"""Threads that ask one posterior get the answers of a single thread, and leave no trace, not even for a moment."""

from __future__ import annotations

import functools
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bayescope as bs
from bayescope.network import reading
from bayescope.plots.style import house
from bayescope.private_draws import standard_normal
from bayescope.process_state import ignoring, one_thread
from bayescope.training import random_states
from tests.storage import saved

THREADS = 8
X = torch.randn(6, 3, generator=torch.Generator().manual_seed(3))


class Scratch(nn.Module):
    """Keeps what it computes as an attribute and in a buffer, and reads it later."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.hidden = torch.tanh(self.first(x))
        return self.second(F.dropout(self.hidden, 0.3, self.training) * self.calls.sign())


class InTrainModeAlone(nn.Module):
    """Drops the weights of its attention in train mode alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(1, 4), nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x[..., None])
        h = F.scaled_dot_product_attention(h, h, h, dropout_p=0.3 if self.training else 0.0)
        return self.second(h.flatten(1))


class Noisy(nn.Module):
    """Draws in eval mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(F.dropout(x + 0.1 * torch.randn_like(x), 0.2))


def dropout(make: Callable[[], nn.Module]) -> bs.Posterior:
    return bs.mc_dropout(saved.seeded(make), saved.data(), epochs=0, **saved.NETWORK)


OWN: dict[str, Callable[[], bs.Posterior]] = {
    "dropout of its own": lambda: dropout(Scratch),
    "dropout in train mode alone": lambda: dropout(InTrainModeAlone),
    "draws in eval mode": lambda: bs.fit_map(saved.seeded(Noisy), saved.data(), epochs=1, **saved.NETWORK),
    "keeps activations": lambda: bs.laplace(saved.seeded(Scratch), saved.data(), likelihood="categorical"),
    "keeps activations, ensemble": lambda: bs.ensemble(Scratch, saved.data(), members=2, epochs=1, **saved.NETWORK),
    "nuts": lambda: bs.nuts(saved.plain(), saved.data(), likelihood="categorical", draws=8, tune=8, chains=1),
}
POSTERIORS = [*OWN, *(name for name in saved.POSTERIORS if "float64" not in name)]


@functools.cache
def posterior(name: str) -> bs.Posterior:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return OWN[name]() if name in OWN else saved.posterior(name)


@pytest.fixture(autouse=True)
def threads_take_turns_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(2e-4)
    yield
    sys.setswitchinterval(before)


def modules(value: Any) -> list[nn.Module]:
    """All that a posterior holds."""
    if isinstance(value, nn.Module):
        return [value]
    names = ("function", "passes") if isinstance(value, bs.Posterior) else ("module", "model")
    return [found for name in names if hasattr(value, name) for found in modules(getattr(value, name))]


def state(module: nn.Module) -> list[Any]:
    """What a reading may leave in a module, or show while it lasts."""
    parts = list(module.modules())
    return [
        [part.training for part in parts],
        [(len(part._forward_hooks), len(part._forward_pre_hooks)) for part in parts],
        [sorted(vars(part)) for part in parts],
        [id(tensor) for part in parts for tensor in (*part._parameters.values(), *part._buffers.values())],
        [buffer.tolist() for buffer in module.buffers()],
        [(parameter.requires_grad, parameter.grad) for parameter in module.parameters()],
    ]


def answers(q: bs.Posterior, seed: int) -> list[Tensor]:
    p = q.predict(X, generator=seed)
    return [torch.as_tensor(p.mean), torch.as_tensor(p.variance), q.sample_functions(X, 2, generator=seed)]


def in_threads(question: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(question, range(THREADS)))


@pytest.mark.parametrize("name", POSTERIORS)
def test_every_posterior_answers_threads_as_it_answers_one(name: str) -> None:
    q = posterior(name)
    expected = [answers(q, seed) for seed in range(THREADS)]
    watched = modules(q)
    assert watched
    before, seen, over = [state(module) for module in watched], [], threading.Event()

    def watch() -> None:
        while not over.is_set():
            seen.append([state(module) for module in watched])

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        found = in_threads(lambda seed: answers(q, seed))
    finally:
        over.set()
        watcher.join()
    for one, other in zip(found, expected, strict=True):
        assert all(map(torch.equal, one, other))
    assert all(each == before for each in seen)
    assert [state(module) for module in watched] == before


ESTIMATORS = [name for name in saved.ESTIMATORS if not name.startswith(("linear, ", "logistic, ")) or "m" in name[-6:]]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_answers_threads_as_it_answers_one(name: str) -> None:
    fitted = saved.estimator(name)
    rows = fitted.n_features_in_ == 2 and not hasattr(fitted, "feature_names_in_")
    x = saved.plain_table()[:9] if rows else saved.table()[:9]

    def ask(seed: int) -> list[Any]:
        chosen = x[seed % 3 :]
        p = fitted.predict_distribution(chosen)
        return [np.asarray(p.mean), np.asarray(p.variance), np.asarray(fitted.predict(chosen))]

    expected = [ask(seed) for seed in range(THREADS)]
    for one, other in zip(in_threads(ask), expected, strict=True):
        assert all(map(np.array_equal, one, other))


@pytest.mark.global_rng
@pytest.mark.parametrize("name", [*OWN, "dropout", "variational", "ensemble", "laplace, kfac, float32", "swag"])
def test_global_generators_are_not_touched_while_a_posterior_is_asked(name: str) -> None:
    q = posterior(name)
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    quiet = [(float(torch.rand(())), np.random.random()) for _ in range(4000)]  # noqa: NPY002
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    drawn: list[tuple[float, float]] = []

    def draw() -> None:
        drawn.extend((float(torch.rand(())), np.random.random()) for _ in range(len(quiet)))  # noqa: NPY002

    drawer = threading.Thread(target=draw)
    drawer.start()
    answers(q, 0)
    while drawer.is_alive():
        answers(q, 0)
    drawer.join()
    assert drawn == quiet


def test_one_thread_inside_operations_is_over_when_the_last_has_left() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        entered, leave = threading.Event(), threading.Event()

        def overlap() -> None:
            with one_thread(), one_thread():
                entered.set()
                leave.wait(5)

        other = threading.Thread(target=overlap)
        with one_thread():
            other.start()
            entered.wait(5)
        leave.set()
        other.join()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_warnings_that_overlapping_threads_ignore_are_there_again() -> None:
    before, quiet = list(warnings.filters), ignoring("nobody sees this", UserWarning)
    entered, leave = threading.Event(), threading.Event()

    def overlap() -> None:
        with quiet.inside():
            entered.set()
            leave.wait(5)

    other = threading.Thread(target=overlap)
    with quiet.inside():
        other.start()
        entered.wait(5)
        warnings.warn("nobody sees this", UserWarning, stacklevel=1)
    assert list(warnings.filters) != before
    leave.set()
    other.join()
    assert list(warnings.filters) == before


def test_members_of_an_ensemble_are_made_without_the_global_generator() -> None:
    before, inside = torch.get_rng_state(), []

    def make() -> nn.Module:
        inside.append(torch.get_rng_state())
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))

    q = bs.ensemble(make, saved.data(), members=2, epochs=1, **saved.NETWORK)
    assert all(torch.equal(state, before) for state in inside)
    assert not torch.equal(*q.draws[:, 0] if len(q.draws) == 2 else q.draws.flatten(0, 1))


def test_pictures_that_threads_draw_at_once_leave_the_settings_of_matplotlib() -> None:
    before, entered = dict(mpl.rcParams), threading.Event()

    def draw() -> None:
        with house():
            entered.set()
            time.sleep(0.05)

    other = threading.Thread(target=draw)
    other.start()
    entered.wait(5)
    with house(mathematics=True):  # would find the settings of the other one, and put them back last
        other.join(0.2)
    other.join()
    assert dict(mpl.rcParams) == before


@pytest.mark.global_rng
def test_a_training_draws_from_what_it_has_seeded_inside_of_a_reading_too() -> None:
    module, drawn = nn.Linear(2, 2), []
    for seed in (1, 2):
        with reading(module), random_states(module, torch.Generator().manual_seed(seed)):
            drawn.append(standard_normal([3], torch.ones(())))
            with reading(nn.Linear(2, 2)):
                inside = standard_normal([3], torch.ones(()))
            drawn.append(standard_normal([3], torch.ones(())))
    assert len({tuple(numbers.tolist()) for numbers in (*drawn, inside)}) == 5
