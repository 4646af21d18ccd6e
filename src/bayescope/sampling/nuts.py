"""The No-U-Turn sampler over the weights of a small network: `nuts`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from bayescope import checks
from bayescope.density import FEWEST_DRAWS, diagnosed, nuts_draws
from bayescope.errors import InputError, UnsupportedError
from bayescope.keywords import takes
from bayescope.laplace.laplace import own_copy
from bayescope.layers.output_choice import OutputChoice, OutputKeywords
from bayescope.likelihoods import Likelihood, LikelihoodName
from bayescope.log_density import LogDensity
from bayescope.logs import logged
from bayescope.module_copies import module_copy
from bayescope.network import NetworkModel, Weights, network_prior, reading, same_on_all, with_output
from bayescope.network.row_weights import likelihood_of_rows
from bayescope.posterior import DrawsPosterior, Record
from bayescope.priors import Prior
from bayescope.process_state import outside_inference_mode
from bayescope.processes import Processes, alone, collective, present
from bayescope.sampling.density import compile_density
from bayescope.sampling.diagnosis import DIAGNOSED_NUMBERS, prediction_diagnosis
from bayescope.training import Minibatches, chosen_weights
from bayescope.training.facts import describe
from bayescope.training.steps import share_start

# Random weights that are sampled unless `limit` says otherwise.
MOST_WEIGHTS = 5000
STARTS = ("prior", "model")
# Chains that start at the module's own weights are moved by this many of the prior's standard deviations.
NEARBY = 0.1
# Rows of a data set that are read at once.
ROWS = 1024
# Draws whose densities are compared at once.
TOGETHER = 64


@logged
@outside_inference_mode
@collective
@takes(OutputKeywords, OutputChoice)
def nuts(
    model: nn.Module,
    data: Any,
    *,
    likelihood: LikelihoodName | Likelihood,
    weights: Any = "all",
    prior_precision: Any = 1.0,
    draws: int = 1000,
    tune: int = 1000,
    chains: int = 4,
    target_accept: float = 0.8,
    max_depth: int = 10,
    thin: int = 1,
    start: Any = None,
    limit: int = MOST_WEIGHTS,
    generator: torch.Generator | int | None = 0,
    progress: bool = True,
    **options: Unpack[OutputKeywords],
) -> DrawsPosterior:
    """Draws of a small network's weights from p(θ∣y) ∝ p(y∣f(x, θ)) p(θ), by NUTS on all rows (Hoffman & Gelman 2014).

    It is the reference that approximations are judged by, exact in the limit of many draws. A gradient takes a pass
    over all rows, and a draw takes hundreds of them; networks of linear layers with tanh, ReLU, sigmoid or softplus
    between them are differentiated by hand, several times as fast as by autograd. All of it is in float64, whatever
    the module's dtype, and in eval mode.

    Weights of a network are not identified: its hidden units can change places. So the chains are judged by what they
    predict for the training inputs (``prediction_r_hat``, ``prediction_effective_draws``); the weights' own ``r_hat``
    and ``effective_draws`` are there and not warned of.

    Args:
        model: any module with outputs f of shape (N, C) or (N, …, C). It is left unchanged.
        data: the training data: (X, y), a DataLoader, a Dataset, or a list of batches; it is held in memory.
        likelihood: a name or a likelihood.
        weights: which weights θ are random: "all", "last_layer", names or globs ("*.weight"), a mask. All others stay
            at their values.
        prior_precision: a positive number, one a weight (P,), a dict by parameter, module or glob, or a `Prior`. Its
            unit is one over the weights' squared.
        draws: kept draws a chain.
        tune: warm-up draws a chain, in which step size and diagonal mass matrix adapt; they are dropped.
        chains: how many; on several cores at once where a gradient takes milliseconds, and over the processes where
            there are several.
        target_accept: the acceptance rate that the step size aims at; nearer to 1 for fewer divergences.
        max_depth: a draw takes at most 2^max_depth − 1 gradients. Fewer than trajectories need to turn back make a
            random walk of them: valid, and slower to mix.
        thin: one draw in this many is kept, for networks whose predictions take long.
        start: "prior", the default: each chain starts at a draw from the prior, so that agreement of the chains says
            something; "model": near the module's own weights, such as those of a MAP fit; or an array of shape
            (chains, P).
        limit: the most random weights that are sampled. Larger networks can be, and take hours.
        generator: a ``torch.Generator`` or an int.
        progress: whether to show a progress bar, on the error stream and only to a terminal.
        options: ``output`` and ``classes_dim``, which part of what the module returns is f: see `OutputChoice`.

    Returns:
        A `DrawsPosterior` of shape (chains, draws, P); ``.model`` is the network at the most probable of the draws.

    Raises:
        MissingDependencyError: if nutpie is not installed: pip install 'bayescope[nuts]'.
        UnsupportedError: if there are more random weights than the limit.
        InputError: if the data do not fit the model or the likelihood, or the log density at a start is not finite.
        OptionError: if a name is unknown.
        ConvergenceError: if the sampler gives up.

    Warns:
        ConvergenceWarning: if a prediction's R-hat is above 1.01 or it has fewer than 400 effective draws.
        DivergenceWarning: if transitions diverged.
    """
    chosen_likelihood, source = likelihood_of_rows(likelihood, data), checks.generator(generator)
    draws, thin = checks.count("draws", draws, least=FEWEST_DRAWS), checks.count("thin", thin)
    tune, chains = checks.count("tune", tune), checks.count("chains", chains)
    target_accept, max_depth = checks.fraction("target_accept", target_accept), checks.count("max_depth", max_depth)
    processes, module = present(), own_copy(with_output(model, options))
    _require_all_rows(data)
    source = share_start(module, source)
    exact = module_copy(module).to(torch.float64)
    with alone(), reading(exact):  # each process has all rows
        rows = Minibatches(data, exact, chosen_likelihood, ROWS, torch.Generator())
        chosen = chosen_weights(exact, weights, rows.few[0])
        _check_size(chosen, checks.count("limit", limit))
        prior = network_prior(prior_precision, chosen)
        density, inputs = compile_density(exact, chosen, chosen_likelihood, prior, rows)
        starts = _starts(start, exact, chosen, prior, chains, source)
        if not torch.isfinite(density.log_prob(starts)).all():
            rows.require_finite()
        run = {
            "draws": thin * draws, "tune": tune, "target_accept": target_accept, "max_depth": max_depth,
            "progress": checks.flag("progress", progress) and processes.first,
        }  # fmt: skip
        sampled, statistics = _sampled(processes, density, starts, source, run)
        kept = sampled[:, thin - 1 :: thin].contiguous()
        (best,) = processes.same(_most_probable(density, kept))
    function = NetworkModel(module, chosen, rows.outputs).at(best)
    thinned = f", one in {thin} kept" if thin > 1 else ""
    notes = {"prior": describe(prior), "rows": f"{rows.rows:,}", "warm-up": f"{tune} draws a chain{thinned}"}
    return diagnosed(
        kept, Record("nuts", notes=notes), model=function, likelihood=chosen_likelihood.unweighted,
        statistics=statistics, thin=thin, coordinates=kept.numel() <= DIAGNOSED_NUMBERS, advice="Raise tune and draws.",
        predictions=prediction_diagnosis(function, kept, function.inputs(inputs), chosen_likelihood.unweighted),
    )  # fmt: skip


def _sampled(
    processes: Processes, density: LogDensity, starts: Tensor, generator: torch.Generator, options: Mapping[str, Any]
) -> tuple[Tensor, dict[str, Tensor]]:
    """The draws of all chains, (chains, draws, P), and what nutpie reports of each, (chains, draws).

    Each process runs its part of the chains.

    A chain is the same on whichever process it runs: the starts are given, and `nuts_draws` takes a seed a chain from
    the generator, one after the other.
    """
    local = processes.slice(len(starts))
    _pass_over(local.start, generator)
    found = None
    if local.start < local.stop:
        found = nuts_draws(
            density, start=starts[local], chains=local.stop - local.start, generator=generator, **options
        )  # fmt: skip
    _pass_over(len(starts) - local.stop, generator)
    parts = [part for part in processes.gather(found) if part is not None]
    reported = {name: torch.cat([statistics[name] for _, statistics in parts]) for name in parts[0][1]}
    return torch.cat([draws for draws, _ in parts]), reported


def _pass_over(chains: int, generator: torch.Generator) -> None:
    for _ in range(chains):
        checks.seed_from(generator)


def _require_all_rows(data: Any) -> None:
    """Refuses data that several processes have a part of each: every gradient is over all rows."""
    processes = present()
    if processes.count > 1 and not same_on_all(processes, data):
        raise UnsupportedError(
            "data: expected all rows on every process for NUTS, each of whose gradients is over all of them, got "
            "different ones. Give the whole (X, y) on each, over which the chains are spread, or sample by sgmcmc, "
            "which reads minibatches."
        )


def _check_size(weights: Weights, limit: int) -> None:
    if weights.dim > limit:
        raise UnsupportedError(
            f"weights: expected at most {limit:,} random weights for NUTS, got {weights.dim:,}. Take fewer, as with "
            "weights='last_layer'. Or take an approximation, such as laplace or variational, or sgmcmc, which reads "
            f"minibatches. limit={weights.dim} samples all of them, if there is time."
        )


def _starts(
    start: Any, module: nn.Module, weights: Weights, prior: Prior, chains: int, generator: torch.Generator
) -> Tensor:
    """Where the chains start, shape (chains, P)."""
    if start is None or isinstance(start, str):
        near = checks.choice("start", start or STARTS[0], STARTS) == "model"
        noise = torch.randn(weights.dim, chains, dtype=torch.float64, generator=generator)
        moved = prior.structured(weights.dim).sqrt_solve(noise).mT
        return weights.flat(module).cpu() + NEARBY * moved if near else prior.centre(weights.dim) + moved
    points = checks.float64("start", start)
    if points.shape != (chains, weights.dim):
        raise InputError(
            f"start: expected shape ({chains}, {weights.dim}), one point a chain, got {tuple(points.shape)}."
        )
    return points


def _most_probable(density: LogDensity, draws: Tensor) -> Tensor:
    """The draw with the largest log density, shape (P,)."""
    flat = draws.flatten(0, 1)
    values = torch.cat([density.log_prob(some).detach() for some in flat.split(TOGETHER)])
    return flat[int(values.argmax())]
