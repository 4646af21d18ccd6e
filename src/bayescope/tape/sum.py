"""The tape of weights that are used in unlike ways."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import final

from torch import Tensor

from bayescope.tape.computed import ComputedTape
from bayescope.tape.selected import Selectable
from bayescope.tape.tape import Tape


@final
@dataclass(frozen=True)
class SumTape(Selectable):
    """U = Σ_i U_i for weights that enter a network in unlike ways, such as an embedding tied to the last layer.

    What is linear in U is summed over the tapes. What is quadratic has cross terms between them and goes through blocks
    of U itself; uses of one kind are better joined along their positions, as `OuterTape.join` does.

    Attributes:
        tapes: the U_i, at least one, of the same rows, cotangents and weights in the same order.
    """

    tapes: tuple[Tape, ...]

    @property
    def rows(self) -> int:
        """N, the number of inputs read."""
        return self.tapes[0].rows

    @property
    def outputs(self) -> int:
        """K, the number of cotangents per input."""
        return self.tapes[0].outputs

    @property
    def dim(self) -> int:
        """P, the number of weights."""
        return self.tapes[0].dim

    def jacobian(self, rows: slice) -> Tensor:
        """U for the given rows, shape (n, K, P)."""
        return reduce(add, (tape.jacobian(rows) for tape in self.tapes))

    def squares(self) -> Tensor:
        return self._computed.squares()

    def gram(self, scale: Tensor) -> Tensor:
        """Σ_p u_nkp scale_p u_nlp, shape (N, K, K)."""
        return self._computed.gram(scale)

    def norms(self, scale: Tensor) -> Tensor:
        """Σ_p u_nkp² scale_p, shape (N, K)."""
        return self._computed.norms(scale)

    def multiply(self, v: Tensor) -> Tensor:
        """U v, shape (N, K, R), for v of shape (P, R)."""
        return reduce(add, (tape.multiply(v) for tape in self.tapes))

    def transpose_multiply(self, w: Tensor) -> Tensor:
        """Uᵀ w, shape (P, R), for w of shape (N, K, R)."""
        return reduce(add, (tape.transpose_multiply(w) for tape in self.tapes))

    @property
    def _computed(self) -> ComputedTape:
        return ComputedTape(self.rows, self.outputs, self.dim, lambda rows: (self.jacobian(rows),))
