"""How a network and its hyperparameters are learnt, before any posterior: once, on standardised targets."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from bayescope import checks
from bayescope.errors import ConvergenceWarning
from bayescope.estimators.mlp_network import Architecture
from bayescope.laplace.online import fit_evidence
from bayescope.likelihoods import Gaussian, Likelihood
from bayescope.likelihoods.weighted import Weighted, unweighted
from bayescope.posterior import GaussianPosterior
from bayescope.training.fit_map import fit_map

# Where the search for the noise variance begins, as a share of the targets' variance.
FIRST_NOISE = 0.1
# Steps of the optimiser: so many a row, within these bounds, and as many as so many epochs take.
STEPS_A_ROW, FEWEST_STEPS, MOST_STEPS, FEWEST_EPOCHS = 6, 240, 4000, 30
# Rows of a minibatch: the first number in tables of up to MANY rows, else the second.
MANY, BATCH, LARGE_BATCH = 4000, 32, 128
STEP_SIZE = 0.02
# Of a table on disk: rows of a minibatch, and at least so many epochs.
DISK_BATCH, FEWEST_DISK_EPOCHS = 512, 5
# The evidence is climbed at most so many times while training, at least once in so many steps of the optimiser.
CLIMBS, STEPS_A_CLIMB = 14, 80


@final
@dataclass(frozen=True)
class Schedule:
    """How networks are trained: Adam, whose step size falls to 0 by a cosine.

    Attributes:
        epochs: how often the rows are read.
        batch_size: the most rows of a minibatch.
        lr: the first step size.
        steps: in an epoch.
    """

    epochs: int
    batch_size: int
    lr: float
    steps: int

    @classmethod
    def checked(cls, rows: int, epochs: Any, batch_size: Any, lr: Any) -> Schedule:
        """From the options of an estimator; ``None`` for what follows from the number of rows.

        Raises:
            InputError: if a number cannot be used.
        """
        usual = BATCH if rows <= MANY else LARGE_BATCH
        size = usual if batch_size is None else checks.count("batch_size", batch_size)
        steps = math.ceil(rows / size)
        wanted = min(max(STEPS_A_ROW * rows, FEWEST_STEPS), MOST_STEPS)
        count = max(FEWEST_EPOCHS, wanted // steps) if epochs is None else checks.count("epochs", epochs)
        return cls(count, size, STEP_SIZE if lr is None else checks.positive_number("lr", lr), steps)

    @classmethod
    def on_disk(cls, rows: int, epochs: Any, batch_size: Any, lr: Any) -> Schedule:
        """The same for a table on disk, of which fewer and larger minibatches are enough.

        Raises:
            InputError: if a number cannot be used.
        """
        size = DISK_BATCH if batch_size is None else checks.count("batch_size", batch_size)
        usual = max(FEWEST_DISK_EPOCHS, MOST_STEPS // math.ceil(rows / size))
        return cls.checked(rows, min(usual, 1000) if epochs is None else epochs, size, lr)

    @property
    def every(self) -> int:
        """Epochs from one climb of the evidence to the next."""
        climbs = max(4, min(CLIMBS, self.epochs * self.steps // STEPS_A_CLIMB))
        return max(1, round(0.9 * self.epochs / climbs))

    @property
    def options(self) -> dict[str, Any]:
        """As the functions that train networks take them."""
        return {"optimizer": "adam", "schedule": "cosine", "epochs": self.epochs, "lr": self.lr,
                "batch_size": self.batch_size}  # fmt: skip

    def __str__(self) -> str:
        return f"{self.epochs} epochs in minibatches of {self.batch_size}, step size {self.lr:g}"


@final
@dataclass(frozen=True, eq=False)
class Lesson:
    """What a network is to learn.

    Attributes:
        architecture: of the network.
        data: the inputs (N, D), and the canonical targets of the likelihood, standardised; or a loader of such.
        likelihood: p(y∣f); the noise variance of standardised targets is in it, or where its search begins.
        precision: the prior's, or ``None`` where it is to be learnt.
        learns_noise: whether the noise variance is to be learnt.
        schedule: of the training.
        checkpoint: where the training is saved to, or ``None``.
        progress: whether a bar is drawn.
    """

    architecture: Architecture
    data: Any
    likelihood: Likelihood
    precision: float | None
    learns_noise: bool
    schedule: Schedule
    checkpoint: Path | None
    progress: bool


@final
@dataclass(frozen=True, eq=False)
class Learnt:
    """A trained network and the hyperparameters that it was trained with.

    Attributes:
        module: of standardised targets.
        precisions: the prior's, by layer.
        noise_variances: of standardised targets, shape (C,); ``None`` where there is no noise.
        notes: lines for a summary.
        trace: numbers per epoch.
    """

    module: nn.Sequential
    precisions: Mapping[str, float]
    noise_variances: Tensor | None
    notes: Mapping[str, str]
    trace: Mapping[str, Sequence[float]]


def learn(lesson: Lesson, seed: int, *, train: bool) -> Learnt:
    """Trains a network, and learns by Laplace's evidence what is not given of its prior and its noise.

    Weights are trained while the evidence is climbed (`fit_evidence`), or to the most probable ones (`fit_map`) where
    nothing but weights is left to learn.

    Args:
        lesson: what is to be learnt.
        seed: of the first weights and the order of the rows.
        train: whether a trained network is wanted where hyperparameters do not ask for one.

    Raises:
        ConvergenceError: if the loss stops being a finite number.
        InputError: if the checkpoint is one of another run.
    """
    schedule, module = lesson.schedule, lesson.architecture.network(seed)
    common = {**schedule.options, "likelihood": lesson.likelihood, "generator": seed, "progress": lesson.progress,
              "checkpoint": lesson.checkpoint}  # fmt: skip
    names = lesson.architecture.fan_in()
    given = names if lesson.precision is None else dict.fromkeys(names, lesson.precision)
    if lesson.precision is not None and not lesson.learns_noise:
        if not train:
            return Learnt(module, given, _noises(lesson, lesson.likelihood, module), {}, {})
        point = fit_map(module, lesson.data, prior_precision=given, **common)
        notes = {"training": str(schedule)}
        noises = _noises(lesson, lesson.likelihood, point.model)
        return Learnt(point.model, given, noises, notes, point.trace)
    with warnings.catch_warnings():
        # That minibatches end at a distance from the mode: the summary says how far.
        warnings.simplefilter("ignore", ConvergenceWarning)
        q = fit_evidence(
            module, lesson.data, prior_precision=given, prior=lesson.precision is None, noise=lesson.learns_noise,
            burn_in=schedule.every, every=schedule.every, **common,
        )  # fmt: skip
    what = " and ".join(["prior precision"] * (lesson.precision is None) + ["noise variance"] * lesson.learns_noise)
    notes = {"training": str(schedule), "learnt": f"{what}, by Laplace's evidence while training"}
    fit: Any = q.fit
    return Learnt(q.model, _by_layer(q, names), _noises(lesson, fit.likelihood, q.model), notes, q.trace)


def _by_layer(q: GaussianPosterior, names: Mapping[str, float]) -> dict[str, float]:
    fit: Any = q.fit
    parts = q.function.weights.unflat(fit.prior.diagonal(q.function.dim))  # type: ignore[union-attr]
    return {name: float(parts[f"{name}.weight"].flatten()[0]) for name in names}


@torch.no_grad()
def _noises(lesson: Lesson, likelihood: Likelihood, module: nn.Module) -> Tensor | None:
    """The noise variance of each output: that of all, shared out among them as their squared residuals are."""
    gaussian = unweighted(likelihood)
    if not isinstance(gaussian, Gaussian):
        return None
    noise = gaussian.noise(torch.zeros(lesson.architecture.outputs, dtype=torch.float64)).clone()
    if not lesson.learns_noise or len(noise) == 1:
        return noise
    inputs, targets = lesson.data
    weights = targets[:, -1:] if isinstance(likelihood, Weighted) else torch.ones_like(targets[:, :1])
    squares = ((targets[:, : len(noise)] - module(inputs)).square() * weights).sum(0)
    return torch.where(squares > 0, noise * squares / squares.mean(), noise)  # a constant column leaves none
