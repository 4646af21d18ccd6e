"""What the posterior says about single terms: the mean and the covariance of their contributions to f.

A contribution is linear in the weights about the mode, c_t(x) ≈ c_t(x, θ*) + J_t(x) (θ − θ*), so that any set of them
is jointly Gaussian with covariance J A⁻¹ Jᵀ. Pairs are reported without the main effects of their features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import final

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from bayescope import checks
from bayescope.additive.additive import Additive
from bayescope.additive.families import quantiles
from bayescope.additive.terms import EncodedRows, FeatureInput
from bayescope.errors import OptionError
from bayescope.posterior import GaussianPosterior, PointPosterior
from bayescope.precision import BlockPrecision, Precision
from bayescope.tape import DenseTape, JoinedTape, Tape
from bayescope.tape.tape import row_blocks

# Pairs without what their features do alone: the share of a pair's effect that belongs to the features' own effects.
#
# A pair's net could take over what one of its features does alone: f_a + f_b + f_ab stays the same when g(x_a) moves
# from one term to the other. Of all ways to write the sum, the reported effects have no g(x_a) + h(x_b) left in a
# pair: f_ab less its projection onto sums of functions of one feature, in the mean square over the data, which the
# features' own effects take over (Hooker 2007; Lengerich, Tan, Chang, Hooker & Caruana 2020). The functions are of 4
# smooth steps each, or of the categories. The projection is linear in f_ab, and so in the weights. As the zero of an
# effect is its mean over the data at hand, what a pair keeps is estimated from the same data: of N rows and m
# functions, sums of them fit a share m/N of it by chance.

STEPS = 4
# The steps' slope, in distances between the first and the last of them.
SLOPE = 4.0
# Directions of the functions along which the data vary by less than this share of the largest are left out.
NEGLIGIBLE = 1e-5


@final
@dataclass(frozen=True, eq=False)
class Functions:
    """Functions of one feature: smooth steps of a number or indicators of categories, and an indicator of no value.

    Attributes:
        column: how nets read the feature.
        steps: where the steps are, in the model's numbers, shape (m,).
        slope: theirs.
        centre: the functions' means over the data.
    """

    column: FeatureInput
    steps: Tensor
    slope: float
    centre: Tensor

    @classmethod
    def of(cls, column: FeatureInput, rows: EncodedRows, weights: Tensor) -> Functions:
        """Places the steps at quantiles of the data, and centres.

        Args:
            column: how nets read the feature.
            rows: its values.
            weights: how often each counts.
        """
        inputs, absent = column.read(rows)
        numbers = bool((~absent).any()) and column.slots is None
        shares = torch.linspace(0.5 / STEPS, 1.0 - 0.5 / STEPS, STEPS, dtype=torch.float64)
        steps = quantiles(inputs[~absent, 0], weights[~absent], shares).unique() if numbers else inputs.new_zeros(0)
        reach = float(steps[-1] - steps[0]) if len(steps) > 1 else 1.0
        loose = cls(column, steps, SLOPE / reach, inputs.new_zeros(()))
        return cls(column, steps, SLOPE / reach, weights @ loose.at(rows) / weights.sum())

    def at(self, rows: EncodedRows) -> Tensor:
        """Their values, shape (N, m)."""
        inputs, absent = self.column.read(rows)
        values = torch.tanh(self.slope * (inputs - self.steps)) if self.column.slots is None else inputs
        return torch.cat([values.masked_fill(absent[:, None], 0.0), absent[:, None].to(inputs)], 1) - self.centre


@final
@dataclass(frozen=True, eq=False)
class Share:
    """What the features' own effects take over from a pair: Σ_k φ_k(x_a) β_k + Σ_k φ_k(x_b) β_k.

    Attributes:
        pair: the position of the pair's term.
        owners: the positions of the terms of its features.
        functions: the φ of each feature.
        values: the β of each feature, shape (m, C).
        jacobians: ∂β/∂(weights of the pair), shape (m, C, P).
    """

    pair: int
    owners: tuple[int, ...]
    functions: tuple[Functions, ...]
    values: tuple[Tensor, ...]
    jacobians: tuple[Tensor, ...]

    def moved(self, rows: EncodedRows) -> list[tuple[int, Tensor, Tensor]]:
        """To which term, how much at each row, shape (N, C), and its Jacobian, shape (N, C, P)."""
        parts = zip(self.owners, self.functions, self.values, self.jacobians, strict=True)
        return [
            (owner, (phi := functions.at(rows)) @ value, torch.tensordot(phi, jacobian, 1))
            for owner, functions, value, jacobian in parts
        ]


def shares_of(additive: Additive, pairs: Sequence[int]) -> list[Share]:
    """The shares of some pairs, by the positions of their terms."""
    model, encoding, seen = additive.model, additive.encoding, additive.seen
    found = []
    for pair in pairs:
        term = model.terms[pair]
        functions = tuple(_functions(additive, column) for column in term.columns)
        cells = seen.values(term.features)
        rows = cells.rows(encoding)
        [contribution], [jacobian] = _of_terms(additive, [pair], rows)
        projection = _projection(torch.cat([each.at(rows) for each in functions], 1), cells.weights)
        sizes = [len(each.centre) for each in functions]
        found.append(
            Share(
                pair,
                tuple(model.positions[column.feature,] for column in term.columns),
                functions,
                (projection @ contribution).split(sizes),
                torch.tensordot(projection, jacobian, 1).split(sizes),
            )
        )
    return found


def _of_terms(additive: Additive, terms: Sequence[int], rows: EncodedRows) -> tuple[Tensor, list[Tensor]]:
    """What each term gives, in the order of the model, shape (T', N, C), and its Jacobian, shape (N, C, P) each."""
    model, places = additive.model.only(terms), additive.model.indices
    theta = additive.posterior.location[torch.cat([*[places[term] for term in sorted(terms)], places[-1]])]
    return model.contributions(rows, theta), model.jacobians(rows, theta)


def _functions(additive: Additive, column: FeatureInput) -> Functions:
    values = additive.seen.features[column.feature]
    return Functions.of(column, values.rows(additive.encoding), values.weights)


def _projection(design: Tensor, weights: Tensor) -> Tensor:
    """(Φᵀ W Φ)⁺ Φᵀ W, shape (m, N)."""
    root = weights.sqrt()[:, None]
    return torch.linalg.pinv(root * design, rtol=NEGLIGIBLE) * root.mT


# ∂(reported value)/∂(weights), shape (N, K, P_t) for each term that it depends on; intercepts count as the last.
Jacobians = Mapping[int, Tensor]


@final
@dataclass(frozen=True, eq=False)
class Contributions:
    """The contributions of some terms to some rows.

    Attributes:
        rows: which.
        means: at the mode, shape (n, T', C).
        jacobians: of each of them.
    """

    rows: slice
    means: Tensor
    jacobians: tuple[Jacobians, ...]


def read(additive: Additive, rows: EncodedRows, terms: Sequence[int]) -> Iterator[Contributions]:
    """The contributions of terms, by their positions, a block of rows at a time; no other term is computed there."""
    model = additive.model
    alone = {model.terms[term].features[0] for term in terms if len(model.terms[term].features) == 1}
    pairs = [pair for pair in model.pairs if pair in terms or alone & {*model.terms[pair].features}]
    shares = shares_of(additive, pairs)
    for block in row_blocks(len(rows), 8 * model.outputs * model.only(terms).dim):
        some, order = rows[block], sorted(terms)
        means, of_terms = _of_terms(additive, order, some)
        mean = dict(zip(order, means, strict=True))
        jacobians: dict[int, dict[int, Tensor]] = {
            place: {place: part} for place, part in zip(order, of_terms, strict=True)
        }
        for share in shares:
            for owner, moved, slope in share.moved(some):
                if owner in mean:
                    mean[owner], jacobians[owner][share.pair] = mean[owner] + moved, slope
                if share.pair in mean:
                    mean[share.pair] = mean[share.pair] - moved
                    jacobians[share.pair][share.pair] = jacobians[share.pair][share.pair] - slope
        contrasts = [{by: contrasted(additive, part, 1) for by, part in jacobians[term].items()} for term in terms]
        yield Contributions(
            block, contrasted(additive, torch.stack([mean[term] for term in terms], 1), -1), (*contrasts,)
        )


def position_of(additive: Additive, features: Sequence[int]) -> int:
    """The position of the term of one feature or, in either order, of a pair.

    Raises:
        OptionError: if the model has no such term.
    """
    model = additive.model
    position = model.positions.get(tuple(sorted(features)))
    if position is not None:
        return position
    names = [additive.encoding.names[feature] for feature in features]
    pairs = [repr(model.terms[pair].name) for pair in model.pairs]
    known = f"expected one of {', '.join(pairs)}" if pairs else "expected a model with pairs"
    raise OptionError(
        f"pair: {known}, got {' & '.join(names)!r}, for which there is no term. Fit with interactions=[{(*names,)}]."
    )


def contrasted(additive: Additive, values: Tensor, axis: int) -> Tensor:
    """Outputs as reported: those of a softmax, which depends on differences alone, less their mean over the classes."""
    softmax = additive.posterior.likelihood is not None and additive.posterior.likelihood.domain.kind == "classes"
    return values - values.mean(axis, keepdim=True) if softmax else values


def intercept(additive: Additive, rows: int) -> tuple[Tensor, Jacobians]:
    """shift + scale · b, shape (C,), and its Jacobian for this many rows."""
    model = additive.model
    jacobian = contrasted(additive, torch.diag(model.scale), 0)
    return intercept_at(additive, additive.posterior.location), {len(model.terms): jacobian.expand(rows, -1, -1)}


def intercept_at(additive: Additive, theta: Tensor) -> Tensor:
    """shift + scale · b, shape (..., C), for weights of shape (..., P)."""
    model = additive.model
    return contrasted(additive, model.shift + model.scale * theta[..., -model.outputs :], -1)


def at_draws(additive: Additive, block: Contributions, term: int, moves: Tensor) -> Tensor:
    """The contributions of one of a block's terms, shape (n, C, S), at weights moved by (P, S) from the mode."""
    moved = sum(jacobian @ moves[additive.model.indices[by]] for by, jacobian in block.jacobians[term].items())
    return block.means[:, term, :, None] + moved


def interval(additive: Additive, mean: Tensor, sd: Tensor, jacobians: Jacobians, level: float) -> tuple[Tensor, Tensor]:
    """The ends of the central intervals of contributions, shape (n, C) each.

    The ends for a monotone term are quantiles over draws of the weights. As each draw is monotone, so are the ends.

    Args:
        additive: a fitted model.
        mean: of the contributions, shape (n, C).
        sd: their standard deviations.
        jacobians: of the contributions.
        level: the probability of an interval.
    """
    wide = width_of(level)
    position, *others = jacobians
    if others or position not in additive.monotone_moves:
        return mean - wide * sd, mean + wide * sd
    at_draws = (mean[..., None] + jacobians[position] @ additive.monotone_moves[position]).numpy()
    low, high = torch.from_numpy(np.quantile(at_draws, [0.5 - 0.5 * level, 0.5 + 0.5 * level], axis=-1))
    # More draws than the interval's probability may be flat, with the mean beyond.
    return torch.minimum(low, mean), torch.maximum(high, mean)


def width_of(level: float) -> float:
    """Half the width of a Gaussian's central interval of the given probability, in standard deviations."""
    return float(ndtri(0.5 + 0.5 * checks.fraction("level", level)))


def together(parts: Sequence[Jacobians]) -> Jacobians:
    """The Jacobian of a sum."""
    joined: dict[int, list[Tensor]] = {}
    for part in parts:
        for term, jacobian in part.items():
            joined.setdefault(term, []).append(jacobian)
    return {term: reduce(add, jacobians) for term, jacobians in joined.items()}


def variance(additive: Additive, jacobians: Jacobians) -> Tensor:
    """The variances of what has this Jacobian, shape (N, K)."""
    first = next(iter(jacobians.values()))
    answers = [precision.variance_of(tape) for precision, tape in _independent(additive, jacobians)]
    return reduce(add, answers, first.new_zeros(first.shape[:2]))


def covariance(additive: Additive, jacobians: Jacobians) -> Tensor:
    """The covariances of what has this Jacobian, shape (N, K, K)."""
    first = next(iter(jacobians.values()))
    answers = [precision.covariance_of(tape) for precision, tape in _independent(additive, jacobians)]
    return reduce(add, answers, first.new_zeros(*first.shape[:2], first.shape[1]))


def _independent(additive: Additive, jacobians: Jacobians) -> list[tuple[Precision, Tape]]:
    """Groups of weights that are independent of each other: one a term where it is so, else all in one."""
    match additive.posterior:
        case PointPosterior():
            return []
        case GaussianPosterior(precision=BlockPrecision() as precision):
            return [(precision.blocks[position], DenseTape(jacobian)) for position, jacobian in jacobians.items()]
        case GaussianPosterior(precision=precision):
            return [(precision, _over_all(additive, jacobians))]


def _over_all(additive: Additive, jacobians: Jacobians) -> JoinedTape:
    """The rows over all weights: zero for the terms that have no Jacobian."""
    first, model = next(iter(jacobians.values())), additive.model
    rows, outputs = first.shape[:2]
    zero = first.new_zeros(())
    parts = [
        DenseTape(jacobians[position] if position in jacobians else zero.expand(rows, outputs, len(index)))
        for position, index in enumerate(model.indices)
    ]
    return JoinedTape(tuple(parts), model.indices, model.dim)
