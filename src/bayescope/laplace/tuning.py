"""Hyperparameters of a Laplace approximation, learnt after the fit: `tune_prior`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch

from bayescope import checks
from bayescope.errors import (
    ConvergenceWarning,
    InputError,
    InputTypeError,
    UndefinedQuantityError,
    UnsupportedError,
)
from bayescope.laplace.distance import LEARN
from bayescope.laplace.evidence import EvidenceOfModes, Optimum, maximise
from bayescope.laplace.fit import LaplaceFit
from bayescope.laplace.groups import PriorGroups, SharePrior
from bayescope.laplace.hyperparameters import SHOWN, listed
from bayescope.laplace.judgement import warn_if_worse
from bayescope.laplace.mixture import mixture_of
from bayescope.laplace.validation import by_validation
from bayescope.likelihoods import IntegralName
from bayescope.logs import logged
from bayescope.network.batches import Data
from bayescope.posterior import GaussianPosterior, MixturePosterior, Posterior, noted
from bayescope.process_state import outside_inference_mode
from bayescope.processes import collective, warn_once

METHODS = ("evidence", "validation")
# Held-out rows that are read at once, where nothing else is asked for.
BATCH_SIZE = 1024


@logged
@outside_inference_mode
@collective
def tune_prior(
    q: Posterior,
    *,
    method: Literal["evidence", "validation"] = "evidence",
    share_prior: SharePrior | None = None,
    data: Data | None = None,
    temperature: bool = False,
    integral: IntegralName | None = None,
    batch_size: int | None = None,
) -> Posterior:
    """A posterior at the same weights under the prior precisions, and the noise, that suit the data best.

    "evidence" maximises log Z (MacKay 1992; Immer et al. 2021a, "Scalable marginal likelihood estimation") and reads no
    data. It is right where the weights are a mode under the prior that results: under a prior far from the one that a
    network was trained with the mode would move, and the Newton decrement says how far. Train again then, with the new
    prior (`fit_map`) or learn both together (`fit_evidence`), or take "validation".

    The noise variance is learnt too where q was fitted with ``Gaussian("evidence")`` or "gaussian"; the one of
    ``Gaussian(σ²)`` is held.

    "validation" minimises the negative log likelihood of held-out data under the linearised predictive, over a grid of
    `validation.PER_DECADE` values a decade and the vertex of a parabola beside the best of them. The Jacobians of the
    held-out data are read once, whatever is tuned.

    Under an initialised process group of torch.distributed every process calls it, by either method, and all get the
    same hyperparameters.

    Args:
        q: from `laplace`, `fit_evidence` or `function_space`, or a mixture, whose modes then have prior precisions of
            their own and one noise; not draws, nor a process with inducing rows, whose evidence is a bound.
        method: "evidence" or "validation".
        share_prior: which weights share a prior precision: "scalar", "layer", "tensor", "weight", or "feature": one for
            each input feature, and one for each further layer (automatic relevance determination). The default is
            "layer" for the evidence and "scalar" for validation.
        data: the held-out data for "validation".
        temperature: whether the likelihood's temperature is tuned, too, for "validation" alone.
        integral: over f, for "validation"; the default is that of `predict` for up to two outputs, and "mackay", which
            is quick, for more.
        batch_size: rows at once for "validation", where the held-out data are not in batches already; 1024 by default.

    Returns:
        A new posterior; q stays unchanged. Its summary has the prior precision of each group, and how many parameters
        the data determine; its trace the log evidences on the way.

    Raises:
        InputTypeError: if q is no posterior.
        UndefinedQuantityError: if the evidence of q is no function of the prior.
        OptionError: if a name is unknown.
        UnsupportedError: if the structure cannot hold a prior precision for each group, there is a noise variance for
            each output, or the temperature is to be tuned by the evidence.
        InputError: if data are missing, or given where they would not be used.

    Warns:
        ConvergenceWarning: if a hyperparameter has no optimum within range, or by "evidence" the posterior predicts
            training rows worse than the network, as by `laplace`.
    """
    checks.choice("method", method, METHODS)
    checks.flag("temperature", temperature)
    fits = fits_of(q)
    if method == "evidence":
        _refuse_unused(data, integral, batch_size, temperature)
        kind = "layer" if share_prior is None else share_prior
        tuned, notes, trace = _by_evidence(fits, kind)
    elif data is None:
        raise InputError(
            "data: expected held-out data for method='validation', got None. Give data=(X, y) of rows that the model "
            "was not trained on."
        )
    else:
        kind, trace = "scalar" if share_prior is None else share_prior, {}
        tuned, notes = by_validation(q, fits, kind, data, temperature=temperature, integral=integral,
                                     batch_size=BATCH_SIZE if batch_size is None else batch_size)  # fmt: skip
    posteriors = [learnt_posterior(fit, PriorGroups.of(fit.curvature.network, kind), notes, trace) for fit in tuned]
    if method == "evidence":
        for each, fit in zip(posteriors, tuned, strict=True):
            warn_if_worse(each, fit, LEARN)
    if not isinstance(q, MixturePosterior):
        return posteriors[0]
    mixed = mixture_of(posteriors, q.weighting)
    return noted(mixed, notes)


def fits_of(q: object) -> tuple[LaplaceFit, ...]:
    """The Laplace fits that a posterior stands on: one for each mode.

    Raises:
        InputTypeError: if it is no posterior.
        UndefinedQuantityError: if the evidence of it, or of a part of it, is no function of the prior.
    """
    if not isinstance(q, Posterior):
        raise InputTypeError(f"q: expected a posterior of `laplace`, got {type(q).__name__}.")
    parts: Sequence[Posterior] = q.components if isinstance(q, MixturePosterior) else [q]
    fits = [part.fit for part in parts if isinstance(part.fit, LaplaceFit) and part.fit.left_over is None]
    if any("fit" in part.lost for part in parts):
        raise UndefinedQuantityError(
            f"q: expected a posterior with its curvature, got one by {q.record.method} that was loaded from a file of "
            "an earlier bayescope, which keeps none. Tune before saving, or fit again."
        )
    if len(fits) != len(parts):
        raise UndefinedQuantityError(
            f"q: expected a posterior whose evidence is a function of the prior, got one by {q.record.method}. Take "
            "laplace with a structure such as 'kfac', fit_evidence, or function_space without inducing rows."
        )
    return tuple(fits)


def _by_evidence(
    fits: Sequence[LaplaceFit], kind: str
) -> tuple[list[LaplaceFit], Mapping[str, str], Mapping[str, list[float]]]:
    """The fits at the largest evidence, notes of the search, and the evidences on the way."""
    evidence = EvidenceOfModes(fits, kind, noise=fits[0].learns_noise)
    optimum = maximise(evidence)
    optimum = optimum.shared()
    _warn_of(optimum)
    tuned = []
    for fit, groups, precision in zip(fits, evidence.groups, optimum.prior_precisions, strict=True):
        at = fit if optimum.noise_variance is None else fit.at_noise(optimum.noise_variance)
        tuned.append(replace(at, prior=groups.prior(precision, fit.prior)))
    raised = optimum.log_evidences[-1] - optimum.log_evidences[0]
    note = f"by the evidence, {kind!r} groups, {raised:.4g} nats above the start"
    stuck = {"without an optimum": ", ".join(optimum.stuck)} if optimum.stuck else {}
    return tuned, {"tuned": note, **stuck}, {"log_evidence": optimum.log_evidences}


def learnt_posterior(
    fit: LaplaceFit, groups: PriorGroups, notes: Mapping[str, str], trace: Mapping[str, Sequence[Any]]
) -> GaussianPosterior:
    """The posterior of a fit whose prior precisions were learnt, with a summary that lists them by group."""
    q = fit.posterior()
    learnt = {"prior precision": listed(groups.names, groups.precisions(fit.prior))}
    if len(groups) > 1:
        learnt["determined by the data"] = _determined(fit, groups)
    every = {**q.record.notes, **learnt, **notes}
    return replace(q, record=replace(q.record, notes=every, trace=trace))


def _determined(fit: LaplaceFit, groups: PriorGroups) -> str:
    """γ_g = n_g − δ_g ∂ log∣A∣/∂δ_g of each group."""
    with torch.enable_grad():
        precisions = groups.precisions(fit.prior).requires_grad_()
        curved = fit.tempered()
        (slope,) = torch.autograd.grad(groups.adder(curved)(curved, precisions).logdet(), precisions)
    shares = [f"of {int(count):,}" for count in groups.counts]
    return listed(groups.names, groups.counts - precisions.detach() * slope, shares)


def _warn_of(optimum: Optimum) -> None:
    if optimum.stuck:
        warn_once(
            f"prior_precision: expected an evidence with a maximum, got one that goes on rising to the end of the "
            f"range in {', '.join(optimum.stuck[:SHOWN])}: those weights are at their prior mean, or the data tell "
            "nothing of them. Let them share a prior precision with others (share_prior='scalar'), or leave them out "
            "of weights=.",
            ConvergenceWarning,
        )
    if not optimum.settled:
        warn_once(
            "prior_precision: expected a stationary evidence, got one that still has a slope after "
            f"{len(optimum.log_evidences)} steps. Take fewer groups, or tune again from here.",
            ConvergenceWarning,
        )


def _refuse_unused(data: object, integral: str | None, batch_size: int | None, temperature: bool) -> None:
    if temperature:
        raise UnsupportedError(
            "temperature: expected method='validation' to tune it, got 'evidence'. For classes every p(y∣f)^(1/T) goes "
            "to 1 as T grows, and with it Z_T: the largest evidence would be that of ignoring the data."
        )
    for name, value in (("data", data), ("integral", integral), ("batch_size", batch_size)):
        if value is not None:
            raise InputError(
                f"{name}: expected with method='validation' alone: the evidence reads no data. Leave it out."
            )
