"""Objectives of training: what the loop asks of one, and −Σ log p(y∣f) − log p(θ), the most common of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn

from bayescope.errors import InputError
from bayescope.likelihoods import Likelihood, read_targets
from bayescope.network import Inputs, Weights, call, row_total
from bayescope.priors import Prior
from bayescope.training.learnt_likelihood import LearntLikelihood
from bayescope.training.stack import Stack


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
    """What the training loop minimises: a sum over all N rows, which a minibatch estimates without bias."""

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

        What changes here and in `finish_epoch`, and does not follow from the epoch, has to be a parameter or a buffer
        of the module that is trained: a checkpoint keeps those.
        """

    def estimate(self, inputs: Inputs, targets: Tensor) -> Tensor:
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
    """−Σ_n log p(y_n∣f(x_n)) + ½ (θ−m)ᵀP₀(θ−m) over all N rows; a minibatch of B rows counts N/B times.

    Gradients are of the objective divided by N, so that a step size means the same for any number of rows. For a stack
    of M networks it is the sum over them. They share no parameter, so that the gradient of the sum is to each network
    that of its term; inputs are then (B, M, …), and targets (B, M·S, …).

    Args:
        module: the network, in the mode that it is trained in, or a stack of networks.
        weights: which weights of one network are random: the prior's term is over those alone.
        rows: N.
        likelihood: p(y∣f).
        prior: p(θ), the same for all networks.
        ended: which networks of a stack count no more in the means, shape (M,); ``None`` where all of them count.
        extra: a further penalty, in autograd's graph.
        entries: what the trace gets besides, after each epoch.
        learnt: the likelihood, where hyperparameters of it are learnt.

    Attributes:
        parameters: what is trained: the random weights, and all others that require a gradient.
        likelihood: the present one.
        prior: the present one.
    """

    def __init__(
        self,
        module: nn.Module,
        weights: Weights,
        rows: int,
        likelihood: Likelihood,
        prior: Prior,
        *,
        ended: Callable[[], Tensor] | None = None,
        extra: Callable[[], Tensor] | None = None,
        entries: Callable[[], Mapping[str, Any]] = dict,
        learnt: LearntLikelihood | None = None,
    ) -> None:
        self._module, self._weights, self._rows, self._ended = module, weights, rows, ended
        self._extra, self._entries, self._learnt = extra, entries, learnt
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._each: Tensor | None = None
        if isinstance(module, Stack):
            self._each = torch.zeros(module.members, dtype=torch.float64, device=self.parameters[0].device)
        self._random = random_parameters(module, weights)
        self.move(likelihood, prior)

    def move(self, likelihood: Likelihood, prior: Prior) -> None:
        """Takes another likelihood and prior, such as those that the evidence prefers, from the next step on."""
        self.likelihood, self.prior = likelihood, prior
        self._pull = PriorPull(prior, self._weights, self._random, 1.0 / self._rows)

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """The same objective in every epoch, but for hyperparameters that are learnt."""
        if self._each is not None:
            self._each.zero_()
        if self._learnt is not None:  # which a checkpoint may have brought
            self._learnt.begin()
            self.likelihood = self._learnt.likelihood

    def estimate(self, inputs: Inputs, targets: Tensor) -> Tensor:
        """Sets every gradient to that of the objective over N, estimated from a minibatch.

        Args:
            inputs: B rows.
            targets: their canonical labels, shape (B, S, ...).

        Returns:
            The minibatch's mean of −log p(y∣f) over its rows and the networks, detached.

        Raises:
            InputError: if the outputs do not depend on any parameter that is trained.
        """
        with torch.enable_grad():
            f = call(self._module, inputs)
            if self._learnt is not None:
                self._learnt.observe(f.reshape(-1, f.shape[-1]), targets.flatten(0, 1))
            if self._each is None:
                nll = -log_likelihood(self.likelihood, f, targets)
            else:
                nll = nll_of_each(self.likelihood, f, targets)
                self._each += nll.detach()
            loss = nll.sum() / targets.shape[0]
        require_graph(loss)
        for parameter in self.parameters:
            parameter.grad = None
        loss.backward()
        if self._extra is not None:
            with torch.enable_grad():
                (self._extra() / self._rows).backward()
        self._pull.add_gradient()
        return loss.detach() / max(1, nll.numel())

    def finish_epoch(self, nll: float) -> Mapping[str, Any]:
        """The two terms, and their sum; for a stack the means over its networks, and in "losses" the loss of each."""
        if self._each is None:
            penalty = float(self.penalty())
            terms = {"loss": nll + penalty, "nll": nll, "penalty": penalty, **self._entries()}
            if self._learnt is not None:
                self._learnt.refit()
                terms |= self._learnt.entries()
            return terms
        each, penalties = row_total(self._each).cpu(), self.penalty().cpu()
        ended = torch.zeros(len(each), dtype=torch.bool) if self._ended is None else self._ended()
        mean, penalty = float(each[~ended].mean()), float(penalties[~ended].mean())
        losses = (each + penalties).masked_fill(ended, math.nan)
        return {"loss": mean + penalty, "nll": mean, "penalty": penalty, "losses": losses.tolist()}

    def penalty(self) -> Tensor:
        """½ (θ−m)ᵀP₀(θ−m) and what is added to it, at the present weights: a scalar, or shape (M,) for a stack."""
        theta = self._weights.flatten({name: p.detach() for name, p in self._random.items()}).to(torch.float64)
        offset = theta - self.prior.centre(self._weights.dim).to(theta)
        total = 0.5 * (offset * prior_times(self.prior, offset)).sum(-1)
        return total if self._extra is None else total + self._extra().detach()

    def bound(self) -> float:
        """An upper bound of the nats that a Newton step would gain, from the present gradient g of the loss.

        The generalised Gauss-Newton curvature A of a log joint is at least that of the prior, so that
        ½ gᵀA⁻¹g ≤ ½ gᵀP₀⁻¹g. Weights without a prior are counted at a precision of 1.
        """
        gradients = {p: torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in self.parameters}
        random = self._weights.flatten({name: gradients[p] for name, p in self._random.items()}).to(torch.float64)
        total = sum(float(gradient.to(torch.float64).square().sum()) for gradient in gradients.values())
        without = total - float(random.square().sum())
        prior = self.prior.structured(len(random))
        return 0.5 * self._rows**2 * (float(random @ prior.solve(random)) + max(without, 0.0))

    def per_row_penalty(self) -> Tensor:
        return self.penalty().mean() / self._rows


