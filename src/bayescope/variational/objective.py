"""The evidence lower bound as an objective of training: its hyperparameters, and how its gradient is estimated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn

from bayescope.laplace.groups import PriorGroups
from bayescope.laplace.hyperparameters import listed, prior_precision
from bayescope.likelihoods import Likelihood, described, hyperparameters_of
from bayescope.network import Inputs, RandomWeights, Weights, passes_at
from bayescope.priors import Prior
from bayescope.reparameterization import GaussianTensor
from bayescope.training.learnt_likelihood import LearntLikelihood
from bayescope.training.objective import PriorPull, compact
from bayescope.variational.elbo import Bound
from bayescope.variational.families import Family, LogScale, kl_divergence

# From f at draws of the weights, (S, B, *positions, C), to the mean of −log p(y∣f) over draws and rows.
Loss = Callable[[Tensor], Tensor]


@final
class Hyperparameters(nn.Module):
    """The prior and the likelihood as they are now; what is learnt is in buffers, which checkpoints keep.

    For a given q the bound is highest, in closed form, at

        p_g = P_g / Σ_{i∈g} E_q[(θ_i − m_i)²],    σ² = E_q[Σ (y − f)²] / (number of outcomes).

    Args:
        prior: p(θ), or where its precisions start.
        groups: which weights share a precision that is learnt; ``None`` where the prior is given.
        learnt: p(y∣f), whose hyperparameters may be learnt.
    """

    def __init__(self, prior: Prior, groups: PriorGroups | None, learnt: LearntLikelihood) -> None:
        super().__init__()
        self._given, self._groups, self.learnt = prior, groups, learnt
        start = None if groups is None else groups.precisions(prior)
        self.register_buffer("precisions", start)

    @property
    def prior(self) -> Prior:
        """The prior under the hyperparameters of the moment."""
        if self._groups is None:
            return self._given
        return self._groups.prior(self.get_buffer("precisions"), self._given)

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood under the hyperparameters of the moment."""
        return self.learnt.likelihood

    @torch.no_grad()
    def fit_prior(self, mean: Tensor, variance: Tensor) -> None:
        """The precisions that maximise the bound for a q with these means and variances, each of shape (P,)."""
        if self._groups is None:
            return
        squares = (mean - self._given.centre(len(mean)).to(mean.device)).square() + variance
        self.get_buffer("precisions").copy_(self._groups.counts / self._groups.sums(squares))

    def refitted(self, bound: Bound | None) -> Bound | None:
        """The bound, where there is one, at the noise that is best for it, which a Gaussian has from now on.

        The noise of the last epoch is fitted to a draw or two; the bound is over many. Other hyperparameters stay.
        """
        if bound is None or "noise_variance" not in self.learnt.names:
            return bound
        before, count = self.learnt.get_buffer("noise_variance").clone(), bound.outcomes
        squares = -before * (2.0 * bound.expected_log_likelihood + count * (2.0 * torch.pi * before).log())
        noise = squares / count
        self.learnt.take(self.likelihood.with_noise_variance(noise))
        best = -0.5 * count * (1.0 + (2.0 * torch.pi * noise).log())
        error = bound.standard_error * float(before / noise)
        return replace(bound, expected_log_likelihood=best, standard_error=error)

    def entries(self) -> dict[str, Any]:
        """What a trace gets of what is learnt."""
        learnt: dict[str, Any] = {}
        if self._groups is not None:
            learnt["prior_precision"] = self.get_buffer("precisions").tolist()
        return {**learnt, **self.learnt.entries()}

    def notes(self, weights: Weights) -> dict[str, str]:
        """What the summary says of learnt hyperparameters, by title."""
        learnt = "{}, learnt from the evidence lower bound"
        if self._groups is None:
            notes = {"prior precision": prior_precision(self._given, weights)}
        else:
            named = listed(self._groups.names, self.get_buffer("precisions"))
            notes = {"prior precision": learnt.format(named)}
        found = hyperparameters_of(self.likelihood, self.learnt.names)
        return notes | described(self.likelihood) | {name: learnt.format(value) for name, value in found.items()}


class Gradients(Protocol):
    """Sets the gradient of E_q[−log p(y∣f)] + share KL(q∥p), per row, in every parameter."""

    def begin_epoch(self, prior: Prior, share: float) -> None:
        """Takes p(θ), and the weight of the KL term over N, for the steps to come."""

    def accumulate(self, inputs: Inputs, loss: Loss) -> Tensor:
        """Adds an unbiased estimate of the gradient to those of the parameters.

        Returns:
            The loss, detached.
        """


