"""How right each integral over a Gaussian f is: binary, multiclass, and with a noise variance that is an output.

Binary integrals are compared with mpmath's adaptive quadrature, multiclass ones and joint densities with 2²⁰ randomised
quasi-Monte-Carlo points (16 scramblings of 2¹⁶), whose standard error stands beside them.

    python -m bench.integrals [--quick]
"""

from __future__ import annotations

import math
from typing import Any

import mpmath
import torch
from torch import Tensor

from bayescope.latent import GaussianLatent
from bayescope.likelihoods import Bernoulli, Categorical, HeteroscedasticGaussian, Likelihood
from bayescope.quadrature import normal_nodes
from bench import record
from tests import reference

BINARY_SDS = (0.0, 0.1, 1.0, 3.0, 10.0, 100.0, 1e4)
SDS = (0.1, 0.3, 1.0, 3.0, 10.0)
CLASSES = (3, 10)
PROBLEMS = 12
SCRAMBLES, POINTS = 16, 2**16
DRAWS = 1000
APPROXIMATIONS = ("mackay", "laplace_bridge")
Row = dict[str, Any]


def column(*values: float) -> Tensor:
    """Numbers as float64."""
    return torch.tensor(values, dtype=torch.float64)


def sampled(mean: Tensor, cov: Tensor, likelihood: Likelihood) -> Tensor:
    """The class probabilities by plain Monte Carlo."""
    drawn = GaussianLatent(mean, cov, "monte_carlo").with_draws(DRAWS, torch.Generator().manual_seed(0))
    return drawn.moments(likelihood).mean


def binary(link: str, sd: float) -> Row:
    """The largest errors of P(y = 1) over eleven means, of both classes' probabilities."""
    means = [0.0, 0.3, -1.0, 3.0, -8.0, 30.0, *(score * sd for score in (0.5, -1.0, 2.0, -3.0, 5.0))]
    exact = mpmath.ncdf if link == "probit" else lambda a: 1 / (1 + mpmath.exp(-a))
    truth = column(*(float(reference.gaussian_expectation(exact, mean, sd)) for mean in means))
    mean, cov = column(*means)[:, None], torch.full((len(means), 1, 1), sd**2, dtype=torch.float64)
    likelihood = Bernoulli(link)
    default = likelihood.integral(None, 1)
    logs = likelihood.predictive_log_prob(mean, cov, torch.ones_like(mean), default)
    answers = {default: likelihood.predictive(mean, cov, default).mean[:, 1]}
    if link == "logit":
        answers |= {name: likelihood.predictive(mean, cov, name).mean[:, 1] for name in APPROXIMATIONS}
    answers["monte_carlo"] = sampled(mean, cov, likelihood)[:, 1]
    errors = {name: float((answer - truth).abs().max()) for name, answer in answers.items()}
    return {"sd": sd, **errors, "log_prob": float((logs - truth.log())[truth > 1e-280].abs().max())}


def problem(outputs: int, sd: float) -> tuple[Tensor, Tensor]:
    """Means of sd 2, and covariances of random correlation, with variances around sd²."""
    generator = torch.Generator().manual_seed(outputs)
    mean = 2.0 * torch.randn(PROBLEMS, outputs, dtype=torch.float64, generator=generator)
    root = torch.randn(PROBLEMS, outputs, outputs + 1, dtype=torch.float64, generator=generator)
    return mean, sd**2 * root @ root.mT / (outputs + 1)


