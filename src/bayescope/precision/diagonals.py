"""What structures share: products with a diagonal, and what is refused of entries that are not finite or positive."""

from __future__ import annotations

import torch
from torch import Tensor

from bayescope.errors import NotPositiveDefiniteError


def diagonal_times(diagonal: Tensor, v: Tensor) -> Tensor:
    """diag(d) v for d of shape (P,) or (1,), and v of shape (P,) or (P, K)."""
    return diagonal * v if v.ndim == 1 else diagonal[:, None] * v


def refuse_not_finite(name: str, *tensors: Tensor) -> None:
    """Checks the entries of a matrix, or of what it is made of.

    Raises:
        NotPositiveDefiniteError: if one is NaN or infinite.
    """
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
        raise NotPositiveDefiniteError(f"{name}: expected finite entries, got NaN or infinity.")


def not_positive(name: str, diagonal: Tensor, expected: str, advice: str = "") -> NotPositiveDefiniteError:
    """The error for a diagonal (P,) that is too small, with its smallest entry and the direction of that weight.

    Args:
        name: what the matrix is.
        diagonal: its entries.
        expected: what they have to be, for the message.
        advice: what to do, as a sentence.
    """
    entries = diagonal.detach()
    index = int(entries.argmin())
    smallest, direction = float(entries[index]), torch.zeros_like(entries)
    direction[index] = 1.0
    message = f"{name}: expected {expected}, got {smallest:.6g} at index {index}. {advice}".rstrip()
    return NotPositiveDefiniteError(message, smallest, direction)
