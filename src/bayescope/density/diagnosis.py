"""What a sampler's draws have to say for themselves: R-hat, effective sample sizes, divergences."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from bayescope.density.convergence import convergence
from bayescope.errors import ConvergenceWarning, DivergenceWarning, warn
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
    statistics: Mapping[str, Tensor] | None = None,
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
        statistics: what the sampler reports of each draw, shape (chains, draws), such as "diverging".
        notes: lines for the summary.
        model: f(x, θ), for predictions.
        likelihood: p(y∣f).

    Raises:
        InputError: if there are fewer than four draws a chain.

    Warns:
        ConvergenceWarning: if a coordinate has a larger R-hat or fewer effective draws than the limits.
        DivergenceWarning: if transitions diverged.
    """
    theta = draws if transform is None else transform.forward(draws)
    r_hat, effective = convergence(theta)
    told = dict(statistics or {})
    divergences = int(told["diverging"].sum()) if told else 0
    warn_of_divergences(method, divergences, theta.shape[0] * theta.shape[1])
    _warn_of_mixing(method, r_hat, effective)
    lines = {**diagnosis_notes(theta, r_hat, effective), **(notes or {})}
    return DrawsPosterior(
        draws=theta,
        record=Record(method=method, notes=lines),
        function=model,
        likelihood=likelihood,
        r_hat=r_hat,
        effective_draws=effective,
        divergences=divergences,
        statistics=told,
    )


def diagnosis_notes(draws: Tensor, r_hat: Tensor, effective: Tensor, of: str = "") -> dict[str, str]:
    """Lines for the summary: how many draws, and the worst of their diagnosis.

    Args:
        draws: shape (chains, draws, P).
        r_hat: of whatever is judged.
        effective: the effective draws of the same.
        of: what is judged, such as "predictions", where it is not the coordinates.
    """
    where = f" of {of}" if of else ""
    return {
        "draws": f"{draws.shape[0]} chains of {draws.shape[1]}",
        f"largest R-hat{where}": f"{float(r_hat.max()):.4f}",
        f"fewest effective draws{where}": f"{float(effective.min()):.0f}",
    }


def warn_of_divergences(method: str, divergences: int, total: int) -> None:
    """Warns where some of the transitions diverged."""
    if divergences:
        warn(
            f"{method}: {divergences} of {total} transitions diverged, so that the draws may miss regions of high "
            "curvature. Reparametrise (for a hierarchy, non-centred), or raise target_accept.",
            DivergenceWarning,
        )


def _warn_of_mixing(method: str, r_hat: Tensor, effective: Tensor) -> None:
    bad_r_hat, bad_effective = ~(r_hat <= R_HAT_LIMIT), ~(effective >= EFFECTIVE_DRAWS_LIMIT)
    if bad_r_hat.any() or bad_effective.any():
        worst = int(r_hat.argmax() if bad_r_hat.any() else effective.argmin())
        warn(
            f"{method}: the chains have not mixed well: coordinate {worst} has R-hat {float(r_hat[worst]):.3f} "
            f"(limit {R_HAT_LIMIT}) and {float(effective[worst]):.0f} effective draws (limit {EFFECTIVE_DRAWS_LIMIT}). "
            "Raise tune and draws, or reparametrise.",
            ConvergenceWarning,
        )
