"""Outputs of a model as rows, and what is refused of them and of points."""

from __future__ import annotations

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError


def in_rows(f: Tensor, leading: int) -> tuple[Tensor, tuple[int, ...]]:
    """Outputs (..., N, *positions, C) with each position as a row of its own, (..., M, C), and (N, *positions).

    Raises:
        InputError: if the square of an output is not finite.
    """
    check_sizes("outputs", f, leading)
    return f.flatten(leading, -2), tuple(f.shape[leading:-1])


def check_sizes(what: str, values: Tensor, leading: int = 0, limit: float = checks.FARTHEST) -> None:
    """Refuses NaN and values so large that their squares, or those of their roots, have no finite sum.

    Args:
        what: they are, for the message.
        values: shape (..., N, ...).
        leading: how many axes stand before that of the N rows.
        limit: of their sizes.

    Raises:
        InputError: if one is NaN or beyond the limit; the message has the rows.
    """
    values = values.detach()
    if values.numel() == 0 or (values.amin() > -limit and values.amax() < limit):  # which NaN is not
        return
    good = (values.abs() < limit).movedim(leading, 0).flatten(1).all(1)
    rows = torch.nonzero(~good).flatten().tolist()
    raise InputError(
        f"x: expected inputs with finite {what}, and these below {limit:g} in size, got others in {len(rows)} of "
        f"{len(good)} rows, first in row {rows[0]}. Check the inputs and their unit, and the weights of the model."
    )


def as_points(theta: ArrayLike, dim: int) -> Tensor:
    """Points θ in float64, shape (..., P); a tensor keeps its graph, so that a density can be differentiated.

    Raises:
        InputError: if the last dimension is not P = ``dim``.
    """
    points = theta.to(torch.float64) if isinstance(theta, Tensor) else checks.float64("theta", theta)
    if points.ndim == 0 or points.shape[-1] != dim:
        raise InputError(f"theta: expected shape (..., {dim}), got {tuple(points.shape)}.")
    return points
