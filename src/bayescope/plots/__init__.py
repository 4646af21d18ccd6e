"""Pictures of predictions and posteriors: each function takes numbers and returns a matplotlib figure."""

from bayescope.plots.additive import effect, effect_surface, effects, explanation, importance
from bayescope.plots.posteriors import (
    agreement,
    calibration_curves,
    decision_surfaces,
    marginals,
    moment_agreement,
    most_disputed,
    reliability_curves,
    training_curves,
)

__all__ = [
    "agreement",
    "calibration_curves",
    "decision_surfaces",
    "effect",
    "effect_surface",
    "effects",
    "explanation",
    "importance",
    "marginals",
    "moment_agreement",
    "most_disputed",
    "reliability_curves",
    "training_curves",
]
