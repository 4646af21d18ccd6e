"""The prior over a network's random weights, given as one number, one a weight, or one a name."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from bayescope import checks
from bayescope.errors import InputError, InputTypeError, OptionError, UnsupportedError
from bayescope.network.weights import Weights, matching
from bayescope.priors import Prior
from bayescope.sparse_priors import SparsePrior

PriorPrecision = float | Tensor | np.ndarray | Mapping[str, object] | Prior


def network_prior(prior_precision: PriorPrecision, weights: Weights, module: nn.Module | None = None) -> Prior:
    """N(0, diag(prior_precision)⁻¹) over the random weights, or a prior, on the device of the weights.

    Args:
        prior_precision: a positive number; shape (P,); a dict with a number for each name; or a `Prior`. A name is that
            of a parameter ("0.weight"), a glob ("*.bias"), or a module ("0", which stands for its parameters); together
            they name each random parameter once. The unit is one over the weight's unit squared.
        weights: which weights are random.
        module: that has them; without it the numbers stay where they are.

    Raises:
        InputTypeError: if it is not one of these.
        InputError: if a precision is not positive, or a parameter is named twice or not at all.
        OptionError: if a name stands for no random parameter.
    """
    if isinstance(prior_precision, Prior):
        prior_precision.structured(weights.dim)
        if prior_precision.flat:
            raise InputError(
                "prior_precision: expected a proper prior for the weights of a network, got one that is flat for "
                f"{prior_precision.flat} of them. Flat intercepts are for linear models."
            )
        prior = prior_precision
    else:
        prior = Prior(prior_diagonal(prior_precision, weights))
    return prior if module is None else prior.on(next(iter(weights.parameters(module).values())).device)


def prior_diagonal(prior_precision: object, weights: Weights) -> Tensor:
    """The prior's precision as one number or of shape (P,), float64, in the graph of what is given as a tensor.

    Raises:
        InputTypeError: if it is not one of the forms that `network_prior` takes.
        InputError: if a precision is not positive, or a parameter is named twice or not at all.
        OptionError: if a name stands for no random parameter.
    """
    if isinstance(prior_precision, Mapping):
        counts = torch.tensor(weights.counts)
        values = by_parameter(prior_precision, weights)
        return values.repeat_interleave(counts.to(values.device))
    return _fitting(_positive("prior_precision", prior_precision), weights)


def resolved_prior(prior: PriorPrecision, weights: Weights, device: torch.device) -> Tensor | Prior:
    """The prior's diagonal, one number or (P,), in its graph; or the prior itself where it has none."""
    if not isinstance(prior, Prior):
        return prior_diagonal(prior, weights).to(device)
    if not isinstance(prior.precision, Tensor):
        return prior
    return _fitting(prior.precision, weights).to(device)


def _fitting(diagonal: Tensor, weights: Weights) -> Tensor:
    """One number, or one for each weight."""
    if diagonal.ndim and diagonal.shape != (weights.dim,):
        raise InputError(f"prior_precision: expected a number or shape ({weights.dim},), got {tuple(diagonal.shape)}.")
    return diagonal


def by_parameter(named: Mapping[str, object], weights: Weights) -> Tensor:
    """The number of each random parameter, in their order, by the name that stands for it; raises as `owners` does."""
    owner = owners(named, weights)
    values = {name: _number(name, value) for name, value in named.items()}
    return torch.stack([values[owner[name]] for name in weights.names])


def owners(names: Mapping[str, object], weights: Weights) -> dict[str, str]:
    """For each random parameter the one name that stands for it.

    Raises:
        InputError: if a parameter is named twice or not at all.
        OptionError: if a name stands for no random parameter.
    """
    found: dict[str, str] = {}
    for pattern in names:
        if not isinstance(pattern, str):
            raise InputTypeError(f"prior_precision: expected names of parameters as keys, got {pattern!r}.")
        hits = matching(pattern, weights.names)
        if not hits:
            unknown = OptionError.unknown("prior_precision", pattern, [*weights.names, *_modules(weights.names)])
            raise OptionError(f"{unknown} A name may be a parameter, a module or a glob such as '*.bias'.")
        for name in hits:
            if name in found:
                raise InputError(
                    f"prior_precision: expected one number for {name!r}, got one by {found[name]!r} and one by "
                    f"{pattern!r}. Name each parameter once."
                )
            found[name] = pattern
    missing = [name for name in weights.names if name not in found]
    if missing:
        raise InputError(
            f"prior_precision: expected a number for each random parameter, got none for {missing}. Name them, or "
            "leave them out of `weights`."
        )
    return found


def _modules(names: tuple[str, ...]) -> list[str]:
    """The modules that hold some parameters, the outer ones first, each once."""
    parts = [name.split(".") for name in names]
    return list(dict.fromkeys(".".join(p[:depth]) for p in parts for depth in range(1, len(p))))


def _number(name: str, value: object) -> Tensor:
    number = _positive(f"prior_precision[{name!r}]", value)
    if number.numel() != 1:
        raise InputError(f"prior_precision[{name!r}]: expected one number, got shape {tuple(number.shape)}.")
    return number.reshape(())


def _positive(name: str, value: object) -> Tensor:
    """Positive numbers in float64, still in the graph where they come as a tensor."""
    if isinstance(value, str) and value in ("auto", "evidence"):
        raise InputTypeError(
            f"{name}: expected a number, an array, a dict by name or a Prior here, got {value!r}. laplace, "
            "function_space, tune_prior, fit_evidence and variational learn it; give the others what they found."
        )
    if isinstance(value, SparsePrior) or (isinstance(value, str) and value in ("horseshoe", "laplace")):
        raise UnsupportedError(
            f"{name}: expected a Gaussian prior for the weights of a network, got {value!r}. Sparse priors are for "
            "BayesianLinearRegression, BayesianLogisticRegression and BayesianGeneralizedLinearModel."
        )
    if value is None or isinstance(value, bool | str):
        raise InputTypeError(
            f"{name}: expected a positive number, an array, a dict by name or a Prior, got {value!r}. Begin with 1.0."
        )
    checked = checks.positive(name, value)
    return value.to(torch.float64) if isinstance(value, Tensor) else checked
