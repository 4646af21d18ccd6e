"""The most probable weights of a network, by training with the prior as the penalty."""

from __future__ import annotations

from typing import Any, Unpack

from torch import nn

from bayescope import checks
from bayescope.keywords import picked, takes
from bayescope.layers.output_choice import OutputChoice
from bayescope.likelihoods import Likelihood, LikelihoodName
from bayescope.logs import logged
from bayescope.network.guard import with_output
from bayescope.network.priors import network_prior
from bayescope.network.row_weights import likelihood_of_rows
from bayescope.posterior import PointPosterior, Record
from bayescope.process_state import outside_inference_mode
from bayescope.processes import collective
from bayescope.training.checkpoint import resumable
from bayescope.training.options import TrainingKeywords, TrainingOptions
from bayescope.training.training import prepared


@logged
@outside_inference_mode
@resumable
@collective
@takes(TrainingKeywords, TrainingOptions, OutputChoice)
def fit_map(
    model: nn.Module,
    data: Any,
    *,
    likelihood: LikelihoodName | Likelihood,
    prior_precision: Any = 1.0,
    weights: Any = "all",
    inplace: bool = False,
    **options: Unpack[TrainingKeywords],
) -> PointPosterior:
    """Trains a network down to the maximum of log p(y∣f) + log p(θ): the weights θ that are most probable.

    The loss is −Σ_n log p(y_n∣f(x_n, θ)) + ½ (θ−m)ᵀP₀(θ−m), a sum over all N rows; a minibatch of B rows counts N/B
    times, and steps are along the gradient of the loss divided by N. The network is trained in train mode (dropout,
    batch norm) and returned in eval mode.

    Args:
        model: any module with outputs f of shape (N, C) or (N, …, C). It is left unchanged unless ``inplace=True``.
        data: (X, y) of arrays, tensors or data frames, a Dataset, a DataLoader, or a list of batches. Arrays are
            shuffled anew each epoch; a loader has its own order. X is what the module takes: an array with the rows
            on its first axis, a tuple of several, passed as positional arguments, or a dict of them, passed as keyword
            arguments. Its floating-point numbers get the dtype of the module's parameters; whole numbers stay whole,
            as embeddings need them, so that quantities in whole numbers are given as ``X.astype(float)``. A batch is a
            pair (inputs, targets), or a dict with the targets under "labels" or "label".
        likelihood: a name or a likelihood.
        prior_precision: P₀: a number, an array of shape (P,), a dict by layer, parameter or glob, or a `Prior`, which
            may have a mean m.
        weights: which weights θ are random and have a prior. All others that require a gradient are trained too, with
            no prior: point estimates by maximum likelihood. ``requires_grad=False`` holds weights fixed.
        inplace: whether the caller's own module is trained, and left in eval mode.
        options: of the training, as `TrainingOptions` describes them: ``epochs``, ``lr``, ``optimizer``, ``schedule``,
            ``batch_size``, ``validation``, ``patience``, ``checkpoint``, ``generator`` and ``progress``.
            ``output`` and ``classes_dim`` say which part of what the module returns is f: see `OutputChoice`.

    Returns:
        A posterior with all mass on those weights. ``.model`` is the trained network; ``.trace`` has lists of "loss",
        "nll" and "penalty", and of "validation_nll" where there is a validation, all sums over rows. After Ctrl-C it
        is what was found until then, and the summary says so. The summary has the last loss, and whether it has come
        to rest: of eight epochs or more, whether the mean of the last quarter is below that of the second one by at
        most 1 nat and 0.03 nats a row, or three standard errors.

    Warns:
        ConvergenceWarning: if ``epochs=None`` has not converged at the end of its budget.

    Raises:
        ConvergenceError: if the loss stops being a finite number.
        InputError: if the data do not fit the model or the likelihood, or the checkpoint is one of another run.
        OptionError: if a name is unknown.
        UnsupportedError: if two arguments do not go together.
    """
    chosen = picked(TrainingOptions, options)
    if chosen.epochs is not None:
        checks.count("epochs", chosen.epochs)
    inplace, likelihood = checks.flag("inplace", inplace), likelihood_of_rows(likelihood, data)
    model = with_output(model, options, inplace=inplace)
    with prepared(chosen, model, data, likelihood, weights, inplace=inplace) as training:
        prior = network_prior(prior_precision, training.weights, training.module)
        outcome = training.to_mode(prior)
        outcome.warn()
        function = training.function()
    more = "." if training.options.by_lbfgs else ", or a small network with optimizer='lbfgs'."
    notes = outcome.notes(prior, f"Train for more epochs{more}")
    return PointPosterior(
        function.flat, Record("map", notes=notes, trace=outcome.trace, prior=prior), function, likelihood.unweighted
    )
