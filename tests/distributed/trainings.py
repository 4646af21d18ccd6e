"""Trainings that one process and several have to agree on, and what is compared of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import bayescope as bs
from bayescope.errors import ConvergenceWarning
from tests.training.toys import classes, line, perceptron, seeded

# 101 rows in minibatches of 15 and 14: no number is one of equal parts for two or four processes.
ROWS, SIZE, SEED = 101, 16, 3


class Found(NamedTuple):
    """What a training left.

    Attributes:
        weights: of its model, and its buffers.
        trace: of its record.
        notes: of its record.
        posterior: numbers of the posterior itself: its location, and its variances where it has them.
        r_hat: of its predictions, where it has them.
    """

    weights: Tensor
    trace: dict[str, list[Any]]
    notes: dict[str, str]
    posterior: Tensor
    r_hat: Tensor


def dropped(seed: int = 0) -> nn.Sequential:
    """A classifier with dropout, in float32."""
    layers = [(nn.Linear, (2, 16)), (nn.ReLU, ()), (nn.Dropout, (0.2,)), (nn.Linear, (16, 3))]
    return seeded(seed, *layers)


def plain() -> nn.Sequential:
    """One member of an ensemble, from torch's random state."""
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))


def labelled(rows: int = ROWS, seed: int = 2) -> tuple[Tensor, Tensor]:
    """Rows of three classes, in float32."""
    x, y = classes(rows, 2, 3, seed=seed)
    return x.float(), y


def listed() -> list[tuple[Tensor, Tensor]]:
    """The rows in batches of the caller's own."""
    return list(zip(*(part.split(20) for part in labelled()), strict=True))


def of_classes(fit: Callable[..., Any], model: Any = None, **options: Any) -> Any:
    """A fit of the rows of three classes."""
    chosen = {"likelihood": "categorical", "batch_size": SIZE, "generator": SEED, "progress": False, **options}
    return fit(dropped() if model is None else model, labelled(), **chosen)


TRAININGS: dict[str, Callable[[], Any]] = {
    "map": lambda: of_classes(bs.fit_map, epochs=5, schedule="cosine"),
    "stopped early": lambda: of_classes(
        bs.fit_map, epochs=12, lr=0.1, validation=labelled(31, seed=5), patience=2
    ),
    "lbfgs": lambda: bs.fit_map(
        perceptron(), line(51), likelihood="gaussian", epochs=2, optimizer="lbfgs", generator=SEED
    ),
    "evidence": lambda: of_classes(bs.fit_evidence, epochs=6, burn_in=2, every=2),
    "local reparameterization": lambda: of_classes(
        bs.variational, epochs=3, prior_precision="evidence", validation=labelled(31, seed=5)
    ),
    "flipout": lambda: of_classes(bs.variational, epochs=2, estimator="flipout", samples=2),
    "sticking the landing": lambda: of_classes(bs.variational, epochs=2, family="low_rank", rank=2),
    "ivon": lambda: of_classes(bs.variational, epochs=2, optimizer="ivon"),
    "learnt noise": lambda: bs.variational(
        perceptron(), line(51), likelihood=bs.Gaussian("evidence"), epochs=2, batch_size=SIZE, generator=SEED
    ),
    "concrete dropout": lambda: bs.mc_dropout(
        perceptron(), line(51), likelihood=bs.Gaussian("evidence"), rate="concrete", epochs=3, batch_size=SIZE,
        generator=SEED,
    ),
    "ensemble": lambda: of_classes(
        bs.ensemble, plain, members=2, epochs=3, bootstrap=True, validation=labelled(31, seed=5), side_by_side=True
    ),
    "members in turn": lambda: of_classes(bs.ensemble, plain, members=2, epochs=2, side_by_side=False),
    "swag": lambda: of_classes(bs.swag, epochs=6),
    "sghmc": lambda: of_classes(bs.sgmcmc, draws=8, burn_in=2, thin=1, chains=2),
    "dataset": lambda: bs.fit_map(
        dropped(), Whole(*labelled()), likelihood="categorical", epochs=2, batch_size=SIZE, generator=SEED
    ),
    "list": lambda: bs.fit_map(
        dropped(), listed(), likelihood="categorical", epochs=2, batch_size=SIZE, generator=SEED
    ),
    "sghmc of a list": lambda: bs.sgmcmc(
        dropped(), listed(), likelihood="categorical", draws=8, burn_in=2, thin=1, chains=2, generator=SEED
    ),
    "sghmc of a data set": lambda: bs.sgmcmc(
        dropped(), Whole(*labelled()), likelihood="categorical", draws=8, burn_in=2, thin=1, chains=2, generator=SEED
    ),
}  # fmt: skip


class Whole(torch.utils.data.Dataset[Any]):
    """Rows one by one."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self.x[row], self.y[row]


def found(training: Callable[[], Any]) -> Found:
    """What a training leaves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a few epochs
        q = training()
    tensors = [*q.model.parameters(), *q.model.buffers()]
    weights = torch.cat([tensor.detach().double().flatten() for tensor in tensors])
    draws = getattr(q, "draws", None)
    numbers = [draws.flatten()] if isinstance(draws, Tensor) else [q.mean.flatten()]
    precision = getattr(q, "precision", None)
    if precision is not None:
        numbers.append(precision.marginal_variance().flatten())
    r_hat = getattr(q, "prediction_r_hat", None)
    settled = torch.empty(0) if r_hat is None else r_hat
    return Found(weights, dict(q.trace), dict(q.record.notes), torch.cat(numbers).detach(), settled)
