"""The last layer of a network, found by use and not by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch.autograd.graph import GradientEdge, get_gradient_edge

from bayescope.errors import InputError
from bayescope.network.sites import MatrixSite, Site


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
