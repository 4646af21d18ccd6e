"""Variational inference for networks: q is set up around a network's weights, trained, and judged on all rows."""

from __future__ import annotations

import math
import warnings
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from bayescope import checks
from bayescope.errors import ConvergenceWarning, warn
from bayescope.keywords import takes
from bayescope.laplace.judgement import WORSE, LossComparison
from bayescope.layers import deterministic
from bayescope.layers.output_choice import OutputChoice
from bayescope.layers.variational import VariationalLayer
from bayescope.likelihoods import Likelihood, LikelihoodName
from bayescope.logs import logged
from bayescope.network import NetworkModel, Weights, passes_at, reading, unwrapped, with_output
from bayescope.network.row_weights import likelihood_of_rows
from bayescope.posterior import GaussianPosterior, Record
from bayescope.priors import Prior
from bayescope.process_state import outside_inference_mode
from bayescope.processes import collective
from bayescope.storage import stored_function
from bayescope.training import Minibatches, Outcome, TrainingOptions, Validation, fit_map, random_states, resumable
from bayescope.training.training import Training, prepared, suits_lbfgs
from bayescope.variational.elbo import Bound, Draws, affordable, bound, row_draws, weight_draws
from bayescope.variational.families import Family
from bayescope.variational.objective import NegativeBound, at_offsets
from bayescope.variational.options import MEAN_FIELD, VariationalKeywords, VariationalOptions, check_groups
from bayescope.variational.start import Start, by_gradients, with_ivon, without_padding

# Draws of the weights that predictions are averaged over: the same noise after every epoch.
DRAWS, SEED = 16, 0


def predictive_validation(
    module: nn.Module, weights: Weights, family: Family, rows: Minibatches, objective: NegativeBound,
    patience: int | None,
) -> Validation:  # fmt: skip
    """The best q is the one with the lowest −Σ log (S⁻¹ Σ_s p(y∣f(x, θ_s))) on rows that are not trained on.

    Args:
        module: the network, read in eval mode.
        weights: which are random.
        family: how they scatter around the module's.
        rows: the validation rows.
        objective: has the likelihood.
        patience: this many epochs without a better one end the training; ``None`` for never.

    Raises:
        InputError: if the patience is no positive whole number.
    """

    def losses() -> Generator[tuple[Any, float], None, None]:
        noise = torch.Generator().manual_seed(SEED)
        # In this order: reading a module turns gradients on.
        with reading(module), torch.no_grad(), random_states(module, noise):
            values = at_offsets(module, weights, family.noise(DRAWS))
            for inputs, targets in rows.in_order():
                f = passes_at(module, values, inputs).to(torch.float64).flatten(1, -2)
                log_prob = objective.likelihood.log_prob(f, targets.flatten(0, 1))
                yield inputs, -float((log_prob.logsumexp(0) - math.log(DRAWS)).sum())

    return Validation(losses, rows, patience)


NOT_READ, UNREAD = "Ctrl-C came before it was read.", "not read, ended by an interrupt"
# Nats of KL(q∥p) a weight and a row below which q has hardly left the prior.
LITTLE_A_WEIGHT, LITTLE_A_ROW = 0.01, 0.1


@outside_inference_mode
def fit(
    options: VariationalOptions,
    model: nn.Module,
    data: Any,
    likelihood: Likelihood,
    weights: Any,
    prior_precision: Any,
    *,
    sds: Tensor | None = None,
) -> GaussianPosterior:
    """Trains q and reads the bound; see `variational` for the arguments and what is raised.

    Args:
        options: how.
        model: whose weights are the first means; it is left unchanged.
        data: all rows.
        likelihood: p(y∣f).
        weights: which are random.
        prior_precision: of p(θ), or "evidence".
        sds: of the posterior that it goes on from, shape (P,), in the place of ``options.initial_sd``. What is not
            random then stays unchanged: the rows to come are not all that it was trained on.
    """
    model, weights, layer_scales, precisions = _plain(unwrapped(model), weights)
    with prepared(options.training, model, data, likelihood, weights) as ready:
        training = replace(ready, weights=without_padding(ready.module, ready.weights))
        start = Start.of(options, training, data, prior_precision, sds, layer_scales)
        family, gradients, make = with_ivon(start) if options.natural else by_gradients(start)
        objective = NegativeBound(
            training.module, training.weights, family, start.hyperparameters, gradients, rows=training.rows.rows,
            kl_weight=options.kl_weight, warmup=options.warmup, hold=sds is not None,
        )  # fmt: skip
        whole = nn.ModuleDict({"module": training.module, "family": family, "hyperparameters": start.hyperparameters})
        held_out, watch, patience = training.held_out(), None, options.training.patience
        if held_out is not None:
            watch = predictive_validation(training.module, training.weights, family, held_out, objective, patience)
        outcome = training.run(objective, watch, trained=whole, make=make)
        outcome.warn()
        one = isinstance(prior_precision, int | float) and precisions == [prior_precision]
        q = _posterior(start, family, objective, outcome, [] if one else precisions)
        if outcome.converged is not None and sds is None:
            _warn_if_worse(q, training, data, 1.0 if isinstance(prior_precision, str) else prior_precision)
        return q


