"""A log density: three approximations of it, the distance between two of them, and the evidence corrected."""

from collections.abc import Callable

import torch
from torch import Tensor

import bayescope as bs


def log_density(theta: Tensor) -> Tensor:
    """The posterior of the mean and the scale of 40 numbers."""
    mean, scale = theta.unbind()
    misfit = ((mean - 1.0).square() + 1.0).mul(40.0) / scale.square()
    return scale.log().mul(-40.0) - misfit.div(2.0) - mean.square().mul(0.1)


def with_prior(prior: float) -> Callable[[Tensor], Tensor]:
    """The density under another prior of the mean."""
    return lambda theta: log_density(theta) - theta[0].square().mul(0.5 * prior)


def row(name: str, q: bs.Posterior) -> str:
    """A line of a table: the means and the standard deviations."""
    sd = q.covariance.diagonal().sqrt()
    return f"{name:12} {q.mean[0].item():.3f} ± {sd[0].item():.3f} {q.mean[1].item():.3f} ± {sd[1].item():.3f}"


def main() -> None:
    laplace = bs.density.laplace(log_density, [0.5, 1.0], transform=[None, "positive"])
    variational = bs.density.variational(log_density, 2, family="full", transform=[None, "positive"], generator=0)
    nuts = bs.density.nuts(
        log_density, 2, start=[0.5, 1.0], transform=[None, "positive"], draws=50, tune=50, chains=2, generator=0
    )
    posteriors: dict[str, bs.Posterior] = {"Laplace": laplace, "variational": variational, "NUTS": nuts}
    print("\n".join(row(name, q) for name, q in posteriors.items()))
    print(laplace.log_evidence().item(), variational.elbo.item(), variational.trace["elbo"][-1])
    print(laplace.precision.logdet().item(), variational.log_prob(torch.tensor([1.0, 1.0])).item())
    print(bs.density.kl(laplace, variational).item(), nuts.draws.shape, nuts.sample(3, generator=0).mean(dim=0))
    corrected = bs.density.importance(log_density, laplace, draws=500, generator=0)
    print(corrected.log_evidence.item(), corrected.pareto_k)
    other = bs.density.laplace(with_prior(1.0), [0.5, 1.0], transform=[None, "positive"])
    print(other.mean.tolist(), other.summary())


if __name__ == "__main__":
    main()