def nll_of_each(likelihood: Likelihood, f: Tensor, targets: Tensor) -> Tensor:
    """Σ −log p(y∣f) of each network, shape (M,), for f (B, M, *positions, C) and canonical targets (B, M·S, …)."""
    rows = likelihood.log_prob(f.reshape(-1, f.shape[-1]), targets.flatten(0, 1))
    return -rows.reshape(f.shape[0], f.shape[1], -1).sum((0, 2))


def random_parameters(module: nn.Module, weights: Weights) -> dict[str, nn.Parameter]:
    """The parameters of a network that are random, by name, or those of a stack, with an axis over its networks."""
    return module.parameters_of(weights) if isinstance(module, Stack) else weights.parameters(module)


def prior_times(prior: Prior, offset: Tensor) -> Tensor:
    """P₀ v for v of shape (P,) or (M, P)."""
    precision = prior.precision
    if isinstance(precision, Tensor):
        return precision.to(offset) * offset
    return precision.multiply(offset) if offset.ndim == 1 else precision.multiply(offset.mT).mT


@final
class PriorPull:
    """The gradient of share · ½ (θ−m)ᵀP₀(θ−m), which is added to that of the data.

    Args:
        prior: m and P₀.
        weights: which weights are random.
        parameters: those that hold them, by name.
        share: the weight of the prior's term in the loss.
    """

    def __init__(self, prior: Prior, weights: Weights, parameters: Mapping[str, nn.Parameter], share: float) -> None:
        self._prior, self._weights, self._parameters, self._share = prior, weights, parameters, share
        self._terms: list[tuple[nn.Parameter, Tensor, Tensor | None]] | None = None
        if not isinstance(prior.precision, Tensor):
            prior.structured(weights.dim)
            return
        diagonal = prior.diagonal(weights.dim) * share
        precisions = weights.unflat(diagonal)  # zero where a mask leaves entries out
        offsets = weights.unflat(diagonal * prior.centre(weights.dim))
        self._terms = []
        for name, parameter in parameters.items():
            offset = offsets[name].to(parameter)
            self._terms.append((parameter, compact(precisions[name].to(parameter)), offset if offset.any() else None))

    @torch.no_grad()
    def add_gradient(self) -> None:
        """Adds it; the prior alone pulls parameters that no row uses, and rows of a table whose gradient is sparse."""
        if self._terms is not None:
            for parameter, precision, offset in self._terms:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.to_dense()
                parameter.grad.addcmul_(parameter, precision)
                if offset is not None:
                    parameter.grad.sub_(offset)
            return
        theta = self._weights.flatten(self._parameters).to(torch.float64)
        offset = theta - self._prior.centre(self._weights.dim).to(theta)
        pull = self._weights.unflat(self._share * prior_times(self._prior, offset))
        for name, parameter in self._parameters.items():
            term = pull[name].to(parameter)
            parameter.grad = term if parameter.grad is None else parameter.grad.to_dense().add_(term)


def compact(values: Tensor) -> Tensor:
    """One number for values that are all alike: products with it are faster."""
    return values.flatten()[0] if bool((values == values.flatten()[0]).all()) else values
