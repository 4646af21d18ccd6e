"""What a tape is: the Jacobian of a model on one batch, held in whatever form its reading left it in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

# A block of Jacobian rows is kept near this size: large enough for the matrix product to dominate, small
# enough to stay far from the memory of the machine.
BLOCK_BYTES = 32 * 2**20

# What is written and read again at once is kept near this size, which the cache of a CPU holds; and on a GPU near the
# other, since it takes long sums to occupy one.
CACHE_BYTES = 4 * 2**20
DEVICE_BYTES = 256 * 2**20


def row_blocks(rows: int, bytes_per_row: int, limit: int | None = None) -> Iterator[slice]:
    """Consecutive ranges of ``rows`` rows, of like length, that take at most ``limit`` bytes each or are single rows.

    Args:
        rows: how many rows there are.
        bytes_per_row: what one of them takes.
        limit: `BLOCK_BYTES` where it is ``None``.
    """
    most = max(1, (BLOCK_BYTES if limit is None else limit) // max(1, bytes_per_row))
    size = -(-rows // max(1, -(-rows // most)))
    for start in range(0, rows, max(1, size)):
        yield slice(start, min(start + size, rows))


def pieces(rows: int, bytes_per_row: int, device: torch.device) -> list[slice]:
    """Ranges of rows to work through: on a CPU of what its cache holds, on a GPU of what fills it.

    Where there are no rows there is one empty range: what is summed or concatenated over it has a dtype and a shape.
    """
    limit = min(BLOCK_BYTES, CACHE_BYTES) if device.type == "cpu" else DEVICE_BYTES
    return list(row_blocks(rows, bytes_per_row, limit)) or [slice(0, 0)]


@runtime_checkable
class Tape(Protocol):
    """The rows u_nk = ∂(s_nkᵀ f_n)/∂θ of N inputs and K cotangents s_nk, in P weights: U of shape (N, K, P).

    With the identity for cotangents (K = C), U is the Jacobian J of the outputs. With a root of the likelihood's
    curvature, Λ_n = S_n S_nᵀ and s_nk its columns, Σ_n U_nᵀ U_n = Σ_n J_nᵀ Λ_n J_n is the generalised Gauss-Newton
    matrix.

    U itself is never built unless `jacobian` is called: each form answers the other questions from what it holds.
    Answers have the dtype of the reading (float32 for networks in half precision).
    """

    @property
    def rows(self) -> int:
        """N, the number of inputs read."""

    @property
    def outputs(self) -> int:
        """K, the number of cotangents per input."""

    @property
    def dim(self) -> int:
        """P, the number of weights."""

    def blocks(self) -> Iterator[slice]:
        """Consecutive ranges of rows whose (n, K, P) takes at most `BLOCK_BYTES` (a single row may take more)."""

    def jacobian(self, rows: slice) -> Tensor:
        """U for the given rows, shape (n, K, P)."""

    def squares(self) -> Tensor:
        """Σ_nk u_nkp², shape (P,): the diagonal of Σ_n U_nᵀ U_n."""

    def gram(self, scale: Tensor) -> Tensor:
        """Σ_p u_nkp scale_p u_nlp, shape (N, K, K), for a scale of shape (P,)."""

    def norms(self, scale: Tensor) -> Tensor:
        """Σ_p u_nkp² scale_p, shape (N, K): the diagonal of `gram`, without the rest of it."""

    def multiply(self, v: Tensor) -> Tensor:
        """U v, shape (N, K, R), for v of shape (P, R)."""

    def transpose_multiply(self, w: Tensor) -> Tensor:
        """Uᵀ w = Σ_nk u_nk w_nk, shape (P, R), for w of shape (N, K, R)."""

    def part(self, indices: Tensor) -> Tape:
        """The tape of some of the weights, in the order given by their positions in this tape's flat order."""


@runtime_checkable
class FactoredTape(Tape, Protocol):
    """A tape whose rows are sums of outer products: U_nk = Σ_t g_nkt ⊗ a_nt, what a Kronecker structure can treat.

    The P weights are a matrix per group, (G, O, D) in row-major order: g has O entries, a has D. T positions share the
    weights (tokens, pixels, the calls of a module used several times). A joined bias is one more column of a, of ones.
    """

    @property
    def shape(self) -> tuple[int, int, int]:
        """(G, O, D), with G O D = P."""

    @property
    def positions(self) -> int:
        """T, the number of positions per input that share the weights."""

    def input_gram(self, onto: Tensor | None = None) -> Tensor:
        """Σ_nt a_nt a_ntᵀ, shape (G, D, D); where a is one-hot, its diagonal alone, shape (G, D).

        Args:
            onto: an earlier one, to which this one is added in place. Of matrices, only the upper triangles of it and
                of what is returned count: `bayescope.tape.gram.mirrored` gives the rest in the end.
        """

    def output_gram(self, onto: Tensor | None = None) -> Tensor:
        """Σ_nkt g_nkt g_nktᵀ, shape (G, O, O); ``onto`` as for `input_gram`."""

    def output_squares(self) -> Tensor:
        """Σ_nkt g_nkto², shape (G, O): the diagonal of `output_gram`, without the rest of it."""

    def rotated(self, left: Tensor | None, right: Tensor | None) -> Tape:
        """The tape of leftᵀ U_nk right, for U_nk as a matrix (O, D) per group: g ↦ leftᵀ g, a ↦ rightᵀ a.

        Each of left (G, O, O) or (G, O) and right (G, D, D) or (G, D) is a matrix, the diagonal of one, or ``None`` for
        the identity. In flat order U ↦ U (left ⊗ right).
        """

    def reduced(self) -> FactoredTape:
        """One position per input, ḡ = Σ_t g_nkt and ā = T⁻¹ Σ_t a_nt: the "reduce" treatment of shared weights."""
