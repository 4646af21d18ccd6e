"""The posterior at the mode of an additive model: by blocks, full, or a point."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from bayescope.additive.families import MonotoneSteps
from bayescope.additive.fit import MOST_PRECISION, AdditiveFit
from bayescope.additive.model import AdditiveModel
from bayescope.additive.passes import ALL, RowValues
from bayescope.additive.problem import BlockFactors, Linearized, output_variances
from bayescope.likelihoods import Likelihood
from bayescope.likelihoods.quasi_monte_carlo import principal_root
from bayescope.posterior import Cone, GaussianPosterior, PointPosterior, Record, onto_cone
from bayescope.precision import BlockPrecision, DensePrecision, Precision
from bayescope.process_state import threads_for
from bayescope.quadrature import activation_nodes, normal_nodes
from bayescope.tape.tape import row_blocks

# With at most this many rows times outputs, the full GGN's determinant costs less than a step.
MOST_ROWS = 2048
# The averaging of the curvature ends after this many steps, or where one changes log∣A∣ by less than this, in nats.
# With several outputs it takes this many nodes.
_STEPS, _SETTLED = 60, 0.02
_NODES = 64
# So many terms that are switched off are named in a summary; of more it has the number.
MOST_SILENT = 20
NAME = "the precision of the additive model's weights"


def laplace_at(fitted: AdditiveFit, model: AdditiveModel, structure: str, log_unit: float) -> GaussianPosterior:
    """N(θ*, A⁻¹) in centred coordinates, A = H + diag(δ) with H the GGN, or its blocks of one term each.

    The curvature Λ of each row is its average over this very Gaussian (`_averaged`); the evidence has that at the mode.
    The weights of monotone effects are restricted to the cone where none is negative (`_restricted`).

    Args:
        fitted: the mode, and the blocks of the curvature there.
        model: the function of the weights.
        structure: "block" or "full".
        log_unit: what log Z loses for each row in y's unit.
    """
    evidence = fitted.evidence.value
    if structure == "full":
        held, prior = fitted.problem.held(fitted.theta), fitted.at.diagonal(fitted.problem.families)
        full = _precision(fitted, model, "full", fitted.linear).to_dense().masked_fill(held | held[:, None], 0.0)
        blocks = BlockFactors.of(fitted.linear.blocks, prior, held)
        evidence = evidence + 0.5 * (blocks.logdet() - DensePrecision(full + torch.diag(prior * held)).logdet())
    location, precision, cones = _restricted(fitted, _precision(fitted, model, structure, _averaged(fitted)))
    record = Record(
        "laplace", evidence=evidence - log_unit * fitted.problem.rows(), notes=_notes(fitted, structure),
        trace=dict(fitted.trace),
    )  # fmt: skip
    return GaussianPosterior(location, precision, record, model, _likelihood(fitted, model), cones=cones)


def _restricted(fitted: AdditiveFit, precision: Precision) -> tuple[Tensor, Precision, tuple[Cone, ...]]:
    """The mean and the precision of draws in the cone where no bounded weight is negative, and the maps to it.

    A weight that is held at 0 has a slope g there, which is negative: to second order about the mode θ* the log joint
    has its largest value at θ* + A⁻¹ g, outside the cone, and θ* is the point of the cone that is nearest to it.
    """
    problem, theta = fitted.problem, fitted.theta
    if not bool(problem.bounded.any()):
        return theta, precision, ()
    linear, diagonal = fitted.linear, fitted.at.diagonal(problem.families)
    slope = linear.transposed(linear.slope) - diagonal * (theta - problem.centre)
    slope = torch.where(problem.held(theta), slope, 0.0)
    location = theta.clone()
    blocks, indices = [precision], [torch.arange(len(theta))]
    if isinstance(precision, BlockPrecision):
        blocks, indices = list(precision.blocks), list(precision.indices)
    cones, parts = [], []
    for block, index in zip(blocks, indices, strict=True):
        bounded = problem.bounded[index].nonzero()[:, 0]
        if len(bounded) == 0:
            parts.append(block)
            continue
        beyond = theta[index] + block.solve(slope[index])
        location[index], matrix, cone = onto_cone(beyond, block.to_dense(), bounded, index)
        parts.append(DensePrecision(matrix, name=NAME))
        cones.append(cone)
    by_blocks = isinstance(precision, BlockPrecision)
    return location, BlockPrecision(parts, indices, len(theta), name=NAME) if by_blocks else parts[0], tuple(cones)


def tightest_log_evidence(fitted: AdditiveFit) -> float:
    """log Z by the full GGN where that is cheap, else by its blocks: to compare fits of the same rows.

    With R = Λ^½ J, log∣Rᵀ R + D∣ = log∣D∣ + log∣I + R D⁻¹ Rᵀ∣: N C rows, however many weights.
    """
    linear, at, problem = fitted.linear, fitted.at, fitted.problem
    outputs = linear.outputs
    if problem.passes.in_files or len(problem.weights[ALL]) * outputs > MOST_ROWS:
        return fitted.log_evidence
    root = problem.root(linear.f, at.likelihood, ALL)
    jacobian = (root.mT @ _jacobian(fitted, ALL)).flatten(0, 1)
    prior = at.diagonal(problem.families)
    held = problem.held(fitted.theta)
    whitened = (jacobian * prior.rsqrt()).masked_fill(held, 0.0)
    gram = whitened @ whitened.mT
    gram.diagonal().add_(1.0)
    full = torch.linalg.cholesky(gram).diagonal().log().sum() + 0.5 * prior.log().sum()
    blocks = 0.5 * BlockFactors.of(linear.blocks, prior, held).logdet()
    return fitted.log_evidence + float(blocks - full)


def point_at(fitted: AdditiveFit, model: AdditiveModel) -> PointPosterior:
    """All mass at the mode: the plain additive model."""
    record = Record("map", notes=_notes(fitted, None), trace=dict(fitted.trace))
    return PointPosterior(fitted.theta, record, model, _likelihood(fitted, model))


def _likelihood(fitted: AdditiveFit, model: AdditiveModel) -> Likelihood:
    """p(y∣f) in y's unit, which is not that of standardised targets."""
    likelihood = fitted.at.likelihood
    if bool((model.scale == 1.0).all()) and likelihood.noise_variance is None:
        return likelihood
    return likelihood.in_unit(model.scale)


