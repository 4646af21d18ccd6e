"""Training with dropout, and the noise that is learnt afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from bayescope.dropout.network import Stochastic, shortened
from bayescope.dropout.objective import DropoutObjective, LearntRate, WithNoise
from bayescope.dropout.passes import DropoutPasses, best_noise, squared_residuals
from bayescope.dropout.weight_decay import dropout_prior, rates_behind_dropout
from bayescope.errors import UnsupportedError
from bayescope.likelihoods import Likelihood
from bayescope.network.batches import row_totals
from bayescope.posterior import DEFAULT_PASSES
from bayescope.priors import Prior
from bayescope.training.loop import Outcome
from bayescope.training.minibatches import Minibatches
from bayescope.training.objective import NegativeLogJoint, Objective
from bayescope.training.sharing import mean_square
from bayescope.training.training import Training


def train(
    network: Stochastic, training: Training, likelihood: Likelihood, prior: Prior
) -> tuple[Outcome, Mapping[str, str]]:
    """Trains a network with its dropout; rates and noise that are to be learnt are learnt with the weights.

    Args:
        network: that of the training.
        training: ready to run.
        likelihood: p(y∣f), whose noise may be still to be learnt.
        prior: over the weights that a pass uses.

    Returns:
        How it went, and notes of it for a summary.

    Raises:
        UnsupportedError: if the prior is not diagonal, or a rate is to be learnt before weights that are held fixed.
    """
    rates = {} if network.learnt else rates_behind_dropout(network.module, training.rows.few[0])
    start, noise = likelihood, None
    if likelihood.learnable:
        targets = training.rows.joined(lambda _, targets: targets.flatten(0, 1))
        noise = WithNoise(network.module, mean_square(targets, about_mean=True))
        start = likelihood.with_noise_variance(noise.noise_variance)
    held = dropout_prior(prior, training.weights, rates)
    joint = NegativeLogJoint(network.module, training.weights, training.rows.rows, start, held)
    objective: Objective = joint
    if noise is not None or network.learnt:
        objective = DropoutObjective(joint, training.rows.rows, _learnt_rates(network, prior), noise)
    outcome = training.run(objective, trained=noise)
    outcome.warn()
    network.settle()
    behind = list(rates) or [f"{name}.weight" for name in network.learnt]
    notes = outcome.notes(prior, "Train for more epochs.")
    return outcome, notes | {"weights behind dropout": shortened(behind) or "none that are seen to be"}


def learnt_noise(
    likelihood: Likelihood, passes: DropoutPasses, rows: Minibatches, generator: torch.Generator
) -> tuple[Likelihood, Mapping[str, str]]:
    """The likelihood with the noise that the rows' predictive probability is largest under, and a note of it."""
    squares = squared_residuals(passes, rows, DEFAULT_PASSES, generator)
    noise, log_prob = best_noise(squares, rows.outputs)
    (count,) = row_totals(squares.shape[1])
    note = f"{noise:.4g}, by {DEFAULT_PASSES} passes over {count:,.0f} rows, {-log_prob:.4g} nats a row"
    return likelihood.with_noise_variance(noise), {"noise variance": note}


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
