"""Inference for linear models: the mode, the evidence, Laplace, variational inference, EP, the conjugate case."""

from bayescope.linear.density import Again, LikelihoodExpansion, LinearDensity, OutputCovariance, compile_density
from bayescope.linear.evidence import (
    Expansion,
    PrecisionSearch,
    effective_parameters,
    first_precision,
    maximise_evidence,
    maximise_group_evidence,
    weight_prior,
)
from bayescope.linear.expectations import Expectation, expected_log_likelihood, log_expected_likelihood
from bayescope.linear.groups import GroupedEvidence, WeightGroups, ascend
from bayescope.linear.mode import LinearMode, find_mode, laplace, laplace_at, map_at
from bayescope.linear.regression import conjugate, tune_group_scales, tune_scales, tune_scales_of_each
from bayescope.linear.row_space import RowSpace, require_room
from bayescope.linear.sampling import metropolis, nuts
from bayescope.linear.sites import SiteFit, expectation_propagation, fixed_point, logit_tilted, probit_tilted
from bayescope.linear.table import Batch, RowTable, blocks
from bayescope.linear.tuning import search_range, tune_precision
from bayescope.linear.variational_bound import variational

__all__ = [
    "Again",
    "Batch",
    "Expansion",
    "Expectation",
    "GroupedEvidence",
    "LikelihoodExpansion",
    "LinearDensity",
    "LinearMode",
    "OutputCovariance",
    "PrecisionSearch",
    "RowSpace",
    "RowTable",
    "SiteFit",
    "WeightGroups",
    "ascend",
    "blocks",
    "compile_density",
    "conjugate",
    "effective_parameters",
    "expectation_propagation",
    "expected_log_likelihood",
    "find_mode",
    "first_precision",
    "fixed_point",
    "laplace",
    "laplace_at",
    "log_expected_likelihood",
    "logit_tilted",
    "map_at",
    "maximise_evidence",
    "maximise_group_evidence",
    "metropolis",
    "nuts",
    "probit_tilted",
    "require_room",
    "search_range",
    "tune_group_scales",
    "tune_precision",
    "tune_scales",
    "tune_scales_of_each",
    "variational",
    "weight_prior",
]
