"""Each posterior of a linear classifier by its name: the inference, and how it is called for a table."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Literal, TypeAlias, cast, final

import torch
from torch import Tensor

from bayescope.errors import (
    BayescopeWarning,
    ConvergenceError,
    ConvergenceWarning,
    MemoryBudgetError,
    NotPositiveDefiniteError,
    UnsupportedError,
)
from bayescope.estimators.priors import USELESS
from bayescope.likelihoods import Likelihood
from bayescope.linear.density import LinearDensity, OutputCovariance
from bayescope.linear.evidence import (
    InterceptPrecision,
    effective_parameters,
    first_precision,
    maximise_evidence,
    weight_prior,
)
from bayescope.linear.expectations import log_expected_likelihood
from bayescope.linear.hyperparameters import LearntUncertainty, learn_hyperparameters
from bayescope.linear.mode import LinearMode, find_mode, laplace_at, map_at
from bayescope.linear.row_space import require_room
from bayescope.linear.sampling import metropolis, nuts
from bayescope.linear.scales import MovingScale, OutputUnits, weight_squares
from bayescope.linear.sites import expectation_propagation, has_sites
from bayescope.linear.sparse_sampling import SparseDraws, sparse_nuts
from bayescope.linear.table import Batch
from bayescope.linear.tuning import search_range
from bayescope.linear.variational_bound import variational
from bayescope.models import LinearModel
from bayescope.posterior import DrawsPosterior, GaussianPosterior, PointPosterior
from bayescope.precision import DensePrecision
from bayescope.priors import Prior
from bayescope.processes import by_first, warn_once
from bayescope.sparse_priors import ScaleMixture, SparsePrior

PosteriorName: TypeAlias = Literal["auto", "map", "laplace", "mean_field", "variational", "ep", "nuts", "metropolis"]

# Where the search for the precision of the greatest evidence begins.
FIRST_PRECISION = 1.0
# Laplace is trusted where averaging over it adds at most this many nats a row to the mode's log loss on the training
# rows. On 13 tables with five splits each, Laplace's log loss on new rows exceeded the mode's by more than .01 on none
# of the 30 splits below this line, which add at most .0052, and on 18 of the 35 above it, which add at least .0087.
TRUSTED = 0.007
TESTED_ROWS = 2_000
# Under a sparse prior the sd of the noise is this share of that of the best constant model where a search begins.
NARROW = 0.03
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
# Rows × weights up to which "auto" takes expectation propagation for a density with a kink. Beyond, variational
# inference takes a third of the time, and both are close to the posterior.
MOST_PROPAGATED = 10**6


@final
@dataclass(frozen=True)
class Task:
    """What is to be fitted.

    Attributes:
        density: the model, the likelihood and the rows; its prior is the one given, or where the search for the
            precision begins.
        tune: whether the weights' precision is to be learnt.
        intercept_prior_precision: of the intercepts.
        generator: for the samplers.
        chains: options of the samplers that were given: draws, tune, chains.
        learnt: the names of the likelihood's hyperparameters that are learnt, or have been.
        sparse: the prior of the weights, where it is not Gaussian.
    """

    density: LinearDensity
    tune: bool
    intercept_prior_precision: InterceptPrecision
    generator: torch.Generator
    chains: dict[str, int]
    learnt: tuple[str, ...]
    sparse: SparsePrior | None = None

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
        learnt: the uncertainty of the likelihood's hyperparameters, where it is in the covariance of the weights.
        shrinkage: E[κ_j] of each input's weights under a sparse prior, shape (D,), else ``None``.
    """

    posterior: GaussianPosterior | PointPosterior | DrawsPosterior
    prior: Prior
    effective_parameters: float | None
    tuned_by: str | None = None
    learnt: LearntUncertainty | None = None
    shrinkage: Tensor | None = None


def loss_added(mode: LinearMode) -> float:
    """How many nats a row averaging over Laplace's posterior adds to the mode's log loss on the training rows.

    Where Laplace's Gaussian is close to the posterior this is next to nothing. Where the classes are separable the
    likelihood is nearly flat at the mode, the Gaussian reaches far into regions that the data exclude, and its
    predictions lose what the mode knows. At most `TESTED_ROWS` rows are looked at. For Gaussian noise Laplace is exact,
    and nothing is added.
    """
    density = mode.density
    if density.likelihood.gaussian_outcome:
        return 0.0
    stride = -(-density.table.count // TESTED_ROWS)
    some = density if stride == 1 else density.every(stride)
    spread = OutputCovariance.under(density.model, mode.precision)

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
    sites = density.model.outputs == 1 and density.table.in_memory and density.likelihood.log_concave
    affordable = density.dim <= MOST_WEIGHTS and density.table.count * density.dim * density.model.outputs <= MOST_WORK
    if affordable and sites:
        with suppress(ConvergenceError, NotPositiveDefiniteError), warnings.catch_warnings():
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
        f"adds {added:.2g} nats per row to the log loss of the training rows, where at most {TRUSTED:g} is expected. "
        f"{advice}",
        BayescopeWarning,
    )


