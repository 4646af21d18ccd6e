"""A mixture of latents: several posteriors, or several modes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from bayescope.latent.gaussian import GaussianLatent
from bayescope.latent.latent import QUANTILE_NODES, Latent, by_part, monotone_quantile
from bayescope.likelihoods import (
    Likelihood,
    Moments,
    information_of_draws,
    information_of_mixture,
    mixture_quantile,
)

# Rows whose points are made together, which bounds the memory.
ROWS_AT_ONCE = 256


@final
@dataclass(frozen=True)
class MixtureLatent(Latent):
    """A weighted mixture of latents.

    Attributes:
        log_weights: normalised, shape (K,).
        parts: the K latents, all over the same inputs.
    """

    log_weights: Tensor
    parts: Sequence[Latent]

    def shifted(self, offset: Tensor) -> MixtureLatent:
        return MixtureLatent(self.log_weights, [part.shifted(offset) for part in self.parts])

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        return self._average([part.mean for part in self.parts])

    @property
    def cov(self) -> Tensor:
        """Σ_k w_k (Cov_k + (m_k − m)(m_k − m)ᵀ)."""
        centre = self.mean
        offsets = [part.mean - centre for part in self.parts]
        return self._average(
            [part.cov + o[..., :, None] * o[..., None, :] for part, o in zip(self.parts, offsets, strict=True)]
        )

    @property
    def variance(self) -> Tensor:
        """Σ_k w_k (Var_k + (m_k − m)²)."""
        centre = self.mean
        return self._average([part.variance + (part.mean - centre).square() for part in self.parts])

    def taken(self, rows: Tensor) -> MixtureLatent:
        return MixtureLatent(self.log_weights, [part.taken(rows) for part in self.parts])

    def joined(self, others: Sequence[MixtureLatent], generator: torch.Generator) -> MixtureLatent:
        parts = zip(self.parts, *(other.parts for other in others), strict=True)
        return MixtureLatent(self.log_weights, [first.joined(rest, generator) for first, *rest in parts])

    def points(self, count: int) -> tuple[Tensor, Tensor]:
        each = [part.points(count) for part in self.parts]
        weights = [weight + inner for weight, (inner, _) in zip(self.log_weights, each, strict=True)]
        return torch.cat(weights), torch.cat([values for _, values in each])

    def of_part(self, place: int, part: Likelihood) -> MixtureLatent:
        return MixtureLatent(self.log_weights, [each.of_part(place, part) for each in self.parts])

    def moments(self, likelihood: Likelihood) -> Moments:
        """The law of total variance over the parts."""
        each = [part.moments(likelihood) for part in self.parts]
        mean = self._average([m.mean for m in each])
        epistemic = self._average([m.epistemic + (m.mean - mean).square() for m in each])
        return Moments(mean, self._average([m.aleatoric for m in each]), epistemic)

    def expected(self, likelihood: Likelihood) -> Tensor:
        return self._average([part.expected(likelihood) for part in self.parts])

    @by_part
    def mutual_information(self, likelihood: Likelihood) -> Tensor:
        """By the chain rule I(y; k) + Σ_k w_k I_k(y; f)."""
        within = self._average([part.mutual_information(likelihood) for part in self.parts])
        if likelihood.gaussian_outcome:
            sizes = [len(part.components(likelihood)[0]) for part in self.parts]
            return within + information_of_mixture(*self.components(likelihood), sizes)
        if not likelihood.discrete:
            return self._information_of_numbers(likelihood)
        outputs = self.parts[0].mean.shape[-1]
        each = torch.stack([likelihood.distributions(part.expected(likelihood), outputs) for part in self.parts])
        return within + information_of_draws(each, self.log_weights.exp()).sum(-1)

    def _log_prob(self, likelihood: Likelihood, y: Tensor) -> Tensor:
        each = torch.stack([part.log_prob(likelihood, y) for part in self.parts])
        return torch.logsumexp(each + self.log_weights[:, None], 0)

    def log_density(self, likelihood: Likelihood, y: Tensor) -> Tensor:
        each = torch.stack([part.log_density(likelihood, y) for part in self.parts])
        return torch.logsumexp(each + self.log_weights[:, None, None], 0)

    def cdf(self, likelihood: Likelihood, y: Tensor) -> Tensor:
        return self._average([part.cdf(likelihood, y) for part in self.parts])

    def conditional_entropy(self, likelihood: Likelihood) -> Tensor:
        return self._average([part.conditional_entropy(likelihood) for part in self.parts])

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Each draw from a part chosen by weight."""
        chosen = torch.multinomial(self.log_weights.exp().cpu(), n, replacement=True, generator=generator)
        draws = [part.sample(int((chosen == k).sum()), generator) for k, part in enumerate(self.parts)]
        return torch.cat(draws)[torch.randperm(n, generator=generator)]

    def quantile(self, level: float) -> Tensor:
        """The mixture's quantile of each output, each part taken as a Gaussian by its two moments."""
        means = torch.stack([part.mean for part in self.parts])
        variances = torch.stack([part.variance for part in self.parts])
        return mixture_quantile(self.log_weights, means, variances, level)

    def expected_quantile(self, likelihood: Likelihood, level: float) -> Tensor:
        """Exact for Gaussians where each column is monotone in one output; else over the points of all parts.

        A row's quantile must not depend on the rows beside it, as it would over draws with a fixed seed.
        """
        if likelihood.domain.elementwise and all(isinstance(part, GaussianLatent) for part in self.parts):
            return monotone_quantile(self, likelihood, level)
        blocks = []
        for rows in torch.arange(len(self.mean), device=self.mean.device).split(ROWS_AT_ONCE):
            log_weights, values = self.taken(rows).points(QUANTILE_NODES)
            ordered = likelihood.conditional(values)[0].sort(0)
            below = log_weights.exp()[ordered.indices].cumsum(0) < level
            blocks.append(ordered.values.gather(0, below.sum(0, keepdim=True).clamp_max(len(values) - 1))[0])
        return torch.cat(blocks)

    def components(self, likelihood: Likelihood) -> tuple[Tensor, Tensor, Tensor]:
        """The Gaussians of all parts, weighted by the parts."""
        each = [part.components(likelihood) for part in self.parts]
        weights = torch.cat([w + log_weights for w, (log_weights, _, _) in zip(self.log_weights, each, strict=True)])
        return weights, torch.cat([mean for _, mean, _ in each]), torch.cat([variance for _, _, variance in each])

    def integration_error(self, likelihood: Likelihood) -> Tensor:
        """Σ_k w_k e_k: a bound, as parts may share nodes."""
        return self._average([part.integration_error(likelihood) for part in self.parts])

    def pooled(self, rows: Tensor, nodes: MixtureLatent, owners: Tensor) -> MixtureLatent:
        parts = [part.pooled(rows, other, owners) for part, other in zip(self.parts, nodes.parts, strict=True)]
        return MixtureLatent(self.log_weights, parts)

    def _average(self, values: Sequence[Tensor]) -> Tensor:
        return torch.tensordot(self.log_weights.exp(), torch.stack(list(values)), dims=1)
