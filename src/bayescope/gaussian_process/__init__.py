"""The linearised network as a Gaussian process: Laplace's posterior with its arithmetic over data, not over weights."""

from bayescope.gaussian_process.function_space import function_space
from bayescope.gaussian_process.precision import KernelPrecision as KernelPrecision
from bayescope.gaussian_process.projection import greedy_points as greedy_points
from bayescope.gaussian_process.rows import KernelRows as KernelRows

__all__ = ["function_space"]
