"""Pictures of predictions and posteriors: each function takes numbers and returns a matplotlib figure."""

from bayescope.plots.agreement import agreement
from bayescope.plots.marginals import marginals, most_disputed
from bayescope.plots.reliability import reliability_curves
from bayescope.plots.surface import decision_surfaces
from bayescope.plots.training import training_curves

__all__ = ["agreement", "decision_surfaces", "marginals", "most_disputed", "reliability_curves", "training_curves"]