def _plain(model: Any, weights: Any) -> tuple[Any, Any, Mapping[str, Tensor], list[float]]:
    """A module without variational layers, its weights that are random, and the sds and prior precisions it had."""
    # What is no module is refused where every training refuses it.
    modules = model.modules() if isinstance(model, nn.Module) else ()
    layers: list[Any] = [layer for layer in modules if isinstance(layer, VariationalLayer)]
    if not layers:
        return model, weights, {}, []
    precisions = {layer.prior_precision for layer in layers if hasattr(layer, "prior_precision")}
    plain, layer_scales = deterministic(model)
    if isinstance(weights, str) and weights == "all":
        weights = {name: sd > 0 for name, sd in layer_scales.items()}
    return plain, weights, layer_scales, sorted(precisions)


def _posterior(
    start: Start, family: Family, objective: NegativeBound, outcome: Outcome, given_way: list[float]
) -> GaussianPosterior:
    """q as it is now, with its bound over all rows.

    Args:
        start: what it was set up from.
        family: its covariance.
        objective: has p(θ) and p(y∣f).
        outcome: of the training.
        given_way: the prior precisions of layers that gave way to that of the call.
    """
    options, training, hyperparameters = start.options, start.training, start.hyperparameters
    function, precision, kl = training.function(), family.precision(), objective.kl().detach()
    rows, source, likelihood = training.rows, training.order, objective.likelihood

    def draws() -> Iterator[Draws]:  # one by one: their first looks at the network are cut short by Ctrl-C as well
        yield weight_draws(function, precision, objective.prior, likelihood, rows, kl, source)
        if options.family == MEAN_FIELD:
            yield row_draws(function, precision, likelihood, rows, source)

    most = affordable(len(function.flat), rows.rows, outcome.epochs * options.samples)
    judged = hyperparameters.refitted(bound(draws(), rows, kl, most))
    notes = _notes(start, outcome, judged)
    if given_way:
        notes["prior of layers"] = f"{', '.join(f'{p:g}' for p in given_way)}, which gave way to prior_precision="
    if options.training.epochs != 0 and (advice := _collapse(float(kl), len(function.flat), rows.rows)):
        notes["close to the prior"] = advice
    terms, instead = (None, NOT_READ) if judged is None else (judged.terms, "")
    record = Record("variational", elbo_terms=terms, notes=notes, trace=outcome.trace, instead=instead)
    sds, seed = family.variance().detach().sqrt(), checks.seed_from(source)
    again = replace(options.training, validation=None, patience=None, checkpoint=None, generator=seed)
    more = partial(_conditioned, replace(options, groups="layer", training=again), function, sds, objective.likelihood)
    return GaussianPosterior(
        function.flat, precision, record, function, objective.likelihood.unweighted, method="sampled", infer=more
    )


@stored_function("variational_condition")
@collective
def _conditioned(
    options: VariationalOptions, function: NetworkModel, sds: Tensor, likelihood: Likelihood, prior: Prior, *data: Any
) -> GaussianPosterior:
    """The posterior after more data, by the same options, from q and with q as the prior; see `Posterior.condition`."""
    given = data[0] if len(data) == 1 else tuple(data)
    likelihood = likelihood_of_rows(likelihood.unweighted, given)
    return fit(options, function.module, given, likelihood, function.weights, prior, sds=sds)


