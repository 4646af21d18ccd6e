"""A posterior in ArviZ's groups: draws, what the sampler reports, log likelihoods and draws of the outcomes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bayescope import checks
from bayescope.likelihoods import Likelihood
from bayescope.models import Model
from bayescope.posterior.missing import InputRows

Groups = dict[str, dict[str, np.ndarray]]


class NamedDraws(NamedTuple):
    """Variables by name, each with the names of its dimensions after those of chains and draws; and coordinates."""

    variables: Mapping[str, tuple[Sequence[str], np.ndarray]]
    coords: Mapping[str, Sequence[Any]]


def row_groups(
    theta: Tensor,
    x: Any,
    y: ArrayLike,
    function: Model,
    likelihood: Likelihood,
    generator: torch.Generator,
    offset: np.ndarray | None = None,
) -> Groups:
    """What drawn weights say of rows: ``log_likelihood``, ``posterior_predictive`` and ``observed_data``, each of "y".

    Args:
        theta: draws, shape (chains, draws, P).
        x: N rows, as the model's `inputs` returns them.
        y: their targets, as the likelihood takes them.
        function: f(x, θ).
        likelihood: p(y∣f).
        generator: of the outcomes that are drawn, one for each row and draw.
        offset: what is added to f, shape (N,) or (N, C).
    """
    targets = likelihood.targets(y, function.outputs)
    shift = InputRows(x, offset=offset).shift(theta)
    f = [function.forward(x, chain) for chain in theta]
    f = f if shift is None else [chain + shift for chain in f]
    rows = torch.stack([likelihood.log_prob(chain, targets) for chain in f])
    drawn = torch.stack([likelihood.sample(chain, generator) for chain in f])
    if targets.ndim > 1 and targets.shape[-1] == 1:  # one number a row
        targets, drawn = targets[..., 0], drawn[..., 0]
    if likelihood.discrete:
        targets, drawn = targets.long(), drawn.long()
    return {
        "log_likelihood": {"y": rows.numpy()},
        "posterior_predictive": {"y": drawn.numpy()},
        "observed_data": {"y": targets.numpy()},
    }


def inference_data(
    groups: Groups,
    *,
    dims: Mapping[str, Sequence[str]] | None = None,
    coords: Mapping[str, Sequence[Any]] | None = None,
) -> Any:
    """The groups as ArviZ has them: an ``InferenceData``, or from version 1 on a ``DataTree``.

    Args:
        groups: the variables of each group, by name; all but those of ``observed_data`` begin with chains and draws.
        dims: the names of a variable's other dimensions.
        coords: the values along a dimension.

    Raises:
        MissingDependencyError: if ArviZ is not installed.
    """
    arviz = checks.optional_package("arviz", extra="nuts")
    named = {"dims": {name: list(each) for name, each in (dims or {}).items()}, "coords": dict(coords or {})}
    if "posterior" in inspect.signature(arviz.from_dict).parameters:  # before version 1
        return arviz.from_dict(**groups, **named)
    return arviz.from_dict(groups, **named)
