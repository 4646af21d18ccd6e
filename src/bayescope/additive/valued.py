"""Nets that have, beside their smooth effect, a free effect for each value that a feature takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from bayescope.additive.families import HiddenNets, Points
from bayescope.additive.jacobian import Jacobian
from bayescope.additive.terms import EncodedRows, Term
from bayescope.storage import stored
from bayescope.tables.encoding import NO_LEVEL

# A feature has an effect per value if it takes at most this many, and each in this many rows on average.
MOST_VALUES, ROWS_A_VALUE = 256, 20
# Numbers as close as this, in standard deviations, are one value: 3.0 and 3.0000000000000004.
SAME = 1e-9


@stored("valued_nets")
@final
@dataclass(frozen=True, eq=False)
class ValuedNets:
    """f(x) = net(x) + √(H/2) E_x, with an effect E of each value of a feature that takes few (a code, a rounded sum).

    What no smooth function of 64 units resolves, a tax threshold or a default entry, is one of these. They have a
    layer and so a precision of their own, which switches them off where values have nothing to say beyond the net.
    Values that were not seen share one effect that keeps its prior: there the band is as wide as values differ.

    Attributes:
        net: the nets of the features.
        seen: the values of each, ascending and filled up with infinity, shape (G, K).
    """

    net: HiddenNets
    seen: Tensor

    @classmethod
    def of(cls, terms: Sequence[Term], hidden: int, outputs: int, rows: EncodedRows) -> ValuedNets:
        """With the values that the rows have."""
        values = [values_of(term, rows) for term in terms]
        return cls(HiddenNets.of(terms, hidden, outputs), torch.nn.utils.rnn.pad_sequence(values, True, torch.inf))

    @property
    def terms(self) -> tuple[Term, ...]:
        return self.net.terms

    @property
    def outputs(self) -> int:
        return self.net.outputs

    @property
    def weights(self) -> int:
        """The net's, then E, shape (K + 1, C) row-major: the last for a value that was not seen."""
        return self.net.weights + (self.seen.shape[1] + 1) * self.outputs

    @property
    def layers(self) -> tuple[str, ...]:
        """Those of the net, and the values."""
        return (*self.net.layers, "values")

    @property
    def layer(self) -> Tensor:
        """The layer of each weight."""
        of_values = torch.full((self.weights - self.net.weights,), len(self.net.layers))
        return torch.cat([self.net.layer, of_values])

    def points(self, rows: EncodedRows) -> Points:
        """The number of each row."""
        return self.net.points(rows)

    def centred(self, points: Points) -> Tensor:
        """Where there is a value."""
        return self.net.centred(points)

    def values(self, theta: Tensor, points: Points) -> Tensor:
        """f_g at the points, shape (..., G, U, C)."""
        nets, effects = theta.split([self.net.weights, self.weights - self.net.weights], -1)
        table = effects.unflatten(-1, (-1, self.outputs))
        place = self._place(points)[..., None].expand(*table.shape[:-2], -1, self.outputs)
        effect = self._present(points) * torch.gather(table, -2, place)
        return self.net.values(nets, points) + effect

    def jacobian(self, theta: Tensor, points: Points) -> Jacobian:
        """That of the nets, and √(H/2) at the effect of the point's own value."""
        of_net = self.net.jacobian(theta[..., : self.net.weights], points)
        at_value = torch.nn.functional.one_hot(self._place(points), self.seen.shape[1] + 1) * self._present(points)
        places = torch.arange(self.net.weights, self.weights).view(-1, self.outputs)
        return of_net.extended(at_value, places.mT)

    def start(self, points: Points, mass: Tensor, generator: torch.Generator) -> Tensor:
        """The nets' first weights, and effects of 0."""
        first = self.net.start(points, mass, generator)
        return torch.cat([first, first.new_zeros(len(self.terms), self.weights - self.net.weights)], 1)

    def _place(self, points: Points) -> Tensor:
        """The value at each point, K for one that was not seen, int64 of shape (G, U)."""
        inputs = points.inputs[..., 0].contiguous()
        place = torch.searchsorted(self.seen, inputs - SAME).clamp(max=self.seen.shape[1] - 1)
        return torch.where((torch.gather(self.seen, 1, place) - inputs).abs() <= SAME, place, self.seen.shape[1])

    def _present(self, points: Points) -> Tensor:
        """√(H/2) where there is a number, else 0, shape (G, U, 1)."""
        return self.net.scale * (points.levels == NO_LEVEL).to(points.inputs)[..., None]


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
