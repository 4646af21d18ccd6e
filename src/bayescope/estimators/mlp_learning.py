"""How a network and its hyperparameters are learnt, before any posterior: once, on standardised targets."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from bayescope import checks
from bayescope.errors import ConvergenceWarning
from bayescope.estimators.mlp_network import Architecture
from bayescope.laplace.online import fit_evidence
from bayescope.likelihoods import Likelihood, Weighted
from bayescope.posterior import GaussianPosterior
from bayescope.training.fit_map import fit_map

# Where the search for the noise variance begins, as a share of the targets' variance.
FIRST_NOISE = 0.1
# Steps of the optimiser: this many a row, within these bounds, and as many as this many epochs take.
STEPS_A_ROW, FEWEST_STEPS, MOST_STEPS, FEWEST_EPOCHS = 6, 240, 4000, 30
# Rows of a minibatch: the first number in tables of up to MANY rows, else the second.
MANY, BATCH, LARGE_BATCH = 4000, 32, 128
STEP_SIZE = 0.02
# A network that was found by the search goes on by smaller steps: such a share of the first step size.
WARM = 0.25
# Of a table on disk: rows of a minibatch, and the bounds of the number of epochs.
DISK_BATCH, FEWEST_DISK_EPOCHS, MOST_DISK_EPOCHS = 512, 5, 1000
# Prior precisions are sought on at most this many rows, one in HELD_OUT of which judges and trains nothing.
MOST_SOUGHT, HELD_OUT = 2500, 5
# A precision under which networks learn checkerboards and spirals of 200 rows; under one of 1 and above they do not.
LOW = 0.1
# Epochs of L-BFGS, of twenty evaluations each: of the search, before its first climb, between two, and of the last
# training.
SEARCH_EPOCHS, LEARN_EPOCHS, SEARCH_EVERY, LAST_EPOCHS = 24, 10, 2, 12
# The evidence is climbed at most this many times while training, at least once in this many steps of the optimiser.
CLIMBS, STEPS_A_CLIMB = 14, 80


@final
@dataclass(frozen=True)
class TrainingPace:
    """How networks are trained: Adam, whose step size falls to 0 by a cosine.

    Attributes:
        epochs: how often the rows are read.
        batch_size: the most rows of a minibatch.
        lr: the first step size.
        steps: in an epoch.
        at_once: whether the network of Laplace's approximation is trained by L-BFGS on all rows: where they are few and
            no number of epochs, step size or minibatches are asked for.
        searched: the epochs of the search for hyperparameters.
    """

    epochs: int
    batch_size: int
    lr: float
    steps: int
    at_once: bool
    searched: int

    @classmethod
    def checked(
        cls, rows: int, epochs: int | None, batch_size: int | None, lr: float | None, *, on_disk: bool = False
    ) -> TrainingPace:
        """From the options of an estimator; ``None`` for what follows from the number of rows.

        Raises:
            InputError: if a number cannot be used.
        """
        usual = DISK_BATCH if on_disk else BATCH if rows <= MANY else LARGE_BATCH
        size = usual if batch_size is None else checks.count("batch_size", batch_size)
        steps = math.ceil(rows / size)
        if on_disk:  # fewer and larger minibatches are enough
            count = min(max(FEWEST_DISK_EPOCHS, MOST_STEPS // steps), MOST_DISK_EPOCHS)
        else:
            wanted = min(max(STEPS_A_ROW * rows, FEWEST_STEPS), MOST_STEPS)
            count = max(FEWEST_EPOCHS, wanted // steps)
        searched = SEARCH_EPOCHS
        if epochs is not None or on_disk:
            count = count if epochs is None else checks.count("epochs", epochs)
            searched = min(count, SEARCH_EPOCHS)
        at_once = not on_disk and rows <= MANY and epochs is None and batch_size is None and lr is None
        step_size = STEP_SIZE if lr is None else checks.positive_number("lr", lr)
        return cls(count, size, step_size, steps, at_once, searched)

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

    @property
    def last(self) -> dict[str, Any]:
        """The options of the last training of the network of Laplace's approximation."""
        if not self.at_once:
            return self.options
        return {"optimizer": "lbfgs", "epochs": LAST_EPOCHS}

    def __str__(self) -> str:
        if self.at_once:
            return "L-BFGS on all rows"
        return f"{self.epochs} epochs in minibatches of {self.batch_size}, step size {self.lr:g}"


