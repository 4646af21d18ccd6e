"""Leave-one-out prediction of the training rows by Pareto-smoothed importance sampling."""

from __future__ import annotations

from functools import singledispatch
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bayescope.density.psis import PARETO_K_LIMIT, pareto_smoothed
from bayescope.errors import UndefinedQuantityError
from bayescope.posterior import DrawsPosterior, Posterior

DRAWS = 4000
EVEN = 0.9  # the share of effective draws above which weights differ too little for k̂ to matter
BLOCK_NUMBERS = 2**20  # log likelihoods held at a time


class Loo(NamedTuple):
    """The expected log predictive density of left-out rows.

    Attributes:
        elpd: Σ_n log p(y_n∣D_{−n}) over the training rows, in nats.
        warnings: how many rows have a Pareto k̂ above 0.7.
        harmless: how many of these weigh all draws nearly alike, with over 90 % of them effective: the tail of their
            weights is long and holds next to nothing, as in rows that are predicted with near certainty.
    """

    elpd: float
    warnings: int
    harmless: int


def psis_loo(posterior: Posterior, inputs: np.ndarray, y: np.ndarray, *, seed: int) -> Loo:
    """PSIS-LOO of a posterior q over the weights (Vehtari, Gelman & Gabry 2017, equations 3 and 10).

    Row n is left out by the importance weights 1/p(y_n∣θ_s) of draws θ_s ~ q, Pareto-smoothed; so an approximate q
    is judged by its own leave-one-out predictions, and k̂ tells where a single row moves q too far for that.

    Args:
        posterior: with its model and likelihood.
        inputs: of the posterior's model, shape (N, D).
        y: classes of the rows it was fitted to.
        seed: of the draws from a posterior that is not draws itself.

    Raises:
        UndefinedQuantityError: if the posterior is of a bare log density, which has no rows.
    """
    model, likelihood = posterior.function, posterior.likelihood
    if model is None or likelihood is None:
        raise UndefinedQuantityError("psis_loo: expected a posterior with a model, got one of a log density.")
    theta, efficiency = _draws(posterior, seed)
    x, targets = model.inputs(inputs), likelihood.targets(y, model.outputs)
    elpd, unreliable, harmless = 0.0, 0, 0
    for rows in torch.arange(len(y)).split(max(BLOCK_NUMBERS // theta.shape[0], 1)):
        log_lik = likelihood.log_prob(model.forward(x[rows], theta), targets[rows]).mT
        log_weights, k_hat = pareto_smoothed(-log_lik, efficiency=efficiency)
        elpd += float(torch.logsumexp(log_weights + log_lik, 1).sum())
        warned = k_hat > PARETO_K_LIMIT
        even = (2.0 * log_weights).exp().sum(1) * log_lik.shape[1] < 1.0 / EVEN  # 1/Σ w² effective draws
        unreliable += int(warned.sum())
        harmless += int((warned & even).sum())
    return Loo(elpd, unreliable, harmless)


@singledispatch
def _draws(posterior: Posterior, seed: int) -> tuple[Tensor, float]:
    """Draws (S, P), and their efficiency relative to independent ones."""
    return posterior.sample(DRAWS, generator=seed), 1.0


@_draws.register
def _(posterior: DrawsPosterior, seed: int) -> tuple[Tensor, float]:  # noqa: ARG001
    draws = posterior.flat
    effective = posterior.effective_draws
    return draws, 1.0 if effective is None else min(float(effective.mean()) / draws.shape[0], 1.0)
