"""The posterior at the mode of an additive model: by blocks, full, or a point."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bayescope.additive.design import ALL
from bayescope.additive.evidence import MOST_PRECISION
from bayescope.additive.fit import AdditiveFit
from bayescope.additive.model import AdditiveModel
from bayescope.additive.problem import Blocks
from bayescope.likelihoods import Gaussian, Likelihood
from bayescope.posterior import GaussianPosterior, PointPosterior, Record
from bayescope.precision import BlockPrecision, DensePrecision, Precision
from bayescope.tape.tape import row_blocks

STRUCTURES = ("block", "full")
# Up to so many rows times outputs the full GGN's determinant costs less than a step.
MOST_ROWS = 2048
NAME = "the precision of the additive model's weights"


def laplace_at(fitted: AdditiveFit, model: AdditiveModel, structure: str, log_unit: float) -> GaussianPosterior:
    """N(θ*, A⁻¹) in centred coordinates, A = H + diag(δ) with H the GGN, or its blocks of one term each.

    Args:
        fitted: the mode, and the blocks of the curvature there.
        model: the function of the weights.
        structure: "block" or "full".
        log_unit: what log Z loses for each row in y's unit.
    """
    precision = _precision(fitted, model, structure)
    evidence = fitted.evidence.value
    if structure == "full":
        blocks = _precision(fitted, model, "block")
        evidence = evidence + 0.5 * (blocks.logdet() - precision.logdet())
    record = Record(
        "laplace", evidence=evidence - log_unit * fitted.problem.rows(), notes=_notes(fitted, structure),
        trace=dict(fitted.trace),
    )  # fmt: skip
    return GaussianPosterior(_flat(fitted), precision, record, model, _likelihood(fitted, model))


def tightest_log_evidence(fitted: AdditiveFit) -> float:
    """log Z by the full GGN where that is cheap, else by its blocks: to compare fits of the same rows.

    With R = Λ^½ J, log∣Rᵀ R + D∣ = log∣D∣ + log∣I + R D⁻¹ Rᵀ∣: N C rows, however many weights.
    """
    linear, at, problem = fitted.linear, fitted.at, fitted.problem
    outputs = linear.outputs
    if not problem.passes.whole or len(problem.weights[ALL]) * outputs > MOST_ROWS:
        return fitted.log_evidence
    root = problem.root(linear.f, at.likelihood, ALL)
    jacobian = (root.mT @ _jacobian(fitted, ALL)).flatten(0, 1)
    prior = _prior_diagonal(fitted, outputs)
    whitened = jacobian * prior.rsqrt()
    gram = whitened @ whitened.mT
    gram.diagonal().add_(1.0)
    full = torch.linalg.cholesky(gram).diagonal().log().sum() + 0.5 * prior.log().sum()
    blocks = 0.5 * Blocks.of(linear.blocks, problem.families, at, 0.0).logdet()
    return fitted.log_evidence + float(blocks - full)


def point_at(fitted: AdditiveFit, model: AdditiveModel) -> PointPosterior:
    """All mass at the mode: the plain additive model."""
    record = Record("map", notes=_notes(fitted, None), trace=dict(fitted.trace))
    return PointPosterior(_flat(fitted), record, model, _likelihood(fitted, model))


def _flat(fitted: AdditiveFit) -> Tensor:
    return torch.cat([*[theta.flatten() for theta in fitted.state.thetas], fitted.state.intercept])


def _likelihood(fitted: AdditiveFit, model: AdditiveModel) -> Likelihood:
    """p(y∣f) in y's unit: a noise variance in the targets' unit times the scale's square."""
    likelihood = fitted.at.likelihood
    if not isinstance(likelihood, Gaussian):
        return likelihood
    variance = likelihood.noise(model.scale) * model.scale.square()
    return Gaussian(variance if len(variance.unique()) > 1 else variance[0])


