"""Stochastic-gradient MCMC for networks: chains that step on minibatches, with the noise that keeps them moving."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayescope import checks
from bayescope.density.convergence import FEWEST_DRAWS
from bayescope.density.diagnosis import diagnosis_notes
from bayescope.errors import InputError, UnsupportedError
from bayescope.likelihoods import Likelihood
from bayescope.network.model import NetworkModel
from bayescope.network.priors import network_prior
from bayescope.posterior import DrawsPosterior, Record
from bayescope.process_state import outside_inference_mode
from bayescope.processes import collective, present
from bayescope.sampling.chains import Collector, Plan, read_by, stacked
from bayescope.sampling.diagnosis import PredictionDiagnosis, prediction_diagnosis, warn_of_predictions
from bayescope.sampling.langevin import Langevin
from bayescope.training.checkpoint import resumable
from bayescope.training.fit_map import describe
from bayescope.training.minibatches import Minibatches
from bayescope.training.optimizers import OptimizerChoice
from bayescope.training.settings import Settings
from bayescope.training.side_by_side import JointOfEach

# By method: the friction and the step size, whose ratio is what weights move by along the gradient in the long run.
METHODS = {"sghmc": (0.1, 1e-2), "sgld": (1.0, 1e-1)}
STARTS = ("model", "prior")
# R-hat of a prediction above this is warned of: the step size has a bias of its own, which closer limits are below.
R_HAT_LIMIT = 1.1


@outside_inference_mode
@resumable
@collective
def sgmcmc(
    model: nn.Module,
    data: Any,
    *,
    likelihood: str | Likelihood,
    method: str = "sghmc",
    weights: Any = "all",
    prior_precision: Any = 1.0,
    lr: float | None = None,
    friction: float | None = None,
    temperature: float = 1.0,
    draws: int = 100,
    burn_in: int | None = None,
    thin: int | None = None,
    cycles: int | None = None,
    chains: int = 1,
    start: str = "model",
    batch_size: int | None = None,
    checkpoint: str | Path | None = None,
    generator: torch.Generator | int | None = None,
    progress: bool = True,
) -> DrawsPosterior:
    """Draws networks from p(θ∣D)^(1/T) by Langevin dynamics on minibatches, up to the bias of the step size.

    With U(θ) = −log p(D, θ), whose gradient a minibatch tells, and η = lr/N, a step is

        v ← (1−α) v − η ∇U(θ) + √(2αηT) ξ,  ξ ~ N(0, I);   θ ← θ + v:

    "sghmc" (Chen et al. 2014), and "sgld" for α = 1 (Welling & Teh 2011). There is no correction for the step size:
    on a Gaussian the variances are too large by the factor 1/(1 − ηΛ/(2(2−α))) in a direction of the precision Λ, and
    minibatches add their own noise to that. Halve lr and see whether the predictions stay. The network is read in eval
    mode, as it predicts.

    Args:
        model: any module with outputs f of shape (N, C) or (N, …, C), best a trained one. It is left as it is.
        data: as in `fit_map`.
        likelihood: a name or a likelihood.
        method: "sghmc" or "sgld".
        weights: which weights are random; all others stay as they are.
        prior_precision: as in `fit_map`.
        lr: the step size along the gradient of U/N, as an optimiser has it; ``None`` for 1e-2 of "sghmc" and 1e-1 of
            "sgld".
        friction: α, above 0 and at most 1; ``None`` for 0.1. "sgld" has none.
        temperature: T; 1 for the posterior, less for a "cold" one.
        draws: how many are kept of each chain.
        burn_in: epochs before the first draw; of each cycle, where there are cycles. ``None`` for 20 times ``thin``.
        thin: epochs from one draw to the next; ``None`` for as many as 20 steps take.
        cycles: how many times the step size falls from lr to zero by a cosine, to leave one mode for another (Zhang
            et al. 2020); a cycle burns in without noise, and then gives draws/cycles draws. ``None`` for a constant
            step size.
        chains: how many, side by side, each with its own noise and order of the rows.
        start: "model" for chains that begin at the model's weights, or "prior" for chains that each begin at a draw
            from the prior, so that R-hat sees whether they meet.
        batch_size: the most rows of a minibatch; ``None`` for 128. Batches of a loader stay, the same for all chains.
        checkpoint: as in `fit_map`. A later call may ask for more draws, where there are no cycles.
        generator: seeds the order of the rows and the noise.
        progress: whether a bar is drawn, for runs of over two seconds.

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
    alpha, size = _dynamics(method, friction, lr)
    temperature = checks.positive_number("temperature", temperature)
    chains = checks.count("chains", chains)
    checks.choice("start", start, STARTS)
    plan = Plan.of(draws, burn_in, thin, cycles, data, batch_size)

    def langevin(parameters: list[nn.Parameter]) -> Langevin:
        random = [training.weights.masks.get(name) for name in training.weights.names]
        masks = {place: mask.to(parameters[0]) for place, mask in enumerate(random) if mask is not None}
        sizes = plan.sizes(size, data, training.rows)
        return Langevin(
            parameters, sizes=sizes, friction=alpha, temperature=temperature, rows=training.rows.rows, masks=masks
        )

    settings = Settings(
        likelihood=likelihood, epochs=plan.epochs, lr=None, optimizer=OptimizerChoice.made_by(langevin, batch_size),
        schedule=None, batch_size=None, checkpoint=checkpoint, generator=generator, progress=progress,
    )  # fmt: skip
    with settings.prepared(model, data, weights, inplace=False) as training:
        prior, rows = network_prior(prior_precision, training.weights), training.rows
        stack, how = stacked(training, prior if start == "prior" else None, chains)
        objective = JointOfEach(stack, training.weights, rows.rows, settings.likelihood, prior)
        collector = Collector(stack, training.weights, plan)
        outcome = dataclasses.replace(training, module=stack).run(objective, collector, rows=read_by(training, chains))
        found = collector.draws()
        stack.write_to([training.module.eval()])  # the first chain, as it ended
        function = training.function()
        diagnosis = _diagnosis(rows, function, found, settings.likelihood)
    largest = rows.largest if rows.shared else round(present().sum_numbers(rows.largest)[0])
    notes = {
        "sampler": f"step size {size:g}, friction {alpha:g}, temperature {temperature:g}",
        "chains": how,
        "draws": f"{found.shape[1]} of each chain, {plan.summary()}",
        "prior": describe(prior),
        "rows": f"{rows.rows:,}" + (f", at most {largest:,} in a step" if rows.in_memory else ""),
        "training": outcome.summary(),
    }
    record = Record(method, notes=notes, trace=outcome.trace)
    return _diagnosed(found, record, function, settings.likelihood, diagnosis)


