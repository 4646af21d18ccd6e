"""What a variational fit is set up from: hyperparameters, first standard deviations, a family and its gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor, nn

from bayescope.curvature import fit_curvature
from bayescope.errors import InputError, UnsupportedError
from bayescope.laplace.groups import PriorGroups
from bayescope.likelihoods import Likelihood
from bayescope.network import Network, NetworkModel, RandomWeights, Weights, network_prior, row_total, row_totals
from bayescope.network.forward import owned, reading
from bayescope.network.inputs import call, take_rows
from bayescope.precision import DiagonalPrecision
from bayescope.priors import Prior
from bayescope.reparameterization import gaussian_kl
from bayescope.training import LearntLikelihood, MakeOptimizer, Training, first_likelihood, log_likelihood
from bayescope.variational.families import Family, Full, LogScale, LowRank, MeanField
from bayescope.variational.ivon import (
    FIRST_CURVATURE,
    LEARNING_RATE,
    CurvatureScale,
    Ivon,
    IvonGradients,
    require_independent,
)
from bayescope.variational.objective import AtDraws, ByRow, Gradients, Hyperparameters
from bayescope.variational.options import (
    EVIDENCE,
    FULL,
    LAPLACE,
    LOW_RANK,
    STICKING_THE_LANDING,
    VariationalOptions,
    check_rank,
)

# A full covariance of more weights takes gigabytes, with its gradient and the optimiser's moments.
MOST_FULL = 5000
# Of a difference of precisions, relative to the smaller one.
ROUNDING = 1e-12
# Some twentieths of the weights that networks are initialised with, so that the first passes are close to the means'.
FIRST_SD = 0.05
# What Laplace's sds are cut to, and the rows and draws of the weights on which the bounds are compared.
CAPS = (math.inf, 1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625)
ROWS, DRAWS = 256, 8
# Nats a weight by which two such bounds have to differ to be unlike.
NOISE = 0.05


@final
@dataclass(frozen=True, eq=False)
class Start:
    """What q is set up from.

    Attributes:
        options: how.
        training: the module, its weights and the rows.
        hyperparameters: p(θ) and p(y∣f).
        sds: the first ones, shape (P,), float64; ``None`` where they are left to the optimiser.
    """

    options: VariationalOptions
    training: Training
    hyperparameters: Hyperparameters
    sds: Tensor | None

    @classmethod
    def of(
        cls, options: VariationalOptions, training: Training, data: Any, prior_precision: Any, sds: Tensor | None,
        layer_scales: Mapping[str, Tensor],
    ) -> Start:  # fmt: skip
        """Reads the data where a start depends on them.

        Args:
            options: how.
            training: the module, its weights and the rows.
            data: the same rows, as they were given.
            prior_precision: of p(θ), or "evidence".
            sds: where q goes on from; natural gradients begin anew, as a posterior says nothing of new rows' curvature.
            layer_scales: those that the module's layers had, by parameter.
        """
        weights, module, groups = training.weights, training.module, None
        if isinstance(prior_precision, str) and prior_precision == EVIDENCE:
            groups, prior_precision = _groups(training, options.groups), 1.0
        prior = _independent(network_prior(prior_precision, weights, module))
        trained = sds is not None or bool(layer_scales) or _is_laplace(options.initial_sd)
        first = LearntLikelihood(_first_likelihood(training, trained=trained), training.likelihood.learnable)
        hyperparameters = Hyperparameters(prior, groups, first)
        hyperparameters.to(next(module.parameters()).device)
        if sds is not None and not options.natural:
            return cls(options, training, hyperparameters, sds)
        sds = None
        if _is_laplace(options.initial_sd):
            sds = laplace_sds(module, weights, data, hyperparameters.likelihood, prior, options.kl_weight)
            sds = capped(sds, training, hyperparameters.likelihood, prior, options.kl_weight)
        elif layer_scales and options.initial_sd is None:
            sds = layer_sds(layer_scales, weights)
        elif options.initial_sd is not None or not options.natural:
            sds = given_sds(options.initial_sd, weights)
        return cls(options, training, hyperparameters, sds)

    @property
    def flat_sds(self) -> Tensor:
        """The first sds in the dtype and on the device of the weights."""
        assert self.sds is not None
        return self.sds.to(self.training.weights.flat(self.training.module))


def without_padding(module: nn.Module, weights: Weights) -> Weights:
    """The weights less the rows of tables that stand for padding, which the data never move: they are no parameters.

    Noise on them would reach the outputs, and the prior alone would say how much. They keep their values.
    """
    masks = dict(weights.masks)
    names = {id(parameter): name for name, parameter in weights.parameters(module).items()}
    for table in module.modules():
        if isinstance(table, nn.Embedding | nn.EmbeddingBag) and table.padding_idx is not None:
            name = names.get(id(table.weight))
            if name is not None:
                masks[name] = masks.get(name, torch.ones_like(table.weight, dtype=torch.bool)).clone()
                masks[name][table.padding_idx] = False
    return replace(weights, masks=masks)


def by_gradients(start: Start) -> tuple[Family, Gradients, MakeOptimizer | None]:
    """The family, how the gradient of its parameters is estimated, and no optimiser but that of the options."""
    options, module, weights = start.options, start.training.module, start.training.weights
    sticking, samples = options.estimator == STICKING_THE_LANDING, options.samples
    if options.family in (LOW_RANK, FULL):
        family: Family = _correlated(start)
    else:
        scale = LogScale(weights, weights.parameters(module), start.flat_sds)
        family = MeanField(weights, scale)
        if not sticking:
            random = RandomWeights.of(module, weights.names, start.training.rows.few[0])
            return family, ByRow(random, weights, scale, options.estimator, samples), None
    return family, AtDraws(module, weights, family, samples, sticking=sticking), None


def _correlated(start: Start) -> Family:
    options, dim = start.options, start.training.weights.dim
    if options.rank is not None:
        return LowRank(start.flat_sds, check_rank(options.rank, dim))
    if dim > MOST_FULL:
        raise UnsupportedError(
            f"family: 'full' expects at most {MOST_FULL:,} random weights, got {dim:,}. Take 'low_rank', "
            "'mean_field', or weights='last_layer'."
        )
    return Full(start.flat_sds)


def with_ivon(start: Start) -> tuple[Family, Gradients, MakeOptimizer]:
    """Mean field by curvatures, what sets ĝ and ĥ, and what makes the optimiser of means and curvatures."""
    options, module, weights = start.options, start.training.module, start.training.weights
    require_independent(module, weights)
    prior, share = start.hyperparameters.prior, options.kl_weight / start.training.rows.rows
    curvatures = torch.full((weights.dim,), FIRST_CURVATURE, dtype=torch.float64)
    if start.sds is not None:
        diagonal = prior.diagonal(weights.dim).to(start.sds)
        curvatures = share * (start.sds.square().reciprocal() - diagonal)
        # The data may say nothing of a weight: what is left is the rounding of its prior.
        curvatures = torch.where(curvatures.abs() <= ROUNDING * share * diagonal, 0.0, curvatures)
        if (curvatures < 0).any():
            raise InputError(
                "initial_sd: expected no more than the prior's sd for 'ivon', got more. Take a smaller one."
            )
    scale = CurvatureScale(weights, weights.parameters(module), curvatures, prior, share)
    family, lr = MeanField(weights, scale), options.training.lr

    def make(parameters: list[nn.Parameter]) -> Ivon:
        return Ivon(parameters[: len(scale.names)], scale, LEARNING_RATE if lr is None else float(lr))

    return family, IvonGradients(module, weights, family, scale, options.samples), make


def _independent(prior: Prior) -> Prior:
    """A prior whose precision is known to be diagonal as one with a number for each weight."""
    if isinstance(prior.precision, DiagonalPrecision):
        return Prior(prior.precision.diagonal(), prior.mean)
    return prior


def _groups(training: Training, kind: str) -> PriorGroups:
    """The weights that share a prior precision, by a trace of the network on a few rows."""
    with torch.no_grad():
        traced = Network.trace(training.module, owned(training.rows.few[0], copy=True), training.weights)
    return PriorGroups.of(traced, kind)


def _first_likelihood(training: Training, *, trained: bool) -> Likelihood:
    """First values of hyperparameters that are to be learnt: from the targets, and the outputs of a trained network."""
    likelihood = training.likelihood
    first = first_likelihood(likelihood, training.rows.targets)
    if not trained or not likelihood.learnable:
        return first
    with reading(training.module), torch.no_grad():
        f = training.rows.joined(lambda inputs, _: call(training.module, inputs).to(torch.float64).flatten(0, -2))
    return first.fitted(likelihood.learnable, f, training.rows.targets().to(f.device), row_total)


def _is_laplace(initial_sd: object) -> bool:
    return isinstance(initial_sd, str) and initial_sd == LAPLACE


def given_sds(initial_sd: Tensor | None, weights: Weights) -> Tensor:
    """The first sds as they are given, shape (P,), float64.

    Raises:
        InputError: if there is neither one number nor one for each random weight.
    """
    value = torch.as_tensor(FIRST_SD if initial_sd is None else initial_sd, dtype=torch.float64)
    if value.ndim and value.shape != (weights.dim,):
        raise InputError(
            f"initial_sd: expected a number or one for each of {weights.dim} random weights, got shape "
            f"{tuple(value.shape)}."
        )
    return value.expand(weights.dim).clone()


def layer_sds(local: Mapping[str, Tensor], weights: Weights) -> Tensor:
    """The sds that variational layers had, and `FIRST_SD` for what is random beside them, shape (P,), float64."""
    shapes = dict(zip(weights.names, weights.shapes, strict=True))
    first = {name: local.get(name, torch.full(shape, FIRST_SD)).to(torch.float64) for name, shape in shapes.items()}
    flat = weights.flatten(first)
    if (flat <= 0).any():
        raise InputError(
            "weights: expected weights with an sd above 0, got fixed ones. Leave them out, or give initial_sd."
        )
    return flat


def laplace_sds(
    module: nn.Module, weights: Weights, data: Any, likelihood: Likelihood, prior: Prior, kl_weight: float
) -> Tensor:
    """1/√(H_pp/w + P₀_pp), shape (P,): Laplace's approximation with independent weights, at the present ones.

    Args:
        module: the network, at weights that it has been trained to.
        weights: which are random.
        data: as a training takes them.
        likelihood: p(y∣f).
        prior: p(θ).
        kl_weight: w.
    """
    curvature = fit_curvature(module, data, likelihood=likelihood, weights=weights, structure="diagonal")
    diagonal = curvature.precision.diagonal() / kl_weight
    return (diagonal + prior.diagonal(weights.dim).to(diagonal.device)).rsqrt()


def capped(sds: Tensor, training: Training, likelihood: Likelihood, prior: Prior, kl_weight: float) -> Tensor:
    """Laplace's sds, none above c, for the largest c of `CAPS` whose bound on some rows is as high as any.

    The curvature is that of the network's tangent: where it tells nothing of a weight its sd is the prior's, and the
    network itself, unlike its tangent, does not bear thousands of weights being moved so far at once.

    Args:
        sds: shape (P,).
        training: the module, its weights and the rows.
        likelihood: p(y∣f).
        prior: p(θ), with a diagonal precision.
        kl_weight: w.
    """
    function = NetworkModel(training.module, training.weights, training.rows.outputs)
    first = next(iter(training.rows.in_order(ROWS)), None)  # none on a process without rows
    precision, centre = prior.diagonal(training.weights.dim).to(sds), prior.centre(training.weights.dim).to(sds)

    def fit(cap: float) -> float:
        if first is None:
            return 0.0
        inputs, targets = take_rows(first[0], slice(0, ROWS)), first[1][:ROWS]
        q = DiagonalPrecision(sds.clamp(max=cap).square().reciprocal())
        f = function.sampled(inputs, function.flat, q, DRAWS, torch.Generator().manual_seed(0))
        return sum(float(log_likelihood(likelihood, of_draw, targets)) for of_draw in f) / DRAWS

    local = 0 if first is None else min(ROWS, len(first[1]))
    rows, *fits = row_totals(local, *map(fit, CAPS))
    share = training.rows.rows / rows
    divergences = [gaussian_kl(function.flat, sds.clamp(max=cap), precision, centre) for cap in CAPS]
    bounds = [share * fit - kl_weight * float(kl) for fit, kl in zip(fits, divergences, strict=True)]
    enough = max(bounds) - NOISE * len(sds)
    return sds.clamp(max=next(cap for cap, found in zip(CAPS, bounds, strict=True) if found >= enough))
