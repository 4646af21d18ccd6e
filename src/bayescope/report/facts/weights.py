"""The weights of a linear model as a reader may compare them: means and intervals, classes against their mean."""

from __future__ import annotations

from functools import singledispatch
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bayescope.models import LinearModel
from bayescope.posterior import DrawsPosterior, Posterior
from bayescope.report.facts.bootstrap import TAILS

NORMAL_95 = 1.959963984540054


class Weights(NamedTuple):
    """Of D inputs and, last, the intercept (0 where there is none), for C outputs: arrays of shape (C, D + 1)."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def weights_of(posterior: Posterior, model: LinearModel) -> Weights:
    """Means and central 95 % intervals. A softmax sees differences alone: the mean over its outputs is taken out.

    Args:
        posterior: of the model's flat weights.
        model: linear.
    """
    return _read(posterior, model)


def by_input(model: LinearModel, theta: Tensor) -> Tensor:
    """Flat weights (..., P) as (..., C, D + 1), the intercept last, less their mean over several outputs."""
    weights, bias = model.unflat(theta)
    constant = weights.new_zeros(weights.shape[:-1]) if bias is None else bias
    together = torch.cat([weights, constant[..., None]], -1)
    return together - together.mean(-2, keepdim=True) if model.outputs > 1 else together


@singledispatch
def _read(posterior: Posterior, model: LinearModel) -> Weights:
    mean = by_input(model, posterior.mean).numpy()
    # The map to what is told is linear: its rows are what it makes of the unit vectors.
    told = by_input(model, torch.eye(model.dim, dtype=torch.float64)).flatten(1)
    variance = torch.einsum("pm,pq,qm->m", told, posterior.covariance, told)
    half = NORMAL_95 * variance.clamp(min=0.0).sqrt().numpy().reshape(mean.shape)
    return Weights(mean, mean - half, mean + half)


@_read.register
def _(posterior: DrawsPosterior, model: LinearModel) -> Weights:
    draws = by_input(model, posterior.flat).numpy()
    low, high = np.quantile(draws, TAILS, axis=0)
    return Weights(draws.mean(0), low, high)
