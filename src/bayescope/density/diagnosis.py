"""What a sampler's draws have to say for themselves: R-hat, effective sample sizes, divergences."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch
from torch import Tensor

from bayescope import checks
from bayescope.errors import ConvergenceWarning, DivergenceWarning
from bayescope.likelihoods import Likelihood
from bayescope.models import Model
from bayescope.posterior import DrawsPosterior, Record
from bayescope.transforms import Transform

# Vehtari et al. 2021, section 4: R-hat above this, or fewer effective draws, and means are not to be trusted.
R_HAT_LIMIT = 1.01
EFFECTIVE_DRAWS_LIMIT = 400


def diagnosed(
    draws: Tensor,
    *,
    method: str,
    transform: Transform | None = None,
    divergences: int = 0,
    notes: Mapping[str, str] | None = None,
    model: Model | None = None,
    likelihood: Likelihood | None = None,
) -> DrawsPosterior:
    """The posterior of a sampler's draws, with its diagnostics; it warns where they are bad.

    R-hat is the rank-normalised split R-hat, the effective draws are those of the bulk (Vehtari et al. 2021).

    Args:
        draws: in unconstrained coordinates, shape (chains, draws, P).
        method: the sampler's name.
        transform: to the user's coordinates.
        divergences: how many transitions diverged.
        notes: lines for the summary.
        model: f(x, θ), for predictions.
        likelihood: p(y∣f).

    Raises:
        MissingDependencyError: if ArviZ is not installed.
    """
    theta = draws if transform is None else transform.forward(draws)
    r_hat, effective = convergence(theta)
    _warn(method, r_hat, effective, divergences, theta.shape[0] * theta.shape[1])
    lines = {
        "draws": f"{theta.shape[0]} chains of {theta.shape[1]}",
        "largest R-hat": f"{float(r_hat.max()):.4f}",
        "fewest effective draws": f"{float(effective.min()):.0f}",
        **(notes or {}),
    }
    return DrawsPosterior(
        draws=theta,
        record=Record(method=method, notes=lines),
        function=model,
        likelihood=likelihood,
        r_hat=r_hat,
        effective_draws=effective,
        divergences=divergences,
    )


def convergence(draws: Tensor) -> tuple[Tensor, Tensor]:
    """Rank-normalised split R-hat and bulk effective sample size, each (P,), of draws (chains, draws, P).

    One chain is judged by its two halves.
    """
    if draws.shape[0] == 1:
        half = draws.shape[1] // 2
        draws = torch.stack([draws[0, :half], draws[0, draws.shape[1] - half :]])
    arviz = checks.optional_package("arviz", extra="nuts")
    dataset = arviz.convert_to_dataset({"theta": draws.numpy()})
    r_hat, effective = arviz.rhat(dataset, method="rank"), arviz.ess(dataset, method="bulk")
    return torch.from_numpy(r_hat["theta"].values), torch.from_numpy(effective["theta"].values)


def _warn(method: str, r_hat: Tensor, effective: Tensor, divergences: int, total: int) -> None:
    if divergences:
        warnings.warn(
            f"{method}: {divergences} of {total} transitions diverged, so that the draws may miss regions of high "
            "curvature. Reparametrise (for a hierarchy, non-centred), or raise target_accept.",
            DivergenceWarning,
            stacklevel=4,
        )
    bad_r_hat, bad_effective = ~(r_hat <= R_HAT_LIMIT), ~(effective >= EFFECTIVE_DRAWS_LIMIT)
    if bad_r_hat.any() or bad_effective.any():
        worst = int(r_hat.argmax() if bad_r_hat.any() else effective.argmin())
        warnings.warn(
            f"{method}: the chains have not mixed well: coordinate {worst} has R-hat {float(r_hat[worst]):.3f} "
            f"(limit {R_HAT_LIMIT}) and {float(effective[worst]):.0f} effective draws (limit {EFFECTIVE_DRAWS_LIMIT}). "
            "Raise tune and draws, or reparametrise.",
            ConvergenceWarning,
            stacklevel=4,
        )
