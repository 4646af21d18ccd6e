"""Likelihoods p(y∣f): Bernoulli (logit and probit), categorical, Bradley–Terry and Gaussian."""

from __future__ import annotations

from bayescope.errors import InputTypeError, OptionError
from bayescope.likelihoods.bernoulli import Bernoulli
from bayescope.likelihoods.categorical import Categorical
from bayescope.likelihoods.gaussian import Gaussian
from bayescope.likelihoods.heteroscedastic import HeteroscedasticGaussian
from bayescope.likelihoods.likelihood import Likelihood, Moments
from bayescope.likelihoods.preference import BradleyTerry

__all__ = [
    "Bernoulli",
    "BradleyTerry",
    "Categorical",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Likelihood",
    "Moments",
    "described",
    "resolve",
]

_NAMED: dict[str, Likelihood] = {
    "bernoulli": Bernoulli(link="logit"),
    "probit": Bernoulli(link="probit"),
    "categorical": Categorical(),
    "gaussian": Gaussian(),
    "heteroscedastic_gaussian": HeteroscedasticGaussian(),
    "bradley_terry": BradleyTerry(),
}


def resolve(likelihood: str | Likelihood) -> Likelihood:
    """Returns the likelihood that a name stands for, and a likelihood as it is.

    Raises:
        OptionError: if the name is unknown; the message lists the known ones.
        InputTypeError: if it is neither a name nor an object with the methods of `Likelihood`.
    """
    if isinstance(likelihood, str):
        if likelihood not in _NAMED:
            raise OptionError.unknown("likelihood", likelihood, _NAMED)
        return _NAMED[likelihood]
    if not isinstance(likelihood, Likelihood) or isinstance(likelihood, type):
        known = ", ".join(map(repr, _NAMED))
        methods = [name for name in vars(Likelihood) if not name.startswith("_")]
        lacking = [name for name in methods if not hasattr(likelihood, name)]
        # Of a thing that is no likelihood at all, each of the names would tell nothing.
        told = f", which lacks {', '.join(lacking)}" if len(lacking) < len(methods) / 2 else ""
        raise InputTypeError(f"likelihood: expected one of {known}, or a likelihood object, got {likelihood!r}{told}.")
    return likelihood


def described(likelihood: Likelihood) -> dict[str, str]:
    """Lines for a summary: the likelihood's name, and the noise variance that a Gaussian takes for known."""
    if not isinstance(likelihood, Gaussian) or isinstance(likelihood.noise_variance, str):
        return {"likelihood": likelihood.name}
    noise = likelihood.noise_variance.reshape(-1).unique()
    return {"likelihood": likelihood.name, "noise variance": ", ".join(f"{float(value):.4g}" for value in noise)}
