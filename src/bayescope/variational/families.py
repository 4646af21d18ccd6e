"""Variational families: how q(θ) scatters around its means, which are the network's own parameters.

Scales are learnt as logarithms over `PACE`, and what correlates weights is measured in first standard deviations: a
step of an optimiser that moves a mean by lr changes a standard deviation by `PACE` lr of itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Protocol, final

import torch
from torch import Tensor, nn

from bayescope.errors import ConvergenceError, NotPositiveDefiniteError
from bayescope.network.weights import Weights
from bayescope.precision import DensePrecision, DiagonalPrecision, LowRankCovariance, Precision
from bayescope.priors import Prior
from bayescope.private_draws import for_all, standard_normal

# Adam moves a parameter by about lr a step. With 1, sds are the last to arrive; with 10, Adam at a step size of 0.03 is
# thrown out of a full covariance's optimum again.
PACE = 3.0
# The low rank's first directions, in first standard deviations: at zero the bound has no slope in them.
FIRST_DIRECTIONS = 0.1
# Weights whose correlations are learnt at the pace of their sds.
FEW = 10
_NAME = "the variational covariance"


class Family(nn.Module, ABC):
    """N(0, Σ) over the P random weights: θ less its mean. What it returns is in the graph of its parameters."""

    @abstractmethod
    def noise(self, n: int) -> Tensor:
        """n draws, shape (n, P), from torch's present random state."""

    @abstractmethod
    def solve(self, offset: Tensor) -> Tensor:
        """Σ⁻¹ v for v of shape (n, P)."""

    @abstractmethod
    def trace(self, precision: Precision) -> Tensor:
        """tr(P₀ Σ), a float64 scalar."""

    @abstractmethod
    def logdet(self) -> Tensor:
        """The log determinant of the covariance, log∣Σ∣, a float64 scalar."""

    @abstractmethod
    def variance(self) -> Tensor:
        """The diagonal of Σ, shape (P,), float64."""

    @abstractmethod
    def precision(self) -> Precision:
        """Σ⁻¹ in float64, without a graph."""


def kl_divergence(family: Family, mean: Tensor, prior: Prior) -> Tensor:
    """KL(N(μ, Σ) ∥ N(m, P₀⁻¹)) = ½ [tr(P₀Σ) + (μ−m)ᵀP₀(μ−m) − P − log∣P₀∣ − log∣Σ∣], a float64 scalar.

    Args:
        family: Σ.
        mean: μ, shape (P,), in its graph.
        prior: m and P₀.
    """
    dim = mean.shape[0]
    precision, offset = prior.structured(dim), mean.to(torch.float64) - prior.centre(dim).to(mean.device)
    distance = offset @ precision.multiply(offset)
    return 0.5 * (family.trace(precision) + distance - dim - precision.logdet() - family.logdet())


class Scale(Protocol):
    """The standard deviations of independent weights."""

    def sds(self) -> Mapping[str, Tensor]:
        """σ of each random parameter, in its shape and dtype; 0 where a mask leaves an entry out."""


