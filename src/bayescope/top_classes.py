"""A latent of which a few outputs a row are asked for: the most probable of very many classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, final

import torch
from torch import Tensor

from bayescope.errors import UnsupportedError
from bayescope.latent import Latent
from bayescope.likelihoods import Likelihood, Moments
from bayescope.models import among, among_pairs


@final
@dataclass(frozen=True)
class TopLatent:
    """The distribution of some outputs of each row, which are integrated together with all others.

    The classes of a row are those of its K largest E[f], the largest first.

    Attributes:
        whole: what is integrated: all C outputs of a row, or its K and one more that stands for the others.
        columns: where a row's K outputs are in it, int64 of shape (N, K).
        classes: which classes they are, int64 of shape (N, K).
    """

    whole: Latent
    columns: Tensor
    classes: Tensor

    @classmethod
    def of(cls, whole: Latent, top: int) -> TopLatent:
        """The top classes of a latent of all outputs."""
        classes = top_classes(whole.mean, top)
        return cls(whole, classes, classes)

    @property
    def mean(self) -> Tensor:
        """E[f], shape (N, K)."""
        return among(self.whole.mean, self.columns)

    @property
    def cov(self) -> Tensor:
        """Cov[f] per row, shape (N, K, K)."""
        return among_pairs(self.whole.cov, self.columns)

    @property
    def variance(self) -> Tensor:
        """The diagonal of `cov`, shape (N, K)."""
        return among(self.whole.variance, self.columns)

    def moments(self, likelihood: Likelihood) -> Moments:
        """Moments of the K classes' indicators, each (N, K): they do not add up to 1."""
        whole = self.whole.moments(likelihood)
        return Moments(*(among(part, self.columns) for part in (whole.mean, whole.aleatoric, whole.epistemic)))

    def mutual_information(self, likelihood: Likelihood) -> Tensor:
        """That of what is integrated, shape (N,)."""
        return self.whole.mutual_information(likelihood)

    def log_prob(self, likelihood: Likelihood, y: Tensor) -> Tensor:
        """Refused: it may be that of a class that is not among them."""
        refuse_all_classes("log_prob")

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Refused: a label may be one that is not among them."""
        refuse_all_classes("sample")

    def quantile(self, level: float) -> Tensor:
        """The quantile of each output, shape (N, K)."""
        return among(self.whole.quantile(level), self.columns)

    def expected_quantile(self, likelihood: Likelihood, level: float) -> Tensor:
        """The quantile of the classes' probabilities, shape (N, K)."""
        return among(self.whole.expected_quantile(likelihood, level), self.columns)

    def components(self, likelihood: Likelihood) -> tuple[Tensor, Tensor, Tensor]:
        """Refused, as of a label."""
        return self.whole.components(likelihood)

    def integration_error(self, likelihood: Likelihood) -> Tensor:
        """That of the classes' probabilities, shape (N, K)."""
        return among(self.whole.integration_error(likelihood), self.columns)


def top_classes(mean: Tensor, top: int) -> Tensor:
    """The classes of the largest outputs (N, C), int64 of shape (N, K)."""
    return mean.detach().topk(top, -1).indices


def others(mean: Tensor, classes: Tensor) -> Tensor:
    """log Σ exp f_c over the classes that are not chosen, shape (N, 1)."""
    return mean.scatter(-1, classes, -torch.inf).logsumexp(-1, keepdim=True)


def refuse_all_classes(name: str) -> NoReturn:
    """Refuses what a few of the classes do not tell.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError(
        f"{name}: expected a prediction of all classes, got the most probable ones alone. Predict without top=."
    )
