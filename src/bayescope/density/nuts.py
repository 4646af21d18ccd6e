"""The No-U-Turn sampler on any log density."""

from __future__ import annotations

from typing import Any

import torch

from bayescope import checks
from bayescope.density.diagnosis import diagnosed
from bayescope.density.nutpie_adapter import nuts_draws
from bayescope.density.problem import pose, starting_points
from bayescope.posterior import DrawsPosterior


def nuts(
    log_density: Any,
    dim: int,
    *,
    transform: Any = None,
    start: Any = None,
    draws: int = 1000,
    tune: int = 1000,
    chains: int = 4,
    target_accept: float = 0.8,
    generator: torch.Generator | int | None = None,
    progress: bool = True,
) -> DrawsPosterior:
    """Draws by the No-U-Turn sampler (Hoffman & Gelman 2014), as nutpie implements it.

    Args:
        log_density: a function from a float64 tensor (P,) in the user's coordinates to a scalar tensor that autograd
            can differentiate.
        dim: P.
        transform: ``None``; "positive", "unit_interval" or "ordered"; a list with one of these a coordinate; or an
            object with forward, inverse and log_jacobian.
        start: in the user's coordinates, shape (P,), which is spread, or (chains, P); the default is u = 0.
        draws: kept draws a chain.
        tune: warm-up draws a chain, dropped.
        chains: how many; on several cores at once where a gradient takes milliseconds, one after another where it is
            cheaper.
        target_accept: the acceptance rate that the step size aims at; nearer to 1 for fewer divergences.
        generator: a ``torch.Generator`` or an int.
        progress: whether to show a progress bar, on the error stream and only to a terminal.

    Returns:
        A `DrawsPosterior`, with ``r_hat``, ``effective_draws`` and ``divergences``.

    Raises:
        MissingDependencyError: if nutpie is not installed: pip install 'bayescope[nuts]'.
        InputError: if the log density at a start is not finite.
        ConvergenceError: if the sampler gives up.

    Warns:
        ConvergenceWarning: if an R-hat is above 1.01 or there are fewer than 400 effective draws of a coordinate.
        DivergenceWarning: if transitions diverged.
    """
    problem = pose(log_density, dim, transform)
    sampled, statistics = nuts_draws(
        problem.unconstrained,
        start=starting_points(problem, start),
        draws=checks.count("draws", draws, least=4),
        tune=checks.count("tune", tune),
        chains=checks.count("chains", chains),
        target_accept=checks.fraction("target_accept", target_accept),
        generator=checks.generator(generator),
        progress=progress,
    )
    return diagnosed(sampled, method="nuts", transform=problem.transform, statistics=statistics)