@final
class LogScale(nn.Module):
    """σ = exp(PACE ρ).

    Args:
        weights: which are random.
        parameters: of the network, by name.
        sds: the first σ, shape (P,).
    """

    def __init__(self, weights: Weights, parameters: Mapping[str, Tensor], sds: Tensor) -> None:
        super().__init__()
        self.names = weights.names
        logs = weights.unflat(sds.log() / PACE)
        self.rho = nn.ParameterList(nn.Parameter(logs[name].to(parameters[name])) for name in self.names)
        for place, name in enumerate(self.names):
            mask = weights.masks[name].to(parameters[name]) if name in weights.masks else None
            self.register_buffer(f"mask_{place}", mask)

    def sds(self) -> dict[str, Tensor]:
        """The standard deviations exp(PACE ρ), by the name of the weight."""
        return {name: self._masked(place, (PACE * self.rho[place]).exp()) for place, name in enumerate(self.names)}

    @torch.no_grad()
    def leaves(self) -> dict[str, Tensor]:
        """The same without a graph to ρ, for gradients that `carry` takes on: two passes over the weights fewer."""
        sds = {name: self._masked(place, (PACE * self.rho[place]).exp_()) for place, name in enumerate(self.names)}
        return {name: sd.requires_grad_() for name, sd in sds.items()}

    @torch.no_grad()
    def carry(self, leaves: Mapping[str, Tensor], entropy: float) -> None:
        """Sets the gradient in ρ of a loss, given in σ, less ``entropy`` times Σ log σ: PACE (σ ∂/∂σ − entropy).

        Args:
            leaves: σ, with the gradient of the loss, which is overwritten.
            entropy: the share of the entropy of q.
        """
        for place, name in enumerate(self.names):
            sd, rho = leaves[name], self.rho[place]
            constant = self._masked(place, rho.new_tensor(-PACE * entropy))
            gradient = torch.zeros_like(sd) if sd.grad is None else sd.grad
            rho.grad = torch.addcmul(constant, gradient, sd.detach(), value=PACE, out=gradient)

    def _masked(self, place: int, value: Tensor) -> Tensor:
        mask = self.get_buffer(f"mask_{place}") if f"mask_{place}" in self._buffers else None
        return value if mask is None else value * mask


@final
class MeanField(Family):
    """Independent weights, Σ = diag(σ²)."""

    def __init__(self, weights: Weights, scale: Scale) -> None:
        super().__init__()
        self._weights, self.scale = weights, scale

    def noise(self, n: int) -> Tensor:
        sd = self._flat()
        return sd * _normal(n, len(sd), sd)

    def solve(self, offset: Tensor) -> Tensor:
        return offset / self._flat().square()

    def trace(self, precision: Precision) -> Tensor:
        return (precision.diagonal() * self.variance()).sum()

    def logdet(self) -> Tensor:
        return self.variance().log().sum()

    def variance(self) -> Tensor:
        return self._flat().to(torch.float64).square()

    def precision(self) -> DiagonalPrecision:
        return DiagonalPrecision(self.variance().detach().reciprocal(), name=_NAME)

    def _flat(self) -> Tensor:
        return self._weights.flatten(self.scale.sds())


@final
class LowRank(Family):
    """Σ = diag(s²) + L Lᵀ with s = s₀ exp(PACE ρ) and L = PACE s₀∘U.

    Args:
        sds: s₀, shape (P,), in the dtype of the network.
        rank: of L.
    """

    def __init__(self, sds: Tensor, rank: int) -> None:
        super().__init__()
        self.register_buffer("start", sds.clone())
        self.rho = nn.Parameter(torch.zeros_like(sds))
        directions = standard_normal((len(sds), rank), sds)
        self.directions = nn.Parameter(directions * (FIRST_DIRECTIONS / (PACE * rank**0.5)))

    def noise(self, n: int) -> Tensor:
        sd, factor = self._parts()
        noise = _normal(n, len(sd), sd)
        return sd * noise + _normal(n, factor.shape[1], sd) @ factor.mT

    def solve(self, offset: Tensor) -> Tensor:
        """By Woodbury: S⁻¹v − S⁻¹L (I + LᵀS⁻¹L)⁻¹ LᵀS⁻¹v with S = diag(s²)."""
        sd, factor = (part.to(torch.float64) for part in self._parts())
        scaled = offset / sd.square()
        inner = torch.cholesky_solve(factor.mT @ scaled.mT, self._inner(sd, factor))
        return (scaled - (factor @ inner).mT / sd.square()).to(offset)

    def trace(self, precision: Precision) -> Tensor:
        """Σ_p P₀_pp s_p² + tr(LᵀP₀L)."""
        sd, factor = (part.to(torch.float64) for part in self._parts())
        return (precision.diagonal() * sd.square()).sum() + (factor * precision.multiply(factor)).sum()

    def logdet(self) -> Tensor:
        """Σ log s² + log∣I + LᵀS⁻¹L∣."""
        sd, factor = (part.to(torch.float64) for part in self._parts())
        return 2.0 * (sd.log().sum() + self._inner(sd, factor).diagonal().log().sum())

    def variance(self) -> Tensor:
        sd, factor = (part.to(torch.float64) for part in self._parts())
        return sd.square() + factor.square().sum(1)

    def precision(self) -> LowRankCovariance:
        """The inverse, held by s² and L."""
        sd, factor = (part.detach().to(torch.float64) for part in self._parts())
        return LowRankCovariance(sd.square(), factor, name=_NAME)

    def _parts(self) -> tuple[Tensor, Tensor]:
        start = self.get_buffer("start")
        return start * (PACE * self.rho).exp(), PACE * start[:, None] * self.directions

    def _inner(self, sd: Tensor, factor: Tensor) -> Tensor:
        """The Cholesky factor of I + LᵀS⁻¹L."""
        scaled = factor / sd[:, None]
        identity = torch.eye(factor.shape[1], dtype=sd.dtype, device=sd.device)
        return torch.linalg.cholesky(identity + scaled.mT @ scaled)


