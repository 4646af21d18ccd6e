"""Families of terms that are one computation: all nets of a shape side by side, all tables of levels side by side.

Every family has G terms of P weights each, θ of shape (G, P), and answers for U points a term at once: a grouped matrix
product, never a loop over terms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Tensor

from bayescope.additive.jacobian import Jacobian
from bayescope.additive.terms import EncodedRows, Term
from bayescope.storage import stored
from bayescope.tables.encoding import NO_LEVEL

# Inputs are in standard deviations. The kinks of a net's hidden units lie at points that the data have, and are between
# a gentle bend and a step: the slope of each is drawn from between these, evenly in its logarithm.
SLOPES = (0.3, 3.0)


@final
@dataclass(frozen=True, eq=False)
class Points:
    """U inputs for each of G terms.

    Attributes:
        inputs: shape (G, U, k), float64; k = 0 for levels.
        levels: shape (G, U), int64: the level of each; of a net −1, and 0 where a feature is missing.
    """

    inputs: Tensor
    levels: Tensor


class TermFamily(Protocol):
    """G terms of one shape, P weights each, C outputs."""

    @property
    def terms(self) -> tuple[Term, ...]:
        """The G terms that are computed together."""

    @property
    def outputs(self) -> int:
        """The number of outputs of each term, C."""

    @property
    def weights(self) -> int:
        """P, the number of weights of one term."""

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the layers that a term's weights are in."""

    @property
    def layer(self) -> Tensor:
        """The layer of each of a term's weights, int64 of shape (P,)."""

    def points(self, rows: EncodedRows) -> Points:
        """What the terms read of each row: U = N."""

    def centred(self, points: Points) -> Tensor:
        """Where a term has a value, bool (G, U): effects of missing values are measured from its mean there."""

    def values(self, theta: Tensor, points: Points) -> Tensor:
        """f_g at the points, shape (..., G, U, C), for θ of shape (..., G, P)."""

    def jacobian(self, theta: Tensor, points: Points) -> Jacobian:
        """∂f_g/∂θ_g at the points, (G, U, C, P) when it is written out, for θ of shape (G, P)."""

    def start(self, points: Points, mass: Tensor, generator: torch.Generator) -> Tensor:
        """First weights, shape (G, P), for points that have the given shares of the data, shape (G, U)."""


