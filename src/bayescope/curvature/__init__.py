"""Curvature of a network's loss: kinds, structures, and the passes over the data that fit them."""

from bayescope.curvature.curvature import Curvature
from bayescope.curvature.fallbacks import Fallback
from bayescope.curvature.fit import fit_curvature
from bayescope.curvature.kinds import STRUCTURES, SUPPORTED
from bayescope.curvature.plan import Plan, plan

__all__ = ["STRUCTURES", "SUPPORTED", "Curvature", "Fallback", "Plan", "fit_curvature", "plan"]
