"""Families of terms that are one computation: all nets of a shape side by side, all tables of levels side by side.

Every family has G terms of P weights each, θ of shape (G, P), and answers for U points a term at once: a grouped matrix
product, never a loop over terms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from bayescope.additive.terms import EncodedRows, Term
from bayescope.storage import stored
from bayescope.tables.encoding import NO_LEVEL

# Inputs are in standard deviations. The kinks of a net's hidden units lie at points that the data have, and are between
# a gentle bend and a step: the slope of each is drawn from between these, evenly in its logarithm.
SLOPES = (0.3, 3.0)
# A feature has an effect per value if it takes at most this many, and each in this many rows on average.
MOST_VALUES, ROWS_A_VALUE = 256, 20
# Numbers as close as this, in standard deviations, are one value: 3.0 and 3.0000000000000004.
SAME = 1e-9


@final
@dataclass(frozen=True, eq=False)
class Jacobian:
    """∂f_c/∂θ of terms whose weights are shared by the outputs (S), or of which each output has its own (features φ).

    f_c depends on its own weights v_c as φᵀ v_c does, with the same φ for all c: ∂f_c/∂v_c′ is φ for c = c′, else 0. Of
    C outputs that saves almost all of a dense Jacobian. With one output there is no difference, and all is shared.

    Attributes:
        shared: S, shape (..., C, Q).
        separate: φ, shape (..., R).
        of_shared: the positions of the Q weights in a term's P = Q + C R, shape (Q,).
        of_separate: the positions of each output's own weights, shape (C, R).
    """

    shared: Tensor
    separate: Tensor
    of_shared: Tensor
    of_separate: Tensor

    @classmethod
    def of(cls, shared: list[Tensor], separate: list[Tensor], of_shared: Tensor, of_separate: Tensor) -> Jacobian:
        """Of columns side by side: S of shape (..., C, Q) in parts, and φ of shape (..., R) in parts."""
        if len(of_separate) > 1:
            return cls(torch.cat(shared, -1), torch.cat(separate, -1), of_shared, of_separate)
        joined = torch.cat([*shared, *[features[..., None, :] for features in separate]], -1)
        return cls(
            joined, joined.new_zeros(*joined.shape[:-2], 0), torch.cat([of_shared, of_separate[0]]), of_separate[:, :0]
        )

    def dense(self) -> Tensor:
        """∂f/∂θ, shape (..., C, P)."""
        outputs, features = self.of_separate.shape
        if features == 0:
            return self._ordered(self.shared)
        identity = torch.eye(outputs, dtype=self.separate.dtype, device=self.separate.device)
        alone = (identity[:, :, None] * self.separate[..., None, None, :]).flatten(-2)
        return self._ordered(torch.cat([self.shared, alone], -1))

    def multiply(self, v: Tensor) -> Tensor:
        """J v at each point, shape (G, U, C), for v of shape (G, P)."""
        groups, points, outputs, _ = self.shared.shape
        # vᵀ Jᵀ, since MKL's batched J v takes several times as long.
        moved = torch.bmm(v[:, None, self.of_shared], self.shared.flatten(1, 2).mT).view(groups, points, outputs)
        return torch.baddbmm(moved, self.separate, v[:, self.of_separate].mT) if self.of_separate.shape[1] else moved

    def transpose_multiply(self, u: Tensor) -> Tensor:
        """Σ_u J_uᵀ u_u, shape (G, P), for u of shape (G, U, C)."""
        parts = torch.bmm(u.flatten(1)[:, None, :], self.shared.flatten(1, 2))[:, 0]
        if self.of_separate.shape[1]:
            parts = torch.cat([parts, torch.bmm(u.mT, self.separate).flatten(1)], 1)
        return self._ordered(parts)

    def curvature(self, middle: Tensor) -> Tensor:
        """Σ_u J_uᵀ Λ_u J_u, shape (G, P, P), for symmetric Λ of shape (G, U, C, C)."""
        if middle.shape[-1] == 1:
            scaled = self.shared[:, :, 0] * middle[:, :, 0]
            return self._ordered(self._ordered(scaled.mT @ self.shared[:, :, 0]).mT)
        shared, outputs = self.shared.shape[3], middle.shape[-1]
        scaled = middle @ self.shared
        cross = (scaled.flatten(2).mT @ self.separate).unflatten(1, (outputs, shared)).transpose(1, 2).flatten(2)
        above = torch.cat([scaled.flatten(1, 2).mT @ self.shared.flatten(1, 2), cross], 2)
        below = torch.cat([cross.mT, self._between(middle)], 2)
        return self._ordered(self._ordered(torch.cat([above, below], 1)).mT)

    def _between(self, middle: Tensor) -> Tensor:
        """Σ_u Λ_ucd φ_u φ_uᵀ for all c and d, shape (G, C R, C R): C (C + 1)/2 products, one row of them at a time."""
        groups, outputs, features = middle.shape[0], *self.of_separate.shape
        blocks = middle.new_empty(groups, outputs, features, outputs, features)
        for c in range(outputs):
            weighted = self.separate[:, :, None, :] * middle[:, :, c, c:, None]
            row = (weighted.flatten(2).mT @ self.separate).unflatten(1, (outputs - c, features))
            blocks[:, c, :, c:] = row.transpose(1, 2)
            blocks[:, c + 1 :, :, c] = row[:, 1:]
        return blocks.flatten(3).flatten(1, 2)

    def _ordered(self, values: Tensor) -> Tensor:
        return values if self._order is None else values[..., self._order]

    @cached_property
    def _order(self) -> Tensor | None:
        """Where each position stands among the shared and own weights, if not there already."""
        order = torch.cat([self.of_shared, self.of_separate.flatten()]).argsort()
        return None if bool((order == torch.arange(len(order))).all()) else order


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


@stored("hidden_nets")
@final
@dataclass(frozen=True, eq=False)
class HiddenNets:
    """Nets with one hidden layer: f(x) = V tanh(W x + c) + √(H/2) E_x, and √(H/2) m where a feature is missing.

    A term has θ = (W (H, k), c (H,), V (C, H), m (C,)), each row-major. The missing value's effect m is scaled so that
    its prior is as wide as that of a value's effect; it is switched off with the rest. There is no output bias: effects
    are centred, and the intercept is the model's.

    A feature that takes few values (a code, a rounded sum) also has an effect E for each: what no smooth function of 64
    units resolves, a tax threshold or a default entry, is one of these. They are the last weights, (K + 1, C)
    row-major, in a layer and so with a precision of their own, which switches them off where values have nothing to say
    beyond the net. Values that were not seen share the last effect, which keeps its prior: there the band is as wide as
    values differ.

    Attributes:
        terms: the G terms.
        inputs: k, the most inputs that a term has; those of narrower ones are filled up with zeros.
        hidden: H.
        outputs: C.
        seen: the values of each feature, ascending and filled up with infinity, shape (G, K); ``None`` for nets without
            effects of values.
    """

    terms: tuple[Term, ...]
    inputs: int
    hidden: int
    outputs: int
    seen: Tensor | None = None

    @classmethod
    def of(cls, terms: Sequence[Term], hidden: int, outputs: int, rows: EncodedRows | None = None) -> HiddenNets:
        """As many inputs as the widest term has, with effects of the values that the rows have, if there are rows."""
        values = None if rows is None else [values_of(term, rows) for term in terms]
        seen = None if values is None else torch.nn.utils.rnn.pad_sequence(values, True, torch.inf)
        return cls(tuple(terms), max(term.width for term in terms), hidden, outputs, seen)

    @property
    def _sizes(self) -> list[int]:
        """How many weights are in W, c, V, m and E."""
        values = 0 if self.seen is None else self.seen.shape[1] + 1
        units, outputs = self.hidden, self.outputs
        return [units * self.inputs, units, outputs * units, outputs, values * outputs]

    @property
    def weights(self) -> int:
        """P = H (k + 1) + C (H + 1), and C (K + 1) for values."""
        return sum(self._sizes)

    @property
    def layers(self) -> tuple[str, ...]:
        """Inner: W and c. Outer: V and m. Values: E."""
        return ("inner", "outer") if self.seen is None else ("inner", "outer", "values")

    @property
    def layer(self) -> Tensor:
        """0 for W and c, 1 for V and m, 2 for E."""
        return torch.tensor([0, 0, 1, 1, 2]).repeat_interleave(torch.tensor(self._sizes))

    @property
    def bounded(self) -> Tensor:
        """Which of a term's weights are at least 0, bool (P,): none."""
        return torch.zeros(self.weights, dtype=torch.bool)

    def points(self, rows: EncodedRows) -> Points:
        """The numbers and indicators of each row."""
        return _numbers(self.terms, rows, self.inputs)

    def centred(self, points: Points) -> Tensor:
        """Where there is a value: the effect of a missing value is measured from the mean of the others."""
        return points.levels == NO_LEVEL

    def units(self, theta: Tensor, points: Points) -> Tensor:
        """The hidden units tanh(W x + c), shape (..., G, U, H), also where a feature is missing."""
        inner, bias, *_ = theta.split(self._sizes, -1)
        # 2 σ(2 z) − 1 takes PyTorch a quarter of the time of tanh z, which was a sixth of a fit.
        weights = 2.0 * inner.unflatten(-1, (self.hidden, self.inputs))
        halves = torch.sigmoid(points.inputs @ weights.mT + 2.0 * bias[..., None, :])
        return torch.add(theta.new_tensor(-1.0), halves, alpha=2.0)

    def values(self, theta: Tensor, points: Points) -> Tensor:
        """f_g at the points, shape (..., G, U, C)."""
        _, _, outer, missing, effects = theta.split(self._sizes, -1)
        smooth = self.units(theta, points) @ outer.unflatten(-1, (self.outputs, self.hidden)).mT
        absent = (points.levels != NO_LEVEL)[..., None]
        values = torch.where(absent, self.scale * missing[..., None, :], smooth)
        if self.seen is None:
            return values
        table = effects.unflatten(-1, (-1, self.outputs))
        place = self._place(points)[..., None].expand(*table.shape[:-2], -1, self.outputs)
        return values + self.scale * _present(points) * torch.gather(table, -2, place)

    def jacobian(self, theta: Tensor, points: Points) -> Jacobian:
        """∂f_c/∂W = V_c tanh′ xᵀ, ∂f_c/∂c = V_c tanh′, ∂f_c/∂V_c = tanh; √(H/2) at m_c or at the E_c of the value."""
        outer = theta.split(self._sizes, -1)[2].unflatten(-1, (self.outputs, self.hidden))
        present, hidden = _present(points), self.units(theta, points)
        slopes = (1.0 - hidden.square())[:, :, None, :] * outer[:, None] * present[..., None]  # (G, U, C, H)
        of_inner = (slopes[..., None] * points.inputs[:, :, None, None, :]).flatten(-2)
        inner, bias, outer_, missing, effects = torch.arange(self.weights).split(self._sizes)
        alone = [hidden * present, self.scale * (1.0 - present)]
        if self.seen is not None:
            at_value = torch.nn.functional.one_hot(self._place(points), self.seen.shape[1] + 1)
            alone.append(at_value * (self.scale * present))
        places = [outer_.view(self.outputs, -1), missing[:, None], effects.view(-1, self.outputs).mT]
        return Jacobian.of([of_inner, slopes], alone, torch.cat([inner, bias]), torch.cat(places, 1))

    def start(self, points: Points, mass: Tensor, generator: torch.Generator) -> Tensor:
        """Kinks at points drawn by their shares of the data, in directions drawn evenly; all other weights are 0."""
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
        others = torch.zeros(groups, sum(self._sizes[2:]), dtype=torch.float64)
        return torch.cat([inner.flatten(1), -(inner * at).sum(-1), others], 1)

    def only(self, places: Sequence[int]) -> HiddenNets:
        seen = None if self.seen is None else self.seen[list(places)]
        return replace(self, terms=tuple(self.terms[place] for place in places), seen=seen)

    @property
    def scale(self) -> float:
        """√(H/2): about the standard deviation of an effect whose outer weights have the standard deviation 1."""
        return math.sqrt(self.hidden / 2.0)

    def _place(self, points: Points) -> Tensor:
        """The value at each point, K for one that was not seen, int64 of shape (G, U)."""
        assert self.seen is not None
        inputs = points.inputs[..., 0].contiguous()
        place = torch.searchsorted(self.seen, inputs - SAME).clamp(max=self.seen.shape[1] - 1)
        return torch.where((torch.gather(self.seen, 1, place) - inputs).abs() <= SAME, place, self.seen.shape[1])


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

    @property
    def bounded(self) -> Tensor:
        """Which of a term's weights are at least 0, bool (P,): none."""
        return torch.zeros(self.weights, dtype=torch.bool)

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

    def only(self, places: Sequence[int]) -> LevelEffects:
        return replace(self, terms=tuple(self.terms[place] for place in places))


