"""Variational inference for networks: the public function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from bayescope.errors import InputError, UnsupportedError
from bayescope.likelihoods import Likelihood
from bayescope.posterior import GaussianPosterior
from bayescope.process_state import outside_inference_mode
from bayescope.processes import collective
from bayescope.training.checkpoint import resumable
from bayescope.variational.fit import Held, fit
from bayescope.variational.options import VariationalOptions, check_groups


@outside_inference_mode
@resumable
@collective
def variational(
    model: nn.Module,
    data: Any,
    *,
    likelihood: str | Likelihood,
    weights: Any = "all",
    family: str = "mean_field",
    rank: int | None = None,
    prior_precision: Any = 1.0,
    share_prior: str = "layer",
    epochs: int | None = None,
    lr: float | None = None,
    optimizer: Any = "adam",
    schedule: Any = None,
    batch_size: int | None = None,
    samples: int = 1,
    estimator: str | None = None,
    kl_weight: float = 1.0,
    warmup: int = 0,
    initial_sd: Any = None,
    validation: Any = None,
    patience: int | None = None,
    checkpoint: str | Path | None = None,
    generator: torch.Generator | int | None = None,
    progress: bool = True,
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
            means. It is left as it is. A module with variational layers (`bayescope.layers`) is turned into the same
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
        epochs: how many times the data are read; ``None`` until the loss, a mean over many draws, has converged as in
            `fit_map`, or for 100 with a ``schedule`` or a ``warmup``. With 0, q is where it starts.
        lr: the step size; ``None`` for 1e-3 with "adam", 1e-2 with "sgd", 0.1 with "ivon".
        optimizer: "adam", "sgd" (momentum 0.9), a function of a list of parameters that returns a
            ``torch.optim.Optimizer``; or "ivon", natural gradients for mean field (Shen et al. 2024), where all that is
            trained is random.
        schedule: ``None``, "cosine", or a function of the optimiser, as in `fit_map`.
        batch_size: the most rows of a minibatch; ``None`` for 128.
        samples: draws of the weights a step, all of which go through the network together.
        estimator: of the gradient. For mean field "local_reparameterization" (the default: outputs of linear layers are
            drawn for each row; flipout where positions share weights), "flipout", "reparameterization" (weights are
            drawn) or "sticking_the_landing"; for the others "sticking_the_landing" (the default: no noise is left in
            the gradient where q is the posterior) or "reparameterization". "ivon" takes "reparameterization" alone.
        kl_weight: w. Below 1 the posterior is colder.
        warmup: over so many epochs, fewer than all, the KL term's weight rises to w.
        initial_sd: the first sds: a number or one for each random weight; ``None`` for those of variational layers,
            and else for 0.05 (with "ivon", for a curvature of 0.5 a row); or "laplace" for those of Laplace's
            approximation at the given weights, cut at one sd beyond which the network does not bear them: what a
            trained network starts from, to be done in fewer epochs.
        validation: data that are not trained on. The q whose predictions are best for them is returned.
        patience: so many epochs without a better validation end the training.
        checkpoint: as in `fit_map`: a run that goes on comes to the same numbers as one that was never stopped.
        generator: seeds the order of the rows and all draws; torch's own random states stay as they were.
        progress: whether a bar is drawn, for runs of over two seconds.

    Returns:
        A Gaussian posterior that predicts by sampling weights unless it is told to linearize. ``.model`` is the network
        at the means; ``.trace`` has lists of "loss", "nll", "kl" and "elbo" (an estimate from the draws of the epoch),
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
    if patience is not None and validation is None:
        raise InputError(f"patience: expected validation= to go with it, got patience={patience!r} alone.")
    if epochs == 0 and (validation is not None or checkpoint is not None):
        raise UnsupportedError(
            "epochs: expected at least 1 to go with validation= or checkpoint=, got 0. Leave them out."
        )
    check_groups(prior_precision, share_prior)
    options = VariationalOptions.checked(
        family=family, rank=rank, estimator=estimator, samples=samples, kl_weight=kl_weight, warmup=warmup,
        initial_sd=initial_sd, groups=share_prior, epochs=epochs, lr=lr, optimizer=optimizer, schedule=schedule,
        batch_size=batch_size, progress=progress,
    )  # fmt: skip
    return fit(
        options, model, data, likelihood, weights, prior_precision, generator,
        held=Held(validation, patience, checkpoint),
    )  # fmt: skip
