"""Kronecker products of small matrices, one pair a group, applied to flat vectors without being built."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from bayescope.errors import InputError, UnsupportedError
from bayescope.storage import stored
from bayescope.tape import FactoredTape, Tape


@stored("kronecker_product")
@final
@dataclass(frozen=True, eq=False)
class KroneckerProduct:
    """B = blockdiag_g(L_g ⊗ R_g) on flat vectors in canonical order: (G, O, D) row-major.

    Attributes:
        left: L, shape (G, O, O), the diagonal of one, shape (G, O), or ``None`` for the identity.
        right: R, shape (G, D, D), the diagonal of one, shape (G, D), or ``None`` for the identity.
        shape: (G, O, D).
    """

    left: Tensor | None
    right: Tensor | None
    shape: tuple[int, int, int]
    _casts: dict[torch.dtype, tuple[Tensor | None, Tensor | None]] = field(default_factory=dict, init=False, repr=False)

    @property
    def dim(self) -> int:
        """P = G O D."""
        groups, outputs, inputs = self.shape
        return groups * outputs * inputs

    def _check_stored(self) -> None:
        groups, outputs, inputs = self.shape
        for factor, size in ((self.left, outputs), (self.right, inputs)):
            if factor is not None and tuple(factor.shape) not in {(groups, size), (groups, size, size)}:
                raise InputError(f"product: expected factors for {self.shape}, got {tuple(factor.shape)}.")

    @cached_property
    def mT(self) -> KroneckerProduct:
        """Bᵀ = Lᵀ ⊗ Rᵀ."""
        return KroneckerProduct(_transposed(self.left), _transposed(self.right), self.shape)

    def apply(self, v: Tensor) -> Tensor:
        """B v for v of shape (P,) or (P, K): L V Rᵀ for each column as a matrix (O, D)."""
        x = v.reshape(*self.shape, -1)
        return _along_inputs(self.right, _along_outputs(self.left, x)).reshape(v.shape)

    def squares_apply(self, v: Tensor) -> Tensor:
        """(B ∘ B) v for v of shape (P,): the diagonal of B diag(v) Bᵀ."""
        return KroneckerProduct(_squared(self.left), _squared(self.right), self.shape).apply(v)

    def scaled(self, output: Tensor, inputs: Tensor) -> KroneckerProduct:
        """S B for S = output ⊗ inputs, the diagonals of shape (G, O) and (G, D)."""
        return KroneckerProduct(_row_scaled(self.left, output), _row_scaled(self.right, inputs), self.shape)

    def rotate(self, tape: Tape) -> Tape:
        """The tape of U B, computed in the tape's dtype.

        Raises:
            UnsupportedError: if the tape's rows are not sums of outer products of this shape.
        """
        if not isinstance(tape, FactoredTape) or tape.shape != self.shape:
            got = f"shape {tape.shape}" if isinstance(tape, FactoredTape) else f"a {type(tape).__name__}"
            raise UnsupportedError(
                f"tape: expected outer products of shape (groups, outputs, inputs) = {self.shape}, got {got}. "
                "Read the inputs with the network and the weights that the precision was fitted with."
            )
        return tape.rotated(*self._cast(tape.jacobian(slice(0, 0)).dtype))

    def to_dense(self) -> Tensor:
        """The product B as a matrix, shape (P, P)."""
        groups, outputs, inputs = self.shape
        left, right = (
            _filled(self.left, groups, outputs, self._device),
            _filled(self.right, groups, inputs, self._device),
        )
        pairs = zip(left.contiguous(), right.contiguous(), strict=True)
        return torch.block_diag(*[torch.kron(a, b) for a, b in pairs])

    @property
    def _device(self) -> torch.device | None:
        return next((factor.device for factor in (self.left, self.right) if factor is not None), None)

    def _cast(self, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
        # A basis outlives many batches, so that it is cast once for all of them. What requires a gradient is not kept:
        # its graph is gone after a backward pass.
        if dtype not in self._casts:
            cast = (_to(self.left, dtype), _to(self.right, dtype))
            if any(factor is not None and factor.requires_grad for factor in cast):
                return cast
            self._casts[dtype] = cast
        return self._casts[dtype]


def _along_outputs(factor: Tensor | None, x: Tensor) -> Tensor:
    if factor is None:
        return x
    if factor.ndim == 2:
        return factor[:, :, None, None] * x
    return (factor @ x.flatten(2)).reshape(x.shape)


def _along_inputs(factor: Tensor | None, x: Tensor) -> Tensor:
    if factor is None:
        return x
    if factor.ndim == 2:
        return factor[:, None, :, None] * x
    return torch.einsum("gde,goek->godk", factor, x)


def _transposed(factor: Tensor | None) -> Tensor | None:
    return factor if factor is None or factor.ndim == 2 else factor.mT


def _row_scaled(factor: Tensor | None, scale: Tensor) -> Tensor:
    if factor is None:
        return scale
    return scale * factor if factor.ndim == 2 else scale[:, :, None] * factor


def _squared(factor: Tensor | None) -> Tensor | None:
    return None if factor is None else factor.square()


def _to(factor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if factor is None else factor.to(dtype)


def _filled(factor: Tensor | None, groups: int, width: int, device: torch.device | None) -> Tensor:
    if factor is None:
        return torch.eye(width, dtype=torch.float64, device=device).expand(groups, -1, -1)
    return torch.diag_embed(factor) if factor.ndim == 2 else factor
