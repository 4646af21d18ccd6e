"""Draws of weights from a Gaussian, a block at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from bayescope.precision.precision import Precision
from bayescope.tape import block_bytes

# What the draws take that are there together.
DRAW_BYTES = 64 * 2**20


def weight_draws(mean: Tensor, precision: Precision, n: int, generator: torch.Generator) -> Iterator[Tensor]:
    """n draws of N(mean, precision⁻¹) in blocks (S, P) that stay within `DRAW_BYTES`; which ones changes nothing.

    Args:
        mean: shape (P,), float64.
        precision: over the P weights.
        n: how many in all.
        generator: on the CPU, so that the draws are the same on every device.
    """
    dim, together = precision.dim, max(1, block_bytes(DRAW_BYTES) // (8 * precision.dim))
    for first in range(0, n, together):
        noise = torch.randn(min(together, n - first), dim, dtype=torch.float64, generator=generator)
        yield mean + precision.sqrt_solve(noise.to(mean.device).mT).mT
