"""Posteriors q(θ): a Gaussian, a mixture, draws, a point, random passes."""

from bayescope.posterior.answer import in_rows
from bayescope.posterior.arviz_groups import NamedDraws, inference_data
from bayescope.posterior.cone import Cone, onto_cone
from bayescope.posterior.draws import DEFAULT_PASSES, DrawsPosterior, ImplicitPosterior, PointPosterior
from bayescope.posterior.gaussian import GaussianPosterior
from bayescope.posterior.joint import JointLatent
from bayescope.posterior.missing import InputRows, Missing, Spread
from bayescope.posterior.mixture import MixturePosterior
from bayescope.posterior.parameters import Parameters
from bayescope.posterior.posterior import Evidence, Posterior, noted, with_names
from bayescope.posterior.record import Record
from bayescope.posterior.rewards import item_rewards

__all__ = [
    "DEFAULT_PASSES",
    "Cone",
    "DrawsPosterior",
    "Evidence",
    "GaussianPosterior",
    "ImplicitPosterior",
    "InputRows",
    "JointLatent",
    "Missing",
    "MixturePosterior",
    "NamedDraws",
    "Parameters",
    "PointPosterior",
    "Posterior",
    "Record",
    "Spread",
    "in_rows",
    "inference_data",
    "item_rewards",
    "noted",
    "onto_cone",
    "with_names",
]