def _laplace_of(task: Task) -> tuple[Fitted, LinearMode]:
    """Laplace's posterior under the given or the learnt prior, and its mode."""
    mode, useless = _mode(task)
    gamma = effective_parameters(mode.density.model, mode.density.prior, mode.precision)
    tuned_by = OBJECTIVES["laplace"] + USELESS * useless if task.tune else None
    return Fitted(laplace_at(mode), mode.density.prior, gamma, tuned_by), mode


def _mode(task: Task) -> tuple[LinearMode, bool]:
    """The mode under the given or the learnt prior, and whether the features were found to tell nothing."""
    if not task.tune:
        return find_mode(task.density), False
    tuned = maximise_evidence(task.density, intercept_prior_precision=task.intercept_prior_precision)
    return tuned.mode, tuned.useless


def _laplace(task: Task) -> Fitted:
    """Laplace, with a warning where averaging over it adds more than `TRUSTED`: where "auto" would not take it."""
    fitted, mode = _laplace_of(task)
    added = loss_added(mode)
    if added > TRUSTED:
        _warn(added, "Use posterior='auto'.")
    return fitted


def _settled(task: Task) -> tuple[LinearDensity, str | None]:
    """The density with what is given or "auto" learns, and what was maximised: a point and draws have no evidence."""
    if not task.tune and not task.density.likelihood.learnable:
        return task.density, None
    fitted = _auto_of_kink(task) if task.density.likelihood.kinked else _auto(task, quiet=True)
    likelihood = cast(Likelihood, fitted.posterior.likelihood)
    return task.density.with_likelihood(likelihood).with_prior(fitted.prior), fitted.tuned_by


def _map(task: Task) -> Fitted:
    density, tuned_by = _settled(task)
    mode = find_mode(density)
    gamma = effective_parameters(density.model, density.prior, mode.precision)
    return Fitted(map_at(mode), density.prior, gamma, tuned_by)


def _iterated(task: Task, infer: Callable[..., GaussianPosterior], objective: str) -> Fitted:
    """Inference that learns the precision by an objective of its own."""
    density, prior = task.density, task.density.prior
    if task.tune:
        valued = density.with_likelihood(density.likelihood.starting(density.some_targets))
        first = first_precision(valued, task.intercept_prior_precision)
        prior = weight_prior(density.model, first, task.intercept_prior_precision)
    posterior = infer(density.with_prior(prior), tuned=task.weights if task.tune else None)
    if task.tune:
        learnt = posterior.trace["prior_precision"][-1]
        prior = weight_prior(density.model, learnt, task.intercept_prior_precision)
    gamma = effective_parameters(density.model, prior, posterior.precision)
    return Fitted(posterior, prior, gamma, objective if task.tune else None)


def _propagated(task: Task) -> Fitted:
    """Expectation propagation, which needs a proper distribution of f where a row is left out."""
    try:
        return _iterated(task, expectation_propagation, OBJECTIVES["ep"])
    except NotPositiveDefiniteError as error:
        if task.intercept_prior_precision is not None and not task.density.prior.flat:
            raise
        raise NotPositiveDefiniteError(
            "posterior: expected a prior under which the other rows determine what one row says, as 'ep' needs, got a "
            "flat one and rows that do not. Give prior_precision= and intercept_prior_precision= above 0, or take "
            f"posterior={'variational' if task.density.likelihood.kinked else 'laplace'!r}."
        ) from error


def _sampled(task: Task, sample: Callable[..., DrawsPosterior]) -> Fitted:
    density, tuned_by = _settled(task)
    posterior = sample(density, generator=task.generator, **task.chains)
    return Fitted(posterior, density.prior, None, tuned_by)


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
    "ep": _propagated,
    "nuts": partial(_sampled, sample=nuts),
    "metropolis": partial(_sampled, sample=metropolis),
}
# What the option may be: one of them, or the one that "auto" chooses.
CHOICES: dict[PosteriorName, Callable[[Task], Fitted]] = {"auto": _auto, **POSTERIORS}


def _auto_of_kink(task: Task) -> Fitted:
    """Expectation propagation where it is for these rows, at most `MOST_PROPAGATED`, else variational inference."""
    density, why = task.density, "log p has a kink, so that Laplace's approximation does not exist"
    few = density.table.in_memory and density.table.count * density.dim <= MOST_PROPAGATED
    if few and has_sites(density):
        with suppress(ConvergenceError, NotPositiveDefiniteError):
            return _chosen(POSTERIORS["ep"](task), "ep", why)
    return _chosen(POSTERIORS["variational"](task), "variational", why)


