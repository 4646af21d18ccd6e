"""Each posterior of a linear classifier by its name: the inference, and how it is called for a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import final

import torch
from torch import Tensor

from bayescope.errors import UnsupportedError
from bayescope.estimators.priors import USELESS
from bayescope.linear.density import LinearDensity
from bayescope.linear.evidence import effective_parameters, first_precision, maximise_evidence, weight_prior
from bayescope.linear.expectation_propagation import expectation_propagation
from bayescope.linear.laplace import laplace_at, map_at
from bayescope.linear.mode import Mode, find_mode
from bayescope.linear.sampling import metropolis, nuts
from bayescope.linear.variational import variational_of
from bayescope.posterior import DrawsPosterior, GaussianPosterior, PointPosterior
from bayescope.priors import Prior
from bayescope.processes import alone, present

Infer = Callable[[LinearDensity, Tensor | None], GaussianPosterior]

# Where the search for the precision of the greatest evidence begins.
FIRST_PRECISION = 1.0


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


def _mode(task: Task) -> tuple[Mode, float, str | None]:
    """The mode under the given or the learnt prior, γ there, and what was maximised."""
    if not task.tune:
        mode = find_mode(task.density)
        return mode, effective_parameters(task.density.model, mode.density.prior, mode.precision), None
    tuned = maximise_evidence(task.density, intercept_prior_precision=task.intercept_prior_precision)
    return tuned.mode, tuned.effective_parameters, "Laplace's evidence" + (USELESS if tuned.useless else "")


def _laplace(task: Task) -> Fitted:
    mode, gamma, tuned_by = _mode(task)
    return Fitted(laplace_at(mode), mode.density.prior, gamma, tuned_by)


def _map(task: Task) -> Fitted:
    mode, gamma, tuned_by = _mode(task)
    return Fitted(map_at(mode), mode.density.prior, gamma, tuned_by)


def _iterated(task: Task, infer: Infer, objective: str) -> Fitted:
    """Inference that learns the precision by an objective of its own."""
    density, prior = task.density, task.density.prior
    if task.tune:
        first = first_precision(density, task.intercept_prior_precision)
        prior = weight_prior(density.model, first, task.intercept_prior_precision)
    posterior = infer(density.with_prior(prior), task.weights if task.tune else None)
    if task.tune:
        learnt = posterior.trace["prior_precision"][-1]
        prior = weight_prior(density.model, learnt, task.intercept_prior_precision)
    gamma = effective_parameters(density.model, prior, posterior.precision)
    return Fitted(posterior, prior, gamma, objective if task.tune else None)


def _variational(density: LinearDensity, tuned: Tensor | None, family: str) -> GaussianPosterior:
    return variational_of(density, family=family, tuned=tuned)


def _expectation_propagation(density: LinearDensity, tuned: Tensor | None) -> GaussianPosterior:
    rows = density.table.held()
    data = rows.features, rows.targets
    return expectation_propagation(
        density.model, density.likelihood, density.prior, *data, weights=rows.weights, tuned=tuned
    )


def _sampled(task: Task, sample: Callable[..., DrawsPosterior]) -> Fitted:
    """A sampler, under the precision that Laplace's evidence has: draws have no evidence of their own."""
    density, rows = task.density, task.density.table.held()
    prior = _mode(task)[0].density.prior if task.tune else density.prior
    options = {"weights": rows.weights, "generator": task.generator, **task.chains}
    posterior = sample(density.model, density.likelihood, prior, rows.features, rows.targets, **options)
    return Fitted(posterior, prior, None, "Laplace's evidence" if task.tune else None)


POSTERIORS: dict[str, Callable[[Task], Fitted]] = {
    "map": _map,
    "laplace": _laplace,
    "variational": partial(_iterated, infer=partial(_variational, family="full"), objective="the evidence lower bound"),
    "mean_field": partial(
        _iterated, infer=partial(_variational, family="mean_field"), objective="the evidence lower bound"
    ),
    "ep": partial(_iterated, infer=_expectation_propagation, objective="expectation propagation's evidence"),
    "nuts": partial(_sampled, sample=nuts),
    "metropolis": partial(_sampled, sample=metropolis),
}
# Those that are made of chains.
SAMPLERS = ("nuts", "metropolis")
# Those that read the rows by sums over them, wherever the rows lie.
BY_SUMS = ("map", "laplace", "variational", "mean_field")


def fit_posterior(name: str, task: Task) -> Fitted:
    """Fits the named posterior; what is no sum over the rows is found by the first process for all."""
    processes = present()
    if processes.count == 1 or name in BY_SUMS:
        return POSTERIORS[name](task)
    fitted: Fitted | None = None
    with processes.agreed(), alone():
        if processes.first:
            fitted = POSTERIORS[name](task)
    shared: Fitted = processes.gather(fitted)[0]
    return shared


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
