"""The Bradley–Terry likelihood of pairwise preferences: which of two items has the larger reward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from bayescope.errors import InputError
from bayescope.likelihoods.bernoulli import Bernoulli, DifferenceIntegral
from bayescope.likelihoods.curvatures import RootedLambdas
from bayescope.likelihoods.likelihood import Domain, Likelihood
from bayescope.likelihoods.targets import labels_in_rows
from bayescope.storage import stored

_LOGIT = Bernoulli("logit")


@stored("bradley_terry")
@final
@dataclass(frozen=True)
class BradleyTerry(Likelihood):
    """p(y = 1∣f) = σ(f₁ − f₀) for the rewards f = (f₀, f₁) of two items, y the index of the preferred one.

    Bradley & Terry (1952). It is the logit Bernoulli of the difference, and depends on nothing else: a reward common to
    both items changes no answer, and Λ = p(1 − p) ((1, −1), (−1, 1)) has rank one. Canonical targets are int64 of shape
    (N,); the K = 2 outcome columns are the indicators of the two items. The integrals over f ~ N(mean, cov) are the
    Bernoulli's over f₁ − f₀.
    """

    name = "bradley_terry"
    domain = Domain("classes", elementwise=False)
    integrals = {name: DifferenceIntegral(each) for name, each in _LOGIT.integrals.items()}  # noqa: RUF012

    def targets(self, y: Any, outputs: int) -> Tensor:
        """Checks labels of 0 and 1 and returns them in int64, shape (N,).

        Args:
            y: shape (N,) or (N, 1): the index of the preferred item.
            outputs: 2.

        Raises:
            InputError: if there are not two rewards, or a label is neither 0 nor 1.
        """
        if outputs != 2:
            raise InputError(
                f"outputs: expected the rewards of two items, got {outputs}. bayescope.layers.Pairwise(reward) gives "
                "both from a model of one."
            )
        return _LOGIT.targets(labels_in_rows(y, "the preferred item of each pair,"), 1)[:, 0].to(torch.int64)

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return _LOGIT.log_prob(f.diff(), y[..., None])

    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        slope = _LOGIT.gradient(f.diff(), y[..., None])
        return torch.cat([-slope, slope], -1)

    def expected(self, f: Tensor) -> RootedLambdas:
        root = _LOGIT.fisher_sqrt(f.diff())
        return RootedLambdas(torch.cat([-root, root], -2))

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        return _LOGIT.sample(f.diff(), generator)[..., 0].to(torch.int64)

    def conditional(self, f: Tensor) -> tuple[Tensor, Tensor]:
        return _LOGIT.conditional(f.diff())
