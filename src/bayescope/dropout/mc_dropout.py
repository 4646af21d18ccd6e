"""Monte Carlo dropout: a network whose dropout stays on when it predicts, trained so or taken as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor, nn

from bayescope import checks
from bayescope.dropout.concrete import ConcreteDropout
from bayescope.dropout.network import (
    DropoutPasses,
    Stochastic,
    best_noise,
    outputs_and_targets,
    shortened,
    squared_residuals,
)
from bayescope.dropout.weight_decay import dropout_prior, noise_variance, rates_behind_dropout
from bayescope.errors import InputError, InputTypeError, UnsupportedError
from bayescope.keywords import picked, takes
from bayescope.latent import DrawsLatent
from bayescope.layers.output_choice import OutputChoice
from bayescope.likelihoods import Likelihood, LikelihoodName, Weighted, described, hyperparameters_of, resolve
from bayescope.logs import logged
from bayescope.network import NetworkModel, network_prior, row_total, row_totals, unwrapped, with_output
from bayescope.network.row_weights import likelihood_of_rows
from bayescope.posterior import DEFAULT_PASSES, ImplicitPosterior, Record
from bayescope.priors import Prior
from bayescope.process_state import outside_inference_mode
from bayescope.processes import collective
from bayescope.training import (
    LearntLikelihood,
    Minibatches,
    NegativeLogJoint,
    Outcome,
    Training,
    first_likelihood,
    prepared,
    resumable,
)
from bayescope.training.options import TrainingKeywords, TrainingOptions


class LearntRate(NamedTuple):
    """A learnt dropout with what its rate meets.

    Attributes:
        dropout: has the rate.
        weight: the weight of the layer after it.
        precision: its prior precision l², one number or of its shape.
    """

    dropout: ConcreteDropout
    weight: Tensor
    precision: Tensor

    def penalty(self) -> Tensor:
        """½ l² ‖W‖² r/(1 − r) − K H(r): what the divergence has beside the prior's own ½ l² ‖W‖²."""
        return 0.5 * (self.precision * self.weight.square()).sum() * self.dropout.odds() - self.dropout.entropy()


def train(
    network: Stochastic, training: Training, likelihood: Likelihood, start: Likelihood, prior: Prior
) -> tuple[Outcome, Likelihood, Mapping[str, str]]:
    """Trains a network with its dropout; rates and hyperparameters that are to be learnt are learnt with the weights.

    Args:
        network: that of the training.
        training: ready to run.
        likelihood: p(y∣f), whose hyperparameters may be still to be learnt.
        start: the same with first values of them.
        prior: over the weights that a pass uses.

    Returns:
        How it went, the likelihood with the hyperparameters of the last epoch, and notes for a summary.

    Raises:
        UnsupportedError: if the prior is not diagonal, or a rate is to be learnt before weights that are held fixed.
    """
    rates = {} if network.learnt else rates_behind_dropout(network.module, training.rows.few[0])
    moving = LearntLikelihood(start, likelihood.learnable) if likelihood.learnable else None
    held = dropout_prior(prior, training.weights, rates)
    learnt = _learnt_rates(network, prior)
    objective = NegativeLogJoint(
        network.module, training.weights, training.rows.rows, start, held,
        extra=(lambda: torch.stack([rate.penalty() for rate in learnt]).sum()) if learnt else None,
        entries=lambda: {"rates": [rate.dropout.rate() for rate in learnt]} if learnt else {},
        learnt=moving,
    )  # fmt: skip
    state = None if moving is None else nn.ModuleList([network.module, moving])
    outcome = training.run(objective, trained=state)
    outcome.warn()
    network.settle()
    behind = list(rates) or [f"{name}.weight" for name in network.learnt]
    notes = outcome.notes(prior, "Train for more epochs.")
    notes = notes | {"weights behind dropout": shortened(behind) or "none that are seen to be"}
    return outcome, start if moving is None else moving.likelihood, notes


