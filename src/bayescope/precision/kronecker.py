"""The Kronecker-factored precision: one factor over the outputs of a weight matrix, one over its inputs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from bayescope.errors import InputError, NotPositiveDefiniteError
from bayescope.precision.corrected import EigenvalueCorrectedPrecision
from bayescope.precision.diagonals import refuse_not_finite
from bayescope.precision.precision import Precision
from bayescope.precision.product import KroneckerProduct
from bayescope.precision.ridge import Ridge
from bayescope.precision.spectrum import Spectrum
from bayescope.precision.state import State
from bayescope.storage import stored
from bayescope.tape import Tape

# The share of a factor's largest eigenvalue that a sum of products in float32 resolves.
RESOLVED = 1e-5
# The share of a factor's largest entry below which an entry is next to denormal numbers.
VANISHING = 1e-280


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
    """

    input: Tensor
    output: Tensor
    normaliser: Tensor
    name: str

    @property
    def shape(self) -> tuple[int, int, int]:
        """Groups, outputs and inputs of the layer, (G, O, D)."""
        return self.input.shape[0], self.output.shape[1], self.input.shape[1]

    @property
    def scale(self) -> Tensor:
        """1 / normaliser; 0 where nothing has been counted, since there is no curvature without data."""
        return torch.where(self.normaliser > 0, self.normaliser.reciprocal(), torch.zeros_like(self.normaliser))

    @cached_property
    def product(self) -> KroneckerProduct:
        """K as a product, shape (G, O, D)."""
        return KroneckerProduct(self.output * self.scale, self.input, self.shape)

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
        return _eigen(self.output, self.name)

    @cached_property
    def _input_eigen(self) -> tuple[Tensor, Tensor | None]:
        return _eigen(self.input, self.name)


@stored(
    "kronecker_precision",
    parts={"_factors": KroneckerFactors, "_factor": Tensor | float, "_ridge": Ridge},
    kept=("_spectrum",),
)
@final
class KroneckerPrecision:
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
    def dim(self) -> int:
        """P = G O D."""
        groups, outputs, inputs = self.shape
        return groups * outputs * inputs

    @property
    def shape(self) -> tuple[int, int, int]:
        """Groups, outputs and inputs of the layer, (G, O, D)."""
        return self._factors.shape

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

    def __add__(self, other: Precision) -> KroneckerPrecision:
        """Factors, normalisers and diagonals added."""
        return KroneckerPrecision.from_state(self.state() + other.state())

    def logdet(self) -> Tensor:
        """Σ log(λ_o λ_d / normaliser + δ), or the same of the rescaled factors + Σ log d. Differentiable in d."""
        return self._spectrum.logdet()

    def multiply(self, v: Tensor) -> Tensor:
        """A v for v of shape (P,) or (P, K)."""
        return self._factor * self._factors.product.apply(v) + self._ridge.multiply(v)

    def solve(self, b: Tensor) -> Tensor:
        """A⁻¹ b for b of shape (P,) or (P, K)."""
        return self._spectrum.solve(b)

    def sqrt_solve(self, z: Tensor) -> Tensor:
        """D^{−½} Q s^{−½} z for z of shape (P,) or (P, K)."""
        return self._spectrum.sqrt_solve(z)

    def covariance_of(self, tape: Tape) -> Tensor:
        """J A⁻¹ Jᵀ per row, shape (N, K, K), in the tape's dtype and then float64.

        Raises:
            UnsupportedError: if the tape's rows are not sums of outer products of this shape.
        """
        return self._spectrum.covariance_of(tape)

    def variance_of(self, tape: Tape) -> Tensor:
        """The diagonal of `covariance_of`, shape (N, K)."""
        return self._spectrum.variance_of(tape)

    def diagonal(self) -> Tensor:
        """The diagonal of A, shape (P,)."""
        return self._factor * self._factors.product.diagonal() + self._ridge.flat()

    def marginal_variance(self) -> Tensor:
        """The diagonal of A⁻¹, shape (P,), from the squares of the two bases."""
        return self._spectrum.marginal_variance()

    def to_dense(self) -> Tensor:
        """The precision A as a matrix, shape (P, P)."""
        return self._factor * self._factors.product.to_dense() + torch.diag(self._ridge.flat())

    def state(self) -> State:
        """The factors and the normaliser, which add."""
        factors = self._factors
        output = factors.output * self._factor
        sums = {"input": factors.input, "output": output, "normaliser": factors.normaliser}
        return State("kfac", factors.name, sums, diagonal=self._ridge.given())

    @classmethod
    def from_state(cls, state: State) -> KroneckerPrecision:
        """The precision that a state was taken of."""
        sums = state.sums
        bare = cls(sums["input"], sums["output"], sums["normaliser"], name=state.name)
        return bare if state.diagonal is None else bare.add_diagonal(state.diagonal)

    def _with(self, ridge: Ridge, factor: Tensor | float) -> KroneckerPrecision:
        precision = KroneckerPrecision.__new__(KroneckerPrecision)
        precision._factors = self._factors  # the eigenvectors go along
        precision._ridge, precision._factor = ridge, factor
        return precision

    @cached_property
    def _spectrum(self) -> Spectrum:
        factors, ridge = self._factors, self._ridge
        if ridge.output is None or ridge.input is None:
            none = factors.normaliser.new_zeros(())
            values = self._factor * factors.eigenvalues + ridge.values()
            return Spectrum.checked(factors.name, factors.basis, values, none, ridge.residual)
        smallest = torch.minimum(ridge.output.min(), ridge.input.min())
        if not smallest > 0:
            raise NotPositiveDefiniteError(
                f"{factors.name}: expected a positive diagonal beside Kronecker factors, got {float(smallest):.6g}."
            )
        output, inputs = ridge.output.rsqrt(), ridge.input.rsqrt()
        whitened = factors.rescaled(output, inputs)
        basis = whitened.basis.scaled(output, inputs)
        log_scale = self.shape[2] * ridge.output.log().sum() + self.shape[1] * ridge.input.log().sum()
        return Spectrum.checked(
            factors.name, basis, self._factor * whitened.eigenvalues + 1.0, log_scale, ridge.residual
        )


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
