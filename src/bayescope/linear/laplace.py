"""Laplace's approximation and the point estimate of a linear model, for any log-concave likelihood."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError
from bayescope.likelihoods import Likelihood
from bayescope.linear.density import LinearDensity
from bayescope.linear.mode import LinearMode, find_mode
from bayescope.models import LinearModel
from bayescope.posterior import GaussianPosterior, PointPosterior, Record
from bayescope.priors import Prior

Infer = Callable[[Prior, Any, Any], GaussianPosterior]


def laplace(
    model: LinearModel, likelihood: Likelihood, prior: Prior, X: Any, y: Any, *, weights: Any = None
) -> GaussianPosterior:
    """q(θ) = N(θ̂, A⁻¹) with θ̂ the mode and A = −∂² log p(y, θ̂), exact; log Z by Laplace.

    log p(y) ≈ log p(y, θ̂) + ½ P log 2π − ½ log∣A∣ (Bishop 2006, eq. 4.137).

    Args:
        model: f = W x (+ b).
        likelihood: p(y∣f), log-concave.
        prior: p(θ).
        X: shape (N, D).
        y: labels or numbers, as the likelihood takes them.
        weights: how often each row counts, shape (N,); once by default.

    Returns:
        A posterior with `log_evidence` and `condition`.

    Raises:
        InputError: if X or y cannot be used.
        ConvergenceError: if the mode is not reached.
    """
    return laplace_at(find_mode(compile_density(model, likelihood, prior, X, y, weights)))


def compile_density(
    model: LinearModel, likelihood: Likelihood, prior: Prior, X: Any, y: Any, weights: Any = None
) -> LinearDensity:
    """Checks a table, its labels and its weights and joins them with the model and the prior to a log joint density."""
    inputs = model.inputs(X)
    if inputs.shape[0] == 0:
        raise InputError("X: expected at least one row, got none.")
    targets = likelihood.targets(y, model.outputs)
    return LinearDensity.of(model, likelihood, prior, inputs, targets, _row_weights(weights, inputs.shape[0]))


def _row_weights(weights: Any, rows: int) -> Tensor | None:
    """Weights that are not negative, shape (N,), or ``None``."""
    if weights is None:
        return None
    each = checks.float64("weights", weights)
    if each.shape != (rows,) or bool((each < 0).any()):
        raise InputError(f"weights: expected {rows} numbers, one for each row, none of them negative.")
    return each


def laplace_at(mode: LinearMode, *, method: str = "laplace", infer: Infer | None = None) -> GaussianPosterior:
    """Laplace's approximation at a mode that is known; ``infer`` is what `condition` calls, by default `laplace`."""
    density, dim = mode.density, mode.density.dim
    evidence = mode.log_joint + 0.5 * (dim * math.log(2.0 * math.pi) - mode.precision.logdet())
    return GaussianPosterior(
        mode.theta,
        mode.precision,
        Record(method, evidence=evidence, trace=mode.trace),
        function=density.model,
        likelihood=density.likelihood,
        infer=infer or partial(laplace, density.model, density.likelihood),
    )


def map_at(mode: LinearMode) -> PointPosterior:
    """The point posterior at a mode that is known."""
    density = mode.density
    return PointPosterior(mode.theta, Record("map", trace=mode.trace), density.model, density.likelihood)