def fine(mean: Tensor, cov: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """E[p], its standard error, and log E[p_y] of one row."""
    outputs = mean.shape[0]
    root, each = torch.linalg.cholesky(cov), []
    for seed in range(1000, 1000 + SCRAMBLES):
        p = torch.softmax(mean + normal_nodes(outputs, POINTS, seed=seed) @ root.mT, -1)
        each.append(p.mean(0))
    averages = torch.stack(each)
    centre = averages.mean(0)
    return centre, averages.std(0) / math.sqrt(SCRAMBLES), centre[y].log()


def multiclass(outputs: int, sd: float) -> Row:
    """Errors of all class probabilities of some random problems."""
    mean, cov = problem(outputs, sd)
    likelihood, y = Categorical(), torch.arange(PROBLEMS) % outputs
    rows = [fine(m, c, label) for m, c, label in zip(mean, cov, y, strict=True)]
    truth, spread, logs = (torch.stack(parts) for parts in zip(*rows, strict=True))
    error = likelihood.predictive(mean, cov, "quadrature").mean - truth
    stated = likelihood.integration_error(mean, cov, "quadrature")
    found = {name: likelihood.predictive(mean, cov, name).mean for name in APPROXIMATIONS}
    found["monte_carlo"] = sampled(mean, cov, likelihood)
    log_prob = likelihood.predictive_log_prob(mean, cov, y, "quadrature")
    return {
        "classes": outputs,
        "sd": sd,
        "reference_error": float(spread.max()),
        "quadrature": float(error.abs().max()),
        "stated": float(stated.max()),
        "ratio": float(error.square().mean().sqrt() / stated.square().mean().sqrt()),
        **{name: float((answer - truth).abs().max()) for name, answer in found.items()},
        "log_prob": float((log_prob - logs).abs().max()),
        "log_prob_reference": float((spread[torch.arange(PROBLEMS), y] / logs.exp()).max()),
    }


def heteroscedastic(parametrization: str, sd: float) -> Row:
    """The largest error of log p(y) of one target over correlations, sds of the mean and distances of y, in nats."""
    likelihood, worst = HeteroscedasticGaussian(parametrization), 0.0
    for correlation in (0.0, 0.7, -0.95, 0.999):
        for width in (0.01, 1.0, 4.0):
            mean = column(0.5, -1.0)
            cross = correlation * width * sd
            cov = torch.tensor([[width**2, cross], [cross, sd**2]], dtype=torch.float64)
            for y in (0.3, 5.0, -60.0):
                got = likelihood.predictive_log_prob(mean[None], cov[None], column(y)[None], "quadrature")
                truth = reference.heteroscedastic_log_density(parametrization, mean, cov, y)
                worst = max(worst, abs(float(got) - truth))
    return {"parametrization": parametrization, "sd": sd, "error": worst}


def joint(parametrization: str, sd: float) -> Row:
    """The largest error of log p(y) of two correlated targets, in nats, and the reference's own standard error."""
    likelihood, errors = HeteroscedasticGaussian(parametrization), []
    generator = torch.Generator().manual_seed(0)
    for _ in range(6):
        mean = torch.randn(4, dtype=torch.float64, generator=generator)
        root = torch.randn(4, 5, dtype=torch.float64, generator=generator) / math.sqrt(5)
        cov = sd**2 * root @ root.mT
        y = likelihood.sample(mean[None], generator)
        factor, each = torch.linalg.cholesky(cov), []
        for seed in range(SCRAMBLES):
            f = mean + normal_nodes(4, POINTS, seed=1000 + seed) @ factor.mT
            each.append(torch.logsumexp(likelihood.log_prob(f, y), 0) - math.log(POINTS))
        values = torch.stack(each)
        truth = torch.logsumexp(values, 0) - math.log(SCRAMBLES)
        spread = (values - truth).expm1().std() / math.sqrt(SCRAMBLES)
        got = likelihood.predictive_log_prob(mean[None], cov[None], y, "quadrature")
        errors.append((abs(float(got - truth)), float(spread)))
    worst, spread = (max(part) for part in zip(*errors, strict=True))
    return {"parametrization": parametrization, "sd": sd, "reference_error": spread, "error": worst}


TITLES = {
    "logit": "Bernoulli, logit link: largest error of a probability over eleven means; of log p (relative error of p)",
    "probit": "Bernoulli, probit link: the same",
    "categorical": f"Categorical: largest error of a probability over {PROBLEMS} random problems; of log p(y) in nats",
    "heteroscedastic": "Heteroscedastic Gaussian, one target: largest error of log p(y) in nats; sd of the 2nd output",
    "joint": "Heteroscedastic Gaussian, two correlated targets: largest error of log p(y) in nats",
}


def main() -> None:
    """Runs everything, prints the tables and saves them."""
    options = record.arguments(__doc__).parse_args()
    few = slice(1) if options.quick else slice(None)
    forms = ("mean_log_variance", "natural")
    results = {
        **{link: [binary(link, sd) for sd in BINARY_SDS[few]] for link in ("logit", "probit")},
        "categorical": [multiclass(outputs, sd) for outputs in CLASSES[few] for sd in SDS[few]],
        "heteroscedastic": [heteroscedastic(form, sd) for form in forms for sd in (1e-3, 0.1, 1.0, 2.5)[few]],
        "joint": [joint(form, sd) for form in forms for sd in (0.1, 0.3, 1.0)[few]],
    }
    parts = [part for name, rows in results.items() for part in (f"## {TITLES[name]}", record.table_of(rows, ".2g"))]
    how = record.method_in(__doc__)
    record.publish(options, "bench.integrals", "Integrals over a Gaussian f", how, parts, results)


if __name__ == "__main__":
    main()