def _precision(fitted: AdditiveFit, model: AdditiveModel, structure: str) -> Precision:
    diagonals = fitted.at.diagonal(fitted.problem.families)
    blocks, intercept = fitted.linear.blocks
    if structure == "block":
        parts = [
            DensePrecision(block + torch.diag(diagonal), name=f"{NAME}, {name}")
            for family, of_family, diagonal_of in zip(fitted.problem.families, blocks, diagonals, strict=True)
            for block, diagonal, name in zip(of_family, diagonal_of, [term.name for term in family.terms], strict=True)
        ]
        identity = torch.eye(len(intercept), dtype=torch.float64)
        last = DensePrecision(intercept + fitted.at.intercept_precision * identity)
        return BlockPrecision([*parts, last], model.indices, model.dim, name=NAME)
    (matrix,) = fitted.problem.passes.summed(lambda rows: [_full_curvature(fitted, model, rows)])
    prior = _prior_diagonal(fitted, model.outputs)
    return DensePrecision(matrix + torch.diag(prior), name=NAME)


def _full_curvature(fitted: AdditiveFit, model: AdditiveModel, rows: slice) -> Tensor:
    """Σ Jᵀ Λ J over some rows, shape (P, P)."""
    curvature = fitted.linear.curvature[rows]
    first = rows.start or 0
    matrix = torch.zeros(model.dim, model.dim, dtype=torch.float64)
    for some in row_blocks(len(curvature), 8 * model.outputs * model.dim):
        jacobian = _jacobian(fitted, slice(first + some.start, first + some.stop))
        matrix += (curvature[some] @ jacobian).flatten(0, 1).mT @ jacobian.flatten(0, 1)
    return matrix


def _prior_diagonal(fitted: AdditiveFit, outputs: int) -> Tensor:
    diagonals = [diagonal.flatten() for diagonal in fitted.at.diagonal(fitted.problem.families)]
    return torch.cat([*diagonals, torch.full((outputs,), fitted.at.intercept_precision, dtype=torch.float64)])


def _jacobian(fitted: AdditiveFit, rows: slice) -> Tensor:
    """That of the centred training model, shape (n, C, P)."""
    linear = fitted.linear
    parts = []
    for jacobian, design in zip(linear.jacobians, fitted.problem.designs, strict=True):
        place = design.place[:, rows]
        own = torch.stack([some[at] for some, at in zip(jacobian, place, strict=True)])  # (G, n, C, P)
        parts.append(own.permute(1, 2, 0, 3).flatten(2))
    constant = torch.eye(linear.outputs, dtype=torch.float64).expand(parts[0].shape[0], -1, -1)
    return torch.cat([*parts, constant], 2)


def _notes(fitted: AdditiveFit, structure: str | None) -> dict[str, str]:
    """Lines for the summary."""
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
        "intercept": f"prior precision {at.intercept_precision:g} in the unit of the weights",
    }
    if structure is not None:
        per = "a block of the GGN for each term, effects centred" if structure == "block" else "the full GGN"
        notes["curvature"] = per
    grouped = [name for design in problem.designs for name in design.grouped]
    if grouped:
        notes["numbers grouped while fitting"] = ", ".join(grouped)
    return notes


def _listed(fitted: AdditiveFit) -> str:
    """The precision of each term and layer, and what is switched off: a feature may still be told by its pairs."""
    lines: list[str] = []
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
        told_by = f" (told by {others})" if others and _off(layers) else ""
        lines.append(f"{term.name} {_told(layers)}{told_by}")
    return ", ".join(lines)


def _off(layers: Mapping[str, float]) -> bool:
    """Whether all that the term is linear in is switched off."""
    return all(value >= MOST_PRECISION for name, value in layers.items() if name != "inner")


def _told(layers: Mapping[str, float]) -> str:
    if _off(layers):
        return "off"
    numbers = {name: "off" if value >= MOST_PRECISION else f"{value:.3g}" for name, value in layers.items()}
    if len(set(numbers.values())) == 1:
        return next(iter(numbers.values()))
    return "(" + ", ".join(f"{name} {number}" for name, number in numbers.items()) + ")"