@final
class ByRow:
    """Independent weights: outputs that are drawn for each row, and the closed form of the KL term.

    Args:
        random: the random weights of the network, where they meet the data.
        weights: the same weights, in their flat order.
        scale: their sds.
        estimator: "local_reparameterization", "flipout" or "reparameterization".
        samples: S.
    """

    def __init__(self, random: RandomWeights, weights: Weights, scale: LogScale, estimator: str, samples: int) -> None:
        self._random, self._weights, self._scale = random, weights, scale
        self._estimator, self._samples = estimator, samples
        self._means = weights.parameters(random.module)
        self._of: tuple[Prior, float] | None = None

    def begin_epoch(self, prior: Prior, share: float) -> None:
        """The KL term's pull on means and sds."""
        if self._of is not None and self._of[0] is prior and self._of[1] == share:
            return
        self._of, self._share = (prior, share), share
        self._pull = PriorPull(prior, self._weights, self._means, share)
        diagonal = self._weights.unflat(share * prior.structured(self._weights.dim).diagonal())
        self._diagonal = {name: compact(diagonal[name].to(mean)) for name, mean in self._means.items()}

    def accumulate(self, inputs: Inputs, loss: Loss) -> Tensor:
        """The gradient of drawn outputs, and that of the KL term."""
        sds = self._scale.leaves()
        gaussians = {name: GaussianTensor(mean, sds[name]) for name, mean in self._means.items()}
        value = loss(self._random.passes(gaussians, inputs, estimator=self._estimator, samples=self._samples))
        value.backward()
        # KL(q∥p) has the gradient P₀ (μ − m) in the means, and diag(P₀) σ − 1/σ in the sds.
        self._pull.add_gradient()
        for name, sd in sds.items():
            gradient = torch.zeros_like(sd) if sd.grad is None else sd.grad  # none: it is not in use
            sd.grad = gradient.addcmul_(sd.detach(), self._diagonal[name])
        self._scale.carry(sds, self._share)
        return value.detach()


@final
class AtDraws:
    """Weights of any family, drawn once for all rows of a pass, and the KL term in closed form or at the same draws.

    Sticking the landing takes log q(θ) − log p(θ) at the draws for the KL term, with q held in log q. The part of the
    gradient that is left out has mean zero, and what is left vanishes draw by draw where q is the posterior (Roeder, Wu
    & Duvenaud 2017, "Sticking the landing: simple, lower-variance gradient estimators for variational inference",
    Eq. 8): the slope in θ alone, −∂log p(θ)/∂θ − Σ⁻¹(θ − μ), is carried on to μ and Σ.

    Args:
        module: the network.
        weights: which are random.
        family: how they scatter.
        samples: S.
        sticking: whether the KL term is taken at the draws.
    """

    def __init__(self, module: nn.Module, weights: Weights, family: Family, samples: int, *, sticking: bool) -> None:
        self._module, self._weights, self._family, self._samples = module, weights, family, samples
        self._sticking = sticking

    def begin_epoch(self, prior: Prior, share: float) -> None:
        """p(θ), and the weight of the KL term."""
        self._prior, self._share = prior, share
        self._precision, self._centre = prior.structured(self._weights.dim), prior.centre(self._weights.dim)

    def accumulate(self, inputs: Inputs, loss: Loss) -> Tensor:
        """The gradient at drawn weights, and that of the KL term."""
        noise = self._family.noise(self._samples)
        values = at_offsets(self._module, self._weights, noise)
        value = loss(passes_at(self._module, values, inputs))
        if self._sticking:
            theta = self._weights.flatten(values)
            kl = (self._slope(theta, noise) * theta).sum() / self._samples
        else:
            mean = self._weights.flatten(self._weights.parameters(self._module))
            kl = kl_divergence(self._family, mean, self._prior)
        (value + self._share * kl).backward()
        return value.detach()

    @torch.no_grad()
    def _slope(self, theta: Tensor, noise: Tensor) -> Tensor:
        """∂ (log q − log p)/∂θ with q held, shape (S, P)."""
        offset = theta.to(torch.float64) - self._centre.to(theta.device)
        pull: Tensor = self._precision.multiply(offset.mT).mT
        return pull.to(theta) - self._family.solve(noise)


def at_offsets(module: nn.Module, weights: Weights, noise: Tensor) -> dict[str, Tensor]:
    """The random parameters of a module moved by offsets (S, P), (S, *shape) by name, in the graph of both."""
    offsets = weights.unflat(noise)  # zero where a mask leaves entries out: those are trained as they are
    return {name: mean + offsets[name].to(mean) for name, mean in weights.parameters(module).items()}


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
        hold: whether what is not random stays unchanged: other parameters, entries that a mask leaves out, and the
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
        self._weight, self._warm = kl_weight, not warmup
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
        self._hyperparameters.learnt.begin()
        self._present = self.likelihood
        self._gradients.begin_epoch(self.prior, self._weight / self._rows)

    def estimate(self, inputs: Inputs, targets: Tensor) -> Tensor:
        """Sets every gradient to that of the objective over N, as a minibatch of B rows tells it.

        Returns:
            The minibatch's mean of −log p(y∣f) over draws and rows.
        """
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
        outputs, y = f.flatten(1, -2), targets.flatten(0, 1)
        self._hyperparameters.learnt.observe(outputs, y)
        log_prob = self._present.log_prob(outputs, y)
        return log_prob.sum() / -(f.shape[0] * f.shape[1])

    def per_row_penalty(self) -> Tensor:
        """The share of the divergence that falls on one row, w KL(q∥p)/N."""
        return self._weight * self.kl().detach() / self._rows

    def finish_epoch(self, nll: float) -> dict[str, Any]:
        """The two terms of the bound, with what has been learnt in between.

        Hyperparameters of the likelihood are fitted to the epoch's outputs, and prior precisions, where they are
        learnt, to q as it is now, once the KL term has its full weight.
        """
        hyperparameters = self._hyperparameters
        hyperparameters.learnt.refit()
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
