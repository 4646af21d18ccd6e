"""The point posterior: all mass on one value of the weights, as in a MAP fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from bayescope.curvature.memory import draw_count
from bayescope.errors import UndefinedQuantityError
from bayescope.latent import DrawsLatent
from bayescope.likelihoods import Likelihood
from bayescope.models import Model
from bayescope.posterior.missing import TableReader
from bayescope.posterior.posterior import Answer, Options, Posterior, in_rows
from bayescope.posterior.record import Record
from bayescope.priors import Prior
from bayescope.storage import stored


@stored("point_posterior")
@final
@dataclass(frozen=True, eq=False, repr=False)
class PointPosterior(Posterior):
    """q(θ) = δ(θ − location): it predicts with no epistemic part.

    Attributes:
        location: the point, shape (P,).
        record: how it was found.
        function: f(x, θ), for predictions.
        likelihood: p(y∣f).
        reader: makes the model's inputs of an estimator's tables; ``None`` where x is given as the model takes it.
    """

    location: Tensor
    record: Record
    function: Model | None = None
    likelihood: Likelihood | None = None
    reader: TableReader | None = None

    @property
    def mean(self) -> Tensor:
        return self.location.clone()

    @property
    def covariance(self) -> Tensor:
        return self.location.new_zeros(self.location.shape[0], self.location.shape[0])

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of weights, in a tuple of one."""
        return (self.location.shape[0],)

    def sample(self, n: int = 1, *, generator: torch.Generator | int | None = None) -> Tensor:
        """The point n times, shape (n, P)."""
        return self.location.expand(draw_count(n, *self.sizes), -1).clone()

    def _latent(self, x: Any, function: Model, likelihood: Likelihood, options: Options) -> Answer:
        options.refuse_integration("a point")
        options.refuse_samples("a point has no draws")
        values, shape = in_rows(function.forward(function.inputs(x), self.location)[None], 1)
        return Answer(DrawsLatent(values), "at one point: no epistemic part", shape)

    def _functions(self, x: Any, function: Model, n: int, generator: torch.Generator) -> Tensor:
        return torch.stack([function.forward(function.inputs(x), self.location)] * n)

    def _as_prior(self) -> Prior:
        raise UndefinedQuantityError("condition: a point cannot be a prior; a Gaussian posterior can.")

    def _chains(self, draws: int, generator: torch.Generator) -> Tensor:
        return self.sample(draws)[None]
