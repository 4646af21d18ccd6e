"""The members of an ensemble, trained side by side or one after another, to the same weights."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from bayescope import checks
from bayescope.errors import UnsupportedError
from bayescope.likelihoods import Likelihood
from bayescope.module_copies import module_copy
from bayescope.network.inputs import count_rows, map_arrays, map_tensors
from bayescope.network.model import NetworkModel
from bayescope.network.priors import network_prior
from bayescope.priors import Prior
from bayescope.training.loop import Outcome, random_states
from bayescope.training.objective import NegativeLogJoint
from bayescope.training.options import TrainingOptions
from bayescope.training.sharing import shared_copy
from bayescope.training.side_by_side import RowsOfEach
from bayescope.training.stack import MOST_PRODUCTS, Stack, obstacle
from bayescope.training.training import Training, chosen_weights, prepared
from bayescope.training.watch import Validation

# Optimisers that step on each number by itself, and alike in tensors of any shape.
ELEMENTWISE = (None, "adam", "sgd")


@final
@dataclass(frozen=True)
class Trained:
    """The members, trained.

    Attributes:
        functions: the members.
        few: some rows of inputs.
        rows: N.
        prior: p(θ).
        outcomes: how the training of each went.
        trace: the means over the members that were in training, per epoch, and under "losses" and "validation_nlls"
            the numbers of each.
        how: how they were trained, in words.
    """

    functions: list[NetworkModel]
    few: Any
    rows: int
    prior: Prior
    outcomes: list[Outcome]
    trace: Mapping[str, list[Any]]
    how: str


@final
@dataclass(frozen=True)
class Members:
    """What the trainings of all members have in common: everything but the module and the seed.

    Attributes:
        options: of each training.
        data: as the caller gave them.
        likelihood: p(y∣f).
        weights: the caller's choice of those that are random.
        prior_precision: the caller's.
        bootstrap: whether each member is trained on rows drawn with replacement.
    """

    options: TrainingOptions
    data: Any
    likelihood: Likelihood
    weights: Any
    prior_precision: Any
    bootstrap: bool

    def trained(self, modules: Sequence[nn.Module], seeds: Sequence[int], side_by_side: bool | None) -> Trained:
        """Train the members, in whichever way was asked for, or is the faster.

        Args:
            modules: the members, not to be changed.
            seeds: one a member, which `fit_map` would train it to the same weights from.
            side_by_side: ``None`` where it is possible and pays.

        Raises:
            UnsupportedError: if ``True`` and it is not possible.
        """
        modules = [shared_copy(module) for module in modules]
        options = replace(self.options, generator=seeds[0])
        if side_by_side is False or options.epochs == 0 or len(modules) == 1:
            return self._one_by_one(modules, seeds, "one after another")
        reason = _obstacle_of(options)
        if not reason:
            if side_by_side and options.optimizer is None:
                options = replace(options, optimizer="adam")  # one line search for all members would be nobody's
            with prepared(options, modules[0], self.data, self.likelihood, self.weights) as training:
                reason = self._training_obstacle(training, modules, forced=side_by_side is True)
                reason = next(filter(None, training.rows.of_parts(reason)), "")  # in one way on all processes
                if not reason:
                    return self._all_at_once(training, modules, seeds)
        if side_by_side:
            raise UnsupportedError(
                f"side_by_side: expected None or False for these members, got True: {reason}. They can be trained one "
                "after another."
            )
        return self._one_by_one(modules, seeds, f"one after another: {reason}")

    def _training_obstacle(self, training: Training, modules: Sequence[nn.Module], *, forced: bool) -> str:
        """Why the members cannot be trained side by side, as far as they and the data show."""
        few, rows = training.rows.few[0], training.rows
        if training.options.by_lbfgs:
            return "each is trained by L-BFGS until it is at a mode"
        if not rows.in_memory:
            return "the data come in batches, of which each member has its own order"
        spaces = {chosen_weights(module, self.weights, few).space for module in modules}
        if len(spaces) > 1:
            return "their random weights are not the same ones"
        products = rows.largest * sum(parameter.numel() for parameter in modules[0].parameters())
        device = next(modules[0].parameters()).device
        if not forced and device.type == "cpu" and products > MOST_PRODUCTS:
            return "their products take longer than the calls, which are all that one pass for all saves"
        return obstacle(modules, few)

    def _one_by_one(self, modules: Sequence[nn.Module], seeds: Sequence[int], how: str) -> Trained:
        """Train each by itself; after Ctrl-C those stay that were trained by then, and at least the first."""
        done: list[Trained] = []
        for module, seed in zip(modules, seeds, strict=True):
            one = self._alone(module, seed, len(done))
            interrupted = one.outcomes[0].ended == "an interrupt"
            if not interrupted or not done:
                done.append(one)
            if interrupted:
                how += f", ended by an interrupt in the training of one of the {len(modules)}"
                break
        functions, outcomes = [one.functions[0] for one in done], [one.outcomes[0] for one in done]
        trace = _joined([outcome.trace for outcome in outcomes])
        return Trained(functions, done[0].few, done[0].rows, done[0].prior, outcomes, trace, how)

    def _alone(self, module: nn.Module, seed: int, member: int) -> Trained:
        path = self.options.checkpoint
        if path is not None:  # a file of its own for each member: run.pt is run-0.pt for the first
            path = Path(path).with_stem(f"{Path(path).stem}-{member}")
        options = replace(self.options, generator=seed, checkpoint=path)
        data = _resampled_rows(self.data, seed) if self.bootstrap else self.data
        with prepared(options, module, data, self.likelihood, self.weights) as training:
            prior = network_prior(self.prior_precision, training.weights)
            outcome = training.to_mode(prior)
            few, rows = training.rows.few[0], training.rows.rows
            return Trained([training.function()], few, rows, prior, [outcome], outcome.trace, "")

    def _all_at_once(self, training: Training, modules: Sequence[nn.Module], seeds: Sequence[int]) -> Trained:
        """Train one stack of all."""
        few, likelihood, held_out = training.rows.few[0], self.likelihood, training.held_out()
        stack = Stack(modules, vectorized=True)
        prior = network_prior(self.prior_precision, training.weights)
        best: Validation | None = None
        objective = NegativeLogJoint(
            stack, training.weights, training.rows.rows, likelihood, prior,
            ended=lambda: torch.zeros(len(modules), dtype=torch.bool) if best is None else best.ended,
        )  # fmt: skip
        if held_out is not None:
            best = Validation.of(stack, held_out, objective, self.options.patience)
        count = len(training.rows.whole()[1])
        drawn = torch.stack([resampled(count, seed) for seed in seeds]) if self.bootstrap else None
        orders = [_order(module, seed) for module, seed in zip(modules, seeds, strict=True)]
        outcome = training.run(
            objective, best, trained=stack, facts={"bootstrap": list(seeds) if self.bootstrap else None},
            rows=RowsOfEach(training.rows, orders, drawn),
        )  # fmt: skip
        if best is not None:
            best.restore_best()
        found = [module_copy(module).eval() for module in modules]
        stack.write_to(found)
        functions = [NetworkModel(module, training.weights, training.rows.outputs) for module in found]
        outcomes = [_outcome_of(outcome, best, member) for member in range(len(modules))]
        return Trained(functions, few, training.rows.rows, prior, outcomes, outcome.trace, "side by side")


def _obstacle_of(options: TrainingOptions) -> str:
    """Why the members cannot be trained side by side, as far as the options show."""
    if options.optimizer not in ELEMENTWISE:
        return "an optimizer other than 'adam' and 'sgd' may take a stack of members for one"
    if callable(options.schedule):
        return "a schedule of your own may go by the loss, which each member has its own of"
    return ""


def _outcome_of(outcome: Outcome, best: Validation | None, member: int) -> Outcome:
    """How the training of one member of a stack went."""
    last = outcome.epochs if best is None else min(int(best.last[member]), outcome.epochs)
    kept = last if best is None or not best.kept[member] else min(int(best.kept[member]), last)
    ended = "no better validation" if best is not None and bool(best.ended[member]) else outcome.ended
    trace = {"loss": [losses[member] for losses in outcome.trace.get("losses", [])[:last]]}
    return replace(outcome, trace=trace, epochs=last, kept=kept, ended=ended)


def _joined(traces: Sequence[Mapping[str, list[Any]]]) -> dict[str, list[Any]]:
    """The means per epoch over the members that were in training, and the losses of each: NaN where one was not."""
    longest = max(len(trace.get("loss", [])) for trace in traces)
    joined: dict[str, list[Any]] = {name: [] for name in traces[0]}
    for name in list(joined):
        columns = [[trace[name][epoch] for trace in traces if epoch < len(trace[name])] for epoch in range(longest)]
        joined[name] = [statistics.fmean(column) for column in columns]
    each = {"loss": "losses", "validation_nll": "validation_nlls"}
    for name in [name for name in each if name in joined]:
        rows = zip_longest(*(trace[name] for trace in traces), fillvalue=math.nan)
        joined[each[name]] = [list(row) for row in rows]
    return joined


def _order(module: nn.Module, seed: int) -> torch.Generator:
    """The generator of the order of the rows that a training from the seed has."""
    with random_states(module, checks.generator(seed)) as order:
        return order


def resampled(rows: int, seed: int) -> Tensor:
    """The bootstrap's rows of a member: as many as there are, drawn with replacement, shape (N,)."""
    return torch.randint(max(1, rows), (rows,), generator=checks.generator(seed))


def _resampled_rows(data: Any, seed: int) -> Any:
    """The bootstrap's data of a member."""
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, tuple | Mapping):
        arrays = map_arrays(data)
        chosen = resampled(count_rows(arrays), seed)
        return map_tensors(lambda tensor: tensor[chosen.to(tensor.device)], arrays)
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        return Subset(data, resampled(len(data), seed).tolist())  # type: ignore[arg-type]
    raise UnsupportedError(
        f"bootstrap: expected data whose rows can be drawn, (X, y) or a Dataset, got a {type(data).__name__}. Give "
        "the arrays, or bootstrap=False."
    )
