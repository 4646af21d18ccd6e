"""Neural additive models: terms, their Gauss-Newton fit, evidence by blocks, interactions and explanations."""

from bayescope.additive.additive import Additive, fit_additive, pruned, removal_gains
from bayescope.additive.contributions import Functions, position_of, read
from bayescope.additive.design import MOST_POINTS, Design, distinct_points
from bayescope.additive.effects import (
    Effect,
    Grid,
    MissingEffect,
    Surface,
    effect,
    effect_covariance,
    surface,
)
from bayescope.additive.explanation import explain, importance
from bayescope.additive.families import (
    HiddenNets,
    Jacobian,
    LevelEffects,
    MonotoneSteps,
    Points,
    TermFamily,
    has_values,
    values_of,
)
from bayescope.additive.fit import (
    AdditiveFit,
    AdditiveOptions,
    BlockEvidence,
    NewtonStep,
    climb,
    first_precisions,
    settled,
    solved,
    step,
)
from bayescope.additive.interactions import Grids, Ranking, evidence_gains, mutual_information, rank
from bayescope.additive.model import AdditiveModel, Centre
from bayescope.additive.network import AdditiveNetwork
from bayescope.additive.observed import Margin, RowsInMemory
from bayescope.additive.passes import CODED_ROWS, Computed, RowPasses
from bayescope.additive.posterior import laplace_at, point_at, tightest_log_evidence
from bayescope.additive.problem import AdditiveHyperparameters, AdditiveProblem, BlockFactors, noise_of
from bayescope.additive.seen import TrainingValues, Values
from bayescope.additive.terms import EncodedRows, FeatureInput, Term, feature_term, pair_term

__all__ = [
    "CODED_ROWS",
    "MOST_POINTS",
    "Additive",
    "AdditiveFit",
    "AdditiveHyperparameters",
    "AdditiveModel",
    "AdditiveNetwork",
    "AdditiveOptions",
    "AdditiveProblem",
    "BlockEvidence",
    "BlockFactors",
    "Centre",
    "Computed",
    "Design",
    "Effect",
    "EncodedRows",
    "FeatureInput",
    "Functions",
    "Grid",
    "Grids",
    "HiddenNets",
    "Jacobian",
    "LevelEffects",
    "Margin",
    "MissingEffect",
    "MonotoneSteps",
    "NewtonStep",
    "Points",
    "Ranking",
    "RowPasses",
    "RowsInMemory",
    "Surface",
    "Term",
    "TermFamily",
    "TrainingValues",
    "Values",
    "climb",
    "distinct_points",
    "effect",
    "effect_covariance",
    "evidence_gains",
    "explain",
    "feature_term",
    "first_precisions",
    "fit_additive",
    "has_values",
    "importance",
    "laplace_at",
    "mutual_information",
    "noise_of",
    "pair_term",
    "point_at",
    "position_of",
    "pruned",
    "rank",
    "read",
    "removal_gains",
    "settled",
    "solved",
    "step",
    "surface",
    "tightest_log_evidence",
    "values_of",
]