def _diagnosed(
    draws: Tensor, record: Record, function: NetworkModel, likelihood: Likelihood, diagnosis: PredictionDiagnosis | None
) -> DrawsPosterior:
    """The posterior of the draws, with what its predictions have to say for themselves.

    Warns:
        ConvergenceWarning: if a prediction has an R-hat above `R_HAT_LIMIT`.
    """
    if diagnosis is None:
        return DrawsPosterior(draws, record, function, likelihood)
    warn_of_predictions(
        record.method,
        diagnosis,
        "Read the chains further apart (thin=) and for longer (draws=, burn_in=).",
        r_hat_limit=R_HAT_LIMIT,
        effective_limit=None,
    )
    found = diagnosis_notes(draws, *diagnosis, of="predictions")
    return DrawsPosterior(
        draws,
        dataclasses.replace(record, notes={**record.notes, **found, "draws": record.notes["draws"]}),
        function,
        likelihood,
        prediction_r_hat=diagnosis.r_hat,
        prediction_effective_draws=diagnosis.effective_draws,
    )


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


def _diagnosis(
    rows: Minibatches, function: NetworkModel, draws: Tensor, likelihood: Likelihood
) -> PredictionDiagnosis | None:
    """R-hat of predictions at training inputs, on all processes of those that each has; ``None`` of too few draws."""
    if draws.shape[1] < FEWEST_DRAWS:
        return None
    if rows.in_memory and rows.shared:
        return prediction_diagnosis(function, draws, rows.whole()[0], likelihood)
    first = next(iter(rows.in_order(rows.rows)), None)  # none on a process without rows
    own = None if first is None else tuple(prediction_diagnosis(function, draws, first[0], likelihood))
    return PredictionDiagnosis(*map(torch.cat, zip(*filter(None, present().gather(own)), strict=True)))
