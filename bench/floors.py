"""What the methods cannot go below: floating-point operations, counted from their formulas, and bytes of their answers.

A product of matrices (N×a)(a×b) is 2Nab operations, a symmetric one AᵀA half of that, the eigenvalues of a symmetric
matrix 4n³/3 (its tridiagonal form: Golub & Van Loan, "Matrix Computations", 8.3) and a Cholesky factor n³/3. Leading
terms alone are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

EPOCHS = 5
TRIDIAGONAL = 4.0 / 3.0


class Layer(NamedTuple):
    """A linear layer, or a convolution.

    Attributes:
        into: entries of what meets a weight, the constant among them: of a convolution those of a patch.
        out: its outputs, of a convolution its channels.
        positions: at how many places of a row it stands.
    """

    into: int
    out: int
    positions: int = 1

    @property
    def products(self) -> int:
        """Multiplications of a row's forward pass."""
        return self.positions * self.into * self.out


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
    def layers(self) -> list[Layer]:
        """From the inputs to the classes."""
        return [
            Layer(self.features + 1, self.width), Layer(self.width + 1, self.width),
            Layer(self.width + 1, self.classes),
        ]  # fmt: skip

    @property
    def weights(self) -> int:
        """P."""
        return sum(each.into * each.out for each in self.layers)


@dataclass(frozen=True)
class Floor:
    """What a method takes at least.

    Attributes:
        flops: floating-point operations.
        memory: bytes.
    """

    flops: float
    memory: float


def floor_of(method: str, rows: int, layers: Sequence[Layer], *, rank: int = 0, labels: int | None = None) -> Floor:
    """The floor of a method on a network of one layer after another, the last one dense.

    Args:
        method: its name in `bench.scaling`, or another of those below.
        rows: N.
        layers: from the inputs to the outputs.
        rank: of "low rank".
        labels: how many columns the root of each row's Λ has: as many as outputs, one for a sampled label.
    """
    last, middle = layers[-1], layers[1:-1]
    n, c, p = rows, labels or last.out, sum(each.into * each.out for each in layers)
    products = sum(each.products for each in layers)
    forward, epoch = 2.0 * n * products, 6.0 * n * products
    # An epoch has its forward pass, which the curvature reads too.
    # C columns of a root of Λ = diag(p) − ppᵀ, diagonal plus rank one, pass the last layer at its size, and each other
    # layer above the first C times.
    cotangents = 2.0 * n * last.products + 2.0 * n * c * sum(each.products for each in middle)
    inputs = sum(n * each.positions * each.into**2 for each in layers)
    outputs = sum(n * c * each.positions * each.out**2 for each in layers[:-1]) + n * c**2  # the last's is ΣΛ itself
    # One product gives the squares of all classes where a weight meets a row once; else each class has its own sum.
    squares = sum(2.0 * n * each.products * (c if each.positions > 1 else 1) for each in layers)
    eigen = TRIDIAGONAL * sum(each.into**3 + each.out**3 for each in layers)
    factors = 8.0 * sum(each.into**2 + each.out**2 for each in layers)
    narrow = 8.0 * sum(each.into**2 + each.out for each in layers)
    kronecker = cotangents + inputs + outputs + eigen
    counted = {
        "forward + backward": Floor(epoch, 4.0 * p),
        "diagonal": Floor(cotangents + squares + epoch, 8.0 * p),
        "Kronecker": Floor(kronecker + epoch, factors),
        "Kronecker, diagonal outputs": Floor(
            cotangents + inputs + TRIDIAGONAL * sum(each.into**3 for each in layers) + epoch, narrow
        ),
        # Both sides of each row are turned into the factors' eigenvectors, and their squares summed.
        "eigenvalue-corrected": Floor(kronecker + 2.0 * inputs + 2.0 * outputs + squares + epoch, factors + 8.0 * p),
        "last layer": Floor(
            forward + n * last.into**2 + n * last.out**2 + TRIDIAGONAL * (last.into**3 + last.out**3)
            + 4.0 * n * last.into * last.out,
            8.0 * (last.into**2 + last.out**2),
        ),
        "last layer, a fit": Floor(
            forward + n * last.into**2 + n * last.out**2 + TRIDIAGONAL * (last.into**3 + last.out**3),
            8.0 * (last.into**2 + last.out**2),
        ),
        "last layer, a diagonal fit": Floor(forward + 2.0 * n * last.products, 8.0 * last.into * last.out),
        # A product with the GGN is a forward, a tangent's and a backward pass.
        "low rank": Floor(rank * 8.0 * n * p + epoch, 8.0 * p * rank),
        "full": Floor(cotangents + n * c * float(p) ** 2 + float(p) ** 3 / 3.0 + epoch, 8.0 * float(p) ** 2),
        # Means and standard deviations take a product each, forwards and twice backwards; Adam holds two numbers each.
        "VI, 5 epochs": Floor(EPOCHS * 2.0 * epoch, 4.0 * 6.0 * p),
        # Inputs are turned into the eigenvectors, outputs are turned back, or summed out with the inputs.
        "last layer's prediction": Floor(
            forward + 2.0 * n * (last.into**2 + min(last.out**2, last.into * last.out)), 8.0 * n * c
        ),
        "prediction": Floor(forward + cotangents + 2.0 * inputs + 2.0 * outputs, 8.0 * n * c**2),
        "diagonal prediction": Floor(forward + cotangents + squares, 8.0 * n * c**2),
        "forward": Floor(forward, 4.0 * n * last.out),
    }  # fmt: skip
    return counted[method]
