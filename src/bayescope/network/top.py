"""The last layer of a network where it is linear: f = W h + b, below which its cotangents begin at h."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from bayescope.network.parts import MatrixPart, Part
from bayescope.network.sites import MatrixSite, Site, Target


class TopLayer(NamedTuple):
    """A linear layer of random weights whose output is f, and through whose inputs all other weights act.

    Attributes:
        part: its place among the parts.
        site: its call.
    """

    part: int
    site: MatrixSite

    @property
    def matrix(self) -> Tensor:
        """The weight of the last layer, W of shape (C, H)."""
        assert self.site.weight is not None
        return self.site.weight.value

    @property
    def source(self) -> Target:
        """The node of the graph that computed the features h."""
        return self.site.source


def top_layer(f: Tensor, sites: Sequence[Site], parts: Sequence[Part]) -> TopLayer | None:
    """The last layer, where it is linear, its weights are used nowhere else and no part is read row by row."""
    found = [site for site in sites if isinstance(site, MatrixSite) and _same(site.target, f)]
    if len(found) != 1 or any(part.kind == "per-row" for part in parts):
        return None
    (site,) = found
    if site.form.kind != "linear" or site.weight is None or site.source is None or site.shape != f.shape:
        return None
    joined = [place for place, part in enumerate(parts) if isinstance(part, MatrixPart) and part.keys == (site.key,)]
    alone = sum(other.key == site.key for other in sites) == 1
    if len(joined) != 1 or not alone or (cast(MatrixPart, parts[joined[0]]).bias is None) != (site.bias is None):
        return None
    return TopLayer(joined[0], site)


def _same(target: Target, f: Tensor) -> bool:
    edge = get_gradient_edge(f)
    return getattr(target, "node", None) is edge.node and target.output_nr == edge.output_nr
