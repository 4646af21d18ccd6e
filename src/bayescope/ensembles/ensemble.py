"""Deep ensembles: networks trained from several beginnings, which stand for the posterior as equally weighted draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from bayescope import checks
from bayescope.ensembles.members import Members, Trained
from bayescope.errors import InputError, InputTypeError, UnsupportedError
from bayescope.keywords import takes
from bayescope.likelihoods import Likelihood, resolve
from bayescope.network.batches import row_totals
from bayescope.network.model import NetworkModel
from bayescope.network.wrappers import unwrapped
from bayescope.posterior import DrawsPosterior, MixturePosterior, PointPosterior, Record
from bayescope.priors import Prior
from bayescope.private_draws import private_draws
from bayescope.process_state import outside_inference_mode
from bayescope.processes import collective
from bayescope.training.checkpoint import resumable
from bayescope.training.facts import describe
from bayescope.training.options import TrainingKeywords, TrainingOptions
from bayescope.training.sharing import same_generator

MEMBERS = 5


@outside_inference_mode
@resumable
@collective
@takes(TrainingKeywords, TrainingOptions)
def ensemble(
    make_model: Callable[[], nn.Module] | Sequence[nn.Module],
    data: Any,
    *,
    likelihood: str | Likelihood,
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
            a list of networks, which are left as they are.
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
            the members' losses has converged; 0 takes a list of trained networks as it is. Members that are trained one
            after another have a checkpoint each: run.pt stands for run-0.pt, run-1.pt and so on.

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
    chosen = TrainingOptions(**options)
    if side_by_side is not None:
        side_by_side = checks.flag("side_by_side", side_by_side)
    bootstrap = checks.flag("bootstrap", bootstrap)
    if chosen.epochs == 0:
        _refuse_training({**options, "side_by_side": side_by_side, "bootstrap": bootstrap or None})
    likelihood = resolve(likelihood)
    source = same_generator(checks.generator(chosen.generator))
    seeds = [checks.seed_from(source) for _ in range(_count(make_model, members))]
    modules = _made(make_model, seeds)
    found = Members(chosen, data, likelihood, weights, prior_precision, bootstrap).trained(modules, seeds, side_by_side)
    any(outcome.warn() for outcome in found.outcomes)  # of the first that has not converged
    notes = _notes(found, seeds, bootstrap=bootstrap) if chosen.epochs != 0 else _as_given(found)
    return _posterior(found, notes, likelihood, None if chosen.epochs == 0 else found.prior)


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


def _alike(functions: Sequence[NetworkModel], few: Any) -> bool:
    """Whether the members are one function of their random weights: nothing else in them differs."""
    first = functions[0]
    for function in functions[1:]:
        if function.space != first.space or not _same_rest(function, first):
            return False
        moved, own = first.forward(few, function.flat), function.forward(few, function.flat)
        scale = float(own.abs().max())
        tolerance = torch.finfo(next(function.module.parameters()).dtype).eps ** 0.5
        if not torch.allclose(moved, own, rtol=tolerance, atol=tolerance * scale, equal_nan=True):
            return False  # such as another activation
    return True


def _same_rest(function: NetworkModel, other: NetworkModel) -> bool:
    """Whether two networks agree in all but their random weights."""
    for name, value in _tensors(function.module).items():
        there = _tensors(other.module).get(name)
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


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach() for name, tensor in [*module.named_parameters(), *module.named_buffers()]}


def _as_given(found: Trained) -> dict[str, str]:
    return {"members": f"{len(found.functions)}, as they were given", "rows": f"{found.rows:,}"}


def _notes(found: Trained, seeds: Sequence[int], *, bootstrap: bool) -> dict[str, str]:
    outcomes, count = found.outcomes, len(found.functions)
    drawn = " drawn with replacement for each" if bootstrap else ""
    notes = {
        "members": f"{count}, trained {found.how}", "prior": describe(found.prior), "rows": f"{found.rows:,}{drawn}",
    }  # fmt: skip
    told = [outcome.summary() for outcome in outcomes]
    notes["training"] = told[0] if len(set(told)) == 1 else "; ".join(told)
    losses = [outcome.trace["loss"][outcome.kept - 1] for outcome in outcomes if outcome.kept]
    notes["loss of each"] = ", ".join(f"{loss:.4f}" for loss in losses) or "none"
    rests = [outcome.rest("Train for more epochs.") for outcome in outcomes]
    notes["at rest"] = next((rest for rest in rests if not rest.startswith("yes")), rests[0])
    notes["seeds"] = ", ".join(map(str, seeds[:count]))
    return notes
