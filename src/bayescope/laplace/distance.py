"""How far weights are from a mode, in the posterior's own units, and the warning about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from bayescope.errors import ConvergenceWarning
from bayescope.processes import warn_once

# The weights are far from a mode where λ² is over this share of γ: a third of a standard deviation off, on average, in
# every direction that the data determine. Small networks trained until they rest have 1e-8 to 0.05, those with kinks
# (ReLU) the most; with a tenth of the epochs it is above 0.4, and under a prior precision 100 times larger above 3.
FAR = 0.1


@final
@dataclass(frozen=True)
class Distance:
    """How far weights are from a mode.

    With λ the Newton decrement, the evidence leaves out about ½ λ² nats. A draw from the posterior itself would have
    λ² ≈ γ along the directions that the data determine, so that a mode is what has a small share of it.

    Attributes:
        squared: λ².
        determined: γ, how many parameters the data determine.
    """

    squared: float
    determined: float

    @property
    def is_far(self) -> bool:
        """Whether λ² > `FAR` max(γ, 1)."""
        return self.squared > FAR * max(self.determined, 1.0)

    def warn(self, advice: str) -> None:
        """Warns where the weights are far from a mode: Laplace's expansion has then a slope that it leaves out.

        Args:
            advice: what to do about it.

        Warns:
            ConvergenceWarning: with the Newton decrement.
        """
        if self.is_far:
            warn_once(
                f"model: expected weights at a mode for this prior, got a Newton decrement of {self.squared**0.5:.3g} "
                f"(squared, {self.squared:.3g} beside {self.determined:.3g} parameters that the data determine): a "
                f"Newton step would gain {0.5 * self.squared:.3g} nats. {advice}",
                ConvergenceWarning,
            )


TRAIN = (
    "Leave prior_precision at 'auto', tune it by bs.tune_prior(q, method='validation', data=...), or train a few steps "
    "on with this prior: bs.fit_map, for a small network with optimizer='lbfgs'."
)
GO_ON = (
    "Take optimizer='lbfgs' for a small network, else more epochs, smaller batches or a step size that falls "
    "(schedule='cosine'); or keep the last weights (keep='last')."
)
LEARN = (
    "Tune by bs.tune_prior(q, method='validation', data=...), take prior_precision='auto', or train again with this "
    "prior: bs.fit_map, for a small network with optimizer='lbfgs', or bs.fit_evidence."
)
