"""Where a variational training starts from: the means are the network's own weights, and these are the sds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bayescope import checks
from bayescope.curvature import fit_curvature
from bayescope.errors import InputError, OptionError
from bayescope.likelihoods import Likelihood
from bayescope.network.weights import Weights
from bayescope.priors import Prior

LAPLACE = "laplace"
# Some twentieths of the weights that networks are initialised with, so that the first passes are close to the means'.
FIRST_SD = 0.05


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


def layer_sds(own: Mapping[str, Tensor], weights: Weights) -> Tensor:
    """The sds that variational layers had, and `FIRST_SD` for what is random beside them, shape (P,), float64."""
    shapes = dict(zip(weights.names, weights.shapes, strict=True))
    first = {name: own.get(name, torch.full(shape, FIRST_SD)).to(torch.float64) for name, shape in shapes.items()}
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
