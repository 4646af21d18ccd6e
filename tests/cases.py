"""Case tables that several test files run through."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from bayescope.likelihoods import (
    Bernoulli,
    Beta,
    Binomial,
    BradleyTerry,
    Categorical,
    Exponential,
    Gamma,
    Gaussian,
    HeteroscedasticGaussian,
    Joint,
    LaplaceNoise,
    Likelihood,
    LogNormal,
    MultivariateGaussian,
    NegativeBinomial,
    Ordinal,
    Poisson,
    StudentT,
    Tweedie,
    Weibull,
    ZeroInflatedPoisson,
)
from bayescope.linear import LinearDensity
from bayescope.models import LinearModel
from bayescope.priors import Prior

# --- likelihoods ----------------------------------------------------------------------------------------------------


class LikelihoodCase(NamedTuple):
    """A likelihood with a number of outputs and every value that a row's canonical target may take."""

    likelihood: Likelihood
    outputs: int
    labels: Tensor  # the canonical targets of as many rows as there are values
    expected: bool = False  # whether the GGN takes the expected Λ, the observed one being indefinite


def _binary(outputs: int) -> Tensor:
    return torch.tensor(list(product((0.0, 1.0), repeat=outputs)), dtype=torch.float64)


def _numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


LIKELIHOODS = {
    "logit": LikelihoodCase(Bernoulli("logit"), 1, _binary(1)),
    "logit, 3 labels": LikelihoodCase(Bernoulli("logit"), 3, _binary(3)),
    "probit": LikelihoodCase(Bernoulli("probit"), 1, _binary(1)),
    "probit, 3 labels": LikelihoodCase(Bernoulli("probit"), 3, _binary(3)),
    "categorical, 2 classes": LikelihoodCase(Categorical(), 2, torch.arange(2)),
    "categorical, 3 classes": LikelihoodCase(Categorical(), 3, torch.arange(3)),
    "gaussian": LikelihoodCase(Gaussian(0.5), 1, torch.tensor([[-1.5], [0.3]], dtype=torch.float64)),
    "gaussian, 2 outputs": LikelihoodCase(
        Gaussian([0.5, 3.0]), 2, torch.tensor([[-1.5, 0.0], [0.3, 2.0], [4.0, -1.0]], dtype=torch.float64)
    ),
    "multivariate_gaussian": LikelihoodCase(
        MultivariateGaussian([[2.0, -0.9], [-0.9, 3.0]]),
        2,
        torch.tensor([[-1.5, 0.0], [0.3, 2.0], [4.0, -1.0]], dtype=torch.float64),
    ),
    "joint": LikelihoodCase(
        Joint([Gaussian(0.5), Poisson(), Gamma(2.5)]), 3, torch.tensor([[-1.5, 0.0, 0.2], [0.3, 3.0, 1.7]]).double()
    ),
    "bradley_terry": LikelihoodCase(BradleyTerry(), 2, torch.arange(2)),
    "heteroscedastic": LikelihoodCase(
        HeteroscedasticGaussian(), 2, torch.tensor([[-1.5], [0.3]], dtype=torch.float64), expected=True
    ),
    "heteroscedastic, 2 targets": LikelihoodCase(
        HeteroscedasticGaussian(), 4, torch.tensor([[-1.5, 0.0], [0.3, 2.0]], dtype=torch.float64), expected=True
    ),
    "natural": LikelihoodCase(
        HeteroscedasticGaussian("natural"), 2, torch.tensor([[-1.5], [0.3]], dtype=torch.float64), expected=True
    ),
    "natural, 2 targets": LikelihoodCase(
        HeteroscedasticGaussian("natural"),
        4,
        torch.tensor([[-1.5, 0.0], [0.3, 2.0]], dtype=torch.float64),
        expected=True,
    ),
    "poisson": LikelihoodCase(Poisson(), 1, _numbers(0.0, 1.0, 7.0)),
    "poisson, 2 outputs": LikelihoodCase(Poisson(), 2, torch.tensor([[0.0, 3.0], [2.0, 1.0]], dtype=torch.float64)),
    "negative_binomial": LikelihoodCase(NegativeBinomial(0.7), 1, _numbers(0.0, 1.0, 7.0)),
    "negative_binomial, nearly Poisson": LikelihoodCase(NegativeBinomial(1e-8), 1, _numbers(0.0, 5.0)),
    "ordinal": LikelihoodCase(Ordinal("logit", [-1.0, 0.3, 2.5]), 1, torch.arange(4)),
    "ordinal_probit": LikelihoodCase(Ordinal("probit", [-0.7, 0.9]), 1, torch.arange(3)),
    "binomial": LikelihoodCase(Binomial(5), 1, _numbers(0.0, 2.0, 5.0)),
    "beta": LikelihoodCase(Beta(80.0), 1, _numbers(0.7, 0.5), expected=True),
    "zero_inflated_poisson": LikelihoodCase(ZeroInflatedPoisson(0.3), 1, _numbers(0.0, 1.0, 7.0), expected=True),
    "tweedie": LikelihoodCase(Tweedie(1.4, 0.6), 1, _numbers(0.0, 0.2, 1.7)),
    "tweedie, 2 outputs": LikelihoodCase(
        Tweedie([1.4, 1.8], [0.6, 2.0]), 2, torch.tensor([[0.0, 1.0], [1.7, 0.0], [3.0, 2.0]], dtype=torch.float64)
    ),
    "student_t": LikelihoodCase(StudentT(0.8, 9.0), 1, _numbers(-1.5, 0.3, 9.0), expected=True),
    "student_t, 2 outputs": LikelihoodCase(
        StudentT([0.8, 2.0], [9.0, 30.0]),
        2,
        torch.tensor([[-1.5, 0.0], [0.3, 2.0]], dtype=torch.float64),
        expected=True,
    ),
    "laplace_noise": LikelihoodCase(LaplaceNoise(0.7), 1, _numbers(-1.5, 0.3), expected=True),
    "log_normal": LikelihoodCase(LogNormal(0.5), 1, _numbers(0.2, 1.7)),
    "weibull": LikelihoodCase(Weibull(1.6), 1, _numbers(0.2, 1.7)),
    "exponential": LikelihoodCase(Exponential(), 1, _numbers(0.2, 1.7)),
    "gamma": LikelihoodCase(Gamma(2.5), 1, _numbers(0.2, 1.7)),
    "gamma, 2 outputs": LikelihoodCase(Gamma([0.7, 3.0]), 2, torch.tensor([[0.2, 1.0], [1.7, 3.0]]).double()),
}

