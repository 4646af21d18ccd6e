"""The grouping: which weights are read together as one part, from where a trace has found them in use."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from bayescope.errors import InputError
from bayescope.network.parts import WeightPart, computed_part, dense_part, matrix_part, sum_part, unused_part
from bayescope.network.sites import MatrixSite, Site, WeightView


@final
@dataclass(frozen=True, eq=False)
class SitesByRole:
    """The sites of each parameter, by the role that it plays there.

    Attributes:
        matrix: where it is the matrix.
        bias: where it is the bias.
        spread: where it is neither.
    """

    matrix: dict[str, list[MatrixSite]] = field(default_factory=dict)
    bias: dict[str, list[MatrixSite]] = field(default_factory=dict)
    spread: dict[str, list[Site]] = field(default_factory=dict)

    @classmethod
    def of(cls, sites: Iterable[Site]) -> SitesByRole:
        """The sites of a network, sorted by what they do."""
        roles = cls()
        for site in sites:
            if not isinstance(site, MatrixSite):
                roles.spread.setdefault(site.view.name, []).append(site)
                continue
            if site.weight is not None:
                roles.matrix.setdefault(site.weight.name, []).append(site)
            if site.bias is not None:
                roles.bias.setdefault(site.bias.name, []).append(site)
        return roles

    def joined(self, apart: Collection[str]) -> frozenset[str]:
        """The biases that always come with the same matrix, entry by entry, and it with them; none of those apart."""
        return frozenset(name for name in self.bias if self._always_joined(name, apart))

    def _always_joined(self, name: str, apart: Collection[str]) -> bool:
        sites = self.bias[name]
        matrices = {site.weight.name if site.weight else None for site in sites}
        (matrix,) = matrices if len(matrices) == 1 else (None,)
        if (
            matrix is None
            or matrix in apart
            or name in apart
            or name in self.matrix
            or name in self.spread
            or matrix in self.spread
        ):
            return False
        if len(self.matrix[matrix]) != len(sites) or not all(site.form.joins_bias for site in sites):
            return False
        pairs = {(site.form.kind, *(view.key for view in site.views)): site.views for site in sites}
        return _disjoint([w for w, _ in pairs.values()]) and _disjoint([b for _, b in pairs.values()])


def make_parts(
    sizes: Mapping[str, int], sites: Sequence[Site], rowwise: Collection[str], derived: Collection[str] = ()
) -> tuple[tuple[WeightPart, ...], dict[str, str]]:
    """Sorts the random parameters into parts, in the order of their first parameters.

    Args:
        sizes: the number of weights of each random parameter.
        sites: those that the output depends on.
        rowwise: the parameters that are to be read row by row.
        derived: the weights among them that are computed from others, with which no bias is joined.

    Returns:
        The parts, and the reasons for which some parameters have to be read row by row and are in none of them.
    """
    roles = SitesByRole.of(sites)
    joined = roles.joined(derived)
    parts: list[WeightPart] = []
    refused: dict[str, str] = {}
    dense = [name for name in sizes if name not in roles.matrix and name not in joined | set(rowwise)]
    dense = [name for name in dense if name in roles.spread or name in roles.bias]
    groups = [
        *_by_owner([name for name in dense if name not in derived]),
        *([name] for name in dense if name in derived),
    ]
    for name in roles.matrix:
        found = _matrix_parts(name, sizes[name], roles, joined)
        if not found:
            refused[name] = "its chunks overlap where they are used"
        parts += found
    parts += [dense_part({name: (sizes[name], _keys(roles, name)) for name in group}) for group in groups]
    by_row = _by_owner([name for name in sizes if name in rowwise])
    parts += [computed_part({name: sizes[name] for name in group}) for group in by_row]
    unused = _uncovered({n: s for n, s in sizes.items() if n not in refused}, parts)
    parts += [unused_part({name: unused[name] for name in group}, sizes) for group in _by_owner(list(unused))]
    order = {name: place for place, name in enumerate(sizes)}
    return tuple(sorted(parts, key=lambda part: min(order[name] for name in part.names))), refused


def _matrix_parts(name: str, size: int, roles: SitesByRole, joined: Collection[str]) -> list[WeightPart]:
    """One part for each chunk of the matrix that is used by itself; one for all ways in which all of it is used."""
    groups: dict[Hashable, list[MatrixSite]] = {}
    for site in roles.matrix[name]:
        assert site.weight is not None
        shape = site.form.order(site.weight.value).shape
        groups.setdefault((site.form.kind, shape, site.weight.key), []).append(site)
    alone = name not in roles.spread and name not in roles.bias
    matrices = []
    for (first, *_), sites in ((each, each) for each in groups.values()):
        assert first.weight is not None
        bias = first.bias if first.bias is not None and first.bias.name in joined else None
        matrices.append(matrix_part(first.form, first.weight, bias, tuple(dict.fromkeys(s.key for s in sites))))
    views = [sites[0].weight for sites in groups.values() if sites[0].weight is not None]
    if alone and _disjoint(views):
        return matrices
    if any(view.value.numel() != size for view in views):
        return []
    others = [] if alone else [dense_part({name: (size, _keys(roles, name))})]
    return [sum_part((*matrices, *others))]


def _keys(roles: SitesByRole, name: str) -> tuple[Hashable, ...]:
    """The sites at which a parameter is not the matrix."""
    return tuple(dict.fromkeys(site.key for site in (*roles.spread.get(name, ()), *roles.bias.get(name, ()))))


def _disjoint(views: Sequence[WeightView]) -> bool:
    """Whether no two of the views share an entry of the weight, nor one of them has it twice."""
    if len(views) == 1 and views[0].value.numel() == views[0].weight.numel():
        return 0 not in views[0].value.stride()
    positions = torch.cat([view.positions.flatten() for view in views])
    return len(positions) == len(positions.unique())


def _uncovered(sizes: Mapping[str, int], parts: Iterable[WeightPart]) -> dict[str, Tensor]:
    """For each parameter the weights that are in no part."""
    names = list(sizes)
    ends = torch.tensor([0, *sizes.values()]).cumsum(0).tolist()
    offsets = dict(zip(names, ends, strict=False))
    free = torch.ones(ends[-1], dtype=torch.bool)
    for part in parts:
        free[part.positions(offsets).cpu()] = False
    left = {name: free[offsets[name] : offsets[name] + size].nonzero().squeeze(-1) for name, size in sizes.items()}
    return {name: positions for name, positions in left.items() if len(positions)}


def _by_owner(names: Sequence[str]) -> list[list[str]]:
    """The names in groups that belong to one module."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.rpartition(".")[0], []).append(name)
    return list(groups.values())


