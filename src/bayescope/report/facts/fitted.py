"""What was fitted, by what, and how a reader gets the same again."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, final

import numpy as np

from bayescope.errors import UndefinedQuantityError
from bayescope.plots import style

# What approximations are called where the pictures' short name says too little.
NAMES = {"conjugate": "exact (conjugate)"}
PACKAGES = ("bayescope", "torch", "numpy", "scikit-learn")


@final
@dataclass(frozen=True)
class Fitted:
    """An estimator after its fit.

    Attributes:
        model: the estimator's class.
        posterior: what the approximation is called.
        method: its name among the options.
        weights: how many weights the posterior is over.
        parameters: of the estimator, (name, value, whether it is not the default).
        notes: of the posterior's summary: inputs, priors, what was learnt.
        priors: prior precisions, (of what, value).
        log_evidence: log p(y∣X) in nats, or ``None``.
        bound: whether it is a lower bound, the ELBO.
        noise: the noise variance of a regression, where the model has one.
        versions: of the packages that the figures come from.
    """

    model: str
    posterior: str
    method: str
    weights: int
    parameters: tuple[tuple[str, str, bool], ...]
    notes: tuple[tuple[str, str], ...]
    priors: tuple[tuple[str, str], ...]
    log_evidence: float | None
    bound: bool
    noise: float | None
    versions: tuple[tuple[str, str], ...]


def fitted(estimator: Any) -> Fitted:
    """Reads what an estimator tells about itself.

    Args:
        estimator: fitted.
    """
    posterior = estimator.posterior_
    defaults = type(estimator)().get_params(deep=False)
    given = estimator.get_params(deep=False)
    parameters = tuple((name, _written(value), repr(value) != repr(defaults[name])) for name, value in given.items())
    evidence, bound = _evidence(posterior)
    method = posterior.record.method
    noise = getattr(estimator, "noise_variance_", None)
    return Fitted(
        type(estimator).__name__,
        NAMES.get(method, style.label(method)),
        method,
        int(sum(posterior.sizes)) if hasattr(posterior, "sizes") else 0,
        parameters,
        tuple((str(name), str(value)) for name, value in posterior.record.notes.items()),
        _priors(getattr(estimator, "prior_precision_", None)),
        evidence,
        bound,
        float(noise) if isinstance(noise, float | int) else None,
        (*((name, version(name)) for name in PACKAGES), ("Python", platform.python_version())),
    )


def _written(value: Any) -> str:
    """An option as it would be typed, text in double quotes."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _evidence(posterior: Any) -> tuple[float | None, bool]:
    for name, bound in (("log_evidence", False), ("elbo", True)):
        try:
            quantity = getattr(posterior, name)
            return float(quantity() if callable(quantity) else quantity), bound
        except (UndefinedQuantityError, AttributeError):
            continue
    return None, False


def _priors(precision: Any) -> tuple[tuple[str, str], ...]:
    """Prior precisions line by line: of all weights, of each term, or of each layer of a term."""
    if precision is None:
        return ()
    if not isinstance(precision, dict):
        values = np.ravel(precision)
        told = f"{values[0]:.4g}" if len(values) == 1 else f"{values.min():.4g} to {values.max():.4g}, one an input"
        return (("all weights", told),)
    return tuple((str(term), _told(value)) for term, value in precision.items())


def _told(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{layer} {_told(number)}" for layer, number in value.items())
    return f"{float(value):.4g}"
