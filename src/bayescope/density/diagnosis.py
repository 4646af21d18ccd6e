"""What a sampler's draws say about themselves: R-hat, effective sample sizes, divergences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from bayescope.errors import ConvergenceWarning, DivergenceWarning, InputError
from bayescope.likelihoods import Likelihood
from bayescope.models import Model
from bayescope.posterior import DrawsPosterior, Record
from bayescope.processes import warn_once
from bayescope.transforms import NamedTransforms, Transform

# Vehtari et al. 2021, section 4: R-hat above this, or fewer effective draws, and means are not to be trusted.
R_HAT_LIMIT = 1.01
EFFECTIVE_DRAWS_LIMIT = 400


class Mixing(NamedTuple):
    """How well chains agree on some quantities.

    Attributes:
        r_hat: the rank-normalised split R-hat of each.
        effective_draws: the bulk effective sample size of each.
    """

    r_hat: Tensor
    effective_draws: Tensor


def diagnosed(
    draws: Tensor,
    record: Record,
    *,
    transform: Transform | None = None,
    statistics: Mapping[str, Tensor] | None = None,
    thin: int = 1,
    model: Model | None = None,
    likelihood: Likelihood | None = None,
    coordinates: bool = True,
    predictions: Mixing | None = None,
    advice: str = "Raise tune and draws, or reparametrise.",
    limits: tuple[float, float | None] = (R_HAT_LIMIT, EFFECTIVE_DRAWS_LIMIT),
) -> DrawsPosterior:
    """Return the posterior of a sampler's draws, with its diagnostics; it warns where they are bad.

    R-hat is the rank-normalised split R-hat, the effective draws are those of the bulk (Vehtari et al. 2021).

    Args:
        draws: in unconstrained coordinates, shape (chains, draws, P).
        record: has the sampler's name, and its notes, which follow those of the diagnosis.
        transform: to the user's coordinates.
        statistics: what the sampler reports of each transition, shape (chains, thin · draws), such as "diverging".
        thin: how many transitions lie from one draw to the next.
        model: f(x, θ), for predictions.
        likelihood: p(y∣f).
        coordinates: whether R-hat of θ is found.
        predictions: how well the chains agree on predictions, shape (N, K), which are then judged in place of θ.
        advice: what to do about chains that have not mixed, as a sentence.
        limits: above this R-hat, or below as many effective draws, it warns; ``None`` for any number of them.

    Raises:
        InputError: if there are fewer than four draws a chain, and R-hat of θ is to be found.

    Warns:
        ConvergenceWarning: beyond the limits.
        DivergenceWarning: if transitions diverged.
    """
    theta = draws if transform is None else transform.forward(draws)
    known = dict(statistics or {})
    found = Mixing(*convergence(theta)) if coordinates else None
    divergences = int(known["diverging"].sum()) if "diverging" in known else 0
    if divergences:
        warn_once(
            f"{record.method}: {divergences} of {known['diverging'].numel()} transitions diverged, so that the draws "
            "may miss regions of high curvature. Reparametrise (for a hierarchy, non-centred), or raise target_accept.",
            DivergenceWarning,
        )
    notes = {"draws": f"{theta.shape[0]} chains of {theta.shape[1]}"}
    judged = found if predictions is None else predictions
    if judged is found and found is not None and isinstance(transform, NamedTransforms):
        fixed = transform.fixed  # a correlation matrix's diagonal is 1 in every draw
        judged = Mixing(
            found.r_hat.where(~fixed, -math.inf),
            found.effective_draws.where(~fixed, math.inf),
        )
    if judged is not None:
        _warn_of_mixing(record.method, judged, advice, limits)
        where = " of predictions" if predictions is not None else ""
        notes[f"largest R-hat{where}"] = f"{float(judged.r_hat.max()):.4f}"
        notes[f"fewest effective draws{where}"] = f"{float(judged.effective_draws.min()):.0f}"
    return DrawsPosterior(
        draws=theta,
        record=replace(record, notes={**notes, **record.notes}),
        function=model,
        likelihood=likelihood,
        r_hat=None if found is None else found.r_hat,
        effective_draws=None if found is None else found.effective_draws,
        divergences=divergences,
        prediction_r_hat=None if predictions is None else predictions.r_hat,
        prediction_effective_draws=None if predictions is None else predictions.effective_draws,
        statistics={name: each[:, thin - 1 :: thin] for name, each in known.items()},
    )


def _warn_of_mixing(method: str, mixing: Mixing, advice: str, limits: tuple[float, float | None]) -> None:
    r_hat, effective = (each.reshape(len(each), -1) for each in mixing)
    most, least = limits
    bad_r_hat, bad_effective = ~(r_hat <= most), ~(effective >= (least or 0.0))
    bad = (bad_r_hat | bad_effective).any(-1)
    if bad.any():
        worst = int(r_hat.argmax() if bad_r_hat.any() else effective.argmin())
        kind = "coordinate" if mixing.r_hat.ndim == 1 else "prediction"
        enough = "" if least is None else f" (limit {least:g})"
        warn_once(
            f"{method}: the chains have not mixed well: {int(bad.sum())} of {len(bad)} {kind}s are not settled; {kind} "
            f"{worst // r_hat.shape[1]} has R-hat {float(r_hat.flatten()[worst]):.3f} (limit {most:g}) and "
            f"{float(effective.flatten()[worst]):.0f} effective draws{enough}. {advice}",
            ConvergenceWarning,
        )


# The fewest draws a chain for R-hat: two in each half.
FEWEST_DRAWS = 4
# Numbers that are worked on at once: some stay in the processor's cache, and transforms take several copies.
_BLOCK = 2**18


def convergence(draws: Tensor) -> tuple[Tensor, Tensor]:
    """Rank-normalised split R-hat and bulk effective sample size, each (P,), of draws (chains, draws, P).

    Each chain is judged by its two halves, so that one chain is enough. Where all draws are the same number, both are
    NaN: nothing has moved.

    Raises:
        InputError: if there are fewer than four draws a chain.
    """
    if draws.shape[1] < FEWEST_DRAWS:
        raise InputError(f"draws: expected at least {FEWEST_DRAWS} a chain, got {draws.shape[1]}.")
    columns = max(1, _BLOCK // (draws.shape[0] * draws.shape[1]))
    blocks = [_of_halves(_halves(block)) for block in draws.to(torch.float64).split(columns, -1)]
    r_hat, effective = zip(*blocks, strict=True)
    return torch.cat(r_hat), torch.cat(effective)


def _of_halves(halves: Tensor) -> tuple[Tensor, Tensor]:
    scores = _normal_scores(halves)
    # Folding sees chains that agree in their location and differ in their spread (section 4.2).
    folded = _normal_scores((halves - _median(halves.flatten(0, 1))).abs())
    r_hat, of_spread = _r_hat(scores), _r_hat(folded)
    # Folded draws may all be tied where the draws are not: then there is no spread to disagree about.
    return torch.where(of_spread > r_hat, of_spread, r_hat), _effective(scores)


def _halves(draws: Tensor) -> Tensor:
    """Both halves of each chain, (2 chains, n, P); the middle one of an odd number of draws is left out."""
    n = draws.shape[1] // 2
    return torch.cat([draws[:, :n], draws[:, draws.shape[1] - n :]])


def _median(values: Tensor) -> Tensor:
    """The median of an even number of draws, shape (P,)."""
    half = len(values) // 2
    return 0.5 * (values.kthvalue(half, 0).values + values.kthvalue(half + 1, 0).values)


def _normal_scores(chains: Tensor) -> Tensor:
    """Φ⁻¹((rank − 3/8)/(S + 1/4)) with average ranks for ties, over all S draws of a coordinate (Eq. 14)."""
    values, order = chains.flatten(0, 1).mT.contiguous().sort(dim=1)
    size = values.shape[1]
    # Twice the rank is a whole number, so that a table has all the scores there can be.
    doubled = torch.arange(2, 2 * size + 1, dtype=torch.float64)
    table = torch.special.ndtri((0.5 * doubled - 0.375) / (size + 0.25))
    places = torch.arange(size).expand_as(values)
    changes = values[:, 1:] != values[:, :-1]
    if bool(changes.all()):
        scores = table[::2].expand_as(values)
    else:
        edge = torch.ones_like(changes[:, :1])
        first = torch.where(torch.cat([edge, changes], 1), places, 0).cummax(1).values
        last = torch.where(torch.cat([changes, edge], 1), places, size).flip(1).cummin(1).values.flip(1)
        scores = table[first + last]
    ranked = torch.empty_like(values).scatter_(1, order, scores)
    return ranked.mT.reshape(chains.shape)


def _variances(chains: Tensor) -> tuple[Tensor, Tensor]:
    """W, the mean variance within chains, and v̂⁺ = (n − 1)/n W + B/n (Eqs. 1–3)."""
    n = chains.shape[1]
    within = chains.var(1).mean(0)
    return within, (n - 1) / n * within + chains.mean(1).var(0)


def _r_hat(chains: Tensor) -> Tensor:
    """The potential scale reduction √(v̂⁺/W) of each coordinate (Eq. 4)."""
    within, total = _variances(chains)
    return (total / within).sqrt()


def _effective(chains: Tensor) -> Tensor:
    """S/τ, with τ = −1 + 2 Σ_t P_t over Geyer's initial monotone sequence of P_t = ρ_2t + ρ_2t+1 (Eqs. 10–13).

    ρ_t = 1 − (W − mean over chains of s² ρ̂_t)/v̂⁺. The sum goes up to the first pair that is not positive, or the last
    that there is, whose lags 2t and 2t + 1 are at most n − 2. The even member of this one is still counted once, where
    it or the pair is positive: it matters for antithetic chains. S/τ is at most S log₁₀ S.
    """
    count, n, _ = chains.shape
    within, total = _variances(chains)
    rho = 1.0 - (within - _autocovariance(chains).mean(0)) / total
    rho[0] = 1.0
    last = max(0, (n - 3) // 2)
    pairs = rho[: 2 * (last + 1)].unflatten(0, (-1, 2)).sum(1)
    positive = (pairs[:last] > 0).int().cumprod(0)
    end = positive.sum(0)[None]
    summed = (pairs.cummin(0).values[:last] * positive).sum(0)
    even = torch.take_along_dim(rho[::2], end, 0)[0]
    leftover = torch.where((even > 0) | (torch.take_along_dim(pairs, end, 0)[0] >= 0), even, 0.0)
    size = count * n
    tau = (2.0 * summed - 1.0 + leftover).clamp(min=1.0 / math.log10(size))
    return torch.where(total > 0, size / tau, torch.nan)


def _autocovariance(chains: Tensor) -> Tensor:
    """Σ_i (x_i − x̄)(x_{i+t} − x̄)/n for each lag t, shape (chains, n, P), by a padded Fourier transform."""
    n = chains.shape[1]
    length = 1 << (2 * n - 1).bit_length()
    spectrum = torch.fft.rfft(chains - chains.mean(1, keepdim=True), n=length, dim=1)
    return torch.fft.irfft(spectrum.abs().square(), n=length, dim=1)[:, :n] / n
