"""The most probable weights of a network, by training with the prior as the penalty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayescope import checks
from bayescope.errors import InputError
from bayescope.likelihoods import Likelihood
from bayescope.network.priors import network_prior
from bayescope.posterior import PointPosterior, Record
from bayescope.priors import Prior
from bayescope.process_state import outside_inference_mode
from bayescope.processes import collective
from bayescope.training.checkpoint import resumable
from bayescope.training.objective import NegativeLogJoint
from bayescope.training.settings import Settings
from bayescope.training.watch import NoWatch, Validation, Watch


@outside_inference_mode
@resumable
@collective
def fit_map(
    model: nn.Module,
    data: Any,
    *,
    likelihood: str | Likelihood,
    prior_precision: Any = 1.0,
    weights: Any = "all",
    epochs: int | None = None,
    lr: float | None = None,
    optimizer: Any = None,
    schedule: Any = None,
    batch_size: int | None = None,
    validation: Any = None,
    patience: int | None = None,
    checkpoint: str | Path | None = None,
    generator: torch.Generator | int | None = None,
    progress: bool = True,
    inplace: bool = False,
) -> PointPosterior:
    """Trains a network down to the maximum of log p(y∣f) + log p(θ): the weights θ that are most probable.

    The loss is −Σ_n log p(y_n∣f(x_n, θ)) + ½ (θ−m)ᵀP₀(θ−m), a sum over all N rows; a minibatch of B rows counts N/B
    times, and steps are along the gradient of the loss divided by N. The network is trained in train mode (dropout,
    batch norm) and returned in eval mode.

    Args:
        model: any module with outputs f of shape (N, C) or (N, …, C). It is left as it is unless ``inplace=True``.
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
        epochs: how many times the data are read, those before a checkpoint included. ``None`` trains until converged.
            "lbfgs" goes on until a Newton step would gain less than 1e-6 nats, by the bound ½ gᵀP₀⁻¹g with g the
            loss's gradient, for 500 epochs at most. All others take cycles of a step size that falls to zero, each
            twice as long as the one before, from 100 steps on, and end where one gains less than 0.1 nats and 0.001
            nats a row over the best, in view of the noise; there are 5 to 7 of them, 12,700 steps at most. With a
            ``schedule``, whose length has to be known, ``None`` is 100.
        lr: the step size; ``None`` for the optimiser's own: 1e-3 for "adam", 1e-2 for "sgd", 1 for "lbfgs".
        optimizer: ``None`` for "lbfgs" where it ends soonest (without ``epochs``, ``lr``, ``schedule``, ``batch_size``,
            for arrays of at most 10⁷ rows times weights, and networks without buffers or draws), else for "adam". Or
            "adam", "sgd" (momentum 0.9), "lbfgs" (all rows at once, twenty evaluations an epoch), or a function
            of a list of parameters that returns a ``torch.optim.Optimizer``.
        schedule: ``None``, "cosine", or a function of the optimiser that returns a scheduler of
            ``torch.optim.lr_scheduler``; it steps once an epoch.
        batch_size: the most rows of a minibatch; ``None`` for 128, and all rows for "lbfgs". Batches of a loader stay.
        validation: data that are not trained on. The weights with their best likelihood are returned.
        patience: so many epochs without a better validation end the training.
        checkpoint: a file that the state is saved to, and that a later call with the same arguments goes on from, to
            the same numbers as one that was never stopped. A file of a run with another argument is refused: other
            data (of a loader, in any order), another model or other first weights, another option or seed. What may
            change is ``epochs``, if there is no ``schedule``, and ``progress``. First weights are not compared where
            ``generator`` is ``None``, as such runs differ anyway, nor with ``inplace=True``. The file has one writer
            at a time. It is replaced as a whole, at the end and before that as often as 5 % of the time allow, and
            read with ``torch.load(weights_only=True)``.
        generator: seeds the order of the rows and what the network draws; torch's own random states stay as they were.
        progress: whether a bar is drawn, for runs of over two seconds.
        inplace: whether the caller's own module is trained, and left in eval mode.

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
    if patience is not None and validation is None:
        raise InputError(f"patience: expected validation= to go with it, got patience={patience!r} alone.")
    inplace = checks.flag("inplace", inplace)
    settings = Settings(
        likelihood=likelihood, epochs=epochs, lr=lr, optimizer=optimizer, schedule=schedule, batch_size=batch_size,
        checkpoint=checkpoint, generator=generator, progress=progress,
    )  # fmt: skip
    with settings.prepared(model, data, weights, inplace=inplace) as training:
        prior = network_prior(prior_precision, training.weights)
        objective = NegativeLogJoint(training.module, training.weights, training.rows.rows, settings.likelihood, prior)
        watch: Watch = NoWatch()
        if validation is not None:
            watch = Validation.of(training.module, training.held_out(validation), objective, patience)
        outcome = training.run(objective, watch)
        outcome.warn()
        function = training.function()
    advice = "Train for more epochs" + (
        "." if settings.choice.values else ", or a small network with optimizer='lbfgs'."
    )
    notes = {
        "prior": describe(prior), "rows": f"{training.rows.rows:,}", "training": outcome.summary(),
        "loss": outcome.loss(), "at rest": outcome.rest(advice),
    }  # fmt: skip
    record = Record("map", notes=notes, trace=outcome.trace, prior=prior)
    return PointPosterior(function.flat, record, function, settings.likelihood)


def describe(prior: Prior) -> str:
    """A prior in a few words."""
    precision = prior.precision
    if not isinstance(precision, Tensor):
        return "a Gaussian with a full precision"
    low, high = float(precision.min()), float(precision.max())
    return f"precision {low:g}" if low == high else f"precisions from {low:g} to {high:g}"
