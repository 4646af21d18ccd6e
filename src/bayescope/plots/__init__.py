"""Pictures of predictions and posteriors: each function takes numbers and returns a matplotlib figure.

Every picture takes ``ax=``: one matplotlib Axes, or several as ``plt.subplots`` gives them, one for each panel. It is
then drawn into them, without a header, and they are what comes back.
"""

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
from bayescope.plots.predictions import predictions

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
    "predictions",
    "reliability_curves",
    "training_curves",
]
