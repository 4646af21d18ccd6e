"""A linear regression whose posterior, evidence and bound are known, with what a variational fit of it is made of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayescope.likelihoods import Gaussian
from bayescope.network import RandomWeights, Weights
from bayescope.precision import DensePrecision
from bayescope.priors import Prior
from bayescope.variational.families import Full, LogScale, LowRank, MeanField
from bayescope.variational.objective import AtDraws, ByRow, Gradients
from tests.training.toys import line, seeded

NOISE = 0.09
# Weights whose gradients are compared with their expectations: a fixed seed, and a chance of 1e-6 each to be refused.
STANDARD_ERRORS = 5.0


@contextmanager
def seeded_draws(seed: int) -> Iterator[None]:
    """Torch's own random state from a seed, and as it was afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


@dataclass(frozen=True)
class Regression:
    """y = x W + b + noise under a Gaussian prior: the posterior is N(mean, precision⁻¹)."""

    x: Tensor
    y: Tensor
    prior: Prior

    @property
    def design(self) -> Tensor:
        return torch.cat([self.x, torch.ones(len(self.x), 1, dtype=self.x.dtype)], 1)

    @property
    def precision(self) -> Tensor:
        return self.design.mT @ self.design / NOISE + self.prior.structured(3).to_dense()

    @property
    def mean(self) -> Tensor:
        pulled = self.prior.structured(3).multiply(self.prior.centre(3))
        return torch.linalg.solve(self.precision, self.design.mT @ self.y[:, 0] / NOISE + pulled)

    @property
    def sds(self) -> Tensor:
        return torch.linalg.inv(self.precision).diagonal().sqrt()

    @property
    def evidence(self) -> float:
        covariance = self.design @ self.prior.structured(3).solve(self.design.mT)
        covariance += NOISE * torch.eye(len(self.x), dtype=self.x.dtype)
        marginal = torch.distributions.MultivariateNormal(self.design @ self.prior.centre(3), covariance)
        return float(marginal.log_prob(self.y[:, 0]))

    def expected_nll(self, mean: Tensor, family: MeanField | LowRank | Full, noise: float) -> Tensor:
        """E_q[−Σ log p(y∣f)] under a noise variance, in closed form, in the graph of q."""
        squares = (self.y[:, 0] - self.design @ mean).square().sum()
        spread = family.trace(DensePrecision(self.design.mT @ self.design))
        constant = len(self.x) * torch.tensor(2.0 * torch.pi * noise, dtype=torch.float64).log()
        return 0.5 * ((squares + spread) / noise + constant)


def regression(rows: int = 12, prior: Prior | None = None) -> Regression:
    """A few rows."""
    return Regression(*line(rows), prior=Prior(2.0) if prior is None else prior)


def network(seed: int = 0) -> nn.Sequential:
    """The regression's model, in float64."""
    return seeded(seed, (nn.Linear, (2, 1))).double()


def family_of(name: str, module: nn.Module, weights: Weights, *, seed: int = 3) -> MeanField | LowRank | Full:
    """A family in some state, all of its parameters away from zero."""
    source = torch.Generator().manual_seed(seed)
    sds = torch.rand(weights.dim, dtype=torch.float64, generator=source) + 0.3
    family: MeanField | LowRank | Full
    if name == "mean_field":
        return MeanField(weights, LogScale(weights, weights.parameters(module), sds))
    with seeded_draws(seed):
        family = LowRank(sds, 2) if name == "low_rank" else Full(sds)
        with torch.no_grad():
            for parameter in family.parameters():
                parameter.add_(0.15 * torch.randn_like(parameter))
    return family


def gradients_of(
    name: str, estimator: str, module: nn.Module, weights: Weights, x: Tensor, samples: int = 1
) -> tuple[MeanField | LowRank | Full, Gradients]:
    """A family and an estimator of its gradient."""
    family = family_of(name, module, weights)
    sticking = estimator == "sticking_the_landing"
    if isinstance(family, MeanField) and not sticking:
        random = RandomWeights.of(module, weights.names, x)
        assert isinstance(family.scale, LogScale)
        return family, ByRow(random, weights, family.scale, estimator, samples)
    return family, AtDraws(module, weights, family, samples, sticking=sticking)


GAUSSIAN = Gaussian(NOISE)
