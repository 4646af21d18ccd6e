"""Structured symmetric matrices: the precision of a Gaussian posterior, and the curvature that it is made of."""

from bayescope.precision.block import BLOCK, BlockPrecision
from bayescope.precision.block import BlockSum as BlockSum
from bayescope.precision.corrected import EigenvalueCorrectedPrecision
from bayescope.precision.covariance import LowRankCovariance
from bayescope.precision.dense import FULL, DensePrecision
from bayescope.precision.dense import DenseSum as DenseSum
from bayescope.precision.diagonal import DIAGONAL, DiagonalPrecision
from bayescope.precision.diagonal import SquareSum as SquareSum
from bayescope.precision.kronecker import EKFAC, KFAC, KroneckerPrecision
from bayescope.precision.kronecker import KroneckerSum as KroneckerSum
from bayescope.precision.low_rank import LOW_RANK, LowRankPrecision
from bayescope.precision.low_rank import SETTLED as SETTLED
from bayescope.precision.low_rank import LowRankGoal as LowRankGoal
from bayescope.precision.low_rank import ProductSum as ProductSum
from bayescope.precision.low_rank import leading_part as leading_part
from bayescope.precision.precision import Precision, all_reduce
from bayescope.precision.precision import weight_draws as weight_draws
from bayescope.precision.product import KroneckerProduct
from bayescope.precision.structure import Sum as Sum
from bayescope.precision.structure import TapeSum as TapeSum

# The structures of a curvature, in the order in which messages list them.
STRUCTURES = {each.name: each for each in (FULL, BLOCK, DIAGONAL, KFAC, EKFAC, LOW_RANK)}

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
]
