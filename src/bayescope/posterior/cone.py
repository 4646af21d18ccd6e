"""Gaussians of weights that must not be negative: draws are projected onto the cone where they are not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from bayescope.quadrature import normal_nodes
from bayescope.storage import stored

# The mean and the covariance of projected draws are those of this many quasi-random ones.
NODES = 1024
# The least variance of a bounded weight: a weight that all draws have at 0 has no density otherwise.
LEAST_VARIANCE = 1e-8


@stored("cone")
@final
@dataclass(frozen=True, eq=False)
class Cone:
    """The map from draws of a Gaussian to draws whose weights v are at least 0, of the same mean and covariance.

    A posterior N(θ̂, A⁻¹) is restricted to v ≥ 0 by projection: each of its draws becomes the nearest point of the cone
    in the metric A (Lin & Dunson 2014; Chakraborty & Ghosal 2021). That is the nearest v ≥ 0 in the metric M of v's
    marginal precision, M⁻¹ = (A⁻¹)_vv, and the other weights follow by their regression on v. Draws that are inside
    stay, and a bound that the data are far from changes nothing. Unlike a Gaussian that is cut off at 0, projected
    draws can be 0, so that an effect which is flat stays flat.

    The map takes u ~ N(mean, covariance of the projected draws) and reads v̂ + W (u_v − mean_v) as a draw of N(v̂, M⁻¹).

    Attributes:
        weights: the flat positions of v, shape (K,).
        among: the flat positions of the weights that depend on v, v among them, shape (Q,).
        regression: ∂E[θ∣v]/∂v of the latter, shape (Q, K).
        start: v̂, shape (K,).
        metric: M, shape (K, K).
        mean: of the projected v, shape (K,).
        spread: W, shape (K, K).
    """

    weights: Tensor
    among: Tensor
    regression: Tensor
    start: Tensor
    metric: Tensor
    mean: Tensor
    spread: Tensor

    def forward(self, u: Tensor) -> Tensor:
        """Draws in the cone, shape (S, P), for draws of the Gaussian, shape (S, P)."""
        before = u[:, self.weights]
        after = projected(self.start + (before - self.mean) @ self.spread.mT, self.metric)
        carried = u.clone()
        carried[:, self.among] += (after - before) @ self.regression.mT
        carried[:, self.weights] = after  # the bound holds to the last bit
        return carried


def onto_cone(location: Tensor, precision: Tensor, bounded: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Cone]:
    """The mean and precision of a Gaussian's projected draws, and the map that makes such draws.

    Args:
        location: θ̂, shape (Q,).
        precision: A, shape (Q, Q).
        bounded: the places of v among the Q weights, shape (K,).
        positions: of the Q weights among all that a posterior has.
    """
    covariance = torch.cholesky_inverse(torch.linalg.cholesky(precision))
    marginal = covariance[bounded][:, bounded]
    root = torch.linalg.cholesky(marginal)
    metric = torch.cholesky_inverse(root)
    regression = covariance[:, bounded] @ metric
    start = location[bounded]
    draws = projected(start + _standard_nodes(len(bounded)) @ root.mT, metric)
    mean, least = draws.mean(0), torch.full_like(start, LEAST_VARIANCE)
    spread = torch.linalg.cholesky((draws - mean).mT @ (draws - mean) / len(draws) + torch.diag(least))
    restricted = precision.clone()
    restricted[bounded[:, None], bounded] += torch.cholesky_inverse(spread) - metric
    # The square root of the projected draws' covariance is undone, and that of the Gaussian's is put in its place.
    carry = torch.linalg.solve_triangular(spread, root, upper=False, left=False)
    cone = Cone(positions[bounded], positions, regression, start, metric, mean, carry)
    moved = location + regression @ (mean - start)
    moved[bounded] = mean  # to the last bit
    return moved, restricted, cone


def projected(points: Tensor, metric: Tensor) -> Tensor:
    """The v ≥ 0 that minimises (v − ρ)ᵀ M (v − ρ), shape (S, K), for each ρ of (S, K): least squares by active sets."""
    root = torch.linalg.cholesky(metric).mT.numpy()
    return torch.from_numpy(np.stack(list(_nearest(points.numpy(), root)))) if len(points) else points


def _nearest(points: np.ndarray, root: np.ndarray) -> Iterator[np.ndarray]:
    for point in points:
        yield point if (point >= 0.0).all() else nnls(root, root @ point)[0]


def _standard_nodes(dim: int) -> Tensor:
    """Quasi-random nodes of N(0, I) whose mean is 0 and whose covariance is I, shape (n, dim)."""
    count = NODES
    while count < 2 * dim:
        count *= 2
    nodes = normal_nodes(dim, count)
    nodes = nodes - nodes.mean(0)
    root = torch.linalg.cholesky(nodes.mT @ nodes / count)
    return torch.linalg.solve_triangular(root, nodes.mT, upper=False).mT
