"""Training: minibatches, an optimiser and the prior as the penalty, down to the most probable weights."""

from bayescope.training.fit_map import fit_map

__all__ = ["fit_map"]
