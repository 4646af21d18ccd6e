"""The estimators' prior: what ``prior_precision=`` may be, and how a summary tells it."""

from __future__ import annotations

from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError, OptionError
from bayescope.models import LinearModel
from bayescope.priors import Prior

# What a summary says of a precision at the upper end of the search.
USELESS = " at the end of its range: the features tell nothing about y, and their weights are held at 0"


def weight_precision(value: object, features: int) -> Tensor | None:
    """Checks ``prior_precision=``: a positive number, one a feature, or a `Prior`; ``None`` stands for "evidence".

    Raises:
        InputError: if it is not positive or its shape does not fit, or a prior has another mean than 0.
        OptionError: if it is another word.
    """
    if isinstance(value, str):
        if value != "evidence":
            raise OptionError(f"prior_precision: expected positive numbers or 'evidence', got {value!r}.")
        return None
    if isinstance(value, Prior):
        if bool((value.mean != 0).any()) or not isinstance(value.precision, Tensor):
            raise InputError(
                "prior_precision: expected a Prior with mean 0 and one precision, or one a feature, the intercept left "
                "out, got another. For other priors, condition a posterior on data."
            )
        value = value.precision
    precision = checks.positive("prior_precision", value)
    if precision.ndim > 1 or (precision.ndim == 1 and precision.shape[0] != features):
        raise InputError(
            f"prior_precision: expected a number, one for each of the {features} features or 'evidence', got shape "
            f"{tuple(precision.shape)}."
        )
    return precision


def one_precision(value: object) -> float | None:
    """Checks ``prior_precision=``: a positive number for all weights; ``None`` stands for "evidence".

    Raises:
        InputError: if it is something else.
    """
    if isinstance(value, str) and value == "evidence":
        return None
    try:
        return checks.positive_number("prior_precision", value)
    except InputError:
        raise InputError(
            f"prior_precision: expected a positive number for all weights or 'evidence', got {value!r}."
        ) from None


def intercept_precision(value: float | None) -> float | None:
    """Checks ``intercept_prior_precision=``: a positive number, or ``None`` for the default prior at the inputs' means.

    Raises:
        InputError: if it is something else.
    """
    return None if value is None else checks.positive_number("intercept_prior_precision", value)


def per_feature(prior: Prior, model: LinearModel) -> Tensor:
    """The precision of each feature's weights, shape (D,)."""
    return prior.diagonal(model.dim)[: model.features]


def prior_notes(prior: Prior, model: LinearModel, tuned_by: str | None, *, centred: bool = False) -> dict[str, str]:
    """The prior in words, with its units: it says something about the inputs as the model sees them."""
    each = per_feature(prior, model)
    low, high = float(each.min()), float(each.max())
    value = f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}, one a feature"
    source = "" if tuned_by is None else f", which maximises {tuned_by}"
    notes = {"prior precision of the weights": f"{value}{source}, per (unit of f per unit of input) squared"}
    if prior.flat:
        notes["prior of the intercept"] = "flat"
    elif model.bias:
        intercept = float(prior.diagonal(model.dim)[-1])
        notes["prior precision of the intercept"] = (
            f"{intercept:g}: f at {'the means of the inputs' if centred else 'input 0'} is 0 ± {intercept**-0.5:g} "
            "before the data are seen"
        )
    return notes
