"""The names of likelihoods."""

from __future__ import annotations

from typing import Literal

from bayescope.errors import InputTypeError, OptionError
from bayescope.likelihoods.bernoulli import Bernoulli
from bayescope.likelihoods.categorical import BradleyTerry, Categorical
from bayescope.likelihoods.counts import NegativeBinomial, Poisson, ZeroInflatedPoisson
from bayescope.likelihoods.gaussian import Gaussian
from bayescope.likelihoods.heteroscedastic import HeteroscedasticGaussian
from bayescope.likelihoods.lifetimes import Exponential, Gamma, LogNormal, Weibull
from bayescope.likelihoods.likelihood import Likelihood
from bayescope.likelihoods.location import LaplaceNoise, StudentT
from bayescope.likelihoods.ordinal import Ordinal
from bayescope.likelihoods.proportions import Beta, Binomial
from bayescope.likelihoods.tweedie import Tweedie

# What ``likelihood=`` may be called.
NumberLikelihoodName = Literal[
    "gaussian",
    "heteroscedastic_gaussian",
    "poisson",
    "negative_binomial",
    "student_t",
    "laplace_noise",
    "log_normal",
    "weibull",
    "exponential",
    "gamma",
    "binomial",
    "beta",
    "zero_inflated_poisson",
    "tweedie",
]
ClassLikelihoodName = Literal["bernoulli", "probit", "categorical", "bradley_terry", "ordinal", "ordinal_probit"]
LikelihoodName = ClassLikelihoodName | NumberLikelihoodName
OrderedLikelihoodName = Literal["ordinal", "ordinal_probit"]
_NAMED: dict[str, Likelihood] = {
    each.name: each
    for each in (
        Bernoulli("logit"),
        Bernoulli("probit"),
        Categorical(),
        Gaussian(),
        HeteroscedasticGaussian(),
        BradleyTerry(),
        Poisson(),
        NegativeBinomial(),
        StudentT(),
        LaplaceNoise(),
        LogNormal(),
        Weibull(),
        Exponential(),
        Gamma(),
        Ordinal(),
        Ordinal("probit"),
        Binomial(),
        Beta(),
        ZeroInflatedPoisson(),
        Tweedie(),
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