def _warn_if_worse(q: GaussianPosterior, training: Training, data: Any, prior_precision: Any) -> None:
    """Warns if q predicts training rows worse than the most probable network, where L-BFGS finds that in a moment.

    A Gaussian of independent weights switches off units that cost more in KL(q∥p) than they explain, and the bound has
    nothing better. Of ten small tables it warned of all, and predicted new rows worse than the network on nine.

    Args:
        q: the posterior.
        training: the rows.
        data: the same, as they were given.
        prior_precision: of the network; where it is learnt, that which the learning started from.

    Warns:
        ConvergenceWarning: with both log losses.
    """
    likelihood, rows = training.likelihood, training.rows
    if len(rows.of_parts(0)) > 1 or likelihood.mean_weight is not None or not suits_lbfgs(training.module, rows):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it is a baseline, mode or not
        best = fit_map(
            q.model, data, likelihood=likelihood, prior_precision=prior_precision, weights=training.weights,
            generator=0, progress=False,
        )  # fmt: skip
    inputs, targets = rows.whole()
    losses = [
        -float(each.predict(inputs, generator=0).latent.log_prob(likelihood, targets.flatten(0, 1)).mean())
        for each in (q, best)
    ]
    found = LossComparison(rows.rows, *losses)
    if found.excess > WORSE:
        warn(
            f"Predictions of this posterior are likely worse than the plain network's. Expected about the log loss of "
            f"the most probable network under the same prior, found {found}: the bound pays for weights more than they "
            "explain. Take bs.sgmcmc or bs.laplace at bs.fit_map's network, or a narrower network. A network that has "
            "overfitted may gain all the same: held-out rows would show it.",
            ConvergenceWarning,
        )


def _notes(start: Start, outcome: Outcome, judged: Bound | None) -> dict[str, str]:
    """What the summary says of the fit, by title."""
    options, training = start.options, start.training
    family = options.family if options.rank is None else f"{options.family} of rank {options.rank}"
    draws = f"{options.samples} draw{'s' * (options.samples > 1)} a step"
    notes = {
        **start.hyperparameters.notes(training.weights), "bound": judged.note if judged else UNREAD, "family": family,
        "estimator": f"{options.estimator}, {draws}", "rows": f"{training.rows.rows:,}",
        **outcome.row_weights,
    }  # fmt: skip
    if options.kl_weight != 1.0:
        notes["kl weight"] = f"{options.kl_weight:g}; the evidence lower bound has the weight 1"
    if options.training.epochs != 0:
        notes["training"] = outcome.summary()
        notes["at rest"] = outcome.rest("Leave epochs= out, or give more, with schedule='cosine'.")
    return notes


def _collapse(kl: float, weights: int, rows: int) -> str:
    """What to do where q has hardly left the prior; nothing where it has."""
    if kl > LITTLE_A_WEIGHT * weights or kl > LITTLE_A_ROW * rows:
        return ""
    return (
        f"{kl / weights:.2g} nats a weight, {kl / rows:.2g} a row: the data tell almost nothing under this prior. "
        "Where predictions are poor take bs.sgmcmc or bs.laplace, a prior fitted to the network's scale, or fewer "
        "random weights"
    )