# --- transforms: of five coordinates ----------------------------------------------------------------------------------

TRANSFORMS = {
    "positive": "positive",
    "unit_interval": "unit_interval",
    "ordered": "ordered",
    "ordered pairs": ["ordered", "ordered", None, "ordered", "ordered"],
    "each": ["unit_interval", None, "positive", "ordered", "ordered"],
    "interleaved": ["positive", "unit_interval", "positive", None, "unit_interval"],
}

# --- tables of two classes with two weights, whose posterior can be integrated over the plane -------------------------


class PlanarTable(NamedTuple):
    """A table of two classes, with two weights in all."""

    features: Tensor  # (N, 1) with an intercept, (N, 2) without
    labels: Tensor
    precision: Tensor  # of the prior, (2, 2)
    mean: Tensor  # of the prior, (2,)

    @property
    def bias(self) -> bool:
        return self.features.shape[1] == 1

    @property
    def jacobian(self) -> Tensor:
        """The activations are J θ: shape (N, 2)."""
        return torch.cat([self.features, torch.ones_like(self.features)], 1) if self.bias else self.features


def _planar(
    rows: int,
    precision: list[list[float]],
    mean: tuple[float, float] = (0.0, 0.0),
    *,
    features: int = 1,
    noise: float = 1.0,
    scale: float = 1.0,
) -> PlanarTable:
    """Labels by a noisy threshold; no noise separates the classes."""
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, features, dtype=torch.float64, generator=generator)
    threshold = 0.3 + noise * torch.randn(rows, dtype=torch.float64, generator=generator)
    matrix, centre = torch.tensor(precision, dtype=torch.float64), torch.tensor(mean, dtype=torch.float64)
    return PlanarTable(scale * x, (x.sum(1) > threshold).double(), matrix, centre)


