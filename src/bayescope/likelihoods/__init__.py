"""Likelihoods p(y∣f): of classes, counts, amounts, lifetimes and other numbers, and a user's own."""

from __future__ import annotations

from collections.abc import Sequence

from bayescope.likelihoods.bernoulli import Bernoulli
from bayescope.likelihoods.categorical import BradleyTerry, Categorical
from bayescope.likelihoods.censoring import Censored
from bayescope.likelihoods.counts import NegativeBinomial, Poisson, ZeroInflatedPoisson
from bayescope.likelihoods.gaussian import Gaussian, MultivariateGaussian
from bayescope.likelihoods.heteroscedastic import HeteroscedasticGaussian
from bayescope.likelihoods.information import entropy, information_of_dirichlet, information_of_draws
from bayescope.likelihoods.joint import Joint
from bayescope.likelihoods.lifetimes import Exponential, Gamma, LogNormal, Weibull
from bayescope.likelihoods.likelihood import INTEGRALS, IntegralName, Likelihood, Moments, Tilted, variances
from bayescope.likelihoods.location import LaplaceNoise, StudentT
from bayescope.likelihoods.mixtures import (
    crps_of_mixture,
    entropy_of_mixture,
    information_of_mixture,
    mixture_cdf,
    mixture_interval,
    mixture_quantile,
    normal_quantile,
)
from bayescope.likelihoods.names import (
    ClassLikelihoodName,
    LikelihoodName,
    NumberLikelihoodName,
    OrderedLikelihoodName,
    resolve,
)
from bayescope.likelihoods.numbers import between_counts, crps_of_numbers, entropy_of_numbers, quantile_of_numbers
from bayescope.likelihoods.ordinal import Ordinal
from bayescope.likelihoods.own import POINTS, OwnLikelihood, OwnOfSeveral
from bayescope.likelihoods.proportions import Beta, Binomial
from bayescope.likelihoods.quasi_monte_carlo import eigenroot, gaussian_points, principal_root
from bayescope.likelihoods.row_columns import Weighted, WithOffset
from bayescope.likelihoods.targets import LabelError, place_of, read_targets, warn_of_probabilities
from bayescope.likelihoods.tweedie import Tweedie

__all__ = [
    "INTEGRALS",
    "POINTS",
    "Bernoulli",
    "Beta",
    "Binomial",
    "BradleyTerry",
    "Categorical",
    "Censored",
    "ClassLikelihoodName",
    "Exponential",
    "Gamma",
    "Gaussian",
    "HeteroscedasticGaussian",
    "IntegralName",
    "Joint",
    "LabelError",
    "LaplaceNoise",
    "Likelihood",
    "LikelihoodName",
    "LogNormal",
    "Moments",
    "MultivariateGaussian",
    "NegativeBinomial",
    "NumberLikelihoodName",
    "OrderedLikelihoodName",
    "Ordinal",
    "OwnLikelihood",
    "OwnOfSeveral",
    "Poisson",
    "StudentT",
    "Tilted",
    "Tweedie",
    "Weibull",
    "Weighted",
    "WithOffset",
    "ZeroInflatedPoisson",
    "between_counts",
    "crps_of_mixture",
    "crps_of_numbers",
    "described",
    "eigenroot",
    "entropy",
    "entropy_of_mixture",
    "entropy_of_numbers",
    "gaussian_points",
    "hyperparameters_of",
    "information_of_dirichlet",
    "information_of_draws",
    "information_of_mixture",
    "mixture_cdf",
    "mixture_interval",
    "mixture_quantile",
    "normal_quantile",
    "place_of",
    "principal_root",
    "quantile_of_numbers",
    "read_targets",
    "resolve",
    "variances",
    "warn_of_probabilities",
]


def described(likelihood: Likelihood) -> dict[str, str]:
    """Lines for a summary: the likelihood's name, and the hyperparameters that are known."""
    known = [name for name in likelihood.unweighted.hyperparameters if name not in likelihood.unweighted.learnable]
    return {"likelihood": likelihood.name, **hyperparameters_of(likelihood.unweighted, known)}


def hyperparameters_of(likelihood: Likelihood, names: Sequence[str]) -> dict[str, str]:
    """The numbers of some hyperparameters, by title."""
    values = {name: likelihood.known(name).reshape(-1) for name in names}
    listed = {name: value if name in ("cutpoints", "covariance") else value.unique() for name, value in values.items()}
    return {
        name.replace("_", " "): ", ".join(f"{float(number):.4g}" for number in numbers)
        for name, numbers in listed.items()
    }