@logged
@outside_inference_mode
@resumable
@collective
@takes(VariationalKeywords, TrainingOptions, OutputChoice, optimizer="adam", warmup=0)
def variational(
    model: nn.Module,
    data: Any,
    *,
    likelihood: LikelihoodName | Likelihood,
    weights: Any = "all",
    family: str = "mean_field",
    rank: int | None = None,
    prior_precision: Any = 1.0,
    share_prior: str = "layer",
    samples: int = 1,
    estimator: str | None = None,
    kl_weight: float = 1.0,
    initial_sd: Any = None,
    **options: Unpack[VariationalKeywords],
) -> GaussianPosterior:
    """Trains a Gaussian q over a network's weights up the evidence lower bound.

    ELBO(q) = E_q[Σ_n log p(y_n∣f(x_n, θ))] − KL(q∥p) ≤ log p(y) (Jordan et al. 1999; for networks Graves 2011,
    "Practical variational inference for neural networks"; Blundell et al. 2015, "Weight uncertainty in neural
    networks"). The loss is −Σ E_q[log p(y∣f)] + w KL(q∥p) with w = ``kl_weight``, a sum over all N rows of which a
    minibatch of B counts N/B times; the KL term is in closed form, and steps are along the gradient divided by N. The
    network needs no change: its parameters are the means, a copy of it is trained in train mode, and every call that
    meets a random weight is answered with a draw.

    Args:
        model: any module with outputs f of shape (N, C) or (N, …, C), untrained or trained: its weights are the first
            means. It is left unchanged. A module with variational layers (`bayescope.layers`) is turned into the same
            network with plain layers, at their means: their weights are what "all" stands for, their sds are where it
            starts, and with ``epochs=0`` it answers as it stands. The prior is that of this call.
        data: as in `fit_map`.
        likelihood: a name or a likelihood. `Gaussian("evidence")` learns its noise variance with q.
        weights: which weights are random: "all", "last_layer", names or globs, a mask. All others that require a
            gradient are trained too, as point estimates; ``requires_grad=False`` holds weights fixed, as the frozen
            base under adapters. The row of an embedding's padding token is held fixed as well.
        family: "mean_field", independent weights; "low_rank", Σ = diag(s²) + L Lᵀ; "full" for up to 5,000 weights.
        rank: of the family "low_rank", 10 by default.
        prior_precision: a number, an array of shape (P,), a dict by layer, parameter or glob, a `Prior`, or
            "evidence": one is learnt for each group, from 1, after each epoch where the bound is highest in it.
        share_prior: which weights share a learnt precision: "scalar", "layer", "tensor", "weight" or "feature".
        samples: draws of the weights a step, all of which go through the network together.
        estimator: of the gradient. For mean field "local_reparameterization" (the default: outputs of linear layers are
            drawn for each row; flipout where positions share weights), "flipout", "reparameterization" (weights are
            drawn) or "sticking_the_landing"; for the others "sticking_the_landing" (the default: no noise is left in
            the gradient where q is the posterior) or "reparameterization". "ivon" takes "reparameterization" alone.
        kl_weight: w. Below 1 the posterior is colder.
        initial_sd: the first sds: a number or one for each random weight; ``None`` for those of variational layers,
            and else for 0.05 (with "ivon", for a curvature of 0.5 a row); or "laplace" for those of Laplace's
            approximation at the given weights, cut at one sd beyond which the network does not bear them: what a
            trained network starts from, to be done in fewer epochs.
        options: of the training, as `TrainingOptions` describes them: ``epochs`` (0 leaves q where it starts),
            ``lr`` (0.1 with "ivon"), ``optimizer``, ``schedule``, ``batch_size``, ``validation`` (judged by the
            predictions of q), ``patience``, ``checkpoint``, ``generator`` and ``progress``. The optimiser may also be
            "ivon", natural gradients for mean field (Shen et al. 2024), where all that is trained is random. With
            ``warmup``, fewer epochs than all, the KL term's weight rises to w over this many epochs.
            ``output`` and ``classes_dim`` say which part of what the module returns is f: see `OutputChoice`.

    Returns:
        A Gaussian posterior that predicts by sampling weights unless `predict` asks for "linearized". ``.model`` is the
        network at the means; ``.trace`` has lists of "loss", "nll", "kl" and "elbo" (estimated from the epoch's draws),
        of "validation_nll" where there is a validation, and of "prior_precision" and "noise_variance" where they are
        learnt. ``.elbo`` is read over all rows at the end in eval mode, which Ctrl-C cuts short; the summary has
        its standard error. ``.condition`` holds what is not random as it is.

    Warns:
        ConvergenceWarning: if ``epochs=None`` has not converged at the end of its budget, or predicts training rows
            worse than the most probable network by over 0.05 nats a row, where L-BFGS finds that soon.

    Raises:
        ConvergenceError: if the loss stops being a finite number.
        InputError: if the data do not fit the model or the likelihood, or the checkpoint is one of another run.
        OptionError: if a name is unknown.
        UnsupportedError: if two arguments do not go together.
    """
    check_groups(prior_precision, share_prior)
    chosen = VariationalOptions.of(
        options, family=family, rank=rank, estimator=estimator, samples=samples, kl_weight=kl_weight,
        initial_sd=initial_sd, groups=share_prior,
    )  # fmt: skip
    likelihood = likelihood_of_rows(likelihood, data)
    return fit(chosen, with_output(model, options), data, likelihood, weights, prior_precision)
