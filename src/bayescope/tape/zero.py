"""The tape of weights that the outputs do not depend on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

from torch import Tensor

from bayescope.tape.tape import row_blocks


@final
@dataclass(frozen=True)
class ZeroTape:
    """U = 0, a sum over no positions (T = 0). No answer takes more memory than its own size, and U takes none.

    Attributes:
        rows: N, the number of inputs read.
        outputs: K, the number of cotangents per input.
        shape: (G, O, D), as in a `FactoredTape`.
        like: a tensor of the dtype and on the device of the answers.
        one_hot: whether a is one-hot where there are positions, so that its Gram matrix is a diagonal.
    """

    rows: int
    outputs: int
    shape: tuple[int, int, int]
    like: Tensor
    one_hot: bool = False

    @property
    def dim(self) -> int:
        """P = G O D."""
        return math.prod(self.shape)

    @property
    def positions(self) -> int:
        return 0

    def blocks(self) -> Iterator[slice]:
        """Ranges of rows whose Jacobians would take at most `BLOCK_BYTES` once they are copied."""
        return row_blocks(self.rows, 8 * self.outputs * self.dim)

    def jacobian(self, rows: slice) -> Tensor:
        """U for the given rows, shape (n, K, P): one zero, expanded."""
        return self.like.new_zeros(()).expand(len(range(self.rows)[rows]), self.outputs, self.dim)

    def squares(self) -> Tensor:
        return self.like.new_zeros(self.dim)

    def gram(self, scale: Tensor) -> Tensor:
        """Σ_p u_nkp scale_p u_nlp, shape (N, K, K)."""
        return self.like.new_zeros(self.rows, self.outputs, self.outputs)

    def norms(self, scale: Tensor) -> Tensor:
        """Σ_p u_nkp² scale_p, shape (N, K)."""
        return self.like.new_zeros(self.rows, self.outputs)

    def multiply(self, v: Tensor) -> Tensor:
        """U v, shape (N, K, R), for v of shape (P, R)."""
        return self.like.new_zeros(self.rows, self.outputs, v.shape[1])

    def transpose_multiply(self, w: Tensor) -> Tensor:
        """Uᵀ w, shape (P, R), for w of shape (N, K, R)."""
        return self.like.new_zeros(self.dim, w.shape[2])

    def part(self, indices: Tensor) -> ZeroTape:
        """The tape of some of the weights, whose matrix is one column."""
        return replace(self, shape=(1, len(indices), 1), one_hot=False)

    def input_gram(self, onto: Tensor | None = None) -> Tensor:
        """Σ_nt a_nt a_ntᵀ, shape (G, D, D), or its diagonal (G, D) where a is one-hot; ``onto`` as it is."""
        groups, _, inputs = self.shape
        return self._zeros(onto, (groups, inputs) if self.one_hot else (groups, inputs, inputs))

    def output_gram(self, onto: Tensor | None = None) -> Tensor:
        """Σ_nkt g_nkt g_nktᵀ, shape (G, O, O); ``onto`` as it is."""
        groups, outputs, _ = self.shape
        return self._zeros(onto, (groups, outputs, outputs))

    def output_squares(self) -> Tensor:
        """Σ_nkt g_nkto², shape (G, O)."""
        return self.like.new_zeros(self.shape[:2])

    def rotated(self, left: Tensor | None, right: Tensor | None) -> ZeroTape:
        return self

    def reduced(self) -> ZeroTape:
        """The same zeros, and no position."""
        return self

    def _zeros(self, onto: Tensor | None, shape: tuple[int, ...]) -> Tensor:
        return self.like.new_zeros(shape) if onto is None else onto
