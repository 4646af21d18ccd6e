"""Curvature of a network's loss: kinds, structures, and the passes over the data that fit them."""

from bayescope.curvature.curvature import Curvature
from bayescope.curvature.fallbacks import Fallback
from bayescope.curvature.fit import fit_curvature
from bayescope.curvature.options import STRUCTURES, SUPPORTED, CurvatureKeywords, CurvatureOptions
from bayescope.curvature.plan import Plan, plan

__all__ = [
    "STRUCTURES",
    "SUPPORTED",
    "Curvature",
    "CurvatureKeywords",
    "CurvatureOptions",
    "Fallback",
    "Plan",
    "fit_curvature",
    "plan",
]
