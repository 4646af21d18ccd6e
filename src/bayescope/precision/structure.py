"""What a structure of a curvature is: its name, the way it is read from data, and the memory it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, final

import torch
from torch import Tensor

from bayescope.precision.accumulator import Summing
from bayescope.precision.precision import Precision

FLOAT64 = 8
# A matrix is held three times: as the sum over the data, with the prior added, and as a factor of that.
COPIES = 3
# A diagonal, or the eigenvalues of a Kronecker product, is held without and with the prior.
WITH_PRIOR = 2
# A part that has no Kronecker factors gets a full block up to this many weights, and a diagonal beyond.
FULL_BLOCK = 512


class PartSizes(Protocol):
    """A set of weights that is read together."""

    @property
    def kind(self) -> str:
        """How the part is read, such as "linear" or "embedding"."""

    @property
    def dim(self) -> int:
        """The number of weights."""

    @property
    def shape(self) -> tuple[int, int, int] | None:
        """(G, O, D) of a weight matrix with Kronecker factors, or ``None``."""


@final
@dataclass(frozen=True)
class StructureReading:
    """The data as a structure reads them, and the options of the fit.

    Attributes:
        parts: the parts of the network.
        indices: the flat positions of each part's weights.
        blocks: the flat positions of the weights of each block.
        dim: P, the number of weights.
        device: that sums are on.
        rank: the number of eigenvalues of a low rank.
        cutoff: the share of the largest eigenvalue below which eigenvalues are left out.
        sharing: how positions that share weights are treated: "expand" or "reduce".
        diagonal_outputs: for each part, whether the diagonal stands for its output factor.
        double: whether passes are in float64.
        read: fills a sum in one pass over the data of all processes; the second argument says whether second moments
            of the tapes are all that the sum needs.
        draw: R ↦ random vectors (P, R), standard normal and equal on all processes.
        hessian_blocks: the blocks of the Hessian over groups of weights.
        hessian_diagonal: the diagonal of the Hessian, shape (P,).
    """

    parts: Sequence[PartSizes]
    indices: Sequence[Tensor]
    blocks: Sequence[Tensor]
    dim: int
    device: torch.device
    rank: int | None
    cutoff: float | None
    sharing: str
    diagonal_outputs: Sequence[bool]
    double: bool
    read: Callable[[Summing, bool], None]
    draw: Callable[[int], Tensor]
    hessian_blocks: Callable[[Sequence[Tensor]], list[Tensor]]
    hessian_diagonal: Callable[[], Tensor]


@final
@dataclass(frozen=True)
class Sizes:
    """The sizes that the memory of a structure is counted from.

    Attributes:
        parts: the parts of the network.
        diagonal_outputs: for each part, whether the diagonal stands for its output factor.
        dim: P.
        blocks: the number of weights of each block.
        rank: of a low rank; ``None`` where a cutoff is given.
        itemsize: the bytes of a number in the passes.
    """

    parts: Sequence[PartSizes]
    diagonal_outputs: Sequence[bool]
    dim: int
    blocks: Sequence[int]
    rank: int | None
    itemsize: int


class Bytes(NamedTuple):
    """The bytes that a structure takes.

    Attributes:
        sums: while the data are read.
        finishing: besides the sums, while they become a precision.
        curvature: the precision of the data, that with a prior, and the factors or eigenvectors.
        posterior: besides the curvature, while Laplace's posterior is made.
    """

    sums: int
    finishing: int
    curvature: int
    posterior: int


@final
@dataclass(frozen=True)
class Structure:
    """A structure that a curvature can have.

    Attributes:
        name: as a caller of `fit_curvature` gives it.
        fit: reads the curvature of a sum of products uᵀu.
        bytes: counts its memory.
        options: the names of the options that it takes, of those that not every structure takes.
        hessian: reads the Hessian, where the structure can hold one.
        writes: what the rows of a tape are written out to while they are summed: U itself ("jacobian"), the activations
            and cotangents in a basis ("rotated"), those of several positions side by side ("products"), or what their
            squares are made of ("squares").
        moments: whether it is read from second moments of the tapes alone.
        rotates: whether predictions are computed in an eigenbasis of the factors.
    """

    name: str
    fit: Callable[[StructureReading], Precision]
    bytes: Callable[[Sizes], Bytes]
    options: tuple[str, ...] = ()
    hessian: Callable[[StructureReading], Precision] | None = None
    writes: Literal["jacobian", "rotated", "products", "squares"] = "products"
    moments: bool = False
    rotates: bool = False
