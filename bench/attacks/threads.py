"""Eight threads that ask one posterior: answers, the module that they share, and the global generators."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bayescope as bs
from bench.attacks import Outcome
from tests.test_threads import InTrainModeAlone

THREADS = 8
X = torch.randn(6, 3, generator=torch.Generator().manual_seed(3))
TABLE = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
LABELS = (TABLE[:, 0] + TABLE[:, 1].square() > 0.5).long()
OPTIONS: dict[str, Any] = {"likelihood": "categorical", "progress": False}


class Scratch(nn.Module):
    """Keeps what it computes as an attribute, and calls dropout itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.hidden = F.dropout(torch.tanh(self.first(x)), 0.3, self.training)
        return self.second(self.hidden)


def plain() -> nn.Module:
    """A network of torch's own layers."""
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))


def network(name: str) -> Callable[[], Any]:
    """The fit of a posterior of a network."""
    data = TABLE, LABELS
    return {
        "Laplace, kfac": lambda: bs.laplace(plain(), data, **OPTIONS),
        "Laplace, full": lambda: bs.laplace(plain(), data, structure="full", **OPTIONS),
        "Laplace, last layer": lambda: bs.laplace(plain(), data, weights="last_layer", **OPTIONS),
        "Laplace, a module with attributes": lambda: bs.laplace(Scratch(), data, **OPTIONS),
        "variational": lambda: bs.variational(plain(), data, epochs=1, **OPTIONS),
        "MC dropout, put in": lambda: bs.mc_dropout(plain(), data, rate=0.2, epochs=1, **OPTIONS),
        "MC dropout, functional": lambda: bs.mc_dropout(Scratch(), data, epochs=0, **OPTIONS),
        "MC dropout, in train mode alone": lambda: bs.mc_dropout(InTrainModeAlone(), data, epochs=0, **OPTIONS),
        "ensemble": lambda: bs.ensemble(plain, data, members=3, epochs=1, **OPTIONS),
        "SWAG": lambda: bs.swag(plain(), data, rank=2, epochs=6, **OPTIONS),
        "SGMCMC": lambda: bs.sgmcmc(plain(), data, draws=6, burn_in=2, chains=2, generator=0, **OPTIONS),
        "function space": lambda: bs.function_space(plain(), data, likelihood="categorical"),
        "NUTS": lambda: bs.nuts(plain(), data, draws=8, tune=8, chains=1, generator=0, **OPTIONS),
    }[name]


NETWORKS = (
    "Laplace, kfac", "Laplace, full", "Laplace, last layer", "Laplace, a module with attributes", "variational",
    "MC dropout, put in", "MC dropout, functional", "MC dropout, in train mode alone", "ensemble", "SWAG", "SGMCMC",
    "function space", "NUTS",
)  # fmt: skip
ESTIMATORS: dict[str, Callable[[], Any]] = {
    "linear": bs.BayesianLinearRegression,
    "logistic": bs.BayesianLogisticRegression,
    "logistic, EP": lambda: bs.BayesianLogisticRegression(posterior="ep", link="probit"),
    "additive": lambda: bs.NeuralAdditiveRegressor(epochs=12, burn_in=4, hidden=4, random_state=0),
    "MLP, dropout": lambda: bs.BayesianMLPClassifier(posterior="mc_dropout", hidden=(4,), epochs=2, random_state=0),
}


def modules(q: bs.Posterior) -> list[nn.Module]:
    """The modules that threads share."""
    held = (q.function, getattr(q.function, "model", None), getattr(q, "passes", None))
    return [each.module for each in held if hasattr(each, "module")]


def state(module: nn.Module) -> list[tuple[bool, int, int, int]]:
    """What a query may set in a module for a moment."""
    return [
        (part.training, len(part._forward_hooks), len(part._forward_pre_hooks), id(part._parameters.get("weight")))
        for part in module.modules()
    ]


def counted(ask: Callable[[int], list[Any]], tries: int) -> tuple[int, int, str]:
    """Of so many questions in 8 threads: the answers of one thread, others and errors, and the last error."""
    expected, said = [ask(seed) for seed in range(THREADS)], ""
    right = 0
    with ThreadPoolExecutor(THREADS) as pool:
        for place, answer in enumerate([pool.submit(ask, place % THREADS) for place in range(tries)]):
            try:
                found = answer.result()
            except Exception as error:  # noqa: BLE001  # whatever it is, one thread got an answer
                said = f"{type(error).__name__}: {error}"[:160]
            else:
                right += all(map(np.array_equal, found, expected[place % THREADS]))
    return right, tries - right, said


def watched(q: bs.Posterior) -> bool:
    """Whether the shared modules stay as they are while a thread asks, and afterwards."""
    before = [state(module) for module in modules(q)]
    asking = threading.Thread(target=lambda: [q.predict(X, generator=seed) for seed in range(20)])
    asking.start()
    same = True
    while asking.is_alive():
        same &= [state(module) for module in modules(q)] == before
    return same and [state(module) for module in modules(q)] == before


def undisturbed(q: bs.Posterior, draws: int) -> int:
    """How many of a thread's global random numbers are those of a quiet process while another one asks."""
    torch.manual_seed(5)  # noqa: TID251  # what users call
    quiet = [float(torch.rand(())) for _ in range(draws)]
    torch.manual_seed(5)  # noqa: TID251  # what users call
    drawn: list[float] = []
    drawing = threading.Thread(target=lambda: drawn.extend(float(torch.rand(())) for _ in range(draws)))
    drawing.start()
    while drawing.is_alive():
        q.predict(X, generator=0)
    return sum(one == other for one, other in zip(drawn, quiet, strict=True))


@contextmanager
def often() -> Iterator[None]:
    """Threads take turns often, and what little training leaves is not warned of."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    sys.setswitchinterval(before)


def attacks(quick: bool) -> Iterator[Outcome]:
    """Of every kind of posterior."""
    tries, draws = (16, 1000) if quick else (400, 20_000)
    names = ("Laplace, kfac", "MC dropout, functional") if quick else NETWORKS
    with often():
        for name in names:
            torch.manual_seed(0)  # noqa: TID251
            q = network(name)()

            def ask(seed: int, q: bs.Posterior = q) -> list[Any]:
                p = q.predict(X, generator=seed)
                return [np.asarray(p.mean), np.asarray(p.variance)]

            right, wrong, said = counted(ask, tries)
            yield Outcome(f"{name}: predictions in {THREADS} threads", 0, right, wrong, said)
            same = watched(q)
            yield Outcome(f"{name}: the shared module while it is asked", 0, int(same), int(not same))
            right = undisturbed(q, draws)
            yield Outcome(f"{name}: another thread's global random numbers", 0, right, draws - right)
        for name, make in {} if quick else ESTIMATORS.items():
            y = TABLE[:, 0].numpy() if name in ("linear", "additive") else LABELS.numpy()
            fitted = make().fit(TABLE.numpy(), y)

            def answer(seed: int, fitted: Any = fitted) -> list[Any]:
                p = fitted.predict_distribution(X.numpy()[seed % 4 :])
                return [np.asarray(p.mean), np.asarray(p.variance)]

            yield Outcome(f"{name}: predictions in {THREADS} threads", 0, *counted(answer, tries))
