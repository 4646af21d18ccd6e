"""Random-walk Metropolis on any log density."""

from __future__ import annotations

from typing import Any

import torch

from bayescope import checks
from bayescope.density.diagnosis import diagnosed
from bayescope.density.problem import pose, starting_points
from bayescope.density.random_walk import metropolis_draws
from bayescope.errors import InputError
from bayescope.posterior import DrawsPosterior


def metropolis(
    log_density: Any,
    start: Any,
    *,
    transform: Any = None,
    draws: int = 5000,
    tune: int = 5000,
    chains: int = 8,
    generator: torch.Generator | int | None = None,
) -> DrawsPosterior:
    """Draws by random-walk Metropolis, all chains in one vectorised walk, with no use of gradients.

    The proposal's covariance and scale adapt in the warm-up, to an acceptance rate of 0.44 in one dimension and 0.234
    in many, and are frozen then.

    Args:
        log_density: a function from a float64 tensor (P,) in the user's coordinates to a scalar tensor.
        start: in the user's coordinates, shape (P,), which is spread, or (chains, P).
        transform: ``None``; "positive", "unit_interval" or "ordered"; a list with one of these a coordinate; or an
            object with forward, inverse and log_jacobian.
        draws: kept draws a chain.
        tune: warm-up steps a chain, dropped.
        chains: how many.
        generator: a ``torch.Generator`` or an int.

    Returns:
        A `DrawsPosterior`, with ``r_hat`` and ``effective_draws``.

    Raises:
        InputError: if the log density at a start is not finite.

    Warns:
        ConvergenceWarning: if an R-hat is above 1.01 or there are fewer than 400 effective draws of a coordinate.
    """
    point = checks.float64("start", start)
    if point.ndim == 0:
        raise InputError("start: expected shape (dim,) or (chains, dim), got ().")
    problem = pose(log_density, point.shape[-1], transform)
    sampled, acceptance = metropolis_draws(
        problem.unconstrained,
        starting_points(problem, point),
        draws=checks.count("draws", draws, least=4),
        tune=checks.count("tune", tune),
        chains=checks.count("chains", chains),
        generator=checks.generator(generator),
    )
    notes = {"acceptance rate": f"{acceptance:.3f}"}
    return diagnosed(sampled, method="metropolis", transform=problem.transform, notes=notes)
