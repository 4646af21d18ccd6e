"""The Kronecker-factored precision: one factor over the outputs of a weight matrix, one over its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import cast, final

import torch
from torch import Tensor

from bayescope.errors import InputError, NotPositiveDefiniteError
from bayescope.precision.block import BlockPrecision, BlockSum
from bayescope.precision.corrected import EigenvalueCorrectedPrecision
from bayescope.precision.dense import DenseSum
from bayescope.precision.diagonal import SquareSum
from bayescope.precision.precision import Precision, found_together, refuse_not_finite
from bayescope.precision.product import KroneckerProduct
from bayescope.precision.ridge import Ridge
from bayescope.precision.spectrum import Spectral, Spectrum
from bayescope.precision.structure import (
    COPIES,
    FLOAT64,
    FULL_BLOCK,
    WITH_PRIOR,
    Bytes,
    PartInfo,
    Structure,
    StructureOptions,
    StructureReading,
    Sum,
    TapeSum,
)
from bayescope.storage import stored
from bayescope.tape import HeadTape, LookupTape, OuterTape, StreamedTape, Tape
from bayescope.tape.gram import mirrored

# The share of a factor's largest eigenvalue that a sum of products in float32 resolves.
RESOLVED = 1e-5
# The share of a factor's largest entry below which an entry is next to denormal numbers.
VANISHING = 1e-280
# A Kronecker factor is held with its eigenvectors.
EIGENVECTORS = 2
# LAPACK works in two more matrices while it finds eigenvectors.
WORKSPACE = 2
# Vectors of P numbers while A⁻¹ g is found by blocks: see `_bytes`.
ANSWERS = 5


@stored("kronecker_factors", kept=("_output_eigen", "_input_eigen"))
@final
@dataclass(frozen=True, eq=False)
class KroneckerFactors:
    """The sums that a Kronecker curvature is made of: K = output ⊗ input / normaliser, per group.

    Eigenvectors are found once, and shared by every precision that differs in its prior alone.

    Attributes:
        input: Σ a aᵀ, shape (G, D, D), or its diagonal, shape (G, D), where there is nothing else.
        output: Σ g gᵀ, shape (G, O, O), or its diagonal, shape (G, O).
        normaliser: the number of positions in the sums, a float64 scalar.
        name: what the matrix is, for messages.
        known_output: the eigenvalues and eigenvectors of the output factor, where another process has found them.
        known_input: those of the input factor.
    """

    input: Tensor
    output: Tensor
    normaliser: Tensor
    name: str
    known_output: tuple[Tensor, Tensor | None] | None = None
    known_input: tuple[Tensor, Tensor | None] | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Groups, outputs and inputs of the layer, (G, O, D)."""
        return self.input.shape[0], self.output.shape[1], self.input.shape[1]

    @property
    def scale(self) -> Tensor:
        """1 / normaliser; 0 where nothing has been counted, since there is no curvature without data."""
        return torch.where(self.normaliser > 0, self.normaliser.reciprocal(), torch.zeros_like(self.normaliser))

    @cached_property
    def basis(self) -> KroneckerProduct:
        """The eigenvectors Q of K, orthonormal; the identity along a diagonal factor."""
        return KroneckerProduct(self._output_eigen[1], self._input_eigen[1], self.shape)

    @cached_property
    def eigenvalues(self) -> Tensor:
        """Those of K, shape (G, O, D). Rounding leaves some of a singular factor's just below 0: those are 0."""
        outputs, inputs = self._output_eigen[0] * self.scale, self._input_eigen[0]
        return outputs[:, :, None] * inputs[:, None]

    def _check_stored(self) -> None:
        KroneckerPrecision(self.input, self.output, self.normaliser, name=self.name)

    def rescaled(self, output: Tensor, inputs: Tensor) -> KroneckerFactors:
        """S K S for S = output ⊗ inputs, the diagonals of shape (G, O) and (G, D)."""
        return KroneckerFactors(
            _congruent(self.input, inputs), _congruent(self.output, output), self.normaliser, self.name
        )

    @cached_property
    def _output_eigen(self) -> tuple[Tensor, Tensor | None]:
        return self.known_output or _eigen(self.output, self.name)

    @cached_property
    def _input_eigen(self) -> tuple[Tensor, Tensor | None]:
        return self.known_input or _eigen(self.input, self.name)


