"""What a structure of a curvature is: its name, the way it is read from data, and the memory it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeVar, final

import torch
from torch import Tensor

from bayescope.precision.precision import Precision
from bayescope.storage import stored
from bayescope.tape import Tape

FLOAT64 = 8
# A matrix is held three times: as the sum over the data, with the prior added, and as a factor of that.
COPIES = 3
# A diagonal, or the eigenvalues of a Kronecker product, is held without and with the prior.
WITH_PRIOR = 2
# A part that has no Kronecker factors gets a full block up to this many weights, and a diagonal beyond.
FULL_BLOCK = 512

Answer = TypeVar("Answer")

# This many terms are summed in the dtype of the passes before the sum goes to float64: for a factor of 785² the
# conversion of each term would take a third of the time of a batch.
STAGED = 8


Answer_co = TypeVar("Answer_co", covariant=True)


class TapeSum(Protocol[Answer_co]):
    """A sum over tapes that becomes a precision, the precisions of blocks, or a product with the curvature."""

    def add(self, tape: Tape, fresh: bool, weights: Tensor | None = None) -> None:
        """Adds a tape.

        Args:
            tape: the rows u_nk of one batch and some of its cotangents.
            fresh: whether it is the first tape of its rows: what depends on the inputs alone is added once.
            weights: what each row counts, shape (N,), which the cotangents have already; ``None`` for once.
        """

    def totals(self) -> list[Tensor]:
        """The tensors of the sum, which several processes add up in place."""

    def finish(self) -> Answer_co:
        """The answer, without any prior."""


@final
class Sum:
    """A float64 sum of tensors of one shape, of which a few at a time are summed in their own dtype."""

    def __init__(self) -> None:
        self._total: Tensor | None = None
        self._staged: Tensor | None = None
        self._count = 0

    def add(self, term: Tensor) -> None:
        """Adds a term, in place where there is a sum already."""
        self.add_by(lambda onto: term if onto is None else onto.add_(term))

    def add_by(self, added: Callable[[Tensor | None], Tensor]) -> None:
        """Adds a term that is added in place, without being there by itself.

        Args:
            added: adds the term to a tensor, or returns it where there is none: a tape's `input_gram`, for one.
        """
        # The first term may be a tape's own tensor, which is not ours to add to.
        self._staged = added(None).clone() if self._staged is None else added(self._staged)
        self._count += 1
        if self._count == STAGED:
            self.total()

    def total(self) -> Tensor:
        """The sum so far, of at least one term, in float64."""
        assert self._staged is not None
        if self._total is None:
            self._total = torch.zeros_like(self._staged, dtype=torch.float64)
        if self._count:
            self._total += self._staged
            self._staged.zero_()
            self._count = 0
        return self._total

    def taken(self) -> Tensor:
        """The same, which is the caller's from then on: nothing of the sum is kept here."""
        total, self._total, self._staged = self.total(), None, None
        return total


@stored("part_info")
@final
@dataclass(frozen=True)
class PartInfo:
    """What is known of a part of a network's random weights.

    Attributes:
        name: the module that owns the weights ("layers.0"), or the parameter where that does not tell parts apart.
        parameters: the parameters that the weights belong to.
        kind: how they are read: "linear", "convolution", "embedding", "elementwise", "mixed", "derived",
            "per-row" or "unused".
        dim: the number of weights.
        shape: (G, O, D), the joined bias counted in D, where a Kronecker structure can treat the part; else ``None``.
        reason: why the part is read row by row, where it is.
    """

    name: str
    parameters: tuple[str, ...]
    kind: str
    dim: int
    shape: tuple[int, int, int] | None
    reason: str | None = None

    @property
    def factored(self) -> bool:
        """Whether the part's tape is a `FactoredTape`."""
        return self.shape is not None


@dataclass(frozen=True)
class StructureOptions:
    """The weights that a structure is over, and the options of the fit.

    Attributes:
        parts: the parts of the network.
        indices: the flat positions of each part's weights.
        blocks: the flat positions of the weights of each block.
        diagonal_outputs: for each part, whether the diagonal stands for its output factor.
        rank: the number of eigenvalues of a low rank; ``None`` where a cutoff is given.
        cutoff: the share of the largest eigenvalue below which eigenvalues are left out.
        sharing: how positions that share weights are treated: "expand" or "reduce".
        double: whether passes are in float64.
    """

    parts: Sequence[PartInfo]
    indices: Sequence[Tensor]
    blocks: Sequence[Tensor]
    diagonal_outputs: Sequence[bool]
    rank: int | None
    cutoff: float | None
    sharing: str
    double: bool

    @property
    def dim(self) -> int:
        """P, the number of weights."""
        return sum(map(len, self.indices))

    @property
    def device(self) -> torch.device:
        """The device of the sums."""
        return self.indices[0].device


@final
@dataclass(frozen=True)
class StructureReading(StructureOptions):
    """The data as a structure reads them.

    Attributes:
        fill: adds up a sum in one pass over the data of all processes; the second argument says whether second moments
            of the tapes are all that the sum needs.
        draw: R ↦ random vectors (P, R), standard normal and equal on all processes.
        hessian_blocks: the blocks of the Hessian over groups of weights.
        hessian_diagonal: the diagonal of the Hessian, shape (P,).
    """

    fill: Callable[[TapeSum[object], bool], None]
    draw: Callable[[int], Tensor]
    hessian_blocks: Callable[[Sequence[Tensor]], list[Tensor]]
    hessian_diagonal: Callable[[], Tensor]

    def read(self, sums: TapeSum[Answer], *, moments: bool = False) -> Answer:
        """The answer of a sum after one pass over the data."""
        self.fill(sums, moments)
        return sums.finish()


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
        bytes: counts its memory, for numbers of some bytes in the passes.
        options: the names of the options that it takes, of those that not every structure takes.
        hessian: reads the Hessian, where the structure can hold one.
        writes: what the rows of a tape are written out to while they are summed: U itself ("jacobian"), the activations
            and cotangents ("products"), or what their squares are made of ("squares").
        moments: whether it is read from second moments of the tapes alone.
        rotates: whether predictions are computed in an eigenbasis of the factors.
    """

    name: str
    fit: Callable[[StructureReading], Precision]
    bytes: Callable[[StructureOptions, int], Bytes]
    options: tuple[str, ...] = ()
    hessian: Callable[[StructureReading], Precision] | None = None
    writes: Literal["jacobian", "products", "squares"] = "products"
    moments: bool = False
    rotates: bool = False