# A monotone effect has one step for this many hidden units of a net.
UNITS_A_STEP = 2


@stored("monotone_steps")
@final
@dataclass(frozen=True, eq=False)
class MonotoneSteps:
    """Effects that never fall or never rise: f(x) = s Σ_k v_k h_k tanh(a_k (x − t_k)) with v_k ≥ 0, and √(K/2) m.

    The latter is the effect of a missing value, which is free. A term has θ = (v (C, K), m (C,)), row-major.

    Steps that rise, times weights that are not negative, rise over the whole line, and whatever weights are drawn. f is
    linear in the weights, as t and a are fixed. All steps but the last are in the middle of equal parts of the data, as
    wide as the distance to their neighbours, and of height 1: sums of them come close to any effect that rises. The
    last is close to a line over the data, and as much of the effect as the others together under the prior.

    Projecting the draws of a free net's effect (Lin & Dunson 2014) would take no family of its own, but effects of
    features that vary together, which are fitted together, would be restricted one by one: their sum would fit no more.

    Attributes:
        terms: the G terms.
        outputs: C.
        signs: s, 1 for an effect that rises and −1 for one that falls, shape (G,).
        centres: t, shape (G, K).
        slopes: a, shape (G, K).
    """

    terms: tuple[Term, ...]
    outputs: int
    signs: Tensor
    centres: Tensor
    slopes: Tensor

    @classmethod
    def of(
        cls, terms: Sequence[Term], signs: Sequence[int], outputs: int, hidden: int, points: Points, mass: Tensor
    ) -> MonotoneSteps:
        """One step for each two hidden units of a net, at least two, and the wide one.

        Args:
            terms: of one feature each.
            signs: 1 or −1 for each of them.
            outputs: C.
            hidden: of a net.
            points: of the data, shape (G, U, 1).
            mass: the share of the data at each, shape (G, U).
        """
        shares = mass * (points.levels == NO_LEVEL)
        pairs = zip(points.inputs[..., 0], shares, strict=True)
        centres, slopes = zip(*[_steps(at[of > 0], of[of > 0], hidden) for at, of in pairs], strict=True)
        return cls(
            tuple(terms), outputs, torch.tensor(signs, dtype=torch.float64), torch.stack(centres), torch.stack(slopes)
        )

    @property
    def weights(self) -> int:
        """The number of weights of a term, P = C (K + 1)."""
        return self.outputs * (self.centres.shape[1] + 1)

    @property
    def layers(self) -> tuple[str, ...]:
        return ("steps",)

    @property
    def layer(self) -> Tensor:
        return torch.zeros(self.weights, dtype=torch.int64)

    @property
    def bounded(self) -> Tensor:
        """Which of a term's weights are at least 0, bool (P,): all but that of a missing value."""
        return torch.arange(self.weights) < self.weights - self.outputs

    def points(self, rows: EncodedRows) -> Points:
        """The number of each row."""
        return _numbers(self.terms, rows, 1)

    def centred(self, points: Points) -> Tensor:
        """Where there is a value: the effect of a missing value is measured from the mean of the others."""
        return points.levels == NO_LEVEL

    def values(self, theta: Tensor, points: Points) -> Tensor:
        """f_g at the points, shape (..., G, U, C)."""
        return self._features(points) @ theta[..., self._places].mT

    def jacobian(self, theta: Tensor, points: Points) -> Jacobian:
        """The steps, or √(K/2) at m."""
        none = theta.new_zeros(*points.levels.shape, self.outputs, 0)
        return Jacobian.of([none], [self._features(points)], self._places[0, :0], self._places)

    def start(self, points: Points, mass: Tensor, generator: torch.Generator) -> Tensor:
        return torch.zeros(len(self.terms), self.weights, dtype=torch.float64)

    def only(self, places: Sequence[int]) -> MonotoneSteps:
        some = list(places)
        return MonotoneSteps(
            tuple(self.terms[place] for place in some), self.outputs, self.signs[some], self.centres[some],
            self.slopes[some],
        )  # fmt: skip

    @property
    def _places(self) -> Tensor:
        """The positions of each output's weights, shape (C, K + 1)."""
        steps, missing = torch.arange(self.weights).tensor_split([self.weights - self.outputs])
        return torch.cat([steps.view(self.outputs, -1), missing[:, None]], 1)

    def _features(self, points: Points) -> Tensor:
        """s h tanh(a (x − t)), and the indicator of no value, shape (G, U, K + 1)."""
        present, count = _present(points), self.centres.shape[1]
        heights = torch.ones(count, dtype=torch.float64)
        # Over the data a narrow step rises by 2 h, and the wide one by 2 h tanh(¼), about h/2.
        heights[-1] = 4.0 * math.sqrt(count - 1)
        steps = heights * torch.tanh(self.slopes[:, None] * (points.inputs - self.centres[:, None]))
        return torch.cat([self.signs[:, None, None] * steps * present, math.sqrt(count / 2.0) * (1.0 - present)], -1)