PLANAR_TABLES = {
    "6 rows": _planar(6, [[1.0, 0.0], [0.0, 0.01]]),
    "60 rows": _planar(60, [[1.0, 0.0], [0.0, 0.01]]),
    "60 rows, flat prior": _planar(60, [[0.01, 0.0], [0.0, 0.01]], noise=1.5),
    "80 rows, dense prior": _planar(80, [[2.0, 0.9], [0.9, 1.0]], (0.5, -0.5), features=2),
    "200 rows": _planar(200, [[0.1, 0.0], [0.0, 0.1]]),
    "separable": _planar(40, [[0.05, 0.0], [0.0, 0.05]], noise=0.0),
    "prior against the data": _planar(60, [[1.0, 0.0], [0.0, 1.0]], (-6.0, 0.0)),
    "large units": _planar(60, [[1e-3, 0.0], [0.0, 0.01]], scale=30.0),
}

# --- linear models of each likelihood, with their table and prior ----------------------------------------------------


class LinearCase(NamedTuple):
    """A linear model, its data and a prior that is neither 1 nor the same for all weights."""

    model: LinearModel
    likelihood: Likelihood
    features: Tensor
    targets: Tensor  # canonical
    precision: Tensor  # of the prior, (P,)
    mean: Tensor  # of the prior, (P,)

    @property
    def prior(self) -> Prior:
        return Prior(self.precision, self.mean)

    @property
    def density(self) -> LinearDensity:
        return LinearDensity.of(self.model, self.likelihood, self.prior, self.features, self.targets)

    @property
    def jacobian(self) -> Tensor:
        """∂f/∂θ of every row, shape (N, C, P)."""
        return self.model.tape(self.features).jacobian(slice(None))


def _linear(
    likelihood: Likelihood, outputs: int = 1, *, bias: bool = True, rows: int = 40, columns: int = 3
) -> LinearCase:
    generator = torch.Generator().manual_seed(rows + columns)
    model = LinearModel(columns, outputs, bias)
    x = torch.randn(rows, columns, dtype=torch.float64, generator=generator) * torch.arange(1, columns + 1) + 0.5
    truth = 0.7 * torch.randn(model.dim, dtype=torch.float64, generator=generator)
    targets = likelihood.sample(model.forward(x, truth), generator)
    precision = torch.linspace(0.3, 2.5, model.dim, dtype=torch.float64)
    mean = 0.2 * torch.randn(model.dim, dtype=torch.float64, generator=generator)
    return LinearCase(model, likelihood, x, likelihood.targets(targets, outputs), precision, mean)


LINEAR_CASES = {
    "logit": _linear(Bernoulli("logit")),
    "logit, no intercept": _linear(Bernoulli("logit"), bias=False),
    "logit, 3 labels": _linear(Bernoulli("logit"), 3),
    "probit": _linear(Bernoulli("probit")),
    "categorical, 3 classes": _linear(Categorical(), 3),
    "categorical, 4 classes, no intercept": _linear(Categorical(), 4, bias=False, columns=2),
    "gaussian": _linear(Gaussian(0.5)),
    "gaussian, 2 outputs": _linear(Gaussian([0.5, 3.0]), 2),
    "multivariate_gaussian": _linear(MultivariateGaussian([[2.0, -0.9], [-0.9, 3.0]]), 2),
    "joint": _linear(Joint([Gaussian(0.5), Poisson()]), 2),
    "fewer rows than weights": _linear(Bernoulli("logit"), rows=4, columns=9),
}
