"""Training: minibatches, an optimiser and the prior as the penalty, down to the most probable weights."""

from bayescope.training.checkpoint import Checkpoint, resumable
from bayescope.training.convergence import Cycles
from bayescope.training.fit_map import fit_map
from bayescope.training.lbfgs import Lbfgs
from bayescope.training.learnt_likelihood import LearntLikelihood, first_likelihood
from bayescope.training.loop import Outcome, random_states
from bayescope.training.minibatches import Minibatches, OrderedLoader
from bayescope.training.objective import NegativeLogJoint, canonical_targets, log_likelihood
from bayescope.training.options import MakeOptimizer, TrainingKeywords, TrainingOptions
from bayescope.training.stack import Stack, for_each, obstacle
from bayescope.training.steps import Interrupts
from bayescope.training.training import Training, chosen_weights, prepared
from bayescope.training.watch import Validation, Verdict

__all__ = [
    "Checkpoint",
    "Cycles",
    "Interrupts",
    "Lbfgs",
    "LearntLikelihood",
    "MakeOptimizer",
    "Minibatches",
    "NegativeLogJoint",
    "OrderedLoader",
    "Outcome",
    "Stack",
    "Training",
    "TrainingKeywords",
    "TrainingOptions",
    "Validation",
    "Verdict",
    "canonical_targets",
    "chosen_weights",
    "first_likelihood",
    "fit_map",
    "for_each",
    "log_likelihood",
    "obstacle",
    "prepared",
    "random_states",
    "resumable",
]