def _steps(numbers: Tensor, weights: Tensor, hidden: int) -> tuple[Tensor, Tensor]:
    """Where steps are and how steep, shape (K,) each."""
    count = max(2, hidden // UNITS_A_STEP)
    shares = torch.cat([torch.arange(count, dtype=torch.float64) + 0.5, torch.tensor([0.5 * count])]) / count
    centres = quantiles(numbers, weights, shares)
    (widths,) = torch.gradient(centres[:-1])
    whole = torch.where(centres[-2] > centres[0], centres[-2] - centres[0], 1.0)
    # Several steps at one value are as wide as they are on average.
    widths = torch.where(widths > 0, widths, whole / (count - 1))
    return centres, 1.0 / torch.cat([widths, 2.0 * whole[None]])


def quantiles(numbers: Tensor, weights: Tensor, shares: Tensor) -> Tensor:
    """The numbers below which these shares of the weights are, interpolated between values; 0 of no numbers."""
    if len(numbers) == 0:
        return torch.zeros_like(shares)
    distinct, place = numbers.unique(return_inverse=True)
    mass = torch.zeros_like(distinct).index_add_(0, place, weights)
    below = (mass.cumsum(0) - 0.5 * mass) / mass.sum()
    return torch.from_numpy(np.interp(shares.numpy(), below.numpy(), distinct.numpy()))


def _numbers(terms: Sequence[Term], rows: EncodedRows, width: int) -> Points:
    """The numbers and indicators that terms read of each row; narrower terms are filled up with zeros."""
    read = [term.read(rows) for term in terms]
    inputs = rows.values.new_zeros(len(read), len(rows), width)
    for place, (values, _) in enumerate(read):
        inputs[place, :, : values.shape[1]] = values
    absent = torch.stack([gone for _, gone in read])
    return Points(inputs, torch.where(absent, 0, NO_LEVEL))


def _present(points: Points) -> Tensor:
    """1 where there is a number, else 0, shape (G, U, 1)."""
    return (points.levels == NO_LEVEL).to(points.inputs)[..., None]


# G terms of one shape, P weights each, C outputs.
TermFamily: TypeAlias = HiddenNets | LevelEffects | MonotoneSteps


def linear_weights(family: TermFamily) -> Tensor:
    """Which of a term's weights its effect is linear in, and vanishes with: all but the hidden units', bool (P,)."""
    return torch.tensor([name != "inner" for name in family.layers])[family.layer]


def values_of(term: Term, rows: EncodedRows) -> Tensor:
    """The different numbers that a feature has, ascending."""
    inputs, absent = term.read(rows)
    return inputs[~absent, 0].unique()


def has_values(term: Term, rows: EncodedRows, count: float) -> bool:
    """Whether a feature takes few enough values, each often enough, for effects of their own.

    Args:
        term: of the feature.
        rows: that have all its values.
        count: how many rows of data there are, by weight.
    """
    return 2 < len(values_of(term, rows)) <= min(MOST_VALUES, count / ROWS_A_VALUE)
