"""Deep ensembles: networks trained from several beginnings, which stand for the posterior as equally weighted draws."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Unpack, final

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from bayescope import checks
from bayescope.errors import InputError, InputTypeError, UnsupportedError
from bayescope.keywords import picked, takes
from bayescope.layers.output_choice import OutputChoice
from bayescope.likelihoods import Likelihood, LikelihoodName
from bayescope.logs import logged
from bayescope.module_copies import module_copy
from bayescope.network import NetworkModel, network_prior, row_totals, unwrapped, with_output
from bayescope.network.batches import as_data
from bayescope.network.inputs import Inputs, count_rows, map_arrays, map_tensors
from bayescope.network.row_weights import likelihood_of_rows
from bayescope.posterior import DrawsPosterior, MixturePosterior, PointPosterior, Record
from bayescope.priors import Prior
from bayescope.private_draws import private_draws
from bayescope.process_state import outside_inference_mode
from bayescope.processes import collective, present
from bayescope.training import NegativeLogJoint, Outcome, Validation, random_states, resumable
from bayescope.training.facts import describe
from bayescope.training.loop import tensors_of
from bayescope.training.options import TrainingKeywords, TrainingOptions
from bayescope.training.stack import MOST_PRODUCTS, Stack, close, obstacle
from bayescope.training.steps import shared_copy
from bayescope.training.training import Training, chosen_weights, prepared

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
    few: Inputs
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
            prior = network_prior(self.prior_precision, training.weights, training.module)
            outcome = training.to_mode(prior)
            few, rows = training.rows.few[0], training.rows.rows
            return Trained([training.function()], few, rows, prior, [outcome], outcome.trace, "")

    def _all_at_once(self, training: Training, modules: Sequence[nn.Module], seeds: Sequence[int]) -> Trained:
        """Train one stack of all."""
        few, likelihood, held_out = training.rows.few[0], self.likelihood, training.held_out()
        stack = Stack(modules, vectorized=True)
        prior = network_prior(self.prior_precision, training.weights, training.module)
        best: Validation | None = None
        objective = NegativeLogJoint(
            stack, training.weights, training.rows.rows, likelihood, prior,
            ended=lambda: torch.zeros(len(modules), dtype=torch.bool) if best is None else best.ended,
        )  # fmt: skip
        if held_out is not None:
            best = Validation.of(stack, held_out, objective, self.options.patience)
        count = len(training.rows.whole()[1])
        drawn = torch.stack([resampled(count, seed) for seed in seeds]) if self.bootstrap else None
        training.rows.stack([_order(module, seed) for module, seed in zip(modules, seeds, strict=True)], drawn)
        outcome = training.run(
            objective, best, trained=stack, facts={"bootstrap": list(seeds) if self.bootstrap else None}
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
    data = as_data(data)
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


MEMBERS = 5


@logged
@outside_inference_mode
@resumable
@collective
@takes(TrainingKeywords, TrainingOptions, OutputChoice)
def ensemble(
    make_model: Callable[[], nn.Module] | Sequence[nn.Module],
    data: Any,
    *,
    likelihood: LikelihoodName | Likelihood,
    members: int | None = None,
    side_by_side: bool | None = None,
    bootstrap: bool = False,
    prior_precision: Any = 1.0,
    weights: Any = "all",
    **options: Unpack[TrainingKeywords],
) -> DrawsPosterior | MixturePosterior:
    """Trains several networks, each from its own beginning and in its own order of the rows, to a mode of its own.

    Each member has the same say: p(y∣x) = M⁻¹ Σ_m p(y∣f(x, θ_m)) (Lakshminarayanan et al. 2017, "Simple and scalable
    predictive uncertainty estimation using deep ensembles"). Each is trained as `fit_map` trains a single network, to
    the weights that `fit_map` gives for its seed, which the summary has: side by side or not changes nothing but time.

    Args:
        make_model: a function without arguments that makes a network, called once a member with the random numbers
            that follow ``torch.manual_seed`` with the member's seed, and without touching torch's global generator; or
            a list of networks, which are left unchanged.
        data: as in `fit_map`.
        likelihood: a name or a likelihood.
        members: how many; ``None`` for 5, or as many as the list has.
        side_by_side: whether the members are stacked and trained in one pass for all. It takes members of one
            architecture with nothing random in them, (X, y) as arrays, and "adam" or "sgd" with a schedule by name.
            ``None`` does so where it can be done and is faster, which it is for small networks, and on a GPU.
        bootstrap: whether each member is trained on N rows that are drawn with replacement.
        prior_precision: as in `fit_map`.
        weights: which weights have a prior; all others are trained too, as in `fit_map`.
        options: of the training of each member, as `TrainingOptions` describes them: ``epochs``, ``lr``,
            ``optimizer``, ``schedule``, ``batch_size``, ``validation``, ``patience``, ``checkpoint``, ``generator`` and
            ``progress``. The generator draws the members' seeds. Side by side, ``epochs=None`` trains until the mean of
            the members' losses has converged; 0 takes a list of trained networks unchanged. Members that are trained
            one after another have a checkpoint each: run.pt stands for run-0.pt, run-1.pt and so on.
            ``output`` and ``classes_dim`` say which part of what the module returns is f: see `OutputChoice`.

    Returns:
        A posterior whose draws are the members, (1, M, P). Where they are unlike, in their shapes, in buffers such as
        those of batch norm, or in weights that have no prior, it is a mixture of points. ``.trace`` has the means over
        the members, per epoch, and in "losses" the loss of each; ``.model`` is the first of them. After Ctrl-C it is
        what was found until then.

    Warns:
        ConvergenceWarning: if ``epochs=None`` has not converged at the end of its budget.

    Raises:
        ConvergenceError: if a loss stops being a finite number.
        InputError: if the data do not fit the members or the likelihood, or the members have other outputs.
        InputTypeError: if ``make_model`` makes no network.
        OptionError: if a name is unknown.
        UnsupportedError: if two arguments do not go together.
    """
    chosen = picked(TrainingOptions, options)
    if side_by_side is not None:
        side_by_side = checks.flag("side_by_side", side_by_side)
    bootstrap = checks.flag("bootstrap", bootstrap)
    if chosen.epochs == 0:
        _refuse_training({**options, "side_by_side": side_by_side, "bootstrap": bootstrap or None})
    likelihood = likelihood_of_rows(likelihood, data)
    source = present().common_generator(checks.generator(chosen.generator))
    seeds = [checks.seed_from(source) for _ in range(_count(make_model, members))]
    modules = [with_output(module, options) for module in _made(make_model, seeds)]
    found = Members(chosen, data, likelihood, weights, prior_precision, bootstrap).trained(modules, seeds, side_by_side)
    any(outcome.warn() for outcome in found.outcomes)  # of the first that has not converged
    notes = _notes(found, seeds, bootstrap=bootstrap) if chosen.epochs != 0 else _as_given(found)
    return _posterior(found, notes, likelihood.unweighted, None if chosen.epochs == 0 else found.prior)


def _refuse_training(given: Mapping[str, Any]) -> None:
    """Refuses the options of a training where nothing is trained."""
    for name in ("side_by_side", "bootstrap", "lr", "schedule", "batch_size", "validation", "checkpoint"):
        if given[name] is not None:
            raise UnsupportedError(f"{name}: expected None for epochs=0, which trains nothing, got {given[name]!r}.")


def _count(make_model: Any, members: Any) -> int:
    listed = isinstance(make_model, Sequence)
    if members is None and listed and make_model:
        return len(make_model)
    count = checks.count("members", MEMBERS if members is None else members)
    if listed and count != len(make_model):
        raise InputError(f"members: expected as many as the list has networks, {len(make_model)}, got {count}.")
    return count


def _made(make_model: Any, seeds: Sequence[int]) -> list[nn.Module]:
    """The members as they begin, each made under a seed of its own."""
    if isinstance(make_model, Sequence):
        modules = list(make_model)
    elif callable(make_model) and not isinstance(make_model, nn.Module):
        modules = []
        for seed in seeds:
            with private_draws(seed):
                modules.append(make_model())
    else:
        raise InputTypeError(
            "make_model: expected a function that makes a network, or a list of networks, got a "
            f"{type(make_model).__name__}. Members of one network would all begin at the same weights: give "
            "lambda: Net(...)."
        )
    for module in modules:
        if not isinstance(module, nn.Module):
            raise InputTypeError(f"make_model: expected torch.nn.Modules, got {type(module).__name__}.")
    modules = [unwrapped(module) for module in modules]
    if len({id(module) for module in modules}) < len(modules):
        raise InputError(
            "make_model: expected a new network for each member, got the same one again, and with it the same weights. "
            "Give lambda: Net(...), or different networks."
        )
    return modules


def _posterior(
    found: Trained, notes: Mapping[str, str], likelihood: Likelihood, prior: Prior | None
) -> DrawsPosterior | MixturePosterior:
    functions = found.functions
    outputs = [function.outputs for function in functions]
    if len(set(outputs)) > 1:
        raise InputError(f"make_model: expected networks with the same number of outputs, got {outputs}.")
    record = Record(
        "ensemble",
        notes=notes,
        trace=found.trace,
        instead="Laplace's approximation of each member, bs.laplace, has what a Gaussian has.",
        prior=prior,
    )
    if not row_totals(not _alike(functions, found.few))[0]:
        draws = torch.stack([function.flat for function in functions])[None]
        return DrawsPosterior(draws, record, functions[0], likelihood)
    points = [PointPosterior(function.flat, Record("map", prior=prior), function, likelihood) for function in functions]
    log_weights = torch.full_like(points[0].location[:1], -math.log(len(points))).expand(len(points)).clone()
    return MixturePosterior(log_weights, points, record, functions[0], likelihood)


def _alike(functions: Sequence[NetworkModel], few: Inputs) -> bool:
    """Whether the members are one function of their random weights: nothing else in them differs."""
    first = functions[0]
    for function in functions[1:]:
        if function.space != first.space or not _same_rest(function, first):
            return False
        dtype = next(function.module.parameters()).dtype
        moved, expected = (each.forward(few, function.flat).to(dtype) for each in (first, function))
        if not close(moved, expected):
            return False  # such as another activation
    return True


def _same_rest(function: NetworkModel, other: NetworkModel) -> bool:
    """Whether two networks agree in all but their random weights."""
    others = tensors_of(other.module)
    for name, value in tensors_of(function.module).items():
        there = others.get(name)
        if there is None or there.shape != value.shape:
            return False
        if name not in function.weights.names:
            same = torch.equal(value, there)
        else:
            fixed = ~function.weights.mask(name).to(value.device)
            same = torch.equal(value[fixed], there[fixed])
        if not same:
            return False
    return True


def _as_given(found: Trained) -> dict[str, str]:
    return {"members": f"{len(found.functions)}, as they were given", "rows": f"{found.rows:,}"}


def _notes(found: Trained, seeds: Sequence[int], *, bootstrap: bool) -> dict[str, str]:
    outcomes, count = found.outcomes, len(found.functions)
    drawn = " drawn with replacement for each" if bootstrap else ""
    notes = {
        "members": f"{count}, trained {found.how}", "prior": describe(found.prior), "rows": f"{found.rows:,}{drawn}",
        **outcomes[0].row_weights,
    }  # fmt: skip
    summaries = [outcome.summary() for outcome in outcomes]
    notes["training"] = summaries[0] if len(set(summaries)) == 1 else "; ".join(summaries)
    losses = [outcome.trace["loss"][outcome.kept - 1] for outcome in outcomes if outcome.kept]
    notes["loss of each"] = ", ".join(f"{loss:.4f}" for loss in losses) or "none"
    rests = [outcome.rest("Train for more epochs.") for outcome in outcomes]
    notes["at rest"] = next((rest for rest in rests if not rest.startswith("yes")), rests[0])
    notes["seeds"] = ", ".join(map(str, seeds[:count]))
    return notes