def learnt_likelihood(
    likelihood: Likelihood, start: Likelihood, passes: DropoutPasses, rows: Minibatches, generator: torch.Generator
) -> tuple[Likelihood, Mapping[str, str]]:
    """The likelihood whose hyperparameters the rows' predictive probability is largest under, and a note of it."""
    if likelihood.noise_variance is not None:
        squares = squared_residuals(passes, rows, DEFAULT_PASSES, generator)
        noise, log_prob = best_noise(squares, rows.outputs)
        (count,) = row_totals(squares.shape[1])
        found = likelihood.with_noise_variance(noise)
    else:
        f, y = outputs_and_targets(passes, rows, DEFAULT_PASSES, generator)
        found = start.fitted(likelihood.learnable, f, y, row_total, marginal=True)
        total, count = row_totals(float(DrawsLatent(f).log_prob(found, y).sum()), len(y))
        log_prob = total / count
    by = f"by {DEFAULT_PASSES} passes over {count:,.0f} rows, {-log_prob:.4g} nats a row"
    return found, {title: f"{value}, {by}" for title, value in hyperparameters_of(found, likelihood.learnable).items()}


def _learnt_rates(network: Stochastic, prior: Prior) -> Sequence[LearntRate]:
    weights, found = network.weights, []
    precisions = weights.unflat(prior.diagonal(weights.dim))
    for name, dropout in network.learnt.items():
        parameter = f"{name}.weight" if name else "weight"
        weight = network.module.get_parameter(parameter)
        if parameter not in precisions:
            raise UnsupportedError(
                f"rate: expected 'concrete' before layers that are trained, got {name!r}, whose weight is frozen. "
                "Leave it out of before=, or give a number."
            )
        found.append(LearntRate(dropout, weight, precisions[parameter].to(weight)))
    return found


