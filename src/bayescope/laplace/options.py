"""How a network is read for Laplace's approximation: what was asked for, apart from model, data and prior."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from torch import nn

from bayescope import checks
from bayescope.curvature import CurvatureOptions, fit_curvature
from bayescope.laplace.fit import LaplaceFit
from bayescope.laplace.mode import positions, read_slope
from bayescope.laplace.training_rows import ROWS
from bayescope.likelihoods import Likelihood
from bayescope.network.batches import Batches, Data
from bayescope.network.model import NetworkModel
from bayescope.network.priors import PriorPrecision, network_prior
from bayescope.private_draws import private_draws
from bayescope.process_state import outside_inference_mode
from bayescope.storage import stored


@stored("laplace_options")
@final
@dataclass(frozen=True)
class LaplaceOptions:
    """The options of a Laplace fit; see `laplace` for what each of them means.

    Attributes:
        likelihood: p(y∣f).
        weights: which are random.
        temperature: T, of the likelihood.
        progress: whether a bar is drawn.
        curved: the options of the curvature.
        tolerance: of the systems that draws are solved from; see `sample_posterior`.
    """

    likelihood: Likelihood
    weights: Any = "all"
    temperature: float = 1.0
    progress: bool = False
    curved: CurvatureOptions = field(default_factory=CurvatureOptions)
    tolerance: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "temperature", checks.positive_number("temperature", self.temperature))

    @outside_inference_mode
    def fit(
        self,
        module: nn.Module,
        data: Data,
        prior_precision: PriorPrecision = 1.0,
        *,
        generator: torch.Generator | int | None = None,
        gradient: bool = True,
        sampled_rows: int = ROWS,
    ) -> LaplaceFit:
        """Reads the curvature at the module's present weights, and the gradient in one pass more.

        Args:
            module: the network, which belongs to the fit from now on: nobody else may write to it.
            data: a DataLoader, a Dataset, or (X, y).
            prior_precision: in any form that `network_prior` takes.
            generator: draws the labels of "fisher" and the first vectors of "low_rank".
            gradient: whether it is read; without it there is no Newton decrement and no fingerprint.
            sampled_rows: the most training rows that the fit keeps, to compare its predictions with the network's.

        Raises:
            InputError: if passes over the data differ, or something does not fit.
        """
        curvature = fit_curvature(
            module, data, likelihood=self.likelihood, weights=self.weights, generator=generator,
            progress=self.progress, **self.curved.keywords,
        )  # fmt: skip
        batches = Batches(data, module, batch_size=self.curved.batch_size)
        with private_draws():  # of a loader that shuffles
            row = batches.example()[0]
        function = NetworkModel.of(curvature.network, row)
        fit = LaplaceFit(
            curvature, function, function.flat,
            network_prior(prior_precision, function.weights, function.module), self.likelihood,
            temperature=self.temperature,
        )  # fmt: skip
        if not gradient:
            return replace(fit, observations=curvature.rows * positions(module, function.inputs(row)))
        slope = read_slope(
            module,
            function.weights,
            batches,
            self.likelihood,
            at_once=curvature.at_once,
            progress=self.progress,
            sampled_rows=sampled_rows,
        )
        slope.require_same(curvature.rows, curvature.log_likelihood)
        return replace(
            fit, observations=slope.observations, gradient=slope.gradient, fingerprint=slope.fingerprint,
            sample=slope.sample,
        )  # fmt: skip