@stored(
    "kronecker_precision",
    parts={"_factors": KroneckerFactors, "_factor": Tensor | float, "_ridge": Ridge},
    kept=("_spectrum",),
)
@final
class KroneckerPrecision(Spectral):
    """A = output ⊗ input / normaliser + diag(d), per group, in float64 (Martens and Grosse 2015, section 3).

    On weights in canonical order (G, O, D), row-major: A[(g,o,d), (g,o′,d′)] = output_goo′ input_gdd′ / normaliser + d.
    Sums of such curvatures over shards of the data add the factors and the normalisers, as one pass over all would.

    The diagonal may be one number per group: λ_o λ_d / normaliser + δ in the eigenbasis of K, which is found once. Or
    it may be an outer product u ⊗ w: A = D^{½} (D^{−½} K D^{−½} + I) D^{½}, and D^{−½} K D^{−½} has two factors again.

    Args:
        input: Σ a aᵀ, shape (G, D, D); or its diagonal, shape (G, D), where a is one-hot.
        output: Σ g gᵀ, shape (G, O, O); or its diagonal, shape (G, O).
        normaliser: the number of positions that were summed, N T.
        name: what the matrix is, for messages.

    Raises:
        InputError: if the shapes do not fit.
    """

    def __init__(
        self, input: Tensor, output: Tensor, normaliser: Tensor | float, *, name: str = "the precision"
    ) -> None:
        count = torch.as_tensor(normaliser, dtype=torch.float64, device=input.device)
        if input.shape[0] != output.shape[0] or not _factor_like(input) or not _factor_like(output) or count.ndim:
            raise InputError(
                f"{name}: expected factors of shapes (G, D, D) or (G, D), and (G, O, O) or (G, O), and one number, got "
                f"{tuple(input.shape)}, {tuple(output.shape)} and {tuple(count.shape)}."
            )
        self._factors = KroneckerFactors(_symmetric(input), _symmetric(output), count, name)
        self._factor: Tensor | float = 1.0  # of the Kronecker product
        self._ridge = Ridge.zero(name, self._factors.shape, input.device, separable=True)

    @property
    def factors(self) -> KroneckerFactors:
        """The sums that it is made of, with their eigenvectors."""
        return self._factors

    @property
    def basis(self) -> KroneckerProduct:
        """The eigenvectors of output ⊗ input, in which `corrected` takes its eigenvalues."""
        return self._factors.basis

    @property
    def eigenvalues(self) -> Tensor:
        """Those of output ⊗ input / normaliser in `basis`, shape (G, O, D), without what was added to the diagonal."""
        return self._factor * self._factors.eigenvalues

    def corrected(self, eigenvalues: Tensor) -> EigenvalueCorrectedPrecision:
        """The precision with this one's eigenvectors and other eigenvalues, shape (P,); of the data alone."""
        return EigenvalueCorrectedPrecision(self.basis, eigenvalues, name=self._factors.name)

    def add_diagonal(self, diagonal: Tensor | float) -> KroneckerPrecision:
        """A + diag(d) for d a scalar, or of shape (P,) and constant or an outer product over each group.

        Raises:
            UnsupportedError: if the diagonal that results has neither form.
        """
        return self._with(self._ridge.plus(diagonal), self._factor)

    def scaled(self, factor: Tensor | float) -> KroneckerPrecision:
        """c A for a positive number c, in the same eigenbasis."""
        return self._with(self._ridge.scaled(factor), self._factor * factor)

    def signature(self) -> str:
        """The structure and the shapes that two summands have in common."""
        return f"kfac: input {tuple(self._factors.input.shape)}, output {tuple(self._factors.output.shape)}"

    def _plus(self, other: KroneckerPrecision) -> KroneckerPrecision:
        """The sums of both factors, as one pass over all data has them."""
        mine, theirs = self._factors, other._factors
        outputs = mine.output * self._factor + theirs.output * other._factor
        joined = KroneckerPrecision(
            mine.input + theirs.input, outputs, mine.normaliser + theirs.normaliser, name=mine.name
        )
        return joined.add_diagonal(self._ridge.given() + other._ridge.given())

    def with_eigenvectors(
        self, output: tuple[Tensor, Tensor | None], inputs: tuple[Tensor, Tensor | None]
    ) -> KroneckerPrecision:
        """The precision with known eigenvalues and eigenvectors of its two factors."""
        precision = self._with(self._ridge, self._factor)
        precision._factors = replace(self._factors, known_output=output, known_input=inputs)
        return precision

    def _with(self, ridge: Ridge, factor: Tensor | float) -> KroneckerPrecision:
        precision = KroneckerPrecision.__new__(KroneckerPrecision)
        precision._factors = self._factors  # the eigenvectors go along
        precision._ridge, precision._factor = ridge, factor
        return precision

    @cached_property
    def _spectrum(self) -> Spectrum:
        factors, ridge = self._factors, self._ridge
        if ridge.output is None or ridge.input is None:
            values, none = self.eigenvalues + ridge.values(), factors.normaliser.new_zeros(())
            return Spectrum(factors.basis, values, none, ridge.residual).checked(factors.name)
        smallest = torch.minimum(ridge.output.min(), ridge.input.min())
        if not smallest > 0:
            raise NotPositiveDefiniteError(
                f"{factors.name}: expected a positive diagonal beside Kronecker factors, got {float(smallest):.6g}."
            )
        output, inputs = ridge.output.rsqrt(), ridge.input.rsqrt()
        whitened = factors.rescaled(output, inputs)
        basis, values = whitened.basis.scaled(output, inputs), self._factor * whitened.eigenvalues + 1.0
        log_scale = self.shape[2] * ridge.output.log().sum() + self.shape[1] * ridge.input.log().sum()
        return Spectrum(basis, values, log_scale, ridge.residual).checked(factors.name)