@final
class Full(Family):
    """Σ = T Tᵀ with T = s₀∘(c B below the diagonal, exp(PACE ρ) on it), c = PACE min(1, `FEW`/P).

    An optimiser such as Adam moves all P²/2 entries of B alike, noise or not, and their noise costs the bound P² c² of
    what one entry's does. Where it makes what is below the diagonal as long as the diagonal's entries, T⁻¹, and the
    gradient with it, grows exponentially in P, as for random triangular matrices (Viswanath & Trefethen 1998,
    "Condition numbers of random triangular matrices").

    Args:
        sds: s₀, shape (P,), in the dtype of the network.
    """

    def __init__(self, sds: Tensor) -> None:
        super().__init__()
        self.register_buffer("start", sds.clone())
        self.rho = nn.Parameter(torch.zeros_like(sds))
        self.below = nn.Parameter(torch.zeros(len(sds), len(sds), dtype=sds.dtype, device=sds.device))
        self._pace = PACE * min(1.0, FEW / len(sds))

    def noise(self, n: int) -> Tensor:
        root = self._root()
        return _normal(n, len(root), root) @ root.mT

    def solve(self, offset: Tensor) -> Tensor:
        root = self._root()
        half = torch.linalg.solve_triangular(root, offset.mT, upper=False)
        return torch.linalg.solve_triangular(root.mT, half, upper=True).mT

    def trace(self, precision: Precision) -> Tensor:
        root = self._root().to(torch.float64)
        return (root * precision.multiply(root)).sum()

    def logdet(self) -> Tensor:
        return 2.0 * (self.get_buffer("start").to(torch.float64).log() + PACE * self.rho.to(torch.float64)).sum()

    def variance(self) -> Tensor:
        return self._root().to(torch.float64).square().sum(1)

    def precision(self) -> DensePrecision:
        """From T.

        Raises:
            ConvergenceError: if T is singular or not finite.
        """
        try:
            return DensePrecision.from_root(self._root().detach(), name=_NAME)
        except NotPositiveDefiniteError as error:
            raise ConvergenceError(
                f"{error} The training has run away: take a smaller lr, schedule='cosine' and more samples, or the "
                "family 'low_rank' or 'mean_field'."
            ) from error

    def _root(self) -> Tensor:
        triangle = torch.tril(self._pace * self.below, -1) + torch.diag((PACE * self.rho).exp())
        return self.get_buffer("start")[:, None] * triangle


def _normal(n: int, dim: int, like: Tensor) -> Tensor:
    """n standard normal vectors, which all rows of a minibatch have in common."""
    return for_all(lambda: standard_normal((n, dim), like))
