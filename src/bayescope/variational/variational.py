"""Variational inference for networks: the public function."""

from __future__ import annotations

from typing import Any, Unpack

from torch import nn

from bayescope.keywords import takes
from bayescope.likelihoods import Likelihood, resolve
from bayescope.posterior import GaussianPosterior
from bayescope.process_state import outside_inference_mode
from bayescope.processes import collective
from bayescope.training.checkpoint import resumable
from bayescope.training.options import TrainingOptions
from bayescope.variational.fit import fit
from bayescope.variational.options import VariationalKeywords, VariationalOptions, check_groups


@outside_inference_mode
@resumable
@collective
@takes(VariationalKeywords, TrainingOptions, optimizer="adam", warmup=0)
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
            ``warmup``, fewer epochs than all, the KL term's weight rises to w over so many epochs.

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
    check_groups(prior_precision, share_prior)
    chosen = VariationalOptions.of(
        options, family=family, rank=rank, estimator=estimator, samples=samples, kl_weight=kl_weight,
        initial_sd=initial_sd, groups=share_prior,
    )  # fmt: skip
    likelihood = resolve(likelihood)
    return fit(chosen, model, data, likelihood, weights, prior_precision)