@stored("hidden_nets")
@final
@dataclass(frozen=True, eq=False)
class HiddenNets:
    """Nets with one hidden layer: f(x) = V tanh(W x + c), and √(H/2) m where a feature is missing.

    A term has θ = (W (H, k), c (H,), V (C, H), m (C,)), each row-major. The missing value's effect m is scaled so that
    its prior is as wide as that of a value's effect; it is switched off with the rest. There is no output bias: effects
    are centred, and the intercept is the model's.

    Attributes:
        terms: the G terms.
        inputs: k, the most inputs that a term has; those of narrower ones are filled up with zeros.
        hidden: H.
        outputs: C.
    """

    terms: tuple[Term, ...]
    inputs: int
    hidden: int
    outputs: int

    @classmethod
    def of(cls, terms: Sequence[Term], hidden: int, outputs: int) -> HiddenNets:
        """As many inputs as the widest term has."""
        return cls(tuple(terms), max(term.width for term in terms), hidden, outputs)

    @property
    def weights(self) -> int:
        """P = H (k + 1) + C (H + 1)."""
        return self.hidden * (self.inputs + 1) + self.outputs * (self.hidden + 1)

    @property
    def layers(self) -> tuple[str, ...]:
        """Inner: W and c. Outer: V and m."""
        return ("inner", "outer")

    @property
    def layer(self) -> Tensor:
        """0 for W and c, 1 for V and m."""
        return (torch.arange(self.weights) >= self.hidden * (self.inputs + 1)).long()

    def points(self, rows: EncodedRows) -> Points:
        """The numbers and indicators of each row."""
        read = [term.read(rows) for term in self.terms]
        inputs = rows.values.new_zeros(len(read), len(rows), self.inputs)
        for place, (values, _) in enumerate(read):
            inputs[place, :, : values.shape[1]] = values
        absent = torch.stack([gone for _, gone in read])
        return Points(inputs, torch.where(absent, 0, NO_LEVEL))

    def centred(self, points: Points) -> Tensor:
        """Where there is a value: the effect of a missing value is measured from the mean of the others."""
        return points.levels == NO_LEVEL

    def units(self, theta: Tensor, points: Points) -> Tensor:
        """The hidden units tanh(W x + c), shape (..., G, U, H), also where a feature is missing."""
        inner, bias, _, _ = self._split(theta)
        # 2 σ(2 z) − 1 takes PyTorch a quarter of the time of tanh z, which was a sixth of a fit.
        halves = torch.sigmoid(points.inputs @ (2.0 * inner).mT + 2.0 * bias[..., None, :])
        return torch.add(theta.new_tensor(-1.0), halves, alpha=2.0)

    def values(self, theta: Tensor, points: Points) -> Tensor:
        """V tanh(W x + c), shape (..., G, U, C)."""
        _, _, outer, missing = self._split(theta)
        absent = (points.levels != NO_LEVEL)[..., None]
        return torch.where(absent, self.scale * missing[..., None, :], self.units(theta, points) @ outer.mT)

    def jacobian(self, theta: Tensor, points: Points) -> Jacobian:
        """∂f_c/∂W = V_c tanh′ xᵀ, ∂f_c/∂c = V_c tanh′, ∂f_c/∂V_c = tanh, ∂f_c/∂m_c = √(H/2) where missing."""
        _, _, outer, _ = self._split(theta)
        present = (points.levels == NO_LEVEL).to(theta)[..., None]
        hidden = self.units(theta, points)
        slopes = (1.0 - hidden.square())[:, :, None, :] * outer[:, None] * present[..., None]  # (G, U, C, H)
        of_inner = (slopes[..., None] * points.inputs[:, :, None, None, :]).flatten(-2)
        inner, outer_, missing = self._positions()
        return Jacobian.of(
            [of_inner, slopes], [hidden * present, self.scale * (1.0 - present)], inner, torch.cat([outer_, missing], 1)
        )

    def start(self, points: Points, mass: Tensor, generator: torch.Generator) -> Tensor:
        """Kinks at points drawn by their shares of the data, in directions drawn evenly; outer weights close to 0."""
        groups = points.levels.shape[0]
        shape = (groups, self.hidden)
        inner = torch.randn(*shape, self.inputs, generator=generator, dtype=torch.float64)
        low, high = (math.log(slope) for slope in SLOPES)
        slopes = torch.exp(low + (high - low) * torch.rand(*shape, 1, generator=generator, dtype=torch.float64))
        inner = slopes * inner / inner.norm(dim=-1, keepdim=True)
        seen = mass * (points.levels == NO_LEVEL)
        seen = torch.where(seen.sum(1, keepdim=True) > 0, seen, torch.ones_like(seen))  # all missing: anywhere
        chosen = torch.multinomial(seen, self.hidden, replacement=True, generator=generator)
        at = torch.gather(points.inputs, 1, chosen[..., None].expand(-1, -1, self.inputs))
        outer = torch.zeros(groups, self.outputs * (self.hidden + 1), dtype=torch.float64)
        return torch.cat([inner.flatten(1), -(inner * at).sum(-1), outer], 1)

    @property
    def scale(self) -> float:
        """√(H/2): about the standard deviation of an effect whose outer weights have the standard deviation 1."""
        return math.sqrt(self.hidden / 2.0)

    def _positions(self) -> tuple[Tensor, Tensor, Tensor]:
        """Those of W and c, of V, shape (C, H), and of m, shape (C, 1)."""
        sizes = [self.hidden * (self.inputs + 1), self.outputs * self.hidden, self.outputs]
        inner, outer, missing = torch.arange(self.weights).split(sizes)
        return inner, outer.view(self.outputs, self.hidden), missing[:, None]

    def _split(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        sizes = [self.hidden * self.inputs, self.hidden, self.outputs * self.hidden, self.outputs]
        inner, bias, outer, missing = theta.split(sizes, -1)
        inner = inner.unflatten(-1, (self.hidden, self.inputs))
        return inner, bias, outer.unflatten(-1, (self.outputs, self.hidden)), missing


@stored("level_effects")
@final
@dataclass(frozen=True, eq=False)
class LevelEffects:
    """A free effect for each level of a categorical feature: f(x) = θ_level, θ of shape (K, C) row-major.

    With N(0, 1/δ) as their prior and δ learnt these are random effects: rare levels are held back more than common
    ones, and a level that was not seen keeps its prior.

    Attributes:
        terms: the G terms.
        levels: K, the most levels that a term has; the weights of those that a narrower one lacks keep their prior.
        outputs: C.
    """

    terms: tuple[Term, ...]
    levels: int
    outputs: int

    @property
    def weights(self) -> int:
        """The number of weights of a term, P = K C."""
        return self.levels * self.outputs

    @property
    def layers(self) -> tuple[str, ...]:
        return ("levels",)

    @property
    def layer(self) -> Tensor:
        return torch.zeros(self.weights, dtype=torch.int64)

    def points(self, rows: EncodedRows) -> Points:
        """The level of each row."""
        levels = torch.stack([rows.levels[:, term.features[0]] for term in self.terms])
        return Points(rows.values.new_zeros(*levels.shape, 0), levels)

    def centred(self, points: Points) -> Tensor:
        """Everywhere: a missing value is a level like others."""
        return torch.ones_like(points.levels, dtype=torch.bool)

    def values(self, theta: Tensor, points: Points) -> Tensor:
        """θ_level, shape (..., G, U, C)."""
        table = theta.unflatten(-1, (self.levels, self.outputs))
        places = points.levels[..., None].expand(*table.shape[:-2], points.levels.shape[-1], self.outputs)
        return torch.gather(table, -2, places)

    def jacobian(self, theta: Tensor, points: Points) -> Jacobian:
        """1 at the level's own weight."""
        one_hot = torch.nn.functional.one_hot(points.levels, self.levels).to(theta)
        none = theta.new_zeros(*points.levels.shape, self.outputs, 0)
        places = torch.arange(self.weights)
        return Jacobian.of([none], [one_hot], places[:0], places.view(self.levels, self.outputs).mT)

    def start(self, points: Points, mass: Tensor, generator: torch.Generator) -> Tensor:
        return torch.zeros(len(self.terms), self.weights, dtype=torch.float64)


def linear_weights(family: TermFamily) -> Tensor:
    """Which of a term's weights its effect is linear in, and vanishes with: all but the hidden units', bool (P,)."""
    return torch.tensor([name != "inner" for name in family.layers])[family.layer]
