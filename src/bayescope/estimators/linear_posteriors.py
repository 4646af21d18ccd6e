"""Each posterior of a linear classifier by its name: the inference, and how it is called for a table."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Literal, TypeAlias, final

import torch
from torch import Tensor

from bayescope.errors import (
    BayescopeWarning,
    ConvergenceError,
    ConvergenceWarning,
    MemoryBudgetError,
    UnsupportedError,
)
from bayescope.estimators.priors import USELESS
from bayescope.linear.density import Again, LinearDensity, OutputCovariance
from bayescope.linear.evidence import effective_parameters, first_precision, maximise_evidence, weight_prior
from bayescope.linear.expectations import log_expected_likelihood
from bayescope.linear.mode import LinearMode, find_mode, laplace_at, map_at
from bayescope.linear.row_space import require_room
from bayescope.linear.sampling import metropolis, nuts
from bayescope.linear.sites import expectation_propagation
from bayescope.linear.table import Batch
from bayescope.linear.tuning import search_range
from bayescope.linear.variational_bound import variational
from bayescope.models import LinearModel
from bayescope.posterior import DrawsPosterior, GaussianPosterior, PointPosterior
from bayescope.priors import Prior
from bayescope.processes import by_first, warn_once

PosteriorName: TypeAlias = Literal["auto", "map", "laplace", "variational", "mean_field", "ep", "nuts", "metropolis"]

# Where the search for the precision of the greatest evidence begins.
FIRST_PRECISION = 1.0
# Laplace is trusted where averaging over it adds at most this many nats a row to the mode's log loss on the training
# rows. On 13 tables with five splits each, Laplace's log loss on new rows exceeded the mode's by more than .01 on none
# of the 30 splits below this line, which add at most .0052, and on 18 of the 35 above it, which add at least .0087.
TRUSTED = 0.007
TESTED_ROWS = 2_000
# Within this factor of an end of its range a precision is as good as the end: the evidence is level there.
FLAT = 100.0
# The most matrices of P×P numbers that a fit holds at once, where the prior precision is given and where it is learnt:
# measured for P = 500 to 2,000, rounded up by at most a quarter. Each of the last nine points of variational inference
# holds up to twelve. "map", "nuts" and "metropolis" learn the precision as "auto" does.
MATRICES = {
    "auto": (14, 27),
    "map": (9, 27),
    "laplace": (12, 23),
    "variational": (122, 160),
    "mean_field": (122, 160),
    "ep": (14, 17),
    "nuts": (10, 27),
    "metropolis": (9, 27),
}
# What the better approximations are tried for: this many weights, and this many rows × weights × outputs.
MOST_WEIGHTS = 2_000
MOST_WORK = 10**8


@final
@dataclass(frozen=True)
class Task:
    """What is to be fitted.

    Attributes:
        density: the model, the likelihood and the rows; its prior is the one given, or where the search for the
            precision begins.
        tune: whether the weights' precision is to be learnt.
        intercept_prior_precision: the intercept's.
        generator: for the samplers.
        chains: options of the samplers that were given: draws, tune, chains.
    """

    density: LinearDensity
    tune: bool
    intercept_prior_precision: float
    generator: torch.Generator
    chains: dict[str, int]

    @property
    def weights(self) -> Tensor:
        """A mask of shape (P,): all but the intercepts."""
        model = self.density.model
        return torch.arange(model.dim) < model.outputs * model.features


@final
@dataclass(frozen=True)
class Fitted:
    """A posterior, the prior that it was found under, and where that came from.

    Attributes:
        posterior: of the weights.
        prior: p(θ).
        effective_parameters: γ under a Gaussian posterior, else ``None``.
        tuned_by: what was maximised to learn the precision, or ``None`` where it was given.
    """

    posterior: GaussianPosterior | PointPosterior | DrawsPosterior
    prior: Prior
    effective_parameters: float | None
    tuned_by: str | None = None


def loss_added(mode: LinearMode) -> float:
    """How many nats a row averaging over Laplace's posterior adds to the mode's log loss on the training rows.

    Where Laplace's Gaussian is close to the posterior this is next to nothing. Where the classes are separable the
    likelihood is nearly flat at the mode, the Gaussian reaches far into regions that the data exclude, and its
    predictions lose what the mode knows. At most `TESTED_ROWS` rows are looked at.
    """
    density = mode.density
    stride = -(-density.table.count // TESTED_ROWS)
    some = density if stride == 1 else density.every(stride)
    spread = OutputCovariance.of(density.model, mode.precision.sqrt_solve(torch.eye(density.dim, dtype=torch.float64)))

    def block(rows: Batch) -> tuple[Tensor, Tensor]:
        f, y = density.model.forward(rows.features, mode.theta), rows.targets
        averaged = log_expected_likelihood(density.likelihood, f, spread(rows.features), y)
        each = density.likelihood.log_prob(f, y) - averaged
        return rows.weighed(each).sum(), rows.weighed(torch.ones_like(each)).sum()

    added, total = some.sum(block, size=1, copies=density.dim)
    return float(density.table.agreed(added / total)[0])


def _auto(task: Task, *, quiet: bool = False) -> Fitted:
    """Laplace where averaging over it adds at most `TRUSTED`, else expectation propagation or variational inference."""
    fitted, mode = _laplace_of(task)
    added = loss_added(mode)
    why = f"averaging over Laplace's posterior adds {added:.2g} nats a row to the training rows' log loss"
    if added <= TRUSTED:
        return _chosen(fitted, "laplace", f"{why}, at most {TRUSTED:g}")
    why += f", more than {TRUSTED:g}"
    density = task.density
    two = density.model.outputs == 1 and density.table.in_memory
    affordable = density.dim <= MOST_WEIGHTS and density.table.count * density.dim * density.model.outputs <= MOST_WORK
    if affordable and two:
        with suppress(ConvergenceError), warnings.catch_warnings():
            # That the evidence has no maximum within range: then this fit is not taken.
            warnings.simplefilter("ignore", ConvergenceWarning)
            propagated = POSTERIORS["ep"](task)
            if not task.tune or _held_back(task, propagated):
                return _chosen(propagated, "ep", why)
            why += "; expectation propagation's evidence has no maximum"
    room = _has_room(density.model, learnt=task.tune)
    if affordable and room:
        with suppress(ConvergenceError):
            return _chosen(POSTERIORS["variational"](task), "variational", why)
    too_much = "too long" if room else "too much memory"
    reason = "did not converge" if affordable and room else f"would take {too_much} for {density.dim} weights"
    if not quiet:
        _warn(added, f"The better approximations {reason}: use posterior='map', or give a larger prior_precision.")
    return _chosen(fitted, "laplace", f"{why}, but the better approximations {reason}")


def _has_room(model: LinearModel, *, learnt: bool) -> bool:
    """Whether memory holds what variational inference takes."""
    try:
        require_room(model, MATRICES["variational"][learnt])
    except MemoryBudgetError:
        return False
    return True


def _held_back(task: Task, fitted: Fitted) -> bool:
    """Whether the precision that was learnt lies within the range, and not where the prior is as good as flat.

    As the precision α of a table that a plane through the means separates goes to 0, the weights grow like α^-½, and
    the evidence, also expectation propagation's, levels off at the share of the prior's directions that separate the
    rows: any small α is then as good as another. The evidence lower bound falls again, because a Gaussian always has
    mass where rows are on the wrong side, which costs more the larger the weights are; so it has a maximum.
    """
    _, low, high = search_range(task.density, task.weights)
    learnt = math.log(fitted.posterior.trace["prior_precision"][-1])
    return low + math.log(FLAT) < learnt < high - math.log(FLAT)


def _chosen(fitted: Fitted, name: str, why: str) -> Fitted:
    """The fit with a first line in its summary that says what was chosen, and why."""
    record = fitted.posterior.record
    notes = {"posterior": f"{name}, chosen by posterior='auto': {why}", **record.notes}
    return replace(fitted, posterior=replace(fitted.posterior, record=replace(record, notes=notes)))


def _warn(added: float, advice: str) -> None:
    warn_once(
        "posterior='laplace': predictions of this posterior may be worse than those of its mode: averaging over it "
        f"adds {added:.2g} nats a row to the log loss of the training rows, where at most {TRUSTED:g} is expected. "
        f"{advice}",
        BayescopeWarning,
    )


def _laplace_of(task: Task) -> tuple[Fitted, LinearMode]:
    """Laplace's posterior under the given or the learnt prior, and its mode."""
    density, tuned_by = task.density, None
    if task.tune:
        tuned = maximise_evidence(density, intercept_prior_precision=task.intercept_prior_precision)
        mode, gamma, tuned_by = tuned.mode, tuned.effective_parameters, OBJECTIVES["laplace"] + USELESS * tuned.useless
    else:
        mode = find_mode(density)
        gamma = effective_parameters(density.model, density.prior, mode.precision)
    return Fitted(laplace_at(mode), mode.density.prior, gamma, tuned_by), mode


