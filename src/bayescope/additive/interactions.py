"""Which pairs of features to give a net of their own: pairs ranked by what a fit without them leaves, or by dependence.

"evidence" asks what a pair would add to log Z, from the slope and curvature of the likelihood at the fit. "mutual
information" (Bouchiat et al. 2024) asks how dependent the two features' effects are in the posterior. That
tells concurvity, features that could stand in for each other, and not interaction as such: with a Gaussian likelihood
neither the residuals nor the targets enter but through the fitted effects and the noise, so that a pair whose product
is all that is left of y ranks no higher than if it were not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import final

import numpy as np
import torch
from torch import Tensor

from bayescope.additive.coded import Observed
from bayescope.additive.families import HiddenNets, Points, linear_weights
from bayescope.additive.fit import LEAST_PRECISION, MOST_PRECISION, AdditiveFit
from bayescope.additive.observed import Margin
from bayescope.additive.passes import RowPasses, RowValues
from bayescope.additive.terms import Term, pair_term
from bayescope.process_state import one_thread
from bayescope.progress import progress_bar
from bayescope.storage import stored
from bayescope.tables.encoding import NO_LEVEL, TableEncoding

# Hidden units that a candidate is judged by, and the precisions tried for their weights.
UNITS = 32
PRECISIONS = torch.logspace(-4, 3, 22, dtype=torch.float64)
# The prior precision of the features' own functions, as a share of the curvature of the best determined one.
FEATURE_PRECISION = 1e-6
# Numbers held at a time while candidates are judged.
BLOCK = 2_000_000

Pair = tuple[int, int]


@stored("ranking")
@final
@dataclass(frozen=True, eq=False)
class Ranking:
    """All pairs of features, best first.

    Attributes:
        pairs: positions of the features in the table, the smaller first.
        scores: of each, float64: the gain in log evidence, or the mutual information, in nats.
        method: "evidence" or "mutual_information".
    """

    pairs: tuple[Pair, ...]
    scores: np.ndarray
    method: str

    @classmethod
    def of(cls, pairs: Sequence[Pair], scores: np.ndarray, method: str) -> Ranking:
        """The pairs with their scores, the largest score first."""
        order = np.argsort(-scores, kind="stable")
        return cls(tuple(pairs[place] for place in order), scores[order], method)


def rank(
    fit: AdditiveFit,
    encoding: TableEncoding,
    data: Observed,
    method: str,
    generator: torch.Generator,
    pairs: Sequence[Pair] | None = None,
    *,
    progress: bool = False,
) -> Ranking:
    """Ranks pairs of features.

    Args:
        fit: of the features' effects.
        encoding: of the table.
        data: what was fitted.
        method: "evidence" or "mutual_information".
        generator: of the hidden units that "evidence" judges by.
        pairs: which, in the order in which their hidden units are drawn; ``None`` for all.
        progress: whether a bar is drawn.

    Raises:
        OptionError: if the method is neither.
    """
    some = list(combinations(range(len(encoding.features)), 2)) if pairs is None else pairs
    if method == "evidence":
        scores = evidence_gains(fit, [pair_term(encoding, pair) for pair in some], data, generator, progress=progress)
    else:
        information = mutual_information(fit, len(encoding.features))
        scores = torch.stack([information[pair] for pair in some]) if some else torch.zeros(0)
    return Ranking.of([(min(pair), max(pair)) for pair in some], scores.numpy(), method)


def features_on(fit: AdditiveFit) -> set[int]:
    """The features of all terms that are not switched off."""
    return {
        feature
        for family, precisions in zip(fit.problem.families, fit.at.precisions, strict=True)
        for term, of_term in zip(family.terms, precisions, strict=True)
        if any(
            value < MOST_PRECISION
            for name, value in zip(family.layers, of_term.tolist(), strict=True)
            if name != "inner"
        )
        for feature in term.features
    }


def evidence_gains(
    fit: AdditiveFit, terms: Sequence[Term], data: Observed, generator: torch.Generator, *, progress: bool = False
) -> Tensor:
    r"""What each pair alone would add to the log evidence if its net's hidden units stayed as they start.

    With units φ, H a pair, f moves by V φ, V ~ N(0, 1/p), and log p(y∣f) to second order is a linear model with slope g
    and curvature Λ. What the constant and functions B of either feature alone can do is not counted: they are in both
    models, with the prior N(0, 1/ε) on their weights, ε next to nothing. With M = (BᵀΛB + ε)⁻¹, the eigenvalues e of
    K = φᵀΛφ − φᵀΛB M BᵀΛφ, and t the coordinates of φᵀg − φᵀΛB M Bᵀg in its eigenvectors,

        gain = max_p ½ Σ t²/(e + p) − ½ Σ log(1 + e/p),

    which is 0 at p = ∞ (Bishop, PRML, eq. 3.86, for a linear model; the difference of two). Of C outputs, Λ is
    replaced by the diagonal of its absolute row sums, which is at least Λ (Gershgorin), so that the gain is at most the
    exact one where Bᵀg = 0, and all sums also go over outputs. Where outputs do not share a row's curvature that is Λ.

    Numbers are cut into at most 24 groups of equal size, each represented by its mean. The rows of a cell are added
    up: cost grows with N by one addition a row and pair.

    Args:
        fit: gives g and Λ.
        terms: the pairs.
        data: what was fitted.
        generator: draws the hidden units.
        progress: whether a bar is drawn.

    Returns:
        Gains in nats, shape (T,), at least 0.
    """
    weights, linear, passes = fit.problem.weights, fit.linear, fit.problem.passes
    summed = passes.computed(
        lambda rows: torch.cat([weights[rows][:, None], linear.slope[rows], linear.curvature[rows].abs().sum(2)], 1)
    )
    columns = {column.feature: column for term in terms for column in term.columns}
    margins = {feature: data.margin(column, generator) for feature, column in columns.items()}
    gains = torch.zeros(len(terms), dtype=torch.float64)
    done = 0
    # The factorisations are small
    with one_thread(), progress_bar("judging", visible=progress) as report:
        for places in _blocks(terms, margins):
            report(done, len(terms), f"pairs, such as {terms[places[0]].name}")
            done += len(places)
            some = [terms[place] for place in places]
            grids = Grids.of([(margins[term.features[0]], margins[term.features[1]]) for term in some], summed, passes)
            gains[places] = _gains(grids, some, generator)
    return gains


def _blocks(terms: Sequence[Term], margins: dict[int, Margin]) -> Iterator[list[int]]:
    """Terms of equal width, as many at a time as memory is to hold."""
    side = max((len(margin.share) for margin in margins.values()), default=1)
    wide = 1 + 2 * max((margin.basis.shape[1] for margin in margins.values()), default=1) + UNITS
    most = max(1, BLOCK // (side**2 * wide))
    for width in sorted({term.width for term in terms}):
        places = [place for place, term in enumerate(terms) if term.width == width]
        yield from (places[first : first + most] for first in range(0, len(places), most))


def _gains(grids: Grids, terms: Sequence[Term], generator: torch.Generator) -> Tensor:
    net = HiddenNets.of(terms, UNITS, 1)
    units = net.units(net.start(grids.points, grids.share, generator), grids.points)
    units.masked_fill_((grids.points.levels != NO_LEVEL)[..., None], 0.0)
    functions, basis_size = torch.cat([grids.basis, units], 2), grids.basis.shape[2]
    slope, curvature = grids.sums[..., 1:].chunk(2, 2)
    return gains_by_precision(functions, basis_size, slope, curvature).max(1).values.clamp(min=0.0)  # p = ∞


def gains_by_precision(functions: Tensor, basis_size: int, slope: Tensor, curvature: Tensor) -> Tensor:
    """What each of G terms would add to the log evidence at each of `PRECISIONS`, shape (G, 22).

    Args:
        functions: at U points of each term, shape (G, U, M + H); the first M are in the model already.
        basis_size: M.
        slope: of log p(y∣f), summed over the rows of each point, shape (G, U, C).
        curvature: that of −log p(y∣f), likewise.
    """
    gains = torch.zeros(len(functions), len(PRECISIONS), dtype=torch.float64)
    for output in range(slope.shape[2]):
        gram = (functions * curvature[..., output, None]).mT @ functions
        right = (functions.mT @ slope[..., output, None])[..., 0]
        gains += _by_precision(*_projected(gram, right, basis_size))
    return gains


def _projected(gram: Tensor, right: Tensor, basis_size: int) -> tuple[Tensor, Tensor]:
    """K and t before its rotation: φᵀΛφ and φᵀg less what the first functions explain."""
    first = gram[:, :basis_size, :basis_size]
    weak = FEATURE_PRECISION * first.diagonal(dim1=1, dim2=2).max(1, keepdim=True).values
    factor = torch.linalg.cholesky(first + torch.diag_embed(weak.expand(-1, basis_size)))
    joined = torch.cat([gram[:, :basis_size, basis_size:], right[:, :basis_size, None]], 2)
    white, explained = torch.linalg.solve_triangular(factor, joined, upper=False).split(
        [gram.shape[2] - basis_size, 1], 2
    )
    return gram[:, basis_size:, basis_size:] - white.mT @ white, right[:, basis_size:] - (white.mT @ explained)[..., 0]


def _by_precision(matrix: Tensor, vector: Tensor) -> Tensor:
    """½ Σ t²/(e + p) − ½ Σ log(1 + e/p) for each precision."""
    sizes, directions = torch.linalg.eigh(matrix)
    sizes = sizes.clamp(min=0.0)  # rounding: K is a Schur complement of a Gram matrix
    squares = (directions.mT @ vector[..., None])[..., 0].square()
    fitted = (squares[..., None] / (sizes[..., None] + PRECISIONS)).sum(1)
    return 0.5 * (fitted - torch.log1p(sizes[..., None] / PRECISIONS).sum(1))


def mutual_information(fit: AdditiveFit, features: int) -> Tensor:
    """−½ log(1 − ρ²) for the output scales of each two features' effects, shape (D, D) (Bouchiat et al. 2024).

    With one scale s_j a feature, f = Σ_j s_j f_j at s = 1 and the hidden layers held, the posterior of s has the
    precision F + P over the features: F_jk = Σ_n f_j(x_n)ᵀ Λ_n f_k(x_n), over all C outputs, with centred effects.
    The weights that f_j is linear in, all but the hidden layer's, are s_j v_j with v_j ~ N(0, 1/δ_j), so that the log
    prior is −½ s_j² Σ δ_j v_j², and P_jj = Σ δ_j v_j². ρ are the correlations in (F + P)⁻¹. An effect that is 0
    everywhere tells nothing of others: 0.
    """
    precision = torch.zeros(features, dtype=torch.float64)
    pulled, _ = fit.problem.split(fit.at.diagonal(fit.problem.families) * fit.theta.square())
    for family, of_family in zip(fit.problem.families, pulled, strict=True):
        pulls = of_family[:, linear_weights(family)].sum(1)
        for term, pull in zip(family.terms, pulls, strict=True):
            if len(term.features) == 1:
                precision[term.features[0]] = pull
    joint = _scales_curvature(fit, features) + torch.diag(precision)
    informed = joint.diagonal() > LEAST_PRECISION
    root = joint.diagonal()[informed].sqrt()
    covariance = torch.linalg.inv(joint[informed][:, informed] / torch.outer(root, root))
    variance = covariance.diagonal()
    squares = (covariance.square() / torch.outer(variance, variance)).fill_diagonal_(0.0)
    information = torch.zeros(features, features, dtype=torch.float64)
    # Two effects that are one but for rounding: the most that float64 can tell.
    remaining = (1.0 - squares).clamp(min=torch.finfo(torch.float64).eps)
    information[torch.outer(informed, informed)] = (-0.5 * remaining.log()).flatten()
    return information


def _scales_curvature(fit: AdditiveFit, features: int) -> Tensor:
    """F, shape (D, D), a block of rows at a time."""
    values = []
    weights, _ = fit.problem.split(fit.theta)
    for family, design, theta in zip(fit.problem.families, fit.problem.designs, weights, strict=True):
        at = family.values(theta, design.points)
        values.append(design.less(at, design.mean(at)))
    outputs, curvature = fit.linear.outputs, fit.linear.curvature

    def part(rows: slice) -> list[Tensor]:
        middle = curvature[rows]
        first, total = rows.start or 0, torch.zeros(features, features, dtype=torch.float64)
        for some in torch.arange(len(middle)).split(max(1, BLOCK // (features * outputs))):
            effects = torch.zeros(features, len(some), outputs, dtype=torch.float64)
            here = slice(first + int(some[0]), first + int(some[-1]) + 1)
            for family, design, of in zip(fit.problem.families, fit.problem.designs, values, strict=True):
                places = design.place[:, here]
                for place, term in enumerate(family.terms):
                    if len(term.features) == 1:
                        effects[term.features[0]] = of[place, places[place]]
            weighted = (middle[some] @ effects[..., None])[..., 0]
            total += effects.flatten(1) @ weighted.flatten(1).mT
        return [total]

    return fit.problem.passes.summed(part)[0]


@final
@dataclass(frozen=True, eq=False)
class Grids:
    """Several pairs of features, each on the U = K² cells that their groups make; unused cells have no data.

    Attributes:
        points: what a net of the pair reads in each cell, U points for each of G pairs.
        share: of the data in each cell, shape (G, U).
        basis: the constant and both features' own functions in each cell, shape (G, U, M).
        sums: over the rows of each cell, shape (G, U, S).
    """

    points: Points
    share: Tensor
    basis: Tensor
    sums: Tensor

    @classmethod
    def of(cls, pairs: Sequence[tuple[Margin, Margin]], summed: RowValues, passes: RowPasses) -> Grids:
        """Adds up the rows.

        Args:
            pairs: of margins, whose nets all have as many inputs.
            summed: what is added up, shape (N, S); its first column holds the rows' weights.
            passes: how the rows are read.
        """
        side = max(len(margin.share) for pair in pairs for margin in pair)
        wide = 1 + max(first.basis.shape[1] + second.basis.shape[1] for first, second in pairs)
        width = pairs[0][0].inputs.shape[1] + pairs[0][1].inputs.shape[1]
        count = len(pairs)
        inputs = torch.zeros(count, side, side, width, dtype=torch.float64)
        basis = torch.zeros(count, side, side, wide, dtype=torch.float64)
        gone = torch.ones(count, side, side, dtype=torch.bool)
        basis[..., 0] = 1.0
        for place, (first, second) in enumerate(pairs):
            rows, columns = len(first.share), len(second.share)
            edge, middle = first.inputs.shape[1], 1 + first.basis.shape[1]
            inputs[place, :rows, :, :edge] = first.inputs[:, None]
            inputs[place, :, :columns, edge:] = second.inputs
            basis[place, :rows, :, 1:middle] = first.basis[:, None]
            basis[place, :, :columns, middle : middle + second.basis.shape[1]] = second.basis
            gone[place, : rows - 1, : columns - 1] = False
        (sums,) = passes.summed(lambda rows: [_sums(pairs, side, summed[rows], rows)])
        share = sums[..., 0] / sums[..., 0].sum(1, keepdim=True)
        points = Points(inputs.flatten(1, 2), torch.where(gone.flatten(1), 0, NO_LEVEL))
        return cls(points, share, basis.flatten(1, 2), sums)


def _sums(pairs: Sequence[tuple[Margin, Margin]], side: int, numbers: Tensor, rows: slice) -> Tensor:
    """Of some rows' numbers (n, S) over the cells of each pair, shape (G, U, S)."""
    groups = {id(margin): margin.group[rows] for pair in pairs for margin in pair}
    sums = torch.zeros(len(pairs), side * side, numbers.shape[1], dtype=torch.float64)
    for place, (first, second) in enumerate(pairs):
        sums[place].index_add_(0, groups[id(first)] * side + groups[id(second)], numbers)
    return sums
