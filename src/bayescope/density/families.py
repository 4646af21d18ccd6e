"""Gaussian families for variational inference: what an unconstrained vector of numbers means as a Gaussian."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Tensor

from bayescope.precision import DensePrecision, DiagonalPrecision, Precision

_LOG_2PI = math.log(2.0 * math.pi)
# Directions in which the pilot has no extra variance start with this factor: zero factors have a zero gradient.
_SMALL_FACTOR = 0.1


@final
@dataclass(frozen=True)
class Pilot:
    """A first guess N(location, root rootᵀ), in whose units the optimiser works.

    Attributes:
        location: shape (P,).
        root: any square root of the covariance, shape (P, P).
        conditional_sd: 1/√A_ii, which is mean field's optimum for a Gaussian, shape (P,).
    """

    location: Tensor
    root: Tensor
    conditional_sd: Tensor


class Family(Protocol):
    """Gaussians u = location + root z, z ~ N(0, I), indexed by a flat vector φ."""

    @property
    def noise_dim(self) -> int:
        """The number of standard normal draws for one u."""

    def initial(self) -> Tensor:
        """The φ to start from."""

    def place(self, phi: Tensor, z: Tensor) -> Tensor:
        """u for noise z, shape (S, P) for z of shape (S, noise_dim)."""

    def entropy(self, phi: Tensor) -> Tensor:
        """−E log q, a scalar."""

    def location(self, phi: Tensor) -> Tensor:
        """The mean E u under these parameters, shape (P,)."""

    def precision(self, phi: Tensor) -> Precision:
        """The inverse of the covariance of u."""

    def widened(self, phi: Tensor, factor: float) -> Tensor:
        """The φ of the same Gaussian with all its sds multiplied."""


@final
@dataclass(frozen=True)
class FullFamily:
    """u = m₀ + R (a + T z) with T lower triangular and a positive diagonal; φ = (a, log diag T, T below it)."""

    pilot: Pilot

    @property
    def noise_dim(self) -> int:
        return self.pilot.location.shape[0]

    def initial(self) -> Tensor:
        dim = self.noise_dim
        return torch.zeros(2 * dim + dim * (dim - 1) // 2, dtype=torch.float64)

    def place(self, phi: Tensor, z: Tensor) -> Tensor:
        return self.location(phi) + z @ self._triangle(phi).mT @ self.pilot.root.mT

    def entropy(self, phi: Tensor) -> Tensor:
        """(P/2)(1 + log 2π) + log∣R∣ + Σ log T_ii."""
        dim = self.noise_dim
        root = torch.linalg.slogdet(self.pilot.root).logabsdet
        return 0.5 * dim * (1.0 + _LOG_2PI) + root + phi[dim : 2 * dim].sum()

    def location(self, phi: Tensor) -> Tensor:
        return self.pilot.location + self.pilot.root @ phi[: self.noise_dim]

    def precision(self, phi: Tensor) -> DensePrecision:
        """From the covariance R T Tᵀ Rᵀ."""
        root = self.pilot.root @ self._triangle(phi)
        return DensePrecision.from_covariance(root @ root.mT)

    def widened(self, phi: Tensor, factor: float) -> Tensor:
        dim = self.noise_dim
        return torch.cat([phi[:dim], phi[dim : 2 * dim] + math.log(factor), phi[2 * dim :] * factor])

    def _triangle(self, phi: Tensor) -> Tensor:
        dim = self.noise_dim
        rows, columns = torch.tril_indices(dim, dim, offset=-1)
        below = phi.new_zeros(dim, dim).index_put((rows, columns), phi[2 * dim :])
        return below + torch.diag(phi[dim : 2 * dim].exp())


@final
@dataclass(frozen=True)
class MeanFieldFamily:
    """u = m₀ + R a + s ∘ exp(ρ) ∘ z; φ = (a, ρ). The mean moves in the pilot's units, however correlated they are."""

    pilot: Pilot

    @property
    def noise_dim(self) -> int:
        return self.pilot.location.shape[0]

    def initial(self) -> Tensor:
        return torch.zeros(2 * self.noise_dim, dtype=torch.float64)

    def place(self, phi: Tensor, z: Tensor) -> Tensor:
        return self.location(phi) + z * self._sd(phi)

    def entropy(self, phi: Tensor) -> Tensor:
        """(P/2)(1 + log 2π) + Σ log sd_i."""
        return 0.5 * self.noise_dim * (1.0 + _LOG_2PI) + self._sd(phi).log().sum()

    def location(self, phi: Tensor) -> Tensor:
        return self.pilot.location + self.pilot.root @ phi[: self.noise_dim]

    def precision(self, phi: Tensor) -> DiagonalPrecision:
        return DiagonalPrecision(self._sd(phi).square().reciprocal())

    def widened(self, phi: Tensor, factor: float) -> Tensor:
        return torch.cat([phi[: self.noise_dim], phi[self.noise_dim :] + math.log(factor)])

    def _sd(self, phi: Tensor) -> Tensor:
        return self.pilot.conditional_sd * phi[self.noise_dim :].exp()


