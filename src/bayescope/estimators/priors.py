"""The estimators' prior: what ``prior_precision=`` may be, and how a summary tells it."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError, OptionError
from bayescope.estimators.inputs import InputMap
from bayescope.linear.groups import WeightGroups
from bayescope.models import LinearModel
from bayescope.priors import Prior
from bayescope.sparse_priors import Horseshoe, LaplacePrior, SparsePrior

# The prior precisions that the evidence learns: one number, or one a feature.
LEARNT = ("evidence", "ard")
# The sparse priors with their default scales.
SPARSE: dict[str, SparsePrior] = {"horseshoe": Horseshoe(), "laplace": LaplacePrior()}
# Of the default prior of f at the inputs' means: f is in log odds, without a unit, and 10 of them are a rate of 5e-5.
# A flat prior would not do: if a plane separates the classes, the range of b that does grows with the length of w, and
# the evidence as a function of the weights' precision α rises as α^{-1/2} for ever.
WEAK_INTERCEPT = 0.01
# The prior precision of a weight that the evidence switches off and the model has to keep.
NOTHING = 1e100
# A summary names this many features that were switched off.
NAMED = 5
# What a summary says of a precision at the upper end of the search.
USELESS = " at the end of its range: the features tell nothing about y, and their weights are held at 0"


def sparse_prior(value: object) -> SparsePrior | None:
    """The sparse prior that ``prior_precision=`` names or is, if it does."""
    if isinstance(value, str):
        return SPARSE.get(value)
    return value if isinstance(value, SparsePrior) else None


def weight_precision(value: object, features: int, *, flat: bool = False) -> Tensor | None:
    """Checks ``prior_precision=``: a positive number, one a feature, or a `Prior`; ``None`` where it is to be learnt.

    With ``flat`` it may be 0, for a flat prior.

    Raises:
        InputError: if it is not positive or its shape does not fit, or a prior has another mean than 0.
        OptionError: if it is another word.
    """
    if sparse_prior(value) is not None:
        return None
    if isinstance(value, str):
        if value not in LEARNT:
            raise OptionError(
                "prior_precision: expected positive numbers, 'evidence', 'ard', 'horseshoe' or 'laplace', got "
                f"{value!r}."
            )
        return None
    if isinstance(value, Prior):
        if bool((value.mean != 0).any()) or not isinstance(value.precision, Tensor):
            raise InputError(
                "prior_precision: expected a Prior with mean 0 and one precision, or one a feature, the intercept left "
                "out, got another. For other priors, condition a posterior on data."
            )
        value = value.precision
    if flat and np.ndim(cast(Any, value)) == 0 and value == 0:
        return torch.zeros((), dtype=torch.float64)
    precision = checks.positive("prior_precision", value)
    if precision.ndim > 1 or (precision.ndim == 1 and precision.shape[0] != features):
        raise InputError(
            f"prior_precision: expected a number, one for each of the {features} features, a prior or a name, got "
            f"shape {tuple(precision.shape)}."
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


def of_weights(prior: Prior, model: LinearModel) -> Tensor:
    """The precision of each weight, shape (C, D)."""
    return model.unflat(prior.diagonal(model.dim))[0]


def weight_groups(inputs: InputMap, given: Tensor | None, *, relevance: bool) -> WeightGroups | None:
    """The groups of weights whose precisions are to be learnt apart; ``None`` where at most one is to be learnt.

    Args:
        inputs: of the model, all of them.
        given: the precision of the weights of features, one number or one an input; ``None`` where it is learnt.
        relevance: whether it is learnt for each feature by itself.
    """
    if not relevance and not inputs.groups:
        return None
    owners, names = inputs.owners
    features = len(names) - len(inputs.groups)
    of_features = owners < features
    if given is not None and given.ndim:
        index, known = np.arange(len(owners)), given
    else:
        index = owners if relevance else 0 * owners
        known = torch.full((features if relevance else 1,), math.nan if given is None else float(given)).double()
    index = np.where(of_features, index, len(known) + owners - features)
    each = torch.cat([known, known.new_full((len(inputs.groups),), math.nan)])
    present, index = np.unique(index, return_inverse=True)
    return WeightGroups(torch.from_numpy(index.astype(np.int64)), each[torch.from_numpy(present)])


def group_notes(inputs: InputMap, precisions: np.ndarray, *, relevance: bool) -> dict[str, str]:
    """Which features the evidence switched off, and the random effects' sds, for a summary.

    Args:
        inputs: of the model.
        precisions: of all inputs, shape (D,), or of all weights, (C, D).
        relevance: whether each feature's precision was learnt by itself.
    """
    owners, names = inputs.owners
    features, notes = len(names) - len(inputs.groups), {}
    on = np.bincount(owners, ~np.isinf(np.atleast_2d(precisions)).all(0), minlength=len(names)) > 0
    off = [name for name, stays in zip(names[:features], on.tolist(), strict=False) if not stays]
    if relevance or off:
        more = f" and {len(off) - NAMED} more" if len(off) > NAMED else ""
        listed = f": {', '.join(off[:NAMED])}{more}" if off else ""
        notes["switched off by the evidence"] = f"{len(off)} of {features} features{listed}"
    for at, group in enumerate(inputs.groups, features):
        sds = " and ".join(f"{each**-0.5:.4g}" for each in np.atleast_2d(precisions[..., owners == at])[:, 0].tolist())
        levels = int((group.counts > 0).sum()) + (group.missing > 0)
        notes[f"random effects of {group.name}"] = (
            f"{levels} levels, with a sd of {sds} that maximises the evidence; a new level has mean 0 and this sd"
        )
    return notes


def prior_notes(
    prior: Prior, model: LinearModel, tuned_by: str | None, *, centred: bool = False, features: int | None = None
) -> dict[str, str]:
    """The prior in words, with its units: it says something about the inputs as the model sees them."""
    each, notes = of_weights(prior, model)[:, :features], {}
    if prior.flat == model.dim:
        notes["prior of the weights"] = "flat: the log evidence is not defined"
    elif each.numel():
        low, high = float(each.min()), float(each[each < NOTHING].max()) if bool((each < NOTHING).any()) else NOTHING
        by_output, by_feature = bool((each == each[:, :1]).all()), bool((each == each[:1]).all())
        whose = "an output" if by_output else "a feature" if by_feature else "a weight"
        value = f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}, one {whose}"
        off = int((each >= NOTHING).all(1).sum()) if model.outputs > 1 else 0
        rest = f"; infinite for {off} of {model.outputs} outputs, of which the features tell nothing" if off else ""
        source = "" if tuned_by is None else f", which maximises {tuned_by}"
        notes["prior precision of the weights"] = f"{value}{source}, per (unit of f per unit of input) squared{rest}"
    intercept = float(prior.diagonal(model.dim)[-model.outputs :].max()) if model.bias else 0.0
    if intercept:
        but = f", flat for {prior.flat} of {model.outputs} outputs" if prior.flat else ""
        notes["prior precision of the intercept"] = (
            f"{intercept:g}: f at {'the means of the inputs' if centred else 'input 0'} is 0 ± {intercept**-0.5:g} "
            f"before the data are seen{but}"
        )
    elif prior.flat:
        notes["prior of the intercept"] = "flat"
    return notes