def _laplace(task: Task) -> Fitted:
    """Laplace, with a warning where averaging over it adds more than `TRUSTED`: where "auto" would not take it."""
    fitted, mode = _laplace_of(task)
    added = loss_added(mode)
    if added > TRUSTED:
        _warn(added, "Use posterior='auto'.")
    return fitted


def _prior(task: Task) -> tuple[Prior, str | None]:
    """The given prior, or the learnt one of "auto" and what was maximised: a point and draws have no evidence."""
    if not task.tune:
        return task.density.prior, None
    fitted = _auto(task, quiet=True)
    return fitted.prior, fitted.tuned_by


def _map(task: Task) -> Fitted:
    prior, tuned_by = _prior(task)
    mode = find_mode(task.density.with_prior(prior))
    return Fitted(map_at(mode), prior, effective_parameters(task.density.model, prior, mode.precision), tuned_by)


def _iterated(task: Task, infer: Callable[..., GaussianPosterior], objective: str) -> Fitted:
    """Inference that learns the precision by an objective of its own."""
    density, prior = task.density, task.density.prior
    if task.tune:
        first = first_precision(density, task.intercept_prior_precision)
        prior = weight_prior(density.model, first, task.intercept_prior_precision)
    posterior = infer(density.with_prior(prior), tuned=task.weights if task.tune else None)
    if task.tune:
        learnt = posterior.trace["prior_precision"][-1]
        prior = weight_prior(density.model, learnt, task.intercept_prior_precision)
    gamma = effective_parameters(density.model, prior, posterior.precision)
    return Fitted(posterior, prior, gamma, objective if task.tune else None)