@final
@dataclass(frozen=True)
class LowRankFamily:
    """u = m₀ + R a + s ∘ (exp(ρ) ∘ z₁ + W z₂), covariance s(diag(exp 2ρ) + W Wᵀ)s; φ = (a, ρ, W row-major)."""

    pilot: Pilot
    rank: int

    @property
    def noise_dim(self) -> int:
        return self.pilot.location.shape[0] + self.rank

    def initial(self) -> Tensor:
        """The pilot's largest directions in units of the conditional sds, beside those sds."""
        dim = self.pilot.location.shape[0]
        scaled = self.pilot.root / self.pilot.conditional_sd[:, None]
        values, vectors = torch.linalg.eigh(scaled @ scaled.mT)
        # What the diagonal leaves over; a direction with nothing left starts with a small factor.
        factors = (values[-self.rank :] - 1.0).clamp_min(_SMALL_FACTOR**2).sqrt()
        return torch.cat([torch.zeros(2 * dim, dtype=torch.float64), (vectors[:, -self.rank :] * factors).reshape(-1)])

    def place(self, phi: Tensor, z: Tensor) -> Tensor:
        diagonal, factors = self._split(phi)
        dim = diagonal.shape[0]
        return self.location(phi) + self.pilot.conditional_sd * (z[:, :dim] * diagonal + z[:, dim:] @ factors.mT)

    def entropy(self, phi: Tensor) -> Tensor:
        """With log∣D² + W Wᵀ∣ = 2 Σ log D_i + log∣I + Wᵀ D⁻² W∣."""
        diagonal, factors = self._split(phi)
        inner = torch.eye(self.rank, dtype=torch.float64) + (factors / diagonal[:, None].square()).mT @ factors
        half_logdet = (diagonal * self.pilot.conditional_sd).log().sum() + 0.5 * torch.logdet(inner)
        return 0.5 * diagonal.shape[0] * (1.0 + _LOG_2PI) + half_logdet

    def location(self, phi: Tensor) -> Tensor:
        return self.pilot.location + self.pilot.root @ phi[: self.pilot.location.shape[0]]

    def precision(self, phi: Tensor) -> DensePrecision:
        """From the covariance, as a dense matrix."""
        diagonal, factors = self._split(phi)
        sd = self.pilot.conditional_sd
        covariance = sd[:, None] * (torch.diag(diagonal.square()) + factors @ factors.mT) * sd
        return DensePrecision.from_covariance(covariance)

    def widened(self, phi: Tensor, factor: float) -> Tensor:
        """D and W times the factor."""
        dim = self.pilot.location.shape[0]
        return torch.cat([phi[:dim], phi[dim : 2 * dim] + math.log(factor), phi[2 * dim :] * factor])

    def _split(self, phi: Tensor) -> tuple[Tensor, Tensor]:
        dim = self.pilot.location.shape[0]
        return phi[dim : 2 * dim].exp(), phi[2 * dim :].reshape(dim, self.rank)
