"""Laplace's approximation for networks: posteriors, their evidence, and what is learnt from it."""

from bayescope.laplace.constant import warn_if_constant
from bayescope.laplace.distance import TRAIN, Distance
from bayescope.laplace.evidence import EvidenceOfModes, maximise
from bayescope.laplace.fit import LaplaceFit
from bayescope.laplace.groups import PriorGroups
from bayescope.laplace.hyperparameters import listed, prior_precision
from bayescope.laplace.judgement import (
    AUTO,
    MARGIN,
    SPENT,
    WORSE,
    Limits,
    LossComparison,
    automatic,
    compared,
    warn_if_worse,
)
from bayescope.laplace.laplace import (
    EVIDENCE,
    concluded,
    learns_noise,
    leaves_noise_open,
    own_copy,
    starting_likelihood,
)
from bayescope.laplace.mode import Slope, read_slope
from bayescope.laplace.online import fit_evidence
from bayescope.laplace.options import LaplaceOptions
from bayescope.laplace.sampling import Solution, block_conjugate_gradients
from bayescope.laplace.selection import Selection, select
from bayescope.laplace.training_rows import ROWS, RowSample, TrainingRows
from bayescope.laplace.tuning import tune_prior
from bayescope.laplace.validation import GroupBlock

__all__ = [
    "AUTO",
    "EVIDENCE",
    "MARGIN",
    "ROWS",
    "SPENT",
    "TRAIN",
    "WORSE",
    "Distance",
    "EvidenceOfModes",
    "GroupBlock",
    "LaplaceFit",
    "LaplaceOptions",
    "Limits",
    "LossComparison",
    "PriorGroups",
    "RowSample",
    "Selection",
    "Slope",
    "Solution",
    "TrainingRows",
    "automatic",
    "block_conjugate_gradients",
    "compared",
    "concluded",
    "fit_evidence",
    "learns_noise",
    "leaves_noise_open",
    "listed",
    "maximise",
    "own_copy",
    "prior_precision",
    "read_slope",
    "select",
    "starting_likelihood",
    "tune_prior",
    "warn_if_constant",
    "warn_if_worse",
]
