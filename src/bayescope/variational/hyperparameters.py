"""p(θ) and p(y∣f) of a variational training: what is given, and what is learnt beside q."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, final

import torch
from torch import Tensor, nn

from bayescope.laplace.groups import PriorGroups
from bayescope.laplace.hyperparameters import listed, prior_precision
from bayescope.likelihoods import Likelihood
from bayescope.network.weights import Weights
from bayescope.priors import Prior
from bayescope.variational.elbo import Bound


@final
class Hyperparameters(nn.Module):
    """The prior and the likelihood as they are now; what is learnt is in buffers, which checkpoints keep.

    For a given q the bound is highest, in closed form, at

        p_g = P_g / Σ_{i∈g} E_q[(θ_i − m_i)²],    σ² = E_q[Σ (y − f)²] / (number of outcomes).

    Args:
        prior: p(θ), or where its precisions start.
        groups: which weights share a precision that is learnt; ``None`` where the prior is given.
        likelihood: p(y∣f).
        noise_variance: where the noise of a Gaussian likelihood starts that is to be learnt; else ``None``.
    """

    def __init__(
        self, prior: Prior, groups: PriorGroups | None, likelihood: Likelihood, noise_variance: Tensor | None
    ) -> None:
        super().__init__()
        self._given, self._groups, self._likelihood = prior, groups, likelihood
        start = None if groups is None else groups.precisions(prior)
        self.register_buffer("precisions", start)
        self.register_buffer("noise_variance", noise_variance)

    @property
    def prior(self) -> Prior:
        """The prior under the hyperparameters of the moment."""
        if self._groups is None:
            return self._given
        return self._groups.prior(self.get_buffer("precisions"), self._given)

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood under the hyperparameters of the moment."""
        if not self.learns_noise:
            return self._likelihood
        return self._likelihood.with_noise_variance(self.get_buffer("noise_variance"))

    @property
    def learns_noise(self) -> bool:
        """Whether the noise is learnt."""
        return self._buffers["noise_variance"] is not None

    @torch.no_grad()
    def fit_prior(self, mean: Tensor, variance: Tensor) -> None:
        """The precisions that maximise the bound for a q with these means and variances, each of shape (P,)."""
        if self._groups is None:
            return
        squares = (mean - self._given.centre(len(mean)).to(mean.device)).square() + variance
        self.get_buffer("precisions").copy_(self._groups.counts / self._groups.sums(squares))

    @torch.no_grad()
    def fit_noise(self, squares: Tensor | float, numbers: int) -> None:
        """The noise variance that maximises the bound.

        Args:
            squares: E_q[Σ (y − f)²].
            numbers: how many outcomes the sum is over.
        """
        if self.learns_noise:
            self.get_buffer("noise_variance").copy_(torch.as_tensor(squares) / numbers)

    def squares(self, nll: float, numbers: int) -> float:
        """E_q[Σ (y − f)²], from the sum of −log p(y∣f) under the present noise."""
        noise = self.get_buffer("noise_variance")
        return float(noise * (2.0 * nll - numbers * (2.0 * torch.pi * noise).log()))

    def refitted(self, bound: Bound | None) -> Bound | None:
        """The bound, where there is one, at the noise that is best for it, which the likelihood has from now on.

        The noise of the last epoch is fitted to a draw or two; the bound is over many.
        """
        if bound is None or not self.learns_noise:
            return bound
        before = float(self.get_buffer("noise_variance"))
        self.fit_noise(self.squares(-float(bound.expected_log_likelihood), bound.outcomes), bound.outcomes)
        noise = self.get_buffer("noise_variance")
        best = -0.5 * bound.outcomes * (1.0 + (2.0 * torch.pi * noise).log())
        return replace(
            bound, expected_log_likelihood=best, standard_error=bound.standard_error * before / float(noise)
        )  # fmt: skip

    def entries(self) -> dict[str, Any]:
        """What a trace gets of what is learnt."""
        learnt: dict[str, Any] = {}
        if self._groups is not None:
            learnt["prior_precision"] = self.get_buffer("precisions").tolist()
        if self.learns_noise:
            learnt["noise_variance"] = float(self.get_buffer("noise_variance"))
        return learnt

    def notes(self, weights: Weights) -> dict[str, str]:
        """What the summary says of learnt hyperparameters, by title."""
        learnt = "{}, learnt from the evidence lower bound"
        if self._groups is None:
            notes = {"prior precision": prior_precision(self._given, weights)}
        else:
            named = listed(self._groups.names, self.get_buffer("precisions"))
            notes = {"prior precision": learnt.format(named)}
        notes["likelihood"] = self._likelihood.name
        if self.learns_noise:
            notes["noise variance"] = learnt.format(f"{float(self.get_buffer('noise_variance')):.4g}")
        elif isinstance(self._likelihood.noise_variance, Tensor):
            values = self._likelihood.noise_variance.reshape(-1).tolist()
            notes["noise variance"] = ", ".join(f"{value:.4g}" for value in values)
        return notes
