"""The diagnosis of a network's draws in function space: of what they predict, since weights are not identified.

A network's hidden units can change places and signs without a change of f, so that chains which agree on every
prediction may stay far apart in θ: R-hat of the weights tells little about the answers (Izmailov et al. 2021, "What
are Bayesian neural network posteriors really like?", section 4).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayescope.density.diagnosis import (
    EFFECTIVE_DRAWS_LIMIT,
    R_HAT_LIMIT,
    convergence,
    diagnosis_notes,
    warn_of_divergences,
)
from bayescope.errors import ConvergenceWarning
from bayescope.likelihoods import Likelihood
from bayescope.models import Model
from bayescope.network.inputs import count_rows, map_tensors, take_rows
from bayescope.posterior import DrawsPosterior, Record
from bayescope.processes import warn_once

# Predictions are diagnosed at no more rows than these, evenly spaced over those given, and fewer where those of all
# draws would be more numbers than that. Weights are diagnosed where all draws of them are no more.
DIAGNOSED_ROWS = 200
DIAGNOSED_NUMBERS = 2**25


class PredictionDiagnosis(NamedTuple):
    """How well chains agree on E(y∣f) at N inputs, for each of K outcome columns.

    Attributes:
        r_hat: the rank-normalised split R-hat, shape (N, K).
        effective_draws: the bulk effective sample size, shape (N, K).
    """

    r_hat: Tensor
    effective_draws: Tensor


def prediction_diagnosis(
    function: Model, draws: Tensor, inputs: Any, likelihood: Likelihood, *, numbers: int = DIAGNOSED_NUMBERS
) -> PredictionDiagnosis:
    """R-hat and effective draws of E(y∣f(x, θ)) at some inputs (Vehtari et al. 2021), in place of those of θ.

    A prediction that is the same number in every draw, such as a saturated probability, has R-hat 1 and as many
    effective draws as there are.

    Args:
        function: f(x, θ).
        draws: of θ, shape (chains, draws, P), at least four a chain; one chain is judged by its two halves.
        inputs: rows as the model's `inputs` returns them; of more than `DIAGNOSED_ROWS` some are taken, evenly spaced.
            Each position of dense outputs counts as a row; one row is taken with all of them.
        likelihood: p(y∣f).
        numbers: the most that the predictions of all draws are; at least those at one row are taken.
    """
    with torch.no_grad():
        of_one_row = _expected(function.forward(take_rows(inputs, slice(0, 1)), draws[:1, 0]), likelihood)
        room = numbers // (draws.shape[:2].numel() * of_one_row.numel())
        some = diagnosed_rows(inputs, max(1, min(room, DIAGNOSED_ROWS // of_one_row.shape[1])))
        expected = torch.stack([_expected(function.forward(some, chain), likelihood) for chain in draws])
    chains, kept, rows, columns = expected.shape
    r_hat, effective = convergence(expected.flatten(2).cpu())
    constant = (expected == expected[:1, :1]).all(0).all(0).flatten().cpu()
    return PredictionDiagnosis(
        torch.where(constant, 1.0, r_hat).reshape(rows, columns),
        torch.where(constant, float(chains * kept), effective).reshape(rows, columns),
    )


def diagnosed_rows(inputs: Any, most: int = DIAGNOSED_ROWS) -> Any:
    """At most this many of the rows of checked inputs, evenly spaced."""
    rows = count_rows(inputs)
    if rows <= most:
        return inputs
    chosen = torch.linspace(0, rows - 1, most, dtype=torch.float64).round().long()
    return map_tensors(lambda tensor: tensor[chosen.to(tensor.device)], inputs)


def diagnosed(
    draws: Tensor,
    *,
    method: str,
    function: Model,
    likelihood: Likelihood,
    inputs: Any,
    advice: str,
    divergences: int = 0,
    statistics: Mapping[str, Tensor] | None = None,
    thin: int = 1,
    notes: Mapping[str, str] | None = None,
) -> DrawsPosterior:
    """The posterior of chains over a network's weights, judged by what they predict; it warns where that is bad.

    ``r_hat`` and ``effective_draws`` of the weights are ``None`` where there are more than `DIAGNOSED_NUMBERS` of them.

    Args:
        draws: shape (chains, draws, P), at least four a chain.
        method: the sampler's name.
        function: f(x, θ).
        likelihood: p(y∣f).
        inputs: where predictions are judged, as the model's `inputs` returns them: the training inputs.
        advice: what to do about chains that have not mixed, as a sentence.
        divergences: how many transitions diverged, those between the draws that were kept among them.
        statistics: what the sampler reports of each draw, shape (chains, draws).
        thin: how many transitions lie from one draw to the next.
        notes: lines for the summary, after those of the diagnosis.

    Warns:
        ConvergenceWarning: if a prediction's R-hat is above 1.01 or it has fewer than 400 effective draws.
        DivergenceWarning: if transitions diverged.
    """
    r_hat, effective = convergence(draws) if draws.numel() <= DIAGNOSED_NUMBERS else (None, None)
    predictions = prediction_diagnosis(function, draws, inputs, likelihood)
    warn_of_divergences(method, divergences, draws.shape[0] * draws.shape[1] * thin)
    warn_of_predictions(method, predictions, advice)
    lines = {**diagnosis_notes(draws, *predictions, of="predictions"), **(notes or {})}
    return DrawsPosterior(
        draws=draws,
        record=Record(method, notes=lines),
        function=function,
        likelihood=likelihood,
        r_hat=r_hat,
        effective_draws=effective,
        divergences=divergences,
        statistics=dict(statistics or {}),
        prediction_r_hat=predictions.r_hat,
        prediction_effective_draws=predictions.effective_draws,
    )


def warn_of_predictions(
    method: str,
    diagnosis: PredictionDiagnosis,
    advice: str,
    *,
    r_hat_limit: float = R_HAT_LIMIT,
    effective_limit: float | None = EFFECTIVE_DRAWS_LIMIT,
) -> None:
    """Warns where chains disagree on a prediction, or have too few effective draws of it.

    Args:
        method: the sampler's name.
        diagnosis: of its predictions.
        advice: what to do, as a sentence.
        r_hat_limit: above it, a prediction's R-hat is warned of.
        effective_limit: below it, a prediction's effective draws are; ``None`` for any number of them.
    """
    r_hat, effective = diagnosis
    bad_r_hat, bad_effective = ~(r_hat <= r_hat_limit), ~(effective >= (effective_limit or 0.0))
    bad = bad_r_hat | bad_effective
    if bad.any():
        worst = int(r_hat.argmax() if bad_r_hat.any() else effective.argmin())
        warn_once(
            f"{method}: the chains have not mixed well: {int(bad.any(-1).sum())} of {len(r_hat)} predictions are not "
            f"settled; that of row {worst // r_hat.shape[1]} has R-hat {float(r_hat.flatten()[worst]):.3f} (limit "
            f"{r_hat_limit:g}) and {float(effective.flatten()[worst]):.0f} effective draws"
            f"{'' if effective_limit is None else f' (limit {effective_limit:g})'}. {advice}",
            ConvergenceWarning,
        )


def _expected(f: Tensor, likelihood: Likelihood) -> Tensor:
    """E(y∣f), shape (S, M, K), for outputs (S, N, *positions, C)."""
    return likelihood.conditional(f.flatten(1, -2))[0]
