"""The objective of training with dropout, where more is learnt than weights: the noise, and the rates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from bayescope.dropout.concrete import ConcreteDropout
from bayescope.likelihoods import Likelihood
from bayescope.network.batches import row_totals
from bayescope.priors import Prior
from bayescope.training.objective import NegativeLogJoint


@final
class WithNoise(nn.Module):
    """A network and the noise variance that is learnt with it, so that snapshots and checkpoints have both.

    Args:
        network: the caller's.
        noise_variance: where learning starts.
    """

    noise_variance: Tensor

    def __init__(self, network: nn.Module, noise_variance: Tensor) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("noise_variance", noise_variance)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.network(*args, **kwargs)


class LearntRate(NamedTuple):
    """A learnt dropout with what its rate meets.

    Attributes:
        dropout: has the rate.
        weight: the weight of the layer after it.
        precision: its prior precision l², one number or of its shape.
    """

    dropout: ConcreteDropout
    weight: Tensor
    precision: Tensor

    def penalty(self) -> Tensor:
        """½ l² ‖W‖² r/(1 − r) − K H(r): what the divergence has beside the prior's own ½ l² ‖W‖²."""
        return 0.5 * (self.precision * self.weight.square()).sum() * self.dropout.odds() - self.dropout.entropy()


@final
class DropoutObjective:
    """−Σ log p(y∣f) with masks drawn in each pass, plus the divergence of the dropout's weights from their prior.

    Args:
        joint: the objective at fixed noise and, but for the terms of the rates, fixed rates.
        rows: N.
        rates: those that are learnt.
        noise: where a noise variance is learnt, what holds it. After each epoch it is the mean of (y − f)² over the
            epoch's passes, which is where the expected log likelihood is largest.
    """

    def __init__(
        self, joint: NegativeLogJoint, rows: int, rates: Sequence[LearntRate], noise: WithNoise | None
    ) -> None:
        self._joint, self._rows, self._rates, self._noise = joint, rows, rates, noise
        self._numbers = 0
        self._at_noise()

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The weights, and the logits of rates that are learnt."""
        return self._joint.parameters

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood under the noise variance of the moment."""
        return self._joint.likelihood

    @property
    def prior(self) -> Prior:
        """That of the weights that the network holds."""
        return self._joint.prior

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Takes the noise from where a checkpoint may have put it."""
        self._numbers = 0
        self._at_noise()

    def estimate(self, inputs: Any, targets: Tensor) -> Tensor:
        """Sets every gradient; returns the minibatch's mean of −log p(y∣f)."""
        self._numbers += targets.numel()
        nll = self._joint.estimate(inputs, targets)
        if self._rates:
            with torch.enable_grad():
                (self._penalty() / self._rows).backward()
        return nll

    def per_row_penalty(self) -> Tensor:
        """The divergence, divided by N."""
        return self._joint.per_row_penalty() + self._penalty().detach() / self._rows

    def finish_epoch(self, nll: float) -> Mapping[str, Any]:
        """The terms of the loss; the rates and the noise after the epoch where they are learnt."""
        terms: dict[str, Any] = dict(self._joint.finish_epoch(nll))
        if self._rates:
            extra = float(self._penalty().detach())
            terms["penalty"] += extra
            terms["loss"] += extra
            terms["rates"] = [rate.dropout.rate() for rate in self._rates]
        if self._noise is not None and math.isfinite(nll):
            noise, (numbers,) = float(self._noise.noise_variance), row_totals(self._numbers)
            squares = 2.0 * noise * (nll - 0.5 * numbers * math.log(2 * math.pi * noise))  # Σ (y − f)²
            self._noise.noise_variance.fill_(squares / numbers)
            terms["noise_variance"] = float(self._noise.noise_variance)
        return terms

    def _penalty(self) -> Tensor:
        return sum((rate.penalty() for rate in self._rates), start=torch.zeros(()))

    def _at_noise(self) -> None:
        likelihood = self._joint.likelihood
        if self._noise is not None and likelihood.noise_variance is not None:
            self._joint.move(likelihood.with_noise_variance(self._noise.noise_variance), self._joint.prior)
