"""The joint distribution of f at several inputs: what functions, contrasts and acquisition functions are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayescope.memory import require_memory
from bayescope.models import Model
from bayescope.precision import Precision

# J, A⁻¹ Jᵀ, and what one of them is made from.
JACOBIANS = 3


class JointLatent(NamedTuple):
    """The first two moments of f, jointly over N inputs, in float64.

    Attributes:
        mean: shape (N, *positions, C).
        covariance: shape (M, M), for all M numbers of the mean in row-major order: N C of them without positions. Of B
            blocks of inputs, each joint by itself, shape (B, M/B, M/B).
    """

    mean: Tensor
    covariance: Tensor


def linearized(function: Model, x: Any, location: Tensor, precision: Precision, blocks: int) -> JointLatent:
    """The Gaussian of a linearised model: the mean f(x, θ̂) and the covariance J A⁻¹ Jᵀ across the inputs of a block.

    Args:
        function: f(x, θ).
        x: inputs in the form that the function takes.
        location: θ̂, shape (P,).
        precision: A.
        blocks: B, how many equal runs of inputs are joint by themselves.

    Raises:
        MemoryBudgetError: if the Jacobian of all inputs does not fit.
    """
    mean = function.forward(x, location)
    require_memory(
        8 * mean.numel() * (JACOBIANS * function.dim + mean.numel() // max(1, blocks)),
        f"the Jacobian of {mean.numel():,} outputs in {function.dim:,} weights, and the covariance of these outputs,",
        "Take fewer inputs at once, or draws of the functions: sample_functions.",
        device=mean.device,
    )
    jacobian = function.jacobian(x, location).flatten(0, -2)
    solved = precision.solve(jacobian.mT).mT
    covariance = jacobian.unflatten(0, (blocks, -1)) @ solved.unflatten(0, (blocks, -1)).mT
    return JointLatent(mean, 0.5 * (covariance + covariance.mT))


def of_draws(f: Tensor, blocks: int) -> JointLatent:
    """The average of S equally weighted functions (S, N, *positions, C), and their sample covariance; of one, 0."""
    mean = f.mean(0)
    centred = (f - mean).flatten(1).unflatten(1, (blocks, -1)).movedim(0, 1)
    return JointLatent(mean, centred.mT @ centred / max(1, len(f) - 1))


def mixed(weights: Tensor, parts: Sequence[JointLatent], blocks: int) -> JointLatent:
    """The moments of a mixture: Σ_k w_k m_k and Σ_k w_k (C_k + (m_k − m)(m_k − m)ᵀ)."""
    means = torch.stack([part.mean for part in parts])
    mean = torch.tensordot(weights, means, dims=1)
    apart = (means - mean).flatten(1).unflatten(1, (blocks, -1)).movedim(0, 1)
    within = torch.tensordot(weights, torch.stack([part.covariance for part in parts]), dims=1)
    return JointLatent(mean, within + (weights * apart.mT) @ apart)
