"""The Gaussian posterior: a mean and a structured precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError, UndefinedQuantityError
from bayescope.latent import DrawsLatent, GaussianLatent
from bayescope.likelihoods import Likelihood
from bayescope.likelihoods.mixtures import normal_quantile
from bayescope.memory import draw_count, require_memory
from bayescope.models import LinearizedModel, Model
from bayescope.posterior.answer import Answer, Options, as_points, check_sizes, in_rows
from bayescope.posterior.cone import Cone
from bayescope.posterior.joint import JointLatent, linearized
from bayescope.posterior.missing import TableReader
from bayescope.posterior.posterior import Evidence, Posterior
from bayescope.posterior.record import Record
from bayescope.posterior.weight_tables import ends_of_draws
from bayescope.precision import Precision, weight_draws
from bayescope.priors import Prior, log_normal
from bayescope.storage import stored
from bayescope.top_classes import Representatives, Together, TopClasses, top_classes
from bayescope.transforms import (
    Transform,
    constrained_dim,
    elementwise,
    free_coordinates,
    ordered_ends,
    pushforward_moments,
)

DEFAULT_SAMPLES = 1000
# Covariances of the outputs of all rows that take more are not computed where their diagonals are all that is needed.
COVARIANCE_BYTES = 256 * 2**20
# The identity, what is solved for half way, and the covariance of all weights.
MOMENT_MATRICES = 3
# An integral over f takes this many matrices like its covariance at once.
COVARIANCES = 4
# Draws whose quantiles are the ends of intervals that have no closed form: off by about 0.02 sd for 95 %.
INTERVAL_DRAWS = 2**14
# Up to this many classes the top ones are those of a prediction of all of them.
EVERY_CLASS = 256


@stored("gaussian_posterior", possible=("infer", "fit"), lost="lost")
@final
@dataclass(frozen=True, eq=False, repr=False)
class GaussianPosterior(Posterior):
    """q(u) = N(location, precision⁻¹), with θ = u or θ = transform.forward(u).

    With a transform that has fewer coordinates u than θ has, such as "simplex", the density of θ is one over the free
    coordinates of θ, which determine the others; the covariance of θ is singular.

    Attributes:
        location: the Gaussian's mean in unconstrained coordinates u.
        precision: its precision there.
        record: how it was made.
        function: f(x, θ), for predictions.
        likelihood: p(y∣f).
        transform: from unconstrained to the user's coordinates; ``None`` where they are the same.
        infer: the inference that made it, as a function of the prior and the data: what `condition` calls again.
        fit: what the evidence is computed from, as a function of the prior precision and the noise.
        method: how f is read unless `predict` has another method: "linearized", as Laplace's expansion is made for,
            or "sampled", for a q(θ) that was fitted to f itself.
        lost: which of ``infer`` and ``fit`` a file could not hold.
        reader: makes the model's inputs of an estimator's tables; ``None`` where x is given as the model takes it.
        cones: what carries draws to where no bounded weight is negative, with the Gaussian's mean and covariance.
    """

    location: Tensor
    precision: Precision
    record: Record
    function: Model | None = None
    likelihood: Likelihood | None = None
    transform: Transform | None = None
    infer: Callable[..., Posterior] | None = None
    fit: Evidence | None = None
    method: str = "linearized"
    lost: tuple[str, ...] = ()
    reader: TableReader | None = None
    cones: tuple[Cone, ...] = ()

    @property
    def mean(self) -> Tensor:
        """E_q[θ], shape (P,): by the change of variables, so not the mode's image under a transform."""
        return (self.location if self.transform is None else self._moments[0]).clone()

    @property
    def covariance(self) -> Tensor:
        """The covariance Cov_q[θ] as a matrix, shape (P, P)."""
        return self._moments[1].clone()

    @property
    def sd(self) -> Tensor:
        """The square root of the covariance's diagonal, shape (P,), from the precision's own structure."""
        variance = self.precision.marginal_variance() if self.transform is None else self._moments[1].diagonal()
        return variance.sqrt()

    def _ends(self, tail: float) -> tuple[Tensor, Tensor]:
        reach = normal_quantile(1.0 - tail) * self.precision.marginal_variance().sqrt()
        low, high = self.location - reach, self.location + reach
        if self.transform is not None:
            low, high = ordered_ends(self.transform, low, high)
        drawn = self._dependent
        if len(drawn):
            low[drawn], high[drawn] = ends_of_draws(self._drawn_weights(drawn), tail)
        return low, high

    @property
    def _dependent(self) -> Tensor:
        """The weights whose distribution is no function of one Gaussian coordinate alone, flat positions, (K,)."""
        alone = torch.ones(self.sizes[0], dtype=torch.bool, device=self.location.device)
        if self.transform is not None:
            alone = elementwise(self.transform, self.sizes[0]).to(alone.device)
        for cone in self.cones:
            alone[cone.weights] = alone[cone.among] = False
        return torch.nonzero(~alone)[:, 0]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of weights, in a tuple of one."""
        return (constrained_dim(self.transform, self.precision.dim),)

    def sample(self, n: int = 1, *, generator: torch.Generator | int | None = None) -> Tensor:
        """location + R z with R Rᵀ = precision⁻¹, shape (n, P), carried through the transform and onto the cones."""
        return torch.cat(list(self._drawn(draw_count(n, *self.sizes), checks.generator(generator))))

    def log_prob(self, theta: ArrayLike) -> Tensor:
        """log q(θ) in the user's coordinates, shape (...) for θ of shape (..., P).

        With a transform, log q(θ) = log N(u; location, precision⁻¹) − log∣∂θ/∂u∣ at u = transform.inverse(θ).

        Raises:
            UndefinedQuantityError: if some weights are bounded: they are 0 with a probability, and have no density.
        """
        if self.cones:
            raise UndefinedQuantityError(
                "log_prob: expected weights with a density, got some that are at least 0, and 0 with a probability. "
                "Ask for mean, covariance or draws."
            )
        point = as_points(theta, self.sizes[0], self.location.device)
        u = point if self.transform is None else self.transform.inverse(point)
        density = log_normal(u - self.location, self.precision)
        return density if self.transform is None else density - self.transform.log_jacobian(u)

    def _latent(self, x: object, function: Model, likelihood: Likelihood, options: Options) -> Answer:
        integral, x = likelihood.integral(options.integral, function.outputs), function.inputs(x)
        if (options.method or self._usual(options)) == "sampled":
            if options.integral is not None:
                raise InputError("integral: sampled weights leave nothing to integrate. Leave it out, or linearize.")
            samples = options.samples or DEFAULT_SAMPLES
            f = self._sampled(x, function, samples, options.generator)
            values, shape = in_rows(f, 1)
            return Answer(DrawsLatent(values), f"sampled, {samples} draws of the weights", shape)
        function = function.opened(x, self.location)
        mean, shape = in_rows(function.forward(x, self.location), 0)
        if integral != "monte_carlo":
            options.refuse_samples(f"the {integral} integral draws nothing")
        marginal = not likelihood.needs_covariance(integral)
        many = options.top is not None and mean.shape[-1] > EVERY_CLASS
        if many and not (marginal and function.is_last_layer(x, self.location)):
            return self._top(x, function, likelihood, mean, shape, integral, options)
        rows, outputs = len(mean) + options.before, mean.shape[-1]
        if marginal and 8 * rows * outputs**2 > COVARIANCE_BYTES:
            variance = function.variance(x, self.location, self.precision).flatten(0, -2)
            check_sizes("variances", variance, limit=checks.FARTHEST**2)
            return Answer(GaussianLatent(mean, variance, integral), f"linearized, {integral} integral", shape)
        require_memory(
            COVARIANCES * 8 * rows * outputs**2,
            f"the covariances of {rows:,} rows of {outputs:,} outputs, and the integral over them,",
            "Take integral='mackay', which needs variances alone, top= for the most probable classes, or fewer rows at "
            "once.",
            device=mean.device,
        )
        cov = function.covariance(x, self.location, self.precision).flatten(0, -3)
        check_sizes("variances", cov, limit=checks.FARTHEST**2)
        return Answer(*_integrated(GaussianLatent(mean, cov, integral), options), shape)

    def _top(
        self,
        x: Any,
        function: Model,
        likelihood: Likelihood,
        mean: Tensor,
        shape: tuple[int, ...],
        integral: str,
        options: Options,
    ) -> Answer:
        """The top classes, the others taken together: as one output more, or for "mackay" with one variance."""
        assert options.top is not None
        classes = top_classes(mean, options.top)
        last = function.is_last_layer(x, self.location)
        variance = function.variance(x, self.location, self.precision).flatten(0, -2) if last else None
        others = Representatives.of(mean, classes, variance)
        asked = torch.cat([classes, others.classes], -1).unflatten(0, shape)
        found = function.covariance(x, self.location, self.precision, asked).flatten(0, -3)
        check_sizes("variances", found, limit=checks.FARTHEST**2)
        together = Together(mean, classes, others, found)
        rest = f"the other {mean.shape[-1] - options.top:,} classes taken together"
        if not likelihood.needs_covariance(integral):
            top = TopClasses(classes, classes, together.chosen)
            return Answer(together.marginals(integral), f"linearized, {integral} integral, {rest}", shape, top)
        joined, note = _integrated(together.gaussian(integral), options)
        columns = torch.arange(options.top, device=classes.device).expand(classes.shape)
        return Answer(joined, f"{note}, {rest}", shape, TopClasses(columns, classes, together.chosen))

    def _sampled(self, x: object, function: Model, n: int, generator: torch.Generator) -> Tensor:
        if not self.cones:
            return function.sampled(x, self.location, self.precision, n, generator)
        return torch.cat([function.forward(x, some) for some in self._drawn(n, generator)])

    def _functions(self, x: object, function: Model, n: int, generator: torch.Generator) -> Tensor:
        read, x = self._at_draws(function), function.inputs(x)
        return torch.cat([read.forward(x, some) for some in self._drawn(n, generator)])

    def _joint(self, x: object, function: Model, blocks: int) -> JointLatent:
        return linearized(function, function.inputs(x), self.location, self.precision, blocks)

    def _at_draws(self, function: Model) -> Model:
        return LinearizedModel(function, self.location) if self.method == "linearized" else function

    def _as_prior(self) -> Prior:
        return Prior(self.precision, self.location)

    def _drawn(self, n: int, generator: torch.Generator) -> Iterator[Tensor]:
        """n draws of θ, some at a time: of a large network all of them may be too many."""
        for u in weight_draws(self.location, self.precision, n, generator):
            for cone in self.cones:
                u = cone.forward(u)  # noqa: PLW2901
            yield u if self.transform is None else self.transform.forward(u)

    def _drawn_weights(self, places: Tensor) -> Tensor:
        """`INTERVAL_DRAWS` draws of some weights, shape (S, K), the same each time."""
        count = draw_count(INTERVAL_DRAWS, len(places))
        return torch.cat([some[:, places] for some in self._drawn(count, checks.generator(0))])

    def _usual(self, options: Options) -> str:
        """How f is read by default: an integral over a Gaussian f asks for one."""
        return self.method if options.integral is None else "linearized"

    def _check_stored(self) -> None:
        if self.transform is None:
            super()._check_stored()
            return
        free = len(free_coordinates(self.transform, self.precision.dim))
        parameters = self.record.parameters
        named = self.sizes[0] if parameters is None else parameters.dim
        if not tuple(self.location.shape) == (self.precision.dim,) == (free,) or (named,) != self.sizes:
            raise InputError(
                f"posterior: expected parts over the same weights, got {free} of the transform, {self.precision.dim} "
                f"of the precision, a location of shape {tuple(self.location.shape)}, and names for {named} of "
                f"{self.sizes[0]} coordinates."
            )

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor]:
        dim = self.precision.dim
        require_memory(
            MOMENT_MATRICES * 8 * dim**2,
            f"a covariance of {dim:,} × {dim:,} numbers",
            "Ask for predictions, or for draws of the weights.",
        )
        covariance = self.precision.solve(torch.eye(dim, dtype=torch.float64, device=self.location.device))
        if self.transform is None:
            return self.location, covariance
        return pushforward_moments(self.transform, self.location, covariance)


def _integrated(latent: GaussianLatent, options: Options) -> tuple[GaussianLatent, str]:
    """The latent, with draws of f where these are its integral, and a note of how it is integrated."""
    if latent.integral != "monte_carlo":
        return latent, f"linearized, {latent.integral} integral"
    samples = options.samples or DEFAULT_SAMPLES
    return latent.with_draws(samples, options.generator), f"linearized, monte_carlo with {samples} draws"
