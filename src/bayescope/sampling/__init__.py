"""Sampling for networks: NUTS, stochastic-gradient MCMC, SWAG, and their diagnosis in function space."""

from bayescope.sampling.chains import DrawPlan, Langevin, StepSizes
from bayescope.sampling.density import NetworkDensity, compile_density
from bayescope.sampling.diagnosis import DIAGNOSED_ROWS, diagnosed_rows, prediction_diagnosis
from bayescope.sampling.nuts import nuts
from bayescope.sampling.sgmcmc import sgmcmc
from bayescope.sampling.swag import swag

__all__ = [
    "DIAGNOSED_ROWS",
    "DrawPlan",
    "Langevin",
    "NetworkDensity",
    "StepSizes",
    "compile_density",
    "diagnosed_rows",
    "nuts",
    "prediction_diagnosis",
    "sgmcmc",
    "swag",
]
