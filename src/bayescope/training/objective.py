"""Objectives of training: what the loop asks of one, and −Σ log p(y∣f) − log p(θ), the most common of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn

from bayescope.errors import InputError
from bayescope.likelihoods import Likelihood, read_targets
from bayescope.network.inputs import call
from bayescope.network.weights import Weights
from bayescope.priors import Prior


def canonical_targets(likelihood: Likelihood, targets: Any, shape: torch.Size, before: int = 0) -> Tensor:
    """Labels in the likelihood's canonical form, shape (N, S, ...), for outputs (N, *positions, C) with S positions.

    Args:
        likelihood: p(y∣f).
        targets: y.
        shape: of the outputs.
        before: how many rows came before these in the data.

    Raises:
        InputError: if the outputs have no column for C, or the labels do not fit them.
    """
    y = read_targets(likelihood, targets, shape, before * shape[1:-1].numel())
    return y.reshape(shape[0], -1, *y.shape[1:])


def log_likelihood(likelihood: Likelihood, f: Tensor, targets: Tensor) -> Tensor:
    """Σ log p(y∣f), a scalar in the dtype of f, for outputs (N, *positions, C) and canonical targets (N, S, ...)."""
    return likelihood.log_prob(f.reshape(-1, f.shape[-1]), targets.flatten(0, 1)).sum()


def require_graph(loss: Tensor) -> None:
    """Refuses a loss that no weight is seen in, as after a forward pass that detaches what it returns.

    Raises:
        InputError: then.
    """
    if not loss.requires_grad:
        raise InputError(
            "model: expected outputs that depend on the weights that are trained, got some that do not. "
            "Leave detach(), .data and torch.no_grad() out of the forward pass."
        )


class Objective(Protocol):
    """What the training loop goes down: a sum over all N rows, told without bias by a minibatch."""

    @property
    def parameters(self) -> list[nn.Parameter]:
        """What the optimiser steps on."""

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood under the hyperparameters of the moment."""

    @property
    def prior(self) -> Prior:
        """The prior under the hyperparameters of the moment."""

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Hears before each epoch how many are done, and how many there will be.

        What changes here and in `finish_epoch`, and cannot be told from the epoch, has to be a parameter or a buffer of
        the module that is trained: a checkpoint keeps those.
        """

    def estimate(self, inputs: Any, targets: Tensor) -> Tensor:
        """Sets every gradient to that of the objective over N, as B rows with canonical targets (B, S, ...) tell it.

        Returns:
            The minibatch's mean of −log p(y∣f) over its rows, detached.
        """

    def per_row_penalty(self) -> Tensor:
        """All of the objective but −Σ log p(y∣f), divided by N: for optimisers that need values."""

    def finish_epoch(self, nll: float) -> Mapping[str, Any]:
        """What the trace gets for an epoch, "loss" among it.

        Args:
            nll: the sum of −log p(y∣f) over the rows of the epoch, each before its step.
        """


@final
class NegativeLogJoint:
    """−Σ_n log p(y_n∣f(x_n)) + ½ (θ−m)ᵀP₀(θ−m), over all N rows, of which a minibatch of B tells N/B times its own sum.

    Gradients are of the objective divided by N, so that a step size means the same for any number of rows.

    Args:
        module: the network, in the mode that it is trained in.
        weights: which weights are random: the prior's term is over those alone.
        rows: N.
        likelihood: p(y∣f).
        prior: p(θ).

    Attributes:
        parameters: what is trained: the random weights, and all others that require a gradient.
        likelihood: the present one.
        prior: the present one.
    """

    def __init__(self, module: nn.Module, weights: Weights, rows: int, likelihood: Likelihood, prior: Prior) -> None:
        self._module, self._weights, self._rows = module, weights, rows
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.move(likelihood, prior)

    def move(self, likelihood: Likelihood, prior: Prior) -> None:
        """Takes another likelihood and prior, such as those that the evidence prefers, from the next step on."""
        self.likelihood, self.prior = likelihood, prior
        self._pull = _pull(prior, self._weights, self._module, self._rows)

    def estimate(self, inputs: Any, targets: Tensor) -> Tensor:
        """Sets every gradient to that of the objective over N, as a minibatch tells it.

        Args:
            inputs: B rows.
            targets: their canonical labels, shape (B, S, ...).

        Returns:
            The minibatch's mean of −log p(y∣f) over its rows, detached.

        Raises:
            InputError: if the outputs do not depend on any parameter that is trained.
        """
        with torch.enable_grad():
            f = call(self._module, inputs)
            loss = log_likelihood(self.likelihood, f, targets) / -targets.shape[0]
        require_graph(loss)
        for parameter in self.parameters:
            parameter.grad = None
        loss.backward()
        self._pull.add_gradient()
        return loss.detach()

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """The same objective in every epoch."""

    def finish_epoch(self, nll: float) -> Mapping[str, float]:
        """The two terms, and their sum."""
        penalty = float(self.penalty())
        return {"loss": nll + penalty, "nll": nll, "penalty": penalty}

    def penalty(self) -> Tensor:
        """½ (θ−m)ᵀP₀(θ−m) at the present weights, a float64 scalar."""
        offset = self._weights.flat(self._module).to(torch.float64)
        offset = offset - self.prior.centre(len(offset)).to(offset)
        precision = self.prior.precision
        if isinstance(precision, Tensor):
            return 0.5 * (precision.to(offset) * offset.square()).sum()
        return 0.5 * offset @ precision.multiply(offset)

    def bound(self) -> float:
        """An upper bound of the nats that a Newton step would gain, from the present gradient g of the loss.

        The generalised Gauss-Newton curvature A of a log joint is at least that of the prior, so that
        ½ gᵀA⁻¹g ≤ ½ gᵀP₀⁻¹g. Weights without a prior are counted at a precision of 1.
        """
        gradients = {p: torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in self.parameters}
        named = {name: gradients[p] for name, p in self._weights.parameters(self._module).items()}
        random = self._weights.flatten(named).to(torch.float64)
        total = sum(float(gradient.to(torch.float64).square().sum()) for gradient in gradients.values())
        without = total - float(random.square().sum())
        prior = self.prior.structured(len(random))
        return 0.5 * self._rows**2 * (float(random @ prior.solve(random)) + max(without, 0.0))

    def per_row_penalty(self) -> Tensor:
        return self.penalty() / self._rows


class _Elementwise:
    """The gradient P₀(θ − m)/N of a prior whose precision is diagonal, written onto that of the data."""

    def __init__(self, terms: list[tuple[nn.Parameter, Tensor, Tensor | None]]) -> None:
        self._terms = terms

    def add_gradient(self) -> None:
        with torch.no_grad():
            for parameter, precision, offset in self._terms:
                # The prior alone pulls a parameter that no row uses, and rows of a table whose gradient is sparse.
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.to_dense()
                parameter.grad.addcmul_(parameter, precision)
                if offset is not None:
                    parameter.grad.sub_(offset)


class _Structured:
    """The same for a precision of any structure, such as a posterior's that became the prior."""

    def __init__(self, prior: Prior, weights: Weights, module: nn.Module, rows: int) -> None:
        self._prior, self._weights, self._module, self._rows = prior, weights, module, rows

    def add_gradient(self) -> None:
        theta = self._weights.flat(self._module).to(torch.float64)
        pull = self._weights.unflat(-self._prior.gradient(theta) / self._rows)
        for name, parameter in self._weights.parameters(self._module).items():
            term = pull[name].to(parameter)
            parameter.grad = term if parameter.grad is None else parameter.grad.to_dense().add_(term)


def _pull(prior: Prior, weights: Weights, module: nn.Module, rows: int) -> _Elementwise | _Structured:
    if not isinstance(prior.precision, Tensor):
        prior.structured(weights.dim)
        return _Structured(prior, weights, module, rows)
    diagonal = prior.diagonal(weights.dim) / rows
    precisions = weights.unflat(diagonal)  # zero where a mask leaves entries out
    offsets: Mapping[str, Tensor] = weights.unflat(diagonal * prior.centre(weights.dim))
    terms = []
    for name, parameter in weights.parameters(module).items():
        precision, offset = precisions[name].to(parameter), offsets[name].to(parameter)
        one = bool((precision == precision.flatten()[0]).all())
        terms.append((parameter, precision.flatten()[0] if one else precision, offset if offset.any() else None))
    return _Elementwise(terms)