@logged
@outside_inference_mode
@resumable
@collective
@takes(TrainingKeywords, TrainingOptions, OutputChoice, optimizer="adam")
def mc_dropout(
    model: nn.Module,
    data: Any = None,
    *,
    likelihood: LikelihoodName | Likelihood,
    rate: float | str | None = None,
    before: Any = "all",
    prior_precision: Any = None,
    weight_decay: float | None = None,
    rows: int | None = None,
    **options: Unpack[TrainingKeywords],
) -> ImplicitPosterior:
    """A network with dropout as an approximate posterior (Gal and Ghahramani 2016): each pass is a draw of a function.

    Without data the network is taken as it was trained, and its dropout stays on. With data it is trained, with
    dropout, down to the minimum of

        −Σ_n log p(y_n∣f(x_n)) + ½ Σ l² W²/(1 − r),

    with masks drawn anew in each pass: up to a constant that is −ELBO under the prior N(0, l⁻²), since the W that a
    network with (inverted) dropout holds is (1 − r) times the M of the paper. r is 0 for what is not behind dropout.
    Predictions read all of the network but its dropout in eval mode, and draw masks once a pass, for all rows.

    Args:
        model: any module with outputs f of shape (N, C) or (N, …, C). It is left unchanged. Its dropout may be layers,
            calls of ``torch.nn.functional.dropout`` and its like, or attention's.
        data: as in `fit_map`; ``None`` for a network that is trained already.
        likelihood: a name or a likelihood. The noise of ``Gaussian("evidence")`` is learnt while training, and then, or
            with ``epochs=0`` alone, set to where the passes' predictive likelihood (log-mean-exp) of the validation
            rows, or else of the training rows, is largest.
        rate: puts dropout before layers of a network that has none: a number in [0, 1), or "concrete" for rates that
            are learnt in training, one a layer (Gal, Hron and Kendall 2017), which adds −Σ K H(r) to the loss.
        before: which layers that is: "all", "hidden" (all but the one that a pass over the data calls first, so that no
            input is dropped; without data the network has to be an ``nn.Sequential``, which tells the order), or names
            and globs. A pass has to call each of them. Units are dropped before linear layers and whole channels before
            convolutions.
        prior_precision: l²: a number, an array of shape (P,), or a dict by layer, parameter or glob, or a `Prior`,
            over the weights that a pass uses; ``None`` for 1 where the network is trained.
        weight_decay: λ of Gal's loss N⁻¹ Σ ½‖y − f‖² + λ‖M‖², from which, with the prior precision, follows the
            noise of a Gaussian likelihood: σ² = 2 N λ/((1 − r) l²).
        rows: N, for ``weight_decay`` without data.
        options: of the training, as `TrainingOptions` describes them: ``epochs`` (``None`` until the loss, a mean over
            many masks, has converged; 0 leaves the network unchanged), ``lr``, ``optimizer`` ("adam", "sgd" or a
            function), ``schedule``, ``batch_size``, ``validation`` (judged by the likelihood in eval mode),
            ``patience``, ``checkpoint``, ``generator`` (which draws the masks, too) and ``progress``.
            ``output`` and ``classes_dim`` say which part of what the module returns is f: see `OutputChoice`.

    Returns:
        A posterior that draws functions, not weights. ``.model`` is the trained network, with its dropout; ``.trace``
        has lists of "loss", "nll" and "penalty", and of what is learnt. ``.likelihood`` has the noise.

    Warns:
        ConvergenceWarning: if ``epochs=None`` has not converged at the end of its budget.

    Raises:
        ConvergenceError: if the loss stops being a finite number.
        InputError: if there is no dropout, or the data do not fit.
        OptionError: if a name is unknown.
        UnsupportedError: if two arguments do not go together.
    """
    if not isinstance(model := unwrapped(model), nn.Module):
        raise InputTypeError(f"model: expected a torch.nn.Module, got {type(model).__name__}.")
    trains = data is not None and options["epochs"] != 0
    _check_decay(weight_decay, prior_precision, rows, has_data=data is not None)
    if data is None:
        _refuse("data= to go with it", {"epochs": options["epochs"], "validation": options["validation"]})
    if not trains:
        names = ("lr", "schedule", "batch_size", "patience", "checkpoint")
        idle = {name: value for name, value in options.items() if name in names}
        idle["optimizer"] = None if options["optimizer"] == "adam" else options["optimizer"]
        idle["prior_precision"] = prior_precision if weight_decay is None else None
        idle["rate"] = rate if isinstance(rate, str) else None
        _refuse("a training to go with it, data= and epochs=", idle)
    chosen = picked(TrainingOptions, options)
    if chosen.by_lbfgs:
        raise UnsupportedError("optimizer: expected one for noisy gradients, got 'lbfgs'. Take 'adam' or 'sgd'.")
    source = checks.generator(chosen.generator)
    chosen = replace(chosen, generator=source)
    network = Stochastic.of(with_output(model, options), rate, before, seen=data is not None)
    if data is None:
        return _as_it_is(network, _with_noise(likelihood, weight_decay, prior_precision, network.rates(), rows))
    of_rows = likelihood_of_rows(likelihood, data)
    with prepared(chosen, network.module, data, of_rows, network.weights, inplace=True) as training:
        if rate is not None:
            network = network.inserted(rate, before, training.rows.few[0])
        _look(network, training)
        noisy = _with_noise(likelihood, weight_decay, prior_precision, network.rates(), training.rows.rows)
        noisy = _of_weighted_rows(noisy, of_rows)
        notes, trace = {"rows": f"{training.rows.rows:,}"}, _no_trace()
        start = first_likelihood(noisy, training.rows.targets)
        if trains:
            prior = network_prior(1.0 if prior_precision is None else prior_precision, network.weights, network.module)
            outcome, start, more = train(network, training, noisy, start, prior)
            notes |= more
            trace = outcome.trace
        if noisy.learnable:
            noisy, note = learnt_likelihood(
                noisy, start, DropoutPasses(network.module), training.held_out() or training.rows, source
            )
            notes |= note
        elif not trains:
            _refuse("a noise variance to learn from it, or epochs=", {"validation": chosen.validation})
        return _posterior(network, training.rows.outputs, noisy.unweighted, notes, trace)


