"""What the methods cannot go below: floating-point operations, counted from their formulas, and bytes of their answers.

A product of matrices (N×a)(a×b) is 2Nab operations, a symmetric one AᵀA half of that, the eigenvalues of a symmetric
matrix 4n³/3 (its tridiagonal form: Golub & Van Loan, "Matrix Computations", 8.3) and a Cholesky factor n³/3. Leading
terms alone are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

EPOCHS = 5
TRIDIAGONAL = 4.0 / 3.0


@dataclass(frozen=True)
class Shape:
    """A network of two hidden layers and the rows that it reads.

    Attributes:
        rows: N.
        features: of its inputs.
        width: of its hidden layers.
        classes: C.
    """

    rows: int
    features: int
    width: int
    classes: int

    @property
    def layers(self) -> list[tuple[int, int]]:
        """Inputs, the constant among them, and outputs of each layer."""
        return [(self.features + 1, self.width), (self.width + 1, self.width), (self.width + 1, self.classes)]

    @property
    def weights(self) -> int:
        """P."""
        return sum(into * out for into, out in self.layers)


@dataclass(frozen=True)
class Floor:
    """What a method takes at least.

    Attributes:
        flops: floating-point operations.
        memory: bytes.
    """

    flops: float
    memory: float


def floor_of(method: str, rows: int, layers: Sequence[tuple[int, int]], *, rank: int = 0) -> Floor:
    """The floor of a method on a dense network.

    Args:
        method: its name in `bench.scaling`.
        rows: N.
        layers: inputs, the constant among them, and outputs of each layer.
        rank: of "low rank".
    """
    n, c, p = rows, layers[-1][1], sum(into * out for into, out in layers)
    (_, *middle), (head_in, head_out) = layers[:-1], layers[-1]
    forward, epoch = 2.0 * n * p, 6.0 * n * p
    # C columns of a root of Λ = diag(p) − ppᵀ, diagonal plus rank one, pass the head at its size, and each other layer
    # above the first C times.
    cotangents = forward + 2.0 * n * head_in * head_out + 2.0 * n * c * sum(into * out for into, out in middle)
    inputs = sum(n * into**2 for into, _ in layers)
    outputs = sum(n * c * out**2 for _, out in layers[:-1]) + n * c**2  # the head's is ΣΛ itself
    eigen = TRIDIAGONAL * sum(into**3 + out**3 for into, out in layers)
    factors = 8.0 * sum(into**2 + out**2 for into, out in layers)
    narrow = 8.0 * sum(into**2 + out for into, out in layers)
    counted = {
        "forward + backward": Floor(epoch, 4.0 * p),
        "diagonal": Floor(cotangents + forward + epoch, 8.0 * p),
        "Kronecker": Floor(cotangents + inputs + outputs + eigen + epoch, factors),
        "Kronecker, diagonal outputs": Floor(
            cotangents + inputs + TRIDIAGONAL * sum(into**3 for into, _ in layers) + epoch, narrow
        ),
        "last layer": Floor(
            forward + n * head_in**2 + n * head_out**2 + TRIDIAGONAL * (head_in**3 + head_out**3) + forward
            + 4.0 * n * head_in * head_out,
            8.0 * (head_in**2 + head_out**2),
        ),
        # A product with the GGN is a forward, a tangent's and a backward pass.
        "low rank": Floor(rank * 8.0 * n * p + epoch, 8.0 * p * rank),
        "full": Floor(cotangents + n * c * float(p) ** 2 + float(p) ** 3 / 3.0 + epoch, 8.0 * float(p) ** 2),
        # Means and standard deviations take a product each, forwards and twice backwards; Adam holds two numbers each.
        "VI, 5 epochs": Floor(EPOCHS * 2.0 * epoch, 4.0 * 6.0 * p),
        "last layer's prediction": Floor(forward + 2.0 * n * (head_in**2 + head_out**2), 8.0 * n * c),
        "prediction": Floor(cotangents + 2.0 * inputs + 2.0 * outputs + forward, 8.0 * n * c**2),
    }  # fmt: skip
    return counted[method]
