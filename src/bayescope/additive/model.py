"""An additive model with weights: f(x, θ) for predictions, and each term's own part of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeGuard, final

import torch
from torch import Tensor

from bayescope.additive.design import distinct_points, side_by_side
from bayescope.additive.families import Points, TermFamily
from bayescope.additive.problem import split_weights
from bayescope.additive.terms import EncodedRows, Term
from bayescope.errors import InputTypeError
from bayescope.models import Model, among_pairs
from bayescope.precision import BlockPrecision, Precision
from bayescope.storage import stored
from bayescope.tape import DenseTape, JoinedTape, Tape
from bayescope.tape.tape import row_blocks


@stored("additive_centre")
@final
@dataclass(frozen=True, eq=False)
class Centre:
    """What a family's terms are centred by, to first order about the weights θ* that were found.

    c_g(θ) = f̄_g(θ*) + J̄_g (θ_g − θ*_g), with the means f̄ and J̄ over the data (`Design.mean`): one where a term has a
    value to read, and one elsewhere. As it is linear in θ, centring is a shear of the weights: b and the effects of
    missing values move by sums of c_g(θ_g), which changes the coordinates and not the model; its determinant is 1, and
    the blocks of the curvature in the new coordinates no longer compete for one constant.

    Attributes:
        value: f̄_g(θ*), shape (2, G, C): where there is a value, and elsewhere.
        slope: J̄_g, shape (2, G, C, P).
        at: θ*, shape (G, P).
    """

    value: Tensor
    slope: Tensor
    at: Tensor

    def of(self, theta: Tensor, centred: Tensor) -> Tensor:
        """c_g(θ), shape (..., G, U, C), for θ of shape (..., G, P) and where there is a value, bool (G, U)."""
        both = self.value + (self.slope @ (theta - self.at)[..., None, :, :, None])[..., 0]  # (..., 2, G, C)
        there, elsewhere = both.unsqueeze(-2).unbind(-4)
        return torch.where(centred[..., None], there, elsewhere)

    def slopes(self, centred: Tensor) -> Tensor:
        """∂c_g/∂θ_g, shape (G, U, C, P), where there is a value and elsewhere."""
        return torch.where(centred[..., None, None], self.slope[0][:, None], self.slope[1][:, None])


@stored("additive_model")
@final
@dataclass(frozen=True, eq=False)
class AdditiveModel(Model):
    """f(x) = shift + scale · (b + Σ_g (f_g(x) − c_g)) + offset, with flat weights θ = (terms in order, b).

    Attributes:
        families: of terms; the weights of a family are (G, P) row-major, one family after another.
        centres: of each family.
        scale: the outputs' unit in that of the weights, shape (C,).
        shift: where the outputs' zero lies, shape (C,).
    """

    families: tuple[TermFamily, ...]
    centres: tuple[Centre, ...]
    scale: Tensor
    shift: Tensor

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """All terms, in the order of their weights."""
        return tuple(term for family in self.families for term in family.terms)

    @cached_property
    def positions(self) -> dict[tuple[int, ...], int]:
        """The position of the term of each feature (a,) and of each pair (a, b), a < b, in the order of the terms."""
        return {tuple(sorted(term.features)): position for position, term in enumerate(self.terms)}

    @cached_property
    def pairs(self) -> tuple[int, ...]:
        """The positions of the terms of pairs."""
        return tuple(position for features, position in self.positions.items() if len(features) > 1)

    @property
    def outputs(self) -> int:  # type: ignore[override]
        return self.scale.shape[0]

    @cached_property
    def dim(self) -> int:
        """The number of weights, the intercepts among them."""
        return sum(len(family.terms) * family.weights for family in self.families) + self.outputs

    @cached_property
    def indices(self) -> tuple[Tensor, ...]:
        """The flat positions of the weights of each term, and last those of the intercepts."""
        sizes = [family.weights for family in self.families for _ in family.terms]
        return tuple(torch.arange(self.dim).split([*sizes, self.outputs]))

    @property
    def space(self) -> Hashable:
        """The terms as they are: weights of other models mean something else."""
        return "additive", id(self.families)

    @property
    def weight_names(self) -> tuple[str, ...]:
        """Each term's "age[0]", "age[1]", … and last "intercept", of several outputs "intercept[0]" and so on."""
        *of_terms, last = self.indices
        parts = zip([term.name for term in self.terms], of_terms, strict=True)
        names = [f"{name}[{place}]" for name, index in parts for place in range(len(index))]
        several = [f"intercept[{output}]" for output in range(len(last))]
        return (*names, *(several if len(several) > 1 else ["intercept"]))

    def state(self, theta: Tensor) -> dict[str, Tensor]:
        """The weights of each term, such as "terms.age", shape (P_g,), and the "intercept", shape (C,)."""
        names = [*[f"terms.{term.name}" for term in self.terms], "intercept"]
        return {name: theta[index] for name, index in zip(names, self.indices, strict=True)}

    def inputs(self, x: Any) -> EncodedRows:
        """Encoded rows.

        Raises:
            InputTypeError: for anything else: a table has to be encoded, as the estimators do.
        """
        if not isinstance(x, EncodedRows):
            raise InputTypeError(f"X: expected encoded rows, got {type(x).__name__}. Ask the estimator instead.")
        return x

    def forward(self, x: EncodedRows, theta: Tensor) -> Tensor:
        """f(x, θ), shape (..., N, C) for θ of shape (..., P)."""
        f = self.shift + self.scale * theta[..., None, -self.outputs :] + self.contributions(x, theta).sum(-3)
        return f if x.offset is None else f + x.offset

    def contributions(self, x: EncodedRows, theta: Tensor) -> Tensor:
        """scale · (f_g(x) − c_g) of each term, shape (..., T, N, C): they add up to f less the intercept and offset."""
        parts = [
            family.values(weights, points) - centre.of(weights, family.centred(points))
            for family, centre, weights in self._by_family(theta)
            for points in [family.points(x)]
        ]
        joined = torch.cat(parts, -3) if parts else theta.new_zeros(*theta.shape[:-1], 0, len(x), self.outputs)
        return self.scale * joined

    def covariance(self, x: EncodedRows, theta: Tensor, precision: Precision, classes: Tensor | None = None) -> Tensor:
        """J A⁻¹ Jᵀ per row, shape (N, C, C), a block of rows at a time."""
        return among_pairs(self._spread(x, theta, precision, lambda each, tape: each.covariance_of(tape)), classes)

    def variance(self, x: EncodedRows, theta: Tensor, precision: Precision) -> Tensor:
        """The diagonal of `covariance`, shape (N, C)."""
        return self._spread(x, theta, precision, lambda each, tape: each.variance_of(tape))

    def _spread(
        self, x: EncodedRows, theta: Tensor, precision: Precision, verb: Callable[[Precision, Tape], Tensor]
    ) -> Tensor:
        if self._apart(precision, x):
            return self._summed(x, theta, precision, verb)
        return torch.cat([verb(precision, self.tape(x[rows], theta)) for rows in self._blocks(len(x))])

    def jacobian(self, x: EncodedRows, theta: Tensor) -> Tensor:
        """J, shape (N, C, P)."""
        return self.tape(x, theta).jacobian(slice(0, len(x)))

    def jacobian_product(self, x: EncodedRows, theta: Tensor, v: Tensor) -> Tensor:
        """J v, shape (R, N, C), for v of shape (R, P)."""
        blocks = [self.tape(x[rows], theta).multiply(v.mT) for rows in self._blocks(len(x))]
        return torch.cat(blocks).permute(2, 0, 1)

    def tape(self, x: EncodedRows, theta: Tensor) -> Tape:
        """The Jacobian, each term's part by itself."""
        constant = torch.diag(self.scale).expand(len(x), -1, -1)
        parts = [DenseTape(part) for part in [*self.jacobians(x, theta), constant]]
        return JoinedTape(tuple(parts), self.indices, self.dim)

    def only(self, chosen: Collection[int]) -> AdditiveModel:
        """The model of some terms, by their positions, in the order of all; its weights are theirs, then b."""
        families, centres, first = [], [], 0
        for family, centre in zip(self.families, self.centres, strict=True):
            places = [place - first for place in sorted(chosen) if first <= place < first + len(family.terms)]
            first += len(family.terms)
            if places:
                families.append(family.only(places))
                centres.append(Centre(centre.value[:, places], centre.slope[:, places], centre.at[places]))
        return AdditiveModel(tuple(families), tuple(centres), self.scale, self.shift)

    def jacobians(self, x: EncodedRows, theta: Tensor) -> list[Tensor]:
        """∂ (the contribution of a term) / ∂ (its weights), shape (N, C, P_g) for each term."""
        parts: list[Tensor] = []
        for family, centre, weights in self._by_family(theta):
            parts.extend(self._slopes(family, centre, weights, family.points(x)).unbind(0))
        return parts

    def _slopes(self, family: TermFamily, centre: Centre, weights: Tensor, points: Points) -> Tensor:
        """Those of a family's terms at points, shape (G, U, C, P)."""
        slopes = family.jacobian(weights, points).dense() - centre.slopes(family.centred(points))
        return self.scale[:, None] * slopes

    def _apart(self, precision: Precision, x: EncodedRows) -> TypeGuard[BlockPrecision]:
        """Whether terms are independent, and no derivative by the rows is asked for, which tells equal rows apart."""
        return (
            isinstance(precision, BlockPrecision)
            and len(precision.indices) == len(self.indices)
            and all(torch.equal(one, other) for one, other in zip(precision.indices, self.indices, strict=True))
            and len(x) > 1
            and not x.values.requires_grad
        )

    def _summed(
        self, x: EncodedRows, theta: Tensor, precision: BlockPrecision, verb: Callable[[Precision, Tape], Tensor]
    ) -> Tensor:
        """Σ of what the block of each term gives, computed once for each distinct point that a term reads."""
        *blocks, last = precision.blocks
        total = verb(last, DenseTape(torch.diag(self.scale)[None]))
        for family, centre, weights in self._by_family(theta):
            found = distinct_points(family.points(x))
            points, counts = side_by_side(found), [len(each.levels) for each in found]
            of_family, blocks = blocks[: len(family.terms)], blocks[len(family.terms) :]
            parts: list[list[Tensor]] = [[] for _ in of_family]
            for some in row_blocks(max(counts), 8 * self.outputs * len(of_family) * family.weights):
                at = Points(points.inputs[:, some], points.levels[:, some])
                slopes = self._slopes(family, centre, weights, at)
                for part, block, slope, count in zip(parts, of_family, slopes, counts, strict=True):
                    if some.start < count:
                        part.append(verb(block, DenseTape(slope[: count - some.start])))
            for part, each in zip(parts, found, strict=True):
                total = total + torch.cat(part)[torch.from_numpy(each.place)]
        return total.expand(len(x), *total.shape[1:])

    def _by_family(self, theta: Tensor) -> Sequence[tuple[TermFamily, Centre, Tensor]]:
        weights = split_weights(theta, self.families, self.outputs)[:-1]
        return list(zip(self.families, self.centres, weights, strict=True))

    def _blocks(self, rows: int) -> list[slice]:
        return list(row_blocks(rows, 8 * self.outputs * self.dim)) or [slice(0, 0)]
