"""Posteriors that predict by f at some weights: draws of them, one point, or passes of a random network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn, final

import torch
from torch import Tensor

from bayescope import checks
from bayescope.errors import UnsupportedError
from bayescope.latent import DrawsLatent
from bayescope.likelihoods import Likelihood
from bayescope.memory import draw_count
from bayescope.models import LinearizedModel, Model
from bayescope.network.inputs import Inputs
from bayescope.network.model import NetworkModel
from bayescope.posterior.answer import Answer, Options, in_rows
from bayescope.posterior.joint import JointLatent, of_draws
from bayescope.posterior.missing import TableReader
from bayescope.posterior.posterior import Posterior
from bayescope.posterior.record import Record
from bayescope.posterior.weight_tables import ends_of_draws
from bayescope.storage import stored

DEFAULT_PASSES = 100


@stored("draws_posterior")
@final
@dataclass(frozen=True, eq=False, repr=False)
class DrawsPosterior(Posterior):
    """q(θ) as equally weighted draws.

    Where the function is a `LinearizedModel`, `predict` reads it as that by default, method="linearized", and the model
    itself at the drawn weights with method="sampled".

    Attributes:
        draws: in the user's coordinates, shape (chains, draws, P).
        record: how they were made.
        function: f(x, θ), for predictions.
        likelihood: p(y∣f).
        r_hat: the rank-normalised split R-hat of each coordinate, shape (P,), or ``None`` where chains make no sense.
        effective_draws: the bulk effective sample size of each coordinate, shape (P,), or ``None``.
        divergences: how many draws followed a diverging trajectory.
        prediction_r_hat: R-hat of E(y∣f) at some inputs, shape (N, K), for networks: their weights are not identified,
            so that chains which agree on every prediction may be far apart.
        prediction_effective_draws: the bulk effective sample size of the same.
        statistics: what the sampler reports of each draw, shape (chains, draws), by ArviZ's names, such as "diverging".
        scales: of a sparse prior: τ as "global_scale", shape (chains, draws), and λ as "local_scale", shape (chains,
            draws, D), for weights of the model's inputs.
        reader: makes the model's inputs of an estimator's tables; ``None`` where x is given as the model takes it.
    """

    draws: Tensor
    record: Record
    function: Model | None = None
    likelihood: Likelihood | None = None
    r_hat: Tensor | None = None
    effective_draws: Tensor | None = None
    divergences: int = 0
    prediction_r_hat: Tensor | None = None
    prediction_effective_draws: Tensor | None = None
    statistics: Mapping[str, Tensor] = field(default_factory=dict)
    scales: Mapping[str, Tensor] = field(default_factory=dict)
    reader: TableReader | None = None

    @property
    def flat(self) -> Tensor:
        """All chains' draws, shape (S, P)."""
        return self.draws.flatten(0, 1)

    @property
    def mean(self) -> Tensor:
        """The average of the draws, shape (P,)."""
        return self.flat.mean(0)

    @property
    def covariance(self) -> Tensor:
        """The draws' sample covariance, shape (P, P)."""
        centred = self.flat - self.mean
        return centred.mT @ centred / (centred.shape[0] - 1)

    @property
    def sd(self) -> Tensor:
        """The draws' sample standard deviations, shape (P,)."""
        return self.flat.std(0)

    def _ends(self, tail: float) -> tuple[Tensor, Tensor]:
        return ends_of_draws(self.flat, tail)

    def _diagnosis(self) -> Mapping[str, Tensor]:
        columns = {"effective_draws": self.effective_draws, "r_hat": self.r_hat}
        return {name: values for name, values in columns.items() if values is not None}

    @property
    def _several_networks(self) -> bool:
        """Draws about the one mode of a tangent are of one network."""
        return isinstance(self.function, NetworkModel)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of weights, in a tuple of one."""
        return (self.draws.shape[-1],)

    def sample(self, n: int = 1, *, generator: torch.Generator | int | None = None) -> Tensor:
        """n of the draws, with replacement, shape (n, P)."""
        source = checks.generator(generator)
        chosen = torch.randint(self.flat.shape[0], (draw_count(n, *self.sizes),), generator=source)
        return self.flat[chosen.to(self.draws.device)]

    def _latent(self, x: object, function: Model, likelihood: Likelihood, options: Options) -> Answer:
        if isinstance(function, LinearizedModel):  # the draws are weights of the tangent, and of the model itself
            function = function.model if options.method == "sampled" else function
            options = options._replace(method=None)
        options.refuse_integration(f"draws by {self.record.method}")
        theta = self.flat if options.samples is None else self.sample(options.samples, generator=options.generator)
        values, shape = in_rows(function.forward(function.inputs(x), theta), 1)
        return Answer(DrawsLatent(values), f"{theta.shape[0]} draws of the weights", shape)

    def _joint(self, x: object, function: Model, blocks: int) -> JointLatent:
        return of_draws(function.forward(function.inputs(x), self.flat), blocks)

    def _chains(self, draws: int, generator: torch.Generator) -> Tensor:
        return self.draws


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
    def sd(self) -> Tensor:
        return torch.zeros_like(self.location)

    def _ends(self, tail: float) -> tuple[Tensor, Tensor]:
        raise self.record.undefined(
            "interval", "is one point, which does not tell how far its weights are known. Take a Gaussian posterior, "
            "such as laplace's."
        )  # fmt: skip

    def _spread(self, level: float) -> tuple[Tensor, Tensor, Tensor]:
        checks.fraction("level", level)
        unknown = torch.full_like(self.location, torch.nan)
        return unknown, unknown, unknown

    def sample(self, n: int = 1, *, generator: torch.Generator | int | None = None) -> Tensor:
        """The point n times, shape (n, P)."""
        return self.location.expand(draw_count(n, *self.sizes), -1).clone()

    def _latent(self, x: object, function: Model, likelihood: Likelihood, options: Options) -> Answer:
        options.refuse_integration("a point")
        options.refuse_samples("a point has no draws")
        values, shape = in_rows(function.forward(function.inputs(x), self.location)[None], 1)
        return Answer(DrawsLatent(values), "at one point: no epistemic part", shape)

    def _joint(self, x: object, function: Model, blocks: int) -> JointLatent:
        return of_draws(function.forward(function.inputs(x), self.location)[None], blocks)


# f in n passes through a network at inputs x, shape (n, N, *positions, C), float64, called with x, n and a generator;
# what is random is the same for all rows of a pass.
RandomPasses = Callable[[Inputs, int, torch.Generator], Tensor]


@stored("implicit_posterior")
@final
@dataclass(frozen=True, eq=False, repr=False)
class ImplicitPosterior(Posterior):
    """q(θ) that can be drawn functions from, and nothing else.

    Attributes:
        location: E[θ], the weights with nothing random, shape (P,).
        passes: draws functions.
        record: how it was made.
        function: f(x, θ) with nothing random.
        likelihood: p(y∣f).
        reader: makes the model's inputs of an estimator's tables; ``None`` where x is given as the model takes it.
    """

    location: Tensor
    passes: RandomPasses
    record: Record
    function: Model
    likelihood: Likelihood
    reader: TableReader | None = None

    @property
    def mean(self) -> Tensor:
        """E[θ], shape (P,): the weights with nothing random."""
        return self.location.clone()

    @property
    def covariance(self) -> Tensor:
        """Not known.

        Raises:
            UndefinedQuantityError: always.
        """
        self._refuse("covariance")

    @property
    def sd(self) -> Tensor:
        """Not known.

        Raises:
            UndefinedQuantityError: always.
        """
        self._refuse("sd")

    def _ends(self, tail: float) -> tuple[Tensor, Tensor]:
        self._refuse("interval")

    def sample(self, n: int = 1, *, generator: torch.Generator | int | None = None) -> Tensor:
        """Not known.

        Raises:
            UndefinedQuantityError: always; `sample_functions` draws what there is.
        """
        self._refuse("sample")

    def _latent(self, x: object, function: Model, likelihood: Likelihood, options: Options) -> Answer:
        options.refuse_integration(f"passes by {self.record.method}")
        if options.differentiable:
            self._with_graph()
        n = options.samples or DEFAULT_PASSES
        values, shape = in_rows(self.passes(function.inputs(x), n, options.generator), 1)
        return Answer(DrawsLatent(values), f"{n} random passes", shape)

    def _functions(self, x: object, function: Model, n: int, generator: torch.Generator) -> Tensor:
        return self.passes(function.inputs(x), n, generator)

    def _with_graph(self) -> NoReturn:
        raise UnsupportedError(
            f"differentiable: expected False for a posterior by {self.record.method}, got True. Take a Gaussian "
            "posterior, such as laplace's or variational's."
        )

    def _refuse(self, quantity: str) -> NoReturn:
        raise self.record.undefined(quantity, "draws functions, not weights. Ask for predict or sample_functions.")