def _as_it_is(network: Stochastic, likelihood: Likelihood) -> ImplicitPosterior:
    """The posterior of a network that was trained elsewhere.

    Raises:
        InputError: if its noise is still to be learnt.
    """
    if likelihood.learnable:
        raise InputError(
            "likelihood: expected a noise variance, got 'evidence' and nothing to learn it from. Give "
            "bs.Gaussian(noise_variance=...), data= with epochs=0, or weight_decay=, rows= and prior_precision=."
        )
    return _posterior(network, 0, likelihood, {}, _no_trace())


def _no_trace() -> Mapping[str, list[Any]]:
    """The trace of a network that was not trained here."""
    return {}


def _of_weighted_rows(noisy: Likelihood, of_rows: Likelihood) -> Likelihood:
    """The likelihood, of rows with weights where the data have them.

    Raises:
        UnsupportedError: if a noise is to be learnt from rows with weights.
    """
    if of_rows.mean_weight is None or noisy.mean_weight is not None:
        return noisy
    if noisy.learnable:
        raise UnsupportedError(
            "likelihood: expected a noise variance for rows with weights, got 'evidence'. Give "
            "bs.Gaussian(noise_variance=...)."
        )
    assert isinstance(of_rows, Weighted)
    return replace(of_rows, likelihood=noisy)


def _look(network: Stochastic, training: Training) -> None:
    """Reads a few rows, so that what cannot be read is reported before the training; learnt rates come later."""
    if not network.learnt:
        DropoutPasses(network.module)(training.rows.few[0], 1, torch.Generator())


def _posterior(
    network: Stochastic, outputs: int, likelihood: Likelihood, notes: Mapping[str, str], trace: Mapping[str, list[Any]]
) -> ImplicitPosterior:
    network.module.eval()
    function = NetworkModel(network.module, network.weights, outputs)
    notes = {"dropout": network.summary(), **described(likelihood), **notes}
    record = Record("mc_dropout", notes=notes, trace=trace)
    return ImplicitPosterior(function.flat, DropoutPasses(network.module), record, function, likelihood)


def _check_decay(weight_decay: float | None, prior_precision: Any, rows: int | None, *, has_data: bool) -> None:
    """Refuses what does not go together.

    Raises:
        InputError: if something is missing.
        UnsupportedError: if something has no use.
    """
    if weight_decay is not None and (prior_precision is None or (rows is None and not has_data)):
        raise InputError(
            "weight_decay: expected prior_precision= to go with it, and rows= where no data are given, for the "
            "noise that follows from them, 2 N λ/((1 − r) l²)."
        )
    if rows is not None and (has_data or weight_decay is None):
        raise UnsupportedError(
            f"rows: expected None unless weight_decay= is given without data, got {rows!r}. The rows of data are "
            "counted."
        )


def _with_noise(
    given: LikelihoodName | Likelihood,
    weight_decay: float | None,
    prior_precision: Any,
    rates: Sequence[float],
    rows: int | None,
) -> Likelihood:
    """The likelihood that was given, with its noise where that follows from the weight decay.

    Raises:
        UnsupportedError: if it has a noise already, or is no Gaussian.
    """
    likelihood = resolve(given)
    if weight_decay is None:
        return likelihood
    if likelihood.noise_variance is None or not (isinstance(given, str) or likelihood.learnable):
        raise UnsupportedError(
            "weight_decay: expected a Gaussian likelihood whose noise it tells, 'gaussian' or "
            f"bs.Gaussian('evidence'), got {given!r}. Leave weight_decay out, or the noise."
        )
    decay = checks.positive_number("weight_decay", weight_decay)
    precision = checks.positive_number("prior_precision", prior_precision)
    return likelihood.with_noise_variance(noise_variance(decay, precision, rates, checks.count("rows", rows)))


def _refuse(needed: str, given: Mapping[str, object]) -> None:
    """Refuses options that have no use without something else.

    Raises:
        UnsupportedError: if one of them is given.
    """
    for name, value in given.items():
        if value is not None:
            raise UnsupportedError(
                f"{name}: expected {needed}, got {name}={value!r} alone. Give both, or leave it out."
            )
