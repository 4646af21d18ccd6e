"""Structured symmetric matrices: the precision of a Gaussian posterior, and the curvature that it is made of."""

from bayescope.precision.block import BlockPrecision
from bayescope.precision.corrected import EigenvalueCorrectedPrecision
from bayescope.precision.covariance import LowRankCovariance
from bayescope.precision.dense import DensePrecision
from bayescope.precision.diagonal import DiagonalPrecision
from bayescope.precision.distributed import all_reduce
from bayescope.precision.files import load_precision, save_precision
from bayescope.precision.kronecker import KroneckerPrecision
from bayescope.precision.low_rank import LowRankPrecision
from bayescope.precision.precision import Precision
from bayescope.precision.product import KroneckerProduct

__all__ = [
    "BlockPrecision",
    "DensePrecision",
    "DiagonalPrecision",
    "EigenvalueCorrectedPrecision",
    "KroneckerPrecision",
    "KroneckerProduct",
    "LowRankCovariance",
    "LowRankPrecision",
    "Precision",
    "all_reduce",
    "load_precision",
    "save_precision",
]
