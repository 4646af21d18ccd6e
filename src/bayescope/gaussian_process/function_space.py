"""Laplace's posterior of a network in function space: `function_space`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Unpack, final

import torch
from torch import Tensor, nn

from bayescope import checks
from bayescope.curvature import Curvature, CurvatureOptions, fit_curvature
from bayescope.errors import InputError, UnsupportedError
from bayescope.gaussian_process.data import TrainingData, count_cotangents
from bayescope.gaussian_process.precision import KernelPrecision
from bayescope.gaussian_process.projection import greedy_points, project
from bayescope.gaussian_process.rows import BLOCKS, FLOAT64
from bayescope.keywords import takes
from bayescope.laplace.fit import LaplaceFit
from bayescope.laplace.judgement import AUTO
from bayescope.laplace.laplace import (
    EVIDENCE,
    concluded,
    learns_noise,
    leaves_noise_open,
    own_copy,
    starting_likelihood,
)
from bayescope.laplace.likelihood_fit import learnt_likelihood
from bayescope.laplace.mode import read_slope
from bayescope.laplace.options import LaplaceOptions
from bayescope.layers.output_choice import OutputChoice, OutputKeywords
from bayescope.likelihoods import Likelihood, LikelihoodName
from bayescope.logs import logged
from bayescope.memory import free_memory
from bayescope.network.batches import Batches, Data
from bayescope.network.forward import reading
from bayescope.network.guard import with_output
from bayescope.network.model import NetworkModel
from bayescope.network.network import Network
from bayescope.network.priors import PriorPrecision, network_prior
from bayescope.network.row_weights import likelihood_of_rows
from bayescope.network.weights import Choice, by_variance
from bayescope.posterior import Posterior, Record
from bayescope.precision import Precision
from bayescope.priors import Prior
from bayescope.process_state import outside_inference_mode
from bayescope.processes import refuse_several
from bayescope.tape import block_bytes

# Which of the data the process is held over.
Approximation = Literal["exact", "subset", "nystrom", "inducing"]
# What a posterior in function space says where it is asked for what it does not have.
INSTEAD = "Take laplace, whose structure 'full' is the same posterior over weights."


@logged
@outside_inference_mode
@takes(OutputKeywords, OutputChoice)
def function_space(
    model: nn.Module,
    data: Data,
    *,
    likelihood: LikelihoodName | Likelihood,
    weights: Choice = "all",
    prior_precision: PriorPrecision | Literal["auto", "evidence"] = 1.0,
    approximation: Approximation = "exact",
    points: int | None = None,
    batch_size: int = 1024,
    memory: int | None = None,
    generator: torch.Generator | int | None = None,
    progress: bool = False,
    **options: Unpack[OutputKeywords],
) -> Posterior:
    """Laplace's posterior of a network as a Gaussian process over functions.

    With the prior N(m₀, P₀⁻¹), the network linearised at its weights θ*, f(x, θ*) + J(x)(θ − θ*), is a Gaussian process
    with the mean f(x, θ*) + J(x)(m₀ − θ*) and the kernel k(x, x′) = J(x)P₀⁻¹J(x′)ᵀ. Given the data, with Λ = S Sᵀ the
    curvature of −log p(y∣f) at f* = f(X, θ*) and K = Sᵀk(X, X)S,

        mean f(x, θ*),  kernel k(x, x′) − k(x, X) S (I + K)⁻¹ Sᵀ k(X, x′),
        log Z = log p(y∣f*) − ½ (θ* − m₀)ᵀP₀(θ* − m₀) − ½ log∣I + K∣

    (Khan et al. 2019, "Approximate inference turns deep networks into Gaussian processes"; Immer et al. 2021b,
    "Improving predictions of Bayesian neural nets via local linearization"). It is the posterior of `laplace` with the
    curvature "ggn" and the structure "full", its arithmetic over N data instead of P weights: the same predictive and
    the same log evidence. As there, the mean is f(x, θ*) at any weights; it is the process's own where θ* is a mode.

    Approximations, for more data than a kernel between them can be held for; all tend to the exact answer as ``points``
    goes to N, and none has a mean other than f(x, θ*):

    - "subset": the exact process of random rows, each of which stands for N/points: on average over subsets its
      variances and its evidence are too large, by Jensen's inequality.
    - "nystrom": features from random rows, then all the data in one pass (ELLA: Deng, Zhou and Zhu 2022, "Accelerated
      linearized Laplace approximation for Bayesian deep learning"). Outside the features' span the prior's variance is
      kept, which the paper drops. The log evidence is an upper bound.
    - "inducing": the same with chosen rows in the place of random ones, each the one that the others explain least, and
      a log evidence that is a lower bound: a variational posterior whose mean is held at the network's output (VaLLA:
      Ortega, Rodríguez-Santana and Hernández-Lobato 2024, "Variational linearized Laplace approximation for Bayesian
      deep learning", here with Λ at the mode, where the best covariance has a closed form).

    Args:
        model: a trained module with outputs f of shape (N, C) or (N, …, C); it is left as found.
        data: the training data: a DataLoader, a Dataset, or (X, y).
        likelihood: a name or a likelihood; a Gaussian's noise variance as in `laplace`.
        weights: which are random; see `laplace`.
        prior_precision: a positive number, one per weight (P,), a dict by parameter, module or glob, or a `Prior`, with
            any mean; or "auto" or "evidence", which are learnt as by `laplace`. Approximations by features take a
            diagonal one.
        approximation: "exact", "subset", "nystrom" or "inducing".
        points: of an approximation: how many rows of the data it is built from.
        batch_size: rows at once, where the data are not in batches already.
        memory: the budget in bytes that the run may take; half of what is free by default.
        generator: draws the rows of "subset" and "nystrom", and the candidates of "inducing".
        progress: whether a bar is drawn.
        options: ``output`` and ``classes_dim``, which part of what the module returns is f: see `OutputChoice`.

    Returns:
        A `GaussianPosterior`. The exact one holds a kernel of (N K)² numbers, K ≤ C, and where the rows Sᵀ J do not fit
        into 256 MB, the inputs too: they are then read from the network again for each prediction.

    Raises:
        OptionError: if a name is unknown.
        InputError: if the data do not fit, passes over them differ, or points are missing or too many.
        UnsupportedError: if options do not go together, or several processes call it.
        MemoryBudgetError: if the run would take more than the budget; the approximations are named.

    Warns:
        ConvergenceWarning: if the posterior predicts training rows worse than the network: by more than 0.05 nats a row
            where the weights are far from a mode for this prior, else by more than 0.5.
    """
    checks.choice("approximation", approximation, _APPROXIMATIONS)
    model = with_output(model, options)
    refuse_several("function_space", "its kernel is between all pairs of rows", "take bs.laplace, which sums over them")
    _check_points(approximation, points)
    word = prior_precision if isinstance(prior_precision, str) else None
    if word is not None:
        _check_tuned(word, approximation)
    noise = learns_noise(likelihood, word)
    of_rows, source = likelihood_of_rows(likelihood, data), checks.generator(generator)
    resolved = starting_likelihood(of_rows, learnt=word is not None)
    if resolved.learnable:
        asked = LaplaceOptions(resolved, weights, curved=CurvatureOptions(batch_size=batch_size))
        resolved = learnt_likelihood(asked, own_copy(model), data, source).likelihood
    start = 1.0 if isinstance(prior_precision, str) else prior_precision
    fit = _fitted(
        own_copy(model), data, resolved, weights, start, approximation, points,
        batch_size=batch_size, memory=memory, generator=source, progress=progress,
    )  # fmt: skip
    fit = replace(fit, learns_noise=leaves_noise_open(likelihood))
    return concluded([fit], [model], word, None, noise=noise)


@final
@dataclass(frozen=True, eq=False)
class _Found:
    """The curvature of the data in function space.

    Attributes:
        precision: the curvature without its prior.
        rows: which of the data it is of, for the summary.
        structure: what it is.
        passes: how often the data were read for it.
        left_over: what a projection leaves out of the curvature's diagonal, where the evidence is to be a lower bound.
    """

    precision: Precision
    rows: str
    structure: str
    passes: int = 1
    left_over: Tensor | None = None


def _fitted(
    module: nn.Module,
    data: Data,
    likelihood: Likelihood,
    weights: Choice,
    prior_precision: PriorPrecision,
    approximation: Approximation,
    points: int | None,
    *,
    batch_size: int,
    memory: int | None,
    generator: torch.Generator,
    progress: bool,
) -> LaplaceFit:
    """The Laplace fit whose precision is held in function space."""
    batches = Batches(data, module, batch_size=batch_size)
    if by_variance(weights):  # found by a pass over the data
        found = fit_curvature(module, data, likelihood=likelihood, weights=weights, structure="diagonal")
        weights = found.network.weights
    with reading(module):  # of a loader that shuffles the same rows each time
        inputs, targets = batches.first()
    with torch.inference_mode(False), torch.no_grad():
        network = Network.trace(module, inputs, weights=weights)
    function = NetworkModel.of(network, inputs)
    prior = network_prior(prior_precision, network.weights, network.module)
    slope = read_slope(module, network.weights, batches, likelihood, progress=progress)
    free = free_memory(network.indices[0].device) // 2
    training = TrainingData(
        network, batches, likelihood, slope.rows, slope.fingerprint,
        count_cotangents(network, inputs, targets, likelihood),
        free if memory is None else int(checks.positive("memory", memory)), points, generator, progress,
    )  # fmt: skip
    held = _APPROXIMATIONS[approximation](training, prior)
    curvature = Curvature(
        held.precision, network, "ggn", held.structure, slope.rows, slope.log_likelihood, held.passes, {}
    )
    notes = {"approximation": held.rows}
    if held.left_over is not None:
        notes["log evidence"] = "a lower bound on that of the exact process"
    return LaplaceFit(
        curvature, function, function.flat, prior, likelihood, observations=slope.observations,
        gradient=slope.gradient, fingerprint=slope.fingerprint, sample=slope.sample,
        record=Record("function_space", notes=notes, instead=INSTEAD), left_over=held.left_over,
    )  # fmt: skip


def _exact(data: TrainingData, _prior: Prior) -> _Found:
    data.require_kernel(data.rows)
    return _Found(KernelPrecision(data.of()), f"exact, over all {data.rows:,} rows", "full")


def _subset(data: TrainingData, _prior: Prior) -> _Found:
    places = data.drawn()
    data.require_kernel(len(places))
    precision = KernelPrecision(data.of(places), factor=data.rows / len(places))
    return _Found(precision, f"{len(places):,} random rows", "subset")


def _nystrom(data: TrainingData, prior: Prior) -> _Found:
    diagonal, places = _diagonal(prior, data), data.drawn()
    data.require_kernel(len(places), vectors=len(places) * data.cotangents)
    precision, _ = project(data.of(places), data, diagonal)
    return _Found(precision, f"Nyström features of {len(places):,} rows", "nystrom", 2)


def _inducing(data: TrainingData, prior: Prior) -> _Found:
    diagonal, places = _diagonal(prior, data), data.drawn()
    data.require_kernel(len(places), vectors=len(places) * data.cotangents)
    held = BLOCKS * block_bytes() // (FLOAT64 * data.cotangents * data.network.dim)
    pool = torch.randperm(data.rows, generator=data.generator)[: max(len(places), held)].sort().values
    chosen = pool[greedy_points(data.of(pool), data.cotangents, diagonal, len(places))]
    precision, left_over = project(data.of(chosen), data, diagonal)
    return _Found(precision, f"{len(chosen):,} inducing rows", "inducing", 3, left_over)


_APPROXIMATIONS: dict[Approximation, Callable[[TrainingData, Prior], _Found]] = {
    "exact": _exact,
    "subset": _subset,
    "nystrom": _nystrom,
    "inducing": _inducing,
}


def _diagonal(prior: Prior, data: TrainingData) -> Tensor:
    """The prior's diagonal, shape (P,), where that is all of it."""
    if not isinstance(prior.precision, Tensor):
        raise UnsupportedError(
            "prior_precision: expected a diagonal one for features, got a full one. Take approximation='exact' or "
            "'subset', which take any."
        )
    return prior.diagonal(data.network.dim).to(data.network.indices[0].device)


def _check_points(approximation: str, points: int | None) -> None:
    if approximation == "exact":
        if points is not None:
            raise UnsupportedError(f"points: 'exact' takes all the data, got points={points}. Leave it out.")
        return
    if points is None:
        raise InputError(
            f"points: expected a whole number for approximation={approximation!r}, got None. Give points=, at most as "
            "many as there are rows."
        )
    checks.count("points", points)


def _check_tuned(prior_precision: str, approximation: str) -> None:
    checks.choice("prior_precision", prior_precision, (AUTO, EVIDENCE))
    if approximation == "inducing":
        raise UnsupportedError(
            f"prior_precision: {prior_precision!r} goes with the approximations 'exact', 'subset' and 'nystrom': "
            "inducing rows are chosen for one prior, and their evidence is a bound."
        )
