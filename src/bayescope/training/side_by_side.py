"""Training side by side: the minibatches of several networks, and the sum of what each of them goes down."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from bayescope.likelihoods import Likelihood
from bayescope.network.batches import row_total
from bayescope.network.inputs import call, map_tensors
from bayescope.network.weights import Weights
from bayescope.priors import Prior
from bayescope.private_draws import Cut
from bayescope.training.minibatches import Minibatches, permuted
from bayescope.training.objective import require_graph
from bayescope.training.stack import Stack, for_each


@final
class RowsOfEach:
    """Minibatches of M networks at once, each in the order that its own generator draws: inputs (B, M, …).

    The targets are (B, M·S, …), the networks and the S positions of a row on one axis.

    Args:
        rows: the data, in memory.
        orders: a generator for each network.
        chosen: which rows each network is trained on, shape (M, N), as the bootstrap draws them; ``None`` for all.

    Attributes:
        generators: those of the orders.
    """

    def __init__(self, rows: Minibatches, orders: Sequence[torch.Generator], chosen: Tensor | None = None) -> None:
        self.generators = list(orders)
        self._data, self._chosen, self._largest = rows, chosen, rows.largest
        self._inputs, self._targets = rows.whole()
        self._count = len(self._targets)
        self._whole: tuple[Any, Tensor] | None = None
        if self._count and rows.largest == self._count:
            own = rows.part(self._count)
            self._whole = self._taken(torch.arange(self._count).expand(len(self.generators), -1)[:, own])

    @property
    def largest(self) -> int:
        """The rows of the largest minibatch."""
        return self._largest

    @property
    def cut(self) -> Cut | None:
        return self._data.cut

    def epoch(self, number: int = 0) -> Iterator[tuple[Any, Tensor]]:
        """The minibatches of one epoch."""
        if self._whole is not None:
            self._data.part(self._count)
            yield self._whole
            return
        if not self._count:
            return
        orders = [permuted(self._count, self._largest, generator) for generator in self.generators]
        for places in zip(*orders, strict=True):
            yield self._taken(torch.stack(places)[:, self._data.part(len(places[0]))])

    def require_finite(self) -> None:
        """Reads the inputs for NaN and infinity; raises as `Minibatches` does."""
        self._data.require_finite()

    def _taken(self, places: Tensor) -> tuple[Any, Tensor]:
        """The rows at places (M, B)."""
        rows = places if self._chosen is None else self._chosen.gather(1, places)
        here = rows.flatten().to(self._targets.device)

        def take(tensor: Tensor) -> Tensor:
            return tensor.index_select(0, here).unflatten(0, rows.shape).transpose(0, 1)

        return map_tensors(take, self._inputs), take(self._targets).flatten(1, 2)


@final
class RowsForAll:
    """The same minibatches for each of M networks: inputs (B, M, …), for data that come in an order of their own.

    Args:
        rows: the data.
        members: M.

    Attributes:
        generators: those that the order of the rows comes from.
    """

    def __init__(self, rows: Minibatches, members: int) -> None:
        self._rows, self._members = rows, members
        self.generators = rows.generators

    @property
    def largest(self) -> int:
        """The rows of the largest minibatch, where they are cut here."""
        return self._rows.largest

    @property
    def cut(self) -> Cut | None:
        return self._rows.cut

    def epoch(self, number: int = 0) -> Iterator[tuple[Any, Tensor]]:
        """The minibatches of one epoch."""
        for inputs, targets in self._rows.epoch(number):
            yield for_each(inputs, self._members), for_each(targets, self._members).flatten(1, 2)

    def require_finite(self) -> None:
        """Reads the inputs for NaN and infinity; raises as `Minibatches` does."""
        self._rows.require_finite()


@final
class JointOfEach:
    """−Σ_n log p(y_n∣f(x_n)) + ½ (θ−m)ᵀP₀(θ−m) of each of M networks, whose sum a training loop goes down.

    They share no parameter, so that the gradient of the sum is to each network that of its own term.

    Args:
        stack: the networks.
        weights: which weights of one network are random.
        rows: N.
        likelihood: p(y∣f).
        prior: p(θ), the same for all.
        ended: whose training is over, shape (M,), and not counted in the means any more; ``None`` for nobody's ever.

    Attributes:
        parameters: what is trained: the random weights, and all others that require a gradient.
        likelihood: p(y∣f).
        prior: p(θ).
    """

    def __init__(
        self,
        stack: Stack,
        weights: Weights,
        rows: int,
        likelihood: Likelihood,
        prior: Prior,
        ended: Callable[[], Tensor] | None = None,
    ) -> None:
        self._stack, self._weights, self._rows = stack, weights, rows
        self.parameters = [parameter for parameter in stack.parameters() if parameter.requires_grad]
        self.likelihood, self.prior = likelihood, prior
        self._random = stack.parameters_of(weights)
        reference = self.parameters[0]
        self._centre = prior.centre(weights.dim).to(reference.device)
        self._diagonal: dict[str, Tensor] | None = None
        if isinstance(prior.precision, Tensor):
            precisions = weights.unflat(prior.diagonal(weights.dim) / rows)  # zero where a mask leaves entries out
            self._diagonal = {name: value.to(reference) for name, value in precisions.items()}
        self._pull = {name: value.to(reference) for name, value in self._offsets().items()}
        self._ended = ended or torch.zeros(stack.members, dtype=torch.bool).clone
        self._nll = torch.zeros(stack.members, dtype=torch.float64, device=reference.device)

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Begins to add up the likelihoods."""
        self._nll.zero_()

    def estimate(self, inputs: Any, targets: Tensor) -> Tensor:
        """Sets every gradient to that of the sum over N, as a minibatch of each network tells it.

        Args:
            inputs: (B, M, …).
            targets: their canonical labels, (B, M·S, …).

        Returns:
            The mean of −log p(y∣f) over rows, and over the networks, detached.
        """
        with torch.enable_grad():
            nll = nll_of_each(self.likelihood, call(self._stack, inputs), targets)
        loss = nll.sum() / targets.shape[0]
        require_graph(loss)
        for parameter in self.parameters:
            parameter.grad = None
        loss.backward()
        self._add_pull()
        self._nll += nll.detach()
        return loss.detach() / self._stack.members

    def per_row_penalty(self) -> Tensor:
        """The prior's terms divided by N, the mean over the networks."""
        return self.penalties().mean() / self._rows

    def finish_epoch(self, nll: float) -> Mapping[str, Any]:
        """The means over the networks in training, and under "losses" the loss of each: NaN for the others."""
        each, penalties, ended = row_total(self._nll).cpu(), self.penalties().cpu(), self._ended()
        mean, penalty = float(each[~ended].mean()), float(penalties[~ended].mean())
        losses = (each + penalties).masked_fill(ended, math.nan)
        return {"loss": mean + penalty, "nll": mean, "penalty": penalty, "losses": losses.tolist()}

    def penalties(self) -> Tensor:
        """½ (θ−m)ᵀP₀(θ−m) of each network, shape (M,), float64."""
        offsets = self._stack.flat(self._weights) - self._centre
        return 0.5 * (offsets * self._precision_times(offsets)).sum(-1)

    def _precision_times(self, offsets: Tensor) -> Tensor:
        """P₀ v for each v of (M, P)."""
        precision = self.prior.precision
        if isinstance(precision, Tensor):
            return precision.to(offsets) * offsets
        return precision.multiply(offsets.mT).mT

    def _offsets(self) -> dict[str, Tensor]:
        """P₀ m / N of a prior whose precision is diagonal, by name; those that are zero left out."""
        if self._diagonal is None or not self._centre.any():
            return {}
        return self._weights.unflat(self._precision_times(self._centre[None])[0] / self._rows)

    def _add_pull(self) -> None:
        """Adds P₀ (θ − m) / N to the gradients."""
        with torch.no_grad():
            if self._diagonal is None:
                offsets = self._stack.flat(self._weights) - self._centre
                terms = self._weights.unflat(self._precision_times(offsets) / self._rows)
                for name, parameter in self._random.items():
                    _gradient(parameter).add_(terms[name].to(parameter))
                return
            for name, parameter in self._random.items():
                gradient = _gradient(parameter).addcmul_(parameter, self._diagonal[name])
                if name in self._pull:
                    gradient.sub_(self._pull[name])


def nll_of_each(likelihood: Likelihood, f: Tensor, targets: Tensor) -> Tensor:
    """Σ −log p(y∣f) of each network, shape (M,), for f (B, M, *positions, C) and canonical targets (B, M·S, …)."""
    rows = likelihood.log_prob(f.reshape(-1, f.shape[-1]), targets.flatten(0, 1))
    return -rows.reshape(f.shape[0], f.shape[1], -1).sum((0, 2))


def _gradient(parameter: nn.Parameter) -> Tensor:
    """The gradient of a parameter, zero where it is not in use: the prior alone pulls it."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