def last_layer(sites: Sequence[Site], trainable: Sequence[str]) -> list[str]:
    """The parameters whose effect on f passes through no other matrix, and those of the same modules.

    Layers side by side, for a mean and a variance, are all of them last.

    Args:
        sites: those that f depends on, in the order of execution.
        trainable: the names to choose from.

    Raises:
        InputError: if there is none, or a matrix is last that is not used as one (as in cosine similarities).
    """
    if not sites:
        raise InputError("weights: expected weights that the network's output depends on, got none.")
    matrices = [site for site in sites if isinstance(site, MatrixSite)]
    passed = _behind(_edge(site).node for site in matrices)
    last = [site for site in sites if _edge(site).node not in passed] if matrices else [sites[-1]]
    names = {view.name for site in last for view in site.views}
    owners = tuple(name.rpartition(".")[0] + "." for name in names if "." in name)
    odd = [site.views[0] for site in last if matrices and not isinstance(site, MatrixSite)]
    unclear = sorted({view.name for view in odd if sum(size > 1 for size in view.weight.shape) > 1})
    if unclear:
        raise InputError(
            f"weights: expected a last layer that applies a matrix, got {', '.join(map(repr, unclear))}, used in "
            f"another way, after {', '.join(map(repr, sorted(names - set(unclear))))}. Name the last layer's weights."
        )
    return [name for name in trainable if name in names or name.startswith(owners)]


def _edge(site: Site) -> GradientEdge:
    return site.target if isinstance(site, MatrixSite) else get_gradient_edge(site.target)


def _behind(nodes: Iterable[Any]) -> set[Any]:
    """The nodes of the graph that a gradient reaches from some, without these unless from one another."""
    found: set[Any] = set()
    waiting = [following for node in nodes for following, _ in node.next_functions]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.add(node)
            waiting += [following for following, _ in node.next_functions]
    return found