# Of a likelihood with a kink: those that ask for no second derivative. Each learns the likelihood's hyperparameters.
KINKED_CHOICES: dict[PosteriorName, Callable[[Task], Fitted]] = {
    "auto": _auto_of_kink,
    **{name: infer for name, infer in POSTERIORS.items() if name not in ("map", "laplace")},
}


def _sparse_variational(task: Task, family: Literal["full", "mean_field"] = "full") -> Fitted:
    """Variational inference under a sparse prior, whose scales are integrated out."""
    return _near_sparse(task, family)[0]


def _near_sparse(task: Task, family: Literal["full", "mean_field"]) -> tuple[Fitted, LinearDensity, ScaleMixture]:
    """The variational posterior under a sparse prior, the density with its expected precisions, and the prior itself.

    Noise is first a small share of that of the best constant model, so that the climb begins with all weights and takes
    them away: with little noise left to learn from it would end with too few of them, at a lower bound. Hyperparameters
    under a prior that does not move with them are those of one precision, since the bound takes noise for weights then.
    """
    assert task.sparse is not None
    model, intercept = task.density.model, task.intercept_prior_precision
    likelihood = task.density.likelihood.starting(task.density.some_targets)
    learnt = task.density.likelihood.learnable
    density = task.density.with_likelihood(likelihood)
    units = OutputUnits.of(density)
    first = float(density.ggn(units.constant).diagonal()[task.weights].sum()) / (model.outputs * density.table.total)
    density = density.with_prior(weight_prior(model, first or 1.0, intercept))
    mixture = task.sparse.mixture(units.spread, units.width, density.table.total, model.features)
    if learnt and not mixture.moving:
        _refuse_wide(task)
        density, learnt = density.with_likelihood(_learnt_by_laplace(task)), ()
    elif learnt:
        with suppress(UnsupportedError):  # of outcomes without a unit
            density = density.with_likelihood(likelihood.in_unit(torch.full((model.outputs,), NARROW).double()))
        mixture = task.sparse.mixture(units.spread, OutputUnits.of(density).width, density.table.total, model.features)
    posterior = variational(density, family=family, mixture=mixture, learnt=learnt)
    assert posterior.likelihood is not None
    mixture, _ = MovingScale(mixture, density, learnt, units.constant).at(posterior.likelihood.unconstrained(learnt))
    density = density.with_likelihood(posterior.likelihood)
    squares = weight_squares(model, posterior.mean, posterior.precision)
    (precision,) = density.table.agreed(mixture.posterior(squares, model.outputs).precision)
    density = density.with_prior(weight_prior(model, precision, intercept))
    curvature = posterior.precision.diagonal()[task.weights].unflatten(0, (model.outputs, -1)).mean(0)
    gamma = effective_parameters(model, density.prior, posterior.precision)
    fitted = Fitted(posterior, density.prior, gamma, OBJECTIVES["variational"], shrinkage=precision / curvature)
    return fitted, density, mixture


def _sparse_nuts(task: Task) -> Fitted:
    """Draws of the weights and the scales of a sparse prior together."""
    near, density, mixture = _near_sparse(task, "full")
    assert isinstance(near.posterior, GaussianPosterior)
    precision = near.prior.diagonal(density.dim)[: density.model.features]
    draw: Callable[..., SparseDraws] = sparse_nuts
    drawn = draw(density, mixture, near.posterior, precision, generator=task.generator, **task.chains)
    prior = weight_prior(density.model, drawn.precision, task.intercept_prior_precision)
    return Fitted(
        drawn.posterior, prior, None, "the posterior, of which this is the geometric mean", shrinkage=drawn.shrinkage
    )


# Under sparse priors.
SPARSE_CHOICES: dict[PosteriorName, Callable[[Task], Fitted]] = {
    "auto": _sparse_variational,
    "variational": _sparse_variational,
    "mean_field": partial(_sparse_variational, family="mean_field"),
    "nuts": _sparse_nuts,
}
# Those that are made of chains.
SAMPLERS = ("nuts", "metropolis")
# Those that read the rows by sums over them, wherever the rows lie.
BY_SUMS = ("auto", "map", "laplace", "variational", "mean_field")


