"""Pictures of predictions and posteriors: each function takes numbers and returns a matplotlib figure."""

from bayescope.plots.agreement import agreement
from bayescope.plots.contributions import explanation, importance
from bayescope.plots.effect_surface import effect_surface
from bayescope.plots.effects import effect, effects
from bayescope.plots.marginals import marginals, most_disputed
from bayescope.plots.reliability import reliability_curves
from bayescope.plots.surface import decision_surfaces
from bayescope.plots.training import training_curves

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