def _averaged(fitted: AdditiveFit) -> Linearized:
    """The model at the mode with the curvature of each row averaged over the posterior of its f: Λ = E[−∂² log p(y∣f)].

    For a given mean, this covariance is the Gaussian's that is nearest to the posterior in KL(q‖p) (Opper & Archambeau
    2009). The curvature at the mode says nothing of rows whose label f has made certain: where classes are separable it
    vanishes, and f would be free to take values that contradict the labels. The average is found by steps half way
    there; the variances of f are those of the blocks.
    """
    linear, problem = fitted.linear, fitted.problem
    if fitted.at.likelihood.noise_variance is not None:
        return linear
    before: float | None = None
    diagonal = fitted.at.diagonal(problem.families)
    with threads_for(problem.numbers):
        for _ in range(_STEPS):
            variance = output_variances(linear, BlockFactors.of(linear.blocks, diagonal))
            average = _expected_curvature(linear, variance)
            halfway = problem.passes.kept(_between(linear.curvature, average))
            linear = replace(linear, curvature=halfway, known=None)
            logdet = float(BlockFactors.of(linear.blocks, diagonal).logdet())
            if before is not None and abs(logdet - before) < _SETTLED:
                break
            before = logdet
    return linear


def _between(one: RowValues, other: RowValues) -> Callable[[slice], Tensor]:
    return lambda rows: 0.5 * (one[rows] + other[rows])


def _expected_curvature(linear: Linearized, variance: RowValues) -> RowValues:
    """E[Λ] of each row over f ~ N(f at the mode, variance), times its weight, shape (N, C, C)."""
    problem, likelihood, outputs = linear.problem, linear.likelihood, linear.outputs

    def average(rows: slice) -> Tensor:
        f, cov = linear.f[rows], variance[rows].unflatten(1, (outputs, outputs))
        y, weights = problem.targets[rows], problem.weights[rows]
        total = torch.zeros_like(cov)
        for at, log_weight in _nodes(f, cov):
            root = likelihood.ggn_sqrt(at, y) * (0.5 * log_weight).exp()[..., None]
            total += root @ root.mT
        return total * weights[:, None, None]

    return problem.passes.computed(average)


