"""The weights that a training passes through: their average, and the covariance of the snapshots taken on the way."""

from __future__ import annotations

from typing import cast, final

import torch
from torch import Tensor, nn

from bayescope.errors import InputError
from bayescope.network.weights import Weights
from bayescope.precision import LowRankCovariance

DOUBLE = torch.float64
# Snapshots that have a covariance.
FEWEST = 2


@final
class Trajectory(nn.Module):
    """A network together with what has been seen of its weights; a module, so that checkpoints keep both.

    With θ_1, …, θ_T the snapshots, θ̄_t the average of the first t and K columns D_t = θ_t − θ̄_t of the last K of them,

        Σ = ½ diag(T⁻¹ Σ_t (θ_t − θ̄_T)²) + ½ D Dᵀ / (K − 1)

    (Maddox et al. 2019, "A simple baseline for Bayesian uncertainty in deep learning", Eqs. 1 and 2). Averages and
    sums of squares are updated by Welford's rule in float64: the difference of two large second moments would lose the
    digits of a variance that is small beside the weights.

    Args:
        network: what is trained.
        weights: which of its weights are random. All others that are trained are averaged alone.
        rank: the most columns K; 0 for the diagonal alone.
    """

    def __init__(self, network: nn.Module, weights: Weights, rank: int) -> None:
        super().__init__()
        self.network = network
        self._trained = {name: p for name, p in network.named_parameters() if p.requires_grad}
        self._places = _places(self._trained, weights)
        first = next(iter(self._trained.values()))
        trained = sum(parameter.numel() for parameter in self._trained.values())
        for name, shape in {"average": (trained,), "squares": (weights.dim,), "columns": (rank, weights.dim)}.items():
            self.register_buffer(name, torch.zeros(shape, dtype=DOUBLE, device=first.device))
        self.register_buffer("taken", torch.zeros((), dtype=torch.int64))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    @property
    def count(self) -> int:
        """T, the number of snapshots."""
        return int(cast(Tensor, self.taken))

    @property
    def rank(self) -> int:
        """K: as many columns as were asked for, or as there are snapshots."""
        return min(self.count, len(cast(Tensor, self.columns)))

    @property
    def mean(self) -> Tensor:
        """θ̄_T of the random weights, shape (P,), float64."""
        return cast(Tensor, self.average)[self._places]

    def stepped(self, every: int) -> None:
        """Hears of a step of the optimiser; takes a snapshot after every so many."""
        steps = cast(Tensor, self.steps).add_(1)
        if int(steps) % every == 0:
            self.snapshot()

    @torch.no_grad()
    def snapshot(self) -> None:
        """Adds the present weights to the running moments."""
        present = torch.cat([parameter.detach().flatten().to(DOUBLE) for parameter in self._trained.values()])
        average, squares, columns = (cast(Tensor, tensor) for tensor in (self.average, self.squares, self.columns))
        before = (present - average)[self._places]
        cast(Tensor, self.taken).add_(1)
        average.add_((present - average) / self.count)
        after = (present - average)[self._places]
        squares.addcmul_(before, after)
        if len(columns):
            columns[(self.count - 1) % len(columns)] = after

    @torch.no_grad()
    def settle(self) -> None:
        """Gives the network the average."""
        sizes = [parameter.numel() for parameter in self._trained.values()]
        for parameter, values in zip(self._trained.values(), cast(Tensor, self.average).split(sizes), strict=True):
            parameter.copy_(values.reshape(parameter.shape))

    def covariance(self) -> LowRankCovariance:
        """Σ; without columns the diagonal as a whole, not half of it, as the paper's SWAG-Diagonal.

        Raises:
            InputError: if there are fewer than two snapshots.
        """
        if self.count < FEWEST:
            raise InputError(
                f"epochs: expected at least two snapshots to see a covariance, got {self.count}. Train for more "
                "epochs, or collect sooner or more often."
            )
        variances, rank = cast(Tensor, self.squares) / self.count, self.rank
        columns = cast(Tensor, self.columns)[:rank].mT
        if not rank:
            return LowRankCovariance(variances, columns, name="the snapshots' covariance")
        scaled = columns / (2 * (rank - 1)) ** 0.5
        return LowRankCovariance(0.5 * variances, scaled, name="the snapshots' covariance")


def _places(trained: dict[str, nn.Parameter], weights: Weights) -> Tensor:
    """Where the random weights stand among all that are trained, as these lie one after another."""
    sizes = [parameter.numel() for parameter in trained.values()]
    device = next(iter(trained.values())).device
    parts = torch.arange(sum(sizes), device=device).split(sizes)
    named = {name: part.reshape(trained[name].shape) for name, part in zip(trained, parts, strict=True)}
    return weights.flatten({name: named[name] for name in weights.names})
