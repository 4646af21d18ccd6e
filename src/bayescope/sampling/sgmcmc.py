"""Stochastic-gradient MCMC for networks: chains that step on minibatches, with the noise that keeps them moving."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, Unpack

import torch
from torch import Tensor, nn

from bayescope import checks
from bayescope.density import FEWEST_DRAWS, Mixing, diagnosed
from bayescope.errors import InputError, UnsupportedError
from bayescope.keywords import picked, takes
from bayescope.layers.output_choice import OutputChoice
from bayescope.likelihoods import Likelihood, LikelihoodName
from bayescope.logs import logged
from bayescope.network import NetworkModel, network_prior, with_output
from bayescope.network.row_weights import likelihood_of_rows
from bayescope.posterior import DrawsPosterior, Record
from bayescope.process_state import outside_inference_mode
from bayescope.processes import collective
from bayescope.sampling.chains import Collector, DrawKeywords, DrawPlan, Langevin, spread_rows, stacked
from bayescope.sampling.diagnosis import prediction_diagnosis
from bayescope.training import Minibatches, NegativeLogJoint, TrainingOptions, prepared, resumable
from bayescope.training.facts import describe

# By method: the friction and the step size, whose ratio is what weights move by along the gradient in the long run.
METHODS = {"sghmc": (0.1, 1e-2), "sgld": (1.0, 1e-1)}
STARTS = ("model", "prior")
# R-hat of a prediction above this is warned of: the step size has a bias of its own, which closer limits are below.
R_HAT_LIMIT = 1.1


@logged
@outside_inference_mode
@resumable
@collective
@takes(DrawKeywords, TrainingOptions, OutputChoice, draws=100, burn_in=None, thin=None, cycles=None)
def sgmcmc(
    model: nn.Module,
    data: Any,
    *,
    likelihood: LikelihoodName | Likelihood,
    method: Literal["sghmc", "sgld"] = "sghmc",
    weights: Any = "all",
    prior_precision: Any = 1.0,
    friction: float | None = None,
    temperature: float = 1.0,
    chains: int = 1,
    start: Literal["model", "prior"] = "model",
    **options: Unpack[DrawKeywords],
) -> DrawsPosterior:
    """Draws networks from p(θ∣D)^(1/T) by Langevin dynamics on minibatches, up to the bias of the step size.

    With U(θ) = −log p(D, θ), whose gradient a minibatch tells, and η = lr/N, a step is

        v ← (1−α) v − η ∇U(θ) + √(2αηT) ξ,  ξ ~ N(0, I);   θ ← θ + v:

    "sghmc" (Chen et al. 2014), and "sgld" for α = 1 (Welling & Teh 2011). There is no correction for the step size:
    on a Gaussian the variances are too large by the factor 1/(1 − ηΛ/(2(2−α))) in a direction of the precision Λ, and
    minibatches add their own noise to that. Halve lr and see whether the predictions stay. The network is read in eval
    mode, as it predicts.

    Args:
        model: any module with outputs f of shape (N, C) or (N, …, C), best a trained one. It is left unchanged.
        data: as in `fit_map`.
        likelihood: a name or a likelihood.
        method: "sghmc" or "sgld".
        weights: which weights are random; all others stay unchanged.
        prior_precision: as in `fit_map`.
        friction: α, above 0 and at most 1; ``None`` for 0.1. "sgld" has none.
        temperature: T; 1 for the posterior, less for a "cold" one.
        chains: how many, side by side, each with its own noise and order of the rows.
        start: "model" for chains that begin at the model's weights, or "prior" for chains that each begin at a draw
            from the prior, so that R-hat sees whether they meet.
        options: when the chains are read: ``draws``, how many are kept of each; ``burn_in``, the epochs before the
            first, or the first of each cycle (``None`` for 20 times ``thin``); ``thin``, the epochs from one draw to
            the next (``None`` for as many as 20 steps take); and ``cycles``, how many times the step size falls from lr
            to zero by a cosine, to leave one mode for another (Zhang et al. 2020): a cycle burns in without noise, and
            then gives draws/cycles draws. ``None`` is a constant step size.
            And of the training, as `TrainingOptions` describes them: ``lr``, the step size along the gradient of U/N
            (``None`` for 1e-2 of "sghmc" and 1e-1 of "sgld"), ``batch_size`` (batches of a loader are the same for all
            chains), ``checkpoint`` (a later call may ask for more draws, where there are no cycles), ``generator`` and
            ``progress``.
            ``output`` and ``classes_dim`` say which part of what the module returns is f: see `OutputChoice`.

    Returns:
        The draws, with R-hat and the effective draws of the predictions at training inputs. ``.trace`` has the means
        over the chains, per epoch, and in "losses" the loss of each. After Ctrl-C it is what was drawn until then.

    Raises:
        ConvergenceError: if the loss stops being a finite number.
        InputError: if the data do not fit the model or the likelihood, or a number cannot be used.
        OptionError: if a name is unknown.
        UnsupportedError: if two arguments do not go together.

    Warns:
        ConvergenceWarning: if a prediction has an R-hat above 1.1.
    """
    alpha, size = _dynamics(method, friction, options["lr"])
    temperature = checks.positive_number("temperature", temperature)
    chains = checks.count("chains", chains)
    checks.choice("start", start, STARTS)
    likelihood, run, model = (
        likelihood_of_rows(likelihood, data),
        picked(TrainingOptions, options),
        with_output(model, options),
    )
    run = replace(run, epochs=1, lr=None)

    def langevin(parameters: list[nn.Parameter]) -> Langevin:
        random = [training.weights.masks.get(name) for name in training.weights.names]
        masks = {place: mask.to(parameters[0]) for place, mask in enumerate(random) if mask is not None}
        sizes = plan.sizes(size, training.rows)
        return Langevin(
            parameters, sizes=sizes, friction=alpha, temperature=temperature, rows=training.rows.rows, masks=masks
        )

    with prepared(run, model, data, likelihood, weights) as ready:
        plan = DrawPlan.of(options, ready.rows)
        training = replace(ready, options=replace(run, epochs=plan.epochs))
        prior, rows = network_prior(prior_precision, training.weights, training.module), training.rows
        stack, how = stacked(training, prior if start == "prior" else None, chains)
        objective = NegativeLogJoint(stack, training.weights, rows.rows, likelihood, prior)
        collector = Collector(stack, training.weights, plan)
        spread_rows(training, chains)
        outcome = training.run(objective, collector, trained=stack, make=langevin)
        found = collector.draws()
        stack.write_to([training.module.eval()])  # the first chain, as it ended
        function = training.function()
        diagnosis = _diagnosis(rows, function, found, likelihood.unweighted)
    limit = f", at most {min(rows.rows, rows.batch_size or rows.rows):,} in a step" if rows.in_memory else ""
    notes = {
        "sampler": f"step size {size:g}, friction {alpha:g}, temperature {temperature:g}",
        "chains": how,
        "draws": f"{found.shape[1]} of each chain, {plan.summary()}",
        "prior": describe(prior),
        "rows": f"{rows.rows:,}{limit}",
        "training": outcome.summary(),
    }
    return diagnosed(
        found, Record(method, notes=notes, trace=outcome.trace), model=function, likelihood=likelihood.unweighted,
        coordinates=False, predictions=diagnosis, limits=(R_HAT_LIMIT, None),
        advice="Read the chains further apart (thin=) and for longer (draws=, burn_in=).",
    )  # fmt: skip


def _dynamics(method: str, friction: Any, lr: Any) -> tuple[float, float]:
    """The friction and the step size."""
    alpha, size = METHODS[checks.choice("method", method, METHODS)]
    if friction is not None:
        if method == "sgld":
            raise UnsupportedError(f"friction: expected None for 'sgld', which keeps no velocity, got {friction!r}.")
        alpha = checks.positive_number("friction", friction)
        if alpha > 1.0:
            raise InputError(f"friction: expected a number above 0 and at most 1, got {friction!r}.")
    return alpha, size if lr is None else checks.positive_number("lr", lr)


def _diagnosis(rows: Minibatches, function: NetworkModel, draws: Tensor, likelihood: Likelihood) -> Mixing | None:
    """R-hat of predictions at training inputs, on all processes of those that each has; ``None`` of too few draws."""
    if draws.shape[1] < FEWEST_DRAWS:
        return None
    if rows.in_memory and rows.shared:
        return prediction_diagnosis(function, draws, rows.whole()[0], likelihood)
    first = next(iter(rows.in_order(rows.rows)), None)  # none on a process without rows
    judged = None if first is None else tuple(prediction_diagnosis(function, draws, first[0], likelihood))
    return Mixing(*map(torch.cat, zip(*filter(None, rows.of_parts(judged)), strict=True)))
