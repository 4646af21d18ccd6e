"""Structured positive definite matrices: the precision of a Gaussian posterior."""

from bayescope.precision.dense import DensePrecision
from bayescope.precision.diagonal import DiagonalPrecision
from bayescope.precision.precision import Precision

__all__ = ["DensePrecision", "DiagonalPrecision", "Precision"]
