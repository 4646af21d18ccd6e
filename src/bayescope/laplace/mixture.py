"""Several modes: a mixture of Laplace's approximations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from bayescope.errors import InputError
from bayescope.laplace.hyperparameters import SHOWN
from bayescope.posterior import GaussianPosterior, MixturePosterior, Record


def mixture_of(components: Sequence[GaussianPosterior], weighting: str) -> MixturePosterior:
    """q(θ) = Σ_k w_k N(θ_k, A_k⁻¹), one Gaussian for each mode, of networks that may differ in all but their outputs.

    With "evidence", w_k ∝ Z_k, each mode's share of log Z = log Σ_k Z_k, as modes that lie apart add up. With "equal",
    as in deep ensembles (Eschenhagen et al. 2021, "Mixtures of Laplace approximations"), w_k = 1/K: differences of a
    few nats between modes are then not believed, and log Z = log Σ_k Z_k / K is the mean over the modes, as if
    each was found by the same chance.

    Args:
        components: the Gaussians, with their evidences.
        weighting: "equal" or "evidence".

    Raises:
        InputError: if there are none, or their outputs differ in number.
    """
    if not components:
        raise InputError("model: expected a module, or at least one in the list, got an empty list.")
    outputs = [component.function.outputs for component in components if component.function is not None]
    if len(set(outputs)) > 1:
        raise InputError(f"model: expected modules with the same number of outputs, got {outputs}.")
    evidences = torch.stack([component.log_evidence().cpu() for component in components])
    total, count = torch.logsumexp(evidences, 0), len(components)
    if weighting == "evidence":
        log_weights, evidence = evidences - total, total
    else:
        log_weights, evidence = torch.full_like(evidences, -math.log(count)), total - math.log(count)
    first = components[0]
    notes = {
        "modes": f"{count}, {weighting} weights",
        "log evidence of each": ", ".join(f"{float(value):.4f}" for value in evidences),
        **_shared([component.record.notes for component in components]),
    }
    return MixturePosterior(
        log_weights.to(first.location.device),
        tuple(components),
        Record("mixture of laplace", evidence=evidence, notes=notes),
        first.function,
        first.likelihood,
        weighting,
    )


def _shared(notes: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The modes' hyperparameters: once where all have the same, else by mode."""
    common = {}
    for name in ("prior precision", "likelihood", "noise variance"):
        values = [each[name] for each in notes if name in each]
        if values:
            modes = [f"mode {place}: {value}" for place, value in enumerate(values)]
            more = [f"and {len(modes) - SHOWN} more"] if len(modes) > SHOWN else []
            common[name] = values[0] if len(set(values)) == 1 else "; ".join([*modes[:SHOWN], *more])
    return common
