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

import torch
from torch import Tensor

from bayescope.additive.additive import Additive
from bayescope.additive.model import AdditiveModel
from bayescope.additive.terms import Column, Rows

STEPS = 4
# The steps' slope, in distances between the first and the last of them.
SLOPE = 4.0
# The projection is over at most so many rows, evenly among the data.
MOST_ROWS = 4096
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

    column: Column
    steps: Tensor
    slope: float
    centre: Tensor

    @classmethod
    def of(cls, column: Column, rows: Rows, weights: Tensor) -> Functions:
        """Places the steps at quantiles of the data, and centres."""
        inputs, absent = column.read(rows)
        seen = inputs[~absent]
        at = torch.linspace(0.5 / STEPS, 1 - 0.5 / STEPS, STEPS, dtype=torch.float64)
        steps = torch.quantile(seen[:, 0], at).unique() if len(seen) and column.slots is None else inputs.new_zeros(0)
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


def shares_of(additive: Additive, pairs: Sequence[int], rows: Rows, weights: Tensor) -> list[Share]:
    """The shares of some pairs.

    Args:
        additive: a fitted model.
        pairs: the positions of their terms.
        rows: the data.
        weights: of the rows, shape (N,).
    """
    if not pairs:
        return []
    model = additive.model
    owners = {term.features: position for position, term in enumerate(model.terms)}
    some = torch.arange(0, len(rows), -(-len(rows) // MOST_ROWS))
    contributions, jacobians = _read(model, rows[some], additive.posterior.location, pairs)
    found = []
    for pair, contribution, jacobian in zip(pairs, contributions, jacobians, strict=True):
        columns = model.terms[pair].columns
        functions = tuple(Functions.of(column, rows, weights) for column in columns)
        design = torch.cat([each.at(rows[some]) for each in functions], 1)
        sizes = [len(each.centre) for each in functions]
        projection = _projection(design, weights[some])
        found.append(
            Share(
                pair,
                tuple(owners[column.feature,] for column in columns),
                functions,
                (projection @ contribution).split(sizes),
                torch.tensordot(projection, jacobian, 1).split(sizes),
            )
        )
    return found


def _read(model: AdditiveModel, rows: Rows, theta: Tensor, pairs: Sequence[int]) -> tuple[list[Tensor], list[Tensor]]:
    contributions, jacobians = model.contributions(rows, theta), model.jacobians(rows, theta)
    return [contributions[pair] for pair in pairs], [jacobians[pair] for pair in pairs]


def _projection(design: Tensor, weights: Tensor) -> Tensor:
    """(Φᵀ W Φ)⁺ Φᵀ W, shape (m, N)."""
    root = weights.sqrt()[:, None]
    return torch.linalg.pinv(root * design, rtol=NEGLIGIBLE) * root.mT
