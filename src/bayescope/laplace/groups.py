"""Which weights share a prior precision: all, those of a layer, of a tensor, of an input feature, or no others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, final

import torch
from torch import Tensor

from bayescope import checks
from bayescope.errors import UnsupportedError
from bayescope.network import Network, PartInfo
from bayescope.precision import BlockPrecision, Precision
from bayescope.priors import Prior

# Which weights share a prior precision.
SharePrior = Literal["scalar", "layer", "tensor", "weight", "feature"]


@final
@dataclass(frozen=True, eq=False)
class PriorGroups:
    """P random weights in G groups, each with a prior precision δ_g of its own: P₀ = diag(δ_g(p)).

    Attributes:
        kind: "scalar", "layer", "tensor", "weight" or "feature".
        names: of the groups: the module, the parameter, or the entry that it stands for.
        index: g(p), the group of each weight, int64 of shape (P,).
    """

    kind: str
    names: tuple[str, ...]
    index: Tensor

    @classmethod
    def of(cls, network: Network, kind: str) -> PriorGroups:
        """The groups of a network's random weights.

        Args:
            network: as it was traced.
            kind: "scalar", one for all; "layer", one for each module that owns weights; "tensor", one for each
                parameter; "weight", one each; "feature", one for each input of the first layer and one for its bias,
                the other layers one each (automatic relevance determination: MacKay 1994; Neal 1996, section 1.2.3).

        Raises:
            OptionError: for another name.
            UnsupportedError: if the first layer has no input features to tell apart.
        """
        checks.choice("share_prior", kind, ("scalar", "layer", "tensor", "weight", "feature"))
        names, entries = _entries(network, kind)
        values, index = torch.unique(entries, return_inverse=True)  # a mask may leave a group without weights
        return cls(kind, tuple(names[value] for value in values.tolist()), index.to(network.indices[0].device))

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def counts(self) -> Tensor:
        """How many weights are in each group, shape (G,), float64."""
        return self.sums(torch.ones(len(self.index), dtype=torch.float64, device=self.index.device))

    def sums(self, values: Tensor) -> Tensor:
        """Σ_p v_p over each group, shape (G,), for v of shape (P,)."""
        return values.new_zeros(len(self)).index_add_(0, self.index, values)

    def diagonal(self, values: Tensor) -> Tensor:
        """δ_g(p), shape (P,), for δ of shape (G,)."""
        return values[self.index]

    def prior(self, values: Tensor, before: Prior) -> Prior:
        """The prior with these precisions, shape (G,), around the mean of another."""
        return Prior(values[0] if len(self) == 1 else self.diagonal(values), before.mean)

    def precisions(self, prior: Prior) -> Tensor:
        """δ of a prior, shape (G,): where the weights of a group have several, their geometric mean."""
        diagonal = prior.diagonal(len(self.index)).to(self.index.device)
        return (self.sums(diagonal.log()) / self.counts).exp()

    def adder(self, curvature: Precision) -> Callable[[Precision, Tensor], Precision]:
        """The quickest way to H + diag(δ_g(p)) for curvatures H that are structured as the given one.

        One number for each block of a block structure leaves the blocks' eigenvectors as they are.
        """
        if len(self) == 1:
            return lambda matrix, values: matrix.add_diagonal(values[0])
        owner = self._owner(curvature.indices) if isinstance(curvature, BlockPrecision) else None
        if owner is None:
            return lambda matrix, values: matrix.add_diagonal(self.diagonal(values))

        def add(matrix: Precision, values: Tensor) -> Precision:
            assert isinstance(matrix, BlockPrecision)
            return matrix.add_per_block(values[owner])

        return add

    def owner_of(self, index: Tensor) -> int | None:
        """The one group that has all of some weights, given by their flat positions; ``None`` if there are several."""
        owners = self.index[index]
        return int(owners[0]) if bool((owners == owners[0]).all()) else None

    def require(self, curvature: Precision, structure: str) -> None:
        """Checks that a structure can hold a prior precision that differs from group to group.

        Raises:
            UnsupportedError: if it cannot; the message lists the groups that it can.
        """
        trial = torch.linspace(1.0, 2.0, len(self), dtype=torch.float64, device=self.index.device)
        try:
            self.adder(curvature)(curvature, trial)
        except UnsupportedError as error:
            raise UnsupportedError(
                f"share_prior: expected 'scalar' or 'layer' for the structure {structure!r} of these weights, got "
                f"{self.kind!r}. The structures 'full', 'block', 'diagonal' and 'low_rank' take any."
            ) from error

    def _owner(self, blocks: Sequence[Tensor]) -> Tensor | None:
        owners = [self.owner_of(index) for index in blocks]
        if any(owner is None for owner in owners):
            return None
        return torch.tensor(owners, device=self.index.device)


def _entries(network: Network, kind: str) -> tuple[list[str], Tensor]:
    """The names of all groups, and the group of each weight, shape (P,)."""
    weights = network.weights
    names, counts = list(weights.names), torch.tensor(weights.counts)
    if kind == "scalar":
        return ["all"], torch.zeros(network.dim, dtype=torch.int64)
    if kind == "weight":
        return list(weights.entries), torch.arange(network.dim)
    if kind == "feature":
        return _features(network)
    if kind == "layer":
        names = list(weights.layers)
    groups = list(dict.fromkeys(names))
    return groups, torch.repeat_interleave(torch.tensor([groups.index(name) for name in names]), counts)


def _features(network: Network) -> tuple[list[str], Tensor]:
    first = _first_matrix(network)
    weights, first_layer = network.weights, first.rpartition(".")[0]
    shapes = dict(zip(weights.names, weights.shapes, strict=True))
    shape = shapes.pop(first)
    columns = torch.arange(shape[1]).reshape(-1, *[1] * (len(shape) - 2)).expand(shape)
    # The other parameters: the first layer's bias by itself, those of each other layer together.
    owners = {name: name.rpartition(".")[0] for name in shapes}
    group_of = {name: name if owner == first_layer else owner or name for name, owner in owners.items()}
    groups = list(dict.fromkeys(group_of.values()))
    entries = {name: torch.full(size, shape[1] + groups.index(group_of[name])) for name, size in shapes.items()}
    labels = [f"{first}[:, {column}]" for column in range(shape[1])] + groups
    return labels, weights.flatten({**entries, first: columns})


def _first_matrix(network: Network) -> str:
    """The parameter whose columns are input features."""
    shapes = dict(zip(network.weights.names, network.weights.shapes, strict=True))
    for name, shape in shapes.items():
        part = next(part for part in network.parts if name in part.parameters)
        if len(shape) >= 2:
            if part.kind in ("linear", "convolution") and _by_rows(part, shape):
                return name
            break
    raise UnsupportedError(
        "share_prior: 'feature' expects the first random layer to be linear or a convolution, whose weights have one "
        "column for each input feature. Take 'layer' or 'tensor'."
    )


def _by_rows(part: PartInfo, shape: torch.Size) -> bool:
    """Whether the parameter's first axis is that of the outputs."""
    return part.shape is None or part.shape[0] * part.shape[1] == shape[0]
