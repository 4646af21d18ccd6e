"""Curvature of a network's loss: kinds, structures, and the passes over the data that fit them."""

from bayescope.curvature.curvature import Curvature, fit_curvature
from bayescope.curvature.hessian import add_blocks as add_blocks
from bayescope.curvature.hessian import add_diagonal as add_diagonal
from bayescope.curvature.hessian import check_symmetric as check_symmetric
from bayescope.curvature.hessian import hessian_product as hessian_product
from bayescope.curvature.kinds import Observations as Observations
from bayescope.curvature.options import STRUCTURES, SUPPORTED, CurvatureKeywords, CurvatureOptions, Fallback
from bayescope.curvature.options import output_factors as output_factors
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
