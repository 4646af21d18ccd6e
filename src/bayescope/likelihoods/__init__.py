"""Likelihoods p(y∣f): Bernoulli (logit and probit), categorical, Bradley–Terry and Gaussian."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from bayescope.errors import InputTypeError, OptionError
from bayescope.likelihoods.bernoulli import Bernoulli
from bayescope.likelihoods.categorical import BradleyTerry, Categorical
from bayescope.likelihoods.gaussian import Gaussian, HeteroscedasticGaussian
from bayescope.likelihoods.information import (
    entropy,
    entropy_of_mixture,
    information_of_dirichlet,
    information_of_draws,
    information_of_mixture,
)
from bayescope.likelihoods.likelihood import INTEGRALS, IntegralName, Likelihood, Moments, Weighted, variances
from bayescope.likelihoods.quasi_monte_carlo import eigenroot, principal_root
from bayescope.likelihoods.targets import LabelError, place_of, read_targets, warn_of_probabilities

__all__ = [
    "INTEGRALS",
    "Bernoulli",
    "BradleyTerry",
    "Categorical",
    "Gaussian",
    "HeteroscedasticGaussian",
    "IntegralName",
    "LabelError",
    "Likelihood",
    "LikelihoodName",
    "Moments",
    "Weighted",
    "described",
    "eigenroot",
    "entropy",
    "entropy_of_mixture",
    "information_of_dirichlet",
    "information_of_draws",
    "information_of_mixture",
    "place_of",
    "principal_root",
    "read_targets",
    "resolve",
    "variances",
    "warn_of_probabilities",
]

# What ``likelihood=`` may be called.
LikelihoodName = Literal["bernoulli", "probit", "categorical", "gaussian", "heteroscedastic_gaussian", "bradley_terry"]
_NAMED: dict[str, Likelihood] = {
    each.name: each
    for each in (
        Bernoulli("logit"),
        Bernoulli("probit"),
        Categorical(),
        Gaussian(),
        HeteroscedasticGaussian(),
        BradleyTerry(),
    )
}


def resolve(likelihood: LikelihoodName | Likelihood) -> Likelihood:
    """The likelihood that a name stands for; a likelihood is returned unchanged.

    Raises:
        OptionError: if the name is unknown; the message lists the known ones.
        InputTypeError: if it is neither a name nor a `Likelihood`.
    """
    if isinstance(likelihood, str):
        if likelihood not in _NAMED:
            raise OptionError.unknown("likelihood", likelihood, _NAMED)
        return _NAMED[likelihood]
    if not isinstance(likelihood, Likelihood):
        known = ", ".join(map(repr, _NAMED))
        raise InputTypeError(f"likelihood: expected one of {known}, or a Likelihood object, got {likelihood!r}.")
    return likelihood


def described(likelihood: Likelihood) -> dict[str, str]:
    """Lines for a summary: the likelihood's name, and the noise variance if it is known."""
    if not isinstance(likelihood.noise_variance, Tensor):
        return {"likelihood": likelihood.name}
    noise = likelihood.noise_variance.reshape(-1).unique()
    return {"likelihood": likelihood.name, "noise variance": ", ".join(f"{float(value):.4g}" for value in noise)}
