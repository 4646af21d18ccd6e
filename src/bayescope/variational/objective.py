"""The evidence lower bound as an objective of training."""

from __future__ import annotations

from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn

from bayescope.likelihoods import Likelihood
from bayescope.network.batches import row_totals
from bayescope.network.weights import Weights
from bayescope.priors import Prior
from bayescope.variational.families import Family, kl_divergence
from bayescope.variational.gradients import Gradients
from bayescope.variational.hyperparameters import Hyperparameters


@final
class VariationalNetwork(nn.Module):
    """A network whose parameters are the means of q, beside what else is trained and learnt.

    Run by itself it is the network at the means.

    Args:
        module: the network.
        family: how the weights scatter around the means; a module.
        hyperparameters: p(θ) and p(y∣f).
    """

    def __init__(self, module: nn.Module, family: nn.Module, hyperparameters: Hyperparameters) -> None:
        super().__init__()
        self.module, self.family, self.hyperparameters = module, family, hyperparameters

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """What the network gives at the means."""
        return self.module(*arguments, **named)


@final
class NegativeBound:
    """−E_q[Σ_n log p(y_n∣f)] + w KL(q∥p), over all N rows, of which a minibatch of B tells N/B times its own sum.

    At w = 1 it is the negative of the evidence lower bound.

    Args:
        module: the network, whose parameters are the means.
        weights: which of them are random.
        family: how they scatter.
        hyperparameters: p(θ) and p(y∣f).
        gradients: how the gradient is estimated.
        rows: N.
        kl_weight: w.
        warmup: over this many epochs the weight rises to w, in equal steps.
        hold: whether what is not random stays as it is: other parameters, entries that a mask leaves out, and the
            statistics of batch norms. Else it is trained too.
    """

    def __init__(
        self,
        module: nn.Module,
        weights: Weights,
        family: Family,
        hyperparameters: Hyperparameters,
        gradients: Gradients,
        *,
        rows: int,
        kl_weight: float,
        warmup: int,
        hold: bool = False,
    ) -> None:
        self._module, self._weights, self._family = module, weights, family
        self._hyperparameters, self._gradients = hyperparameters, gradients
        self._rows, self._kl_weight, self._warmup = rows, kl_weight, warmup
        self._weight, self._warm, self._numbers = kl_weight, not warmup, 0
        assert isinstance(family, nn.Module)
        self._hold = hold
        parameters = weights.parameters(module).values() if hold else module.parameters()
        trained = [*parameters, *family.parameters()]
        self.parameters = [parameter for parameter in trained if parameter.requires_grad]

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood under the hyperparameters of the moment."""
        return self._hyperparameters.likelihood

    @property
    def prior(self) -> Prior:
        """The prior under the hyperparameters of the moment."""
        return self._hyperparameters.prior

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """The weight of the KL term in this epoch, and the hyperparameters as they are now."""
        if self._hold:
            for layer in self._module.modules():
                if getattr(layer, "running_mean", None) is not None:
                    layer.eval()
        self._warm = epoch + 1 >= self._warmup
        self._weight = self._kl_weight * (1.0 if self._warm else (epoch + 1) / self._warmup)
        self._numbers = 0
        self._present = self.likelihood
        self._gradients.begin_epoch(self.prior, self._weight / self._rows)

    def estimate(self, inputs: Any, targets: Tensor) -> Tensor:
        """Sets every gradient to that of the objective over N, as a minibatch of B rows tells it.

        Returns:
            The minibatch's mean of −log p(y∣f) over draws and rows.
        """
        self._numbers += targets.numel()
        for parameter in self.parameters:
            parameter.grad = None
        with torch.enable_grad():
            nll = self._gradients.accumulate(inputs, partial(self._loss, targets))
        if self._hold:
            for name, mask in self._weights.masks.items():
                gradient = self._module.get_parameter(name).grad
                if gradient is not None:
                    gradient.masked_fill_(~mask.to(gradient.device), 0.0)
        return nll

    def _loss(self, targets: Tensor, f: Tensor) -> Tensor:
        log_prob = self._present.log_prob(f.flatten(1, -2), targets.flatten(0, 1))
        return log_prob.sum() / -(f.shape[0] * f.shape[1])

    def per_row_penalty(self) -> Tensor:
        """The share of the divergence that falls on one row, w KL(q∥p)/N."""
        return self._weight * self.kl().detach() / self._rows

    def finish_epoch(self, nll: float) -> dict[str, Any]:
        """The two terms of the bound, with what has been learnt in between.

        The noise is fitted to the epoch's residuals, and prior precisions, where they are learnt, to q as it is now,
        once the KL term has its full weight.
        """
        hyperparameters = self._hyperparameters
        if hyperparameters.learns_noise:
            numbers = round(row_totals(self._numbers)[0])
            hyperparameters.fit_noise(hyperparameters.squares(nll, numbers), numbers)
        if self._warm:
            with torch.no_grad():
                hyperparameters.fit_prior(self._mean().to(torch.float64), self._family.variance())
        kl = float(self.kl().detach())
        return {"loss": nll + self._weight * kl, "nll": nll, "kl": kl, "elbo": -nll - kl, **hyperparameters.entries()}

    def kl(self) -> Tensor:
        """KL(q∥p), a float64 scalar in the graph of the parameters."""
        return kl_divergence(self._family, self._mean(), self.prior)

    def _mean(self) -> Tensor:
        return self._weights.flatten(self._weights.parameters(self._module))
