"""Pairs without what their features do alone: the share of a pair's effect that belongs to the features' own effects.

A pair's net could take over what one of its features does alone: f_a + f_b + f_ab stays the same when g(x_a) moves from
one term to the other. Of all ways to write the sum, the effects that are told have no g(x_a) + h(x_b) left in a pair:
f_ab less its projection onto sums of functions of one feature, in the mean square over the data, which the features'
own effects take over (Hooker 2007; Lengerich, Tan, Chang, Hooker & Caruana 2020). The functions are of 4
smooth steps each, or of the categories. The projection is linear in f_ab, and so in the weights. As the zero of an
effect is its mean over the data at hand, what a pair keeps is told by the same data: of N rows and m functions, sums of
them fit a share m/N of it by chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from bayescope.additive.additive import Additive
from bayescope.additive.terms import FeatureInput, Rows

STEPS = 4
# The steps' slope, in distances between the first and the last of them.
SLOPE = 4.0
# Directions of the functions that the data tell apart by less than this share of the best told are left out.
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
    def of(cls, column: FeatureInput, rows: Rows, weights: Tensor) -> Functions:
        """Places the steps at quantiles of the data, and centres.

        Args:
            column: how nets read the feature.
            rows: its values.
            weights: how often each counts.
        """
        inputs, absent = column.read(rows)
        numbers = bool((~absent).any()) and column.slots is None
        steps = _quantiles(inputs[~absent, 0], weights[~absent]) if numbers else inputs.new_zeros(0)
        reach = float(steps[-1] - steps[0]) if len(steps) > 1 else 1.0
        loose = cls(column, steps, SLOPE / reach, inputs.new_zeros(()))
        return cls(column, steps, SLOPE / reach, weights @ loose.at(rows) / weights.sum())

    def at(self, rows: Rows) -> Tensor:
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

    def moved(self, rows: Rows) -> list[tuple[int, Tensor, Tensor]]:
        """To which term, how much at each row, shape (N, C), and its Jacobian, shape (N, C, P)."""
        parts = zip(self.owners, self.functions, self.values, self.jacobians, strict=True)
        return [
            (owner, (phi := functions.at(rows)) @ value, torch.tensordot(phi, jacobian, 1))
            for owner, functions, value, jacobian in parts
        ]


def shares_of(additive: Additive, pairs: Sequence[int]) -> list[Share]:
    """The shares of some pairs, by the positions of their terms."""
    model, encoding, seen = additive.model, additive.encoding, additive.seen
    owners = {term.features: position for position, term in enumerate(model.terms)}
    found = []
    for pair in pairs:
        term = model.terms[pair]
        functions = tuple(_functions(additive, column) for column in term.columns)
        cells = seen.pair(term.features)
        rows = cells.rows(encoding)
        contribution, jacobian = alone(additive, pair, rows)
        projection = _projection(torch.cat([each.at(rows) for each in functions], 1), cells.weights)
        sizes = [len(each.centre) for each in functions]
        found.append(
            Share(
                pair,
                tuple(owners[column.feature,] for column in term.columns),
                functions,
                (projection @ contribution).split(sizes),
                torch.tensordot(projection, jacobian, 1).split(sizes),
            )
        )
    return found


def alone(additive: Additive, pair: int, rows: Rows) -> tuple[Tensor, Tensor]:
    """What the term of a pair gives, shape (N, C), and its Jacobian, shape (N, C, P), without all other terms."""
    model, theta = additive.model.alone(pair), additive.posterior.location
    weights = torch.cat([theta[additive.model.indices[pair]], theta[-model.outputs :]])
    return model.contributions(rows, weights)[0], model.jacobians(rows, weights)[0]


def _functions(additive: Additive, column: FeatureInput) -> Functions:
    values = additive.seen.features[column.feature]
    return Functions.of(column, values.rows(additive.encoding), values.weights)


def _quantiles(numbers: Tensor, weights: Tensor) -> Tensor:
    """Where the steps are: numbers with equal weight between them, interpolated."""
    distinct, place = numbers.unique(return_inverse=True)
    mass = torch.zeros_like(distinct).index_add_(0, place, weights)
    shares = (mass.cumsum(0) - 0.5 * mass) / mass.sum()
    at = np.linspace(0.5 / STEPS, 1 - 0.5 / STEPS, STEPS)
    return torch.from_numpy(np.unique(np.interp(at, shares.numpy(), distinct.numpy())))


def _projection(design: Tensor, weights: Tensor) -> Tensor:
    """(Φᵀ W Φ)⁺ Φᵀ W, shape (m, N)."""
    root = weights.sqrt()[:, None]
    return torch.linalg.pinv(root * design, rtol=NEGLIGIBLE) * root.mT
