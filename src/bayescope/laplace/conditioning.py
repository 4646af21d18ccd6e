"""More data: the posterior becomes the prior, the mode moves, and Laplace's approximation is made anew."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from bayescope.errors import InputError, ProcessError, UnsupportedError
from bayescope.laplace.fit import LaplaceFit
from bayescope.laplace.mode import read_slope
from bayescope.laplace.options import LaplaceOptions
from bayescope.module_copies import module_copy
from bayescope.network.batches import Batches
from bayescope.network.model import NetworkModel
from bayescope.posterior import GaussianPosterior
from bayescope.priors import Prior
from bayescope.process_state import outside_inference_mode
from bayescope.processes import present

MAX_ITERATIONS = 500
NEWTON_STEPS = 20
HALVINGS = 10
WALL = 1e3
# Newton steps end after one that was to gain no more than this, in nats.
SETTLED = 1e-6


@final
@dataclass(frozen=True, eq=False)
class Conditioning:
    """The inference behind `Posterior.condition`: Laplace's approximation of p(θ∣new data) under a given prior.

    With the posterior N(θ*, A⁻¹) as the prior, the log joint density is Σ log p(y∣f)/T − ½ (θ − θ*)ᵀA(θ − θ*) over the
    new data alone, its mode θ** is climbed to from θ*, and the new precision is A + H(θ**)/T (Ritter et al. 2018,
    "Online structured Laplace approximations for overcoming catastrophic forgetting").

    Attributes:
        options: how curvatures are read.
        function: the model at θ*.
    """

    options: LaplaceOptions
    function: NetworkModel

    @classmethod
    def of(cls, options: LaplaceOptions, fit: LaplaceFit) -> Conditioning:
        """The inference that goes on from a fit, with the noise and the temperature that it has come to."""
        options = replace(
            options, weights=fit.function.weights, likelihood=fit.likelihood, temperature=fit.temperature
        )  # fmt: skip
        return cls(options, fit.function)

    @outside_inference_mode
    def __call__(self, prior: Prior, *data: Any) -> GaussianPosterior:
        """The posterior after more data.

        Args:
            prior: p(θ), such as the last posterior.
            data: X and y, or a DataLoader or Dataset.

        Raises:
            UnsupportedError: if curvatures of the structure do not add up, before anything is trained.

        Warns:
            ConvergenceWarning: if the mode is not reached.
        """
        with present().called("condition", {"structure": self.options.structure}):
            if self.options.structure == "ekfac" and not isinstance(prior.precision, Tensor):
                raise UnsupportedError(
                    "condition: expected a structure whose curvatures add up, got 'ekfac': new data have other "
                    "eigenvectors. Take structure='kfac'."
                )
        given = data[0] if len(data) == 1 else tuple(data)
        climb = _Climb(self.options, self.function, prior, given)
        fit = climb.polished(climb.climbed(self.function.flat))
        if fit.distance is not None:
            fit.distance.warn("Give the new data in fewer, larger parts.")
        return replace(fit, infer=partial(Conditioning.of, self.options)).posterior()


@final
class _Climb:
    """The way to the mode of Σ log p(y∣f)/T + log p(θ), over passes through all the data.

    Of several processes all go the first one's: what each would round in its own way could lead them apart.
    """

    def __init__(self, options: LaplaceOptions, function: NetworkModel, prior: Prior, data: Any) -> None:
        self._options, self._prior, self._data, self._weights = options, prior, data, function.weights
        self._module = module_copy(function.module)
        self._batches = Batches(data, self._module, batch_size=options.batch_size)
        self._processes = present()

    def climbed(self, start: Tensor) -> Tensor:
        """The end of L-BFGS over θ = start + R z with R Rᵀ = diag(P₀)⁻¹: the prior's units make the scales alike."""
        scale = self._prior.diagonal(len(start)).rsqrt()
        first = float(self.log_joint(start)[0])

        def objective(z: np.ndarray) -> tuple[float, np.ndarray]:
            try:
                value, gradient = self.log_joint(start + scale * torch.from_numpy(z).to(start))
            except (InputError, ProcessError):  # outputs that are not finite: a wall, from which the line search turns
                return -first + WALL * (1.0 + abs(first)), np.zeros_like(z)
            return -float(value), -(scale * gradient).cpu().numpy()

        rounding = 0.1 * torch.finfo(self._dtype).eps
        found = minimize(
            objective, np.zeros(len(start)), jac=True, method="L-BFGS-B",
            options={"maxiter": MAX_ITERATIONS, "maxcor": 20, "ftol": rounding, "gtol": 1e-5},
        )  # fmt: skip
        return self._shared(start + scale * torch.from_numpy(found.x).to(start))

    def polished(self, theta: Tensor) -> LaplaceFit:
        """The fit at the mode, after Newton steps θ + A⁻¹g that are halved until they climb."""
        fit = self.fit(theta)
        for _ in range(NEWTON_STEPS):
            gain = 0.5 * float(self._shared(fit.newton_decrement())) ** 2
            moved = self._step(fit)
            if moved is None:
                return fit
            fit = self.fit(moved)
            if gain <= SETTLED:
                return fit
        return fit

    def fit(self, theta: Tensor) -> LaplaceFit:
        """Laplace's approximation at θ, as the module rounds it."""
        return self._options.fit(module_copy(self._placed(theta)), self._data, self._prior)

    def log_joint(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Σ log p(y∣f)/T + log p(θ) and its gradient, as the module rounds θ."""
        module, temperature = self._placed(self._shared(theta)), self._options.temperature
        slope = read_slope(module, self._weights, self._batches, self._options.likelihood)
        rounded = self._weights.flat(module).to(torch.float64)
        value = slope.log_likelihood.to(theta) / temperature + self._prior.log_prob(rounded)
        gradient = slope.gradient / temperature + self._prior.gradient(rounded)
        return self._shared(value), self._shared(gradient)

    def _step(self, fit: LaplaceFit) -> Tensor | None:
        """Where a Newton step leads, shortened until the log joint density is not lower; ``None`` if it always is."""
        step = self._shared(fit.precision().solve(fit.joint_gradient()))
        before = float(self.log_joint(fit.mode)[0])
        rounding = torch.finfo(self._dtype).eps * (1.0 + abs(before))
        for _ in range(HALVINGS):
            if float(self.log_joint(fit.mode + step)[0]) >= before - rounding:
                return fit.mode + step
            step = 0.5 * step
        return None

    def _shared(self, values: Tensor) -> Tensor:
        """The values of the first process, so that all processes go on with the same."""
        if self._processes.count == 1:
            return values
        values = values.clone()
        self._processes.share([values])
        return values

    @property
    def _dtype(self) -> torch.dtype:
        return next(iter(self._weights.parameters(self._module).values())).dtype

    def _placed(self, theta: Tensor) -> nn.Module:
        """The climb's own module, at θ."""
        values = self._weights.unflat(theta, self._module)
        with torch.no_grad():
            for name, parameter in self._weights.parameters(self._module).items():
                parameter.copy_(values[name])
        return self._module
