"""Pictures of predictions and posteriors: each function takes numbers and returns a matplotlib figure."""

from bayescope.plots.additive import effect, effect_surface, effects, explanation, importance
from bayescope.plots.posteriors import (
    agreement,
    decision_surfaces,
    marginals,
    most_disputed,
    reliability_curves,
    training_curves,
)

__all__ = [
    "agreement",
    "decision_surfaces",
    "effect",
    "effect_surface",
    "effects",
    "explanation",
    "importance",
    "marginals",
    "most_disputed",
    "reliability_curves",
    "training_curves",
]
