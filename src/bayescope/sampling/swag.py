"""SWAG: the Gaussian that the last part of a training by stochastic gradients walks through."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, Unpack, cast, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from bayescope import checks
from bayescope.errors import ConvergenceWarning, InputError, UnsupportedError
from bayescope.keywords import picked, takes
from bayescope.layers.output_choice import OutputChoice
from bayescope.likelihoods import Likelihood, LikelihoodName
from bayescope.logs import logged
from bayescope.network import Weights, call, network_prior, with_output
from bayescope.network.row_weights import likelihood_of_rows
from bayescope.posterior import GaussianPosterior, Record
from bayescope.precision import LowRankCovariance
from bayescope.process_state import outside_inference_mode
from bayescope.processes import collective, warn_once
from bayescope.training import Minibatches, NegativeLogJoint, Verdict, prepared, resumable
from bayescope.training.options import OWN_BATCH_SIZE, MakeOptimizer, MakeSchedule, RunKeywords, TrainingOptions
from bayescope.training.steps import share_buffers

# Of the step size at the start of a cycle, what is left at its end; the epochs of a cycle; the columns that are kept.
LOWEST, CYCLE, RANK = 0.05, 5, 20
# Minibatches of an epoch, at least: with fewer there is little noise for the weights to move by.
STEPS = 8
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@final
@dataclasses.dataclass(frozen=True)
class Collection:
    """When snapshots are taken.

    Attributes:
        burn_in: how many epochs pass before.
        steps: steps of the optimiser between two; ``None`` for one at the end of each cycle.
        cycle: epochs of a cycle; one where the step size is constant.
    """

    burn_in: int
    steps: int | None
    cycle: int

    @classmethod
    def of(cls, collect: str | int, burn_in: int | None, schedule: Any, cycle: int | None, epochs: int) -> Collection:
        """From what the caller asks for.

        Raises:
            OptionError: if a name is unknown.
            InputError: if a number cannot be used.
            UnsupportedError: if two of them do not go together.
        """
        cyclic = isinstance(schedule, str) and checks.choice("schedule", schedule, ["cyclic"]) == "cyclic"
        if cycle is not None and not cyclic:
            raise UnsupportedError(f"cycle: expected schedule='cyclic' to go with it, got schedule={schedule!r}.")
        if isinstance(collect, str):
            checks.choice("collect", collect, ["epoch"])
        elif cyclic:
            raise UnsupportedError(
                f"collect: expected 'epoch' for a cyclic schedule, whose snapshots end its cycles, got {collect}."
            )
        before = epochs // 2 if burn_in is None else checks.count("burn_in", burn_in, least=0)
        if before >= epochs:
            raise InputError(f"burn_in: expected fewer epochs than the {epochs} of the training, got {before}.")
        length = CYCLE if cycle is None else checks.count("cycle", cycle, least=2)
        return cls(before, None if isinstance(collect, str) else checks.count("collect", collect), length * cyclic or 1)

    def planned(self, epochs: int) -> int | None:
        """How many snapshots this many epochs give; ``None`` where it depends on the steps of an epoch."""
        return None if self.steps is not None else (epochs - self.burn_in) // self.cycle

    def factor(self, epoch: int) -> float:
        """What the step size is multiplied by in an epoch: in each cycle it falls from 1 to `LOWEST` along a line."""
        if epoch < self.burn_in or self.cycle == 1:
            return 1.0
        return 1.0 - (1.0 - LOWEST) * ((epoch - self.burn_in) % self.cycle) / (self.cycle - 1)

    def __str__(self) -> str:
        often = {1: "one an epoch"}.get(self.cycle, f"one a cycle of {self.cycle} epochs")
        often = often if self.steps is None else f"one in {self.steps} steps"
        return f"{often} after epoch {self.burn_in}"


@logged
@outside_inference_mode
@resumable
@collective
@takes(RunKeywords, TrainingOptions, OutputChoice)
def swag(
    model: nn.Module,
    data: Any,
    *,
    likelihood: LikelihoodName | Likelihood,
    rank: int | None = None,
    prior_precision: Any = 1.0,
    weights: Any = "all",
    epochs: int = 100,
    burn_in: int | None = None,
    collect: str | int = "epoch",
    cycle: int | None = None,
    optimizer: Literal["sgd", "adam"] | MakeOptimizer = "sgd",
    schedule: Literal["cyclic"] | MakeSchedule | None = None,
    **options: Unpack[RunKeywords],
) -> GaussianPosterior:
    """A Gaussian over the weights that stochastic gradients pass through at a step size that does not go to zero.

    The network is trained on the loss of `fit_map`, −Σ log p(y∣f) + ½ (θ−m)ᵀP₀(θ−m), and goes on after it has come near
    an optimum. The snapshots θ_t of its weights have the average θ̄ and the covariance

        Σ = ½ diag(T⁻¹ Σ_t (θ_t − θ̄)²) + ½ D Dᵀ / (K − 1),

    with K columns D_t = θ_t − θ̄_t of the last K snapshots and the averages up to each (Maddox et al. 2019, "A simple
    baseline for Bayesian uncertainty in deep learning", Eqs. 1 and 2). How wide it is depends on the step size and the
    minibatches as much as on the data; nothing says that it is the posterior's width. The columns take 8 K P bytes.

    Batch norm's statistics are those of the average weights on the training rows, for all draws.

    Args:
        model: any module, trained or not; it is left unchanged. See `fit_map` for this and what is not described here.
        data: as in `fit_map`.
        likelihood: a name or a likelihood.
        rank: K, at most the number of snapshots; 0 for Σ = diag(T⁻¹ Σ_t (θ_t − θ̄)²); ``None`` for 20, or as many as
            there will be snapshots.
        prior_precision: P₀ of the loss.
        weights: which weights θ are random. All others that are trained are averaged too.
        epochs: how many times the data are read, those of the burn-in included.
        burn_in: how many epochs pass before snapshots are taken; ``None`` for half of them. 0 for a trained model.
        collect: "epoch" for a snapshot after each epoch (each cycle of a cyclic schedule), or after how many steps.
        optimizer: "sgd" (momentum 0.9), "adam", or a function of a list of parameters.
        schedule: ``None`` for a constant step size, "cyclic" for one that falls to a twentieth along a line in each
            cycle, at whose end a snapshot is taken, or a function of the optimiser that returns a scheduler.
        cycle: the epochs of a cycle, after the burn-in; ``None`` for 5.
        options: of the training, as `TrainingOptions` describes them: ``lr`` (1e-2 by default for "sgd"; large enough
            for the weights to move about), ``batch_size`` (``None`` for 128, or an eighth of the rows where that is
            less: all rows at once leave no noise to see), ``checkpoint``, ``generator`` and ``progress``.
            ``output`` and ``classes_dim`` say which part of what the module returns is f: see `OutputChoice`.

    Returns:
        N(θ̄, Σ) with predictions from draws of the weights; its precision is a `LowRankCovariance`. ``.model`` is the
        network at θ̄, ``.trace`` has "loss", "nll", "penalty" and "snapshots" per epoch.

    Raises:
        ConvergenceError: if the loss stops being a finite number.
        InputError: if there are fewer snapshots than the rank, or than two, or the data do not fit.
        OptionError: if a name is unknown.
        UnsupportedError: if two arguments do not go together.
        KeyboardInterrupt: if Ctrl-C comes before the second snapshot; after it, what was found until then is returned.

    Warns:
        ConvergenceWarning: if each step reads all rows.
    """
    collection = Collection.of(collect, burn_in, schedule, cycle, checks.count("epochs", epochs))
    rank = _rank(rank, collection.planned(epochs))
    paced = _cyclic(collection) if schedule == "cyclic" else schedule
    run = {**options, "epochs": epochs, "optimizer": optimizer, "schedule": paced}
    chosen, model = picked(TrainingOptions, run), with_output(model, options)
    if chosen.by_lbfgs:
        raise UnsupportedError("optimizer: expected one that steps on minibatches, whose noise SWAG sees, got 'lbfgs'.")
    likelihood = likelihood_of_rows(likelihood, data)
    with prepared(chosen, model, data, likelihood, weights) as training:
        if chosen.batch_size is None and not training.rows.in_batches:
            # Few enough for `STEPS` an epoch, and two at least: of one row, batch norm could see no spread.
            training.rows.resize(min(OWN_BATCH_SIZE, max(2, math.ceil(training.rows.rows / STEPS))))
        prior = network_prior(prior_precision, training.weights, training.module)
        joint = NegativeLogJoint(training.module, training.weights, training.rows.rows, likelihood, prior)
        trajectory = Trajectory(training.module, training.weights, rank, collection)

        def make(parameters: list[nn.Parameter]) -> Optimizer:
            optimizer = chosen.make(parameters)
            optimizer.register_step_post_hook(trajectory.stepped)
            return optimizer

        outcome = training.run(joint, trajectory, trained=trajectory, make=make)
        if outcome.ended == "an interrupt" and trajectory.count < FEWEST:
            raise KeyboardInterrupt(f"interrupted before snapshot {FEWEST}")
        covariance = trajectory.covariance()
        trajectory.settle()
        normalised = _renormalise(training.module, training.rows)
        function = training.function()
    if trajectory.noiseless:
        warn_once(
            f"swag: each step read all {training.rows.rows:,} rows, so that no noise of minibatches moved the weights, "
            "and the posterior's width says nothing. Take a smaller batch_size.",
            ConvergenceWarning,
        )
    found = f"the diagonal and {trajectory.rank} columns" if rank else "the diagonal"
    advice = "Give more epochs, or a model that is trained, such as bs.fit_map's, with burn_in=0."
    notes = {
        **outcome.notes(prior, advice),
        "snapshots": f"{trajectory.count}, {collection}; {found} of their covariance",
        **({"batch norm": "the statistics of the average weights, for all draws"} if normalised else {}),
    }  # fmt: skip
    record = Record("swag", notes=notes, trace=outcome.trace, instead="Use bs.laplace at its .model for one.")
    return GaussianPosterior(trajectory.mean, covariance, record, function, likelihood.unweighted, method="sampled")


def _rank(rank: int | None, snapshots: int | None) -> int:
    """The columns to keep.

    Raises:
        InputError: if the snapshots, where their number is known, cannot give them.
    """
    if rank is None:
        rank = RANK if snapshots is None else max(2, min(RANK, snapshots))
    if checks.count("rank", rank, least=0) == 1:
        raise InputError("rank: expected 0 or at least 2, as the covariance divides by rank − 1, got 1.")
    if snapshots is not None and snapshots < max(rank, 2):
        raise InputError(
            f"rank: expected at most one column a snapshot, of which there will be {snapshots}, and at least two "
            f"snapshots, got rank={rank}. Train for more epochs, or take a lower rank or a shorter burn_in."
        )
    return rank


def _cyclic(collection: Collection) -> Callable[[Optimizer], LambdaLR]:
    return lambda optimizer: LambdaLR(optimizer, collection.factor)


def _renormalise(network: nn.Module, rows: Minibatches) -> bool:
    """Gives batch norms the statistics of the present weights: equal parts of each minibatch's, over one epoch.

    Returns:
        Whether there are any.
    """
    norms = [module for module in network.modules() if isinstance(module, _NORMS) and module.track_running_stats]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # an average over all batches
        norm.train()
    if norms:
        read = False
        with torch.no_grad():
            for inputs, _ in rows.epoch(0):
                if rows.cut is None or rows.cut.count:
                    call(network, inputs)
                    read = True
        share_buffers(network, read=read)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.eval()
    return bool(norms)


DOUBLE = torch.float64
# Snapshots that have a covariance.
FEWEST = 2


@final
class Trajectory(nn.Module):
    """A network together with what has been seen of its weights; a module, so that checkpoints keep both.

    With θ_1, …, θ_T the snapshots, θ̄_t the average of the first t and K columns D_t = θ_t − θ̄_t of the last K of them,

        Σ = ½ diag(T⁻¹ Σ_t (θ_t − θ̄_T)²) + ½ D Dᵀ / (K − 1)

    (Maddox et al. 2019, "A simple baseline for Bayesian uncertainty in deep learning", Eqs. 1 and 2). Averages and
    sums of squares are updated by Welford's rule in float64: the difference of two large second moments would lose the
    digits of a variance that is small beside the weights.

    Args:
        network: what is trained.
        weights: which of its weights are random. All others that are trained are averaged alone.
        rank: the most columns K; 0 for the diagonal alone.
        collection: when snapshots are taken.
    """

    def __init__(self, network: nn.Module, weights: Weights, rank: int, collection: Collection) -> None:
        super().__init__()
        self.network, self._collection, self._rank = network, collection, rank
        self._epoch = self._epochs_here = self._steps_here = 0
        self._trained = {name: p for name, p in network.named_parameters() if p.requires_grad}
        self._places = _places(self._trained, weights)
        first = next(iter(self._trained.values()))
        trained = sum(parameter.numel() for parameter in self._trained.values())
        for name, shape in {"average": (trained,), "squares": (weights.dim,), "columns": (rank, weights.dim)}.items():
            self.register_buffer(name, torch.zeros(shape, dtype=DOUBLE, device=first.device))
        self.register_buffer("taken", torch.zeros((), dtype=torch.int64))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    @property
    def count(self) -> int:
        """T, the number of snapshots."""
        return int(cast(Tensor, self.taken))

    @property
    def rank(self) -> int:
        """K: as many columns as were asked for, or as there are snapshots."""
        return min(self.count, len(cast(Tensor, self.columns)))

    @property
    def mean(self) -> Tensor:
        """θ̄_T of the random weights, shape (P,), float64."""
        return cast(Tensor, self.average)[self._places]

    @property
    def noiseless(self) -> bool:
        """Whether no epoch had more than one step, so that each was on all rows."""
        return 0 < self._steps_here <= self._epochs_here

    def stepped(self, *_: object) -> None:
        """Takes a snapshot after every k-th step of the optimiser, if snapshots are counted in steps."""
        self._steps_here += 1
        every = self._collection.steps
        if every is not None and self._epoch >= self._collection.burn_in:
            steps = cast(Tensor, self.steps).add_(1)
            if int(steps) % every == 0:
                self.snapshot()

    def judge(self, epoch: int) -> Verdict:
        """Takes a snapshot where a cycle ends; the last weights are as good as any."""
        self._epoch, self._epochs_here = epoch, self._epochs_here + 1
        done = epoch - self._collection.burn_in
        if self._collection.steps is None and done > 0 and done % self._collection.cycle == 0:
            self.snapshot()
        return Verdict({"snapshots": self.count})

    def facts(self) -> dict[str, Any]:
        """How many columns are kept, and when snapshots are taken."""
        return {"rank": self._rank, "snapshots": str(self._collection)}

    def state(self) -> dict[str, Any]:
        """The epochs that are done; the snapshots are in buffers, which every checkpoint has."""
        return {"epoch": self._epoch}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint."""
        self._epoch = state["epoch"]

    @torch.no_grad()
    def snapshot(self) -> None:
        """Adds the present weights to the running moments."""
        present = torch.cat([parameter.detach().flatten().to(DOUBLE) for parameter in self._trained.values()])
        average, squares, columns = (cast(Tensor, tensor) for tensor in (self.average, self.squares, self.columns))
        before = (present - average)[self._places]
        cast(Tensor, self.taken).add_(1)
        average.add_((present - average) / self.count)
        after = (present - average)[self._places]
        squares.addcmul_(before, after)
        if len(columns):
            columns[(self.count - 1) % len(columns)] = after

    @torch.no_grad()
    def settle(self) -> None:
        """Gives the network the average."""
        sizes = [parameter.numel() for parameter in self._trained.values()]
        for parameter, values in zip(self._trained.values(), cast(Tensor, self.average).split(sizes), strict=True):
            parameter.copy_(values.reshape(parameter.shape))

    def covariance(self) -> LowRankCovariance:
        """Σ; without columns the diagonal as a whole, not half of it, as the paper's SWAG-Diagonal.

        Raises:
            InputError: if there are fewer than two snapshots.
        """
        if self.count < FEWEST:
            raise InputError(
                f"epochs: expected at least two snapshots to see a covariance, got {self.count}. Train for more "
                "epochs, or collect sooner or more often."
            )
        variances, rank = cast(Tensor, self.squares) / self.count, self.rank
        columns = cast(Tensor, self.columns)[:rank].mT
        if not rank:
            return LowRankCovariance(variances, columns, name="the snapshots' covariance")
        scaled = columns / (2 * (rank - 1)) ** 0.5
        return LowRankCovariance(0.5 * variances, scaled, name="the snapshots' covariance")


def _places(trained: dict[str, nn.Parameter], weights: Weights) -> Tensor:
    """Where the random weights stand among all that are trained, as these lie one after another."""
    sizes = [parameter.numel() for parameter in trained.values()]
    device = next(iter(trained.values())).device
    parts = torch.arange(sum(sizes), device=device).split(sizes)
    named = {name: part.reshape(trained[name].shape) for name, part in zip(trained, parts, strict=True)}
    return weights.flatten({name: named[name] for name in weights.names})