def fit_posterior(name: PosteriorName, task: Task) -> Fitted:
    """Fits the named posterior; what is not a sum over the rows is found by the first process for all.

    Hyperparameters of the likelihood that are to be learnt are those of Laplace's evidence for each posterior. Under a
    sparse prior that moves with them they are those of the evidence lower bound. If log p has a kink, they are those of
    the posterior's own evidence or bound, for draws those of "auto".
    """
    kinked = task.density.likelihood.kinked
    choices = KINKED_CHOICES if kinked else CHOICES if task.sparse is None else SPARSE_CHOICES
    if name not in choices:
        what, instead = "a sparse prior, whose density has no curvature at 0", "prior_precision='ard' or 'evidence'"
        if kinked:
            what, instead = f"{task.density.likelihood.name!r}, whose log density has a kink", "likelihood='student_t'"
        raise UnsupportedError(
            f"posterior: expected one of {', '.join(map(repr, choices))} for {what}, got {name!r}. Use "
            f"posterior='auto', or {instead}."
        )
    if task.sparse is None and not kinked:
        task = replace(task, density=task.density.with_likelihood(_learnt_by_laplace(task)))
    if name in BY_SUMS:
        return _uncertain(_without_evidence(choices[name](task)), task)

    def parts() -> list[Any]:
        found = choices[name](task)
        return [getattr(found, each.name) for each in fields(found)]

    return _uncertain(_without_evidence(Fitted(*by_first(parts))), task)


def _learnt_by_laplace(task: Task) -> Likelihood:
    """The likelihood with the hyperparameters of Laplace's evidence, under one precision where that is learnt."""
    return learn_hyperparameters(task.density, lambda density: _mode(replace(task, density=density))[0])


def _refuse_wide(task: Task) -> None:
    """Refuses to learn hyperparameters where inputs outnumber rows, under a prior that does not move with them.

    Raises:
        UnsupportedError: then.
    """
    inputs, rows, name = task.density.model.features, task.density.table.count, task.learnt[0]
    if inputs > rows:
        raise UnsupportedError(
            f"prior_precision: expected 'horseshoe' or a number for the {name}, since {inputs} inputs outnumber {rows} "
            f"rows and chance may explain any noise, got {task.sparse}. Use 'horseshoe', or give {name} as a number."
        )


def refuse_kink(density: LinearDensity, asked: object, given: Tensor | None, *, grouped: bool) -> None:
    """Refuses what a likelihood with a kink does not go with.

    Args:
        density: the likelihood, the model and the rows.
        asked: the option ``prior_precision``.
        given: the precision of the features' weights, if it is known.
        grouped: whether there are random effects.

    Raises:
        UnsupportedError: for precisions that Laplace's evidence would learn.
    """
    likelihood, outputs = density.likelihood, density.model.outputs
    if not likelihood.kinked:
        return
    name, advice = f"{likelihood.name!r}, whose log density has a kink", "Use 'student_t', which is as sturdy."
    if likelihood.name == "own":
        raise UnsupportedError(
            f"likelihood: expected a log density with a second derivative in f, got {name}. Use 'laplace_noise', or "
            "make it smooth: (r.square() + 1e-4).sqrt() in the place of r.abs()."
        )
    if grouped:
        raise UnsupportedError(f"groups: expected None for {name}, got columns with random effects. {advice}")
    if given is None and asked != "evidence":
        raise UnsupportedError(f"prior_precision: expected numbers or 'evidence' for {name}, got {asked!r}. {advice}")
    if given is None and outputs > 1:
        raise UnsupportedError(
            f"prior_precision: expected numbers for {outputs} outcomes of {name}, got 'evidence'. Fit each outcome by "
            "itself, or give numbers."
        )


def _uncertain(fitted: Fitted, task: Task) -> Fitted:
    """The fit with the uncertainty of the hyperparameters that were learnt in draws, or a full covariance."""
    posterior = fitted.posterior
    dense = isinstance(posterior, GaussianPosterior) and isinstance(posterior.precision, DensePrecision)
    certain = not task.learnt or task.sparse is not None or task.density.likelihood.kinked
    if certain or not (dense or isinstance(posterior, DrawsPosterior)):
        return fitted
    learnt = LearntUncertainty.at(find_mode(task.density.with_prior(fitted.prior), posterior.mean), task.learnt)
    widened: GaussianPosterior | DrawsPosterior
    if isinstance(posterior, DrawsPosterior):
        moved = torch.randn(
            *posterior.draws.shape[:-1], len(learnt.root), generator=task.generator, dtype=torch.float64
        )
        widened = replace(posterior, draws=posterior.draws + moved @ learnt.root.mT @ learnt.moves)
    else:
        known = cast(GaussianPosterior, posterior)
        widened = replace(known, precision=learnt.widened(known.precision))
    return replace(fitted, posterior=widened, learnt=learnt)


def _without_evidence(fitted: Fitted) -> Fitted:
    """The fit without the evidence and its bound, which a flat prior of the weights does not define."""
    posterior = fitted.posterior
    if fitted.prior.flat < posterior.mean.shape[0]:
        return fitted
    instead = "The prior of the weights is flat: give a positive prior_precision."
    record = replace(posterior.record, evidence=None, elbo_terms=None, instead=instead)
    return replace(fitted, posterior=replace(posterior, record=record))


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
