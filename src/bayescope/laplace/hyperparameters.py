"""Hyperparameters as a summary tells them: the prior precisions by name, the likelihood and its noise."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bayescope.likelihoods import Likelihood, described
from bayescope.network.model import NetworkModel
from bayescope.network.weights import Weights
from bayescope.priors import Prior

# This many numbers are written out by name.
SHOWN = 8


def hyperparameters(prior: Prior, likelihood: Likelihood, function: NetworkModel) -> dict[str, str]:
    """Lines for a posterior's summary: the prior precision, the likelihood and its noise variance."""
    return {"prior precision": prior_precision(prior, function.weights), **described(likelihood)}


def prior_precision(prior: Prior, weights: Weights) -> str:
    """One number, one by layer or by parameter where they are so, or the range of one per weight."""
    precision = prior.precision
    if not isinstance(precision, Tensor):
        return "a matrix, such as that of an earlier posterior"
    if precision.numel() == 1:
        return f"{float(precision):.4g}"
    parts = precision.split(list(weights.counts))
    if not all(bool((part == part[0]).all()) for part in parts):
        return f"one per weight, from {float(precision.min()):.4g} to {float(precision.max()):.4g}"
    by_name = {name: part[0] for name, part in zip(weights.names, parts, strict=True)}
    owners = {name: name.rpartition(".")[0] or name for name in by_name}
    by_layer = {owners[name]: value for name, value in by_name.items()}
    alike = all(bool(by_layer[owners[name]] == value) for name, value in by_name.items())
    chosen = by_layer if alike else by_name
    return listed(tuple(chosen), torch.stack(list(chosen.values())))


def listed(names: Sequence[str], values: Tensor, units: Sequence[str] | None = None) -> str:
    """Numbers by name, the first few of them."""
    units = [""] * len(names) if units is None else units
    entries = [f"{name}: {float(v):.4g} {unit}".rstrip() for name, v, unit in zip(names, values, units, strict=True)]
    if names == ("all",):
        return f"{float(values[0]):.4g}"
    more = [f"and {len(names) - SHOWN:,} more"] if len(names) > SHOWN else []
    return ", ".join([*entries[:SHOWN], *more])
