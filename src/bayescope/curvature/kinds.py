"""Kinds of curvature: what takes the place of Λ in Σ_n J_nᵀ Λ_n J_n."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from bayescope.likelihoods import Likelihood, read_targets
from bayescope.network.recording import Recording
from bayescope.tape import LastHessian
from bayescope.tape.tape import row_blocks

# From this many outputs on, where the last layer is linear, the cotangents of the GGN begin below it.
MANY_OUTPUTS = 64
# A root of WᵀΛW has as few columns as rows where these are fewer by this factor: then that is worth its eigenvectors.
FEWER = 4
# Roots of WᵀΛW are found for as many rows at once as these bytes hold.
BELOW_BYTES = 16 * 2**20

# Labels are drawn for this many observations at once, each with its own generator: the draws are the same in every pass
# and for every batch size.
DRAWN_TOGETHER = 256


def begins_below(recording: Recording) -> bool:
    """Whether the cotangents of the GGN begin at the inputs of a linear last layer, where parts are summed apart."""
    return recording.outputs.shape[-1] >= MANY_OUTPUTS and recording.top is not None


def below_columns(outputs: int, inputs: int) -> int:
    """The columns of a root of WᵀΛW for W of shape (C, H): H where that is far fewer, else C."""
    return inputs if FEWER * inputs <= outputs else outputs


@final
@dataclass(frozen=True)
class Observations:
    """The outputs of one batch beside their labels; each position of dense outputs is an observation.

    Attributes:
        likelihood: p(y∣f).
        shape: the shape of the model's outputs, (N, ..., C).
        f: the outputs, shape (M, C) for M = N S observations, S positions a row.
        y: the labels in the likelihood's canonical form, one for each observation.
        first: the number of the first row among those of all processes.
        step: from the number of a row to that of the next.
    """

    likelihood: Likelihood
    shape: tuple[int, ...]
    f: Tensor
    y: Tensor
    first: int
    step: int = 1

    @classmethod
    def read(cls, likelihood: Likelihood, outputs: Tensor, targets: Tensor, first: int, step: int = 1) -> Observations:
        """Pairs outputs (N, ..., C) with targets: of shape (N, ...) for classes, else (N, ..., C).

        Args:
            likelihood: p(y∣f).
            outputs: f.
            targets: y.
            first: the number of the first row among those of all processes.
            step: from the number of a row to that of the next.

        Raises:
            InputError: if the outputs are no (N, ..., C), or the targets do not fit them.
        """
        before = first // step * outputs.shape[1:-1].numel()
        y = read_targets(likelihood, targets, outputs.shape, before).to(outputs.device)
        f = outputs.detach().reshape(-1, outputs.shape[-1])
        y = y.clone() if y.is_inference() else y  # autograd would refuse it
        return cls(likelihood, tuple(outputs.shape), f, y, first, step)

    @property
    def positions(self) -> int:
        """S, the observations of a row."""
        return self.f.shape[0] // self.shape[0]

    @property
    def before(self) -> int:
        """How many observations have come before: where rows are dealt out in turn, of this process's."""
        return self.first // self.step * self.positions

    def log_likelihood(self) -> Tensor:
        """Σ log p(y∣f), a float64 scalar."""
        return self.likelihood.log_prob(self.f.to(torch.float64), self.y).sum()

    def seeds(self, curvature: str, seed: int, cotangents: int | None) -> Iterator[Tensor]:
        """The cotangents s_k of a kind, in chunks of shape (K, N, ..., C), with Λ = Σ_k s_k s_kᵀ per observation.

        - "ggn": the columns of the root of the likelihood's Λ. For dense outputs each position has columns of its own,
          zero at the other positions, so that K = S × (columns of the root).
        - "fisher": the gradient ∂ log p(ỹ∣f)/∂f at one drawn label ỹ, in expectation the Fisher. Labels of different
          positions are independent, so that one cotangent serves all the positions of a row: cross terms have mean 0.
        - "empirical_fisher": the gradient at the observed label, a cotangent for each position.

        Args:
            curvature: the kind.
            seed: what the labels of "fisher" are drawn with.
            cotangents: the most that a chunk may hold; ``None`` for all.
        """
        if curvature == "fisher":
            yield self._scores(self.drawn(seed)).reshape(1, *self.shape)
            return
        columns = self.root() if curvature == "ggn" else self._scores(self.likelihood.apart(self.y)[0])[None]
        yield from _spread(columns, self.shape, cotangents)

    @property
    def row_weights(self) -> Tensor | None:
        """The weight of each row, shape (N,); ``None`` where all count once."""
        weights = self.likelihood.apart(self.y)[1]
        return None if weights is None else weights.reshape(self.shape[0], -1)[:, 0]

    def _scores(self, outcomes: Tensor) -> Tensor:
        """√w ∂ log p(y∣f)/∂f at some outcomes, shape (M, C): its squares are those of w equal rows."""
        scores, weights = self.likelihood.unweighted.gradient(self.f, outcomes), self.likelihood.apart(self.y)[1]
        return scores if weights is None else scores * weights.sqrt().to(scores)[:, None]

    def seeds_below(self, matrix: Tensor, cotangents: int | None) -> Iterator[Tensor]:
        """The cotangents of the GGN at h, where f = W h + b: columns of a root of WᵀΛW, as `seeds` gives those of Λ.

        Args:
            matrix: W, shape (C, H).
            cotangents: the most that a chunk may hold; ``None`` for all.
        """
        matrix = matrix.to(self.f)
        blocks = row_blocks(
            len(self.f), 16 * matrix.numel(), BELOW_BYTES
        )  # ranges of rows whose roots are found together
        # The parts have no name: they are gone once they are joined, and not there while the cotangents travel.
        columns = torch.cat([self._below(self.f[rows], self.y[rows], matrix) for rows in blocks], 1)
        yield from _spread(columns, (*self.shape[:-1], matrix.shape[1]), cotangents)

    def _below(self, f: Tensor, y: Tensor, matrix: Tensor) -> Tensor:
        root = self.likelihood.ggn(f, y).root_below(matrix)
        if below_columns(*matrix.shape) < root.shape[-1]:
            wide = root.to(torch.float64)
            values, vectors = torch.linalg.eigh(wide @ wide.mT)  # below 0 by rounding alone
            root = (vectors * values.clamp_min(0.0).sqrt()[:, None]).to(root)
        return root.movedim(-1, 0)

    def ggn(self) -> LastHessian:
        """The GGN's Λ for a last layer: its diagonals (M, C), its sum over the observations (C, C), and its root."""
        diagonal = self.likelihood.ggn(self.f, self.y).diagonal()
        return LastHessian(diagonal, lambda: self.likelihood.ggn(self.f, self.y).sum(), self.root)

    def root(self) -> Tensor:
        """S with Λ = S Sᵀ for the GGN's Λ, its columns first, shape (K, M, C)."""
        return self.likelihood.ggn_sqrt(self.f, self.y).movedim(-1, 0)

    def drawn(self, seed: int) -> Tensor:
        """One label y ~ p(y∣f) for each observation.

        The observations of the whole data are cut into ranges of `DRAWN_TOGETHER`, each with a generator of its own. A
        batch draws for all of a range that it touches and keeps its own: no draw depends on where batches begin, nor on
        which process reads a row.
        """
        rows = self.first + self.step * torch.arange(self.shape[0])
        numbers = (rows[:, None] * self.positions + torch.arange(self.positions)).flatten()
        ranges, which = torch.unique(numbers // DRAWN_TOGETHER, return_inverse=True)
        slots = (which * DRAWN_TOGETHER + numbers % DRAWN_TOGETHER).to(self.f.device)
        padded = self.f.new_zeros(len(ranges) * DRAWN_TOGETHER, self.f.shape[1])
        padded[slots] = self.f
        plain, y = self.likelihood.unweighted, self.likelihood.apart(self.y)[0]
        draws = [
            plain.sample(f, torch.Generator().manual_seed(seed + place))
            for place, f in zip(ranges.tolist(), padded.split(DRAWN_TOGETHER), strict=True)
        ]
        drawn = torch.cat(draws)[slots] if draws else y
        labelled = plain.labelled(y)
        return drawn if labelled is None else torch.where(labelled, drawn, y)


def _spread(columns: Tensor, shape: tuple[int, ...], cotangents: int | None) -> Iterator[Tensor]:
    """Columns (K, N S, C) as cotangents (S K, N, ..., C), a chunk at a time: position 0 first, then 1 and so on."""
    width, classes, rows = columns.shape[0], shape[-1], shape[0]
    columns = columns.reshape(width, rows, -1, classes)
    total = columns.shape[2] * width
    step = max(1, min(total, cotangents or total))
    if total == width:
        yield from columns.reshape(width, *shape).split(step)
        return
    for start in range(0, total, step):
        index = torch.arange(start, min(start + step, total), device=columns.device)
        position, column = index // width, index % width
        chunk = columns.new_zeros(len(index), rows, columns.shape[2], classes)
        each = torch.arange(len(index), device=columns.device)
        chunk[each, :, position] = columns[column, :, position]
        yield chunk.reshape(-1, *shape)