def _sampled(task: Task, sample: Callable[..., DrawsPosterior]) -> Fitted:
    prior, tuned_by = _prior(task)
    posterior = sample(task.density.with_prior(prior), generator=task.generator, **task.chains)
    return Fitted(posterior, prior, None, tuned_by)


# What each method maximises to learn the precision.
OBJECTIVES = {
    "laplace": "Laplace's evidence",
    "variational": "the evidence lower bound",
    "ep": "expectation propagation's evidence",
}
POSTERIORS: dict[PosteriorName, Callable[[Task], Fitted]] = {
    "map": _map,
    "laplace": _laplace,
    "variational": partial(_iterated, infer=variational, objective=OBJECTIVES["variational"]),
    "mean_field": partial(
        _iterated, infer=partial(variational, family="mean_field"), objective=OBJECTIVES["variational"]
    ),
    "ep": partial(_iterated, infer=expectation_propagation, objective=OBJECTIVES["ep"]),
    "nuts": partial(_sampled, sample=nuts),
    "metropolis": partial(_sampled, sample=metropolis),
}
# What the option may be: one of them, or the one that "auto" chooses.
CHOICES: dict[PosteriorName, Callable[[Task], Fitted]] = {"auto": _auto, **POSTERIORS}
# Those that are made of chains.
SAMPLERS = ("nuts", "metropolis")
# Those that read the rows by sums over them, wherever the rows lie.
BY_SUMS = ("auto", "map", "laplace", "variational", "mean_field")


def fit_posterior(name: PosteriorName, task: Task) -> Fitted:
    """Fits the named posterior; what is not a sum over the rows is found by the first process for all."""
    if name in BY_SUMS:
        return CHOICES[name](task)

    def parts() -> list[Any]:
        found = CHOICES[name](task)
        return [getattr(found, each.name) for each in fields(found)]

    fitted = Fitted(*by_first(parts))
    if not isinstance(fitted.posterior, GaussianPosterior) or fitted.posterior.infer is not None:
        return fitted
    again = Again(expectation_propagation, task.density.model, task.density.likelihood)  # functions do not travel
    return replace(fitted, posterior=replace(fitted.posterior, infer=again, lost=()))


def refuse_all_rows(name: str) -> None:
    """Refuses a posterior that needs all rows in memory, for a table that is read in blocks.

    Raises:
        UnsupportedError: if it does.
    """
    if name not in BY_SUMS:
        raise UnsupportedError(
            f"posterior: expected one of {', '.join(map(repr, BY_SUMS))} for a table that is read in blocks, got "
            f"{name!r}, which needs all rows in memory. Fit a DataFrame of some of the rows."
        )