@final
class KroneckerSum:
    """(Σ_nkt g_nkt g_nktᵀ) ⊗ (Σ_nt a_nt a_ntᵀ)/(N T), per group of a weight matrix in row-major order.

    The sum runs over all N T positions, of every use of the weight. Sharing "expand" takes each position for a row of
    its own, "reduce" treats ā = T⁻¹ Σ_t a and ḡ = Σ_t g as one (Eschenhagen et al. 2023, eq. 19 and 22).

    Args:
        sharing: "expand" or "reduce".
        diagonal: whether the diagonal of Σ g gᵀ is all that is summed: for a layer of very many outputs.
    """

    def __init__(self, sharing: str, *, diagonal: bool = False) -> None:
        self._reduce, self._diagonal = sharing == "reduce", diagonal
        self._inputs, self._outputs = Sum(), Sum()
        self._count = torch.zeros((), dtype=torch.float64)

    def add(self, tape: Tape, fresh: bool, weights: Tensor | None = None) -> None:
        """Adds both factors, that of the inputs once for its rows."""
        factored = cast(OuterTape | StreamedTape | LookupTape | HeadTape, tape)
        if self._reduce:
            factored = factored.reduced()
        if fresh and weights is None:
            self._inputs.add_by(factored.input_gram)
            self._count += factored.rows * factored.positions
        elif fresh:
            assert weights is not None
            each = weights.repeat_interleave(factored.rows // max(1, len(weights)))  # positions may be rows
            self._inputs.add_by(partial(factored.input_gram, weights=each))
            self._count += float(each.sum()) * factored.positions
        if self._diagonal:
            self._outputs.add(factored.output_squares())
        else:
            self._outputs.add_by(factored.output_gram)

    def totals(self) -> list[Tensor]:
        return [self._inputs.total(), self._outputs.total(), self._count]

    def finish(self) -> KroneckerPrecision:
        """Both factors, and N T."""
        inputs, outputs = (
            mirrored(total) if total.ndim == 3 else total  # a diagonal, as the counts of tokens are
            for total in (self._inputs.taken(), self._outputs.taken())
        )
        return KroneckerPrecision(inputs, outputs, self._count)


def share_eigenvectors(precisions: Sequence[KroneckerPrecision]) -> list[KroneckerPrecision]:
    """The precisions with the eigenvectors of all their factors, where several processes share the search for them.

    Args:
        precisions: of the data, summed over the processes.

    Raises:
        NotPositiveDefiniteError: on all processes, if a factor has entries that are not finite.
    """
    factors = [factor for each in precisions for factor in (each.factors.output, each.factors.input)]
    costs = [len(each) * each.shape[1] ** 3 if each.ndim == 3 else 0 for each in factors]
    found = found_together(costs, lambda place: _eigen(factors[place], precisions[0].factors.name))
    if found is None:
        return list(precisions)
    pairs = zip(factors, found, strict=True)
    moved = [(values.to(f), None if vectors is None else vectors.to(f)) for f, (values, vectors) in pairs]
    each_two = zip(precisions, moved[::2], moved[1::2], strict=True)
    return [each.with_eigenvectors(output, inputs) for each, output, inputs in each_two]


def _factor_like(factor: Tensor) -> bool:
    return factor.ndim == 2 or (factor.ndim == 3 and factor.shape[1] == factor.shape[2])


def _symmetric(factor: Tensor) -> Tensor:
    factor = factor.to(torch.float64)
    return (factor + factor.mT).mul_(0.5) if factor.ndim == 3 else factor


def _congruent(factor: Tensor, scale: Tensor) -> Tensor:
    """S F S for S = diag(scale), per group."""
    return scale[:, :, None] * factor * scale[:, None] if factor.ndim == 3 else scale.square() * factor


def _eigen(factor: Tensor, name: str) -> tuple[Tensor, Tensor | None]:
    refuse_not_finite(name, factor)
    if factor.ndim == 2:
        return factor, None
    # LAPACK does not converge on some matrices that reach down to numbers without all digits, below 1e-308, as the
    # inputs of a layer do that was switched off. They are far below the rounding of the largest entry.
    smallest = VANISHING * factor.abs().amax((-2, -1), keepdim=True)
    values, vectors = torch.linalg.eigh(torch.where(factor.abs() < smallest, 0.0, factor))
    # A Gram matrix has no negative eigenvalue. One that is summed in float32 is known up to this share of the largest:
    # below 0 by less is 0. The other factor would blow it up beyond a small prior precision.
    rounding = RESOLVED * values[:, -1:]
    return torch.where((values < 0) & (values >= -rounding), 0.0, values), vectors


def unfactored(part: PartInfo) -> str:
    """The structure of a part that has no Kronecker factors."""
    return "full" if part.dim <= FULL_BLOCK else "diagonal"


def read_factors(reading: StructureReading) -> BlockPrecision:
    """One Kronecker product per part, with its eigenvectors where several processes have shared their search."""

    def summed(part: PartInfo, *, diagonal: bool) -> TapeSum[Precision]:
        if part.shape is not None:
            return KroneckerSum(reading.sharing, diagonal=diagonal)
        return DenseSum(part.dim, reading.device) if unfactored(part) == "full" else SquareSum()

    pairs = zip(reading.parts, reading.diagonal_outputs, strict=True)
    sums = BlockSum([summed(part, diagonal=diagonal) for part, diagonal in pairs], reading.indices)
    blocks = reading.read(sums, moments=True)
    known = iter(share_eigenvectors([b for b in blocks if isinstance(b, KroneckerPrecision)]))
    blocks = [next(known) if isinstance(block, KroneckerPrecision) else block for block in blocks]
    return BlockPrecision(blocks, reading.indices, reading.dim)


def factor_numbers(asked: StructureOptions) -> list[list[int]]:
    """For each part the numbers of each Kronecker factor that is a matrix."""
    found = []
    for part, diagonal in zip(asked.parts, asked.diagonal_outputs, strict=True):
        groups, outputs, inputs = part.shape or (0, 0, 0)
        widths = [] if diagonal else [outputs]
        found.append([groups * width**2 for width in (widths if part.kind == "embedding" else [*widths, inputs])])
    return found


def _bytes(asked: StructureOptions, item: int, *, corrected: bool = False) -> Bytes:
    factors = factor_numbers(asked)
    numbers, widest = sum(map(sum, factors)), max((each for part in factors for each in part), default=0)
    unlike = [part for part in asked.parts if part.shape is None]
    dense = sum(FLOAT64 * part.dim**2 for part in unlike if unfactored(part) == "full")
    sums = dense + sum((FLOAT64 + item) * part.dim for part in unlike if unfactored(part) == "diagonal")
    if corrected:
        # The second pass: factors and eigenvectors of the first, the latter in the dtype of the tapes too, and moments.
        # Then the factors are gone, and the eigenvectors have stayed in the dtype of the tapes as well.
        sums += (EIGENVECTORS * FLOAT64 + item) * numbers + (FLOAT64 + item) * asked.dim
        eigenvectors = (FLOAT64 + item) * numbers
    else:
        sums += (FLOAT64 + item) * numbers
        eigenvectors = EIGENVECTORS * FLOAT64 * numbers
    return Bytes(
        sums,
        FLOAT64 * max(map(sum, factors)),
        eigenvectors + COPIES * dense + WITH_PRIOR * FLOAT64 * asked.dim,
        # A⁻¹ g by blocks: the positions of the weights in the blocks, one answer per block, their concatenation, and
        # their flat order. Or LAPACK's workspace for the widest factor.
        FLOAT64 * max(ANSWERS * asked.dim, WORKSPACE * widest),
    )


KFAC = Structure("kfac", read_factors, _bytes, ("sharing", "output_factor"), moments=True, rotates=True)


def _read_corrected(reading: StructureReading) -> BlockPrecision:
    """The eigenvectors of the first pass's factors, and the moments of a second pass in them."""
    blocks = list(read_factors(reading).blocks)
    bases = {place: block.basis for place, block in enumerate(blocks) if isinstance(block, KroneckerPrecision)}
    sums = [SquareSum(basis.rotate, partial(EigenvalueCorrectedPrecision, basis)) for basis in bases.values()]
    second = reading.read(BlockSum(sums, [reading.indices[place] for place in bases]))
    for place, block in zip(bases, second, strict=True):
        blocks[place] = block
    return BlockPrecision(blocks, reading.indices, reading.dim)


EKFAC = Structure(
    "ekfac",
    _read_corrected,
    partial(_bytes, corrected=True),
    ("sharing", "output_factor"),
    rotates=True,
)
