"""Where chains start."""

from __future__ import annotations

import torch
from torch import Tensor

from bayescope.errors import InputError
from bayescope.log_density import LogDensity, curvature_scale

# How often a start that has left the support is moved half-way back.
_HALVINGS = 30


@torch.no_grad()
def chain_starts(density: LogDensity, start: Tensor, chains: int, generator: torch.Generator) -> Tensor:
    """One starting point a chain, shape (chains, P).

    R-hat can see that chains disagree only if they began apart, and nutpie refuses to start where the gradient is
    zero: one start for all is spread by up to one conditional sd a coordinate, ∣∂² log p̃/∂u_i²∣^{−½}.

    Args:
        density: over ℝᴾ, unconstrained.
        start: shape (chains, P), taken as it is; or (P,), to be spread.
        chains: how many.
        generator: the spread.

    Raises:
        InputError: if there is another number of starts, or the log density at one of them is not finite.
    """
    starts = start.to(torch.float64)
    if starts.ndim == 1:
        centre = starts
        offset = 2.0 * torch.rand(chains, centre.shape[0], dtype=torch.float64, generator=generator) - 1.0
        starts = centre + curvature_scale(density.log_prob, centre) * offset
        for _ in range(_HALVINGS):
            outside = ~torch.isfinite(density.log_prob(starts))
            if not outside.any():
                break
            starts = torch.where(outside[:, None], 0.5 * (starts + centre), starts)
    if starts.shape[0] != chains:
        raise InputError(f"start: expected one point or one for each of the {chains} chains, got {starts.shape[0]}.")
    values = density.log_prob(starts)
    if not torch.isfinite(values).all():
        raise InputError(f"start: expected a finite log density, got {values.tolist()}. Start inside the support.")
    return starts
