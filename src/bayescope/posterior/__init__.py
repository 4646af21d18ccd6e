"""Posteriors q(θ): a Gaussian, a mixture, draws, a point, random passes."""

from bayescope.posterior.draws import DrawsPosterior
from bayescope.posterior.gaussian import GaussianPosterior
from bayescope.posterior.implicit import ImplicitPosterior
from bayescope.posterior.mixture import MixturePosterior
from bayescope.posterior.point import PointPosterior
from bayescope.posterior.posterior import Posterior
from bayescope.posterior.record import Record

__all__ = [
    "DrawsPosterior",
    "GaussianPosterior",
    "ImplicitPosterior",
    "MixturePosterior",
    "PointPosterior",
    "Posterior",
    "Record",
]
