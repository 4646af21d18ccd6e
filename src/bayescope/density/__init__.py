"""Inference on any log density: the same posterior types come back as for models."""

from bayescope.density.divergence import kl
from bayescope.density.importance import ImportanceResult, importance
from bayescope.density.laplace import laplace
from bayescope.density.metropolis import metropolis
from bayescope.density.nuts import nuts
from bayescope.density.variational import variational

__all__ = ["ImportanceResult", "importance", "kl", "laplace", "metropolis", "nuts", "variational"]
