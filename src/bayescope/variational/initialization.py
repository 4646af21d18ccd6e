"""Where a variational training starts from: the means are the network's own weights, and these are the sds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bayescope import checks
from bayescope.curvature import fit_curvature
from bayescope.errors import InputError, OptionError
from bayescope.likelihoods import Likelihood
from bayescope.network.batches import row_totals
from bayescope.network.inputs import take_rows
from bayescope.network.model import NetworkModel
from bayescope.network.weights import Weights
from bayescope.precision import DiagonalPrecision
from bayescope.priors import Prior
from bayescope.reparameterization import gaussian_kl
from bayescope.training.objective import log_likelihood
from bayescope.training.training import Training

LAPLACE = "laplace"
# Some twentieths of the weights that networks are initialised with, so that the first passes are close to the means'.
FIRST_SD = 0.05
# What Laplace's sds are cut to, and the rows and draws of the weights on which the bounds are compared.
CAPS = (math.inf, 1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625)
ROWS, DRAWS = 256, 8
# Nats a weight by which two such bounds have to differ to be unlike.
NOISE = 0.05


def checked(initial_sd: Any) -> Any:
    """A positive number, a positive array, "laplace" or ``None``.

    Raises:
        OptionError: for another name.
        InputError: if a number is not positive.
    """
    if initial_sd is None:
        return None
    if isinstance(initial_sd, str):
        if initial_sd != LAPLACE:
            raise OptionError.unknown("initial_sd", initial_sd, [LAPLACE])
        return initial_sd
    return checks.positive("initial_sd", initial_sd)


def given_sds(initial_sd: Tensor | None, weights: Weights) -> Tensor:
    """The first sds as they are given, shape (P,), float64.

    Raises:
        InputError: if there is neither one number nor one for each random weight.
    """
    value = torch.as_tensor(FIRST_SD if initial_sd is None else initial_sd, dtype=torch.float64)
    if value.ndim and value.shape != (weights.dim,):
        raise InputError(
            f"initial_sd: expected a number or one for each of {weights.dim} random weights, got shape "
            f"{tuple(value.shape)}."
        )
    return value.expand(weights.dim).clone()


def layer_sds(local: Mapping[str, Tensor], weights: Weights) -> Tensor:
    """The sds that variational layers had, and `FIRST_SD` for what is random beside them, shape (P,), float64."""
    shapes = dict(zip(weights.names, weights.shapes, strict=True))
    first = {name: local.get(name, torch.full(shape, FIRST_SD)).to(torch.float64) for name, shape in shapes.items()}
    flat = weights.flatten(first)
    if (flat <= 0).any():
        raise InputError(
            "weights: expected weights with an sd above 0, got fixed ones. Leave them out, or give initial_sd."
        )
    return flat


def laplace_sds(
    module: nn.Module, weights: Weights, data: Any, likelihood: Likelihood, prior: Prior, kl_weight: float
) -> Tensor:
    """1/√(H_pp/w + P₀_pp), shape (P,): Laplace's approximation with independent weights, at the present ones.

    Args:
        module: the network, at weights that it has been trained to.
        weights: which are random.
        data: as a training takes them.
        likelihood: p(y∣f).
        prior: p(θ).
        kl_weight: w.
    """
    curvature = fit_curvature(module, data, likelihood=likelihood, weights=weights, structure="diagonal")
    diagonal = curvature.precision.diagonal() / kl_weight
    return (diagonal + prior.diagonal(weights.dim).to(diagonal.device)).rsqrt()


def capped(sds: Tensor, training: Training, likelihood: Likelihood, prior: Prior, kl_weight: float) -> Tensor:
    """Laplace's sds, none above c, for the largest c of `CAPS` whose bound on some rows is as high as any.

    The curvature is that of the network's tangent: where it tells nothing of a weight its sd is the prior's, and the
    network itself, unlike its tangent, does not bear thousands of weights being moved so far at once.

    Args:
        sds: shape (P,).
        training: the module, its weights and the rows.
        likelihood: p(y∣f).
        prior: p(θ), with a diagonal precision.
        kl_weight: w.
    """
    function = NetworkModel(training.module, training.weights, training.rows.outputs)
    first = next(iter(training.rows.in_order(ROWS)), None)  # none on a process without rows
    precision, centre = prior.diagonal(training.weights.dim).to(sds), prior.centre(training.weights.dim).to(sds)

    def fit(cap: float) -> float:
        if first is None:
            return 0.0
        inputs, targets = take_rows(first[0], slice(0, ROWS)), first[1][:ROWS]
        q = DiagonalPrecision(sds.clamp(max=cap).square().reciprocal())
        f = function.sampled(inputs, function.flat, q, DRAWS, torch.Generator().manual_seed(0))
        return sum(float(log_likelihood(likelihood, of_draw, targets)) for of_draw in f) / DRAWS

    local = 0 if first is None else min(ROWS, len(first[1]))
    rows, *fits = row_totals(local, *map(fit, CAPS))
    share = training.rows.rows / rows
    divergences = [gaussian_kl(function.flat, sds.clamp(max=cap), precision, centre) for cap in CAPS]
    bounds = [share * fit - kl_weight * float(kl) for fit, kl in zip(fits, divergences, strict=True)]
    enough = max(bounds) - NOISE * len(sds)
    return sds.clamp(max=next(cap for cap, found in zip(CAPS, bounds, strict=True) if found >= enough))