@final
@dataclass(frozen=True, eq=False)
class Lesson:
    """What a network is to learn.

    Attributes:
        architecture: of the network.
        data: the inputs (N, D), and the canonical targets of the likelihood, standardised; or a loader of such.
        some: gives at most this many rows of the data, drawn by a seed.
        likelihood: p(y∣f); the noise variance of standardised targets is in it, or where its search begins.
        precision: the prior's, or ``None`` where it is to be learnt.
        learns: the hyperparameters of the likelihood that are to be learnt, which have first values in it.
        schedule: of the training.
        checkpoint: where the training is saved to, or ``None``.
        progress: whether a bar is drawn.
    """

    architecture: Architecture
    data: Any
    some: Callable[[int, int], list[Tensor]]
    likelihood: Likelihood
    precision: float | None
    learns: tuple[str, ...]
    schedule: TrainingPace
    checkpoint: Path | None
    progress: bool

    def another(self, seed: int) -> nn.Sequential:
        """Another network to begin with, by its seed: where the prior is to be learnt, one that has learnt under `LOW`.

        A network with the first weights of all may stay at one prediction for all rows, as the precisions that suit a
        network that has learnt can make this one a mode as well.
        """
        module = self.architecture.network(seed)
        if self.precision is not None:
            return module
        inputs, targets = self.coarse(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return fit_map(
                module, (inputs, targets), likelihood=_of_rows(self.likelihood, targets),
                prior_precision=dict.fromkeys(self.architecture.fan_in(), LOW), optimizer="lbfgs",
                epochs=min(LEARN_EPOCHS, self.schedule.searched), generator=seed, progress=self.progress,
            ).model  # fmt: skip

    def coarse(self, seed: int) -> list[Tensor]:
        """Some rows, standardised numbers to 2⁻³⁰ (1e-9); whole numbers stay.

        Hundreds of steps down a surface with many valleys end at a different network if inputs differ in their last
        digits, as they do between units. Targets that are not standardised stay.
        """
        inputs, targets = self.some(MOST_SOUGHT, seed)
        stays = self.architecture.rescaled is not None or not targets.is_floating_point()
        return [_rounded(inputs), targets if stays else _rounded(targets)]


def _rounded(numbers: Tensor) -> Tensor:
    return (numbers * 2.0**30).round() / 2.0**30


@final
@dataclass(frozen=True, eq=False)
class Learnt:
    """A trained network and the hyperparameters that it was trained with.

    Attributes:
        module: of standardised targets.
        precisions: the prior's, by layer.
        likelihood: p(y∣f), of standardised targets.
        noise_variances: of standardised targets, shape (C,); ``None`` where there is no noise.
        notes: lines for a summary.
        trace: numbers per epoch.
    """

    module: nn.Sequential
    precisions: Mapping[str, float]
    likelihood: Likelihood
    noise_variances: Tensor | None
    notes: Mapping[str, str]
    trace: Mapping[str, Sequence[float]]


def learn(lesson: Lesson, seed: int, *, train: bool) -> Learnt:
    """Trains a network, and learns what is not given of its prior and its noise.

    Prior precisions are first sought on some of the rows (`_sought`); the network that was found there goes on with all
    of them: to its mode under these precisions where all rows are few enough for L-BFGS, and otherwise while the
    evidence is climbed on.

    Args:
        lesson: what is to be learnt.
        seed: of the first weights and the order of the rows.
        train: whether a trained network is wanted where hyperparameters do not ask for one.

    Raises:
        ConvergenceError: if the loss stops being a finite number.
        InputError: if the checkpoint is one of another run.
    """
    module, names = lesson.architecture.network(seed), lesson.architecture.fan_in()
    given = dict.fromkeys(names, lesson.precision or 1.0)
    if lesson.precision is None:
        found, judged = _sought(lesson, module, seed)
        fit: Any = found.fit
        values = {name: fit.likelihood.known(name) for name in lesson.learns}
        lesson = replace(lesson, likelihood=lesson.likelihood.with_hyperparameters(**values))
        return _trained(lesson, found.model, _by_layer(found, names), seed, judged)
    if lesson.learns or train:
        return _trained(lesson, module, given, seed)
    return Learnt(module, given, lesson.likelihood, _noises(lesson, lesson.likelihood, module), {}, {})


def _sought(lesson: Lesson, module: nn.Sequential, seed: int) -> tuple[GaussianPosterior, str]:
    """A network and hyperparameters that the evidence has proposed and rows that trained nothing have chosen.

    Which rows these are is said in the words that come with it.

    The evidence of Laplace's approximation has a maximum at infinite precisions, where the network predicts one number
    for all rows. Before a network has learnt it is the only one, and for few rows it can be higher than the evidence of
    a network that has learnt (a checkerboard of 200 rows: −111 nats, and −212 at the network that solves it). So the
    network learns first, under precisions of `LOW`, and its evidence is climbed after; and every network on the way is
    judged by its predictions of a fifth of the rows. Another start, from the number of each layer's inputs, finds the
    smooth functions that suit noisy targets.
    """
    inputs, targets = lesson.coarse(seed)
    # In an order of their own: see `Lesson.coarse`.
    keys = [*inputs.T, *targets.to(torch.float64).reshape(len(targets), -1).T]
    canonical = torch.from_numpy(np.lexsort([key.numpy() for key in keys[::-1]]))
    shuffled = canonical[torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))]
    apart, rest = shuffled[: len(inputs) // HELD_OUT], shuffled[len(inputs) // HELD_OUT :]
    names, path, searched = lesson.architecture.fan_in(), lesson.checkpoint, lesson.schedule.searched
    with warnings.catch_warnings():
        # That the search ends at a distance from a mode: the last training goes on from there.
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = fit_evidence(
            module, (inputs[rest], targets[rest]), **_noise(lesson, _of_rows(lesson.likelihood, targets[rest])),
            starts=[dict.fromkeys(names, LOW), names],
            validation=(inputs[apart], targets[apart]) if len(apart) else None, epochs=searched,
            burn_in=max(1, searched * LEARN_EPOCHS // SEARCH_EPOCHS), every=SEARCH_EVERY, optimizer="lbfgs",
            generator=seed, progress=lesson.progress,
            checkpoint=path and path.with_stem(f"{path.stem}-search"),
        )  # fmt: skip
    judges = f"predictions of {len(apart):,} of {len(inputs):,} rows, held out" if len(apart) else "evidence"
    return found, f", judged by the {judges}"


def _trained(
    lesson: Lesson, module: nn.Sequential, precisions: Mapping[str, float], seed: int, judged: str = ""
) -> Learnt:
    """The network after a training with all rows."""
    schedule, sought = lesson.schedule, lesson.precision is None
    common: dict[str, Any] = {"likelihood": lesson.likelihood, "prior_precision": precisions, "generator": seed,
              "progress": lesson.progress, "checkpoint": lesson.checkpoint, **schedule.last}  # fmt: skip
    climbs = sought and not schedule.at_once
    if climbs:
        common["lr"] = WARM * schedule.lr
    what = " and ".join(["prior precision"] * sought + [name.replace("_", " ") for name in lesson.learns])
    learnt = {"learnt": f"{what}, by Laplace's evidence while training{judged}"} if what else {}
    notes = {"training": str(schedule), **learnt}
    if not lesson.learns and not climbs:
        point = fit_map(module, lesson.data, **common)
        noises = _noises(lesson, lesson.likelihood, point.model)
        return Learnt(point.model, precisions, lesson.likelihood, noises, notes, point.trace)
    every = schedule.every if not schedule.at_once else SEARCH_EVERY
    with warnings.catch_warnings():
        # That minibatches end at a distance from the mode: the summary says how far.
        warnings.simplefilter("ignore", ConvergenceWarning)
        common |= _noise(lesson, lesson.likelihood)
        q = fit_evidence(module, lesson.data, prior=climbs, burn_in=every, every=every, **common)
    fit: Any = q.fit
    precisions = _by_layer(q, lesson.architecture.fan_in())
    return Learnt(q.model, precisions, fit.likelihood, _noises(lesson, fit.likelihood, q.model), notes, q.trace)


def _noise(lesson: Lesson, likelihood: Likelihood) -> dict[str, Any]:
    """The likelihood as `fit_evidence` takes it, and where its noise variance starts if it is learnt."""
    start: Any = likelihood.unweighted.noise_variance
    found = likelihood.with_hyperparameters(**dict.fromkeys(lesson.learns, "evidence"))
    return {"likelihood": found, "noise_variance": float(start) if "noise_variance" in lesson.learns else None}


def _of_rows(likelihood: Likelihood, targets: Tensor) -> Likelihood:
    """The likelihood of some rows, whose mean weight is another than that of all."""
    if likelihood.mean_weight is None:
        return likelihood
    return Weighted(likelihood.unweighted, float(targets[:, -1].mean()))


def _by_layer(q: GaussianPosterior, names: Mapping[str, float]) -> dict[str, float]:
    fit: Any = q.fit
    parts = q.function.weights.unflat(fit.prior.diagonal(q.function.dim))  # type: ignore[union-attr]
    return {name: float(parts[f"{name}.weight"].flatten()[0]) for name in names}


@torch.no_grad()
def _noises(lesson: Lesson, likelihood: Likelihood, module: nn.Module) -> Tensor | None:
    """The noise variance of each output: that of all, shared out among them as their squared residuals are."""
    plain = likelihood.unweighted
    if plain.noise_variance is None:
        return None
    noise = plain.noise(torch.zeros(lesson.architecture.outputs, dtype=torch.float64)).clone()
    if not lesson.learns or len(noise) == 1:
        return noise
    inputs, targets = lesson.data
    weights = targets[:, -1:] if likelihood.mean_weight is not None else torch.ones_like(targets[:, :1])
    squares = ((targets[:, : len(noise)] - module(inputs)).square() * weights).sum(0)
    return torch.where(squares > 0, noise * squares / squares.mean(), noise)  # a constant column leaves none