def _nodes(f: Tensor, cov: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Nodes (n, C) and log weights (n, 1) for averages over N(f, cov): one-dimensional, or quasi-Monte Carlo."""
    if f.shape[1] == 1:
        values, log_weights = activation_nodes(f, cov[:, 0].clamp_min(0.0))
        yield from zip(values.unbind(-1), log_weights.unbind(-1), strict=True)
        return
    root = principal_root(cov, cov.diagonal(dim1=-2, dim2=-1).amax(-1))
    log_weight = f.new_full((len(f), 1), -math.log(_NODES))
    for z in normal_nodes(f.shape[1], _NODES):
        yield f + root @ z, log_weight


def _precision(fitted: AdditiveFit, model: AdditiveModel, structure: str, linear: Linearized) -> Precision:
    prior = fitted.at.diagonal(fitted.problem.families)
    if structure == "block":
        blocks = [block for of_family in linear.blocks for block in of_family]
        names = [*[term.name for term in model.terms], "the intercept"]
        parts = [
            DensePrecision(block + torch.diag(prior[index]), name=f"{NAME}, {name}")
            for block, index, name in zip(blocks, model.indices, names, strict=True)
        ]
        return BlockPrecision(parts, model.indices, model.dim, name=NAME)
    (matrix,) = fitted.problem.passes.summed(lambda rows: [_full_curvature(fitted, model, linear, rows)])
    return DensePrecision(matrix + torch.diag(prior), name=NAME)


def _full_curvature(fitted: AdditiveFit, model: AdditiveModel, linear: Linearized, rows: slice) -> Tensor:
    """Σ Jᵀ Λ J over some rows, shape (P, P)."""
    curvature = linear.curvature[rows]
    first = rows.start or 0
    matrix = torch.zeros(model.dim, model.dim, dtype=torch.float64)
    for some in row_blocks(len(curvature), 8 * model.outputs * model.dim):
        jacobian = _jacobian(fitted, slice(first + some.start, first + some.stop))
        matrix += (curvature[some] @ jacobian).flatten(0, 1).mT @ jacobian.flatten(0, 1)
    return matrix


def _jacobian(fitted: AdditiveFit, rows: slice) -> Tensor:
    """That of the centred training model, shape (n, C, P)."""
    linear = fitted.linear
    parts = []
    for jacobian, design in zip(linear.jacobians, fitted.problem.designs, strict=True):
        place = design.place[:, rows]
        at_rows = torch.stack([some[at] for some, at in zip(jacobian, place, strict=True)])  # (G, n, C, P)
        parts.append(at_rows.permute(1, 2, 0, 3).flatten(2))
    constant = torch.eye(linear.outputs, dtype=torch.float64).expand(parts[0].shape[0], -1, -1)
    return torch.cat([*parts, constant], 2)


def _notes(fitted: AdditiveFit, structure: str | None) -> dict[str, str]:
    """What the summary says of the fit, by title."""
    problem, at = fitted.problem, fitted.at
    epochs = len(fitted.trace.get("log_evidence", ()))
    rest = {"rest": "", "all epochs": ", and was still rising: raise epochs"}.get(
        fitted.ended, f", ended by {fitted.ended}"
    )
    notes = {
        "terms": f"{sum(len(family.terms) for family in problem.families)}, "
        + "; ".join(f"{len(family.terms)} with {family.weights} weights each" for family in problem.families),
        "rows": f"{problem.rows():,.6g}",
        "training": f"{epochs} Gauss-Newton epochs, the evidence asked after each{rest}",
        "effective parameters": f"{fitted.evidence.total:.1f}",
        "prior precision": _listed(fitted),
        "intercept": f"prior precision {at.intercept_precision:g} in the unit of the weights"
        if at.intercept_precision < MOST_PRECISION
        else "off",
    }
    monotone = {
        term.name: "rising" if sign > 0 else "falling"
        for family in problem.families
        if isinstance(family, MonotoneSteps)
        for term, sign in zip(family.terms, family.signs.tolist(), strict=True)
    }
    if monotone:
        notes["monotone"] = ", ".join(f"{name} {how}" for name, how in monotone.items())
    if structure is not None:
        per = "a block of the GGN for each term, effects centred" if structure == "block" else "the full GGN"
        averaged = "" if at.likelihood.noise_variance is not None else ", averaged over the posterior"
        notes["curvature"] = per + averaged
    grouped = [name for design in problem.designs for name in design.grouped]
    if grouped:
        notes["numbers grouped while fitting"] = ", ".join(grouped)
    return notes


def _listed(fitted: AdditiveFit) -> str:
    """The precision of each term and layer, and what is switched off: a feature may still act through its pairs."""
    lines: list[str] = []
    silent: list[str] = []
    on: set[tuple[int, str]] = set()
    entries = [
        (term, dict(zip(family.layers, values.tolist(), strict=True)))
        for family, precisions in zip(fitted.problem.families, fitted.at.precisions, strict=True)
        for term, values in zip(family.terms, precisions, strict=True)
    ]
    for term, layers in entries:
        if not _off(layers):
            on.update((feature, term.name) for feature in term.features if len(term.features) > 1)
    for term, layers in entries:
        others = ", ".join(sorted(name for feature, name in on if (feature,) == term.features))
        through_pairs = f" (acts through {others})" if others and _off(layers) else ""
        (silent if _off(layers) and not others else lines).append(f"{term.name} {_described(layers)}{through_pairs}")
    many = len(silent) > MOST_SILENT
    return ", ".join([*lines, f"{len(silent)} others off"] if many else [*lines, *silent])


def _off(layers: Mapping[str, float]) -> bool:
    """Whether all that the term is linear in is switched off."""
    return all(value >= MOST_PRECISION for name, value in layers.items() if name != "inner")


def _described(layers: Mapping[str, float]) -> str:
    if _off(layers):
        return "off"
    numbers = {name: "off" if value >= MOST_PRECISION else f"{value:.3g}" for name, value in layers.items()}
    if len(set(numbers.values())) == 1:
        return next(iter(numbers.values()))
    return "(" + ", ".join(f"{name} {number}" for name, number in numbers.items()) + ")"
