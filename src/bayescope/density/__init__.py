"""Inference on any log density: the same posterior types come back as for models."""

from bayescope.density.diagnosis import FEWEST_DRAWS as FEWEST_DRAWS
from bayescope.density.diagnosis import Mixing as Mixing
from bayescope.density.diagnosis import convergence as convergence
from bayescope.density.diagnosis import diagnosed as diagnosed
from bayescope.density.divergence import kl
from bayescope.density.importance import PARETO_K_LIMIT as PARETO_K_LIMIT
from bayescope.density.importance import ImportanceResult, importance
from bayescope.density.importance import pareto_smoothed as pareto_smoothed
from bayescope.density.laplace import laplace
from bayescope.density.metropolis import metropolis
from bayescope.density.metropolis import metropolis_draws as metropolis_draws
from bayescope.density.nuts import nuts
from bayescope.density.nuts import nuts_draws as nuts_draws
from bayescope.density.variational import fresh_rules as fresh_rules
from bayescope.density.variational import standard_rule as standard_rule
from bayescope.density.variational import variational
from bayescope.transforms import between

__all__ = ["ImportanceResult", "between", "importance", "kl", "laplace", "metropolis", "nuts", "variational"]
